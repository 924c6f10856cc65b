// SPDX-License-Identifier: GPL-2.0-or-later
//! TLB models of a vCPU. They process every access to memory by kernel and user code, and every page from which code
//! runs.
//!
//! On a miss, page sizes and global bits are read from the guest's own page tables. Two kinds of accesses by the
//! processor itself are not seen: the page walker's, which a TLB does not see either, and the pushes at an interrupt,
//! to a stack that the handler's first push touches as well.

use std::ffi::{c_uint, c_void};

use kprism_tlb::{Access, Bank, Geometry, Missed, Page, walk};
use serde_json::{Value, json};

use crate::abi;
use crate::ram::Ram;
use crate::tape::Entry;
use crate::vcpus::vcpu;

/// One vCPU's TLBs.
pub struct Tlb {
    geometries: Vec<Geometry>,
    bank: Bank,
    ram: Ram,
    /// Value of the last load.
    cr3: u64,
    /// Accesses to pages, by kind: for data each access that QEMU reports, for code each block.
    references: [u64; 3],
    /// Number of walks that found no page. The access is then treated as one to a 4K page.
    astray: u64,
}

impl Tlb {
    pub fn new(geometries: &[Geometry]) -> Self {
        Tlb {
            geometries: geometries.to_vec(),
            bank: Bank::new(geometries),
            ram: Ram::default(),
            cr3: 0,
            references: [0; 3],
            astray: 0,
        }
    }

    #[inline(always)]
    fn access(&mut self, va: u64, access: Access) -> Missed {
        let (ram, cr3, astray) = (&mut self.ram, self.cr3, &mut self.astray);
        self.bank.access(va, access, || {
            let mapping = walk(cr3, va, |entry| ram.word(entry));
            mapping.map_or_else(
                || {
                    *astray += 1;
                    Page::K4
                },
                |m| m.page,
            )
        })
    }

    /// Observation begins in this address space. The TLBs' contents are unknown, so they start empty.
    pub fn begin(&mut self, cr3: u64) {
        self.cr3 = cr3;
        self.bank.flush_all();
        // With PCIDs it is known when it comes back.
        self.bank.load_cr3(cr3 & !0xfff);
    }

    /// CR3 was loaded.
    pub fn load_cr3(&mut self, cr3: u64) {
        self.cr3 = cr3;
        self.bank.load_cr3(cr3 & !0xfff);
    }

    /// INVLPG.
    pub fn invalidate(&mut self, va: u64) {
        self.bank.invalidate(va);
    }

    /// CR4 was loaded.
    pub fn flush_all(&mut self) {
        self.bank.flush_all();
    }

    /// The counters of this vCPU.
    pub fn account(&self, cpu: u32) -> Value {
        let by_kind = |n: [u64; 3]| json!({ "load": n[0], "store": n[1], "fetch": n[2] });
        let models: Vec<Value> = self
            .geometries
            .iter()
            .zip(self.bank.counts())
            .map(|(g, c)| {
                json!({
                    "name": g.name, "first_level_misses": by_kind(c.first), "misses": by_kind(c.last),
                    "walk_reads": c.walk_reads,
                })
            })
            .collect();
        json!({
            "cpu": cpu, "references": by_kind(self.references), "looked_up": by_kind(self.bank.looked_up),
            "models": models, "astray_walks": self.astray,
        })
    }
}

/// User data of a callback on an instruction: its index in its block.
pub fn udata(index: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(index)
}

/// Callback: an instruction accessed memory.
pub unsafe extern "C" fn on_memory<const ROUND_ROBIN: bool>(
    cpu: c_uint,
    info: abi::MemInfo,
    va: u64,
    udata: *mut c_void,
) {
    // SAFETY: QEMU calls this on the vCPU's thread.
    let (Some(v), store, shift) = (unsafe {
        (vcpu::<ROUND_ROBIN>(cpu), abi::qemu_plugin_mem_is_store(info), abi::qemu_plugin_mem_size_shift(info))
    }) else {
        return;
    };
    let (true, Some(tlb)) = (v.on, v.tlb.as_deref_mut()) else { return };
    let access = if store { Access::Store } else { Access::Load };
    tlb.references[access as usize] += 1;
    let missed = tlb.access(va, access);
    let next = (va | 0xfff).wrapping_add(1);
    let crosses = (va & 0xfff) + (1 << shift) > 4096;
    let other = crosses.then(|| tlb.access(next, access));
    let index = udata.addr() as u32;
    if missed.is_told() {
        v.push(Entry::Miss { index, va, access, missed });
    }
    if let Some(missed) = other.filter(|m| m.is_told()) {
        v.push(Entry::Miss { index, va: next, access, missed });
    }
}

/// Callback: a block starts, on one or two pages. It runs after the block's own callback.
pub unsafe extern "C" fn on_fetch<const ROUND_ROBIN: bool>(cpu: c_uint, udata: *mut c_void) {
    // SAFETY: as above.
    let Some(v) = (unsafe { vcpu::<ROUND_ROBIN>(cpu) }) else { return };
    let (true, Some(tlb)) = (v.on, v.tlb.as_deref_mut()) else { return };
    // The addresses of its first and last bytes, and the index of the first instruction on the second page.
    let size = udata.addr() as u64 & 0xffff;
    let index = (udata.addr() >> 16) as u32;
    let va = v.va;
    tlb.references[Access::Fetch as usize] += 1;
    let missed = tlb.access(va, Access::Fetch);
    let next = va.wrapping_add(size) & !0xfff;
    let other = (next != va & !0xfff).then(|| tlb.access(next, Access::Fetch));
    if missed.is_told() {
        v.push(Entry::Miss { index: 0, va, access: Access::Fetch, missed });
    }
    if let Some(missed) = other.filter(|m| m.is_told()) {
        v.push(Entry::Miss { index, va: next, access: Access::Fetch, missed });
    }
}

/// User data of [`on_fetch`] for a block: the location of its last byte, and its first instruction on the next page.
pub fn block_udata(va: u64, lens: &[u8]) -> *mut c_void {
    let size: u64 = lens.iter().map(|&l| u64::from(l)).sum();
    let mut at = va & 0xfff;
    // An instruction across the boundary is fetched from both pages.
    let index = lens.iter().take_while(|&&l| {
        at += u64::from(l);
        at <= 4096
    });
    let index = index.count().min(lens.len().saturating_sub(1));
    std::ptr::without_provenance_mut(index << 16 | (size.saturating_sub(1) & 0xffff) as usize)
}
