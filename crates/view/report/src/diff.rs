// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares two runs: paths that only one of them took, and functions that cost more or less.
//!
//! Input: two profiles. Output: a [`Diff`], their merged call trees, and from it rows of functions and the paths that
//! only one run took. Functions are the same if name and module are, because addresses differ from run to run. A path
//! does not depend on how a function was entered (call, tail call, or already running when the recording began), except
//! that interrupts are distinct.

mod view;

use std::collections::HashMap;

use kprism_profile::{FrameKind, NO_PARENT, Profile};

use crate::rows::recursive;
use crate::tree::{self, Label as TreeLabel, Tree, subtree_sums};
use kprism_profile::Filter;
use kprism_profile::units;

pub use view::{FRAMES, Scale, functions_table, headline, paths_table, shown, to_json, to_text};

/// One of the two runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The baseline run.
    Old,
    /// The examined run.
    New,
}

/// Both sides, in the order of every pair here.
pub const SIDES: [Side; 2] = [Side::Old, Side::New];

/// The compared part of the runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Within<'a> {
    /// Everything that the selected tasks did.
    Everything,
    /// One system call, by its name in the man page, whatever code makes it.
    Syscall(&'a str),
    /// One function, whatever its callers.
    Function(&'a str),
}

/// The cost of a context, without its callees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of entries.
    pub calls: u64,
    /// Number of instructions.
    pub insns: u64,
    /// On-CPU nanoseconds.
    pub ns: u64,
}

/// A function of either run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DiffFunc {
    /// Its name; untrusted.
    pub name: String,
    /// Its module.
    pub module: String,
    /// True if it runs in ring 0.
    pub kernel: bool,
}

/// The meaning of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Label {
    /// All selected tasks.
    All,
    /// All tasks of one name.
    Comm(String),
    /// A function; index into [`Diff::funcs`].
    Func(u32),
}

/// A path in one run or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffNode {
    /// Index of the caller's node; [`NO_PARENT`] at the root.
    pub parent: u32,
    /// Its meaning.
    pub label: Label,
    /// The kind of its entry, in the first run that contains it.
    pub kind: FrameKind,
    /// Its cost in OLD and in NEW; `None` in a run without the path.
    pub amounts: [Option<Amount>; 2],
}

/// Two merged call trees. Node 0 is the root; every parent comes before its children.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diff {
    /// Functions of both runs, each once.
    pub funcs: Vec<DiffFunc>,
    /// The nodes.
    pub nodes: Vec<DiffNode>,
    /// Number of calls of the compared function or system call, if it is one.
    pub invocations: Option<[u64; 2]>,
    /// Number of calls of a system call of which only the body is counted; see [`tree::SyscallTree::shared`].
    pub shared: [u64; 2],
    /// True where what the run does not have is not known, rather than zero; see [`crate::environment::unknown`].
    pub unknown: [bool; 2],
    /// True where the run's recorder counts no instructions.
    pub uncounted: [bool; 2],
}

/// A function in both runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FunctionDiff {
    /// Index into [`Diff::funcs`].
    pub func: u32,
    /// Its cost in OLD and in NEW; `None` in a run in which it never ran.
    pub rows: [Option<FunctionAmount>; 2],
}

/// A function in one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FunctionAmount {
    /// The function itself.
    pub own: Amount,
    /// Instructions with callees; recursion counted once.
    pub total_insns: u64,
    /// On-CPU nanoseconds with callees; recursion counted once.
    pub total_ns: u64,
}

/// The topmost frame of a path that only one run took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtraPath {
    /// The run.
    pub side: Side,
    /// Index into [`Diff::nodes`].
    pub node: u32,
    /// Number of entries, and the cost including all callees.
    pub total: Amount,
}

impl Diff {
    /// Compares two runs. `None` if neither contains the compared part.
    pub fn new(old: &Profile, new: &Profile, within: Within<'_>, filter: &Filter) -> Option<Self> {
        let parts = [Part::of(old, within, filter), Part::of(new, within, filter)];
        if parts.iter().all(Option::is_none) {
            return None;
        }
        let mut overlay = Overlay::default();
        for ((side, profile), part) in [(Side::Old, old), (Side::New, new)].into_iter().zip(&parts) {
            if let Some(part) = part {
                overlay.add(side, profile, &part.tree);
            }
        }
        let mut diff = overlay.diff;
        if within != Within::Everything {
            diff.invocations = Some(parts.each_ref().map(|part| part.as_ref().map_or(0, |p| p.calls)));
        }
        diff.shared = parts.map(|part| part.map_or(0, |p| p.shared));
        Some(diff)
    }

    /// Tells what is not known of OLD and of NEW: functions and paths that the run does not have, and instructions.
    #[must_use]
    pub fn with_gaps(self, unknown: [bool; 2], uncounted: [bool; 2]) -> Self {
        Diff { unknown, uncounted, ..self }
    }

    /// The cost of every path including its callees, in OLD and in NEW. Calls are the path's own.
    pub fn totals(&self) -> [Vec<Amount>; 2] {
        SIDES.map(|side| {
            let own = |i: usize| self.nodes[i].amounts[side as usize].unwrap_or_default();
            let parents = self.nodes.iter().map(|n| n.parent);
            let insns = subtree_sums(parents.clone(), (0..self.nodes.len()).map(|i| own(i).insns));
            let ns = subtree_sums(parents, (0..self.nodes.len()).map(|i| own(i).ns));
            let sums = insns.into_iter().zip(ns).enumerate();
            sums.map(|(i, (insns, ns))| Amount { calls: own(i).calls, insns, ns }).collect()
        })
    }

    /// Functions of either run, by index.
    pub fn functions(&self) -> Vec<FunctionDiff> {
        let func = |i: usize| match self.nodes[i].label {
            Label::Func(func) => Some(func),
            _ => None,
        };
        let inner = recursive(self.nodes.iter().map(|n| n.parent), func, self.funcs.len());
        let totals = self.totals();
        let row = |func| FunctionDiff { func, ..FunctionDiff::default() };
        let mut rows: Vec<FunctionDiff> = (0..self.funcs.len() as u32).map(row).collect();
        for (i, node) in self.nodes.iter().enumerate() {
            let Some(func) = func(i) else { continue };
            for side in SIDES {
                let Some(own) = node.amounts[side as usize] else { continue };
                let sum = rows[func as usize].rows[side as usize].get_or_insert_default();
                sum.own = sum.own.plus(own);
                if !inner[i] {
                    let total = totals[side as usize][i];
                    sum.total_insns = sum.total_insns.saturating_add(total.insns);
                    sum.total_ns = sum.total_ns.saturating_add(total.ns);
                }
            }
        }
        rows
    }

    /// Paths that only one run took: the first frame of each, in order of the nodes.
    pub fn extra_paths(&self) -> Vec<ExtraPath> {
        let totals = self.totals();
        let both = |i: u32| self.nodes[i as usize].amounts.iter().all(Option::is_some);
        let mut extra = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let above = node.parent == NO_PARENT || both(node.parent);
            if !above || both(i as u32) {
                continue;
            }
            let side = if node.amounts[0].is_some() { Side::Old } else { Side::New };
            extra.push(ExtraPath { side, node: i as u32, total: totals[side as usize][i] });
        }
        extra
    }

    /// The frames from the root to a node.
    pub fn path(&self, node: u32) -> Vec<u32> {
        let mut path = Vec::new();
        let mut at = node;
        while let Some(n) = self.nodes.get(at as usize) {
            path.push(at);
            at = n.parent;
        }
        path.reverse();
        path
    }

    /// The name of a node.
    pub fn name(&self, node: u32) -> &str {
        match &self.nodes[node as usize].label {
            Label::All => "all tasks",
            Label::Comm(comm) => comm,
            Label::Func(func) => &self.funcs[*func as usize].name,
        }
    }
}

impl Amount {
    fn plus(self, other: Amount) -> Amount {
        Amount {
            calls: self.calls.saturating_add(other.calls),
            insns: self.insns.saturating_add(other.insns),
            ns: self.ns.saturating_add(other.ns),
        }
    }
}

/// The compared part of one run.
struct Part {
    tree: Tree,
    calls: u64,
    shared: u64,
}

impl Part {
    /// Finds the part, if the run contains it.
    fn of(profile: &Profile, within: Within<'_>, filter: &Filter) -> Option<Self> {
        let part = match within {
            Within::Everything => Part { tree: tree::by_comm(profile, filter), calls: 0, shared: 0 },
            Within::Syscall(name) => {
                let bodies = profile.syscalls.iter().map(|call| call.func);
                let mut bodies: Vec<u32> = bodies.collect();
                bodies.sort_unstable();
                bodies.dedup();
                bodies.retain(|&f| units::syscall_name(&profile.funcs[f as usize].name) == name);
                let tree::SyscallTree { tree, calls, shared } = tree::of_syscall(profile, &bodies, filter);
                Part { tree, calls, shared }
            }
            Within::Function(name) => {
                let named = (0u32..).zip(&profile.funcs).filter(|(_, f)| f.name == name);
                let funcs: Vec<u32> = named.map(|(i, _)| i).collect();
                let tree = tree::of_functions(profile, &funcs, filter);
                Part { calls: tree.nodes[0].calls, tree, shared: 0 }
            }
        };
        let ran = part.tree.nodes.iter().any(|n| n.calls > 0 || n.insns > 0);
        ran.then_some(part)
    }
}

/// The part of a frame's kind that distinguishes paths below the same caller.
fn class(kind: FrameKind) -> FrameKind {
    match kind {
        FrameKind::Tail | FrameKind::Resumed => FrameKind::Call,
        other => other,
    }
}

/// Merges trees.
#[derive(Default)]
struct Overlay {
    diff: Diff,
    known: HashMap<(u32, Label, FrameKind), u32>,
    funcs: HashMap<DiffFunc, u32>,
}

impl Overlay {
    fn add(&mut self, side: Side, profile: &Profile, tree: &Tree) {
        let mut place: Vec<u32> = Vec::with_capacity(tree.nodes.len());
        for node in &tree.nodes {
            let (parent, label) = match node.parent {
                // There is one root, whatever its name.
                NO_PARENT if !self.diff.nodes.is_empty() => (NO_PARENT, self.diff.nodes[0].label.clone()),
                NO_PARENT => (NO_PARENT, self.label(profile, &node.label)),
                parent => (place[parent as usize], self.label(profile, &node.label)),
            };
            let next = self.diff.nodes.len() as u32;
            let at = *self.known.entry((parent, label.clone(), class(node.kind))).or_insert(next);
            if at == next {
                self.diff.nodes.push(DiffNode { parent, label, kind: node.kind, amounts: [None; 2] });
            }
            let amount = self.diff.nodes[at as usize].amounts[side as usize].get_or_insert_default();
            *amount = amount.plus(Amount { calls: node.calls, insns: node.insns, ns: node.ns });
            place.push(at);
        }
    }

    fn label(&mut self, profile: &Profile, label: &TreeLabel) -> Label {
        match label {
            TreeLabel::All => Label::All,
            TreeLabel::Comm(comm) => Label::Comm(comm.clone()),
            TreeLabel::Task(task) => Label::Comm(profile.tasks[*task as usize].comm.clone()),
            TreeLabel::Func(func) => {
                let f = &profile.funcs[*func as usize];
                let func = DiffFunc { name: f.name.clone(), module: f.module.clone(), kernel: f.kernel };
                let next = self.diff.funcs.len() as u32;
                let at = *self.funcs.entry(func.clone()).or_insert(next);
                if at == next {
                    self.diff.funcs.push(func);
                }
                Label::Func(at)
            }
        }
    }
}
