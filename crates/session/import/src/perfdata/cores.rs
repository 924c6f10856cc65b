// SPDX-License-Identifier: MIT OR Apache-2.0
//! Task switches of one CPU from a file of perf's records alone, as LLDB keeps them beside a core's packets.
//!
//! **In:** the packets, and records whose trailer is task and time (LLDB's PerfContextSwitchDecoder.cpp). **Out:** switches at
//! offsets of the stream. They count from the first address after the record, as in recordings of perf without the kernel's symbols.

use kprism_flow::clock::ClockConfig;
use kprism_perfdata::attr::flag;
use kprism_perfdata::record::sample;
use kprism_perfdata::{Attr, Contents, Header, records};

use super::comms::Thread;
use super::spaces;
use super::streams::Trace;
use super::tasks;
use crate::{SwitchAt, Switched, Task};

/// The switches on CPU `cpu`, whose stream has this index. Records that cannot be read are noted.
pub(crate) fn switches_of_cpu(
    (cpu, index): (u32, usize),
    pt: &[u8],
    bytes: &[u8],
    clock: ClockConfig,
    notes: &mut Vec<String>,
) -> Vec<Switched> {
    let attr = Attr {
        sample_type: sample::TID | sample::TIME,
        flags: flag::SAMPLE_ID_ALL | flag::CONTEXT_SWITCH,
        ..Attr::default()
    };
    let header = Header { attrs: vec![attr], ..Header::default() };
    let mut contents = Contents { header: header.clone(), ..Contents::default() };
    records(bytes, 0..bytes.len(), &mut contents);
    notes.extend(contents.notes.iter().map(|note| format!("cpu {cpu}, switch records: {note}")));
    contents.events.iter_mut().for_each(|event| event.trailer.cpu = Some(cpu));
    let history = tasks::history(contents.events, &header);
    let trace = Trace { cpu: Some(cpu), tid: None, pt: pt.to_vec().into(), losses: 0 };
    let found = spaces::find(&trace, &history, clock, |ns| ns, &[], (false, true));
    let task = |(pid, tgid): Thread, t: u64| Task { pid, tgid, comm: String::new(), t };
    let mut prev = found.turns.first().map(|turn| turn.thread);
    let switched = |turn: &spaces::TurnAt| Switched {
        t: turn.ns,
        cpu: index,
        at: SwitchAt::Offset { offset: turn.offset, asid: None },
        prev: task(prev.replace(turn.thread).unwrap_or_default(), turn.ns),
        next: task(turn.thread, turn.ns),
    };
    found.turns.iter().map(switched).collect()
}
