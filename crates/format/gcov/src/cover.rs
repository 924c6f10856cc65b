// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges the coverage of many objects into counts for each source file.
//!
//! Input: objects, in sequence or concurrently ([`Collector::add`] takes `&self`). Output: [`Cover`], independent of
//! the order. Copies of a function in many objects (a static inline function of a header) are one function, and their
//! branches one set of branches. A branch is identified by its function, its line, and its index among that function's
//! branches on the line. Copies with another number of branches, for which the compiler generated other code, stay
//! separate.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use foldhash::fast::RandomState;

use crate::error::Result;
use crate::notes::Notes;
use crate::path::{Prefixes, below, canonical, is_header, root_of, source_root};
use crate::unit::{Outcomes, Solver, Unit, Way};
use crate::version::Version;
use crate::{Data, data, notes};

/// Coverage of all source files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cover {
    /// Source files, sorted by path.
    pub sources: Vec<Source>,
    /// Number of objects that were merged.
    pub objects: u32,
    /// The folder that most objects' sources are below, if the notes tell: the working directories of the compilations,
    /// unless the sources are elsewhere (`make O=`), and what these have in common. Paths are displayed relative to it.
    pub root: Option<String>,
    /// Newest compiler version in any object's notes.
    pub compiler: Option<Version>,
}

/// Coverage of a source file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// Path; absolute if the compiler's working directory is known.
    pub path: String,
    /// Lines, sorted by number.
    pub lines: Vec<LineCount>,
    /// Functions, sorted by line and name.
    pub functions: Vec<FunctionTotal>,
    /// Branches and calls, sorted by line, function and index.
    pub branches: Vec<BranchCount>,
    /// Decisions, sorted by line, function and index (GCC 14).
    pub conditions: Vec<ConditionCount>,
}

/// Coverage of a decision, over all objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConditionCount {
    /// Line number.
    pub line: u32,
    /// Number of the function, as in [`BranchCount::function`].
    pub function: u32,
    /// Index among the function's decisions on the line.
    pub place: u16,
    /// Outcomes of its conditions that occurred, in any object.
    pub seen: Outcomes,
}

/// Coverage of a line, over all objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineCount {
    /// Line number.
    pub line: u32,
    /// True if part of the line was not executed, in at least one object.
    pub unexecuted_block: bool,
    /// True if the line is reached only by exceptions, in every object.
    pub exceptional: bool,
    /// Number of executions.
    pub count: i64,
}

/// Coverage of a function, over all objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionTotal {
    /// Symbol name.
    pub name: String,
    /// First and last line.
    pub lines: (u32, u32),
    /// First and last column; 0 if the notes do not contain them.
    pub columns: (u32, u32),
    /// Number of calls.
    pub called: i64,
    /// Number of returns.
    pub returned: i64,
    /// Number of blocks in all copies, and of executed ones.
    pub blocks: (u32, u32),
    /// Outcomes of conditions that occurred, and all outcomes; the best copy counts (GCC 14).
    pub conditions: (u32, u32),
    /// Prime paths that were taken, and all paths; the best copy counts (GCC 15).
    pub paths: (u32, u32),
}

/// Coverage of a branch or call, over all objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BranchCount {
    /// Line number.
    pub line: u32,
    /// Number of the function: equal for branches of the same function, different for other functions of the file.
    pub function: u32,
    /// Number of the function's branches and calls on the line.
    pub of: u16,
    /// Index among them.
    pub place: u16,
    /// Kind of branch.
    pub way: Way,
    /// Number of times it was taken; for a call, number of returns.
    pub taken: i64,
    /// Number of executions of its block.
    pub executed: i64,
}

/// Totals of a file, a directory, or everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Lines with code.
    pub lines: Ratio,
    /// Functions; a hit is a called one.
    pub functions: Ratio,
    /// Branches; a hit is one whose block was executed.
    pub branches: Ratio,
    /// Number of branches that were taken.
    pub taken: u64,
    /// Calls; a hit is an executed one.
    pub calls: Ratio,
    /// Outcomes of conditions.
    pub conditions: Ratio,
    /// Prime paths.
    pub paths: Ratio,
}

/// Number of items, and how many of them were executed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ratio {
    /// All items.
    pub all: u64,
    /// Executed items.
    pub hit: u64,
}

impl Ratio {
    fn count(&mut self, hit: bool) {
        self.all += 1;
        self.hit += u64::from(hit);
    }

    fn add(&mut self, other: Ratio) {
        self.all += other.all;
        self.hit += other.hit;
    }

    /// Percentage of executed items; None if there are no items.
    pub fn percent(self) -> Option<f64> {
        (self.all != 0).then(|| 100.0 * self.hit as f64 / self.all as f64)
    }
}

impl Totals {
    /// Adds the totals of another file.
    pub fn add(&mut self, other: &Totals) {
        self.lines.add(other.lines);
        self.functions.add(other.functions);
        self.branches.add(other.branches);
        self.taken += other.taken;
        self.calls.add(other.calls);
        self.conditions.add(other.conditions);
        self.paths.add(other.paths);
    }
}

impl Source {
    /// Computes the file's totals.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for line in &self.lines {
            totals.lines.count(line.count != 0);
        }
        for function in &self.functions {
            totals.functions.count(function.called != 0);
            let (seen, all) = function.conditions;
            totals.conditions.add(Ratio { all: all.into(), hit: seen.into() });
            let (gone, all) = function.paths;
            totals.paths.add(Ratio { all: all.into(), hit: gone.into() });
        }
        for branch in &self.branches {
            if branch.way.is_branch() {
                totals.branches.count(branch.executed != 0);
                totals.taken += u64::from(branch.taken != 0);
            } else {
                totals.calls.count(branch.executed != 0);
            }
        }
        totals
    }

    /// Returns the decisions of a line.
    pub fn conditions_of(&self, line: u32) -> &[ConditionCount] {
        let start = self.conditions.partition_point(|condition| condition.line < line);
        let end = self.conditions.partition_point(|condition| condition.line <= line);
        &self.conditions[start..end]
    }

    /// Returns the branches and calls of a line.
    pub fn branches_of(&self, line: u32) -> &[BranchCount] {
        let start = self.branches.partition_point(|branch| branch.line < line);
        let end = self.branches.partition_point(|branch| branch.line <= line);
        &self.branches[start..end]
    }
}

impl Cover {
    /// Formats a path for display: relative to the root directory if it is below it.
    pub fn shown<'a>(&self, path: &'a str) -> &'a str {
        let below = self.root.as_deref().and_then(|root| path.strip_prefix(root)?.strip_prefix('/'));
        below.unwrap_or(path)
    }

    /// Number of lines with a negative count of the line, its function, or a branch or call. Two CPUs changed their
    /// counters at once, or the counters changed while they were read.
    pub fn torn(&self) -> usize {
        let torn = |branch: &BranchCount| {
            branch.taken < 0
                || branch.executed < 0
                || branch.way.is_branch() && branch.taken > branch.executed
        };
        self.sources
            .iter()
            .map(|source| {
                let lines = source.lines.iter().filter(|line| line.count < 0).map(|line| line.line);
                let branches = source.branches.iter().filter(|branch| torn(branch)).map(|branch| branch.line);
                let functions =
                    source.functions.iter().filter(|found| found.called < 0 || found.returned < 0);
                let functions = functions.map(|found| found.lines.0);
                lines.chain(branches).chain(functions).collect::<BTreeSet<u32>>().len()
            })
            .sum()
    }

    /// Number of lines with calls that returned more often than they were made: before the window or a reset of the
    /// counters, or fork(), which returns twice; or counters are torn.
    pub fn returned_only(&self) -> usize {
        let of_source = |source: &Source| {
            let found = source
                .branches
                .iter()
                .filter(|call| !call.way.is_branch() && call.executed >= 0 && call.taken > call.executed);
            found.map(|call| call.line).collect::<BTreeSet<u32>>().len()
        };
        self.sources.iter().map(of_source).sum()
    }

    /// Computes the totals of all files.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.sources.iter().for_each(|source| totals.add(&source.totals()));
        totals
    }
}

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
    all: Vec<std::sync::Arc<Mutex<Gathered>>>,
}

/// Key of a function: source, first line, name.
type FunctionKey = (u32, u32, Box<str>);

/// A source file under construction, with its functions by number.
#[derive(Debug, Default)]
struct Gathered {
    path: String,
    lines: Vec<LineCount>,
    functions: Vec<(u32, FunctionTotal)>,
    branches: Vec<BranchCount>,
    conditions: Vec<ConditionCount>,
}

/// Locks a mutex. A mutex is poisoned only by a panic, which is propagated anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collector {
    /// Returns a collector that renames source paths with `prefixes`.
    pub fn renaming(prefixes: Prefixes) -> Self {
        Collector { prefixes, ..Collector::default() }
    }

    /// Reads an object's notes and merges its coverage. Functions without data are omitted.
    ///
    /// # Errors
    /// If the notes cannot be read, or notes and data are from different builds. Nothing is merged then.
    pub fn add(&self, solver: &mut Solver, note_bytes: &[u8], data: &Data) -> Result<()> {
        self.add_read(solver, Object::default(), &notes::read(note_bytes)?, data)
    }

    /// As [`Collector::add`], for notes that are already parsed, with the object's identity.
    ///
    /// # Errors
    /// As for [`Collector::add`].
    pub fn add_read(
        &self,
        solver: &mut Solver,
        object: Object<'_>,
        notes: &Notes<'_>,
        data: &Data,
    ) -> Result<()> {
        let unit = solver.unit(notes, Some(data))?;
        self.merge(object, notes, &unit);
        Ok(())
    }

    /// Merges an object that never ran: all its counts are 0.
    ///
    /// # Errors
    /// As for [`Collector::add`].
    pub fn add_never_ran(&self, solver: &mut Solver, object: Object<'_>, notes: &Notes<'_>) -> Result<()> {
        let unit = solver.unit(notes, None)?;
        self.merge(object, notes, &unit);
        Ok(())
    }

    /// As [`Collector::add`], for the bytes of a data file.
    ///
    /// # Errors
    /// As for [`Collector::add`], or if the data cannot be read.
    pub fn add_bytes(&self, solver: &mut Solver, note_bytes: &[u8], data_bytes: &[u8]) -> Result<()> {
        self.add(solver, note_bytes, &data::read(data_bytes)?)
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
            let gathered = self.gathered(id);
            let mut gathered = lock(&gathered);
            gathered.lines(lines);
            gathered.branches(branches, &functions);
            gathered.conditions(slice_of(&unit.conditions, |found| found.source, index), &functions);
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
                gathered.function(functions[count.index as usize], total);
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
        let gathered = Gathered { path: path.to_owned(), ..Gathered::default() };
        names.all.push(std::sync::Arc::new(Mutex::new(gathered)));
        id
    }

    fn gathered(&self, id: u32) -> std::sync::Arc<Mutex<Gathered>> {
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
        for gathered in names.all {
            let mut gathered = std::mem::take(&mut *lock(&gathered));
            if gathered.lines.is_empty() && gathered.functions.is_empty() {
                continue;
            }
            for branch in &mut gathered.branches {
                branch.function = order[branch.function as usize];
            }
            gathered.branches.sort_unstable_by_key(branch_key);
            for condition in &mut gathered.conditions {
                condition.function = order[condition.function as usize];
            }
            gathered.conditions.sort_unstable_by_key(condition_key);
            gathered.functions.sort_unstable_by(|(_, a), (_, b)| (a.lines, &a.name).cmp(&(b.lines, &b.name)));
            gathered.branches.shrink_to_fit();
            gathered.lines.shrink_to_fit();
            sources.push(Source {
                path: gathered.path,
                lines: gathered.lines,
                functions: gathered.functions.into_iter().map(|(_, function)| function).collect(),
                branches: gathered.branches,
                conditions: gathered.conditions,
            });
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

/// Sort key of a branch: line, function, and index. One number, because that compares faster than four.
fn branch_key(branch: &BranchCount) -> u128 {
    u128::from(branch.line) << 64
        | u128::from(branch.function) << 32
        | u128::from(branch.of) << 16
        | u128::from(branch.place)
}

fn condition_key(condition: &ConditionCount) -> (u32, u32, u16, u32) {
    (condition.line, condition.function, condition.place, condition.seen.terms)
}

/// Returns the items of one source from a list sorted by source.
fn slice_of<T>(all: &[T], source: impl Fn(&T) -> u32, wanted: u32) -> &[T] {
    let start = all.partition_point(|item| source(item) < wanted);
    let end = all.partition_point(|item| source(item) <= wanted);
    &all[start..end]
}

impl Gathered {
    fn lines(&mut self, lines: &[crate::unit::Line]) {
        let mut new = Vec::new();
        let mut at = 0;
        // Lines of grouped functions occur once for each function; here they are added up.
        for same in lines.chunk_by(|a, b| a.line == b.line) {
            let count = same.iter().fold(0i64, |sum, line| sum.saturating_add(line.count));
            let unexecuted_block = same.iter().any(|line| line.unexecuted_block);
            let exceptional = same.iter().all(|line| line.exceptional);
            let line = LineCount { line: same[0].line, unexecuted_block, exceptional, count };
            at = seek(&self.lines, at, |known| known.line < line.line);
            match self.lines.get_mut(at).filter(|known| known.line == line.line) {
                Some(known) => {
                    known.count = known.count.saturating_add(count);
                    known.unexecuted_block |= unexecuted_block;
                    known.exceptional &= exceptional;
                }
                None => new.push(line),
            }
        }
        merge_in(&mut self.lines, new, |line| line.line);
    }

    fn branches(&mut self, branches: &[crate::unit::Branch], functions: &[u32]) {
        let mut ours = Vec::with_capacity(branches.len());
        for same in branches.chunk_by(|a, b| (a.line, a.function) == (b.line, b.function)) {
            let of = u16::try_from(same.len()).unwrap_or(u16::MAX);
            for (place, branch) in same.iter().enumerate() {
                ours.push(BranchCount {
                    line: branch.line,
                    function: functions[branch.function as usize],
                    of,
                    place: u16::try_from(place).unwrap_or(u16::MAX),
                    way: branch.way,
                    taken: branch.taken,
                    executed: branch.executed,
                });
            }
        }
        if !ours.is_sorted_by_key(branch_key) {
            ours.sort_by_key(branch_key);
        }
        // Two functions of the same name on the same line of an object are merged.
        ours.dedup_by(|branch, known| {
            let same = branch_key(branch) == branch_key(known);
            if same {
                known.add(branch);
            }
            same
        });
        let mut at = 0;
        ours.retain(|branch| {
            let key = branch_key(branch);
            at = seek(&self.branches, at, |known| branch_key(known) < key);
            match self.branches.get_mut(at).filter(|known| branch_key(known) == key) {
                Some(known) => known.add(branch),
                None => return true,
            }
            false
        });
        merge_in(&mut self.branches, ours, branch_key);
    }

    fn conditions(&mut self, conditions: &[crate::unit::Condition], functions: &[u32]) {
        let mut new = Vec::new();
        for same in conditions.chunk_by(|a, b| (a.line, a.function) == (b.line, b.function)) {
            for (place, condition) in same.iter().enumerate() {
                let place = u16::try_from(place).unwrap_or(u16::MAX);
                let (line, function) = (condition.line, functions[condition.function as usize]);
                let condition = ConditionCount { line, function, place, seen: condition.seen };
                let key = condition_key(&condition);
                match self.conditions.binary_search_by_key(&key, condition_key) {
                    Ok(known) => {
                        self.conditions[known].seen.yes |= condition.seen.yes;
                        self.conditions[known].seen.no |= condition.seen.no;
                    }
                    Err(_) => new.push(condition),
                }
            }
        }
        new.sort_by_key(condition_key);
        new.dedup_by_key(|condition| condition_key(condition));
        merge_in(&mut self.conditions, new, condition_key);
    }

    fn function(&mut self, id: u32, total: FunctionTotal) {
        let place = self.functions.binary_search_by_key(&id, |&(known, _)| known);
        match place {
            Ok(place) => {
                let known = &mut self.functions[place].1;
                known.called = known.called.saturating_add(total.called);
                known.returned = known.returned.saturating_add(total.returned);
                known.blocks.0 = known.blocks.0.saturating_add(total.blocks.0);
                known.blocks.1 = known.blocks.1.saturating_add(total.blocks.1);
                known.conditions = known.conditions.max(total.conditions);
                known.paths = known.paths.max(total.paths);
                known.lines.1 = known.lines.1.max(total.lines.1);
            }
            Err(place) => self.functions.insert(place, (id, total)),
        }
    }
}

impl BranchCount {
    fn add(&mut self, other: &BranchCount) {
        self.taken = self.taken.saturating_add(other.taken);
        self.executed = self.executed.saturating_add(other.executed);
    }
}

/// Returns the first index from `at` on whose item is not below the key. Fast if it is near: the keys are sorted too.
fn seek<T>(sorted: &[T], mut at: usize, below: impl Fn(&T) -> bool) -> usize {
    let mut step = 1;
    while sorted.get(at + step - 1).is_some_and(&below) {
        at += step;
        step *= 2;
    }
    let end = sorted.len().min(at + step);
    at + sorted[at..end].partition_point(below)
}

/// Inserts sorted items with new keys into a sorted list.
fn merge_in<T: Copy, K: Ord>(known: &mut Vec<T>, new: Vec<T>, key: impl Fn(&T) -> K) {
    let Some(&last) = new.last() else { return };
    if known.is_empty() {
        // Most sources belong to a single object.
        *known = new;
        known.shrink_to_fit();
        return;
    }
    // Reserve some extra capacity for further objects. Doubling would waste half of all memory.
    if known.capacity() - known.len() < new.len() {
        known.reserve_exact(new.len() + known.len() / 8);
    }
    // Merge from the end: items before the first new one stay in place.
    let (mut old, mut free) = (known.len(), known.len() + new.len());
    known.resize(free, last);
    for item in new.iter().rev() {
        while old > 0 && key(&known[old - 1]) > key(item) {
            (old, free) = (old - 1, free - 1);
            known[free] = known[old];
        }
        free -= 1;
        known[free] = *item;
    }
}
