// SPDX-License-Identifier: GPL-2.0-or-later
//! The interrupt descriptor table: decodes each vector's gate address from guest memory.

use kprism_image::is_kernel;

/// Address at which Linux maps its IDT read-only (`CPU_ENTRY_AREA_RO_IDT_VADDR`) after boot.
pub const LINUX_IDT: u64 = 0xffff_fe00_0000_0000;

/// Vector of page faults.
pub const PAGE_FAULT: u8 = 14;
/// Size of a full table in bytes: 256 gates of 16 bytes.
pub const SIZE: usize = 4096;

/// Gate addresses by vector. Invalid gates (not present, or not in the kernel's half) are left out.
pub fn gates(table: &[u8]) -> impl Iterator<Item = (u8, u64)> + '_ {
    table.chunks_exact(16).enumerate().take(256).filter_map(|(vector, gate)| {
        let lo = u64::from(u16::from_le_bytes([gate[0], gate[1]]));
        let mid = u64::from(u16::from_le_bytes([gate[6], gate[7]]));
        let hi = u64::from(u32::from_le_bytes([gate[8], gate[9], gate[10], gate[11]]));
        let present = gate[5] & 0x80 != 0 && matches!(gate[5] & 0x1f, 0xe | 0xf);
        let va = hi << 32 | mid << 16 | lo;
        (present && is_kernel(va)).then_some((vector as u8, va))
    })
}

/// Returns true if the processor pushes an error code for this vector (SDM vol. 3, table 6-1).
pub fn has_error_code(vector: u8) -> bool {
    matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_gates() {
        let mut table = vec![0u8; SIZE];
        table[14 * 16..15 * 16]
            .copy_from_slice(&[0x10, 0x0c, 0x10, 0, 0, 0x8e, 0x20, 0x81, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(gates(&table).collect::<Vec<_>>(), [(14, 0xffff_ffff_8120_0c10)]);
        assert_eq!(gates(&[0xff; 24]).count(), 0, "a stump of a table is no harm");
    }
}
