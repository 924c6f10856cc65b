// SPDX-License-Identifier: MIT OR Apache-2.0
//! Represents the processes' code as mapped files, because perf knows nothing else: mappings of the sideband whose file
//! contains the executed code, and for the rest (vdso, generated code, deleted files) files generated from that code.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use kprism_image::ranges::{InTime, Ranges};
use kprism_image::sideband::Mmap;
use kprism_image::symbols::maps::Maps;
use kprism_image::x86::address::task_space;
use kprism_image::{Bytes, is_kernel};

use super::code::{Change, Code, Seen, pages_of, ranges};
use super::owners::Owner;
use crate::PAGE;
use kprism_perfdata::Mapped;

/// Folder of generated files in the export.
pub(in crate::perfdata) const MADE: &str = "kprism-code";

/// A mapping with its time.
#[derive(Debug, Clone)]
pub(super) struct Timed {
    pub ns: u64,
    pub mapped: Mapped,
}

/// The files and mappings of the processes.
#[derive(Debug, Default)]
pub(super) struct User {
    pub mappings: Vec<Timed>,
    /// Files to generate, by path, with their contents.
    pub made: Vec<(String, Vec<u8>)>,
    /// Paths of the run's files that are used.
    pub used: BTreeSet<String>,
    /// Pieces of code that are in no process's files: they were first seen when no process had their address space any more.
    pub left_out: u64,
    /// Time, task, start, length and offset of each mapping of a file, with its path.
    known: BTreeSet<(u64, [u64; 5], String)>,
}

impl User {
    /// Adds a mapping of a file, once.
    fn add(&mut self, owner: &Owner, ns: u64, start: u64, end: u64, pgoff: u64, path: &str) {
        let Owner { pid, tgid, .. } = *owner;
        let len = end - start;
        let key = (ns, [pid.into(), tgid.into(), start, len, pgoff], path.to_owned());
        if self.known.insert(key) {
            let path = path.to_owned();
            self.used.insert(path.clone());
            let mapped = Mapped { pid: tgid, tid: pid, start, len, pgoff, path, ..Mapped::default() };
            self.mappings.push(Timed { ns, mapped });
        }
    }
}

/// Contents of the run's files.
pub(super) struct Files<'a> {
    root: &'a Path,
    known: BTreeMap<String, Option<Bytes>>,
}

impl<'a> Files<'a> {
    pub fn new(root: &'a Path) -> Self {
        Self { root, known: BTreeMap::new() }
    }

    pub fn get(&mut self, path: &str) -> Option<&[u8]> {
        // perf takes a file of this name for the vDSO of the machine that it runs on: the code goes into a made file.
        if path == "[vdso]" {
            return None;
        }
        if !self.known.contains_key(path) {
            let place = crate::write::below(self.root, path);
            let bytes = place.and_then(|place| Bytes::open(&place).ok());
            self.known.insert(path.to_owned(), bytes);
        }
        self.known.get(path)?.as_deref()
    }

    /// Returns true if the file, mapped in this way, shows these bytes.
    fn shows(&mut self, path: &str, start: u64, pgoff: u64, seen: &Seen<'_>) -> bool {
        let at = pgoff.wrapping_add(seen.va.wrapping_sub(start)) as usize;
        self.get(path).and_then(|file| file.get(at..at.checked_add(seen.bytes.len())?)) == Some(seen.bytes)
    }
}

/// The code of one address space.
#[derive(Default)]
struct Space<'a> {
    /// In order of time.
    seen: Vec<Seen<'a>>,
    /// Numbers of the pieces by address.
    places: Ranges<usize>,
    /// True for code where one of the space's processes has a mapping.
    mapped: Vec<bool>,
    /// True for code that one of the space's processes was given.
    given: Vec<bool>,
}

/// Executable mappings of one process in one address space.
#[derive(Default)]
struct Own<'a> {
    /// In order of time.
    mmaps: Vec<&'a Mmap>,
    /// Their numbers.
    places: InTime,
}

impl<'a> Own<'a> {
    fn index(&mut self) {
        self.mmaps.sort_by_key(|mmap| mmap.t);
        self.places = InTime::new(self.mmaps.iter().map(|mmap| (mmap.start, mmap.end, mmap.t)));
    }

    fn at(&self, va: u64) -> impl Iterator<Item = &'a Mmap> {
        self.places.at(va).map(|number| self.mmaps[number])
    }

    /// The mapping at `va` that is in force at time `ns`.
    fn newest(&self, va: u64, ns: u64) -> Option<&'a Mmap> {
        self.places.newest(va, ns).map(|number| self.mmaps[number])
    }
}

/// The ranges of addresses, joined where they overlap, so that what lies in several of them is found once.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let overlap = next.0 <= last.1;
        if overlap {
            last.1 = last.1.max(next.1);
        }
        overlap
    });
    ranges
}

/// Finds the mappings of all processes. `seen` is all code with its address space, in order of time.
///
/// An address space belongs to one process after another, and each ran only a part of the code that was seen in it: code
/// where it has a mapping itself, or where its parent had one, and code that lies in no process's mappings.
pub(super) fn map_all(
    owners: &[Owner],
    seen: &[(u64, Seen<'_>)],
    mmaps: &[&Mmap],
    maps: &Maps,
    files: &mut Files<'_>,
) -> User {
    let mut spaces: HashMap<u64, Space<'_>> = HashMap::new();
    for (asid, seen) in seen.iter().filter(|(_, seen)| !is_kernel(seen.va)) {
        spaces.entry(*asid).or_default().seen.push(*seen);
    }
    for space in spaces.values_mut() {
        let place = |(i, s): (usize, &Seen<'_>)| (s.va, s.va.saturating_add(s.bytes.len() as u64), i);
        space.places = Ranges::new(space.seen.iter().enumerate().map(place).collect());
        space.mapped = vec![false; space.seen.len()];
        space.given = vec![false; space.seen.len()];
    }
    let mut own: HashMap<(u64, u32), Own<'_>> = HashMap::new();
    for mmap in mmaps.iter().filter(|m| m.exec && m.start < m.end) {
        own.entry((mmap.asid, mmap.tgid)).or_default().mmaps.push(mmap);
    }
    for own in own.values_mut() {
        own.index();
    }
    let nothing = Own::default();
    let own_of = |owner: &Owner| {
        let spaces = [owner.asid, task_space(owner.asid)];
        spaces.iter().find_map(|asid| own.get(&(*asid, owner.tgid))).unwrap_or(&nothing)
    };

    let mut parts: Vec<Vec<usize>> = Vec::new();
    for owner in owners {
        let mut part = Vec::new();
        if let Some(space) = spaces.get_mut(&owner.asid) {
            let own = own_of(owner).mmaps.iter().map(|m| (m.start, m.end));
            let inherited = maps.life(owner.asid, owner.ns).iter().filter(|m| m.file.is_some());
            for (start, end) in joined(own.chain(inherited.map(|m| (m.start, m.end))).collect()) {
                part.extend(space.places.overlapping(start, end));
            }
            part.sort_unstable();
            part.dedup();
            part.iter().for_each(|&i| space.mapped[i] = true);
        }
        parts.push(part);
    }
    let mut elsewhere: HashMap<u64, Vec<usize>> = HashMap::new();
    for (asid, space) in &spaces {
        let rest = (0..space.seen.len()).filter(|&i| !space.mapped[i]);
        elsewhere.insert(*asid, rest.collect());
    }
    let mut user = User::default();
    for (owner, mut part) in owners.iter().zip(parts) {
        part.extend(elsewhere.get(&owner.asid).into_iter().flatten());
        part.sort_unstable();
        let space = spaces.entry(owner.asid).or_default();
        part.retain(|&i| space.seen[i].ns < owner.until);
        part.iter().for_each(|&i| space.given[i] = true);
        map(owner, part.iter().map(|&i| &space.seen[i]), own_of(owner), maps, files, &mut user);
    }
    user.left_out = spaces.values().flat_map(|space| &space.given).filter(|given| !**given).count() as u64;
    user
}

/// Finds the mappings of one process in one address space. `seen` is its code in order of time, `own` are its own
/// mappings, `maps` those of all processes.
fn map<'s, 'b: 's>(
    owner: &Owner,
    seen: impl Iterator<Item = &'s Seen<'b>>,
    own: &Own<'_>,
    maps: &Maps,
    files: &mut Files<'_>,
    user: &mut User,
) {
    let Owner { asid, ns: since, .. } = *owner;
    for m in &own.mmaps {
        if files.get(&m.path).is_some() {
            user.add(owner, m.t, m.start, m.end, m.pgoff, &m.path);
        }
    }
    let mut in_files = |s: &Seen<'_>| {
        // Times within a packet stream are estimates: where it is not the mapping of that time, it may be any.
        let mut shows = |m: &Mmap| files.shows(&m.path, m.start, m.pgoff, s);
        if own.newest(s.va, s.ns).is_some_and(&mut shows) || own.at(s.va).any(shows) {
            return true;
        }
        // A child before its execve has its parent's mappings.
        let path = |file: u32| &maps.paths()[file as usize];
        match maps.find(asid, s.va, since).and_then(|m| Some((m, path(m.file?)))) {
            Some((m, path)) if own.at(s.va).next().is_none() && files.shows(path, m.start, m.pgoff, s) => {
                user.add(owner, since, m.start, m.end, m.pgoff, path);
                true
            }
            _ => false,
        }
    };
    let seen: Vec<(&Seen<'_>, bool)> = seen.map(|s| (s, in_files(s))).collect();
    // A page that differs from its file at any time is written as it was at each time, a breakpoint that is taken out again too.
    let pages: BTreeSet<u64> =
        seen.iter().filter(|(_, in_files)| !in_files).flat_map(|(s, _)| s.pages()).collect();
    let of_pages = |s: &Seen<'_>| s.pages().any(|page| pages.contains(&page));
    let rest: Vec<Seen<'_>> = seen.iter().map(|(s, _)| **s).filter(of_pages).collect();
    made(owner, &rest, &pages, own, user);
}

/// Generates files for code that is in no file: from each page's first mapping on, and again after each change. `rest` is all code
/// that touches these `pages`.
fn made(owner: &Owner, rest: &[Seen<'_>], pages: &BTreeSet<u64>, own: &Own<'_>, user: &mut User) {
    let Owner { pid, tgid, ns: since, .. } = *owner;
    let (mut code, changes) = Code::first(rest.iter().copied());
    let mut put = |ns: u64, start: u64, end: u64, code: &Code| {
        let mut bytes = vec![0; (end - start) as usize];
        for (va, page) in code.pages(start, end) {
            bytes[(va - start) as usize..][..PAGE as usize].copy_from_slice(page);
        }
        // The rest of an instruction that goes on in the next page: readers take it from the file, behind what is mapped.
        if let Some((_, page)) = code.pages(end, end.saturating_add(PAGE)).next() {
            bytes.extend(&page[..LONGEST_INSN - 1]);
        }
        let path = format!("/{MADE}/{tgid}-{start:x}-{ns}");
        let mapped =
            Mapped { pid: tgid, tid: pid, start, len: end - start, path: path.clone(), ..Mapped::default() };
        user.mappings.push(Timed { ns, mapped });
        user.made.push((path, bytes));
    };
    // What changed before the process came is what it began with.
    let (before, changes): (Vec<Change>, Vec<Change>) =
        changes.into_iter().partition(|change| change.ns <= since);
    before.iter().for_each(|change| code.set(change.va, &change.new));
    for (start, end) in ranges(pages.iter().copied(), 0) {
        let mapped = own.places.first_begin(start, end);
        put(mapped.unwrap_or(since), start, end, &code);
    }
    for Change { ns, va, new, .. } in changes {
        code.set(va, &new);
        let changed = pages_of(va, new.len()).filter(|page| pages.contains(page));
        for (start, end) in ranges(changed, 0) {
            put(ns, start, end, &code);
        }
    }
}

/// Bytes of the longest instruction (SDM vol. 2A, 2.3.11).
const LONGEST_INSN: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_are_joined() {
        assert_eq!(
            joined(vec![(30, 40), (0, 10), (5, 8), (10, 20), (35, 50), (60, 70)]),
            [(0, 20), (30, 50), (60, 70)]
        );
        assert_eq!(joined(Vec::new()), []);
    }
}
