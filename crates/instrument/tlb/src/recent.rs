// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which accesses a replay with other page sizes needs, besides misses: a filter.
//!
//! An access to what was used last in its set changes nothing in an LRU set (trace stripping: Puzak 1985; Wang, Baer
//! 1991). So an access may be left out of a stream if its page was the last of its set in every array of the first level
//! that the page could be held in, whatever its size. What passes is enough to follow such arrays exactly, and any with a
//! multiple of their sets, as if every access had been there. 1G pages are left out of account: their arrays are small,
//! and whoever has more of them active than those hold sees a prediction that is not exact.

use crate::geometry::{Access, Geometry, PageSize};

/// An array that a replay follows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Bits of a page.
    pub shift: u32,
    /// Sets less one.
    pub mask: u64,
    /// First slot.
    pub first: usize,
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Recent {
    /// By kind of access.
    places: [Vec<Place>; 3],
    /// The last page of each set.
    slots: Vec<u64>,
}

const NONE: u64 = u64::MAX;

impl Recent {
    /// For the first level of a geometry. Arrays that serve code alone are followed by no replay.
    pub fn new(geometry: &Geometry) -> Self {
        let mut places = [const { Vec::new() }; 3];
        let mut slots = 0;
        for array in geometry.levels.first().into_iter().flatten() {
            if array.serves == [Access::Fetch] || array.pages == [PageSize::G1] {
                continue;
            }
            let sets = u64::from(array.sets());
            // Pages of several sizes, or sets that no mask tells: only the same page again is left out.
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

    /// What an access of this kind is compared with.
    pub fn places(&self, access: Access) -> &[Place] {
        &self.places[access as usize]
    }

    /// Slots of all places.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Takes note of an access; whether a replay needs it.
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

    /// The same addresses mean other pages from here on.
    pub fn forget(&mut self) {
        self.slots.fill(NONE);
    }
}
