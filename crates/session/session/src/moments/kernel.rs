// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of the kernel's tracepoints that were recorded beside the flow (`streams/events`).
//!
//! In: pages of the ring buffer and formats, or a trace.dat that was imported beside. Out: moments on the clock of the flow. The trace's clock is the guest's TSC. At the
//! lab's exact pace one instruction is one nanosecond of the virtual clock, and the TSC is that clock: an event's time is that of
//! the instruction that read the TSC for it, one more or less, as QEMU may count that instruction before or after it reads.

use std::fs;

use anyhow::{Context, Result};
use kprism_ftrace::Data;
use kprism_ftrace::dat::Dat;
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::merge::Merged;
use kprism_ftrace::raw::Cpu;
use kprism_ftrace::show::Shown;
use kprism_ftrace::side;
use kprism_image::symbols::Symbols;
use kprism_store::{Manifest, Run};
use kprism_tracefs::EVENTS;
use kprism_tracefs::beside::{CLOCK, RecordedEvents};
use serde_json::Value;

use super::{Kind, Moment, Phase};
use crate::files::{read, read_if_there};

/// By how much an event's time can differ from that of its instruction in the flow, ns: nearly always 1; the largest
/// difference seen is 16.
pub const ERROR_NS: u64 = 64;

/// The recorded events of a run.
pub struct Events {
    /// Settings, counts, pairs of clocks.
    pub recorded: RecordedEvents,
    formats: Vec<Format>,
    decoder: Decoder,
    layout: PageLayout,
    pages: Vec<(u32, Vec<u8>)>,
    names: std::collections::BTreeMap<u32, String>,
    damaged: Vec<String>,
    /// Order of bytes of the records.
    big: bool,
}

/// Whether events with this clock can be placed on the clock of a flow.
///
/// # Errors
/// Says why not.
pub fn fits(clock: &str, flow: Option<&Manifest>) -> Result<(), String> {
    let pace = flow.and_then(|manifest| manifest.option_facts().pace);
    match (clock, pace.as_deref()) {
        (CLOCK, Some("exact")) => Ok(()),
        (CLOCK, Some(_)) => {
            Err("the flow was not recorded at the exact pace, so the TSC is not its clock".to_owned())
        }
        (CLOCK, None) => Err("the flow was not recorded in the lab, so its clock is not the TSC".to_owned()),
        (clock, _) => Err(format!("their clock is {clock}, not {CLOCK}")),
    }
}

/// The file of trace-cmd among the events, if they were imported.
pub const DAT: &str = "trace.dat";

/// The events recorded beside the flow of a run; none if none were asked for.
///
/// # Errors
/// A file is damaged.
pub fn events(run: &Run) -> Result<Option<Events>> {
    let dir = run.dir().join(EVENTS);
    let Some(recorded) = RecordedEvents::load(&dir)? else { return Ok(None) };
    let dat = dir.join(DAT);
    if dat.is_file() {
        let bytes = read(&dat)?;
        let dat = Dat::parse(&bytes).with_context(|| dat.display().to_string())?;
        return Ok(Some(Events::of_dat(recorded, dat)));
    }
    let (mut formats, mut damaged) = (Vec::new(), Vec::new());
    for name in &recorded.events {
        // The name is from the run's own file: it must not lead out of the folder.
        let Some((system, _)) =
            name.split_once('/').filter(|_| !name.contains("..") && !name.starts_with('/'))
        else {
            damaged.push(format!("{name:?} is no name of an event"));
            continue;
        };
        let path = dir.join("events").join(name).join("format");
        match Format::parse(system, &read(&path)?) {
            Ok(format) => formats.push(format),
            Err(error) => damaged.push(format!("{}: {error}", path.display())),
        }
    }
    let header = read_if_there(&dir.join("header_page"))?;
    let layout = match header.is_empty() {
        true => PageLayout::default(),
        false => PageLayout::parse(&header).context("header_page")?,
    };
    let mut pages = Vec::new();
    for (cpu, _) in &recorded.cpus {
        let path = dir.join(format!("cpu{cpu}.raw"));
        pages.push((*cpu, fs::read(&path).with_context(|| path.display().to_string())?));
    }
    let names = side::by_pid(&read_if_there(&dir.join("saved_cmdlines"))?);
    // Without formats every record stays as it is: all fields of an event are wanted, those of switches too.
    let decoder = Decoder::new(&[], false);
    Ok(Some(Events { recorded, formats, decoder, layout, pages, names, damaged, big: false }))
}

impl Events {
    /// The events of the main buffer of a trace.dat.
    fn of_dat(recorded: RecordedEvents, mut dat: Dat<'_>) -> Self {
        let buffer = dat.main().unwrap_or_default();
        let layout = dat.layout_of(&buffer);
        let names = side::by_pid(&dat.cmdlines);
        let pages = buffer.cpus.into_iter().map(|(cpu, pages)| (cpu, pages.into_owned())).collect();
        Events {
            recorded,
            formats: std::mem::take(&mut dat.formats),
            decoder: Decoder::new(&[], dat.big),
            layout,
            pages,
            names,
            damaged: dat.notes,
            big: dat.big,
        }
    }

    /// Whether the events can be placed on the clock of a flow.
    ///
    /// # Errors
    /// Says why not.
    pub fn placed(&self, flow: Option<&Manifest>) -> Result<(), String> {
        fits(&self.recorded.clock, flow)
    }

    /// Remarks on what was lost or is damaged.
    pub fn notes(&self) -> Vec<String> {
        let lost = self.recorded.lost();
        let lost = (lost > 0).then(|| {
            format!("{lost} kernel events were lost, the oldest first: record with a larger --buffer-size")
        });
        let unread = self.recorded.cpus.is_empty();
        let unread =
            unread.then(|| "the guest did not come to its end: its kernel events were not read".to_owned());
        lost.into_iter().chain(unread).chain(self.damaged.iter().cloned()).collect()
    }

    /// The events in order of time.
    pub fn moments<'a>(&'a self, symbols: Option<&'a Symbols>) -> impl Iterator<Item = Moment> + 'a {
        let cpus = self.pages.iter();
        let cpus = cpus.map(|(cpu, pages)| Cpu::new(&self.decoder, self.layout, *cpu, pages)).collect();
        let shown = Shown::new(&self.formats, self.big);
        Merged::new(cpus).map(move |event| {
            let named = |address: u64| {
                let symbols = symbols?;
                let at = symbols.locate(0, address, 0).filter(|located| located.known)?;
                Some(symbols.function(at.func).name.clone())
            };
            let known = event.pid != kprism_ftrace::UNKNOWN_PID;
            let comm = self.names.get(&event.pid).cloned().unwrap_or_default();
            let idle = || format!("swapper/{}", event.cpu);
            let mut moment = Moment {
                ns: event.ns,
                cpu: u16::try_from(event.cpu).ok(),
                pid: known.then_some(event.pid),
                comm: if event.pid == 0 { idle() } else { comm },
                kind: Kind::Event,
                phase: Phase::Point,
                name: String::new(),
                args: Vec::new(),
            };
            match event.data {
                Data::Raw { id, bytes } => match shown.fields(id, bytes, &named) {
                    Some((system, name, fields)) => {
                        moment.name = format!("{system}:{name}");
                        moment.args =
                            fields.into_iter().map(|(name, text)| (name.to_owned(), value(&text))).collect();
                    }
                    None => moment.name = format!("event {id}"),
                },
                Data::Lost { count } => {
                    moment.kind = Kind::Lost;
                    moment.name = "kernel events lost".to_owned();
                    moment.args.extend(count.map(|count| ("count".to_owned(), count.into())));
                }
                // A decoder without formats knows nothing else.
                _ => moment.name = "event".to_owned(),
            }
            moment
        })
    }
}

/// A field's text as a number, if it is one.
fn value(text: &[u8]) -> Value {
    let text = String::from_utf8_lossy(text);
    match (text.parse::<u64>(), text.parse::<i64>()) {
        (Ok(number), _) => number.into(),
        (_, Ok(number)) => number.into(),
        _ => text.into_owned().into(),
    }
}
