// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as code and a PT stream over it: decoding ends, counts agree however it is done, time does not run
//! backwards, and the profile accounts for each instruction once. Input: see `src/input.rs`.
#![no_main]

#[path = "../src/input.rs"]
#[allow(dead_code)]
mod input;

#[path = "../src/cells.rs"]
mod cells;

use std::ops::Range;

use cells::{CLOCK, Cells};

use kprism_flow::{Decoder, Setup, Stats};
use kprism_flow::errata::{Errata, Erratum, Filter};
use kprism_flow::error::FaultKind;
use kprism_flow::event::{Event, Null, Sink};
use kprism_flow::packet_event::PacketEvent;
use kprism_flow::{Options, Stream, profile};
use kprism_image::Image;
use kprism_image::sideband::{Record, Switch};
use kprism_pt::find_psb;
use libfuzzer_sys::fuzz_target;

/// An address in the seeds' kernel code that stands for the task switch.
const SWITCH: u64 = 0xffff_ffff_8100_0006;

/// Adds up what it is told, every address included.
#[derive(Default)]
struct Tally<const EVENTS: bool> {
    insns: u64,
    ips: u64,
    ns: u64,
    events: u64,
}

impl<const EVENTS: bool> Sink for Tally<EVENTS> {
    const IPS: bool = true;
    const PACKET_EVENTS: bool = EVENTS;

    fn packet_event(&mut self, insns: u32, event: PacketEvent) {
        self.insns += u64::from(insns);
        self.events += u64::from(!event.restated);
    }

    fn event(&mut self, event: Event) {
        self.insns += u64::from(event.insns);
    }

    fn time(&mut self, insns: u32, ns: u64) {
        self.insns += u64::from(insns);
        assert!(ns >= self.ns);
        self.ns = ns;
    }

    fn ips(&mut self, ips: &[u64]) {
        self.ips += ips.len() as u64;
    }
}

fn all_errata() -> Errata {
    let all: Vec<Erratum> = Erratum::ALL.iter().map(|named| named.0).collect();
    Errata::of(&all, Filter { ranges: [(0, u64::MAX >> 1), (0, 0), (0, 0), (0, 0)] })
}

fn run<S: Sink>(image: &Image, pt: &[u8], from: usize, to: usize, sink: &mut S) -> Stats {
    run_on(Errata::NONE, image, pt, from..to, sink)
}

fn run_on<S: Sink>(errata: Errata, image: &Image, pt: &[u8], range: Range<usize>, sink: &mut S) -> Stats {
    let Range { start: from, end: to } = range;
    let setup = Setup { image, resolver: &Cells, clock: CLOCK, watch: Some(SWITCH), errata };
    Decoder::new(pt, setup, S::IPS).run(from, to, sink)
}

fn switches() -> Vec<Record> {
    let switch = |t: u32| {
        let comm = |pid: u32| format!("task{pid}");
        let (prev_pid, pid) = (t % 3, (t + 1) % 3);
        let (prev_comm, comm) = (comm(prev_pid), comm(pid));
        let t = u64::from(t) * 100;
        Record::Switch(Switch {
            t,
            cpu: 0,
            ip: SWITCH,
            prev_pid,
            prev_tgid: 1,
            prev_comm,
            pid,
            tgid: 1,
            comm,
            ..Switch::default()
        })
    };
    (0..8).map(switch).collect()
}

fuzz_target!(|bytes: &[u8]| {
    let Some((image, pt)) = input::read(bytes) else { return };
    // The whole stream, with and without addresses.
    let mut tally = Tally::<false>::default();
    let stats = run(&image, pt, 0, pt.len(), &mut tally);
    assert_eq!(tally.insns, stats.instructions);
    assert_eq!(tally.ips, stats.instructions);
    assert_eq!(run(&image, pt, 0, pt.len(), &mut Null), stats);
    // Each segment alone.
    let mut from = find_psb(pt, 0);
    while let Some(at) = from {
        from = find_psb(pt, at + 16);
        let mut tally = Tally::<false>::default();
        let stats = run(&image, pt, at, from.unwrap_or(pt.len()), &mut tally);
        assert_eq!(tally.insns, stats.instructions);
        assert_eq!(tally.ips, stats.instructions);
    }
    // With the events of packets, and all work-arounds of errata.
    let mut tally = Tally::<true>::default();
    let told = run_on(all_errata(), &image, pt, 0..pt.len(), &mut tally);
    assert_eq!(tally.insns, told.instructions);
    assert_eq!(tally.ips, told.instructions);
    assert_eq!(tally.events, told.packet_events.iter().map(|(_, n)| n).sum::<u64>());
    // Call stacks and all, in one piece and with each segment on its own.
    for chunk in [0, 1] {
        let instructions = account(&image, pt, chunk);
        // How often an endless loop is gone round until it is noticed depends on where blocks are cut.
        let endless = stats.faults.iter().any(|fault| fault.kind == FaultKind::Endless);
        assert!(chunk == 1 || endless || instructions == stats.instructions);
    }
});

/// Makes a profile and checks that it is sound. Returns its instructions.
fn account(image: &Image, pt: &[u8], chunk: usize) -> u64 {
    let streams = [Stream { cpu: 0, bytes: pt, image }];
    let options = Options { threads: 1, slice_ns: 10, clock: CLOCK, chunk, ..Options::default() };
    let profile = profile(&streams, &Cells, &switches(), &options, &|_| {});
    let instructions = profile.totals.per_cpu[0].instructions;
    assert_eq!(profile.nodes.iter().map(|n| n.insns).sum::<u64>(), instructions);
    for (i, node) in profile.nodes.iter().enumerate() {
        assert!(node.parent == u32::MAX || (node.parent as usize) < i);
        assert!((node.func as usize) < profile.funcs.len() || node.parent == u32::MAX);
    }
    for slice in &profile.slices {
        assert!(slice.start_ns <= slice.end_ns);
    }
    instructions
}
