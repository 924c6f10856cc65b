// SPDX-License-Identifier: MIT OR Apache-2.0
//! Translates virtual addresses of an x86-64 kernel through its page tables in physical memory (SDM volume 3, 4.5).

use std::collections::HashMap;

use crate::{Memory, Physical, Segment};

/// Virtual base of the kernel's image (`__START_KERNEL_map`).
pub const IMAGE: u64 = 0xffff_ffff_8000_0000;
const PAGE: u64 = 4096;
/// Address bits of a page table entry.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

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
        Self::at(physical, root, five_levels)
    }

    /// `root` is the physical address of the top table, as in CR3.
    pub fn at(physical: P, root: u64, five_levels: bool) -> Self {
        Self { physical, root: root & ADDRESS, five_levels, known: HashMap::new() }
    }

    /// The mapped ranges of `[from, to)`: virtual address, physical address and size of each. Pages that are neighbours in
    /// both are one range.
    ///
    /// # Errors
    /// A page table cannot be read, or there are more than `most` ranges.
    pub fn ranges(&mut self, from: u64, to: u64, most: usize) -> Result<Vec<(u64, u64, u64)>, String> {
        let mut found: Vec<(u64, u64, u64)> = Vec::new();
        let mut at = from;
        while at < to {
            let (page, size) = match self.walk(at)? {
                Walked::Page(page, size) => (Some(page & !(size - 1)), size),
                Walked::Nothing(size) => (None, size),
            };
            let start = at & !(size - 1);
            if let Some(page) = page {
                let full = found.len() == most;
                match found.last_mut() {
                    Some((va, pa, length)) if *va + *length == start && *pa + *length == page => {
                        *length += size;
                    }
                    _ if full => return Err(format!("more than {most} ranges are mapped")),
                    _ => found.push((start, page, size)),
                }
            }
            match start.checked_add(size) {
                Some(next) => at = next,
                None => break,
            }
        }
        Ok(found)
    }

    /// The contents of `[from, to)` where something is mapped; at most `most` ranges, and bytes.
    ///
    /// # Errors
    /// A table or page cannot be read, or there is more.
    pub fn contents(&mut self, from: u64, to: u64, most: (usize, u64)) -> Result<Vec<Segment>, String> {
        let ranges = self.ranges(from, to, most.0)?;
        let bytes: u64 = ranges.iter().map(|(_, _, size)| size).sum();
        if bytes > most.1 {
            return Err(format!("{} MiB are mapped, more than {}", bytes >> 20, most.1 >> 20));
        }
        let mut found: Vec<Segment> = Vec::new();
        for (start, physical, size) in ranges {
            let follows = found.last().filter(|last| last.start + last.bytes.len() as u64 == start);
            if follows.is_none() {
                found.push(Segment { start, bytes: Vec::new() });
            }
            let Some(segment) = found.last_mut() else { continue };
            let old = segment.bytes.len();
            segment.bytes.resize(old + size as usize, 0);
            self.physical.read(physical, &mut segment.bytes[old..])?;
        }
        Ok(found)
    }

    fn page(&mut self, address: u64) -> Result<u64, String> {
        let page = address & !(PAGE - 1);
        if let Some(&known) = self.known.get(&page) {
            return Ok(known);
        }
        match self.walk(address)? {
            Walked::Page(found, _) => {
                let found = found & !(PAGE - 1);
                self.known.insert(page, found);
                Ok(found)
            }
            Walked::Nothing(_) => Err("nothing is mapped there".into()),
        }
    }

    fn walk(&mut self, address: u64) -> Result<Walked, String> {
        let mut table = self.root;
        let top = if self.five_levels { 48 } else { 39 };
        for shift in (12..=top).rev().step_by(9) {
            let mut entry = [0; 8];
            self.physical.read(table + (address >> shift & 511) * 8, &mut entry)?;
            let entry = u64::from_le_bytes(entry);
            let size = 1u64 << shift;
            if entry & 1 == 0 {
                return Ok(Walked::Nothing(size));
            }
            let is_page = shift == 12 || (shift <= 30 && entry & 0x80 != 0);
            if is_page {
                let within = size - 1;
                return Ok(Walked::Page(entry & ADDRESS & !within | address & within, size));
            }
            table = entry & ADDRESS;
        }
        Ok(Walked::Nothing(PAGE))
    }
}

/// What page tables say of an address.
enum Walked {
    /// Its physical address, and the size of its page.
    Page(u64, u64),
    /// Nothing is mapped in the aligned range of this size around it.
    Nothing(u64),
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
        let ranges = memory.ranges(IMAGE, IMAGE + (1 << 30), 9).unwrap();
        assert_eq!(
            ranges,
            [(0xffff_ffff_8100_0000, 0x20_0000, 0x20_0000), (0xffff_ffff_8120_0000, 0x5000, 0x1000)]
        );
        assert!(memory.ranges(IMAGE, u64::MAX, 1).is_err());
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
