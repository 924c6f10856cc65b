// SPDX-License-Identifier: MIT OR Apache-2.0
//! Translates virtual addresses of an x86-64 kernel through its page tables in physical memory (SDM volume 3, 4.5).

use std::collections::HashMap;

use crate::memory::Memory;

/// Virtual base of the kernel's image (`__START_KERNEL_map`).
const IMAGE: u64 = 0xffff_ffff_8000_0000;
const PAGE: u64 = 4096;
/// Address bits of a page table entry.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Access to physical memory.
pub trait Physical {
    /// Fills `into` from `address`.
    ///
    /// # Errors
    /// A message: there is no such memory, or it cannot be read.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String>;
}

/// Virtual memory through page tables. Each page is translated once.
#[derive(Debug)]
pub struct Paged<P> {
    physical: P,
    root: u64,
    five_levels: bool,
    known: HashMap<u64, u64>,
}

impl<P: Physical> Paged<P> {
    /// `table` is the address of `init_top_pgt` (`swapper_pg_dir`). `phys_base` is the value of the kernel's variable
    /// of that name: the displacement of the image in physical memory.
    pub fn new(physical: P, table: u64, phys_base: u64, five_levels: bool) -> Self {
        let root = table.wrapping_sub(IMAGE).wrapping_add(phys_base) & ADDRESS;
        Self { physical, root, five_levels, known: HashMap::new() }
    }

    fn page(&mut self, address: u64) -> Result<u64, String> {
        let page = address & !(PAGE - 1);
        if let Some(&known) = self.known.get(&page) {
            return Ok(known);
        }
        let mut table = self.root;
        let top = if self.five_levels { 48 } else { 39 };
        for shift in (12..=top).rev().step_by(9) {
            let mut entry = [0; 8];
            self.physical.read(table + (address >> shift & 511) * 8, &mut entry)?;
            let entry = u64::from_le_bytes(entry);
            if entry & 1 == 0 {
                return Err("nothing is mapped there".into());
            }
            let is_page = shift == 12 || (shift <= 30 && entry & 0x80 != 0);
            if is_page {
                let within = (1u64 << shift) - 1;
                let found = entry & ADDRESS & !within | page & within;
                self.known.insert(page, found);
                return Ok(found);
            }
            table = entry & ADDRESS;
        }
        Err("nothing is mapped there".into())
    }
}

impl<P: Physical> Memory for Paged<P> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        let mut at = address;
        let mut rest = into;
        while !rest.is_empty() {
            let within = at % PAGE;
            let (piece, more) = rest.split_at_mut(rest.len().min((PAGE - within) as usize));
            let page = self.page(at)?;
            self.physical.read(page + within, piece)?;
            at = at.wrapping_add(piece.len() as u64);
            rest = more;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ram(Vec<u8>);

    impl Physical for Ram {
        fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
            let at = address as usize;
            into.copy_from_slice(self.0.get(at..at + into.len()).ok_or("no such memory")?);
            Ok(())
        }
    }

    #[test]
    fn small_and_large_pages() {
        let mut ram = vec![0; 0x40_0000];
        let mut entry = |table: usize, index: usize, value: u64| {
            ram[table + index * 8..][..8].copy_from_slice(&value.to_le_bytes());
        };
        entry(0x1000, 511, 0x2003);
        entry(0x2000, 510, 0x3003);
        // 2 MiB at 0xffffffff81000000, followed by 4 KiB.
        entry(0x3000, 8, 0x20_0083);
        entry(0x3000, 9, 0x4003);
        entry(0x4000, 0, 0x8000_0000_0000_5003);
        (ram[0x20_0ffe], ram[0x20_1000], ram[0x3f_ffff], ram[0x5000]) = (1, 2, 3, 4);
        let mut memory = Paged::new(Ram(ram), IMAGE + 0x1000, 0, false);
        let mut bytes = [0; 3];
        memory.read(0xffff_ffff_8100_0ffe, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 0, 2]);
        memory.read(0xffff_ffff_811f_ffff, &mut bytes[..2]).unwrap();
        assert_eq!(bytes[..2], [3, 4]);
        assert!(memory.read(0xffff_ffff_8120_1000, &mut bytes).is_err());
        assert!(memory.read(0x1000, &mut bytes).is_err());
    }

    /// As with KASLR: the image is displaced in physical memory, and independently in virtual memory.
    #[test]
    fn five_levels_of_an_image_that_was_moved() {
        const MOVED: u64 = 0x1c00_0000;
        // Value of the kernel's `phys_base`. It is negative, because the physical displacement is smaller than the
        // virtual one.
        const PHYS_BASE: u64 = 0u64.wrapping_sub(MOVED - 0x8000);
        let mut ram = vec![0; 0x40_0000];
        let mut entry = |table: usize, index: usize, value: u64| {
            ram[table + index * 8..][..8].copy_from_slice(&value.to_le_bytes());
        };
        entry(0x9000, 511, 0x2003);
        entry(0x2000, 511, 0x3003);
        entry(0x3000, 510, 0x4003);
        // 2 MiB of the displaced image, and 2 MiB at its original address.
        entry(0x4000, ((MOVED + 0x100_0000) >> 21) as usize & 511, 0x80 | 3);
        entry(0x4000, 0, 0x20_0083);
        (ram[0x10], ram[0x20_0010]) = (7, 9);
        let mut memory = Paged::new(Ram(ram), IMAGE + MOVED + 0x1000, PHYS_BASE, true);
        let mut byte = [0];
        memory.read(IMAGE + MOVED + 0x100_0010, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        memory.read(IMAGE + 0x10, &mut byte).unwrap();
        assert_eq!(byte, [9]);
        assert!(memory.read(IMAGE + MOVED + 0x120_0010, &mut byte).is_err());
    }
}
