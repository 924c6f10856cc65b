// SPDX-License-Identifier: GPL-2.0-or-later
//! Records the allocations of programs: functions recognised by their first bytes (`kprism_tlb::objects::allocs`), their
//! arguments when they are called, and their results.
//!
//! If one of these functions calls another, only the outermost call is recorded.

use std::ffi::c_void;

use kprism_tlb::objects::allocs::{Does, FUNCTIONS, Signature};
use kprism_tlb::stream::Alloc;

use crate::guest::{self, Reg};

/// Maximum of open calls, over all tasks.
const CALLS: usize = 64;
/// Number of blocks after which a call is assumed never to return: its task ended, or its stack was left.
const PATIENCE: u32 = 1 << 20;

/// An open call.
#[derive(Debug)]
struct Call {
    task: u32,
    /// The stack pointer at its start.
    sp: u64,
    does: Does,
    /// The address for its result, or the address that it frees.
    first: u64,
    got: Alloc,
}

/// The open calls of all tasks.
#[derive(Debug, Default)]
pub struct Calls {
    calls: Vec<Call>,
    patience: u32,
}

/// The function that begins at `va`, if there is one.
pub fn function_at(known: &[Signature], va: u64) -> Option<u8> {
    let offset = (va & 0xfff) as u16;
    let mut code = [0; 32];
    let mut there = None;
    known.iter().filter(|s| s.offset == offset).find_map(|s| {
        // A function at the end of its page has fewer than 32 bytes to compare.
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

/// User data of a callback on such a function: its number.
pub fn udata(function: u8) -> *mut c_void {
    std::ptr::without_provenance_mut(function.into())
}

impl Calls {
    /// Returns true if a call has not returned yet.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !self.calls.is_empty()
    }

    /// A function begins. `callers` are the expected return addresses, the nearest first. They are used only if the
    /// first one is the return address on the stack. Returns the freed memory if the function only frees.
    pub fn begin(&mut self, task: u32, function: u8, callers: [u64; 3]) -> Option<(u64, u64)> {
        let sp = guest::register(Reg::RSP);
        // Stacks grow down. Calls that began at or below this stack pointer have been left in another way.
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

    /// User code runs at `va`. If a call returned there, returns the freed and the allocated memory.
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
