// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replays the flow of all CPUs instruction by instruction, in order of time, with the task known: for listings.
//!
//! Input: streams, code, sideband. Output: calls of a [`Listener`]. Nothing is collected. Each CPU's decoder runs on
//! its own thread and sends batches of records, at most a few ahead of the listener, which is called on the caller's
//! thread. Each lane (a CPU's stream) is followed while it is the earliest, so the calls are in order of time to the
//! instruction. At equal times the lower lane comes first.
//!
//! [`calls`] keeps the call stacks of a replay, [`count`] counts each instruction of chosen functions, [`spans`] measures
//! chosen calls or processes one by one.

pub mod calls;
pub mod count;
mod cursor;
mod lane;
pub mod spans;

use std::sync::mpsc::sync_channel;
use std::thread::ScopedJoinHandle;

use kprism_image::Image;
use kprism_image::insn::Mode;
use kprism_image::resolve::Resolve;
use kprism_image::sideband::Record as Sideband;
use kprism_profile::Unended;

use crate::decode::clock::ClockConfig;
use crate::decode::errata::Errata;
use crate::decode::event::Event;
use crate::decode::packet_event::PacketEvent;
use crate::decode::{Setup, Stats};
use crate::stack::guessed::Guessed;
use crate::stream::Stream;

use cursor::Cursor;
use lane::Lane;

/// Inputs of a replay.
pub struct Inputs<'a, R> {
    /// One for each CPU, by number.
    pub streams: &'a [Stream<'a>],
    /// Function symbols.
    pub resolver: &'a R,
    /// Task switches and names.
    pub sideband: &'a [Sideband],
    /// Clock facts of the recording.
    pub clock: ClockConfig,
    /// Errata of the processor.
    pub errata: Errata,
    /// Stream bytes decoded between checks of [`Listener::is_done`], up to the next PSB; 0 for a default.
    pub stretch: usize,
}

/// A task, as known at the current time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    /// Thread id.
    pub pid: u32,
    /// Process id.
    pub tgid: u32,
    /// Its current name.
    pub comm: String,
}

/// A straight piece of code, reported when it first runs. Later it is referred to by its number.
#[derive(Debug, Clone)]
pub struct Code {
    /// Addresses of its instructions.
    pub ips: Vec<u64>,
    /// Address space.
    pub asid: u64,
    /// Mode of the code.
    pub mode: Mode,
    /// Stream offset at which it first ran. This selects the version of its bytes.
    pub offset: u64,
}

/// Position of a listener's call: CPU, task and time.
#[derive(Debug, Clone, Copy)]
pub struct TracePosition<'m> {
    /// Index of the stream.
    pub lane: usize,
    /// CPU number.
    pub cpu: u16,
    /// Index of the task that runs, in the order of their appearance.
    pub task: usize,
    /// All tasks so far.
    pub tasks: &'m [Task],
    /// Number of task renames so far.
    pub names: u32,
    /// The tasks that ran while nothing was recorded, and the time until which each did, ns: this one, and where the flow is known
    /// again, all that ran on this CPU meanwhile.
    pub unrecorded: &'m [(usize, u64)],
    /// Time of the last report, and instructions since; see [`TracePosition::after`].
    base: u64,
    ran: u32,
    pace: crate::stack::pace::Pace,
}

impl TracePosition<'_> {
    /// Current time, ns: before the instructions reported by this call.
    #[inline]
    pub fn ns(&self) -> u64 {
        self.after(0)
    }

    /// Time after this many of the reported instructions, ns.
    #[inline]
    pub fn after(&self, insns: u32) -> u64 {
        self.base + self.pace.of(self.ran + insns)
    }

    /// The position after this many of the reported instructions.
    #[inline]
    #[must_use]
    pub fn later(&self, insns: u32) -> Self {
        Self { ran: self.ran + insns, ..*self }
    }
}

#[cfg(test)]
impl<'m> TracePosition<'m> {
    /// The begin of a recording of one CPU, on which the first task runs.
    pub(crate) fn begin(tasks: &'m [Task], unrecorded: &'m [(usize, u64)]) -> Self {
        let pace = crate::stack::pace::Pace::default();
        Self { lane: 0, cpu: 0, task: 0, tasks, names: 0, unrecorded, base: 0, ran: 0, pace }
    }
}

/// Receives the flow.
pub trait Listener {
    /// New code in this lane. `block` counts up from 0 in each lane.
    fn define(&mut self, at: &TracePosition<'_>, block: u32, code: Code, image: &Image);

    /// The instructions `from..to` of a block ran.
    fn run(&mut self, at: &TracePosition<'_>, block: u32, from: u32, to: u32);

    /// Time passed while the last instruction ran or waited, beyond the time of the instructions themselves; ns.
    fn rest(&mut self, _at: &TracePosition<'_>, _ns: u64) {}

    /// An event, after all instructions so far.
    fn event(&mut self, at: &TracePosition<'_>, event: &Event);

    /// An event that a packet states beside the flow, after all instructions so far.
    fn packet_event(&mut self, _at: &TracePosition<'_>, _event: &PacketEvent) {}

    /// Returns true if the listener needs no more.
    fn is_done(&self) -> bool {
        false
    }

    /// What was guessed of the stacks, by a listener that keeps them. [`Replayed::guessed`] has it too.
    fn guessed(&self) -> Guessed {
        Guessed::default()
    }

    /// The calls that went off their stack without an end, by a listener that keeps stacks. [`Replayed::unended`] has it too.
    fn unended(&self) -> Unended {
        Unended::default()
    }
}

/// Number of batches that a decoder may be ahead.
const AHEAD: usize = 4;

const STRETCH: usize = 64 << 10;

/// Result of a replay, as far as the listener wanted it.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Replayed {
    /// Each decoder's counters.
    pub stats: Vec<Stats>,
    /// What was guessed of tasks, and of their stacks by a listener that keeps them.
    pub guessed: Guessed,
    /// Calls without an end, by a listener that keeps stacks.
    pub unended: Unended,
}

/// Replays the flow to `listener`.
pub fn replay<R: Resolve>(inputs: &Inputs<'_, R>, listener: &mut impl Listener) -> Replayed {
    let mut tasks = cursor::Tasks::new(inputs.sideband);
    std::thread::scope(|scope| {
        let mut cursors = Vec::new();
        let mut decoders = Vec::new();
        let watch = inputs.sideband.iter().find_map(|r| match r {
            Sideband::Switch(switch) if switch.ip != 0 => Some(switch.ip),
            _ => None,
        });
        for (index, stream) in inputs.streams.iter().enumerate() {
            let (give, take) = sync_channel(AHEAD);
            let Inputs { resolver, clock, errata, stretch, .. } = *inputs;
            let stretch = if stretch == 0 { STRETCH } else { stretch };
            let setup = Setup { image: stream.image, resolver, clock, watch, errata };
            decoders.push(scope.spawn(move || Lane::new(give).decode(stream.bytes, setup, stretch)));
            let limited = !clock.counts_instructions();
            cursors.push(Cursor::new(index, *stream, take, inputs.sideband, &mut tasks, limited));
        }
        for cursor in &mut cursors {
            cursor.prepare();
            // Tasks ran before the first packet, too.
            cursor.tell_gap(&mut tasks);
        }
        while !listener.is_done() {
            cursors.iter_mut().for_each(Cursor::prepare);
            let mut live = cursors.iter().enumerate().filter(|(_, c)| !c.is_over());
            let Some((mut first, cursor)) = live.next() else { break };
            // The earliest lane, and the time until which it remains so.
            let (mut earliest, mut until) = (cursor.now(), u64::MAX);
            for (index, cursor) in live {
                let now = cursor.now();
                if now < earliest {
                    (first, until, earliest) = (index, earliest.saturating_sub(1), now);
                } else {
                    until = until.min(now);
                }
            }
            cursors[first].advance(until, &mut tasks, listener);
        }
        let guessed = cursors.iter().map(Cursor::guessed).fold(listener.guessed(), Guessed::and);
        // Decoders end soon after their receivers are dropped.
        drop(cursors);
        let join = |d: ScopedJoinHandle<'_, Stats>| d.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
        let unended = listener.unended();
        Replayed { stats: decoders.into_iter().map(join).collect(), guessed, unended }
    })
}
