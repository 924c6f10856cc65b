// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions of code without symbols: wherever a direct call leads, a function begins.
//!
//! Input: the fragments of code that ran, each of which ends in a branch. Output: addresses. Functions that are only called
//! through pointers are not found; their code counts for the function before them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::names::Binding;
use super::table::{Symbol, Table};
use crate::insn::{Kind, Mode, classify};
use crate::maps::{Dict, MapRecord};

/// Length beyond which code is not counted for the function before it.
const LONGEST: u64 = 64 << 10;

/// Addresses to which the fragments of a map call.
pub fn targets(dict: &Dict, map: &[MapRecord]) -> BTreeSet<u64> {
    map.iter().filter_map(|record| target(dict.bytes_of(record)?, record.va)).collect()
}

/// The target of the call in which a fragment ends. The mode is the first in which its instructions end where it ends.
fn target(bytes: &[u8], va: u64) -> Option<u64> {
    [Mode::Bits64, Mode::Bits32, Mode::Bits16]
        .into_iter()
        .find_map(|mode| {
            let mut at = 0;
            let mut last = None;
            while at < bytes.len() {
                let insn = classify(&bytes[at..], va.wrapping_add(at as u64), mode).ok()?;
                (at, last) = (at + usize::from(insn.len), Some(insn.kind));
            }
            Some(last)
        })?
        .and_then(|kind| match kind {
            Kind::Call { target } if target != va.wrapping_add(bytes.len() as u64) => Some(target),
            _ => None,
        })
}

/// Functions that begin at these addresses, named by them.
pub(super) fn table(starts: &BTreeSet<u64>) -> Table {
    let symbol = |&start: &u64| {
        let next = starts.range(start.saturating_add(1)..).next().copied().unwrap_or(u64::MAX);
        Symbol {
            start,
            size: (next - start).min(LONGEST),
            name: Cow::Owned(format!("{start:#x}")),
            binding: Binding::Local,
            code: true,
        }
    };
    Table::build(starts.iter().map(symbol).collect(), u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_end_fragments() {
        // push rbp; call +0x10
        assert_eq!(target(&[0x55, 0xe8, 0x10, 0, 0, 0], 0x1000), Some(0x1016));
        // mov eax, 0x10e8; jmp: the byte e8 alone is no call.
        assert_eq!(target(&[0xb8, 0xe8, 0x10, 0, 0, 0xeb, 0xfe], 0x1000), None);
        // call of the next instruction, to know where it is
        assert_eq!(target(&[0xe8, 0, 0, 0, 0], 0x1000), None);
        // les is no instruction of 64-bit code.
        assert_eq!(target(&[0xc4, 0x06, 0xe8, 0xf0, 0xff, 0xff, 0xff], 0x1000), Some(0xff7));
        assert_eq!(target(&[], 0x1000), None);
    }

    #[test]
    fn functions_end_at_the_next_or_after_64_kib() {
        let table = table(&[0x1000, 0x1020, 0x90_0000].into());
        let name = |va| Some(table.functions()[table.find(va)?.func as usize].name.clone());
        assert_eq!(name(0xfff), None);
        assert_eq!(name(0x101f).as_deref(), Some("0x1000"));
        assert_eq!(name(0x1_101f).as_deref(), Some("0x1020"));
        assert_eq!(name(0x1_1020), None);
        assert_eq!(name(0x90_ffff).as_deref(), Some("0x900000"));
    }
}
