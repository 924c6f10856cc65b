// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects put together: what was executed of each source file, over all objects that have code of it.
//!
//! In: objects, one after the other or many at a time ([`Collector::add`] takes `&self`). Out: [`Cover`], the same
//! whatever the order. Copies of a function in many objects (a static inline function of a header) are one function,
//! and their branches one set of branches: a branch is told by its function, its line, and its place among that
//! function's branches there. Copies that the compiler gave another number of branches stay apart.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use foldhash::fast::RandomState;

use crate::error::Result;
use crate::notes::Notes;
use crate::path::{Prefixes, below, canonical, source_root};
use crate::unit::{Outcomes, Solver, Unit, Way};
use crate::version::Version;
use crate::{Data, data, notes};

/// What was executed of all source files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cover {
    /// By path.
    pub sources: Vec<Source>,
    /// Objects that were put in.
    pub objects: u32,
    /// The folder that holds the sources of most of them, if they say: the one they were compiled in, unless sources lie
    /// elsewhere (`make O=`). Paths are shown as seen from there.
    pub root: Option<String>,
    /// The newest compiler of any object, as its notes say.
    pub compiler: Option<Version>,
}

/// One source file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// Its path: absolute, if the compiler's folder is known.
    pub path: String,
    /// By line.
    pub lines: Vec<LineCount>,
    /// By line and name.
    pub functions: Vec<FunctionTotal>,
    /// By line, function and place.
    pub branches: Vec<BranchCount>,
    /// By line, function and place (GCC 14).
    pub conditions: Vec<ConditionCount>,
}

/// A decision, over all objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConditionCount {
    /// Its line.
    pub line: u32,
    /// As of branches.
    pub function: u32,
    /// Which of the function's decisions there it is.
    pub place: u16,
    /// What was seen of its conditions, in any object.
    pub seen: Outcomes,
}

/// A line, over all objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineCount {
    /// Its number.
    pub line: u32,
    /// Part of it was not executed, in one object at least.
    pub unexecuted_block: bool,
    /// In every object, it is only reached by exceptions.
    pub exceptional: bool,
    /// How often it was executed.
    pub count: i64,
}

/// A function, over all objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionTotal {
    /// Its name, as the linker knows it.
    pub name: String,
    /// First and last line.
    pub lines: (u32, u32),
    /// First and last column; 0 where the notes have none.
    pub columns: (u32, u32),
    /// How often it was called.
    pub called: i64,
    /// How often it returned.
    pub returned: i64,
    /// Blocks of all copies, and those that were executed.
    pub blocks: (u32, u32),
    /// Outcomes of conditions that were seen, and all; most of any copy (GCC 14).
    pub conditions: (u32, u32),
    /// Prime paths gone, and all; most of any copy (GCC 15).
    pub paths: (u32, u32),
}

/// A branch or call, over all objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BranchCount {
    /// Its line.
    pub line: u32,
    /// What tells its function from others: equal for branches of one function, and for no others of the file.
    pub function: u32,
    /// How many branches and calls its function has there.
    pub of: u16,
    /// Which of them it is.
    pub place: u16,
    /// What it is.
    pub way: Way,
    /// How often it was taken; of a call, how often it returned.
    pub taken: i64,
    /// How often its block was executed.
    pub executed: i64,
}

/// Numbers of a file, folder or all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Lines with code, and executed ones.
    pub lines: Ratio,
    /// Functions, and called ones.
    pub functions: Ratio,
    /// Branches, and those whose block was executed.
    pub branches: Ratio,
    /// Branches that were taken.
    pub taken: u64,
    /// Calls, and executed ones.
    pub calls: Ratio,
    /// Outcomes of conditions, and those seen.
    pub conditions: Ratio,
    /// Prime paths, and those gone.
    pub paths: Ratio,
}

/// So many of so many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ratio {
    /// All.
    pub all: u64,
    /// Those executed.
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

    /// Percent; none of nothing.
    pub fn percent(self) -> Option<f64> {
        (self.all != 0).then(|| 100.0 * self.hit as f64 / self.all as f64)
    }
}

impl Totals {
    /// Adds those of another file.
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
    /// Its numbers.
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

    /// Decisions of one line.
    pub fn conditions_of(&self, line: u32) -> &[ConditionCount] {
        let start = self.conditions.partition_point(|condition| condition.line < line);
        let end = self.conditions.partition_point(|condition| condition.line <= line);
        &self.conditions[start..end]
    }

    /// Branches and calls of one line.
    pub fn branches_of(&self, line: u32) -> &[BranchCount] {
        let start = self.branches.partition_point(|branch| branch.line < line);
        let end = self.branches.partition_point(|branch| branch.line <= line);
        &self.branches[start..end]
    }
}

impl Cover {
    /// How a path is shown: from the folder that the kernel was built in, if it is below.
    pub fn shown<'a>(&self, path: &'a str) -> &'a str {
        let below = self.root.as_deref().and_then(|root| path.strip_prefix(root)?.strip_prefix('/'));
        below.unwrap_or(path)
    }

    /// Lines with a negative count: their counters were changed by two CPUs at once, or while they were read.
    pub fn torn(&self) -> usize {
        self.sources.iter().flat_map(|source| &source.lines).filter(|line| line.count < 0).count()
    }

    /// All numbers.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.sources.iter().for_each(|source| totals.add(&source.totals()));
        totals
    }
}

/// An object as it is told from others.
#[derive(Debug, Clone, Copy, Default)]
pub struct Object<'a> {
    /// Its number: functions stay in the order of objects by number, whichever thread comes first.
    pub number: u32,
    /// Its path, without suffix: with that of its source it tells where sources are.
    pub path: Option<&'a str>,
}

/// Takes objects in, from any number of threads.
#[derive(Debug, Default)]
pub struct Collector {
    sources: RwLock<Names>,
    functions: RwLock<HashMap<FunctionKey, u32, RandomState>>,
    /// By the numbers of functions: the first object that has it, and where among its functions.
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

/// Source, first line, name.
type FunctionKey = (u32, u32, Box<str>);

/// A source file as far as it is known, its functions by their numbers.
#[derive(Debug, Default)]
struct Gathered {
    path: String,
    lines: Vec<LineCount>,
    functions: Vec<(u32, FunctionTotal)>,
    branches: Vec<BranchCount>,
    conditions: Vec<ConditionCount>,
}

/// A lock is only ever poisoned by a panic, which is passed on anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collector {
    /// One that gives sources the names that `prefixes` tells.
    pub fn renaming(prefixes: Prefixes) -> Self {
        Collector { prefixes, ..Collector::default() }
    }

    /// Reads an object's notes and data and adds what they tell. Functions without data are left out.
    ///
    /// # Errors
    /// If one of them cannot be read, or they do not belong together: then nothing was added.
    pub fn add(&self, solver: &mut Solver, note_bytes: &[u8], data: &Data) -> Result<()> {
        self.add_read(solver, Object::default(), &notes::read(note_bytes)?, data)
    }

    /// [`Collector::add`] of notes that were read, of this object.
    ///
    /// # Errors
    /// As there.
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

    /// [`Collector::add`] of the bytes of a data file.
    ///
    /// # Errors
    /// As there.
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
        // By the object's numbers; of functions without counters nothing is asked.
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

    /// Notes where functions were met first, and the compiler.
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

    /// What all objects told.
    pub fn finish(self) -> Cover {
        let names = self.sources.into_inner().unwrap_or_else(PoisonError::into_inner);
        let functions = self.functions.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Numbers were given in the order of arrival: here in that of the names.
        let mut paths: Vec<(&str, u32)> = names.index.iter().map(|(name, &id)| (name.as_str(), id)).collect();
        paths.sort_unstable();
        let mut ranks = vec![0u32; paths.len()];
        for (rank, &(_, id)) in (0u32..).zip(&paths) {
            ranks[id as usize] = rank;
        }
        // As gcov goes through them: in the order of the first object that has them.
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
        // Of equals the first by name: `max_by_key` would take the last.
        let root = folders.into_iter().rev().max_by_key(|(_, count)| *count).map(|(folder, _)| folder);
        let compiler = self.compilers.into_inner().unwrap_or_else(PoisonError::into_inner);
        Cover { sources, objects: self.objects.into_inner(), root, compiler }
    }
}

/// The folder that an object's sources are shown from: where it was compiled, or, if its own source lies elsewhere, the
/// folder that source and object have the same path below.
fn root<'a>(object: Option<&str>, cwd: Option<&'a str>, paths: &'a [String]) -> Option<&'a str> {
    let own = paths.iter().find_map(|path| Some((path, source_root(object?, path)?)));
    let inside =
        |path: &str| cwd.is_some_and(|cwd| path.strip_prefix(cwd).is_some_and(|rest| rest.starts_with('/')));
    match own {
        Some((path, root)) if !inside(path) && !root.is_empty() => Some(root),
        _ => cwd,
    }
}

/// By line, function, and place: one number, as one is compared faster than four.
fn branch_key(branch: &BranchCount) -> u128 {
    u128::from(branch.line) << 64
        | u128::from(branch.function) << 32
        | u128::from(branch.of) << 16
        | u128::from(branch.place)
}

fn condition_key(condition: &ConditionCount) -> (u32, u32, u16, u32) {
    (condition.line, condition.function, condition.place, condition.seen.terms)
}

/// The part of a list sorted by source that is of one.
fn slice_of<T>(all: &[T], source: impl Fn(&T) -> u32, wanted: u32) -> &[T] {
    let start = all.partition_point(|item| source(item) < wanted);
    let end = all.partition_point(|item| source(item) <= wanted);
    &all[start..end]
}

impl Gathered {
    fn lines(&mut self, lines: &[crate::unit::Line]) {
        let mut new = Vec::new();
        let mut at = 0;
        // Lines that functions have to themselves come once for each: they add up here.
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
        // Two functions of one name on one line of one object are one here.
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

/// The first place from `at` on that is not below what is looked for: mostly near, as what is looked for is sorted too.
fn seek<T>(sorted: &[T], mut at: usize, below: impl Fn(&T) -> bool) -> usize {
    let mut step = 1;
    while sorted.get(at + step - 1).is_some_and(&below) {
        at += step;
        step *= 2;
    }
    let end = sorted.len().min(at + step);
    at + sorted[at..end].partition_point(below)
}

/// Puts sorted items with new keys into a sorted list.
fn merge_in<T: Copy, K: Ord>(known: &mut Vec<T>, new: Vec<T>, key: impl Fn(&T) -> K) {
    let Some(&last) = new.last() else { return };
    if known.is_empty() {
        // Most sources are of one object only.
        *known = new;
        known.shrink_to_fit();
        return;
    }
    // Some more than that, as more objects may come; doubling would be half of all memory.
    if known.capacity() - known.len() < new.len() {
        known.reserve_exact(new.len() + known.len() / 8);
    }
    // From the end on: what is before the first of the new ones stays where it is.
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
