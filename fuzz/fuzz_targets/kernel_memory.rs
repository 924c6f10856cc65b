// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as the image of a kernel in memory: an error, or symbols, types and modules, with text of them.
#![no_main]

use kprism_kmem::paging::{IMAGE, Paged};
use kprism_kmem::{Kernel, Physical, Segment, kallsyms};
use libfuzzer_sys::fuzz_target;

/// Physical addresses: a page for each level of the page tables, and then the image in pages of 2 MiB.
const PAGE: u64 = 1 << 12;
const LARGE: u64 = 2 << 20;
const PRESENT: u64 = 1;
const IS_LARGE: u64 = 1 << 7;

struct Machine<'b>(&'b [u8]);

impl Physical for Machine<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        into.fill(0);
        let pages = (self.0.len() as u64).div_ceil(LARGE).clamp(1, 8);
        for (at, byte) in (address..).zip(into) {
            let (page, entry) = (at / PAGE, at % PAGE / 8);
            let word = match (page, entry) {
                (0, 511) => PAGE | PRESENT,
                (1, 510) => 2 * PAGE | PRESENT,
                (2, entry) if entry < pages => (entry + 1) * LARGE | PRESENT | IS_LARGE,
                _ => 0,
            };
            *byte = match at.checked_sub(LARGE) {
                Some(at) => self.0.get(at as usize).copied().unwrap_or(0),
                None => word.to_le_bytes()[(at % 8) as usize],
            };
        }
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    kallsyms::find(&[Segment { start: IMAGE, bytes: bytes.to_vec() }]).ok();
    let mut memory = Paged::at(Machine(bytes), 0, false);
    if let Ok(kernel) = Kernel::find(&mut memory) {
        let lines = kernel.kallsyms().lines().count();
        assert!(lines <= kernel.symbols.len() + kernel.modules.iter().map(|module| module.symbols.len()).sum::<usize>());
        kernel.modules();
        kernel.release();
    }
});
