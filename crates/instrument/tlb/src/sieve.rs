// SPDX-License-Identifier: MIT OR Apache-2.0
//! The filter in front of models that take many accesses at once ([`crate::Bank::look_up_many`]): of accesses to data in
//! 4K pages, those that change something, or that a replay with other page sizes needs (`recent`).
//!
//! An access to the page that was the last one of its set changes nothing in that set, whatever is replaced there. Sets are
//! told by a page number's low bits, so the last page of each of 2^n sets, where every first-level array of every geometry
//! has a multiple of that many, leaves out nothing that matters: such an access finds its page the last one of its set in
//! all of them. Where loads and stores have arrays of their own, the same page by the other kind passes; where data shares
//! an array with code, everything passes once after a fetch.

use crate::geometry::{Access, Array, Geometry, PageSize};
use crate::recent::{self, Recent};

/// Of a mark: a model must be asked.
const ASK: u32 = 1 << 17;
/// Of a mark: a replay needs the access.
pub(crate) const NEEDED: u32 = 1 << 16;

/// Places that one access is compared with: the models' sets, and each array that a replay follows.
pub const WIDEST: usize = 1 + crate::geometry::MAX_ARRAYS;

const NONE: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    shift: u32,
    /// 1 if loads and stores are told apart.
    kind: u64,
    mask: u64,
    first: usize,
    mark: u32,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Sieve {
    /// Of loads and of stores.
    places: [[Place; WIDEST]; 2],
    width: usize,
    /// Of the sets of the models.
    sets: usize,
    slots: Vec<u64>,
    /// Data and code are looked up in one array.
    shared: bool,
    /// Of fetches: what they do to arrays that a replay follows.
    fetched: Vec<Place>,
}

impl Sieve {
    /// For these geometries; `replayed` if what is told is to be enough for replays.
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
        // Slot `sets` is for places that are none.
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
                // The same pages, in the same slots: one comparison serves both.
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

    /// How many places an access is compared with: the `N` of [`at_work`](Sieve::at_work) is this, or more.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether loads and stores are compared with the same places: then [`at_work`](Sieve::at_work) may be told so.
    pub fn is_uniform(&self) -> bool {
        self.places[0] == self.places[1]
    }

    /// Whether a fetch matters to data, and the other way round.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// For many accesses on end.
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
        // No branch: nobody could predict it.
        let other = u32::from(*slot != this).wrapping_neg();
        *slot = this;
        self.mark & other
    }
}

/// A [`Sieve`] whose places the compiler may keep in registers.
#[derive(Debug)]
pub struct AtWork<'a, const N: usize, const UNIFORM: bool> {
    places: [[Place; N]; 2],
    slots: &'a mut [u64],
    /// Slots that mean nothing after a fetch.
    of_models: usize,
    fetched: &'a [Place],
}

impl<const N: usize, const UNIFORM: bool> AtWork<'_, N, UNIFORM> {
    /// An access to data. 0: it can be left out. Else the mark that the models want with it.
    #[inline(always)]
    pub fn data(&mut self, va: u64, store: bool) -> u32 {
        let store = u64::from(store);
        let places = if UNIFORM { &self.places[0] } else { &self.places[store as usize] };
        places.iter().fold(0, |mark, place| mark | place.note(self.slots, va, store))
    }

    /// Code is fetched from another page than the last one, or accesses to data passed since, where they
    /// [share](Sieve::is_shared) an array; the mark.
    #[cold]
    pub fn fetch(&mut self, va: u64) -> u32 {
        self.slots[..self.of_models].fill(NONE);
        self.fetched.iter().fold(ASK, |mark, place| mark | place.note(self.slots, va, 0))
    }
}
