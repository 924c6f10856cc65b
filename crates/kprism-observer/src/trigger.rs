// SPDX-License-Identifier: GPL-2.0-or-later
//! When to keep what was recorded: a kernel function is entered, or took longer than it should.
//!
//! Entry and return are seen on the vCPU's thread. A call is known again by its place on the stack, which tells
//! tasks apart as well, wherever they run by then.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::guest::{self, Reg};
use crate::state::lock;

/// Calls under way beyond which the oldest is forgotten: one that never returns (`exit`) leaves its own behind.
const MAX_OPEN: usize = 1024;

/// A condition and the calls that may meet it.
#[derive(Debug)]
pub struct Trigger {
    /// The function's first instruction.
    entry: u64,
    /// Its calls are to take longer than this, ns; if not given, its entry is enough.
    longer_ns: Option<u64>,
    open: Mutex<Vec<Open>>,
    /// Addresses to which open calls return, one bit for many.
    returns: AtomicU64,
    /// How often the condition was met, and on which vCPU last.
    pub met: AtomicU64,
    pub by: AtomicU64,
}

/// A call under way.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Where it returns to, and the stack pointer then.
    back: u64,
    rsp: u64,
    since_ns: u64,
}

impl Trigger {
    /// Parses `0xADDRESS` or `0xADDRESS:NS`.
    ///
    /// # Errors
    /// A message with what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("when={text}: expected 0xADDRESS or 0xADDRESS:NS");
        let (address, ns) = match text.split_once(':') {
            Some((address, ns)) => (address, Some(ns.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        let digits = address.strip_prefix("0x").ok_or_else(bad)?;
        Ok(Trigger {
            entry: u64::from_str_radix(digits, 16).map_err(|_| bad())?,
            longer_ns: ns,
            open: Mutex::default(),
            returns: AtomicU64::new(0),
            met: AtomicU64::new(0),
            by: AtomicU64::new(u64::MAX),
        })
    }

    /// Whether a block that begins at `va` may be of interest: a quick test.
    #[inline]
    pub fn concerns(&self, va: u64) -> bool {
        va == self.entry || self.returns.load(Ordering::Relaxed) & bit(va) != 0
    }

    /// A block that [`Trigger::concerns`] begins on a vCPU, at `ns`. Returns whether the condition is met now.
    pub fn block(&self, cpu: u32, va: u64, ns: u64) -> bool {
        let met = if va == self.entry { self.enter(ns) } else { self.back(va, ns) };
        if met {
            self.by.store(cpu.into(), Ordering::Relaxed);
            self.met.fetch_add(1, Ordering::Release);
        }
        met
    }

    fn enter(&self, ns: u64) -> bool {
        if self.longer_ns.is_none() {
            return true;
        }
        let rsp = guest::register(Reg::RSP);
        let Some(back) = guest::word(rsp) else { return false };
        let mut open = lock(&self.open);
        if open.len() == MAX_OPEN {
            open.remove(0);
        }
        open.push(Open { back, rsp: rsp.wrapping_add(8), since_ns: ns });
        self.returns.fetch_or(bit(back), Ordering::Relaxed);
        false
    }

    fn back(&self, va: u64, ns: u64) -> bool {
        let Some(longer) = self.longer_ns else { return false };
        let mut open = lock(&self.open);
        if open.iter().all(|call| call.back != va) {
            return false;
        }
        let rsp = guest::register(Reg::RSP);
        let Some(at) = open.iter().rposition(|call| (call.back, call.rsp) == (va, rsp)) else { return false };
        let call = open.remove(at);
        let bits = open.iter().fold(0, |bits, call| bits | bit(call.back));
        self.returns.store(bits, Ordering::Relaxed);
        ns.saturating_sub(call.since_ns) > longer
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
        let t = Trigger::parse("0xffffffff81000000:1000000").unwrap();
        assert_eq!((t.entry, t.longer_ns), (0xffff_ffff_8100_0000, Some(1_000_000)));
        assert_eq!(Trigger::parse("0x10").unwrap().longer_ns, None);
        for bad in ["", "10", "0x", "0x10:", "0x10:x"] {
            assert!(Trigger::parse(bad).is_err(), "{bad}");
        }
    }
}
