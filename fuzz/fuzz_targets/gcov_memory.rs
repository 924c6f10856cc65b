// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a kernel's memory and as a core file of it: an error with its place, or counters, of which there are no
//! more than a walk is allowed to meet.
#![no_main]

use kprism_gcov::memory::{self, Roots};
use kprism_kmem::elf::Core;
use kprism_kmem::paging::Paged;
use kprism_kmem::{Memory, Physical};
use libfuzzer_sys::fuzz_target;

/// Where the bytes are.
const BASE: u64 = 0xffff_ffff_8100_0000;

struct Flat<'b>(&'b [u8], u64);

impl Flat<'_> {
    fn get(&self, address: u64, into: &mut [u8]) -> Result<(), String> {
        let at = address.checked_sub(self.1).and_then(|at| usize::try_from(at).ok()).ok_or("below")?;
        let bytes = at.checked_add(into.len()).and_then(|end| self.0.get(at..end)).ok_or("above")?;
        into.copy_from_slice(bytes);
        Ok(())
    }
}

impl Memory for Flat<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        self.get(address, into)
    }
}

impl Physical for Flat<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        self.get(address, into)
    }
}

fuzz_target!(|bytes: &[u8]| {
    Roots::find(bytes);
    if let Ok(core) = Core::read(bytes) {
        core.value("SYMBOL(swapper_pg_dir)", 16);
        core.virtual_place(BASE);
    }
    for nodes in [None, Some(BASE + 0x600)] {
        let roots = Roots { infos: BASE, nodes };
        memory::read(&mut Flat(bytes, BASE), roots).ok();
        // The same bytes as physical memory, with their own page tables at 4096.
        let mut paged = Paged::new(Flat(bytes, 0), 0xffff_ffff_8000_1000, 0, bytes.len() % 2 == 1);
        memory::read(&mut paged, roots).ok();
    }
});
