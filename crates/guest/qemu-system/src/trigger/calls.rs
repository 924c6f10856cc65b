// SPDX-License-Identifier: GPL-2.0-or-later
//! Open calls of functions: in, a function's entry, and a block that begins at a return address; out, the call that
//! returned. A call is identified by its place on the stack, which also distinguishes tasks, on whatever vCPU they run by then.
//!
//! A call that never returns, as of `do_exit`, stays behind on a stack that the kernel gives to a new task; and a jump may
//! lead to its return address there. So a return is one only if the return address was taken from the stack just now, or if
//! the task is that of the call: an interrupt right after the return may have overwritten the address.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::guest::{self, Reg};
use crate::sync::lock;

/// Maximum of open calls; then the oldest is dropped.
const MAX_OPEN: usize = 1024;

/// Number of arguments that a condition can name: as many as a BPF program at a function sees.
pub const ARGUMENTS: usize = 12;

/// The arguments in registers, in the order of the System V ABI.
const IN_REGISTERS: [Reg; 6] = [Reg::RDI, Reg::RSI, Reg::RDX, Reg::RCX, Reg::R8, Reg::R9];

/// An open call.
#[derive(Debug, Clone, Copy)]
pub struct Open {
    /// Its return address, and the stack pointer after the return.
    back: u64,
    rsp: u64,
    /// Thread that called.
    tid: u32,
    /// Guest time of the entry, ns.
    pub since_ns: u64,
    /// The arguments at the entry, as many as were asked for.
    pub arguments: [u64; ARGUMENTS],
}

/// The open calls that a condition follows.
#[derive(Debug, Default)]
pub struct Calls {
    open: Mutex<Vec<Open>>,
    /// Return addresses of open calls, hashed to one bit each.
    returns: AtomicU64,
    forgotten: AtomicU64,
}

impl Calls {
    /// Quick test: returns true if an open call may return to `va`.
    #[inline]
    pub fn may_return_to(&self, va: u64) -> bool {
        self.returns.load(Ordering::Relaxed) & bit(va) != 0
    }

    /// A function is entered at `ns` by a thread. Its first `arguments` arguments are kept, because it may overwrite them before it returns.
    pub fn enter(&self, ns: u64, tid: u32, arguments: usize) {
        let rsp = guest::register(Reg::RSP);
        let Some(back) = guest::word(rsp) else { return };
        let call_rsp = rsp.wrapping_add(8);
        let mut kept = [0; ARGUMENTS];
        for (n, kept) in kept.iter_mut().enumerate().take(arguments) {
            *kept = argument(n, rsp);
        }
        self.keep(Open { back, rsp: call_rsp, tid, since_ns: ns, arguments: kept });
    }

    fn keep(&self, new: Open) {
        let mut open = lock(&self.open);
        // The stack belonged to a task that has ended.
        open.retain(|call| (call.back, call.rsp) != (new.back, new.rsp) || call.tid == new.tid);
        if open.len() == MAX_OPEN {
            open.remove(0);
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        open.push(new);
        self.returns.fetch_or(bit(new.back), Ordering::Relaxed);
    }

    /// Number of calls that were dropped while they were open: too many were.
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// The call that returns to `va` now, if a thread returns there.
    pub fn back(&self, va: u64, tid: u32) -> Option<Open> {
        let mut open = lock(&self.open);
        if open.iter().all(|call| call.back != va) {
            return None;
        }
        let rsp = guest::register(Reg::RSP);
        let at = open.iter().rposition(|call| (call.back, call.rsp) == (va, rsp))?;
        let call = open.remove(at);
        let returns = call.tid == tid || guest::word(rsp.wrapping_sub(8)) == Some(va);
        let bits = open.iter().fold(0, |bits, call| bits | bit(call.back));
        self.returns.store(bits, Ordering::Relaxed);
        returns.then_some(call)
    }
}

/// An argument of the function that is entered with this stack pointer.
pub fn argument(n: usize, rsp: u64) -> u64 {
    match IN_REGISTERS.get(n) {
        Some(reg) => guest::register(*reg),
        None => guest::word(rsp.wrapping_add(8 * (n - IN_REGISTERS.len() + 1) as u64)).unwrap_or(0),
    }
}

fn bit(va: u64) -> u64 {
    1 << (va.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_beyond_the_limit_are_counted() {
        let calls = Calls::default();
        for n in 0..MAX_OPEN as u64 + 2 {
            calls.keep(Open { back: 1, rsp: n, tid: 1, since_ns: n, arguments: [0; ARGUMENTS] });
        }
        assert_eq!((calls.forgotten(), lock(&calls.open).len()), (2, MAX_OPEN));
        assert_eq!(lock(&calls.open)[0].since_ns, 2, "the oldest are dropped");
    }
}
