// SPDX-License-Identifier: GPL-2.0-or-later
//! Conditions that select the kept part of the streams: when a kernel function is entered or returns, or an interval ends,
//! and a condition holds, the streams are split.
//!
//! In: blocks and instructions that the vCPUs are about to run. Out: the effects of the conditions that they meet. The condition
//! is interpreted on the vCPU's thread, on the guest's current state.

mod calls;
mod interval;

use std::sync::atomic::{AtomicU64, Ordering};

use kprism_expr::interp::{self, Machine};
use kprism_expr::ir::{Input, Kept, Space};
use kprism_expr::watch::{Event, Interval, Watch};
use kprism_image::insn::GsWord;

use crate::guest::{self, Reg};
use crate::hooks::Hooks;
use crate::options::Keep;
use crate::side::Task;
use calls::{Calls, Open, argument};
pub use interval::{Cpus, Op};
use interval::{Ended, Intervals};

/// Effect of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Keeps the last part of the streams.
    Snapshot,
    /// Starts keeping them.
    From,
    /// Stops keeping them.
    Until,
    /// Stops the guest.
    Hold,
}

/// A condition that is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Met {
    pub effect: Effect,
    /// Begin of the call or the interval that met it, in guest time, ns. `None` for the entry of a function.
    pub since_ns: Option<u64>,
}

/// All conditions of a recording.
#[derive(Debug)]
pub struct Triggers(Vec<(Effect, Trigger)>);

impl Triggers {
    /// The conditions that select the kept part, and the one at which a replay stops.
    ///
    /// # Errors
    /// The text states the expected format.
    pub fn new(keep: &Keep, at: Option<&String>) -> Result<Self, String> {
        let mut all = match keep {
            Keep::All => vec![],
            Keep::Last { when, .. } => vec![(Effect::Snapshot, "when", Some(when))],
            // A place that is both ends one window and begins the next.
            Keep::Windows { from, until } => {
                vec![(Effect::Until, "until", until.as_ref()), (Effect::From, "from", from.as_ref())]
            }
        };
        all.push((Effect::Hold, "at", at));
        let parse = |(effect, name, text): (Effect, &str, Option<&String>)| {
            text.map(|text| Trigger::parse(name, text).map(|trigger| (effect, trigger)))
        };
        all.into_iter().filter_map(parse).collect::<Result<_, _>>().map(Self)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Quick test: returns true if a block that begins at `va` may meet a condition, or lead to meeting it; `is_gate` if an
    /// interrupt or an exception leads there.
    #[inline]
    pub fn concern(&self, cpu: u32, va: u64, is_gate: bool) -> bool {
        self.0.iter().any(|(_, trigger)| trigger.concerns(cpu, va, is_gate))
    }

    /// Returns true if instructions of this kind may begin or end an interval that a condition measures.
    pub fn measure(&self, op: Op) -> bool {
        self.0.iter().any(|(_, trigger)| match &trigger.watch.event {
            Event::Interval(Interval::IrqsOff { .. }) => !matches!(op, Op::Add(..)),
            Event::Interval(Interval::PreemptOff { count }) => match op {
                Op::Halt => true,
                Op::Add(GsWord::At(address), _) => address == *count,
                // Known when it runs.
                Op::Add(GsWord::Behind { .. }, _) => true,
                _ => false,
            },
            _ => false,
        })
    }

    /// The conditions that a block meets, which begins at `va`.
    pub fn block_starts<'a>(
        &'a self,
        at: &'a At<'a>,
        va: u64,
        is_gate: bool,
    ) -> impl Iterator<Item = Met> + 'a {
        let concerned = self.0.iter().filter(move |(_, trigger)| trigger.concerns(at.cpu, va, is_gate));
        concerned.filter_map(move |(effect, trigger)| {
            let since_ns = trigger.block(at, va, is_gate)?;
            Some(Met { effect: *effect, since_ns })
        })
    }

    /// The conditions that an instruction meets; `at` is the moment after it.
    pub fn instruction<'a>(&'a self, at: &'a At<'a>, op: Op) -> impl Iterator<Item = Met> + 'a {
        self.0.iter().filter_map(move |(effect, trigger)| {
            let since_ns = trigger.instruction(at, op)?;
            Some(Met { effect: *effect, since_ns })
        })
    }

    /// Number of times that a condition could not be computed: a bad read, a division by zero.
    pub fn faults(&self) -> u64 {
        self.0.iter().map(|(_, trigger)| trigger.faults.load(Ordering::Relaxed)).sum()
    }

    /// Number of calls and intervals whose end met no condition, because too many were open.
    pub fn forgotten(&self) -> u64 {
        self.0.iter().map(|(_, trigger)| trigger.calls.forgotten() + trigger.intervals.forgotten()).sum()
    }
}

/// Place and time of an event: the vCPU, guest time in ns and how much of it the vCPU waited for its turn, the task that runs, and how
/// to find another one.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    pub cpu: u32,
    pub ns: u64,
    pub still_ns: u64,
    pub task: &'a Task,
    pub hooks: &'a Hooks,
}

/// A condition, and the calls or intervals that may meet it.
#[derive(Debug)]
struct Trigger {
    watch: Watch,
    calls: Calls,
    intervals: Intervals,
    faults: AtomicU64,
}

/// The guest's state at an event.
struct GuestState<'a> {
    at: &'a At<'a>,
    /// The task that the event is about.
    task: &'a Task,
    /// For a return: the entry of the call, as far as known.
    call: Option<Open>,
    /// Begin of the call or the interval, ns.
    since_ns: Option<u64>,
    /// Time since then that is not in the interval, ns.
    still_ns: u64,
    /// Number of slots that arguments take.
    slots: u8,
    /// Trace state variables; there are none.
    unused: u64,
}

impl Trigger {
    /// Parses the output of [`Watch::json`].
    ///
    /// # Errors
    /// The text states the expected format.
    fn parse(name: &str, text: &str) -> Result<Self, String> {
        Ok(Trigger {
            watch: Watch::from_json(text).map_err(|e| format!("{name}={text}: {e}"))?,
            calls: Calls::default(),
            intervals: Intervals::default(),
            faults: AtomicU64::new(0),
        })
    }

    #[inline]
    fn concerns(&self, cpu: u32, va: u64, is_gate: bool) -> bool {
        match &self.watch.event {
            Event::Call { entry, .. } => va == *entry || self.calls.may_return_to(va),
            Event::Interval(Interval::IrqsOff { .. }) if is_gate => true,
            Event::Interval(interval) => self.intervals.concern(interval, cpu, va),
        }
    }

    /// Handles a block that [`Trigger::concerns`]. If the condition is met now, returns [`Met::since_ns`].
    fn block(&self, at: &At<'_>, va: u64, is_gate: bool) -> Option<Option<u64>> {
        match &self.watch.event {
            &Event::Call { entry, at_return, slots } => {
                let call = match (va == entry, at_return) {
                    (true, false) => None,
                    (true, true) => {
                        let arguments = if self.watch.condition.is_some() { slots.into() } else { 0 };
                        self.calls.enter(at.ns, at.task.pid, arguments);
                        return None;
                    }
                    (false, _) => Some(self.calls.back(va, at.task.pid)?),
                };
                let since_ns = call.map(|call| call.since_ns);
                self.holds(&mut GuestState {
                    at,
                    task: at.task,
                    call,
                    since_ns,
                    still_ns: 0,
                    slots,
                    unused: 0,
                })
            }
            Event::Interval(interval) => {
                let ended = self.intervals.block(interval, at, va, is_gate)?;
                self.ended(at, ended)
            }
        }
    }

    /// Handles an instruction. If the condition is met after it, returns [`Met::since_ns`].
    fn instruction(&self, at: &At<'_>, op: Op) -> Option<Option<u64>> {
        let Event::Interval(interval) = &self.watch.event else { return None };
        let ended = self.intervals.instruction(interval, at, op)?;
        self.ended(at, ended)
    }

    fn ended(&self, at: &At<'_>, ended: Ended) -> Option<Option<u64>> {
        let other = ended.task.and_then(|va| at.hooks.task(va));
        let task = other.as_ref().unwrap_or(at.task);
        let (since_ns, still_ns) = (Some(ended.since_ns), ended.still_ns);
        self.holds(&mut GuestState { at, task, call: None, since_ns, still_ns, slots: 0, unused: 0 })
    }

    fn holds(&self, state: &mut GuestState<'_>) -> Option<Option<u64>> {
        let since_ns = state.since_ns;
        let Some(condition) = &self.watch.condition else { return Some(since_ns) };
        match interp::run(condition, state) {
            Ok(value) => (value != 0).then_some(since_ns),
            Err(_) => {
                self.faults.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

impl Machine for GuestState<'_> {
    fn input(&mut self, input: Input) -> u64 {
        match input {
            Input::Arg(n) => match &self.call {
                Some(_) if n == self.slots => guest::register(Reg::RAX),
                Some(call) => call.arguments.get(usize::from(n)).copied().unwrap_or(0),
                None => argument(n.into(), guest::register(Reg::RSP)),
            },
            Input::PidTgid => u64::from(self.task.tgid) << 32 | u64::from(self.task.pid),
            Input::Cpu => self.at.cpu.into(),
            Input::Time => self.at.ns,
            // `Watch` rejects all others.
            Input::Reg(_) | Input::Context | Input::Cgroup | Input::Measured => 0,
        }
    }

    fn read(&mut self, _space: Space, addr: u64, into: &mut [u8]) -> bool {
        guest::memory(addr, into)
    }

    fn kept(&mut self, what: Kept, _frame: u64) -> Option<u64> {
        match what {
            // `$duration` is the time since then.
            Kept::Time => self.since_ns.map(|ns| ns + self.still_ns),
            Kept::Reg(_) => None,
        }
    }

    fn comm(&mut self) -> [u8; 16] {
        let mut comm = [0; 16];
        let name = self.task.comm.as_bytes();
        let len = name.len().min(15);
        comm[..len].copy_from_slice(&name[..len]);
        comm
    }

    fn var(&mut self, _number: u16) -> &mut u64 {
        &mut self.unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses() {
        let t = Trigger::parse(
            "when",
            r#"{"event":{"call":{"entry":4096,"at_return":true,"slots":2}},"condition":null}"#,
        )
        .unwrap();
        assert!(t.concerns(0, 4096, false) && !t.concerns(0, 8192, false));
        for bad in ["", "0x10", "{}", r#"{"event":{"call":{"entry":-1,"at_return":true,"slots":2}}}"#] {
            assert!(Trigger::parse("when", bad).is_err(), "{bad}");
        }
    }
}
