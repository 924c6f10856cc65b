// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files mapped in each address space, by time.
//!
//! The input is the sideband's `mmap` and `fork` records. The output, for an address space, address and time, is the
//! mapping in force. The rules are:
//! - A later mapping replaces the parts that it overlaps, from its time on.
//! - A mapping made by another thread group than the previous one begins a new life of the address space: the page of
//!   its page table was freed and reused, so earlier mappings are invalid.
//! - A forked child has a copy of its parent's mappings, but no records of its own until it calls `execve` or `mmap`.
//!   If the recorder could not tell the parent, the newest mapping of any address space at that address is used.
//!   Because of address space randomisation, it is almost always the parent's.
//! - Times within a packet stream are estimates. If no mapping is in force yet, the next mapping at that address is
//!   used.

use std::collections::{BTreeMap, HashMap};

use crate::ranges::InTime;
use crate::resolve::Change;
use crate::sideband::{Mmap, Record};
use crate::x86::address::{USER_TABLE, task_space};

/// An executable mapping. If `file` is `None`, memory that is not code replaces an executable mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Offset of `start` in the file, in bytes.
    pub pgoff: u64,
    /// Index of the path in [`Maps::paths`].
    pub file: Option<u32>,
    /// Time from which the mapping is in force, in ns.
    pub from: u64,
}

/// Identity of a mapping: its address space, the life of that, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MappingId {
    pub asid: u64,
    pub life: usize,
    pub number: usize,
}

#[derive(Debug, Default)]
struct Space {
    /// Lives of the address space, each with its thread group, first time, and mappings in time order.
    lives: Vec<Life>,
}

#[derive(Debug)]
struct Life {
    tgid: u32,
    from: u64,
    mappings: Vec<Mapping>,
    index: InTime,
}

/// A mapping, and what tells where it is the one in force.
#[derive(Debug)]
pub(super) struct Found<'m> {
    pub mapping: Mapping,
    index: &'m InTime,
    /// Others up to this time, ns, and behind this number are in force at their addresses.
    time: u64,
    after: Option<usize>,
}

impl Found<'_> {
    /// The part of a range around `va`, which the mapping has, that no other mapping covers.
    pub fn around(&self, va: u64, range: (u64, u64)) -> (u64, u64) {
        self.index.around(va, self.time, range, self.after)
    }
}

/// The mapping that is in force at `va`.
fn newest<'m>(index: &'m InTime, mappings: &[Mapping], va: u64, ns: u64) -> Option<Found<'m>> {
    let number = index.newest(va, ns)?;
    Some(Found { mapping: mappings[number], index, time: ns, after: Some(number) })
}

/// The next mapping at `va`, before which there is none.
fn next<'m>(index: &'m InTime, mappings: &[Mapping], va: u64, ns: u64) -> Option<Found<'m>> {
    let mapping = mappings[index.next(va, ns)?];
    Some(Found { mapping, index, time: mapping.from, after: None })
}

/// An index of mappings, which are in order of time.
fn index(mappings: &[Mapping]) -> InTime {
    InTime::new(mappings.iter().map(|m| (m.start, m.end, m.from)))
}

/// The first of the mappings at `va`, if all there are of the same file.
fn only<'m>(index: &InTime, mappings: &'m [Mapping], va: u64) -> Option<&'m Mapping> {
    let mut all = index.at(va);
    let mut least = all.next()?;
    for other in all {
        if mappings[other].file != mappings[least].file {
            return None;
        }
        least = least.min(other);
    }
    Some(&mappings[least])
}

/// All executable mappings of a run.
#[derive(Debug, Default)]
pub struct Maps {
    spaces: HashMap<u64, Space>,
    /// The mappings of all spaces in time order, used for children without records.
    all: Vec<Mapping>,
    index: InTime,
    /// See [`Maps::only_certain`].
    only_certain: bool,
    paths: Vec<String>,
}

impl Maps {
    /// Collects the mappings of sideband records.
    #[must_use]
    pub fn new(records: &[Record]) -> Self {
        let mut maps = Maps::default();
        let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
        for record in records {
            match record {
                Record::Mmap(m) if m.start < m.end => {
                    let file = m.exec.then(|| {
                        *numbers.entry(&m.path).or_insert_with(|| {
                            maps.paths.push(m.path.clone());
                            (maps.paths.len() - 1) as u32
                        })
                    });
                    maps.add(m, file);
                }
                Record::Fork(f) => {
                    if let (Some(child), Some(parent)) = (f.asid, f.parent_asid)
                        && child != parent
                    {
                        maps.copy(parent, child, f.tgid, f.t);
                    }
                }
                _ => {}
            }
        }
        maps.all.sort_by_key(|m| m.from);
        maps.index = index(&maps.all);
        for life in maps.spaces.values_mut().flat_map(|space| &mut space.lives) {
            life.mappings.sort_by_key(|m| m.from);
            life.index = index(&life.mappings);
        }
        maps
    }

    fn add(&mut self, m: &Mmap, file: Option<u32>) {
        let lives = &mut self.spaces.entry(m.asid).or_default().lives;
        if lives.last().is_none_or(|life| life.tgid != m.tgid) {
            lives.push(Life { tgid: m.tgid, from: m.t, mappings: Vec::new(), index: InTime::default() });
        }
        let Some(life) = lives.last_mut() else { return };
        // Mappings of data matter only if they replace code.
        let hides = |old: &Mapping| old.file.is_some() && old.start < m.end && m.start < old.end;
        if file.is_none() && !life.mappings.iter().any(hides) {
            return;
        }
        let mapping = Mapping { start: m.start, end: m.end, pgoff: m.pgoff, file, from: m.t };
        life.mappings.push(mapping);
        if file.is_some() {
            self.all.push(mapping);
        }
    }

    fn copy(&mut self, parent: u64, child: u64, tgid: u32, t: u64) {
        let Some(life) = self.spaces.get(&parent).and_then(|s| s.lives.last()) else { return };
        let mappings = life.mappings.iter().map(|m| Mapping { from: t, ..*m }).collect();
        let life = Life { tgid, from: t, mappings, index: InTime::default() };
        self.spaces.entry(child).or_default().lives.push(life);
    }

    /// From now on, code of an address space without records is taken for a file's only if no other file is mapped at its address in
    /// any address space. Otherwise the newest mapping at the address counts, as the space may be a child's.
    pub fn only_certain(&mut self) {
        self.only_certain = true;
    }

    /// The mapping in force at `va` of address space `asid` at time `ns`. `None` if there is none or it is not code.
    #[must_use]
    pub fn find(&self, asid: u64, va: u64, ns: u64) -> Option<Mapping> {
        self.look(asid, va, ns).map(|found| found.mapping)
    }

    /// The same, with where else it is in force.
    pub(super) fn look(&self, asid: u64, va: u64, ns: u64) -> Option<Found<'_>> {
        // A program's own tables are beside those with which the kernel recorded its mappings.
        if let Some(space) = self.spaces.get(&asid).or_else(|| self.spaces.get(&task_space(asid))) {
            let i = space.lives.partition_point(|life| life.from <= ns);
            if let Some(life) = i.checked_sub(1).map(|i| &space.lives[i])
                && let Some(found) = newest(&life.index, &life.mappings, va, ns)
            {
                return Some(found).filter(|found| found.mapping.file.is_some());
            }
            // The estimated time may be slightly before the record. Looks in this life and the next one.
            let soon = space.lives[i.saturating_sub(1)..].iter().take(2);
            let soon = soon.filter_map(|life| next(&life.index, &life.mappings, va, ns));
            if let Some(next) = soon.min_by_key(|found| found.mapping.from) {
                return Some(next).filter(|found| found.mapping.file.is_some());
            }
        }
        let (index, all) = (&self.index, &self.all);
        if self.only_certain {
            let mapping = *only(index, all, va)?;
            return Some(Found { mapping, index, time: u64::MAX, after: None });
        }
        newest(index, all, va, ns).or_else(|| next(index, all, va, ns))
    }

    /// The mappings of an address space's life at time `ns`, in order of time; those of its first life if it has none yet.
    #[must_use]
    pub fn life(&self, asid: u64, ns: u64) -> &[Mapping] {
        let Some(space) = self.spaces.get(&asid).or_else(|| self.spaces.get(&task_space(asid))) else {
            return &[];
        };
        let index = space.lives.partition_point(|life| life.from <= ns).saturating_sub(1);
        space.lives.get(index).map_or(&[], |life| &life.mappings)
    }

    /// The mappings of files at `va` that address space `asid` ever had.
    pub(super) fn ever_at(&self, asid: u64, va: u64) -> impl Iterator<Item = (MappingId, &Mapping)> {
        let known = [asid, task_space(asid)].into_iter().find(|asid| self.spaces.contains_key(asid));
        let lives = known.map_or(&[][..], |asid| &self.spaces[&asid].lives);
        lives.iter().enumerate().flat_map(move |(number, life)| {
            let id = MappingId { asid: known.unwrap_or_default(), life: number, number: 0 };
            let all =
                life.index.at(va).map(move |number| (MappingId { number, ..id }, &life.mappings[number]));
            all.filter(|(_, mapping)| mapping.file.is_some())
        })
    }

    /// The mapping with this identity.
    pub(super) fn get(&self, id: MappingId) -> Option<&Mapping> {
        self.spaces.get(&id.asid)?.lives.get(id.life)?.mappings.get(id.number)
    }

    /// The mapping is of the file with this number from now on. Returns the mapping.
    pub(super) fn set_file(&mut self, id: MappingId, file: u32) -> Option<Mapping> {
        let lives = &mut self.spaces.get_mut(&id.asid)?.lives;
        let mapping = lives.get_mut(id.life)?.mappings.get_mut(id.number)?;
        let old = *mapping;
        mapping.file = Some(file);
        for same in self.all.iter_mut().filter(|mapping| **mapping == old) {
            same.file = Some(file);
        }
        Some(old)
    }

    /// The times at which the result of [`Maps::find`] may change for a range, in time order.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (&asid, space) in &self.spaces {
            let change = |at_ns, m: &Mapping| Change { at_ns, asid, start: m.start, end: m.end };
            let first = changes.len();
            for (i, life) in space.lives.iter().enumerate() {
                changes.extend(life.mappings.iter().map(|m| change(m.from, m)));
                // The mappings of an earlier life end with it.
                let before = i.checked_sub(1).map(|i| &space.lives[i]);
                changes.extend(before.iter().flat_map(|l| &l.mappings).map(|m| change(life.from, m)));
            }
            // The program's own tables, if it has some.
            let own = asid | USER_TABLE;
            if own != asid && !self.spaces.contains_key(&own) {
                let again: Vec<_> = changes[first..].iter().map(|c| Change { asid: own, ..*c }).collect();
                changes.extend(again);
            }
        }
        changes.sort_unstable();
        changes.dedup();
        changes
    }

    /// Paths by the numbers in [`Mapping::file`], in the order of their first mapping.
    #[must_use]
    pub fn paths(&self) -> &[String] {
        &self.paths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mmap(t: u64, tgid: u32, asid: u64, start: u64, end: u64, path: &str) -> Record {
        let exec = !path.starts_with('-');
        let path = path.trim_start_matches('-').to_owned();
        Record::Mmap(Mmap { t, cpu: 0, pid: tgid, tgid, asid, start, end, pgoff: 0, exec, path })
    }

    fn path(maps: &Maps, asid: u64, va: u64, ns: u64) -> &str {
        maps.find(asid, va, ns).map_or("-", |m| &maps.paths()[m.file.unwrap() as usize])
    }

    #[test]
    fn later_mappings_replace_earlier_ones() {
        let maps = Maps::new(&[
            mmap(10, 1, 0x1000, 0x10000, 0x20000, "/bin/a"),
            mmap(20, 1, 0x1000, 0x14000, 0x15000, "/lib/b"),
            mmap(30, 1, 0x1000, 0x10000, 0x11000, "-data"),
        ]);
        assert_eq!(path(&maps, 0x1000, 0x14000, 15), "/bin/a");
        assert_eq!(path(&maps, 0x1000, 0x14000, 25), "/lib/b");
        assert_eq!(path(&maps, 0x1000, 0x15000, 25), "/bin/a");
        assert_eq!(path(&maps, 0x1000, 0x10000, 25), "/bin/a");
        assert_eq!(path(&maps, 0x1000, 0x10000, 35), "-");
    }

    #[test]
    fn a_reused_address_space_begins_anew() {
        let maps = Maps::new(&[
            mmap(10, 1, 0x1000, 0x10000, 0x20000, "/bin/a"),
            mmap(50, 2, 0x1000, 0x40000, 0x50000, "/bin/b"),
        ]);
        assert_eq!(path(&maps, 0x1000, 0x40000, 60), "/bin/b");
        assert_eq!(path(&maps, 0x1000, 0x10000, 40), "/bin/a");
    }

    #[test]
    fn children_see_their_parents_mappings() {
        let guess = Maps::new(&[mmap(10, 1, 0x1000, 0x10000, 0x20000, "/bin/sh")]);
        assert_eq!(path(&guess, 0x2000, 0x10000, 20), "/bin/sh");
        assert_eq!(path(&guess, 0x2000, 0x20000, 20), "-");
        let fork = crate::sideband::Fork {
            t: 20,
            cpu: 0,
            pid: 2,
            tgid: 2,
            ppid: 1,
            asid: Some(0x2000),
            parent_asid: Some(0x1000),
        };
        let told = Maps::new(&[
            mmap(5, 9, 0x2000, 0x10000, 0x20000, "/bin/old"),
            mmap(10, 1, 0x1000, 0x10000, 0x20000, "/bin/sh"),
            Record::Fork(fork),
        ]);
        assert_eq!(path(&told, 0x2000, 0x10000, 15), "/bin/old");
        assert_eq!(path(&told, 0x2000, 0x10000, 25), "/bin/sh");
    }

    #[test]
    fn slightly_early_times_find_the_coming_mapping() {
        let maps = Maps::new(&[mmap(10, 1, 0x1000, 0x10000, 0x20000, "/bin/a")]);
        assert_eq!(path(&maps, 0x1000, 0x10000, 9), "/bin/a");
    }
}
