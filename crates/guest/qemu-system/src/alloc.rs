// SPDX-License-Identifier: GPL-2.0-or-later
//! What programs allocate: functions known by their first bytes (`kprism_tlb::allocs`), their arguments when they are
//! called, and what they return.
//!
//! A function that is called by another of them is that one's business: memory belongs to the outermost call.

use std::ffi::c_void;

use kprism_tlb::allocs::{Does, FUNCTIONS, Signature};
use kprism_tlb::stream::Alloc;

use crate::guest::{self, Reg};

/// Calls under way at most, of all tasks.
const CALLS: usize = 64;
/// Blocks after which a call is taken never to return: a task that ended, a stack that was left.
const PATIENCE: u32 = 1 << 20;

/// A call under way.
#[derive(Debug)]
struct Call {
    task: u32,
    /// The stack pointer at its beginning.
    sp: u64,
    does: Does,
    /// Where its result goes, or what it gives back.
    first: u64,
    got: Alloc,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Calls {
    calls: Vec<Call>,
    patience: u32,
}

/// Which function begins at `va`, if one does.
pub fn function_at(known: &[Signature], va: u64) -> Option<u8> {
    let offset = (va & 0xfff) as u16;
    let mut code = [0; 32];
    let mut there = None;
    known.iter().filter(|s| s.offset == offset).find_map(|s| {
        // A function that ends with its page has no 32 bytes to compare.
        let length = s.bytes.len().min(code.len());
        let there = *there.get_or_insert_with(|| guest::memory(va, &mut code));
        let same = if there {
            code[..length] == s.bytes[..length]
        } else {
            let mut few = vec![0; length];
            guest::memory(va, &mut few) && few == s.bytes[..length]
        };
        same.then_some(s.function)
    })
}

/// What a callback on such a function knows: its number.
pub fn udata(function: u8) -> *mut c_void {
    std::ptr::without_provenance_mut(function.into())
}

impl Calls {
    /// Whether some call has not returned.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !self.calls.is_empty()
    }

    /// A function begins, called from `callers`, the nearest first, if those are right. What it gives back, if that is
    /// all it does.
    pub fn begin(&mut self, task: u32, function: u8, callers: [u64; 3]) -> Option<(u64, u64)> {
        let sp = guest::register(Reg::RSP);
        // Stacks grow down: what began at or below this one was left in another way.
        self.calls.retain(|c| c.task != task || c.sp > sp);
        if self.calls.iter().any(|c| c.task == task) {
            return None;
        }
        let (_, does) = *FUNCTIONS.get(usize::from(function))?;
        let arguments = [Reg::RDI, Reg::RSI, Reg::RDX].map(guest::register);
        let bytes = match does {
            Does::Frees => return (arguments[0] != 0).then_some((arguments[0], 0)),
            Does::Unmaps => return (arguments[1] != 0).then_some((arguments[0], arguments[1])),
            Does::Allocates(n) | Does::Reallocates(n) => arguments[usize::from(n)],
            Does::AllocatesArray => arguments[0].wrapping_mul(arguments[1]),
            Does::AllocatesTo => arguments[2],
        };
        let back = guest::word(sp)?;
        let frames = if callers[0] == back { callers } else { [back, 0, 0] };
        if self.calls.len() == CALLS {
            self.calls.remove(0);
        }
        self.patience = PATIENCE;
        let got = Alloc { ns: 0, function, va: 0, bytes, frames };
        self.calls.push(Call { task, sp, does, first: arguments[0], got });
        None
    }

    /// User code runs at `va`: what was given back and got, if a call returned there.
    pub fn returned(&mut self, task: u32, va: u64) -> Option<(Option<u64>, Alloc)> {
        self.patience -= 1;
        if self.patience == 0 {
            self.calls.clear();
        }
        let sp = guest::register(Reg::RSP);
        let is_it = |c: &Call| c.task == task && c.got.frames[0] == va && c.sp.wrapping_add(8) == sp;
        let call = self.calls.swap_remove(self.calls.iter().position(is_it)?);
        let result = guest::register(Reg::RAX);
        let (freed, va) = match call.does {
            Does::AllocatesTo if result == 0 => (None, guest::word(call.first)?),
            Does::AllocatesTo => return None,
            Does::Reallocates(_) => (Some(call.first), result),
            _ => (None, result),
        };
        // Null, or an error number.
        if va == 0 || va > u64::MAX - 4096 {
            return None;
        }
        Some((freed.filter(|&old| old != 0), Alloc { va, ..call.got }))
    }
}
