// SPDX-License-Identifier: MIT OR Apache-2.0
//! Marked instructions: those whose time the analyses need.
//!
//! Input: the instructions of a block while it is built. Output: their marks, which the block keeps among its events.
//! So code without marks costs nothing extra.
//!
//! Marked in kernel code: instructions that switch interrupts (`cli`, `sti`, `pushf`, `popf`), change the preemption
//! count (arithmetic on the per-CPU count, arch/x86/include/asm/preempt.h, whose address may be in a register that the function
//! loads with it), or wait (`hlt`, `mwait`). In all code: string instructions with a repeat prefix, which take the time of all their
//! turns. On request: instruction patterns, addresses, and functions by name.

use std::ops::Range;

use kprism_image::glob::glob;
use kprism_image::insn::pattern::{Decoded, Pattern, Seen};
use kprism_image::insn::{Amount, GsWord, Insn, Kind, Mode, added_to_gs, loads_constant};
use kprism_image::is_kernel;
use kprism_image::symbols::kallsyms::Preemption;

/// Effect of a marked instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// Turns interrupts off.
    Cli,
    /// Turns interrupts on.
    Sti,
    /// Saves the flags, mostly to save the interrupt flag.
    Pushf,
    /// Restores the flags.
    Popf,
    /// Waits for an interrupt.
    Halt,
    /// Adds to the preemption count.
    Preempt(i32),
    /// Adds to it an amount that is not in the instruction.
    PreemptBy,
    /// Calls a function that adds this amount by [`Op::PreemptBy`]; 0 if the amount is not known.
    PreemptCall(i32),
    /// Matches a requested pattern or address, by number.
    Wanted(u32),
    /// Matches a pattern that is only counted.
    Counted(u32),
    /// A string instruction with a repeat prefix: all its turns ran.
    Repeat,
}

/// Bits for an operand in an event: an amount by which the preemption count changes, or the number of a pattern.
const PAYLOAD: u32 = 24;

impl Op {
    /// Encodes the mark for [`crate::decode::event::Event::func`].
    fn pack(self) -> u32 {
        let (kind, payload) = match self {
            Op::Cli => (0, 0),
            Op::Sti => (1, 0),
            Op::Pushf => (2, 0),
            Op::Popf => (3, 0),
            Op::Halt => (4, 0),
            Op::Preempt(n) => (5, n as u32),
            Op::Wanted(n) => (6, n),
            Op::Counted(n) => (7, n),
            Op::PreemptBy => (8, 0),
            Op::PreemptCall(n) => (9, n as u32),
            Op::Repeat => (10, 0),
        };
        kind << PAYLOAD | payload & ((1 << PAYLOAD) - 1)
    }

    pub fn unpack(word: u32) -> Self {
        let payload = word & ((1 << PAYLOAD) - 1);
        match word >> PAYLOAD {
            0 => Op::Cli,
            1 => Op::Sti,
            2 => Op::Pushf,
            3 => Op::Popf,
            4 => Op::Halt,
            5 => Op::Preempt((payload << 8) as i32 >> 8),
            6 => Op::Wanted(payload),
            8 => Op::PreemptBy,
            9 => Op::PreemptCall((payload << 8) as i32 >> 8),
            10 => Op::Repeat,
            _ => Op::Counted(payload),
        }
    }
}

/// The instructions and functions to mark.
#[derive(Debug, Clone, Default)]
pub struct Markers {
    /// Instructions that take more time than others, in kernel and user code: those that repeat, and those that wait.
    pub long: bool,
    /// Kernel code that switches interrupts, counts preemption, or waits.
    pub kernel: bool,
    /// The kernel's preemption count.
    pub preemption: Preemption,
    /// Instruction patterns, in kernel and user code.
    pub(crate) patterns: Vec<Pattern>,
    /// For each pattern, true if it is only counted.
    pub(crate) counted: Vec<bool>,
    /// Sorted addresses with their numbers, which follow those of the patterns.
    pub(crate) addresses: Vec<(u64, u32)>,
    /// Functions by name, with wildcards.
    pub(crate) funcs: Vec<String>,
}

/// Partial matches of patterns on a straight run.
#[derive(Debug, Default)]
pub(crate) struct Progress(Vec<Seen>);

impl Progress {
    pub fn reset(&mut self) {
        self.0.clear();
    }
}

impl Markers {
    /// No marks.
    pub const NONE: Self = Self::only(false);

    /// What whoever keeps the time needs.
    pub const LONG: Self = Self::only(true);

    const fn only(long: bool) -> Self {
        Self {
            long,
            kernel: false,
            preemption: Preemption { count: None, bh_disable: None, bh_enable: None },
            patterns: Vec::new(),
            counted: Vec::new(),
            addresses: Vec::new(),
            funcs: Vec::new(),
        }
    }

    /// Returns true if every instruction has to be checked, not only those with a [`Kind`].
    pub(crate) fn looks_at_all(&self) -> bool {
        !self.patterns.is_empty() || !self.addresses.is_empty()
    }

    /// Returns true if functions of this name are marked.
    pub(crate) fn wants_func(&self, name: &str) -> bool {
        self.funcs.iter().any(|pattern| glob(pattern, name))
    }

    /// Quick test: false if an instruction of this kind, beginning with these bytes, cannot be a mark.
    #[inline]
    pub(crate) fn may_be(&self, insn: &Insn, bytes: &[u8], ip: u64) -> bool {
        self.looks_at_all()
            || self.long && matches!(insn.kind, Kind::Repeat | Kind::Halt)
            || self.kernel
                && is_kernel(ip)
                && (matches!(insn.kind, Kind::Cli | Kind::Sti | Kind::Pushf | Kind::Popf | Kind::Halt)
                    || bytes.first() == Some(&0x65) && self.preemption.count.is_some()
                    || self.called_with_count(insn).is_some())
    }

    /// Passes every mark at this instruction to `out`, encoded for [`crate::decode::event::Event::func`]. `bytes` is the whole
    /// instruction, `around` the code of its function.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn at(
        &self,
        insn: &Insn,
        bytes: &[u8],
        ip: u64,
        mode: Mode,
        progress: &mut Progress,
        around: Around<impl Fn(u64, &mut [u8]) -> usize>,
        mut out: impl FnMut(u32),
    ) {
        if self.kernel
            && is_kernel(ip)
            && let Some(op) = self.kernel_op(insn, bytes, ip, &around)
        {
            out(op.pack());
        } else if self.long {
            match insn.kind {
                Kind::Repeat => out(Op::Repeat.pack()),
                Kind::Halt => out(Op::Halt.pack()),
                _ => {}
            }
        }
        if !self.patterns.is_empty() {
            progress.0.resize(self.patterns.len(), Seen::default());
            let decoded = Decoded::new(bytes, ip, mode);
            for (n, (pattern, seen)) in self.patterns.iter().zip(&mut progress.0).enumerate() {
                if pattern.advance(seen, &decoded) {
                    let op = if self.counted.get(n) == Some(&true) { Op::Counted } else { Op::Wanted };
                    out(op(n as u32).pack());
                }
            }
        }
        let first = self.addresses.partition_point(|&(address, _)| address < ip);
        for &(_, n) in self.addresses[first..].iter().take_while(|&&(address, _)| address == ip) {
            out(Op::Wanted(n).pack());
        }
    }

    fn kernel_op(
        &self,
        insn: &Insn,
        bytes: &[u8],
        ip: u64,
        around: &Around<impl Fn(u64, &mut [u8]) -> usize>,
    ) -> Option<Op> {
        match insn.kind {
            Kind::Cli => Some(Op::Cli),
            Kind::Sti => Some(Op::Sti),
            Kind::Pushf => Some(Op::Pushf),
            Kind::Popf => Some(Op::Popf),
            Kind::Halt => Some(Op::Halt),
            _ if let Some(function) = self.called_with_count(insn) => {
                // The caller loads the constant right before: `mov $0x200, %esi`.
                let argument = (LOAD as u64..=FAR).find_map(|distance| {
                    let at = ip.wrapping_sub(distance);
                    let mut code = [0; LOAD];
                    let known = (around.code)(at, &mut code);
                    let (register, count) = loads_constant(&code[..known], at)?;
                    (register == ESI).then_some(count as i32)
                });
                let amount = |argument: i32| match function {
                    Counting::Disable => argument,
                    Counting::Enable => 1_i32.wrapping_sub(argument),
                };
                Some(Op::PreemptCall(argument.map_or(0, amount)))
            }
            _ => {
                let count = self.preemption.count?;
                let (place, amount) = added_to_gs(bytes, ip.wrapping_add(insn.len.into()))?;
                let is_count = match place {
                    GsWord::At(address) => address == count,
                    GsWord::Behind { register, displacement } => {
                        around.load(ip, register, count.wrapping_sub(displacement))
                    }
                };
                is_count.then_some(match amount {
                    Amount::Const(amount) => Op::Preempt(amount),
                    Amount::Reg(_) | Amount::NegatedReg(_) => Op::PreemptBy,
                })
            }
        }
    }

    /// The function with the count as an argument that an instruction calls or jumps to, if it does.
    fn called_with_count(&self, insn: &Insn) -> Option<Counting> {
        let (Kind::Call { target } | Kind::Jump { target }) = insn.kind else { return None };
        match Some(target) {
            called if called == self.preemption.bh_enable => Some(Counting::Enable),
            called if called == self.preemption.bh_disable => Some(Counting::Disable),
            _ => None,
        }
    }
}

/// The code of a function.
#[derive(Debug)]
pub(crate) struct Around<C> {
    /// Its addresses.
    pub func: Range<u64>,
    /// Copies the known bytes from an address on. Returns their number.
    pub code: C,
}

impl<C: Fn(u64, &mut [u8]) -> usize> Around<C> {
    /// True if the function loads a register with this value, not too far from `ip`. gcc does so if it needs an address more than
    /// once, and has nothing else in that register while it does.
    fn load(&self, ip: u64, register: u8, value: u64) -> bool {
        let end = self.func.end.min(ip.saturating_add(NEAR));
        let mut at = self.func.start.max(ip.saturating_sub(NEAR));
        let mut bytes = [0; PIECE];
        while at < end {
            let known = (self.code)(at, &mut bytes);
            let found = |i: usize| loads_constant(&bytes[i..known], at + i as u64) == Some((register, value));
            if (0..known).any(found) {
                return true;
            }
            // An instruction may begin in this piece and end in the next.
            let piece = if known == PIECE { PIECE - LONGEST_LOAD + 1 } else { known.max(1) };
            at = at.saturating_add(piece as u64);
        }
        false
    }
}

/// A function that adds its argument to the preemption count, or subtracts it.
#[derive(Debug, Clone, Copy)]
enum Counting {
    Disable,
    Enable,
}

/// Length of the instruction `mov $CONSTANT, %esi`, and the largest distance at which it is looked for before a call; bytes.
const LOAD: usize = 5;
const FAR: u64 = 32;
/// Number of the register of a second argument.
const ESI: u8 = 6;

/// The largest distance at which a register's load is looked for, bytes. In Debian's 6.12, it is 739 at most.
const NEAR: u64 = 2048;
/// Bytes that are looked at in one go, and those of the longest instruction of [`loads_constant`].
const PIECE: usize = 64;
const LONGEST_LOAD: usize = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_survive_the_packing() {
        for op in [
            Op::Cli,
            Op::Sti,
            Op::Pushf,
            Op::Popf,
            Op::Halt,
            Op::Wanted(77),
            Op::Counted(0),
            Op::PreemptBy,
            Op::Repeat,
        ] {
            assert_eq!(Op::unpack(op.pack()), op);
        }
        for n in [1, -1, 0x100, -0x200, 0x10000, -0x11_0000] {
            assert_eq!(Op::unpack(Op::Preempt(n).pack()), Op::Preempt(n));
            assert_eq!(Op::unpack(Op::PreemptCall(n).pack()), Op::PreemptCall(n));
        }
    }

    /// Linux's forms: `incl %gs:pcpu_hot+8(%rip)`, `decl`, `addl $0x200`, `subl $0x10000`, and absolute ones.
    #[test]
    fn arithmetic_on_the_preemption_count() {
        let preemption = Preemption { count: Some(0x3_2d08), ..Preemption::default() };
        let markers = Markers { preemption, ..Markers::default() };
        let ip = 0xffff_ffff_8110_0000u64;
        let op = |bytes: &[u8]| {
            let insn = Insn { len: bytes.len() as u8, kind: Kind::Other };
            markers.kernel_op(&insn, bytes, ip, &Around { func: ip..ip + 1, code: |_, _: &mut [u8]| 0 })
        };
        let amount = |bytes: &[u8]| match op(bytes) {
            Some(Op::Preempt(amount)) => Some(amount),
            _ => None,
        };
        let with = |head: &[u8], imm: &[u8]| {
            let next = ip + (head.len() + 4 + imm.len()) as u64;
            let disp = 0x3_2d08u64.wrapping_sub(next) as u32;
            [head, &disp.to_le_bytes(), imm].concat()
        };
        assert_eq!(amount(&with(&[0x65, 0xff, 0x05], &[])), Some(1));
        assert_eq!(amount(&with(&[0x65, 0xff, 0x0d], &[])), Some(-1));
        assert_eq!(amount(&with(&[0x65, 0x81, 0x05], &0x200u32.to_le_bytes())), Some(0x200));
        assert_eq!(amount(&with(&[0x65, 0x83, 0x2d], &[1])), Some(-1));
        assert_eq!(amount(&with(&[0x65, 0x81, 0x05], &(-0x1_0000i32).to_le_bytes())), Some(-0x1_0000));
        assert_eq!(amount(&[0x65, 0xff, 0x04, 0x25, 0x08, 0x2d, 0x03, 0x00]), Some(1));
        // Another per-CPU word, and a read.
        assert_eq!(amount(&[0x65, 0xff, 0x04, 0x25, 0x10, 0x2d, 0x03, 0x00]), None);
        assert_eq!(amount(&with(&[0x65, 0x8b, 0x05], &[])), None);
        assert_eq!(amount(&[0x65, 0xff, 0x05]), None);
        // `add %esi`, `sub %r8d`.
        assert_eq!(op(&with(&[0x65, 0x01, 0x35], &[])), Some(Op::PreemptBy));
        assert_eq!(op(&with(&[0x65, 0x44, 0x29, 0x05], &[])), Some(Op::PreemptBy));
    }

    /// Copies from `code`, which lies at `start`.
    fn within(start: u64, code: &[u8]) -> impl Fn(u64, &mut [u8]) -> usize {
        move |ip, to| {
            let known = ip.checked_sub(start).and_then(|at| code.get(at as usize..)).unwrap_or_default();
            let len = known.len().min(to.len());
            to[..len].copy_from_slice(&known[..len]);
            len
        }
    }

    /// As Debian's 6.12 has it: `mov $pcpu_hot+8, %r15; incl %gs:(%r15); …; decl %gs:(%r15)`, and `decl %gs:(%rax)` of another word.
    #[test]
    fn the_address_is_in_a_register() {
        let preemption = Preemption { count: Some(0x3_51c8), ..Preemption::default() };
        let markers = Markers { preemption, kernel: true, ..Markers::default() };
        let start = 0xffff_ffff_8102_e0a0;
        let code = [&[0x90; 61][..], &[0x49, 0xc7, 0xc7, 0xc8, 0x51, 3, 0]].concat();
        let at = |func: Range<u64>, ip: u64, bytes: &[u8]| {
            let insn = Insn { len: bytes.len() as u8, kind: Kind::Other };
            assert!(markers.may_be(&insn, bytes, ip));
            markers.kernel_op(&insn, bytes, ip, &Around { func, code: within(start, &code) })
        };
        let (func, ip) = (start..start + 0x1000, start + 68);
        assert_eq!(at(func.clone(), ip, &[0x65, 0x41, 0xff, 0x07]), Some(Op::Preempt(1)));
        assert_eq!(at(func.clone(), start, &[0x65, 0x41, 0xff, 0x0f]), Some(Op::Preempt(-1)));
        assert_eq!(at(func.clone(), ip, &[0x65, 0x41, 0x81, 0x47, 0, 0, 2, 0, 0]), Some(Op::Preempt(0x200)));
        // Another displacement, another register, another function, too far.
        assert_eq!(at(func.clone(), ip, &[0x65, 0x41, 0xff, 0x4f, 8]), None);
        assert_eq!(at(func.clone(), ip, &[0x65, 0xff, 0x0f]), None);
        assert_eq!(at(ip..func.end, ip, &[0x65, 0x41, 0xff, 0x07]), None);
        assert_eq!(at(func, ip + NEAR, &[0x65, 0x41, 0xff, 0x07]), None);
    }

    /// `mov $0x201, %esi; lea …; jmp __local_bh_enable_ip`, and a call whose argument is not seen.
    #[test]
    fn the_argument_is_the_callers() {
        let (disable, enable) = (0xffff_ffff_8100_1000, 0xffff_ffff_8100_2000);
        let preemption = Preemption { count: None, bh_disable: Some(disable), bh_enable: Some(enable) };
        let markers = Markers { preemption, kernel: true, ..Markers::default() };
        let (start, code) = (0xffff_ffff_8110_0000_u64, [0xbe, 1, 2, 0, 0, 0x48, 0x8d, 0x3d, 0, 0, 0, 0]);
        let around = Around { func: start..start + 0x200, code: within(start, &code) };
        let op = |kind, ip| markers.kernel_op(&Insn { len: 5, kind }, &[0xe9, 0, 0, 0, 0], ip, &around);
        let end = start + code.len() as u64;
        assert_eq!(op(Kind::Jump { target: enable }, end), Some(Op::PreemptCall(-0x200)));
        assert_eq!(op(Kind::Call { target: disable }, end), Some(Op::PreemptCall(0x201)));
        assert_eq!(op(Kind::Call { target: enable }, end + 0x100), Some(Op::PreemptCall(0)));
        // Of `mov $0x201, %esi`, two bytes are not known.
        let around = Around { func: start..start + 0x200, code: within(start, &code[..3]) };
        let insn = Insn { len: 5, kind: Kind::Call { target: disable } };
        let cut = markers.kernel_op(&insn, &[0xe8, 0, 0, 0, 0], end, &around);
        assert_eq!(cut, Some(Op::PreemptCall(0)));
        assert!(markers.may_be(&Insn { len: 5, kind: Kind::Call { target: enable } }, &[0xe8], end));
    }
}
