// SPDX-License-Identifier: MIT OR Apache-2.0
//! IR → eBPF: plain instructions, and where a loader has to put a map or an address.
//!
//! A program's context is `struct pt_regs` if it reads registers, an array of 64-bit values if it reads arguments.
//! It ends with 0 if the condition is false or something failed, else 1 (or the value: see [`Output`]).
//!
//! Maps that a program may name, all made by its loader:
//! * [`Map::State`]: an array of one element of [`state_size`] bytes: a counter for each [`Fault`](crate::ir::Fault) at 0, then at
//!   [`RESULT`] the value, at [`LOST`] the records that found no room, from [`VARS`] the trace state variables.
//! * [`Map::Scratch`]: a per-CPU array of one element of [`SCRATCH`] bytes, where a record is put together.
//! * [`Map::Ring`]: a ring buffer. A record is `u32 kind, u32 length, u64 what, data`.
//!   Or none of these two: the records of a [`framed`] program have each a place of their own in one [`Frame`].
//! * [`Map::Entries`]: a hash of `u64 pid_tgid, u64 frame` to `u64` words: time, then the registers asked for; filled
//!   by the program that [`entry`] makes.

mod alloc;
mod code;
mod frame;
mod insn;
mod legal;
mod memory;

pub use code::{Error, entry, framed, program, segment};
pub use frame::{Frame, Slot, What};
pub use insn::{Cpu, Insn, helper};

use serde::{Deserialize, Serialize};

use crate::ir::Kept;

/// Where the value goes.
pub const RESULT: i32 = 64;
/// Where lost records are counted.
pub const LOST: i32 = 72;
/// Where the trace state variables begin.
pub const VARS: i32 = 128;
/// Longest record; longer ones are cut.
pub const MAX_RECORD: i32 = 4096;
/// Bytes before a record's data.
pub const HEADER: i32 = 16;
/// Size of the scratch memory.
pub const SCRATCH: i32 = HEADER + MAX_RECORD;

/// Size of the state with so many trace state variables.
pub fn state_size(vars: usize) -> usize {
    VARS as usize + 8 * vars
}

/// A map that a program names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Map {
    /// Counters, the value, the trace state variables.
    State,
    /// Where a record is put together.
    Scratch,
    /// Where records go.
    Ring,
    /// What paired entry probes kept.
    Entries,
}

/// What a loader puts into a two-part instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reloc {
    /// The map's file descriptor.
    Map(Map),
    /// The address of this place in the map's only element: source register 2, the offset in the second half.
    MapValue(Map, i32),
    /// This address of the file, moved to where the file is loaded.
    Address(u64),
}

/// What becomes of the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// It is the program's result.
    #[default]
    Verdict,
    /// It goes to the state; the result says whether there is one.
    State,
}

/// A program.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Program {
    /// Instructions.
    #[serde(with = "insn::hex")]
    pub insns: Vec<Insn>,
    /// By instruction.
    pub relocs: Vec<(usize, Reloc)>,
    /// Bytes of stack.
    pub stack: u32,
    /// Trace state variables in the state.
    pub vars: usize,
    /// The words of an entry in [`Map::Entries`], if it uses them.
    pub kept: Vec<Kept>,
    /// Formats of the records that have one.
    pub formats: Vec<String>,
    /// The `exit`s that are reached after a fault, by instruction; all others have a value.
    pub faulted: Vec<usize>,
}

impl Program {
    /// As the kernel takes it, before relocation.
    pub fn bytes(&self) -> Vec<u8> {
        self.insns.iter().flat_map(|i| i.bytes()).collect()
    }

    /// A line of text for each instruction, with its number.
    pub fn listing(&self) -> String {
        let mut out = String::new();
        let mut second = false;
        for (i, insn) in self.insns.iter().enumerate() {
            if std::mem::take(&mut second) {
                continue;
            }
            second = insn.code == insn::LDDW;
            let high = self.insns.get(i + 1).map_or(0, |n| n.imm);
            let reloc = self.relocs.iter().find(|r| r.0 == i).map(|r| r.1);
            let text = match reloc {
                Some(Reloc::Map(map)) => format!("r{} = map {map:?}", insn.dst),
                Some(Reloc::MapValue(map, at)) => format!("r{} = {map:?} + {at}", insn.dst),
                Some(Reloc::Address(link)) => format!("r{} = address {link:#x}", insn.dst),
                None => insn::text(*insn, high),
            };
            out.push_str(&format!("{i:4}: {text}\n"));
        }
        out
    }

    /// Instructions that run on the longest way through it.
    pub fn longest(&self) -> usize {
        let mut from = vec![0; self.insns.len() + 1];
        for (i, insn) in self.insns.iter().enumerate().rev() {
            let to = |off: i64| {
                usize::try_from(i as i64 + 1 + off).ok().and_then(|t| from.get(t)).copied().unwrap_or(0)
            };
            let jumps = matches!(insn.code & 7, 5 | 6) && !matches!(insn.code, insn::CALL | insn::EXIT);
            from[i] = 1 + match insn.code {
                insn::EXIT => 0,
                insn::LDDW => to(1),
                c if jumps && c & 0xf0 == insn::JA => to(i64::from(insn.off)),
                _ if jumps => to(0).max(to(i64::from(insn.off))),
                _ => to(0),
            };
        }
        from.first().copied().unwrap_or(0)
    }
}
