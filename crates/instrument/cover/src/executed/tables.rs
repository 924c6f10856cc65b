// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the targets of a jump through a table: the cases of a `switch`.
//!
//! Input: a function's instructions, and the constants of its file. Output: the targets, including those never taken.
//! The table is the one that an instruction of the function refers to and whose entries all point to instructions of
//! functions. The comparison before the jump gives its length.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use kprism_debuginfo::lines::{Function, Lines};

/// Maximum number of entries in a table.
const LONGEST: u64 = 4096;

/// Encoding of a table's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// Distance from the table, in 4 bytes.
    Distance,
    /// Absolute address, in 8 bytes.
    Address,
}

/// Targets of the indirect jump at `jump`, in the table's order, each once. `starts` are the addresses of the
/// function's instructions.
pub fn targets(function: &Function, starts: &[u64], jump: u64, lines: &Lines) -> Vec<u64> {
    let insn = |at: u64| decoded(function, at);
    let Some(own) = insn(jump) else { return Vec::new() };
    let here = starts.partition_point(|&start| start < jump);
    let mut candidates = Vec::new();
    candidates.extend(indexed(&own).map(|table| (table, Entry::Address)));
    let mut bound = None;
    // Nearer instructions are preferred; a compiler may load the table's address far away.
    let before = starts[..here].iter().rev().enumerate();
    for (far, insn) in before.filter_map(|(far, &at)| Some((far, insn(at)?))) {
        if bound.is_none() && far < NEAR && insn.mnemonic() == Mnemonic::Cmp {
            bound = limit(&insn);
        }
        if insn.mnemonic() == Mnemonic::Lea && insn.is_ip_rel_memory_operand() {
            candidates.push((insn.ip_rel_memory_address(), Entry::Distance));
        } else if far < NEAR && insn.mnemonic() == Mnemonic::Mov {
            candidates.extend(indexed(&insn).map(|table| (table, Entry::Address)));
        }
    }
    let mut found = Vec::new();
    for (table, entry) in candidates {
        found = read(table, entry, bound, starts, lines);
        if !found.is_empty() {
            break;
        }
    }
    let mut once = Vec::new();
    for target in found {
        if !once.contains(&target) {
            once.push(target);
        }
    }
    once
}

/// Maximum distance of the comparison, in instructions.
const NEAR: usize = 16;

fn decoded(function: &Function, at: u64) -> Option<Instruction> {
    let from = usize::try_from(at.checked_sub(function.start)?).ok()?;
    let insn = Decoder::with_ip(64, function.code.get(from..)?, at, DecoderOptions::NONE).decode();
    (!insn.is_invalid()).then_some(insn)
}

/// The table in an operand `[register*8+table]`.
fn indexed(insn: &Instruction) -> Option<u64> {
    let memory = (0..insn.op_count()).any(|op| insn.op_kind(op) == OpKind::Memory);
    let by_index = memory && insn.memory_index() != Register::None && insn.memory_index_scale() == 8;
    (by_index && insn.memory_base() == Register::None).then(|| insn.memory_displacement64())
}

/// Number of entries in a table, of which the last is compared with.
fn limit(insn: &Instruction) -> Option<u64> {
    let last = match insn.op1_kind() {
        OpKind::Immediate8 | OpKind::Immediate8to16 | OpKind::Immediate8to32 | OpKind::Immediate8to64 => {
            u64::from(insn.immediate8())
        }
        OpKind::Immediate16 => insn.immediate16().into(),
        OpKind::Immediate32 | OpKind::Immediate32to64 => insn.immediate32().into(),
        _ => return None,
    };
    (last < LONGEST).then_some(last + 1)
}

fn read(table: u64, entry: Entry, bound: Option<u64>, starts: &[u64], lines: &Lines) -> Vec<u64> {
    let size = if entry == Entry::Distance { 4 } else { 8 };
    let Some((start, bytes)) = lines
        .constants
        .iter()
        .find(|(start, bytes)| table.checked_sub(*start).is_some_and(|at| at < bytes.len() as u64))
    else {
        return Vec::new();
    };
    let from = usize::try_from(table - start).unwrap_or(usize::MAX);
    let entries = bytes.get(from..).unwrap_or(&[]).chunks_exact(size);
    let mut found = Vec::new();
    for bytes in entries.take(usize::try_from(bound.unwrap_or(LONGEST)).unwrap_or(0)) {
        let target = match <[u8; 4]>::try_from(bytes) {
            Ok(bytes) => table.wrapping_add_signed(i32::from_le_bytes(bytes).into()),
            Err(_) => <[u8; 8]>::try_from(bytes).map(u64::from_le_bytes).unwrap_or(0),
        };
        let known = starts.binary_search(&target).is_ok() || bound.is_some() && in_function(target, lines);
        match (known, bound) {
            (true, _) => found.push(target),
            (false, None) => break,
            (false, Some(_)) => return Vec::new(),
        }
    }
    // A single target is no choice, and most likely no table.
    if found.iter().all(|target| Some(target) == found.first()) { Vec::new() } else { found }
}

fn in_function(address: u64, lines: &Lines) -> bool {
    let next = lines.functions.partition_point(|function| function.start <= address);
    let last = next.checked_sub(1).and_then(|last| lines.functions.get(last));
    last.is_some_and(|function| address - function.start < function.code.len() as u64)
}
