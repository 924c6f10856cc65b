// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's tables of jump labels (include/linux/jump_label.h): instructions that are no-ops while a key is off.

/// Flag of a key: the label is in code that only runs at boot, or when a module is loaded.
const INIT: u64 = 2;

/// A jump label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Address of the instruction.
    pub nop: u64,
    /// Target of the jump that replaces it.
    pub target: u64,
    /// Address of its key.
    pub key: u64,
    /// True in code that is gone.
    pub gone: bool,
}

/// The labels of a table that is at `start`.
pub fn labels(start: u64, table: &[u8]) -> impl Iterator<Item = Label> {
    // `s32 code, s32 target; long key`, each relative to itself; the key's low bits are flags.
    table.chunks_exact(16).enumerate().map(move |(n, entry)| {
        let at = start.wrapping_add(16 * n as u64);
        let near = |from: usize| {
            let distance =
                i32::from_le_bytes([entry[from], entry[from + 1], entry[from + 2], entry[from + 3]]);
            at.wrapping_add(from as u64).wrapping_add_signed(i64::from(distance))
        };
        let mut key = [0; 8];
        key.copy_from_slice(&entry[8..]);
        let key = u64::from_le_bytes(key);
        Label {
            nop: near(0),
            target: near(4),
            key: at.wrapping_add(8).wrapping_add(key & !3),
            gone: key & INIT != 0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read() {
        let at = 0xffff_ffff_8300_0000_u64;
        let entry = |at: u64, code: u64, target: u64, key: u64, flags: u64| {
            let mut bytes = (code.wrapping_sub(at) as u32).to_le_bytes().to_vec();
            bytes.extend((target.wrapping_sub(at + 4) as u32).to_le_bytes());
            bytes.extend((key.wrapping_sub(at + 8) | flags).to_le_bytes());
            bytes
        };
        let (key, nop) = (0xffff_ffff_8200_0008, 0xffff_ffff_8100_0010);
        let mut table = entry(at, nop, nop + 0x40, key, 1);
        table.extend(entry(at + 16, nop + 8, nop - 0x80, key, 2));
        table.extend([0; 7]);
        let first = Label { nop, target: nop + 0x40, key, gone: false };
        let second = Label { nop: nop + 8, target: nop - 0x80, key, gone: true };
        assert_eq!(labels(at, &table).collect::<Vec<_>>(), [first, second]);
    }
}
