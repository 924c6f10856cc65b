// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions and paths behind a difference.
//!
//! In: the rules that fired, and both sides. Out: [`Blame`]: the functions whose own instructions changed most, and, if
//! both profiles are there, the call paths on which they changed.

use std::collections::BTreeMap;

use kprism_profile::{Filter, Profile};
use kprism_report::diff::{Diff, Within};

use crate::rule::Rule;
use crate::summary::Flow;
use crate::verdict::Side;

/// Functions and paths named.
const NAMED: usize = 10;

/// What is behind a difference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blame {
    /// Functions whose own instructions, or calls, changed; the largest changes first.
    pub functions: Vec<Changed>,
    /// Number of functions that changed.
    pub changed: usize,
    /// Call paths whose own instructions changed most; empty unless both sides are runs, not saved summaries.
    pub paths: Vec<Path>,
}

/// A call path that changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Path {
    /// Its functions, the innermost first, up to the task's name.
    pub frames: Vec<String>,
    /// Own instructions of the innermost function on this path, in the baseline and in the run.
    pub insns: [u64; 2],
}

/// A function that changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    /// Its name.
    pub name: String,
    /// Its module.
    pub module: String,
    /// Own instructions in the baseline and in the run.
    pub insns: [u64; 2],
    /// Calls in the baseline and in the run.
    pub calls: [u64; 2],
}

impl Changed {
    /// The change of its own instructions.
    pub fn change(&self) -> i64 {
        self.insns[1].wrapping_sub(self.insns[0]).cast_signed()
    }
}

/// Finds them. Rules about one system call or function are blamed within it, if both sides are runs.
pub fn find(rules: &[&Rule], old: &Side, new: &Side) -> Blame {
    let flows = [old, new].map(|side| side.summaries.first().and_then(|summary| summary.flow.as_ref()));
    let mut blame = Blame::default();
    if let [Some(old), Some(new)] = flows {
        let mut changed = functions(old, new);
        blame.changed = changed.len();
        changed.truncate(NAMED);
        blame.functions = changed;
    }
    if let (Some(old), Some(new)) = (&old.profile, &new.profile) {
        blame.paths = paths(rules, old, new);
    }
    blame
}

fn functions(old: &Flow, new: &Flow) -> Vec<Changed> {
    let mut all: BTreeMap<(&str, &str), Changed> = BTreeMap::new();
    for (side, flow) in [old, new].into_iter().enumerate() {
        for function in &flow.functions {
            let changed = all.entry((&function.name, &function.module)).or_insert_with(|| Changed {
                name: function.name.clone(),
                module: function.module.clone(),
                ..Changed::default()
            });
            changed.insns[side] = function.self_insns;
            changed.calls[side] = function.calls;
        }
    }
    let mut changed: Vec<Changed> =
        all.into_values().filter(|c| c.insns[0] != c.insns[1] || c.calls[0] != c.calls[1]).collect();
    changed.sort_by_key(|c| std::cmp::Reverse(c.change().unsigned_abs()));
    changed
}

/// The paths whose own instructions changed most, within the one system call that all rules are about, else everywhere.
fn paths(rules: &[&Rule], old: &Profile, new: &Profile) -> Vec<Path> {
    let mut calls = rules.iter().map(|rule| match rule.metric.name.name {
        "kernel_insns" | "syscalls" | "wall" | "p50" | "p90" | "p99" | "max" => {
            rule.metric.argument.as_deref()
        }
        _ => None,
    });
    let first = calls.next().flatten();
    let within = match first.filter(|first| calls.all(|other| other == Some(first))) {
        Some(name) => Within::Syscall(name),
        None => Within::Everything,
    };
    let Some(diff) = Diff::new(old, new, within, &Filter::default()) else { return Vec::new() };
    let insns = |node: usize| diff.nodes[node].amounts.map(|amount| amount.map_or(0, |amount| amount.insns));
    let mut nodes: Vec<usize> = (0..diff.nodes.len()).filter(|&n| insns(n)[0] != insns(n)[1]).collect();
    nodes.sort_by_key(|&n| std::cmp::Reverse(insns(n)[0].abs_diff(insns(n)[1])));
    let path = |&node: &usize| Path {
        frames: diff.path(node as u32).iter().rev().map(|&at| diff.name(at).to_owned()).collect(),
        insns: insns(node),
    };
    nodes.iter().take(NAMED).map(path).collect()
}
