// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looks an instruction up in a recorded flow, by its number or a time. The flow is decoded up to there.

use anyhow::{Result, bail};
use kprism_flow::event::Event;
use kprism_flow::replay::{Code, Listener, TracePosition};
use kprism_image::Image;
use kprism_image::resolve::Resolve;
use kprism_profile::units::{grouped, offset_text, printable};
use kprism_session::Progress;
use kprism_session::flow::{self, Loaded};

/// The instruction that is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// By its number on its CPU, from 1.
    Number(u64),
    /// The first at or after this time, ns.
    Time(u64),
}

/// An instruction of a recorded flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its CPU.
    pub cpu: u16,
    /// Its number there, from 1.
    pub number: u64,
    /// Its address.
    pub ip: u64,
    /// Time before it, ns.
    pub ns: u64,
    /// Its function and the offset in it, if known.
    pub symbol: Option<String>,
}

/// Looks for the instruction.
///
/// # Errors
/// There is none, or the flow before it is not whole, so that it cannot be numbered.
pub(super) fn find(loaded: &Loaded, wanted: Wanted, cpu: Option<u16>, progress: &Progress) -> Result<Found> {
    let lanes = vec![Lane::default(); loaded.streams().len()];
    let mut finder = Finder { wanted, cpu, lanes, resolver: &loaded.symbols, found: None };
    let account = flow::follow(loaded, &mut finder, progress);
    if let Some(fault) = account.fault() {
        bail!("the recorded flow is not whole, so its instructions have no certain numbers: {fault}");
    }
    let ran = |lane: usize| finder.lanes.get(lane).map_or(0, |lane| lane.ran);
    match (finder.found, wanted) {
        (Some(found), _) => Ok(found),
        (None, Wanted::Number(number)) => bail!(
            "there is no instruction {}: CPU {} ran {}",
            grouped(number),
            cpu.unwrap_or(0),
            grouped(ran(cpu.unwrap_or(0).into()))
        ),
        (None, Wanted::Time(ns)) => {
            bail!("no instruction ran at or after {}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
        }
    }
}

/// The addresses of a CPU's pieces of code, and the number of instructions so far.
#[derive(Debug, Clone, Default)]
struct Lane {
    blocks: Vec<Vec<u64>>,
    space: Vec<u64>,
    ran: u64,
}

struct Finder<'a, R> {
    wanted: Wanted,
    cpu: Option<u16>,
    lanes: Vec<Lane>,
    resolver: &'a R,
    found: Option<Found>,
}

impl<R: Resolve> Finder<'_, R> {
    fn symbol(&self, space: u64, ip: u64, ns: u64) -> Option<String> {
        let space = if kprism_image::is_kernel(ip) { 0 } else { space };
        let function = self.resolver.function_at(space, ip, ns);
        let name = self.resolver.describe(function.id).name;
        let offset = offset_text(ip.wrapping_sub(function.entry));
        function.known.then(|| format!("{}{offset}", printable(&name)))
    }
}

impl<R: Resolve> Listener for Finder<'_, R> {
    fn define(&mut self, at: &TracePosition<'_>, block: u32, code: Code, _: &Image) {
        let lane = &mut self.lanes[at.lane];
        debug_assert_eq!(lane.blocks.len(), block as usize, "blocks are numbered in order");
        lane.blocks.push(code.ips);
        lane.space.push(code.asid);
    }

    fn run(&mut self, at: &TracePosition<'_>, block: u32, from: u32, to: u32) {
        let lane = &mut self.lanes[at.lane];
        let (before, ips) = (lane.ran, &lane.blocks[block as usize]);
        lane.ran += u64::from(to - from);
        if self.found.is_some() || self.cpu.is_some_and(|cpu| cpu != at.cpu) {
            return;
        }
        let index = match self.wanted {
            Wanted::Number(number) if number > lane.ran => return,
            Wanted::Number(number) => (number - before - 1) as u32,
            Wanted::Time(ns) => match (0..to - from).find(|&ran| at.after(ran) >= ns) {
                Some(index) => index,
                None => return,
            },
        };
        let (ip, space) = (ips[(from + index) as usize], lane.space[block as usize]);
        let ns = at.after(index);
        let symbol = self.symbol(space, ip, ns);
        self.found = Some(Found { cpu: at.cpu, number: before + u64::from(index) + 1, ip, ns, symbol });
    }

    fn event(&mut self, _: &TracePosition<'_>, _: &Event) {}

    fn is_done(&self) -> bool {
        self.found.is_some()
    }
}
