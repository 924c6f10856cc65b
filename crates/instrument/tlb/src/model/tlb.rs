// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates a processor's TLBs: accesses in, hits and misses out.
//!
//! Rules (SDM volume 3, 4.10; AMD APM volume 2, 5.5):
//! - all arrays of a level are looked up at once, for every page size that they hold, because only the entry knows the
//!   page size;
//! - a hit on a lower level fills every level above it; a walk fills every level;
//! - a page that no array of the first level can hold is split into smaller pieces there; lower levels skip it;
//! - if several arrays of a level can hold a page, the bit of its number above the set's index selects one;
//! - a load of CR3 drops all but global entries, or none with PCIDs; INVLPG drops a page's entries of every size and
//!   all walk caches; a change of CR4 drops all.

use kprism_image::is_kernel;

use crate::model::array::{Array, key};
use crate::model::geometry::{Access, Geometry, MAX_ARRAYS, PageSize};

/// A page as mapped by the page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Its size.
    pub size: PageSize,
    /// Global: loads of CR3 keep its entries.
    pub global: bool,
}

impl Page {
    /// A 4K page that is not global.
    pub const K4: Page = Page { size: PageSize::K4, global: false };
}

/// Result of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Hit on this level; 0 is the first.
    Hit(u8),
    /// Missed on all levels: the page tables were walked.
    Miss,
}

/// Counters. Hits of the first level are not counted here; the caller that filters them counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Misses of the first level, by access.
    pub first: [u64; 3],
    /// Misses of all levels, by access.
    pub last: [u64; 3],
    /// Page table entries that walks read from memory, after the walk caches.
    pub walk_reads: u64,
}

#[derive(Debug, Clone, Copy)]
struct Probe {
    array: u8,
    size: PageSize,
}

/// The lookups of one access, stored inline because every access reads them.
#[derive(Debug, Clone, Copy)]
struct Probes {
    len: u8,
    all: [Probe; 3 * MAX_ARRAYS],
}

impl Probes {
    const NONE: Probes = Probes { len: 0, all: [Probe { array: 0, size: PageSize::K4 }; 3 * MAX_ARRAYS] };

    fn push(&mut self, probe: Probe) {
        self.all[usize::from(self.len)] = probe;
        self.len += 1;
    }

    #[inline(always)]
    fn get(&self) -> &[Probe] {
        &self.all[..usize::from(self.len)]
    }
}

/// The lookups and fills of a level for one kind of access.
#[derive(Debug, Clone)]
struct Service {
    probes: Probes,
    /// The probes of arrays that ever held an entry. Other arrays need no lookup.
    active: Probes,
    /// By page size: the arrays that can hold such a page, and the size at which they hold it.
    takes: [Probes; 3],
}

/// Scratch for [`Tlb::access_all`]: indices of accesses.
#[derive(Debug, Clone, Default)]
struct Together {
    /// Accesses not found on any level so far.
    missing: Vec<u32>,
    /// Those among them that belong to one array.
    chosen: Vec<u32>,
    /// By access: true if found on this level.
    hits: Vec<bool>,
}

/// PCIDs that Linux uses on each CPU (`TLB_NR_DYN_ASIDS`), though a processor has 4096.
const PCIDS: usize = 6;

/// The TLBs of one processor (thread).
#[derive(Debug, Clone)]
pub struct Tlb {
    arrays: Vec<Array>,
    /// By level and access.
    services: Vec<[Service; 3]>,
    /// By level of the page tables, from the PDE cache up.
    walk: [Option<Array>; 3],
    caches_walks: bool,
    pcid: bool,
    /// The tag of the address space that runs: 0 without PCIDs, else its place in `spaces`, from 1.
    space: u16,
    /// With PCIDs: the address spaces that have one.
    spaces: [Option<u64>; PCIDS],
    /// The place that the next new address space takes.
    next_space: usize,
    together: Together,
    /// The page of the last access that missed the first level.
    pub page: Page,
    /// Misses and page table reads since the start.
    pub counts: Counts,
}

impl Tlb {
    /// Empty TLBs.
    pub fn new(geometry: &Geometry) -> Self {
        let mut arrays = Vec::new();
        let mut services = Vec::new();
        for (number, level) in geometry.levels.iter().enumerate() {
            let base = arrays.len();
            arrays.extend(level.iter().map(Array::new));
            services.push(Access::ALL.map(|access| service(level, base, access, number == 0)));
        }
        let w = geometry.walk_caches;
        let walk = [w.pde, w.pdpte, w.pml4e].map(|entries| {
            let array = crate::model::geometry::Array {
                entries,
                ways: 0,
                pages: vec![PageSize::K4],
                serves: Access::ALL.to_vec(),
                policy: crate::model::geometry::Policy::Lru,
            };
            (entries > 0).then(|| Array::new(&array))
        });
        Tlb {
            arrays,
            services,
            caches_walks: walk.iter().any(Option::is_some),
            walk,
            pcid: geometry.pcid,
            space: 0,
            spaces: [None; PCIDS],
            next_space: 0,
            together: Together::default(),
            page: Page::K4,
            counts: Counts::default(),
        }
    }

    /// An access to one page. `page` walks the page tables; it is called only if no level has the page.
    #[inline(always)]
    pub fn access(&mut self, va: u64, access: Access, page: impl FnOnce() -> Page) -> Outcome {
        let space = self.space_of(va);
        for probe in self.services[0][access as usize].active.get() {
            if self.arrays[probe.array as usize].hit(key(va, probe.size, space)).is_some() {
                return Outcome::Hit(0);
            }
        }
        self.below(0, va, access, space, page)
    }

    /// Performs many accesses to 4K pages that are not global, one after the other, as [`access`](Tlb::access). No
    /// other pages and no other address space may ever have been accessed. `each` gets the index of every access that
    /// missed the first level, and then of every one that missed all levels.
    #[inline(always)]
    pub(crate) fn access_all(
        &mut self,
        vas: &[u64],
        kinds: &[Access],
        only_data: bool,
        mut each: impl FnMut(usize, Outcome),
    ) {
        let all = vas.len().min(kinds.len());
        let (vas, kinds) = (&vas[..all], &kinds[..all]);
        let Together { mut missing, mut chosen, mut hits } = std::mem::take(&mut self.together);
        chosen.resize(all, 0);
        // Everything is looked up on the first level, without having missed anywhere.
        missing.clear();
        let key = |i: u32| key(vas[i as usize], PageSize::K4, 0);
        // With pages of one size, a level's contents do not depend on the other levels, nor an array's on its
        // neighbours. So arrays are processed one after the other.
        for level in 0..self.services.len() {
            let takes = [0, 1, 2].map(|kind: usize| self.services[level][kind].takes[0]);
            match (takes[0].get(), takes[1].get()) {
                ([load], [store]) if only_data && load.array == store.array => {
                    let array = &mut self.arrays[load.array as usize];
                    let mut missed = 0;
                    let mut note = |i: u32, hit: bool| {
                        chosen[missed] = i;
                        missed += usize::from(!hit);
                    };
                    match level {
                        0 => array.hit_or_fill_all(0..all as u32, key, &mut note),
                        _ => array.hit_or_fill_all(missing.iter().copied(), key, &mut note),
                    }
                    std::mem::swap(&mut missing, &mut chosen);
                    chosen.resize(all, 0);
                    missing.truncate(missed);
                }
                _ => {
                    if level == 0 {
                        missing.extend(0..all as u32);
                    }
                    let array_of = |i: u32| match takes[kinds[i as usize] as usize].get() {
                        [] => u8::MAX,
                        [one] => one.array,
                        more => more[(vas[i as usize] >> 19) as usize % more.len()].array,
                    };
                    hits.clear();
                    hits.resize(all, false);
                    let mut wanted = missing.iter().fold(0u64, |set, &i| set | 1 << (array_of(i) & 63));
                    while wanted != 0 {
                        let number = wanted.trailing_zeros() as u8;
                        wanted &= wanted - 1;
                        let Some(array) = self.arrays.get_mut(usize::from(number)) else { continue };
                        let mut count = 0;
                        for &i in &missing {
                            chosen[count] = i;
                            count += usize::from(array_of(i) == number);
                        }
                        let chosen = chosen[..count].iter().copied();
                        array.hit_or_fill_all(chosen, key, |i, hit| hits[i as usize] = hit);
                    }
                    missing.retain(|&i| !hits[i as usize]);
                }
            }
            if level == 0 {
                for &i in &missing {
                    self.counts.first[kinds[i as usize] as usize] += 1;
                    each(i as usize, Outcome::Hit(1));
                }
            }
        }
        for &i in &missing {
            let va = vas[i as usize];
            self.counts.last[kinds[i as usize] as usize] += 1;
            self.walk(va, 0, Page::K4);
            each(i as usize, Outcome::Miss);
        }
        self.together = Together { missing, chosen, hits };
    }

    /// The size of the page at `va` in the first level, if it is there.
    pub fn held(&mut self, va: u64, access: Access) -> Option<PageSize> {
        let space = self.space_of(va);
        let probes = self.services[0][access as usize].active.get();
        if let [one] = probes {
            return Some(one.size);
        }
        let held =
            probes.iter().find(|p| self.arrays[p.array as usize].hit(key(va, p.size, space)).is_some());
        held.map(|p| p.size)
    }

    /// An access that is known to have missed the first level. That level stays unchanged.
    pub fn access_below(&mut self, va: u64, access: Access, page: impl FnOnce() -> Page) -> Outcome {
        let space = self.space_of(va);
        self.below(1, va, access, space, page)
    }

    /// Looks up the levels below `top`, and fills.
    #[inline(always)]
    fn below(
        &mut self,
        top: usize,
        va: u64,
        access: Access,
        space: u16,
        page: impl FnOnce() -> Page,
    ) -> Outcome {
        self.counts.first[access as usize] += 1;
        for level in 1..self.services.len() {
            let probes = self.services[level][access as usize].active.get();
            let found = probes.iter().find_map(|probe| {
                let global = self.arrays[probe.array as usize].hit(key(va, probe.size, space))?;
                Some(Page { size: probe.size, global })
            });
            if let Some(page) = found {
                self.page = page;
                self.fill(top..level, va, access, space, page);
                return Outcome::Hit(level as u8);
            }
        }
        self.counts.last[access as usize] += 1;
        let page = page();
        self.page = page;
        self.walk(va, space, page);
        self.fill(top..self.services.len(), va, access, space, page);
        Outcome::Miss
    }

    #[inline(always)]
    fn fill(&mut self, levels: std::ops::Range<usize>, va: u64, access: Access, space: u16, page: Page) {
        let mut begun = false;
        for service in &self.services[levels] {
            let takes = service[access as usize].takes[page.size as usize].get();
            let Some(first) = takes.first() else { continue };
            let number = va >> first.size.shift();
            let bank = match takes.len() {
                1 => first,
                n => &takes[(number >> 7) as usize % n],
            };
            let array = &mut self.arrays[bank.array as usize];
            begun |= array.is_unused();
            array.fill(key(va, bank.size, space), page.global);
        }
        if begun {
            self.activate();
        }
    }

    #[cold]
    fn activate(&mut self) {
        for service in self.services.iter_mut().flatten() {
            service.active = Probes::NONE;
            for probe in service.probes.get() {
                if !self.arrays[probe.array as usize].is_unused() {
                    service.active.push(*probe);
                }
            }
        }
    }

    /// Counts the entries that the walk reads, and fills the walk caches.
    #[inline(always)]
    fn walk(&mut self, va: u64, space: u16, page: Page) {
        if self.caches_walks {
            return self.walk_cached(va, space, page);
        }
        self.counts.walk_reads += 4 - page.size as u64;
    }

    #[inline(never)]
    fn walk_cached(&mut self, va: u64, space: u16, page: Page) {
        let mut reads = 1;
        // Levels above the entry that maps the page. For 2M pages there is no page table, and so on.
        for level in page.size as usize..3 {
            let tag = key(va >> (9 * (level + 1)), PageSize::K4, space);
            if let Some(cache) = &mut self.walk[level] {
                if cache.hit(tag).is_some() {
                    break;
                }
                cache.fill(tag, page.global);
            }
            reads += 1;
        }
        self.counts.walk_reads += reads;
    }

    /// With PCIDs the kernel's half is common to all address spaces.
    #[inline(always)]
    fn space_of(&self, va: u64) -> u16 {
        if is_kernel(va) { 0 } else { self.space }
    }

    /// CR3 was loaded with address space `space`.
    ///
    /// With PCIDs it does what Linux does (`choose_new_asid`, `arch/x86/mm/tlb.c`): a space that still has its PCID keeps its entries
    /// (bit 63 of CR3), a new one takes the PCIDs in turn and drops what the one before it left. A load of the space that
    /// runs already is the kernel's flush of it.
    pub fn load_cr3(&mut self, space: u64) {
        let arrays = self.arrays.iter_mut().chain(self.walk.iter_mut().flatten());
        if !self.pcid {
            return arrays.for_each(Array::drop_unless_global);
        }
        let tag = |place: usize| place as u16 + 1;
        let known = self.spaces.iter().position(|s| *s == Some(space));
        let place = known.unwrap_or(self.next_space);
        if known.is_none() || self.space == tag(place) {
            arrays.for_each(|array| array.drop_space(tag(place)));
        }
        if known.is_none() {
            self.spaces[place] = Some(space);
            self.next_space = (place + 1) % PCIDS;
        }
        self.space = tag(place);
    }

    /// INVLPG, or an invalidation requested by a remote processor.
    pub fn invalidate(&mut self, va: u64) {
        let space = self.space_of(va);
        for size in PageSize::ALL {
            for array in &mut self.arrays {
                array.remove(key(va, size, space));
            }
        }
        for cache in self.walk.iter_mut().flatten() {
            cache.clear();
        }
    }

    /// Drops all entries: CR4 changed, or for another reason.
    pub fn flush_all(&mut self) {
        for array in self.arrays.iter_mut().chain(self.walk.iter_mut().flatten()) {
            array.clear();
        }
    }
}

fn service(level: &[crate::model::geometry::Array], base: usize, access: Access, first: bool) -> Service {
    let mut s = Service { probes: Probes::NONE, active: Probes::NONE, takes: [Probes::NONE; 3] };
    // 4K first, because nearly all pages are.
    for size in PageSize::ALL {
        for (i, array) in level.iter().enumerate() {
            if array.serves.contains(&access) && array.pages.contains(&size) {
                let probe = Probe { array: (base + i) as u8, size };
                s.probes.push(probe);
                s.takes[size as usize].push(probe);
            }
        }
    }
    if first {
        for size in 1..3 {
            if s.takes[size].len == 0 {
                s.takes[size] = s.takes[size - 1];
            }
        }
    }
    s
}
