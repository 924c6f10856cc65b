// SPDX-License-Identifier: MIT OR Apache-2.0
//! The filter in front of models that process many accesses at once ([`crate::Bank::look_up_many`]). Of accesses to
//! data in 4K pages, it passes those that change a model's state, and those that a replay with other page sizes needs
//! (`recent`).
//!
//! An access to the last page of its set changes nothing in that set, whatever the replacement policy. A set is
//! determined by the low bits of the page number. The filter remembers the last page of each of 2^n sets, where every
//! first-level array of every geometry has a multiple of 2^n sets. So if an access finds its page there, the page was
//! the last of its set in all of these arrays, and the access can be dropped. If loads and stores have separate arrays,
//! the same page passes when the kind changes. If data shares an array with code, everything passes once after a fetch.

use crate::model::geometry::{Access, Array, Geometry, PageSize};
use crate::model::recent::{self, Recent};

/// Bit of a mark: the models must process the access.
const ASK: u32 = 1 << 17;
/// Bit of a mark: a replay needs the access.
pub(crate) const NEEDED: u32 = 1 << 16;

/// Maximum of slots with which one access is compared: the models' sets, and each array that a replay follows.
pub const WIDEST: usize = 1 + crate::model::geometry::MAX_ARRAYS;

const NONE: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    shift: u32,
    /// 1 if loads and stores are distinguished.
    kind: u64,
    mask: u64,
    first: usize,
    mark: u32,
}

/// The filter.
#[derive(Debug, Clone)]
pub struct Sieve {
    /// Slots for loads and for stores.
    places: [[Place; WIDEST]; 2],
    width: usize,
    /// Number of sets for the models.
    sets: usize,
    slots: Vec<u64>,
    /// Data and code share an array.
    shared: bool,
    /// Slots for fetches: their effect on arrays that a replay follows.
    fetched: Vec<Place>,
}

impl Sieve {
    /// A filter for these geometries. `replayed` is true if its output must suffice for replays.
    pub fn new(geometries: &[Geometry], replayed: bool) -> Self {
        let first = || geometries.iter().filter_map(|g| g.levels.first()).flatten();
        let serves = |a: &Array, access| a.serves.contains(&access);
        let data = |a: &&Array| {
            a.pages.contains(&PageSize::K4) && (serves(a, Access::Load) || serves(a, Access::Store))
        };
        let split = first().filter(data).any(|a| serves(a, Access::Load) != serves(a, Access::Store));
        let shared = first().filter(data).any(|a| serves(a, Access::Fetch));
        let bits = first().filter(data).map(|a| a.sets().trailing_zeros()).min().unwrap_or(0);
        let sets = 1 << bits;
        let models = Place { shift: 12, kind: u64::from(split), mask: sets as u64 - 1, first: 0, mark: ASK };
        // Slot `sets` belongs to no set.
        let nowhere = Place { shift: 63, kind: 0, mask: 0, first: sets, mark: 0 };
        let recent = geometries.first().filter(|_| replayed).map(Recent::new);
        let of = |access: Access| {
            let all = recent.iter().flat_map(move |r| r.places(access));
            all.map(|&recent::Place { shift, mask, first }| Place {
                shift,
                kind: 0,
                mask,
                first: sets + 1 + first,
                mark: ASK | NEEDED,
            })
        };
        let mut width = 1;
        let places = [Access::Load, Access::Store].map(|access| {
            let mut all = [nowhere; WIDEST];
            all[0] = models;
            let mut count = 1;
            for place in of(access) {
                // The same pages in the same slots: one comparison serves both.
                if !split && !shared && (place.shift, place.mask) == (models.shift, models.mask) {
                    all[0].mark |= NEEDED;
                } else if let Some(to) = all.get_mut(count) {
                    *to = place;
                    count += 1;
                }
            }
            width = width.max(count);
            all
        });
        let slots = vec![NONE; sets + 1 + recent.as_ref().map_or(0, Recent::slots)];
        Sieve { places, width, sets, slots, shared, fetched: of(Access::Fetch).collect() }
    }

    /// Number of slots with which an access is compared. The `N` of [`at_work`](Sieve::at_work) must be at least this.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns true if loads and stores are compared with the same slots. Then `UNIFORM` of [`at_work`](Sieve::at_work)
    /// may be true.
    pub fn is_uniform(&self) -> bool {
        self.places[0] == self.places[1]
    }

    /// Returns true if a fetch affects data, and the other way round.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Borrows the filter for many accesses in a row.
    #[inline(always)]
    pub fn at_work<const N: usize, const UNIFORM: bool>(&mut self) -> AtWork<'_, N, UNIFORM> {
        AtWork {
            places: self.places.map(|all| std::array::from_fn(|i| all[i])),
            slots: &mut self.slots,
            of_models: if self.shared { self.sets } else { 0 },
            fetched: &self.fetched,
        }
    }
}

impl Place {
    #[inline(always)]
    fn note(&self, slots: &mut [u64], va: u64, store: u64) -> u32 {
        let page = va >> self.shift;
        let this = page << 1 | store & self.kind;
        let slot = &mut slots[self.first + (page & self.mask) as usize];
        // Without a branch, which would be unpredictable.
        let other = u32::from(*slot != this).wrapping_neg();
        *slot = this;
        self.mark & other
    }
}

/// A [`Sieve`] whose fields the compiler may keep in registers.
#[derive(Debug)]
pub struct AtWork<'a, const N: usize, const UNIFORM: bool> {
    places: [[Place; N]; 2],
    slots: &'a mut [u64],
    /// Number of slots that become invalid after a fetch.
    of_models: usize,
    fetched: &'a [Place],
}

impl<const N: usize, const UNIFORM: bool> AtWork<'_, N, UNIFORM> {
    /// Filters an access to data. Returns 0 if it can be dropped, else the mark for the models.
    #[inline(always)]
    pub fn data(&mut self, va: u64, store: bool) -> u32 {
        let store = u64::from(store);
        let places = if UNIFORM { &self.places[0] } else { &self.places[store as usize] };
        places.iter().fold(0, |mark, place| mark | place.note(self.slots, va, store))
    }

    /// Reports a fetch from another page than the last, or one after accesses to data passed, if they
    /// [share](Sieve::is_shared) an array. Returns the mark.
    #[cold]
    pub fn fetch(&mut self, va: u64) -> u32 {
        self.slots[..self.of_models].fill(NONE);
        self.fetched.iter().fold(ASK, |mark, place| mark | place.note(self.slots, va, 0))
    }
}
