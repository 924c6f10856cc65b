// SPDX-License-Identifier: GPL-2.0-or-later
//! What of the streams to keep: where a kernel function is entered or returns, and a condition holds, they are cut.
//!
//! Entry and return are seen on the vCPU's thread, and the condition is interpreted there, over the guest as it is
//! at that moment. A call is known again by its place on the stack, which tells tasks apart as well, wherever they
//! run by then.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use kprism_expr::interp::{self, Machine};
use kprism_expr::ir::{Input, Kept, Space};
use kprism_expr::watch::Watch;

use crate::guest::{self, Reg};
use crate::options::Keep;
use crate::side::Task;
use crate::state::{State, lock};

/// Calls under way beyond which the oldest is forgotten: one that never returns (`exit`) leaves its own behind.
const MAX_OPEN: usize = 1024;

/// Arguments that a condition can name, as many as a BPF program at a function sees.
const ARGUMENTS: usize = 12;

/// Those in registers, in the order of the System V ABI.
const IN_REGISTERS: [Reg; 6] = [Reg::RDI, Reg::RSI, Reg::RDX, Reg::RCX, Reg::R8, Reg::R9];

/// What a condition does when it is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    /// Keeps the last of the streams.
    Snapshot,
    /// Begins to keep them.
    From,
    /// Ceases to.
    Until,
}

/// All conditions of a recording.
#[derive(Debug)]
pub struct Triggers(Vec<(Deed, Trigger)>);

impl Triggers {
    /// Those that decide what is kept.
    ///
    /// # Errors
    /// A message with what was expected.
    pub fn new(keep: &Keep) -> Result<Self, String> {
        let all = match keep {
            Keep::All => vec![],
            Keep::Last { when, .. } => vec![(Deed::Snapshot, "when", Some(when))],
            // A place that is both ends one window and begins the next.
            Keep::Windows { from, until } => {
                vec![(Deed::Until, "until", until.as_ref()), (Deed::From, "from", from.as_ref())]
            }
        };
        let parse = |(deed, name, text): (Deed, &str, Option<&String>)| {
            text.map(|text| Trigger::parse(name, text).map(|trigger| (deed, trigger)))
        };
        all.into_iter().filter_map(parse).collect::<Result<_, _>>().map(Self)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a block that begins at `va` may be of interest to one: a quick test.
    #[inline]
    pub fn concern(&self, va: u64) -> bool {
        self.0.iter().any(|(_, trigger)| trigger.concerns(va))
    }

    /// A block that [`Triggers::concern`]s begins on a vCPU, at `ns`, in `task`: cuts the streams where that is due.
    pub fn block(&self, state: &State, cpu: u32, va: u64, ns: u64, task: &Task) {
        for (deed, trigger) in &self.0 {
            if !trigger.concerns(va) || !trigger.block(cpu, va, ns, task) {
                continue;
            }
            let open = state.keeps(state.cuts.load(Ordering::SeqCst));
            if *deed == Deed::Snapshot || open == (*deed == Deed::Until) {
                state.cut();
            }
        }
    }

    /// How often a condition could not be told: a bad read, a division by zero.
    pub fn faults(&self) -> u64 {
        self.0.iter().map(|(_, trigger)| trigger.faults.load(Ordering::Relaxed)).sum()
    }
}

/// A condition and the calls that may meet it.
#[derive(Debug)]
struct Trigger {
    watch: Watch,
    open: Mutex<Vec<Open>>,
    /// Addresses to which open calls return, one bit for many.
    returns: AtomicU64,
    faults: AtomicU64,
}

/// A call under way.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Where it returns to, and the stack pointer then.
    back: u64,
    rsp: u64,
    since_ns: u64,
    arguments: [u64; ARGUMENTS],
}

/// The guest at the moment of a call's entry or return.
struct Moment<'a> {
    cpu: u32,
    ns: u64,
    task: &'a Task,
    /// Of a call that returns, what is known of its entry.
    call: Option<Open>,
    watch: &'a Watch,
    /// Trace state variables, of which there are none.
    unused: u64,
}

impl Trigger {
    /// Takes what [`Watch::json`] wrote.
    ///
    /// # Errors
    /// A message with what was expected.
    fn parse(name: &str, text: &str) -> Result<Self, String> {
        Ok(Trigger {
            watch: Watch::from_json(text).map_err(|e| format!("{name}={text}: {e}"))?,
            open: Mutex::default(),
            returns: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        })
    }

    /// Whether a block that begins at `va` may be of interest: a quick test.
    #[inline]
    fn concerns(&self, va: u64) -> bool {
        va == self.watch.entry || self.returns.load(Ordering::Relaxed) & bit(va) != 0
    }

    /// A block that [`Trigger::concerns`] begins on a vCPU, at `ns`, in `task`. Returns whether the condition is met
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
        self.holds(&mut Moment { cpu, ns, task, call, watch: &self.watch, unused: 0 })
    }

    fn holds(&self, moment: &mut Moment<'_>) -> bool {
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
        // What the caller put there may be written over before the call returns.
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

impl Machine for Moment<'_> {
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
            // `Watch` has let through no other.
            Input::Reg(_) | Input::Context => 0,
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
