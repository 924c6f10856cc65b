// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage of one object: its functions, lines and branches, with gcov's counts. [`UnitCounter`](crate::UnitCounter) makes it.

use crate::notes::Block;

/// Coverage of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unit {
    /// Functions that have counters.
    pub functions: Vec<FunctionCount>,
    /// Lines, sorted by source, number and function.
    pub lines: Vec<Line>,
    /// Branches and calls, sorted by source and line; those of one line in gcov's order.
    pub branches: Vec<Branch>,
    /// Decisions and their conditions, sorted by source and line (GCC 14).
    pub conditions: Vec<Condition>,
}

/// A decision: a boolean expression of conditions at the end of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// Index into [`Notes::sources`](crate::Notes::sources).
    pub source: u32,
    /// Line that the block belongs to.
    pub line: u32,
    /// Index into [`Notes::functions`](crate::Notes::functions).
    pub function: u32,
    /// Outcomes of its conditions that occurred.
    pub seen: Outcomes,
}

/// Outcomes of a decision's conditions. An outcome counts if the condition alone determined the decision (masking
/// MC/DC).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Number of conditions.
    pub terms: u32,
    /// Bit n: condition n was true.
    pub yes: u64,
    /// Bit n: condition n was false.
    pub no: u64,
}

impl Outcomes {
    /// Number of possible outcomes.
    pub fn all(self) -> u32 {
        self.terms.saturating_mul(2)
    }

    /// Number of outcomes that occurred.
    pub fn seen(self) -> u32 {
        self.yes.count_ones() + self.no.count_ones()
    }

    /// Returns the conditions for which this outcome, true or false, did not occur.
    pub fn missing(self, outcome: bool) -> impl Iterator<Item = u32> {
        let seen = if outcome { self.yes } else { self.no };
        (0..self.terms.min(u64::BITS)).filter(move |term| seen >> term & 1 == 0)
    }
}

/// Counts of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionCount {
    /// Index into [`Notes::functions`](crate::Notes::functions).
    pub index: u32,
    /// Number of calls.
    pub called: i64,
    /// Number of returns.
    pub returned: i64,
    /// Number of blocks, without entry and exit.
    pub blocks: u32,
    /// Number of executed blocks.
    pub executed: u32,
    /// True if another function begins on the same line.
    pub is_group: bool,
    /// Outcomes of conditions that occurred, and all outcomes (GCC 14).
    pub conditions: (u32, u32),
    /// Prime paths that were taken, and all paths (GCC 15).
    pub paths: (u32, u32),
}

/// Count of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Index into [`Notes::sources`](crate::Notes::sources).
    pub source: u32,
    /// Line number.
    pub line: u32,
    /// For a line of a grouped function, the index into [`Notes::functions`](crate::Notes::functions).
    pub function: Option<u32>,
    /// Number of executions.
    pub count: i64,
    /// True if part of the line was never executed.
    pub unexecuted_block: bool,
    /// True if the line is reached only by exceptions.
    pub exceptional: bool,
}

/// An arc out of a block with several, or a call in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    /// Index into [`Notes::sources`](crate::Notes::sources).
    pub source: u32,
    /// Line that the block belongs to.
    pub line: u32,
    /// Index into [`Notes::functions`](crate::Notes::functions).
    pub function: u32,
    /// True if the line is one of a grouped function.
    pub in_group: bool,
    /// Kind of branch.
    pub way: Way,
    /// Number of times it was taken; for a call, number of returns.
    pub taken: i64,
    /// Number of executions of its block.
    pub executed: i64,
    /// Source block.
    pub from: Block,
    /// Destination block.
    pub to: Block,
}

/// Kind of an arc in gcov's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// A branch that is taken by a jump.
    Jump,
    /// A branch that is taken by falling through.
    Fallthrough,
    /// A branch to an exception handler.
    Throw,
    /// A call that may not return.
    Call,
}

impl Way {
    /// Returns true if gcov counts it as a branch and not as a call.
    pub fn is_branch(self) -> bool {
        self != Way::Call
    }
}
