// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several geometries over one stream of accesses, behind a filter that does not change the result.
//!
//! An access to the same page as the one before it (and of the same kind, if loads and stores have separate arrays)
//! finds its entry most recently used in every first-level array that it touches, of any geometry. It would change
//! nothing, so no model is asked. Fetches are filtered apart from data unless a first level serves both with one array.
//! A caller with all accesses at hand may do this filtering itself ([`Bank::look_up`]).

use crate::model::geometry::{Access, Array, Geometry, PageSize};
use crate::model::recent::Recent;
use crate::model::sieve::NEEDED;
use crate::model::tlb::{Counts, Outcome, Page, Tlb};

/// Result of an access, one bit for each geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// The page's size, if any geometry's first level missed.
    pub size: PageSize,
    /// Geometries whose first level missed.
    pub first: u8,
    /// Geometries that missed on every level.
    pub last: u8,
    /// No first level missed, but a replay with other page sizes needs the access.
    pub touched: bool,
}

impl Missed {
    /// Returns true if the access belongs into the stream.
    #[inline(always)]
    pub fn is_told(self) -> bool {
        self.first != 0 || self.touched
    }
}

/// Decodes a mark after the models have processed the access; `None` if it does not belong into the stream.
#[inline(always)]
pub fn missed(mark: u32) -> Option<Missed> {
    let (first, last) = (mark as u8, (mark >> 8) as u8);
    (mark & (NEEDED | 0xffff) != 0).then_some(Missed { size: PageSize::K4, first, last, touched: first == 0 })
}

/// The models of several geometries.
#[derive(Debug, Clone)]
pub struct Bank {
    tlbs: Vec<Tlb>,
    /// The replay filter of the first geometry.
    recent: Option<Recent>,
    /// Page and kind of the last access to data, and page of the last fetch.
    data: u64,
    code: u64,
    /// True if some first level has an array for loads or for stores alone.
    split: bool,
    /// True if some first level has an array for data and code.
    shared: bool,
    /// Number of accesses that the models processed, by kind.
    pub looked_up: [u64; 3],
}

/// Maximum of geometries: each has a bit of a byte.
pub const MAX_GEOMETRIES: usize = 8;
const NOWHERE: u64 = u64::MAX;

const NOTHING: Missed = Missed { size: PageSize::K4, first: 0, last: 0, touched: false };

impl Bank {
    /// Empty TLBs for up to [`MAX_GEOMETRIES`] geometries. Further ones are ignored.
    pub fn new(geometries: &[Geometry]) -> Self {
        Bank { recent: geometries.first().map(Recent::new), ..Bank::counting(geometries) }
    }

    /// Like [`Bank::new`], but does not report hits that only a replay needs.
    pub fn counting(geometries: &[Geometry]) -> Self {
        let tlbs = geometries.iter().take(MAX_GEOMETRIES).map(Tlb::new).collect();
        let both = |a: &Array| a.serves.contains(&Access::Fetch) && a.serves.len() > 1;
        let shared = geometries.iter().any(|g| g.levels.first().is_some_and(|l| l.iter().any(both)));
        let one = |a: &Array| a.serves.contains(&Access::Load) != a.serves.contains(&Access::Store);
        let split = geometries.iter().any(|g| g.levels.first().is_some_and(|l| l.iter().any(one)));
        Bank { tlbs, recent: None, data: NOWHERE, code: NOWHERE, split, shared, looked_up: [0; 3] }
    }

    /// An access within one 4K page. `page` walks the page tables.
    #[inline(always)]
    pub fn access(&mut self, va: u64, access: Access, page: impl FnOnce() -> Page) -> Missed {
        let this = va >> 12 << 1 | u64::from(self.split && access == Access::Store);
        let last = if access == Access::Fetch { &mut self.code } else { &mut self.data };
        if *last == this {
            return NOTHING;
        }
        *last = this;
        self.look_up(va, access, page)
    }

    /// Performs an access that is not filtered. The caller knows that it is to another page than the last one of data,
    /// or of code; or of another kind, if the bank is split; or that one of the other kind came in between, if the bank
    /// is shared.
    #[inline(always)]
    pub fn look_up(&mut self, va: u64, access: Access, page: impl FnOnce() -> Page) -> Missed {
        self.looked_up[access as usize] += 1;
        let mut missed = NOTHING;
        let needed = self.recent.as_mut().is_some_and(|r| r.is_needed(va, access));
        if let [tlb] = self.tlbs.as_mut_slice() {
            // The common case.
            match tlb.access(va, access, page) {
                Outcome::Hit(0) => {}
                outcome => {
                    let last = u8::from(outcome == Outcome::Miss);
                    missed = Missed { size: tlb.page.size, first: 1, last, touched: false };
                }
            }
        } else {
            missed = self.look_up_all(va, access, page);
        }
        if needed && missed.first == 0 {
            missed.touched = true;
            missed.size = self.tlbs[0].held(va, access).unwrap_or(PageSize::K4);
        }
        if self.shared {
            match access {
                Access::Fetch => self.data = NOWHERE,
                _ => self.code = NOWHERE,
            }
        }
        missed
    }

    /// Performs [`look_up`](Bank::look_up) for many accesses to 4K pages that are not global. The bank must never see
    /// other pages or other address spaces. `marks` are those that a [`Sieve`](crate::Sieve) gave to the accesses;
    /// afterwards [`missed`] decodes them.
    #[inline(always)]
    pub fn look_up_many(&mut self, vas: &[u64], kinds: &[Access], marks: &mut [u32]) {
        let all = vas.len().min(kinds.len()).min(marks.len());
        let (vas, kinds, marks) = (&vas[..all], &kinds[..all], &mut marks[..all]);
        let (mut stores, mut fetches) = (0, 0);
        for &kind in kinds {
            stores += u64::from(kind == Access::Store);
            fetches += u64::from(kind == Access::Fetch);
        }
        self.looked_up[Access::Load as usize] += all as u64 - stores - fetches;
        self.looked_up[Access::Store as usize] += stores;
        self.looked_up[Access::Fetch as usize] += fetches;
        for (bit, tlb) in self.tlbs.iter_mut().enumerate() {
            tlb.access_all(vas, kinds, fetches == 0, |i, outcome| {
                marks[i] |= if outcome == Outcome::Miss { 256 } else { 1 } << bit;
            });
        }
    }

    #[inline(never)]
    fn look_up_all(&mut self, va: u64, access: Access, page: impl FnOnce() -> Page) -> Missed {
        let (mut known, mut page) = (None, Some(page));
        let mut missed = NOTHING;
        for (i, tlb) in self.tlbs.iter_mut().enumerate() {
            let walk = || *known.get_or_insert_with(|| page.take().map_or(Page::K4, |walk| walk()));
            match tlb.access(va, access, walk) {
                Outcome::Hit(0) => {}
                outcome => {
                    missed.first |= 1 << i;
                    missed.size = tlb.page.size;
                    missed.last |= u8::from(outcome == Outcome::Miss) << i;
                }
            }
        }
        missed
    }

    /// Loads CR3; see [`Tlb::load_cr3`].
    pub fn load_cr3(&mut self, space: u64) {
        self.forget();
        self.recent.iter_mut().for_each(Recent::forget);
        self.tlbs.iter_mut().for_each(|t| t.load_cr3(space));
    }

    /// Invalidates an address; see [`Tlb::invalidate`].
    pub fn invalidate(&mut self, va: u64) {
        self.forget();
        self.tlbs.iter_mut().for_each(|t| t.invalidate(va));
    }

    /// Drops all entries; see [`Tlb::flush_all`].
    pub fn flush_all(&mut self) {
        self.forget();
        self.tlbs.iter_mut().for_each(Tlb::flush_all);
    }

    /// The counters of each geometry.
    pub fn counts(&self) -> impl Iterator<Item = &Counts> {
        self.tlbs.iter().map(|t| &t.counts)
    }

    fn forget(&mut self) {
        self.data = NOWHERE;
        self.code = NOWHERE;
    }
}
