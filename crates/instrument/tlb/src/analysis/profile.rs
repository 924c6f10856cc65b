// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums of misses by task, instruction, object and page, for every geometry of the stream.

use foldhash::{HashMap, HashMapExt as _};
use kprism_image::is_kernel;

use crate::analysis::pages::Pages;
use crate::model::bank::MAX_GEOMETRIES;
use crate::model::geometry::PageSize;
use crate::objects::Objects;
use crate::stream::{Context, Miss, Reader, StreamError, for_each};

/// Misses of the last level, for each geometry of the stream.
pub type Misses = [u64; MAX_GEOMETRIES];

/// Misses at one instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Misses of its accesses, including its own fetch.
    pub misses: Misses,
    /// Time of its first miss, ns. It selects the version of the code when its function is looked up.
    pub ns: u64,
}

/// Sums of misses.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// Misses by kind of access.
    pub totals: [Misses; 3],
    /// Misses by page size.
    pub sizes: [Misses; 3],
    /// Misses of the first level of the first geometry.
    pub first: u64,
    /// By thread id and process id.
    pub tasks: HashMap<(u32, u32), Misses>,
    /// By address space (0 for the kernel's half) and instruction.
    pub sites: HashMap<(u64, u64), Site>,
    /// By object, as [`Objects`] numbers them.
    pub objects: Vec<Misses>,
    /// By object: the lowest and the highest address with a miss.
    pub extents: Vec<(u64, u64)>,
    /// By page, for the first geometry.
    pub pages: Pages,
    /// Times of the first and the last miss, ns.
    pub span: Option<(u64, u64)>,
}

impl Profile {
    /// Adds a CPU's stream.
    ///
    /// # Errors
    /// The stream is damaged. Misses before the damage were added.
    pub fn add(&mut self, reader: Reader<'_>, objects: &mut Objects) -> Result<(), StreamError> {
        for_each(reader, |context, miss| self.miss(context, miss, objects))
    }

    fn miss(&mut self, context: &Context, m: &Miss, objects: &mut Objects) {
        let weight = context.weight();
        self.first += u64::from(m.first & 1) * weight;
        if m.last == 0 {
            return;
        }
        let add = |to: &mut Misses| match m.last {
            // Most streams have one geometry.
            1 => to[0] += weight,
            _ => to.iter_mut().enumerate().for_each(|(g, to)| *to += u64::from(m.last >> g & 1) * weight),
        };
        add(&mut self.totals[m.access as usize]);
        add(&mut self.sizes[m.size as usize]);
        add(self.tasks.entry((context.pid, context.tgid)).or_default());
        let space = if is_kernel(m.ip) { 0 } else { context.space };
        let site = self.sites.entry((space, m.ip)).or_insert(Site { misses: Misses::default(), ns: m.ns });
        add(&mut site.misses);
        let object = objects.find(context, m.va) as usize;
        if self.objects.len() <= object {
            self.objects.resize(object + 1, Misses::default());
            self.extents.resize(object + 1, (u64::MAX, 0));
        }
        let extent = &mut self.extents[object];
        *extent = (extent.0.min(m.va), extent.1.max(m.va));
        add(&mut self.objects[object]);
        if m.last & 1 != 0 {
            let tgid = if is_kernel(m.va) { 0 } else { context.tgid };
            self.pages.add(tgid, m.size, m.va, weight);
        }
        let (begin, end) = self.span.unwrap_or((m.ns, m.ns));
        self.span = Some((begin.min(m.ns), end.max(m.ns)));
    }

    /// Misses of all kinds of access.
    pub fn all(&self) -> Misses {
        let mut all = Misses::default();
        self.totals.iter().for_each(|t| all.iter_mut().zip(t).for_each(|(a, n)| *a += n));
        all
    }

    /// Distribution of misses for the paper's figures 6, 7 and 9, for one process and page size, or all of them.
    /// Entries are in order of their misses, in groups of `together` neighbours, which a bus that moves 8, 32 or 64 bytes
    /// cannot distinguish. Only entries that missed are included.
    pub fn distribution(&self, tgid: Option<u32>, size: Option<PageSize>, together: u64) -> Distribution {
        let mut groups: HashMap<(u32, u32, u64), u64> = HashMap::new();
        for (key, n) in self.pages.iter() {
            if size.is_none_or(|s| s == key.size) && tgid.is_none_or(|t| t == key.owner) {
                let shift = key.size.shift();
                *groups.entry((key.owner, shift, (key.start >> shift) / together)).or_default() += n;
            }
        }
        let mut sums: Vec<u64> = groups.into_values().collect();
        sums.sort_unstable();
        Distribution { together, sums }
    }
}

/// Misses of groups of page table entries, in increasing order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    /// Entries in a group.
    pub together: u64,
    /// Misses of each group.
    pub sums: Vec<u64>,
}

impl Distribution {
    /// Average misses of an entry at this share (0 to 1) of the sorted entries: figure 6.
    pub fn average_at(&self, share: f64) -> f64 {
        let last = self.sums.len().saturating_sub(1);
        let at = ((self.sums.len() as f64 * share).ceil() as usize).saturating_sub(1).min(last);
        self.sums.get(at).map_or(0.0, |&n| n as f64 / self.together as f64)
    }

    /// Share of all misses that come from the first `share` of the sorted entries: figure 7.
    pub fn part_below(&self, share: f64) -> f64 {
        let total: u64 = self.sums.iter().sum();
        let count = (self.sums.len() as f64 * share).round() as usize;
        let part: u64 = self.sums.iter().take(count).sum();
        if total == 0 { 0.0 } else { part as f64 / total as f64 }
    }
}
