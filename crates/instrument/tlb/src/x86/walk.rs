// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page walk of 4-level paging (SDM volume 3, 4.5). Input: CR3, an address and a function that reads physical
//! memory. Output: the page, and the address of its entry.

use crate::model::geometry::PageSize;
use crate::model::tlb::Page;

const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
/// Bits 51 to 12: the address of the next table, or of the page.
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// A mapped page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Its size, and whether it is global.
    pub page: Page,
    /// Physical address of the entry that maps it.
    pub entry: u64,
    /// Physical address to which the virtual one translates.
    pub physical: u64,
}

/// Walks the tables. Returns `None` if an entry is not present, or if memory cannot be read.
pub fn walk(cr3: u64, va: u64, mut read: impl FnMut(u64) -> Option<u64>) -> Option<Mapping> {
    let mut table = cr3 & FRAME;
    for level in (0..4).rev() {
        let shift = 12 + 9 * level;
        let entry = table + (va >> shift & 511) * 8;
        let value = read(entry)?;
        if value & PRESENT == 0 {
            return None;
        }
        let size = match level {
            0 => PageSize::K4,
            1 if value & LARGE != 0 => PageSize::M2,
            2 if value & LARGE != 0 => PageSize::G1,
            _ => {
                table = value & FRAME;
                continue;
            }
        };
        let within = size.bytes() - 1;
        let page = Page { size, global: value & GLOBAL != 0 };
        return Some(Mapping { page, entry, physical: value & FRAME & !within | va & within });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn finds_pages_of_every_size() {
        let memory = HashMap::from([
            (0x1000, 0x2003),               // PML4[0]
            (0x2000, 0x3003),               // PDPT[0]
            (0x2008, 0x4000_0000 | 0x183),  // PDPT[1]: 1G, global
            (0x3000, 0x4003),               // PD[0]
            (0x3008, 0x80_0000 | 0x83),     // PD[1]: 2M
            (0x4000 + 5 * 8, 0x9_9000 | 3), // PT[5]
            (0x4000 + 6 * 8, 0x9_a000),     // PT[6]: not present
        ]);
        let walk = |va| walk(0x1018, va, |a| memory.get(&a).copied());
        let m = walk(0x5123).unwrap();
        assert_eq!((m.page, m.entry, m.physical), (Page::K4, 0x4028, 0x99123));
        let m = walk(0x20_0456).unwrap();
        assert_eq!((m.page.size, m.entry, m.physical), (PageSize::M2, 0x3008, 0x80_0456));
        let m = walk(0x4765_4321).unwrap();
        assert_eq!((m.page.global, m.page.size, m.physical), (true, PageSize::G1, 0x4765_4321));
        assert_eq!(walk(0x6000), None, "not present");
        assert_eq!(walk(0x7f00_0000_0000), None, "not readable");
    }
}
