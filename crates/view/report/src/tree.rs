// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calling-context trees merged for viewing: of all tasks by name, of one task, of one system call.
//!
//! Input: the profile's forest, one tree per task. Output: one [`Tree`] whose first node is the root, every parent
//! before its children, with self counts ([`Tree::totals`] computes sums).

use kprism_profile::Filter;
use kprism_profile::{FrameKind, NO_PARENT, Profile};
use std::collections::HashMap;

/// The meaning of a node in a merged tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Label {
    /// All selected tasks.
    All,
    /// All tasks of one name.
    Comm(String),
    /// One task; index into [`Profile::tasks`].
    Task(u32),
    /// A function; index into [`Profile::funcs`].
    Func(u32),
}

/// One node; its counts are without its children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeNode {
    /// Index of the caller's node; [`NO_PARENT`] at the root.
    pub parent: u32,
    /// Its meaning.
    pub label: Label,
    /// The kind of its entry.
    pub kind: FrameKind,
    /// Number of entries; for [`Label::Comm`] the number of tasks.
    pub calls: u64,
    /// Instructions (self).
    pub insns: u64,
    /// On-CPU nanoseconds (self).
    pub ns: u64,
}

/// A merged tree; node 0 is its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The nodes, parents first.
    pub nodes: Vec<TreeNode>,
}

/// Instructions and time of every node including its children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Totals {
    /// Instructions of each node's subtree.
    pub insns: Vec<u64>,
    /// On-CPU time of each node's subtree, ns.
    pub ns: Vec<u64>,
}

impl Tree {
    /// Sums over subtrees.
    pub fn totals(&self) -> Totals {
        let parents = self.nodes.iter().map(|n| n.parent);
        Totals {
            insns: subtree_sums(parents.clone(), self.nodes.iter().map(|n| n.insns)),
            ns: subtree_sums(parents, self.nodes.iter().map(|n| n.ns)),
        }
    }

    /// For every node its children, in order of their first appearance.
    pub fn children(&self) -> Vec<Vec<u32>> {
        let mut children = vec![Vec::new(); self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            if node.parent != NO_PARENT {
                children[node.parent as usize].push(i as u32);
            }
        }
        children
    }
}

/// Adds every value to all its ancestors. Relies on parents coming before their children.
pub(crate) fn subtree_sums(parents: impl Iterator<Item = u32>, own: impl Iterator<Item = u64>) -> Vec<u64> {
    let parents: Vec<u32> = parents.collect();
    let mut sums: Vec<u64> = own.collect();
    for i in (0..sums.len()).rev() {
        if parents[i] != NO_PARENT {
            let parent = parents[i] as usize;
            sums[parent] = sums[parent].saturating_add(sums[i]);
        }
    }
    sums
}

/// Merges nodes that have the same label and kind below the same parent.
struct Builder {
    nodes: Vec<TreeNode>,
    known: HashMap<(u32, Label, FrameKind), u32>,
}

impl Builder {
    fn new(root: Label) -> Self {
        let root =
            TreeNode { parent: NO_PARENT, label: root, kind: FrameKind::Root, calls: 0, insns: 0, ns: 0 };
        Builder { nodes: vec![root], known: HashMap::new() }
    }

    fn child(&mut self, parent: u32, label: Label, kind: FrameKind) -> u32 {
        let next = self.nodes.len() as u32;
        *self.known.entry((parent, label.clone(), kind)).or_insert_with(|| {
            self.nodes.push(TreeNode { parent, label, kind, calls: 0, insns: 0, ns: 0 });
            next
        })
    }

    fn add(&mut self, node: u32, calls: u64, insns: u64, ns: u64) {
        let node = &mut self.nodes[node as usize];
        node.calls = node.calls.saturating_add(calls);
        node.insns = node.insns.saturating_add(insns);
        node.ns = node.ns.saturating_add(ns);
    }
}

/// All selected tasks, those of one name merged: root, then names, then their call stacks.
pub fn by_comm(profile: &Profile, filter: &Filter) -> Tree {
    let taken = filter.tasks(profile);
    let task_of = profile.task_of_nodes();
    let mut builder = Builder::new(Label::All);
    let mut place = vec![NO_PARENT; profile.nodes.len()];
    for (i, node) in profile.nodes.iter().enumerate() {
        let Some(task) = task_of[i].filter(|&t| taken[t as usize]) else { continue };
        let at = if node.parent == NO_PARENT {
            let comm = Label::Comm(profile.tasks[task as usize].comm.clone());
            builder.child(0, comm, FrameKind::Root)
        } else {
            builder.child(place[node.parent as usize], Label::Func(node.func), node.kind)
        };
        place[i] = at;
        let calls = if node.parent == NO_PARENT { 1 } else { node.calls };
        builder.add(at, calls, node.insns, node.ns);
    }
    Tree { nodes: builder.nodes }
}

/// The call stacks of one task.
pub fn of_task(profile: &Profile, task: u32) -> Tree {
    let task_of = profile.task_of_nodes();
    let mut builder = Builder::new(Label::Task(task));
    let mut place = vec![NO_PARENT; profile.nodes.len()];
    for (i, node) in profile.nodes.iter().enumerate() {
        if task_of[i] != Some(task) {
            continue;
        }
        let at = match node.parent {
            NO_PARENT => 0,
            parent => builder.child(place[parent as usize], Label::Func(node.func), node.kind),
        };
        place[i] = at;
        builder.add(at, node.calls, node.insns, node.ns);
    }
    Tree { nodes: builder.nodes }
}

/// The callees of a function, whatever its callers: all its outermost calls merged, with the function as root.
pub fn of_function(profile: &Profile, func: u32, filter: &Filter) -> Tree {
    of_functions(profile, &[func], filter)
}

/// Like [`of_function`] for several functions, as if they were one. The root is named after the first.
pub fn of_functions(profile: &Profile, funcs: &[u32], filter: &Filter) -> Tree {
    let taken = filter.tasks(profile);
    let task_of = profile.task_of_nodes();
    let mut builder = Builder::new(funcs.first().map_or(Label::All, |&func| Label::Func(func)));
    let mut place = vec![NO_PARENT; profile.nodes.len()];
    for (i, node) in profile.nodes.iter().enumerate() {
        if node.parent == NO_PARENT || !task_of[i].is_some_and(|t| taken[t as usize]) {
            continue;
        }
        let at = match place[node.parent as usize] {
            NO_PARENT if funcs.contains(&node.func) => 0,
            NO_PARENT => continue,
            parent => builder.child(parent, Label::Func(node.func), node.kind),
        };
        place[i] = at;
        builder.add(at, node.calls, node.insns, node.ns);
    }
    Tree { nodes: builder.nodes }
}

/// The call tree of a system call, from its entry to its exit, whatever code makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyscallTree {
    /// The root is the kernel's entry. Below it are the path to the body, and functions that the body leaves its work
    /// to by a tail call.
    pub tree: Tree,
    /// Number of calls in it.
    pub calls: u64,
    /// Number of those calls whose entry and exit paths cannot be distinguished from other system calls made by the
    /// same code (as in `syscall(2)`). Only their body is in the tree.
    pub shared: u64,
}

/// The tree of a system call; `bodies` are its functions (`__x64_sys_*`).
pub fn of_syscall(profile: &Profile, bodies: &[u32], filter: &Filter) -> SyscallTree {
    let taken = filter.tasks(profile);
    let task_of = profile.task_of_nodes();
    let nodes = &profile.nodes;
    let mut is_body = vec![false; profile.funcs.len()];
    profile.syscalls.iter().for_each(|call| is_body[call.func as usize] = true);
    bodies.iter().for_each(|&body| is_body[body as usize] = true);

    // For each node the kernel entry above it and the outermost body above it; for each entry, whether wanted or other
    // bodies run below it.
    let mut entry = vec![NO_PARENT; nodes.len()];
    let mut body = vec![NO_PARENT; nodes.len()];
    let (mut wanted, mut other) = (vec![false; nodes.len()], vec![false; nodes.len()]);
    for (i, node) in nodes.iter().enumerate() {
        if node.parent == NO_PARENT || !task_of[i].is_some_and(|t| taken[t as usize]) {
            continue;
        }
        if node.kind == FrameKind::Syscall {
            entry[i] = i as u32;
        } else if profile.funcs[node.func as usize].kernel {
            (entry[i], body[i]) = (entry[node.parent as usize], body[node.parent as usize]);
        }
        if entry[i] != NO_PARENT && body[i] == NO_PARENT && is_body[node.func as usize] {
            body[i] = i as u32;
            let of = if bodies.contains(&node.func) { &mut wanted } else { &mut other };
            of[entry[i] as usize] = true;
        }
    }
    let in_wanted = |i: usize| body[i] != NO_PARENT && bodies.contains(&nodes[body[i] as usize].func);
    // Frames on the path to a body are always included.
    let mut leads: Vec<bool> = (0..nodes.len()).map(in_wanted).collect();
    for i in (0..nodes.len()).rev().filter(|&i| entry[i] != NO_PARENT && entry[i] != i as u32) {
        leads[nodes[i].parent as usize] |= leads[i];
    }

    let mut builder = Builder::new(Label::All);
    let mut place = vec![NO_PARENT; nodes.len()];
    let (mut calls, mut shared) = (0u64, 0u64);
    for (i, node) in nodes.iter().enumerate() {
        let Some(&at) = entry.get(i).filter(|&&e| e != NO_PARENT && wanted[e as usize]) else { continue };
        let alone = !other[at as usize];
        if !alone && !leads[i] {
            continue;
        }
        place[i] = match node.kind {
            FrameKind::Syscall => {
                if builder.nodes[0].label == Label::All {
                    builder.nodes[0].label = Label::Func(node.func);
                }
                0
            }
            kind => builder.child(place[node.parent as usize], Label::Func(node.func), kind),
        };
        if alone || in_wanted(i) {
            builder.add(place[i], node.calls, node.insns, node.ns);
        }
        if body[i] == i as u32 && in_wanted(i) {
            calls = calls.saturating_add(node.calls);
            shared = shared.saturating_add(if alone { 0 } else { node.calls });
        }
    }
    SyscallTree { tree: Tree { nodes: builder.nodes }, calls, shared }
}
