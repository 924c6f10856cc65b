// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the misses would be with other pages: a recorded stream runs through the models again, with some objects'
//! pages taken for larger ones.
//!
//! The stream holds every miss of the first level, and of the hits those that matter to a first level of the same sets
//! (see `recent`). So data are looked up as if every access were there: exactly, as long as the first level's arrays are
//! LRU and have the recorded sets or a multiple of them. Code keeps its pages and its arrays of the first level, so its
//! recorded misses of the first level are looked up from the second level on. What the kernel did for page faults that a
//! larger page would not have is left out. docs/tlb.md holds predictions against
//! measurements.

use std::collections::{HashMap, HashSet};

use crate::geometry::{Access, Array, Geometry, PageSize};
use crate::model::{Outcome, Page, Tlb};
use crate::objects::{Kind, Objects};
use crate::profile::Context;
use crate::stream::{Event, Miss, Reader, StreamError};

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

impl Change {
    /// What the pages of an object become, if anything.
    fn of(&self, object: u32, objects: &Objects) -> Option<PageSize> {
        match *self {
            Change::One(which, to) if which == object => Some(to),
            Change::All(to) if may_be_huge(objects.all()[object as usize].kind) => Some(to),
            _ => None,
        }
    }
}

/// Page faults of changed objects: a large page takes one where small ones took many.
#[derive(Debug, Default)]
struct Faults {
    /// Pages that had theirs.
    seen: HashSet<(u32, u64)>,
    /// Within one that would not be.
    inside: bool,
}

impl Faults {
    fn would_not_be(
        &mut self,
        event: &Event,
        context: &Context,
        objects: &mut Objects,
        change: &Change,
    ) -> bool {
        match *event {
            Event::Fault(va) if va >> 63 == 0 && *change != Change::Nothing => {
                let object = objects.region(context, va);
                let to = change.of(object, objects);
                self.inside = to.is_some_and(|to| !self.seen.insert((context.tgid, va >> to.shift())));
                self.inside
            }
            // A fault that waits lets others run.
            Event::FaultEnd | Event::Task { .. } => {
                self.inside = false;
                false
            }
            _ => self.inside,
        }
    }
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
    // Code's misses of the first level are the recorded ones, if that is the recorded level and holds no data.
    let recorded = reader.header().geometries.first().and_then(|g| g.levels.first());
    let alone = |a: &Array| a.serves == [Access::Fetch] || !a.serves.contains(&Access::Fetch);
    let code_apart =
        recorded == geometry.levels.first() && recorded.is_some_and(|level| level.iter().all(alone));
    let mut tlb = Tlb::new(geometry);
    let mut context = Context::default();
    let mut faults = Faults::default();
    for event in reader {
        let event = event?;
        context.follow(&event);
        if faults.would_not_be(&event, &context, objects, change) {
            continue;
        }
        let (va, access, size, missed) = match event {
            Event::Miss(m) => (m.va, m.access, m.size, m.first & 1 != 0),
            Event::Touch { va, access, size } => (va, access, size, false),
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
            Event::Task { .. }
            | Event::Weight(_)
            | Event::Entry(_)
            | Event::Fault(_)
            | Event::FaultEnd
            | Event::Alloc(_)
            | Event::Free { .. } => {
                continue;
            }
        };
        let object = objects.region(&context, va);
        let size = change.of(object, objects).map_or(size, |to| to.max(size));
        let page = || Page { size, global: va >> 63 == 1 };
        let outcome = match (access, code_apart) {
            (Access::Fetch, true) if missed => tlb.access_below(va, access, page),
            (Access::Fetch, true) => continue,
            _ => tlb.access(va, access, page),
        };
        if outcome == Outcome::Miss {
            *misses.entry(object).or_default() += 1;
        }
    }
    Ok(())
}

/// How ranges of 2 MiB of an object began to be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ranges {
    /// Ranges whose first page fault was recorded.
    pub all: u64,
    /// Of them, those that were read first. There the kernel maps its huge zero page, if huge pages are enabled, and at
    /// the first write small pages, so that a prediction for huge pages does not hold.
    pub read: u64,
}

/// [`Ranges`] by object; of objects without a recorded page fault nothing is known.
pub type Begun = HashMap<u32, Ranges>;

/// Finds how ranges began to be used, from the first page fault in each.
///
/// # Errors
/// The stream cannot be read on; what came before was added.
pub fn begun(reader: Reader<'_>, objects: &mut Objects, all: &mut Begun) -> Result<(), StreamError> {
    let shift = PageSize::M2.shift();
    let mut context = Context::default();
    let mut seen = HashSet::new();
    // A fault, and whose: the access that faulted is told behind it.
    let mut faulted: HashMap<(u32, u64), u32> = HashMap::new();
    for event in reader {
        let event = event?;
        context.follow(&event);
        match event {
            Event::Fault(va) if va >> 63 == 0 && seen.insert((context.tgid, va >> shift)) => {
                faulted.insert((context.tgid, va >> shift), objects.region(&context, va));
            }
            Event::Miss(Miss { va, access, .. }) | Event::Touch { va, access, .. }
                if access != Access::Fetch && !faulted.is_empty() =>
            {
                let Some(object) = faulted.remove(&(context.tgid, va >> shift)) else { continue };
                let ranges = all.entry(object).or_default();
                ranges.all += 1;
                ranges.read += u64::from(access == Access::Load);
            }
            _ => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Writer;

    #[test]
    fn ranges_that_are_read_first_are_told_from_written_ones() {
        let mut writer = Writer::new(&[]);
        writer.event(&Event::Task { pid: 7, tgid: 7 });
        let mut use_of = |va: u64, access| {
            writer.event(&Event::Fault(va));
            // The kernel's own, while it handles the fault.
            let kernel = Miss { ns: 1, va: !0xfff, ip: !0, access, size: PageSize::K4, first: 1, last: 1 };
            writer.event(&Event::Miss(kernel));
            writer.event(&Event::FaultEnd);
            writer.event(&Event::Miss(Miss { va, ip: 1, ..kernel }));
        };
        let array = 0x7000_0000_0000;
        use_of(array, Access::Load);
        use_of(array + 0x1000, Access::Store);
        use_of(array + (2 << 20), Access::Store);
        let mut objects = Objects::new(&[], |_| None);
        let mut all = Begun::new();
        begun(Reader::new(&writer.bytes).expect("a header"), &mut objects, &mut all).expect("a stream");
        assert_eq!(all.values().copied().collect::<Vec<_>>(), [Ranges { all: 2, read: 1 }]);
    }
}
