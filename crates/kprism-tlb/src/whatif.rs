// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the misses would be with other pages: a recorded stream runs through the models again, with some objects'
//! pages taken for larger ones.
//!
//! The stream holds every miss of the first level. With nothing changed, those are looked up from the second level on,
//! and the recorded count comes out exactly. With a change they are looked up from the first level on, which has room
//! that it had not when recorded; accesses that hit the first level then are not in the stream, and are taken to hit
//! again. So a prediction is close, not exact: docs/tlb.md holds some against measurements.

use std::collections::HashMap;

use crate::geometry::{Geometry, PageSize};
use crate::model::{Outcome, Page, Tlb};
use crate::objects::{Kind, Objects};
use crate::profile::Context;
use crate::stream::{Event, Reader, StreamError};

/// Which pages are another size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// None.
    Nothing,
    /// Those of one object.
    One(u32, PageSize),
    /// Those of all objects of programs: data, not code.
    All(PageSize),
}

/// Misses with a change, by object; with the number of the object that missed.
pub type ByObject = HashMap<u32, u64>;

/// Runs a CPU's stream through fresh TLBs and adds its misses to `misses`.
///
/// # Errors
/// The stream cannot be read on; what came before was added.
pub fn replay(
    reader: Reader<'_>,
    geometry: &Geometry,
    objects: &mut Objects,
    change: &Change,
    misses: &mut ByObject,
) -> Result<(), StreamError> {
    // Another first level than the recorded one saw other misses: then all are looked up from there on.
    let same =
        reader.header().geometries.first().is_some_and(|g| g.levels.first() == geometry.levels.first());
    let mut tlb = Tlb::new(geometry);
    let mut context = Context::default();
    for event in reader {
        let event = event?;
        context.follow(&event);
        let m = match event {
            Event::Miss(m) if m.first & 1 != 0 => m,
            Event::Space(cr3) => {
                tlb.load_cr3(cr3 & !0xfff);
                continue;
            }
            Event::Invalidate(va) => {
                tlb.invalidate(va);
                continue;
            }
            Event::Flush => {
                tlb.flush_all();
                continue;
            }
            _ => continue,
        };
        let object = objects.find(context.tgid, m.va);
        let size = match *change {
            Change::One(which, size) if which == object => size.max(m.size),
            Change::All(size) if may_be_huge(objects.all()[object as usize].kind) => size.max(m.size),
            _ => m.size,
        };
        let page = Page { size, global: m.va >> 63 == 1 };
        let outcome = if *change == Change::Nothing && same {
            tlb.access_below(m.va, m.access, || page)
        } else {
            tlb.access(m.va, m.access, || page)
        };
        if outcome == Outcome::Miss {
            *misses.entry(object).or_default() += 1;
        }
    }
    Ok(())
}

/// Whether `madvise` or hugetlbfs can give such an object huge pages.
pub fn may_be_huge(kind: Kind) -> bool {
    matches!(kind, Kind::Elf | Kind::Heap | Kind::Anonymous)
}

/// Mebibytes of huge pages an object takes.
pub fn huge_mebibytes(bytes: u64, size: PageSize) -> u64 {
    bytes.div_ceil(size.bytes()).max(1) * (size.bytes() >> 20)
}
