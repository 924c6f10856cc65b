// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage of source files: counts of lines, functions, branches, calls and conditions, and their totals.
//!
//! This is the one result of the crate: [`counters`](crate::counters) makes it from gcov's counters,
//! [`executed`](crate::executed) from executed instructions. Views and exports read it.

use std::collections::BTreeSet;

pub use kprism_gcov::Version;
pub use kprism_gcov::unit::{Outcomes, Way};

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
