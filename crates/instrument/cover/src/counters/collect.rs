// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges the coverage of many objects into counts for each source file.
//!
//! Input: objects, in sequence or concurrently ([`Collector::add`] takes `&self`). Output: [`Cover`], independent of
//! the order. Copies of a function in many objects (a static inline function of a header) are one function, and their
//! branches one set of branches. A branch is identified by its function, its line, and its index among that function's
//! branches on the line. Copies with another number of branches, for which the compiler generated other code, stay
//! separate.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use foldhash::fast::RandomState;
use kprism_gcov::path::{below, canonical};
use kprism_gcov::{Data, Notes, Result, Unit, UnitCounter, Version};

use super::merge_source::MergedSource;
use crate::cover::{Cover, FunctionTotal, Source};
use crate::path::{Prefixes, is_header, root_of, source_root};

/// Identity of an object.
#[derive(Debug, Clone, Copy, Default)]
pub struct Object<'a> {
    /// Object number. Functions are ordered by it, whichever thread merges first.
    pub number: u32,
    /// Path of the object without suffix. Together with the path of its source, it shows the root directory of the
    /// sources.
    pub path: Option<&'a str>,
}

/// Merges objects, from any number of threads.
#[derive(Debug, Default)]
pub struct Collector {
    sources: RwLock<Names>,
    functions: RwLock<HashMap<FunctionKey, u32, RandomState>>,
    /// By function number: the first object that contains the function, and its index there.
    firsts: Mutex<Vec<(u32, u32)>>,
    compilers: Mutex<Option<Version>>,
    objects: std::sync::atomic::AtomicU32,
    folders: Mutex<BTreeMap<String, u32>>,
    prefixes: Prefixes,
}

#[derive(Debug, Default)]
struct Names {
    index: HashMap<String, u32, RandomState>,
    all: Vec<std::sync::Arc<Mutex<MergedSource>>>,
}

/// Key of a function: source, first line, name.
type FunctionKey = (u32, u32, Box<str>);

/// Locks a mutex. A mutex is poisoned only by a panic, which is propagated anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collector {
    /// Returns a collector that renames source paths with `prefixes`.
    pub fn renaming(prefixes: Prefixes) -> Self {
        Collector { prefixes, ..Collector::default() }
    }

    /// Merges an object's coverage. Functions without data are omitted.
    ///
    /// # Errors
    /// If notes and data are from different builds. Nothing is merged then.
    pub fn add(
        &self,
        counter: &mut UnitCounter,
        object: Object<'_>,
        notes: &Notes<'_>,
        data: &Data,
    ) -> Result<()> {
        let unit = counter.unit(notes, Some(data))?;
        self.merge(object, notes, &unit);
        Ok(())
    }

    /// Merges an object that never ran: all its counts are 0.
    ///
    /// # Errors
    /// As for [`Collector::add`].
    pub fn add_never_ran(
        &self,
        counter: &mut UnitCounter,
        object: Object<'_>,
        notes: &Notes<'_>,
    ) -> Result<()> {
        let unit = counter.unit(notes, None)?;
        self.merge(object, notes, &unit);
        Ok(())
    }

    fn merge(&self, object: Object<'_>, notes: &Notes<'_>, unit: &Unit) {
        self.objects.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let cwd = notes.cwd.as_deref().map(|cwd| canonical(cwd.into()));
        let paths: Vec<String> = notes.sources.iter().map(|name| below(cwd.as_deref(), name)).collect();
        if let Some(folder) = root(object.path, cwd.as_deref(), &paths) {
            let folder = self.prefixes.map(folder);
            let mut folders = lock(&self.folders);
            match folders.get_mut(folder.as_ref()) {
                Some(count) => *count += 1,
                None => drop(folders.insert(folder.into_owned(), 1)),
            }
        }
        let ids: Vec<u32> = paths.iter().map(|path| self.source(&self.prefixes.map(path))).collect();
        // Indexed by the function's number in the object. Functions without counters have no entry.
        let mut functions = vec![0; notes.functions.len()];
        let mut known = Vec::with_capacity(unit.functions.len());
        for count in &unit.functions {
            let function = &notes.functions[count.index as usize];
            let key = (ids[function.source as usize], function.start_line, function.name.as_ref().into());
            let id = self.function(key);
            functions[count.index as usize] = id;
            known.push((id, (object.number, count.index)));
        }
        self.note(known, notes.header.version);
        for (index, &id) in ids.iter().enumerate() {
            let index = index as u32;
            let lines = slice_of(&unit.lines, |line| line.source, index);
            let branches = slice_of(&unit.branches, |branch| branch.source, index);
            let own = || {
                unit.functions.iter().filter(|count| notes.functions[count.index as usize].source == index)
            };
            if lines.is_empty() && own().next().is_none() {
                continue;
            }
            let merged = self.merged(id);
            let mut merged = lock(&merged);
            merged.lines(lines);
            merged.branches(branches, &functions);
            merged.conditions(slice_of(&unit.conditions, |found| found.source, index), &functions);
            for count in own() {
                let function = &notes.functions[count.index as usize];
                let total = FunctionTotal {
                    name: function.name.clone().into_owned(),
                    lines: (function.start_line, function.end_line),
                    columns: (function.start_column, function.end_column),
                    called: count.called,
                    returned: count.returned,
                    blocks: (count.blocks, count.executed),
                    conditions: count.conditions,
                    paths: count.paths,
                };
                merged.function(functions[count.index as usize], total);
            }
        }
    }

    /// Records the first occurrence of each function, and the newest compiler.
    fn note(&self, functions: Vec<(u32, (u32, u32))>, version: Version) {
        let mut firsts = lock(&self.firsts);
        for (id, place) in functions {
            let id = id as usize;
            if firsts.len() <= id {
                firsts.resize(id + 1, (u32::MAX, u32::MAX));
            }
            firsts[id] = firsts[id].min(place);
        }
        drop(firsts);
        let mut compiler = lock(&self.compilers);
        if compiler.is_none_or(|known| known.numbers() < version.numbers()) {
            *compiler = Some(version);
        }
    }

    fn source(&self, path: &str) -> u32 {
        let names = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(&id) = names.index.get(path) {
            return id;
        }
        drop(names);
        let mut names = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(&id) = names.index.get(path) {
            return id;
        }
        let id = names.all.len() as u32;
        names.index.insert(path.to_owned(), id);
        names.all.push(std::sync::Arc::new(Mutex::new(MergedSource::new(path))));
        id
    }

    fn merged(&self, id: u32) -> std::sync::Arc<Mutex<MergedSource>> {
        self.sources.read().unwrap_or_else(PoisonError::into_inner).all[id as usize].clone()
    }

    fn function(&self, key: FunctionKey) -> u32 {
        let known = self.functions.read().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        known.unwrap_or_else(|| {
            let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
            let next = functions.len() as u32;
            *functions.entry(key).or_insert(next)
        })
    }

    /// Returns the merged coverage.
    pub fn finish(self) -> Cover {
        let names = self.sources.into_inner().unwrap_or_else(PoisonError::into_inner);
        let functions = self.functions.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Sources were numbered in order of arrival; here they are ranked by name.
        let mut paths: Vec<(&str, u32)> = names.index.iter().map(|(name, &id)| (name.as_str(), id)).collect();
        paths.sort_unstable();
        let mut ranks = vec![0u32; paths.len()];
        for (rank, &(_, id)) in (0u32..).zip(&paths) {
            ranks[id as usize] = rank;
        }
        // Functions are ordered as in gcov: by the first object that contains them.
        let firsts = self.firsts.into_inner().unwrap_or_else(PoisonError::into_inner);
        let first = |id: u32| firsts.get(id as usize).copied().unwrap_or((u32::MAX, u32::MAX));
        let mut keys: Vec<_> = functions
            .iter()
            .map(|((source, line, name), &id)| (first(id), ranks[*source as usize], *line, &**name, id))
            .collect();
        keys.sort_unstable();
        let mut order = vec![0u32; keys.len()];
        for (rank, &(_, _, _, _, id)) in keys.iter().enumerate() {
            order[id as usize] = rank as u32;
        }
        let mut sources: Vec<Source> = Vec::with_capacity(names.all.len());
        for merged in names.all {
            sources.extend(std::mem::take(&mut *lock(&merged)).finish(&order));
        }
        sources.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        let folders = self.folders.into_inner().unwrap_or_else(PoisonError::into_inner);
        let root = root_of(&folders);
        let compiler = self.compilers.into_inner().unwrap_or_else(PoisonError::into_inner);
        Cover { sources, objects: self.objects.into_inner(), root, compiler }
    }
}

/// Returns the root directory of an object's sources: the working directory of the compilation. If the object's own
/// source is elsewhere, it is the directory below which source and object have the same path, or else the source's own.
fn root<'a>(object: Option<&str>, cwd: Option<&'a str>, paths: &'a [String]) -> Option<&'a str> {
    let inside =
        |path: &str| cwd.is_some_and(|cwd| path.strip_prefix(cwd).is_some_and(|rest| rest.starts_with('/')));
    let own = paths.iter().find_map(|path| Some((path, source_root(object?, path)?)));
    // The object may have another name than its source (meson: `main.c.p/src_a.c.o`).
    let own = own.or_else(|| Some((paths.iter().find(|path| !is_header(path))?, "")));
    match own {
        Some((path, _)) if inside(path) => cwd,
        Some((_, root)) if !root.is_empty() => Some(root),
        Some((path, _)) if path.starts_with('/') => path.rsplit_once('/').map(|(folder, _)| folder),
        _ => cwd,
    }
}

/// Returns the items of one source from a list sorted by source.
fn slice_of<T>(all: &[T], source: impl Fn(&T) -> u32, wanted: u32) -> &[T] {
    let start = all.partition_point(|item| source(item) < wanted);
    let end = all.partition_point(|item| source(item) <= wanted);
    &all[start..end]
}
