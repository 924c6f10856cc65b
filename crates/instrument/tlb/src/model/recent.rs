// SPDX-License-Identifier: MIT OR Apache-2.0
//! A filter for the accesses that a replay with other page sizes needs besides misses.
//!
//! An access to the entry used last in its set changes nothing in an LRU set (trace stripping: Puzak 1985; Wang, Baer
//! 1991). So an access may be dropped from a stream if its page was the last of its set in every array of the first
//! level that could hold the page, whatever its size. The remaining accesses suffice to simulate such arrays exactly,
//! and any with a multiple of their sets. 1G pages are ignored: their arrays are small, and with more active 1G pages
//! than those hold, a prediction is not exact.

use crate::model::geometry::{Access, Geometry, PageSize};

/// An array that a replay simulates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Bits of an address within a page.
    pub shift: u32,
    /// Number of sets less one.
    pub mask: u64,
    /// Index of its first slot.
    pub first: usize,
}

/// The filter's state.
#[derive(Debug, Clone)]
pub(crate) struct Recent {
    /// By kind of access.
    places: [Vec<Place>; 3],
    /// The last page of each set.
    slots: Vec<u64>,
}

const NONE: u64 = u64::MAX;

impl Recent {
    /// A filter for the first level of a geometry. A replay does not simulate arrays for code alone.
    pub fn new(geometry: &Geometry) -> Self {
        let mut places = [const { Vec::new() }; 3];
        let mut slots = 0;
        for array in geometry.levels.first().into_iter().flatten() {
            if array.serves == [Access::Fetch] || array.pages == [PageSize::G1] {
                continue;
            }
            let sets = u64::from(array.sets());
            // An array for several page sizes, or whose sets are no power of two: only repeated accesses to the same
            // page are dropped.
            let (shift, mask) = match array.pages.as_slice() {
                [one] if sets.is_power_of_two() => (one.shift(), sets - 1),
                _ => (PageSize::K4.shift(), 0),
            };
            for access in &array.serves {
                places[*access as usize].push(Place { shift, mask, first: slots });
            }
            slots += mask as usize + 1;
        }
        Recent { places, slots: vec![NONE; slots] }
    }

    /// The arrays with which an access of this kind is compared.
    pub fn places(&self, access: Access) -> &[Place] {
        &self.places[access as usize]
    }

    /// Number of slots of all arrays.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Records an access. Returns true if a replay needs it.
    #[inline(always)]
    pub fn is_needed(&mut self, va: u64, access: Access) -> bool {
        let mut needed = false;
        for &Place { shift, mask, first } in &self.places[access as usize] {
            let page = va >> shift;
            let slot = &mut self.slots[first + (page & mask) as usize];
            needed |= *slot != page;
            *slot = page;
        }
        needed
    }

    /// The same addresses refer to other pages from here on.
    pub fn forget(&mut self) {
        self.slots.fill(NONE);
    }
}
