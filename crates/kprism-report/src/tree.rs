// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calling-context trees merged for viewing: of all tasks by name, of one task, of one system call.
//!
//! What comes in: the profile's forest, one tree per task. What goes out: one [`Tree`] whose first node
//! is the root, every parent before its children, with self counts (sums come from [`Tree::totals`]).

use crate::filter::{Filter, task_of_nodes};
use kprism_flow::model::{FrameKind, NO_PARENT, Profile};
use std::collections::HashMap;

/// What a node of a merged tree stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Label {
    /// Every task taken.
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
    /// What it stands for.
    pub label: Label,
    /// How it was entered.
    pub kind: FrameKind,
    /// How often it was entered; for [`Label::Comm`] the number of tasks.
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
    /// Instructions.
    pub insns: Vec<u64>,
    /// On-CPU nanoseconds.
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

/// All tasks taken, those of one name merged: root, then names, then their call stacks.
pub fn by_comm(profile: &Profile, filter: &Filter) -> Tree {
    let taken = filter.tasks(profile);
    let task_of = task_of_nodes(profile);
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
    let task_of = task_of_nodes(profile);
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

/// What a function does, whoever calls it: all its outermost calls merged, the function as root.
pub fn of_function(profile: &Profile, func: u32, filter: &Filter) -> Tree {
    let taken = filter.tasks(profile);
    let task_of = task_of_nodes(profile);
    let mut builder = Builder::new(Label::Func(func));
    let mut place = vec![NO_PARENT; profile.nodes.len()];
    for (i, node) in profile.nodes.iter().enumerate() {
        if node.parent == NO_PARENT || !task_of[i].is_some_and(|t| taken[t as usize]) {
            continue;
        }
        let at = match place[node.parent as usize] {
            NO_PARENT if node.func == func => 0,
            NO_PARENT => continue,
            parent => builder.child(parent, Label::Func(node.func), node.kind),
        };
        place[i] = at;
        builder.add(at, node.calls, node.insns, node.ns);
    }
    Tree { nodes: builder.nodes }
}
