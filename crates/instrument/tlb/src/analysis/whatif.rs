// SPDX-License-Identifier: MIT OR Apache-2.0
//! Predicts the misses with other page sizes: replays a recorded stream through the models, with larger pages for some
//! objects.
//!
//! The stream holds every miss of the first level, and those hits that matter to a first level with the same sets (see
//! `recent`). So accesses to data are looked up as if all were recorded. This is exact as long as the first level's
//! arrays are LRU and have the recorded number of sets or a multiple of it. Code keeps its pages and its arrays of the
//! first level, so its recorded first-level misses are looked up from the second level on. The kernel's work for page
//! faults that would not happen with larger pages is left out. docs/tlb.md compares predictions with measurements.

use std::collections::{HashMap, HashSet};

use kprism_image::is_kernel;

use crate::model::geometry::{Access, Array, Geometry, PageSize};
use crate::model::tlb::{Outcome, Page, Tlb};
use crate::objects::{Kind, Objects};
use crate::stream::{Context, Event, Miss, Reader, StreamError};

/// Selects the pages whose size changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// No pages.
    Nothing,
    /// The pages of one object.
    One(u32, PageSize),
    /// The pages of all data objects of programs, not of code.
    All(PageSize),
}

impl Change {
    /// The new page size of each object, if any. Objects found later belong to the kernel or to nobody.
    fn sizes(self, objects: &Objects) -> Vec<Option<PageSize>> {
        let of = |(number, kind): (u32, Kind)| match self {
            Change::One(which, to) if which == number => Some(to),
            Change::All(to) if may_be_huge(kind) => Some(to),
            _ => None,
        };
        (0..).zip(objects.all().iter().map(|o| o.kind)).map(of).collect()
    }
}

/// An event in the form for replays. Its object is looked up once for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Access { va: u64, object: u32, access: Access, size: PageSize, missed: bool },
    Space(u64),
    Invalidate(u64),
    Flush,
    Fault { va: u64, object: u32 },
    FaultEnd,
    Task { tgid: u32 },
}

const _: () = assert!(size_of::<Step>() == 16);

/// Number of steps per batch: few enough to stay in a processor's cache for all replays.
const STEPS: usize = 1 << 16;

/// Reads a stream as steps, and notes the first uses of ranges on the way.
struct Steps<'a> {
    reader: Reader<'a>,
    context: Context,
    uses: FirstUses,
}

impl Steps<'_> {
    /// Fills `to` with the next steps; none at the end.
    fn next(&mut self, objects: &mut Objects, to: &mut Vec<Step>) -> Result<(), StreamError> {
        to.clear();
        while to.len() < STEPS {
            let Some(event) = self.reader.next() else { break };
            let event = event?;
            self.context.follow(&event);
            self.uses.follow(&self.context, &event, objects);
            to.push(match event {
                Event::Miss(m) => {
                    let object = objects.region(&self.context, m.va);
                    Step::Access {
                        va: m.va,
                        object,
                        access: m.access,
                        size: m.size,
                        missed: m.first & 1 != 0,
                    }
                }
                Event::Touch { va, access, size } => {
                    let object = objects.region(&self.context, va);
                    Step::Access { va, object, access, size, missed: false }
                }
                Event::Space(cr3) => Step::Space(cr3 & !0xfff),
                Event::Invalidate(va) => Step::Invalidate(va),
                Event::Flush => Step::Flush,
                Event::Fault(va) if !is_kernel(va) => {
                    Step::Fault { va, object: objects.region(&self.context, va) }
                }
                Event::FaultEnd => Step::FaultEnd,
                Event::Task { tgid, .. } => Step::Task { tgid },
                Event::Weight(_)
                | Event::Entry(_)
                | Event::Fault(_)
                | Event::Alloc(_)
                | Event::Free { .. } => {
                    continue;
                }
            });
        }
        Ok(())
    }
}

/// One change, with the TLBs of one stream.
struct Replay {
    /// The new page size by object.
    sizes: Vec<Option<PageSize>>,
    tlb: Tlb,
    /// True if the recorded first-level misses of code are used.
    code_apart: bool,
    tgid: u32,
    /// Pages that had their page fault already: a large page takes one fault where small ones took many.
    faulted: HashSet<(u32, u64)>,
    /// True inside a page fault that would not happen.
    inside: bool,
    /// Misses by object.
    misses: Vec<u64>,
}

impl Replay {
    fn new(geometry: &Geometry, code_apart: bool, sizes: Vec<Option<PageSize>>) -> Self {
        let (tlb, faulted) = (Tlb::new(geometry), HashSet::new());
        Replay { sizes, tlb, code_apart, tgid: 0, faulted, inside: false, misses: Vec::new() }
    }

    fn becomes(&self, object: u32) -> Option<PageSize> {
        self.sizes.get(object as usize).copied().flatten()
    }

    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Fault { va, object } => {
                    let to = self.becomes(object);
                    self.inside = to.is_some_and(|to| !self.faulted.insert((self.tgid, va >> to.shift())));
                }
                // A fault that waits lets other tasks run.
                Step::Task { tgid } => (self.tgid, self.inside) = (tgid, false),
                Step::FaultEnd => self.inside = false,
                _ if self.inside => {}
                Step::Access { va, object, access, size, missed } => {
                    self.access(va, object, access, size, missed);
                }
                Step::Space(space) => self.tlb.load_cr3(space),
                Step::Invalidate(va) => self.tlb.invalidate(va),
                Step::Flush => self.tlb.flush_all(),
            }
        }
    }

    #[inline(always)]
    fn access(&mut self, va: u64, object: u32, access: Access, size: PageSize, missed: bool) {
        let size = self.becomes(object).map_or(size, |to| to.max(size));
        let page = || Page { size, global: is_kernel(va) };
        let outcome = match (access, self.code_apart) {
            (Access::Fetch, true) if missed => self.tlb.access_below(va, access, page),
            (Access::Fetch, true) => return,
            _ => self.tlb.access(va, access, page),
        };
        if outcome == Outcome::Miss {
            let object = object as usize;
            if self.misses.len() <= object {
                self.misses.resize(object + 1, 0);
            }
            self.misses[object] += 1;
        }
    }
}

/// Misses by number of the object, with a change.
pub type ByObject = HashMap<u32, u64>;

/// The predicted effect of a change of page size.
#[derive(Debug, Clone)]
pub struct Prediction {
    /// The object; `None` for all that can be changed.
    pub object: Option<u32>,
    /// Its new page size.
    pub size: PageSize,
    /// Misses of every object after the change.
    pub misses: ByObject,
}

/// Replays a CPU's stream through fresh TLBs, once for each change, and adds the misses to `misses`, which has the same
/// length, and the first uses of ranges to `begun`. The stream is read once.
///
/// # Errors
/// The stream is damaged. What came before the damage was added.
pub fn replay(
    reader: Reader<'_>,
    geometry: &Geometry,
    objects: &mut Objects,
    changes: &[Change],
    misses: &mut [ByObject],
    begun: &mut Begun,
) -> Result<(), StreamError> {
    // The recorded first-level misses of code are valid if the first level is the recorded one and has no array for
    // both code and data.
    let recorded = reader.header().geometries.first().and_then(|g| g.levels.first());
    let alone = |a: &Array| a.serves == [Access::Fetch] || !a.serves.contains(&Access::Fetch);
    let code_apart =
        recorded == geometry.levels.first() && recorded.is_some_and(|level| level.iter().all(alone));
    let mut replays: Vec<Replay> =
        changes.iter().map(|change| Replay::new(geometry, code_apart, change.sizes(objects))).collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let share = replays.len().div_ceil(threads).max(1);
    let mut steps = Steps { reader, context: Context::default(), uses: FirstUses::default() };
    let (mut now, mut next) = (Vec::with_capacity(STEPS), Vec::with_capacity(STEPS));
    let mut result = steps.next(objects, &mut now);
    while !now.is_empty() {
        std::thread::scope(|scope| {
            for part in replays.chunks_mut(share) {
                let now = &now;
                scope.spawn(move || part.iter_mut().for_each(|replay| replay.run(now)));
            }
            // The next steps are read meanwhile.
            match result {
                Ok(()) => result = steps.next(objects, &mut next),
                Err(_) => next.clear(),
            }
        });
        std::mem::swap(&mut now, &mut next);
    }
    for (object, ranges) in steps.uses.ranges {
        let sum = begun.entry(object).or_default();
        sum.all += ranges.all;
        sum.read += ranges.read;
    }
    for (replay, misses) in replays.iter().zip(misses) {
        for (object, &n) in (0..).zip(&replay.misses).filter(|(_, n)| **n > 0) {
            *misses.entry(object).or_default() += n;
        }
    }
    result
}

/// The first uses of an object's 2 MiB ranges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ranges {
    /// Number of ranges whose first page fault was recorded.
    pub all: u64,
    /// Of these, the ranges that were read first. If huge pages are enabled, the kernel maps its huge zero page there,
    /// and small pages at the first write. So a prediction for huge pages does not hold.
    pub read: u64,
}

/// [`Ranges`] by object. Objects without a recorded page fault are absent.
pub type Begun = HashMap<u32, Ranges>;

/// Counts the first uses of ranges, by the first page fault in each.
#[derive(Default)]
struct FirstUses {
    seen: HashSet<(u32, u64)>,
    /// Faults with their object. The access that faulted comes later in the stream.
    faulted: HashMap<(u32, u64), u32>,
    ranges: Begun,
}

impl FirstUses {
    #[inline]
    fn follow(&mut self, context: &Context, event: &Event, objects: &mut Objects) {
        let range = |va: u64| (context.tgid, va >> PageSize::M2.shift());
        match *event {
            Event::Fault(va) if !is_kernel(va) && self.seen.insert(range(va)) => {
                self.faulted.insert(range(va), objects.region(context, va));
            }
            Event::Miss(Miss { va, access, .. }) | Event::Touch { va, access, .. }
                if access != Access::Fetch && !self.faulted.is_empty() =>
            {
                let Some(object) = self.faulted.remove(&range(va)) else { return };
                let ranges = self.ranges.entry(object).or_default();
                ranges.all += 1;
                ranges.read += u64::from(access == Access::Load);
            }
            _ => {}
        }
    }
}

/// Returns true if `madvise` or hugetlbfs can give such an object huge pages.
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
    use crate::model::presets;
    use crate::stream::Writer;

    #[test]
    fn ranges_that_are_read_first_are_told_from_written_ones() {
        let mut writer = Writer::new(&[]);
        writer.event(&Event::Task { pid: 7, tgid: 7 });
        let mut use_of = |va: u64, access| {
            writer.event(&Event::Fault(va));
            // The kernel's own access, while it handles the fault.
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
        let geometry = presets::preset(presets::DEFAULT).expect("the default");
        let reader = Reader::new(&writer.bytes).expect("a header");
        replay(reader, &geometry, &mut objects, &[], &mut [], &mut all).expect("a stream");
        assert_eq!(all.values().copied().collect::<Vec<_>>(), [Ranges { all: 2, read: 1 }]);
    }
}
