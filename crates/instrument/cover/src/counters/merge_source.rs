// SPDX-License-Identifier: MIT OR Apache-2.0
//! One source file whose coverage is merged from the objects that contain code of it.
//!
//! Lists are sorted by key, so that an object's items are merged in one pass. Functions have their number in the
//! collector until all objects are there.

use kprism_gcov::unit::{Branch, Condition, Line};

use crate::cover::{BranchCount, ConditionCount, FunctionTotal, LineCount, Source};

/// A source file under construction, with its functions by number.
#[derive(Debug, Default)]
pub(super) struct MergedSource {
    path: String,
    lines: Vec<LineCount>,
    functions: Vec<(u32, FunctionTotal)>,
    branches: Vec<BranchCount>,
    conditions: Vec<ConditionCount>,
}

impl MergedSource {
    pub fn new(path: &str) -> Self {
        MergedSource { path: path.to_owned(), ..MergedSource::default() }
    }

    pub fn lines(&mut self, lines: &[Line]) {
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

    pub fn branches(&mut self, branches: &[Branch], functions: &[u32]) {
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

    pub fn conditions(&mut self, conditions: &[Condition], functions: &[u32]) {
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

    pub fn function(&mut self, id: u32, total: FunctionTotal) {
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

    /// Returns the source, if any object has code of it. `order` is each function's rank, by its number.
    pub fn finish(mut self, order: &[u32]) -> Option<Source> {
        if self.lines.is_empty() && self.functions.is_empty() {
            return None;
        }
        for branch in &mut self.branches {
            branch.function = order[branch.function as usize];
        }
        self.branches.sort_unstable_by_key(branch_key);
        for condition in &mut self.conditions {
            condition.function = order[condition.function as usize];
        }
        self.conditions.sort_unstable_by_key(condition_key);
        self.functions.sort_unstable_by(|(_, a), (_, b)| (a.lines, &a.name).cmp(&(b.lines, &b.name)));
        self.branches.shrink_to_fit();
        self.lines.shrink_to_fit();
        Some(Source {
            path: self.path,
            lines: self.lines,
            functions: self.functions.into_iter().map(|(_, function)| function).collect(),
            branches: self.branches,
            conditions: self.conditions,
        })
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
