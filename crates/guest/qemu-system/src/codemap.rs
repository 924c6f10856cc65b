// SPDX-License-Identifier: GPL-2.0-or-later
//! The code image as it ran. All vCPUs share a dictionary of code fragments. Each vCPU's map lists the stream offset
//! from which a fragment was seen at an address of an address space.
//!
//! A record is written when a block is new to its address space. If it contradicts bytes seen there before (code
//! patching, a reused page table), the page begins a new version: a PSB is put into the stream, and this and all later
//! records of the page are flagged and hold that PSB's offset. So code is constant within a PSB segment, and no decoder
//! has to find a change between packets.
//!
//! Memory is bounded: the address spaces that ran least recently are dropped; most of them are dead. When one comes
//! back after that, or is new, it may hold other code than was recorded. So its records also begin at a PSB.

use std::collections::HashMap;
use std::io::{self, Write};

use kprism_image::is_kernel;

use crate::block::Block;

/// Magic number of `code.dict`.
pub const DICT_MAGIC: &[u8; 8] = b"KPDICT01";
/// Magic number of `cpuN.map`.
pub const MAP_MAGIC: &[u8; 8] = b"KPMAP001";
/// Map record flag: the page's contents changed at the record's offset.
pub const CONFLICT: u32 = 1;
/// Flag for the ring only: the fragment continues in the next page.
pub const CROSSES: u32 = 2;
/// Flag for the ring only: not a fragment, but a note that the address space was dropped.
pub const FORGOTTEN: u32 = 4;
/// Size of a page, bytes.
pub const PAGE: u64 = 4096;
/// Maximum of bytes for one vCPU's address spaces, besides the current one.
const BUDGET: usize = 64 << 20;

/// Writes one dictionary record.
pub fn write_fragment(out: &mut impl Write, id: u32, va: u64, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&id.to_le_bytes())?;
    out.write_all(&(bytes.len() as u16).to_le_bytes())?;
    out.write_all(&[0; 2])?;
    out.write_all(&va.to_le_bytes())?;
    out.write_all(bytes)
}

/// The known bytes of one page.
struct Page {
    /// Offset of the PSB from which they are valid; 0 if from the start.
    from: u64,
    bytes: [u8; PAGE as usize],
    known: [u64; PAGE as usize / 64],
}

/// The known contents of an address space, as seen by one vCPU.
#[derive(Default)]
struct View {
    pages: HashMap<u64, Box<Page>>,
    /// By dictionary id: the address (plus one) at which the fragment was found to match.
    agreed: Vec<u64>,
    /// Other code may have been recorded for this address space. It begins at the next PSB.
    stale: bool,
    /// Stream offset from which its new pages are valid.
    from: u64,
    /// Number of the switch at which it last ran.
    ran: u64,
}

/// One vCPU's knowledge of all address spaces.
pub struct CodeMap {
    kernel: View,
    users: HashMap<u64, View>,
    user: View,
    asid: u64,
    /// Bytes used by `users`.
    held: usize,
    budget: usize,
    /// True once address spaces were dropped.
    forgetful: bool,
    switches: u64,
    /// Maximum of bytes ever used.
    peak: usize,
    /// True if records are for the ring, which needs additional flags.
    for_ring: bool,
    /// Records not taken yet.
    pub out: Vec<u8>,
}

/// Comparison of a block's bytes with those known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    /// The same bytes were seen before.
    Known,
    /// No bytes were seen here before.
    New,
    /// Other bytes were seen here before.
    Conflict,
}

impl Default for CodeMap {
    fn default() -> Self {
        CodeMap {
            kernel: View::default(),
            users: HashMap::new(),
            user: View::default(),
            asid: 0,
            held: 0,
            budget: BUDGET,
            forgetful: false,
            switches: 0,
            peak: 0,
            for_ring: false,
            out: MAP_MAGIC.to_vec(),
        }
    }
}

impl CodeMap {
    /// A map for the ring (`for_ring`) or for the stream's file.
    pub fn new(for_ring: bool) -> Self {
        CodeMap { for_ring, ..Self::default() }
    }

    /// Sets the address space of user addresses.
    pub fn set_cr3(&mut self, cr3: u64) {
        let asid = cr3 & !(PAGE - 1);
        if asid != self.asid {
            self.switches += 1;
            let next = match self.users.remove(&asid) {
                Some(view) => {
                    self.held -= view.footprint();
                    view
                }
                None => View { stale: self.forgetful, ..View::default() },
            };
            let mut old = std::mem::replace(&mut self.user, next);
            old.ran = self.switches;
            self.held += old.footprint();
            self.users.insert(self.asid, old);
            self.asid = asid;
            if self.held > self.budget {
                self.forget();
            }
        }
    }

    /// Drops the address spaces that ran least recently, down to half the budget.
    #[cold]
    fn forget(&mut self) {
        self.peak = self.footprint();
        let mut by_age: Vec<(u64, u64)> = self.users.iter().map(|(&asid, view)| (view.ran, asid)).collect();
        by_age.sort_unstable();
        for (_, asid) in by_age {
            if self.held <= self.budget / 2 {
                break;
            }
            if let Some(view) = self.users.remove(&asid) {
                self.held -= view.footprint();
                // Records of address space 0 are the kernel's, which is never dropped.
                if self.for_ring && asid != 0 {
                    self.record([0, asid, 0], 0, FORGOTTEN);
                }
            }
        }
        self.forgetful = true;
    }

    /// Returns true if fragment `id` was at `va` when it last ran in this address space.
    #[inline(always)]
    pub fn is_known(&self, id: u32, va: u64) -> bool {
        let view = if is_kernel(va) { &self.kernel } else { &self.user };
        view.agreed.get(id as usize).is_some_and(|&a| a == va + 1)
    }

    /// Compares `block`, which is about to run at `va`, with the known bytes.
    pub fn check(&mut self, block: &Block, id: u32, va: u64) -> News {
        if self.is_known(id, va) {
            return News::Known;
        }
        let view = self.view(va);
        if view.stale {
            return News::Conflict;
        }
        view.compare(block, id, va)
    }

    /// Adds a block that is new and writes its record. After a conflict, `psb` is the offset of the PSB right before
    /// the block.
    pub fn learn(&mut self, block: &Block, id: u32, va: u64, psb: u64) {
        let asid = if is_kernel(va) { 0 } else { self.asid };
        let from = self.view(va).learn(block, id, va, psb);
        let crosses = self.for_ring && va % PAGE + block.bytes.len() as u64 > PAGE;
        let flags = if from > 0 { CONFLICT } else { 0 } | if crosses { CROSSES } else { 0 };
        self.record([from, asid, va], id, flags);
    }

    fn record(&mut self, words: [u64; 3], id: u32, flags: u32) {
        self.out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.out.extend(id.to_le_bytes());
        self.out.extend(flags.to_le_bytes());
    }

    fn view(&mut self, va: u64) -> &mut View {
        if is_kernel(va) { &mut self.kernel } else { &mut self.user }
    }

    /// Approximate maximum of memory ever used, bytes.
    pub fn peak(&self) -> usize {
        self.peak.max(self.footprint())
    }

    fn footprint(&self) -> usize {
        self.held + self.kernel.footprint() + self.user.footprint()
    }
}

/// The parts of a block by page: page number, offset in the page, bytes.
fn by_page(block: &Block, va: u64) -> impl Iterator<Item = (u64, usize, &[u8])> {
    let at = (va % PAGE) as usize;
    let (head, tail) = block.bytes.split_at(block.bytes.len().min(PAGE as usize - at));
    let parts = [(va / PAGE, at, head), ((va / PAGE).wrapping_add(1), 0, tail)];
    parts.into_iter().filter(|(_, _, bytes)| !bytes.is_empty())
}

impl Page {
    fn new(from: u64) -> Box<Self> {
        Box::new(Page { from, bytes: [0; PAGE as usize], known: [0; PAGE as usize / 64] })
    }

    fn knows(&self, at: usize) -> bool {
        self.known[at / 64] & 1 << (at % 64) != 0
    }

    fn compare(&self, at: usize, bytes: &[u8]) -> News {
        let mut news = News::Known;
        for (i, &byte) in bytes.iter().enumerate() {
            match (self.knows(at + i), self.bytes[at + i] == byte) {
                (true, true) => {}
                (true, false) => return News::Conflict,
                (false, _) => news = News::New,
            }
        }
        news
    }
}

impl View {
    #[cold]
    fn compare(&mut self, block: &Block, id: u32, va: u64) -> News {
        let news = by_page(block, va)
            .map(|(page, at, bytes)| self.pages.get(&page).map_or(News::New, |p| p.compare(at, bytes)))
            .max()
            .unwrap_or(News::Known);
        if news == News::Known {
            self.agree(id, va);
        }
        news
    }

    /// Adds the block's bytes. Returns the stream offset from which they are valid.
    fn learn(&mut self, block: &Block, id: u32, va: u64, psb: u64) -> u64 {
        let mut from = 0;
        if std::mem::take(&mut self.stale) {
            self.from = psb;
        }
        for (number, at, bytes) in by_page(block, va) {
            let page = self.pages.entry(number).or_insert_with(|| Page::new(self.from));
            if page.compare(at, bytes) == News::Conflict {
                *page = Page::new(psb);
                self.agreed.clear();
            }
            page.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            for i in at..at + bytes.len() {
                page.known[i / 64] |= 1 << (i % 64);
            }
            from = from.max(page.from);
        }
        self.agree(id, va);
        from
    }

    fn footprint(&self) -> usize {
        self.pages.len() * (size_of::<Page>() + 32) + self.agreed.capacity() * 8 + size_of::<Self>()
    }

    fn agree(&mut self, id: u32, va: u64) {
        let id = id as usize;
        if self.agreed.len() <= id {
            self.agreed.resize(id + 1, 0);
        }
        self.agreed[id] = va + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_image::insn::Mode;

    #[test]
    fn tells_new_from_known_from_conflicting() {
        let nop = Block::new(0x1ffe, &[0x90; 4], &[1; 4], Mode::Bits64, 3);
        let half = Block::new(0x1fff, &[0x90; 2], &[1; 2], Mode::Bits64, 3);
        let pause = Block::new(0x2000, &[0xf3, 0x90], &[2], Mode::Bits64, 3);
        let mut map = CodeMap::default();
        let see = |map: &mut CodeMap, block: &Block, id: u32, psb: u64| {
            let news = map.check(block, id, block.va);
            if news != News::Known {
                map.learn(block, id, block.va, psb);
            }
            news
        };
        map.set_cr3(0x5000);
        assert_eq!(see(&mut map, &nop, 0, 10), News::New);
        assert_eq!(see(&mut map, &nop, 0, 20), News::Known);
        assert_eq!(see(&mut map, &half, 1, 30), News::Known, "part of what is known");
        map.set_cr3(0x6000);
        assert_eq!(see(&mut map, &nop, 0, 40), News::New, "another address space");
        map.set_cr3(0x5000);
        assert_eq!(see(&mut map, &pause, 2, 50), News::Conflict);
        assert_eq!(see(&mut map, &nop, 0, 60), News::Conflict, "the old code is back");
        let offsets: Vec<u8> = map.out[8..].chunks(32).map(|r| r[0]).collect();
        assert_eq!(offsets, [0, 0, 50, 60], "a first version holds from the start");
    }

    #[test]
    fn forgets_address_spaces_and_begins_them_again_at_a_psb() {
        let nop = Block::new(0x1000, &[0x90], &[1], Mode::Bits64, 3);
        let mut map = CodeMap { budget: 100_000, ..CodeMap::default() };
        for space in 1..=1000u64 {
            map.set_cr3(space << 12);
            let news = map.check(&nop, 0, nop.va);
            assert_ne!(news, News::Known);
            map.learn(&nop, 0, nop.va, if news == News::Conflict { space } else { 0 });
            assert_eq!(map.check(&nop, 0, nop.va), News::Known);
        }
        assert!(map.peak() < 120_000, "{}", map.peak());
        let offset = |space: usize| map.out[8 + 32 * (space - 1)];
        assert_eq!(offset(1), 0, "nothing was forgotten yet");
        assert_eq!(offset(200), 200, "this could be an old one with other code");
        map.set_cr3(1 << 12);
        assert_eq!(map.check(&nop, 0, nop.va), News::Conflict, "it is one");
        assert!(map.out[8..].chunks(32).all(|r| r[28] & FORGOTTEN as u8 == 0), "nobody wants to know");
    }

    /// The kernel's code stays known, though the number of its address space is that of the first one that ran.
    #[test]
    fn tells_the_ring_of_what_it_forgot() {
        let nop = Block::new(0x1000, &[0x90], &[1], Mode::Bits64, 3);
        let mut map = CodeMap { budget: 100_000, for_ring: true, ..CodeMap::default() };
        for space in 1..=100u64 {
            map.set_cr3(space << 12);
            map.check(&nop, 0, nop.va);
            map.learn(&nop, 0, nop.va, space);
        }
        let forgotten: Vec<u64> = map.out[8..]
            .chunks(32)
            .filter(|r| r[28] & FORGOTTEN as u8 != 0)
            .map(|r| u64::from_le_bytes(r[8..16].try_into().unwrap()))
            .collect();
        assert!(forgotten.starts_with(&[0x1000, 0x2000]), "{forgotten:x?}");
    }
}
