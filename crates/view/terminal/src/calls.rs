// SPDX-License-Identifier: MIT OR Apache-2.0
//! Callers, callees and the call tree of a profile, level by level.
//!
//! In: a [`Profile`]. Out: the screens behind a function, and behind a node of the tree that `kprism report tree` prints.

use std::collections::BTreeMap;

use kprism_profile::units::{count, duration, percent};
use kprism_profile::{Filter, NO_PARENT, Profile};
use kprism_report::tree::{self, Label, Totals, Tree};

use crate::screen::{Body, Item, Row, Screen, Target};

/// The measure by which calls are weighed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Instructions, which a flow counts.
    Instructions,
    /// Time on a CPU.
    Time,
}

/// The calls of a run.
pub struct Calls {
    /// The profile.
    pub profile: Profile,
    weight: Weight,
    tree: Tree,
    totals: Totals,
    children: Vec<Vec<u32>>,
}

/// Sums over calls of one function by another.
#[derive(Default)]
struct Sums {
    calls: u64,
    insns: u64,
    ns: u64,
}

impl Calls {
    /// Merges the tree.
    pub fn new(profile: Profile, weight: Weight) -> Self {
        let tree = tree::by_comm(&profile, &Filter::default());
        let (totals, children) = (tree.totals(), tree.children());
        Calls { profile, weight, tree, totals, children }
    }

    fn heads(&self, first: &[&str]) -> Vec<String> {
        let measure: &[&str] = match self.weight {
            Weight::Instructions => &["total insns", "total time"],
            Weight::Time => &["total time"],
        };
        first.iter().chain(measure).map(|head| (*head).to_owned()).collect()
    }

    fn measures(&self, insns: u64, ns: u64) -> Vec<Item> {
        let insns = (self.weight == Weight::Instructions).then(|| Item::number(insns.into(), count(insns)));
        insns.into_iter().chain([Item::number(ns.into(), duration(ns))]).collect()
    }

    /// The tree's first level: tasks by name.
    pub fn root(&self) -> Screen {
        self.level(0, &[])
    }

    /// The level below a node; `None` if there is no such node.
    pub fn children(&self, path: &[String]) -> Option<Screen> {
        let mut at = 0;
        for name in path {
            at = *self.children[at as usize].iter().find(|&&child| self.name(child) == *name)?;
        }
        Some(self.level(at, path))
    }

    fn level(&self, node: u32, path: &[String]) -> Screen {
        let weights = match self.weight {
            Weight::Instructions => &self.totals.insns,
            Weight::Time => &self.totals.ns,
        };
        let whole = weights.first().copied().unwrap_or(0);
        let own = |node: &tree::TreeNode| if self.weight == Weight::Time { node.ns } else { node.insns };
        let mut below = self.children[node as usize].clone();
        below.sort_by_key(|&child| std::cmp::Reverse(weights[child as usize]));
        let share = |n: u64| {
            let share = percent(n, whole);
            Item::number((share * 1e6) as i128, format!("{share:.2}%"))
        };
        let rows = below.iter().map(|&child| {
            let (of, name) = (&self.tree.nodes[child as usize], self.name(child));
            let mut items = vec![Item::text(&name), share(weights[child as usize]), share(own(of))];
            items.push(Item::number(of.calls.into(), of.calls.to_string()));
            items.extend(self.measures(self.totals.insns[child as usize], self.totals.ns[child as usize]));
            let path: Vec<String> = path.iter().cloned().chain([name]).collect();
            Row { items, target: (!self.children[child as usize].is_empty()).then_some(Target::Node(path)) }
        });
        let rows = rows.collect();
        let heads = self.heads(&["function", "total", "self", "calls"]);
        Screen { name: "call tree".into(), body: Body::Grid { heads, sorted: Some(1), rows } }
    }

    /// The name of a node of the tree, with the kind of its entry unless it was called.
    fn name(&self, node: u32) -> String {
        use kprism_profile::FrameKind::{Call, Exception, Interrupt, Resumed, Root, Signal, Syscall, Tail};
        let node = &self.tree.nodes[node as usize];
        let name = match &node.label {
            Label::All => "all tasks".to_owned(),
            Label::Comm(comm) => comm.clone(),
            Label::Task(task) => self.profile.tasks[*task as usize].comm.clone(),
            Label::Func(func) => self.profile.funcs[*func as usize].name.clone(),
        };
        match node.kind {
            Root | Call | Tail => name,
            Syscall => format!("{name} (syscall)"),
            Interrupt => format!("{name} (interrupt)"),
            Exception => format!("{name} (exception)"),
            Signal => format!("{name} (signal)"),
            Resumed => format!("{name} (resumed)"),
        }
    }

    /// Callers and callees of a function; `None` if it was not seen.
    pub fn function(&self, name: &str, module: &str) -> Option<Vec<Screen>> {
        let funcs = &self.profile.funcs;
        let is: Vec<bool> = funcs.iter().map(|func| func.name == name && func.module == module).collect();
        if !is.contains(&true) {
            return None;
        }
        let nodes = &self.profile.nodes;
        let func = |node: usize| (nodes[node].parent != NO_PARENT).then(|| nodes[node].func as usize);
        let mut insns: Vec<u64> = nodes.iter().map(|node| node.insns).collect();
        let mut ns: Vec<u64> = nodes.iter().map(|node| node.ns).collect();
        for at in (0..nodes.len()).rev().filter(|&at| nodes[at].parent != NO_PARENT) {
            let parent = nodes[at].parent as usize;
            insns[parent] = insns[parent].saturating_add(insns[at]);
            ns[parent] = ns[parent].saturating_add(ns[at]);
        }
        // Of calls inside calls of the same pair, only the outermost one's total counts.
        let pair = |at: usize| func(at).map(|own| (func(nodes[at].parent as usize), own));
        let outermost = |at: usize| {
            let (own, mut above) = (pair(at), nodes[at].parent);
            while above != NO_PARENT {
                if pair(above as usize) == own {
                    return false;
                }
                above = nodes[above as usize].parent;
            }
            true
        };
        let (mut callers, mut callees) =
            (BTreeMap::<Option<usize>, Sums>::new(), BTreeMap::<usize, Sums>::new());
        for (at, node) in nodes.iter().enumerate() {
            let Some((caller, own)) = pair(at) else { continue };
            let of_caller = caller.is_some_and(|caller| is[caller]);
            if !is[own] && !of_caller {
                continue;
            }
            let outermost = outermost(at);
            let add = |sums: &mut Sums| {
                sums.calls = sums.calls.saturating_add(node.calls);
                if outermost {
                    sums.insns = sums.insns.saturating_add(insns[at]);
                    sums.ns = sums.ns.saturating_add(ns[at]);
                }
            };
            if is[own] {
                add(callers.entry(caller).or_default());
            }
            if of_caller {
                add(callees.entry(own).or_default());
            }
        }
        let screen = |name: &str, rows: Vec<(Option<usize>, Sums)>| {
            let mut rows = rows;
            rows.sort_by_key(|(_, sums)| std::cmp::Reverse((sums.insns, sums.ns)));
            let rows = rows.iter().map(|(func, sums)| {
                let of = func.map(|func| &funcs[func]);
                let mut items = vec![Item::text(of.map_or("(begins a task's stack)", |of| &of.name))];
                items.push(Item::number(sums.calls.into(), sums.calls.to_string()));
                items.extend(self.measures(sums.insns, sums.ns));
                items.push(Item::text(of.map_or("", |of| &of.module)));
                let target =
                    of.map(|of| Target::Function { name: of.name.clone(), module: of.module.clone() });
                Row { items, target }
            });
            let rows = rows.collect();
            let mut heads = self.heads(&["function", "calls"]);
            heads.push("module".into());
            Screen { name: name.into(), body: Body::Grid { heads, sorted: Some(2), rows } }
        };
        let callees = callees.into_iter().map(|(func, sums)| (Some(func), sums)).collect();
        Some(vec![screen("callees", callees), screen("callers", callers.into_iter().collect())])
    }
}
