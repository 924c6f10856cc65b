// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results of the kernel's own tests, with the part of the flow that each had.

use kprism_ktap::Outcome;

/// The tests of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tests {
    /// In the order in which they ran.
    pub tests: Vec<TestRun>,
    /// Sentences on what could not be measured or read.
    pub notes: Vec<String>,
    /// True if the kernel's lines are known. Otherwise there is no debug information of it.
    pub lines_known: bool,
}

/// One test.
#[derive(Debug, Clone, PartialEq)]
pub struct TestRun {
    /// The suite, or the collection.
    pub suite: String,
    /// Its name within the suite. The values of a test with parameters are tests by themselves: `test/value`.
    pub name: String,
    /// Its end.
    pub outcome: Outcome,
    /// Why it was skipped, or the like.
    pub reason: String,
    /// Lines that it printed.
    pub diagnostics: Vec<String>,
    /// Its part of the flow; `None` if it could not be told apart.
    pub measured: Option<Measured>,
}

/// A test's part of the flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// Instructions of its own task, or of its processes. Those of interrupts that came in between are left out.
    pub insns: u64,
    /// Instructions of these interrupts.
    pub interrupt_insns: u64,
    /// Duration, ns.
    pub ns: u64,
    /// System calls.
    pub syscalls: u64,
    /// Functions of the kernel that ran.
    pub functions: usize,
    /// Source lines of the kernel that ran.
    pub lines: usize,
    /// Of these, lines that no other test of the run reaches.
    pub lines_alone: usize,
}

impl Tests {
    /// Number of tests with this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.tests.iter().filter(|test| test.outcome == outcome).count()
    }

    /// True if a test failed or has no result.
    pub fn failed(&self) -> bool {
        self.tests.iter().any(|test| test.outcome.is_failure())
    }
}
