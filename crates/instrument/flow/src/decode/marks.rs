// SPDX-License-Identifier: MIT OR Apache-2.0
//! Marked instructions: those whose time the analyses need.
//!
//! Input: the instructions of a block while it is built. Output: their marks, which the block keeps among its events.
//! So code without marks costs nothing extra.
//!
//! Marked in kernel code: instructions that switch interrupts (`cli`, `sti`, `pushf`, `popf`), change the preemption
//! count (arithmetic on the per-CPU count, arch/x86/include/asm/preempt.h), or wait (`hlt`, `mwait`). On request:
//! instruction patterns, addresses, and functions by name.

use kprism_image::glob::glob;
use kprism_image::insn::pattern::{Decoded, Pattern, Seen};
use kprism_image::insn::{Amount, Insn, Kind, Mode, added_to_gs};
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
            _ => Op::Counted(payload),
        }
    }
}

/// The instructions and functions to mark.
#[derive(Debug, Clone, Default)]
pub struct Markers {
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
    pub const NONE: Self = Self {
        kernel: false,
        preemption: Preemption { count: None, bh_disable: None, bh_enable: None },
        patterns: Vec::new(),
        counted: Vec::new(),
        addresses: Vec::new(),
        funcs: Vec::new(),
    };

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
            || self.kernel
                && is_kernel(ip)
                && (matches!(insn.kind, Kind::Cli | Kind::Sti | Kind::Pushf | Kind::Popf | Kind::Halt)
                    || bytes.first() == Some(&0x65) && self.preemption.count.is_some()
                    || self.called_with_count(insn).is_some())
    }

    /// Passes every mark at this instruction to `out`, encoded for [`crate::decode::event::Event::func`]. `bytes` is the whole
    /// instruction; `before` returns the code at an address before it.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn at(
        &self,
        insn: &Insn,
        bytes: &[u8],
        ip: u64,
        mode: Mode,
        progress: &mut Progress,
        before: impl Fn(u64) -> Option<[u8; LOAD]>,
        mut out: impl FnMut(u32),
    ) {
        if self.kernel
            && is_kernel(ip)
            && let Some(op) = self.kernel_op(insn, bytes, ip, before)
        {
            out(op.pack());
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
        before: impl Fn(u64) -> Option<[u8; LOAD]>,
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
                    let [0xbe, count @ ..] = before(ip.wrapping_sub(distance))? else { return None };
                    Some(i32::from_le_bytes(count))
                });
                let amount = |argument: i32| match function {
                    Counting::Disable => argument,
                    Counting::Enable => 1_i32.wrapping_sub(argument),
                };
                Some(Op::PreemptCall(argument.map_or(0, amount)))
            }
            _ => match added_to_gs(bytes, ip.wrapping_add(insn.len.into()))? {
                (address, _) if Some(address) != self.preemption.count => None,
                (_, Amount::Const(amount)) => Some(Op::Preempt(amount)),
                (_, Amount::Reg(_) | Amount::NegatedReg(_)) => Some(Op::PreemptBy),
            },
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

/// A function that adds its argument to the preemption count, or subtracts it.
#[derive(Debug, Clone, Copy)]
enum Counting {
    Disable,
    Enable,
}

/// Length of the instruction `mov $CONSTANT, %esi`, and the largest distance at which it is looked for before a call; bytes.
const LOAD: usize = 5;
const FAR: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_survive_the_packing() {
        for op in
            [Op::Cli, Op::Sti, Op::Pushf, Op::Popf, Op::Halt, Op::Wanted(77), Op::Counted(0), Op::PreemptBy]
        {
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
            markers.kernel_op(&insn, bytes, ip, |_| None)
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

    /// `mov $0x201, %esi; lea …; jmp __local_bh_enable_ip`, and a call whose argument is not seen.
    #[test]
    fn the_argument_is_the_callers() {
        let (disable, enable) = (0xffff_ffff_8100_1000, 0xffff_ffff_8100_2000);
        let preemption = Preemption { count: None, bh_disable: Some(disable), bh_enable: Some(enable) };
        let markers = Markers { preemption, kernel: true, ..Markers::default() };
        let (start, code) = (0xffff_ffff_8110_0000_u64, [0xbe, 1, 2, 0, 0, 0x48, 0x8d, 0x3d, 0, 0, 0, 0]);
        let before = |ip: u64| code.get(ip.checked_sub(start)? as usize..)?.first_chunk().copied();
        let op = |kind, ip| markers.kernel_op(&Insn { len: 5, kind }, &[0xe9, 0, 0, 0, 0], ip, before);
        let end = start + code.len() as u64;
        assert_eq!(op(Kind::Jump { target: enable }, end), Some(Op::PreemptCall(-0x200)));
        assert_eq!(op(Kind::Call { target: disable }, end), Some(Op::PreemptCall(0x201)));
        assert_eq!(op(Kind::Call { target: enable }, end + 0x100), Some(Op::PreemptCall(0)));
        assert!(markers.may_be(&Insn { len: 5, kind: Kind::Call { target: enable } }, &[0xe8], end));
    }
}
