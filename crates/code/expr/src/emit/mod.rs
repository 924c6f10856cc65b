// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates eBPF from IR: instructions, and the places where a loader inserts a map or an address.
//!
//! A program's context is `struct pt_regs` if it reads registers, an array of 64-bit values if it reads arguments. The
//! program returns 0 if the condition is false or an operation failed, else 1 (or the value: see [`Output`]).
//!
//! | module | step |
//! |---|---|
//! | `program` | the entry points: a program, a part of one, the program at a function's entry |
//! | `legal` | operations that the instruction set does not have → others |
//! | `alloc` | values → registers and stack slots |
//! | `ops`, `memory`, `jumps` | operations, calls of helpers, ends of blocks → instructions, through the `emitter` |
//! | `callers` | a search among return addresses; the container's cgroup |
//! | `bound` | names that the loader looks up in the kernel: [`Name`] |
//! | `frame` | records with fixed places |
//!
//! Maps that a program may reference, all created by its loader. Only [`program`], of tests and examples, uses the scratch
//! memory and the ring: `kprism-probe` and `kprism-gdb` put [`segment`]s into programs of their own, with rings of theirs.
//! * [`Map::State`]: an array with one element of [`state_size`] bytes. It holds a counter for each
//!   [`Fault`](crate::ir::Fault) at 0, the value at [`RESULT`], the number of lost records at [`LOST`], and the trace
//!   state variables from [`VARS`] on.
//! * [`Map::Scratch`]: a per-CPU array with one element of [`SCRATCH`] bytes, in which a record is built.
//! * [`Map::Ring`]: a ring buffer. A record is `u32 kind, u32 length, u64 what, data`. A [`framed`] program uses
//!   neither this nor the scratch memory: each of its records has a fixed place in a [`Frame`].
//! * [`Map::Entries`]: a hash map from `u64 pid_tgid, u64 frame` to `u64` words, one for each saved value. The program
//!   from [`entry`] fills it.

mod alloc;
mod bound;
mod callers;
mod emitter;
mod frame;
mod jumps;
mod legal;
mod memory;
mod ops;
mod program;

pub use bound::{MOST_PAIRS, Name, Pairs};
pub use frame::{Frame, Slot, What};
pub use kprism_ebpf::insn::Insn;
pub use program::{entry, framed, program, segment};

use kprism_ebpf::disasm::line;
use kprism_ebpf::opcode;
use serde::{Deserialize, Serialize};

use crate::ir::Kept;

/// Offset of the value in the state, in bytes.
pub const RESULT: i32 = 64;
/// Offset of the counter of lost records.
pub const LOST: i32 = 72;
/// Offset of the first trace state variable.
pub const VARS: i32 = 128;
/// Limit of a record's data in bytes; longer data is truncated.
pub const MAX_RECORD: i32 = 4096;
/// Size of a record's header in bytes.
pub const HEADER: i32 = 16;
/// Size of the scratch memory in bytes.
pub const SCRATCH: i32 = HEADER + MAX_RECORD;

/// Reason why no program can be generated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The stack of a BPF program has 512 bytes.
    #[error(
        "the expression needs {0} bytes of stack, a BPF program has 512; split it into several conditions"
    )]
    Stack(u32),
    /// A jump offset has 16 bits.
    #[error("the expression becomes {0} instructions, more than a jump can span; split it")]
    TooLong(usize),
    /// The context holds either registers or arguments, not both.
    #[error("registers and arguments cannot both be read by one program: its context has only one of them")]
    Mixed,
    /// The frame would exceed its limit.
    #[error("{0} bytes would be collected at each hit, a frame holds {LONGEST}", LONGEST = frame::LONGEST)]
    Frame(u64),
    /// A frame has no room for printf output.
    #[error("printf has no place in a trace frame; collect the values")]
    Printf,
}

/// Stack offset at which a program that measures calls keeps the duration for its condition: [`crate::ir::Input::Measured`].
pub const MEASURED: i16 = -480;

/// Version of the BPF instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cpu {
    /// Version 3: supported since Linux 5.12.
    V3,
    /// Version 4: adds signed division and sign extension; supported since Linux 6.6.
    V4,
}

/// Size of the state in bytes, with this many trace state variables.
pub fn state_size(vars: usize) -> usize {
    VARS as usize + 8 * vars
}

/// A map that a program references.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Map {
    /// Counters, the value and the trace state variables.
    State,
    /// Memory in which a record is built.
    Scratch,
    /// Ring buffer for records.
    Ring,
    /// Values saved by paired entry probes.
    Entries,
}

/// An operand of a two-part instruction that the loader fills in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reloc {
    /// The map's file descriptor.
    Map(Map),
    /// The address of this offset in the map's only element: source register 2, with the offset in the second half.
    MapValue(Map, i32),
    /// This address of the file, relocated to its load address.
    Address(u64),
    /// A word of what [`Program::bind`] finds for a name: the number of the name, of the pair, and which of its two words.
    Bound(u16, u8, bool),
}

/// Destination of the program's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// The value is the program's return value.
    #[default]
    Verdict,
    /// The value is stored in the state; the program returns 1 if there is one, else 0.
    State,
}

/// An eBPF program before relocation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Program {
    /// Instructions.
    #[serde(with = "kprism_ebpf::insn::hex")]
    pub insns: Vec<Insn>,
    /// Relocations, with the index of their instruction.
    pub relocs: Vec<(usize, Reloc)>,
    /// Stack size in bytes.
    pub stack: u32,
    /// Number of trace state variables in the state.
    pub vars: usize,
    /// Meaning of the words of an entry in [`Map::Entries`]; empty if the program does not use it.
    pub kept: Vec<Kept>,
    /// Formats of [`FORMAT`](crate::ir::Record::Format) records.
    pub formats: Vec<String>,
    /// Names that the loader looks up in the kernel: [`Program::bind`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<Name>,
    /// Indices of `exit` instructions that are reached after a fault. At all others, r0 is a value.
    pub faulted: Vec<usize>,
}

impl Program {
    /// Encodes the program, before relocation.
    pub fn bytes(&self) -> Vec<u8> {
        self.insns.iter().flat_map(|i| i.bytes()).collect()
    }

    /// Disassembles the program: one line for each instruction, with its index.
    pub fn listing(&self) -> String {
        let mut out = String::new();
        let mut second = false;
        for (i, insn) in self.insns.iter().enumerate() {
            if std::mem::take(&mut second) {
                continue;
            }
            second = insn.code == opcode::LDDW;
            let high = self.insns.get(i + 1).map_or(0, |n| n.imm);
            let reloc = self.relocs.iter().find(|r| r.0 == i).map(|r| r.1);
            let text = match reloc {
                Some(Reloc::Map(map)) => format!("r{} = map {map:?}", insn.dst),
                Some(Reloc::MapValue(map, at)) => format!("r{} = {map:?} + {at}", insn.dst),
                Some(Reloc::Address(link)) => format!("r{} = address {link:#x}", insn.dst),
                Some(Reloc::Bound(name, pair, second)) => {
                    let name = self.names.get(usize::from(name)).map_or_else(String::new, Name::to_string);
                    let word = if second { "second" } else { "first" };
                    format!("r{} = {name}, pair {pair}, {word} word", insn.dst)
                }
                None => line(*insn, high, None),
            };
            out.push_str(&format!("{i:4}: {text}\n"));
        }
        out
    }

    /// Number of instructions on the longest path.
    pub fn longest(&self) -> usize {
        let mut from = vec![0; self.insns.len() + 1];
        for (i, insn) in self.insns.iter().enumerate().rev() {
            let to = |off: i64| {
                usize::try_from(i as i64 + 1 + off).ok().and_then(|t| from.get(t)).copied().unwrap_or(0)
            };
            let jumps = matches!(insn.code & 7, 5 | 6) && !matches!(insn.code, opcode::CALL | opcode::EXIT);
            from[i] = 1 + match insn.code {
                opcode::EXIT => 0,
                opcode::LDDW => to(1),
                c if jumps && c & 0xf0 == opcode::JA => to(i64::from(insn.off)),
                _ if jumps => to(0).max(to(i64::from(insn.off))),
                _ => to(0),
            };
        }
        from.first().copied().unwrap_or(0)
    }
}
