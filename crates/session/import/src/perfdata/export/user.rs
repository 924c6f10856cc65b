// SPDX-License-Identifier: MIT OR Apache-2.0
//! Represents the processes' code as mapped files, because perf knows nothing else: mappings of the sideband whose file
//! contains the executed code, and for the rest (vdso, generated code, deleted files) files generated from that code.

use std::collections::BTreeMap;
use std::path::Path;

use kprism_image::sideband::Mmap;
use kprism_image::symbols::maps::Maps;

use super::code::{Change, Code, PAGE, Seen};
use super::owners::Owner;
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
    /// Files of the run that are used, by path.
    pub used: BTreeMap<String, Vec<u8>>,
}

/// Contents of the run's files.
pub(super) struct Files<'a> {
    root: &'a Path,
    known: BTreeMap<String, Option<Vec<u8>>>,
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
            let bytes = place.and_then(|place| std::fs::read(place).ok());
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

/// Finds the mappings of one process in one address space. `seen` is its code in order of time, `mmaps` are its own
/// records, `maps` those of all processes.
pub(super) fn map(
    owner: &Owner,
    seen: &[Seen<'_>],
    mmaps: &[&Mmap],
    maps: &Maps,
    files: &mut Files<'_>,
    user: &mut User,
) {
    let Owner { asid, pid, tgid, ns: since } = *owner;
    let mut rest = Vec::new();
    let add = |user: &mut User, ns, start: u64, end: u64, pgoff, path: &str| {
        let mapped = Mapped {
            pid: tgid,
            tid: pid,
            start,
            len: end - start,
            pgoff,
            path: path.to_owned(),
            ..Mapped::default()
        };
        let known = user.mappings.iter().any(|m| m.ns == ns && m.mapped == mapped);
        if !known {
            user.mappings.push(Timed { ns, mapped });
        }
    };
    for m in mmaps.iter().filter(|m| m.exec && files.get(&m.path).is_some()) {
        add(user, m.t, m.start, m.end, m.pgoff, &m.path);
    }
    for s in seen {
        let own = mmaps.iter().filter(|m| m.exec && m.start <= s.va && s.va < m.end);
        if own.clone().any(|m| files.shows(&m.path, m.start, m.pgoff, s)) {
            continue;
        }
        // A child before its execve has its parent's mappings.
        let path = |file: u32| &maps.paths()[file as usize];
        match maps.find(asid, s.va, since).and_then(|m| Some((m, path(m.file?)))) {
            Some((m, path)) if own.clone().next().is_none() && files.shows(path, m.start, m.pgoff, s) => {
                add(user, since, m.start, m.end, m.pgoff, path);
            }
            _ => rest.push(*s),
        }
    }
    for path in user.mappings.iter().map(|m| &m.mapped.path) {
        if let Some(bytes) = files.get(path).filter(|_| !user.used.contains_key(path)) {
            user.used.insert(path.clone(), bytes.to_vec());
        }
    }
    made(owner, &rest, mmaps, user);
}

/// Generates files for code that is in no file: from each page's first mapping on, and again after each change.
fn made(owner: &Owner, rest: &[Seen<'_>], mmaps: &[&Mmap], user: &mut User) {
    let Owner { pid, tgid, ns: since, .. } = *owner;
    let (mut code, changes) = Code::first(rest.iter().copied());
    let mut put = |ns: u64, start: u64, end: u64, code: &Code| {
        let mut bytes = vec![0; (end - start) as usize];
        for (va, page) in code.pages(start, end) {
            bytes[(va - start) as usize..][..PAGE as usize].copy_from_slice(page);
        }
        let path = format!("/{MADE}/{tgid}-{start:x}-{ns}");
        let mapped =
            Mapped { pid: tgid, tid: pid, start, len: end - start, path: path.clone(), ..Mapped::default() };
        user.mappings.push(Timed { ns, mapped });
        user.made.push((path, bytes));
    };
    for (start, end) in code.ranges(0) {
        let mapped = mmaps.iter().filter(|m| m.exec && m.start < end && start < m.end).map(|m| m.t).min();
        put(mapped.unwrap_or(since), start, end, &code);
    }
    for Change { ns, va, new, .. } in changes {
        code.set(va, &new);
        let (start, end) = (va - va % PAGE, (va + new.len() as u64).next_multiple_of(PAGE));
        put(ns, start, end, &code);
    }
}
