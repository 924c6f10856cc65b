// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists the events that packets state beside the flow, in order of time: values of PTWRITE, power states, interrupts with their
//! vectors, blocks of PEBS values, changes of the core's clock.
//!
//! In: a replay of the flow. Out: a line for each event: task, CPU, time, kind, what the packet says, and the instruction
//! that it belongs to, if that is known.

use std::io::Write as _;

use kprism_flow::event::{Event, EventKind};
use kprism_flow::packet_event::PacketEvent;
pub use kprism_flow::packet_event::PacketEventKind;
use kprism_flow::replay::{Code, Listener, TracePosition};
use kprism_image::Image;
use kprism_image::resolve::Resolve;
use kprism_pt::Packet;
use kprism_report::perfetto::Moment;
use kprism_session::Progress;
use kprism_session::flow::{self as decoded, Loaded};
use serde_json::{Map, Value};

use crate::code::{CodePlace, Maker, write_place};
use crate::flow::Options;
use crate::output::Output;
use crate::pebs;
use crate::prefix::{Form, Prefix};

struct Lane {
    prefix: Prefix,
    /// Address space.
    space: u64,
    /// Type of the block of values that is open.
    block: u8,
}

/// Lists events while the flow is replayed.
pub struct Lister<'a, 'w, R> {
    options: Options,
    maker: Maker<'a, R>,
    lanes: Vec<Lane>,
    /// True once all lanes are past the end of the selected time.
    past: bool,
    out: Output<'w>,
}

impl<'a, 'w, R: Resolve> Lister<'a, 'w, R> {
    /// A lister for `lanes` streams.
    pub fn new(options: Options, lanes: usize, resolver: &'a R, out: Output<'w>) -> Self {
        let form = if options.json { Form::Json } else { Form::Text };
        let lane = || Lane { prefix: Prefix::new(form, &options.fields), space: 0, block: 0 };
        let lanes = (0..lanes).map(|_| lane()).collect();
        let maker = Maker::new(form, options.fields.clone(), options.syntax, resolver);
        Self { options, maker, lanes, past: false, out }
    }

    /// Writes the remaining lines.
    pub fn finish(self) -> Output<'w> {
        self.out
    }

    fn line(&mut self, ns: u64, lane: usize, kind: PacketEventKind, event: &PacketEvent) {
        let Lane { prefix, space, block } = &mut self.lanes[lane];
        let place = event.ip.map(|ip| CodePlace::find(ip, *space, self.maker.names.resolver, ns));
        let out = self.out.buffer();
        prefix.append(out, ns);
        if self.maker.form == Form::Json {
            // Writing to memory cannot fail.
            let _ = write!(out, "\"event\":\"{}\",", kind.name());
            for (name, value) in members(&event.packet, *block) {
                let _ = write!(out, "\"{name}\":{value},");
            }
            if let Some(place) = place {
                write_place(out, &place, &mut self.maker);
            }
            if out.last() == Some(&b',') {
                out.pop();
            }
            out.extend_from_slice(b"}\n");
        } else {
            let words = words(&event.packet, *block);
            let _ = match &place {
                Some(_) => write!(out, "{:<8}{words:<31} ", kind.name()),
                None => write!(out, "{:<8}{words}", kind.name()),
            };
            if let Some(place) = place {
                write_place(out, &place, &mut self.maker);
            }
            let end = out.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
            out.truncate(end);
            out.push(b'\n');
        }
        self.out.end_line();
    }
}

impl<R: Resolve> Listener for Lister<'_, '_, R> {
    fn define(&mut self, _: &TracePosition<'_>, _: u32, _: Code, _: &Image) {}

    fn run(&mut self, at: &TracePosition<'_>, _: u32, _: u32, _: u32) {
        // Calls come in order of time.
        self.past = self.options.select.to.is_some_and(|to| at.ns() >= to);
    }

    fn event(&mut self, at: &TracePosition<'_>, event: &Event) {
        if event.kind == EventKind::Space {
            self.lanes[at.lane].space = event.ip;
        }
    }

    fn packet_event(&mut self, at: &TracePosition<'_>, event: &PacketEvent) {
        let Some(kind) = PacketEventKind::of(&event.packet) else { return };
        let (ns, lane) = (at.ns(), &mut self.lanes[at.lane]);
        if let Packet::Bbp { typ, .. } = event.packet {
            lane.block = typ;
        }
        let Options { select, fields, .. } = &self.options;
        lane.prefix.follow(at, fields, select);
        let wanted = select.events.is_empty() || select.events.contains(&kind);
        if lane.prefix.taken && wanted && select.takes_time(ns) && !self.out.is_done() {
            self.line(ns, at.lane, kind, event);
        }
    }

    fn is_done(&self) -> bool {
        self.out.is_done() || self.past
    }
}

/// All events of a run, for a timeline.
pub fn moments(loaded: &Loaded, progress: &Progress) -> Vec<Moment> {
    let mut collected = Collector { moments: Vec::new(), blocks: vec![0; loaded.streams().len()] };
    let _ = decoded::follow(loaded, &mut collected, progress);
    collected.moments
}

struct Collector {
    moments: Vec<Moment>,
    /// Type of the block of values that is open, by lane.
    blocks: Vec<u8>,
}

impl Listener for Collector {
    fn define(&mut self, _: &TracePosition<'_>, _: u32, _: Code, _: &Image) {}

    fn run(&mut self, _: &TracePosition<'_>, _: u32, _: u32, _: u32) {}

    fn event(&mut self, _: &TracePosition<'_>, _: &Event) {}

    fn packet_event(&mut self, at: &TracePosition<'_>, event: &PacketEvent) {
        let Some(kind) = PacketEventKind::of(&event.packet) else { return };
        let block = &mut self.blocks[at.lane];
        if let Packet::Bbp { typ, .. } = event.packet {
            *block = typ;
        }
        let ratio = match event.packet {
            Packet::Cbr { ratio } => Some(ratio),
            _ => None,
        };
        let text = words(&event.packet, *block);
        let (cpu, ns, pid) = (at.cpu, at.ns(), at.tasks[at.task].pid);
        self.moments.push(Moment { cpu, ns, pid, kind: kind.name(), text, ip: event.ip, ratio });
    }
}

/// The name of a C-state in PWRE and PWRX: 0 is C1, 15 is C0 (SDM, "MWAIT hints").
fn c_state(state: u8) -> String {
    format!("C{:X}", state.wrapping_add(1) & 15)
}

/// The bits of PWRX that say why the processor woke up.
const WAKE: [(u8, &str); 3] = [(1, "interrupt"), (4, "store"), (8, "autonomous")];

/// A packet's payload in words.
fn words(packet: &Packet, block: u8) -> String {
    match *packet {
        Packet::Ptw { payload, size, .. } => format!("{payload:#x} ({size} bytes)"),
        Packet::Pwre { state, sub_state, hw } => {
            let sub = sub_state.wrapping_add(1) & 15;
            format!("{}.{sub}{}", c_state(state), if hw { " by hardware" } else { "" })
        }
        Packet::Pwrx { last, deepest, reason } => {
            let why: Vec<&str> = WAKE.iter().filter(|bit| reason & bit.0 != 0).map(|bit| bit.1).collect();
            let why = if why.is_empty() { format!("reason {reason:#x}") } else { why.join(" ") };
            format!("{} deepest {} by {why}", c_state(last), c_state(deepest))
        }
        Packet::Cbr { ratio } => format!("{ratio} times the bus clock"),
        Packet::Bbp { typ, .. } => pebs::block(typ).to_owned(),
        Packet::Bip { id, payload, .. } => format!("{} {payload:#x}", pebs::item(block, id)),
        // That a FUP follows is no fact of the event: its address is in the line.
        Packet::Exstop { .. } | Packet::Bep { .. } => String::new(),
        Packet::Cfe { typ, vector, .. } => Packet::Cfe { typ, vector, ip: false }.payload(),
        Packet::Trig { triggers, instructions, multiple, .. } => {
            Packet::Trig { triggers, instructions, multiple, ip: false }.payload()
        }
        other => other.payload(),
    }
}

/// A packet's payload as members of an object. Numbers of 64 bits are texts: JSON's cannot hold all of them.
fn members(packet: &Packet, block: u8) -> Map<String, Value> {
    let hex = |value: u64| Value::from(format!("{value:#x}"));
    let list: Vec<(&str, Value)> = match *packet {
        Packet::Ptw { payload, size, .. } => vec![("value", hex(payload)), ("size", size.into())],
        Packet::Mwait { hints, ext } => vec![("hints", hints.into()), ("extensions", ext.into())],
        Packet::Pwre { state, sub_state, hw } => {
            let sub = sub_state.wrapping_add(1) & 15;
            vec![("state", c_state(state).into()), ("sub_state", sub.into()), ("by_hardware", hw.into())]
        }
        Packet::Pwrx { last, deepest, reason } => {
            vec![
                ("last", c_state(last).into()),
                ("deepest", c_state(deepest).into()),
                ("reason", reason.into()),
            ]
        }
        Packet::Cfe { typ, vector, .. } => {
            let text = words(packet, block);
            let name = text.split(" vector").next().unwrap_or_default();
            vec![("type", typ.into()), ("name", name.into()), ("vector", vector.into())]
        }
        Packet::Evd { typ, payload } => vec![("type", typ.into()), ("value", hex(payload))],
        Packet::Bbp { typ, .. } => vec![("type", typ.into()), ("name", pebs::block(typ).into())],
        Packet::Bip { id, payload, size } => vec![
            ("type", block.into()),
            ("id", id.into()),
            ("name", pebs::item(block, id).into()),
            ("value", hex(payload)),
            ("size", size.into()),
        ],
        Packet::Cbr { ratio } => vec![("ratio", ratio.into())],
        Packet::Trig { triggers, instructions, multiple, .. } => vec![
            ("triggers", triggers.into()),
            ("instructions", instructions.into()),
            ("multiple", multiple.into()),
        ],
        Packet::Mnt { payload } => vec![("value", hex(payload))],
        _ => Vec::new(),
    };
    list.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_in_words() {
        let of = |packet| words(&packet, 1);
        assert_eq!(of(Packet::Ptw { payload: 0xabcd, size: 8, ip: true }), "0xabcd (8 bytes)");
        assert_eq!(of(Packet::Pwre { state: 0, sub_state: 15, hw: true }), "C1.0 by hardware");
        assert_eq!(of(Packet::Pwrx { last: 0, deepest: 15, reason: 1 }), "C1 deepest C0 by interrupt");
        assert_eq!(of(Packet::Pwrx { last: 5, deepest: 5, reason: 2 }), "C6 deepest C6 by reason 0x2");
        assert_eq!(of(Packet::Cfe { typ: 1, vector: 14, ip: true }), "INTR vector 14");
        assert_eq!(of(Packet::Bip { id: 2, payload: 7, size: 8 }), "RAX 0x7");
        assert_eq!(of(Packet::Exstop { ip: true }), "");
    }
}
