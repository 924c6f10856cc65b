// SPDX-License-Identifier: GPL-2.0-or-later
//! Builds a [`Block`] from a translation block of QEMU (address, bytes, instruction starts). A block holds everything
//! that the encoder needs to determine, from two consecutive block starts, which instructions ran and which packets the
//! transfer makes.

use std::sync::atomic::{AtomicU32, Ordering};

use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind};
use kprism_image::insn::{Kind, Mode, classify};

/// Set when the block's address turns out to be a gate of the IDT. The low byte of the flags is then its vector.
pub const HANDLER: u32 = 1 << 8;
/// The block has no index in the code dictionary yet.
pub const UNLISTED: u32 = u32::MAX;
/// Flag: the exact time is needed when the block starts.
pub const TIMED: u32 = 1 << 10;
/// Flag: an instruction in it may begin or end an interval that a condition measures.
pub const MEASURED: u32 = 1 << 11;

/// Effect of a block's end, for the encoder's fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Shape {
    /// Continues after the block.
    Fall,
    /// Conditional branch to [`Block::target`].
    Cond,
    /// Jump to [`Block::target`].
    Jump,
    /// Call of [`Block::target`], which is not the next instruction.
    Call,
    /// Near return.
    Ret,
    /// Anything else, or an end that the next address does not determine.
    Other,
}

/// A distinct piece of straight-line code as QEMU translated it. It lives as long as the process. All fields that the
/// encoder needs for every block lie in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Block {
    /// `HANDLER`, `TIMED`, `MEASURED` and the vector.
    pub flags: AtomicU32,
    /// Index in the code dictionary; [`UNLISTED`] until it has one.
    pub id: AtomicU32,
    /// Virtual address at translation. User code may run at another address, because QEMU shares a translation between
    /// all mappings of a physical page.
    pub va: u64,
    /// Target of a branch at the end, if the block runs at `va`.
    pub target: u64,
    size: u32,
    insns: u32,
    /// Effect of its end.
    pub shape: Shape,
    /// Mode of the code segment.
    pub mode: Mode,
    /// Current privilege level, 0 or 3.
    pub cpl: u8,
    /// The last instruction is a string operation with a REP prefix.
    pub rep: bool,
    /// The last instruction is `hlt`: guest time may jump before the next block.
    pub hlt: bool,
    /// The last instruction is `pause`, at which QEMU gives the turn to the next vCPU.
    pub pause: bool,
    /// True if a device access can end this block exactly where its own branch may lead. Then the last instruction reports
    /// that it ran.
    pub ambiguous: bool,
    /// Control transfer of the last instruction (targets are for `va`).
    pub kind: Kind,
    /// Instruction bytes.
    pub bytes: Box<[u8]>,
    /// Offset of each instruction in the bytes.
    pub starts: Box<[u16]>,
}

impl Block {
    /// Builds a block from its instructions' bytes. `lens` are their lengths in order.
    pub fn new(va: u64, bytes: &[u8], lens: &[u8], mode: Mode, cpl: u8) -> Self {
        let mut starts = Vec::with_capacity(lens.len());
        let mut at = 0u16;
        for &len in lens {
            starts.push(at);
            at += u16::from(len);
        }
        let last = starts.last().map_or(0, |&s| s as usize);
        let last_bytes = &bytes[last..];
        let kind = classify(last_bytes, va.wrapping_add(last as u64), mode).map_or(Kind::Other, |i| i.kind);
        let mut block = Block {
            flags: AtomicU32::new(0),
            id: AtomicU32::new(UNLISTED),
            va,
            target: 0,
            size: bytes.len() as u32,
            insns: starts.len() as u32,
            shape: Shape::Other,
            bytes: bytes.into(),
            starts: starts.into(),
            kind,
            mode,
            cpl,
            rep: kind == Kind::Repeat,
            hlt: last_bytes == [0xf4] && kind == Kind::Halt,
            pause: last_bytes == [0xf3, 0x90],
            ambiguous: false,
        };
        block.ambiguous = cpl == 0 && block.may_hide_cut();
        (block.shape, block.target) = match kind {
            _ if block.ambiguous => (Shape::Other, 0),
            Kind::CondJump { target } => (Shape::Cond, target),
            Kind::Jump { target } => (Shape::Jump, target),
            Kind::Call { target } if target != va.wrapping_add(block.size()) => (Shape::Call, target),
            Kind::Ret => (Shape::Ret, 0),
            kind if kind.falls_through() => (Shape::Fall, 0),
            _ => (Shape::Other, 0),
        };
        block
    }

    /// Size in bytes.
    #[inline]
    pub fn size(&self) -> u64 {
        u64::from(self.size)
    }

    /// Returns true if the block always needs the slow path: it is a gate of the IDT, its time matters, or the CPU
    /// sleeps or gives its turn away at its end.
    pub fn is_special(&self) -> bool {
        self.hlt || self.pause || self.flags.load(Ordering::Relaxed) & !MEASURED != 0
    }

    /// Index in the code dictionary.
    #[inline(always)]
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// Number of instructions.
    #[inline]
    pub fn insns(&self) -> u64 {
        u64::from(self.insns)
    }

    /// Offset of the last instruction.
    #[inline]
    pub fn last_start(&self) -> u64 {
        self.starts.last().map_or(0, |&s| u64::from(s))
    }

    /// Index of the instruction that starts at byte `offset`, if one does.
    pub fn index_at(&self, offset: u64) -> Option<usize> {
        u16::try_from(offset).ok().and_then(|o| self.starts.binary_search(&o).ok())
    }

    /// The vector, if this block is a gate.
    #[inline]
    pub fn vector(&self) -> Option<u8> {
        let flags = self.flags.load(Ordering::Relaxed);
        (flags & HANDLER != 0).then_some(flags as u8)
    }

    /// Returns true if a device access could end this block early exactly where its own branch may lead: the branch goes (or
    /// may go) to an inner instruction, and the instruction before that touches memory.
    fn may_hide_cut(&self) -> bool {
        let touches = |k: usize| k > 0 && self.touches_memory(k - 1);
        match self.kind {
            Kind::CondJump { target } | Kind::Jump { target } | Kind::Call { target } => {
                self.index_at(target.wrapping_sub(self.va)).is_some_and(touches)
            }
            Kind::IndirectJump => (1..self.starts.len()).any(touches),
            _ => false,
        }
    }

    fn touches_memory(&self, index: usize) -> bool {
        let at = self.starts[index] as usize;
        let mut decoder =
            Decoder::with_ip(self.mode.bits(), &self.bytes[at..], self.va, DecoderOptions::NONE);
        let mut insn = Instruction::default();
        decoder.decode_out(&mut insn);
        (0..insn.op_count()).any(|i| insn.op_kind(i) == OpKind::Memory) || insn.is_string_instruction()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_its_shape() {
        // mov (%rdi),%eax; add $1,%eax; jne <add>
        let b = Block::new(0x1000, &[0x8b, 0x07, 0x83, 0xc0, 0x01, 0x75, 0xfb], &[2, 3, 2], Mode::Bits64, 0);
        assert_eq!(b.kind, Kind::CondJump { target: 0x1002 });
        assert_eq!((b.insns(), b.size(), b.index_at(2), b.index_at(3)), (3, 7, Some(1), None));
        assert!(b.ambiguous, "the branch leads right behind a memory access");
        let user = Block::new(0x1000, &b.bytes, &[2, 3, 2], Mode::Bits64, 3);
        assert!(!user.ambiguous);
    }

    #[test]
    fn finds_rep_and_hlt() {
        assert!(Block::new(0, &[0xf3, 0x48, 0xab], &[3], Mode::Bits64, 0).rep);
        let spin = Block::new(0, &[0x90, 0xf3, 0x90], &[1, 2], Mode::Bits64, 0);
        assert!(spin.pause && !spin.rep && !Block::new(0, &[0x90], &[1], Mode::Bits64, 0).pause);
        assert!(Block::new(0, &[0xfb, 0xf4], &[1, 1], Mode::Bits64, 0).hlt);
    }
}
