// SPDX-License-Identifier: GPL-2.0-or-later
//! Conditions that select the kept part of the streams: when a kernel function is entered or returns, and a condition
//! holds, the streams are split.
//!
//! Entry and return are seen on the vCPU's thread. The condition is interpreted there, on the guest's current state. A
//! call is identified by its place on the stack, which also distinguishes tasks, on whatever vCPU they run by then.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use kprism_expr::interp::{self, Machine};
use kprism_expr::ir::{Input, Kept, Space};
use kprism_expr::watch::Watch;

use crate::guest::{self, Reg};
use crate::options::Keep;
use crate::side::Task;
use crate::sync::lock;

/// Maximum of open calls; then the oldest is dropped. A call that never returns (`exit`) stays open.
const MAX_OPEN: usize = 1024;

/// Number of arguments that a condition can name: as many as a BPF program at a function sees.
const ARGUMENTS: usize = 12;

/// The arguments in registers, in the order of the System V ABI.
const IN_REGISTERS: [Reg; 6] = [Reg::RDI, Reg::RSI, Reg::RDX, Reg::RCX, Reg::R8, Reg::R9];

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

    /// Quick test: returns true if a block that begins at `va` may meet a condition.
    #[inline]
    pub fn concern(&self, va: u64) -> bool {
        self.0.iter().any(|(_, trigger)| trigger.concerns(va))
    }

    /// The effects of the conditions that a block meets, on a vCPU, at `ns`, in `task`.
    pub fn block_starts<'a>(
        &'a self,
        cpu: u32,
        va: u64,
        ns: u64,
        task: &'a Task,
    ) -> impl Iterator<Item = Effect> + 'a {
        let is_met = move |trigger: &Trigger| trigger.concerns(va) && trigger.block(cpu, va, ns, task);
        self.0.iter().filter(move |(_, trigger)| is_met(trigger)).map(|(effect, _)| *effect)
    }

    /// Number of times that a condition could not be computed: a bad read, a division by zero.
    pub fn faults(&self) -> u64 {
        self.0.iter().map(|(_, trigger)| trigger.faults.load(Ordering::Relaxed)).sum()
    }
}

/// A condition and the calls that may meet it.
#[derive(Debug)]
struct Trigger {
    watch: Watch,
    open: Mutex<Vec<Open>>,
    /// Return addresses of open calls, hashed to one bit each.
    returns: AtomicU64,
    faults: AtomicU64,
}

/// An open call.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Its return address, and the stack pointer after the return.
    back: u64,
    rsp: u64,
    since_ns: u64,
    arguments: [u64; ARGUMENTS],
}

/// The guest's state at a call's entry or return.
struct GuestState<'a> {
    cpu: u32,
    ns: u64,
    task: &'a Task,
    /// For a return: the entry of the call, as far as known.
    call: Option<Open>,
    watch: &'a Watch,
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
            open: Mutex::default(),
            returns: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        })
    }

    /// Quick test: returns true if a block that begins at `va` may meet the condition.
    #[inline]
    fn concerns(&self, va: u64) -> bool {
        va == self.watch.entry || self.returns.load(Ordering::Relaxed) & bit(va) != 0
    }

    /// Handles a block that [`Trigger::concerns`], on a vCPU, at `ns`, in `task`. Returns true if the condition is met
    /// now.
    fn block(&self, cpu: u32, va: u64, ns: u64, task: &Task) -> bool {
        let call = match (va == self.watch.entry, self.watch.at_return) {
            (true, false) => None,
            (true, true) => {
                self.enter(ns);
                return false;
            }
            (false, _) => match self.back(va) {
                Some(call) => Some(call),
                None => return false,
            },
        };
        self.holds(&mut GuestState { cpu, ns, task, call, watch: &self.watch, unused: 0 })
    }

    fn holds(&self, moment: &mut GuestState<'_>) -> bool {
        let Some(condition) = &self.watch.condition else { return true };
        match interp::run(condition, moment) {
            Ok(value) => value != 0,
            Err(_) => {
                self.faults.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    fn enter(&self, ns: u64) {
        let rsp = guest::register(Reg::RSP);
        let Some(back) = guest::word(rsp) else { return };
        let mut open = lock(&self.open);
        if open.len() == MAX_OPEN {
            open.remove(0);
        }
        // The arguments are kept, because the function may overwrite them before it returns.
        let mut arguments = [0; ARGUMENTS];
        if self.watch.condition.is_some() {
            for (n, kept) in arguments.iter_mut().enumerate().take(self.watch.slots.into()) {
                *kept = argument(n, rsp);
            }
        }
        open.push(Open { back, rsp: rsp.wrapping_add(8), since_ns: ns, arguments });
        self.returns.fetch_or(bit(back), Ordering::Relaxed);
    }

    /// The call that returns to `va` now.
    fn back(&self, va: u64) -> Option<Open> {
        let mut open = lock(&self.open);
        if open.iter().all(|call| call.back != va) {
            return None;
        }
        let rsp = guest::register(Reg::RSP);
        let at = open.iter().rposition(|call| (call.back, call.rsp) == (va, rsp))?;
        let call = open.remove(at);
        let bits = open.iter().fold(0, |bits, call| bits | bit(call.back));
        self.returns.store(bits, Ordering::Relaxed);
        Some(call)
    }
}

/// An argument of the function that is entered with this stack pointer.
fn argument(n: usize, rsp: u64) -> u64 {
    match IN_REGISTERS.get(n) {
        Some(reg) => guest::register(*reg),
        None => guest::word(rsp.wrapping_add(8 * (n - IN_REGISTERS.len() + 1) as u64)).unwrap_or(0),
    }
}

impl Machine for GuestState<'_> {
    fn input(&mut self, input: Input) -> u64 {
        match input {
            Input::Arg(n) => match &self.call {
                Some(_) if n == self.watch.slots => guest::register(Reg::RAX),
                Some(call) => call.arguments.get(usize::from(n)).copied().unwrap_or(0),
                None => argument(n.into(), guest::register(Reg::RSP)),
            },
            Input::PidTgid => u64::from(self.task.tgid) << 32 | u64::from(self.task.pid),
            Input::Cpu => self.cpu.into(),
            Input::Time => self.ns,
            // `Watch` rejects all others.
            Input::Reg(_) | Input::Context | Input::Cgroup => 0,
        }
    }

    fn read(&mut self, _space: Space, addr: u64, into: &mut [u8]) -> bool {
        guest::memory(addr, into)
    }

    fn kept(&mut self, what: Kept, _frame: u64) -> Option<u64> {
        match what {
            Kept::Time => self.call.map(|call| call.since_ns),
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

fn bit(va: u64) -> u64 {
    1 << (va.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses() {
        let t =
            Trigger::parse("when", r#"{"entry":4096,"at_return":true,"slots":2,"condition":null}"#).unwrap();
        assert!(t.concerns(4096) && !t.concerns(8192));
        for bad in ["", "0x10", "{}", r#"{"entry":-1,"at_return":true,"slots":2}"#] {
            assert!(Trigger::parse("when", bad).is_err(), "{bad}");
        }
    }
}
