// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions and paths behind a difference.
//!
//! In: the rules that fired, and both sides. Out: [`Blame`]: the functions whose own instructions changed most, and, if
//! both profiles are there, the call paths on which they changed.

use std::collections::BTreeMap;

use kprism_image::glob::glob;
use kprism_profile::Filter;
use kprism_profile::units::grouped;
use kprism_report::diff::{Diff, Label, Within};

use crate::metric::Subject;
use crate::rule::Rule;
use crate::summary::Flow;
use crate::verdict::Side;

/// Functions and paths named.
const NAMED: usize = 10;

/// The code behind a difference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blame {
    /// Functions whose own instructions, or calls, changed: those that the rules name, then the largest changes.
    pub functions: Vec<Changed>,
    /// Number of functions that changed.
    pub changed: usize,
    /// Call paths whose own instructions changed most; empty unless both sides are runs, not saved summaries.
    pub paths: Vec<Path>,
}

/// A call path that changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Path {
    /// Its innermost functions, the innermost first; with fewer than five, up to the task's name.
    pub frames: Vec<String>,
    /// True if there are further frames.
    pub is_cut: bool,
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
    /// True if it runs in ring 0.
    pub kernel: bool,
    /// Own instructions in the baseline and in the run.
    pub insns: [u64; 2],
    /// Calls in the baseline and in the run.
    pub calls: [u64; 2],
}

/// A change with its sign: `+1,024`.
pub fn change([old, new]: [u64; 2]) -> String {
    let sign = if new < old { '-' } else { '+' };
    format!("{sign}{}", grouped(old.abs_diff(new)))
}

/// Finds them. Rules about one system call or function are blamed within it, if both sides are runs.
pub fn find(rules: &[&Rule], old: &Side, new: &Side) -> Blame {
    let flows = [old, new].map(|side| side.summaries.first().and_then(|summary| summary.flow.as_ref()));
    let diff = old.profile.as_ref().zip(new.profile.as_ref());
    let diff = diff.and_then(|(old, new)| Diff::new(old, new, within(rules), &Filter::default()));
    let mut functions = match (&diff, flows) {
        (Some(diff), _) => of_diff(diff),
        (None, [Some(old), Some(new)]) => of_summaries(old, new),
        (None, _) => Vec::new(),
    };
    let in_kernel = rules.iter().all(|rule| rule.metric.kind.name == "kernel_insns");
    functions.retain(|f| f.insns[0] != f.insns[1] || f.calls[0] != f.calls[1]);
    functions.retain(|f| f.kernel || !in_kernel);
    // Those that the rules name come first, however little they changed.
    functions
        .sort_by_key(|f| (!is_named(rules, &f.name), std::cmp::Reverse(f.insns[0].abs_diff(f.insns[1]))));
    let changed = functions.len();
    functions.truncate(NAMED);
    Blame { functions, changed, paths: diff.map(|diff| paths(&diff, in_kernel)).unwrap_or_default() }
}

/// True if a rule is about this function.
fn is_named(rules: &[&Rule], function: &str) -> bool {
    rules.iter().any(|rule| {
        rule.metric.subject() == Some(Subject::Function)
            && rule.metric.argument.as_deref().is_some_and(|pattern| glob(pattern, function))
    })
}

/// The system call that all rules are about, if it is one, else everything.
fn within<'r>(rules: &[&'r Rule]) -> Within<'r> {
    let mut calls = rules.iter().map(|rule| match rule.metric.subject() {
        Some(Subject::Syscall) => rule.metric.argument.as_deref(),
        _ => None,
    });
    let first = calls.next().flatten();
    // A pattern may stand for several system calls.
    let one = first.filter(|first| !first.contains(['*', '?']));
    match one.filter(|one| calls.all(|other| other == Some(one))) {
        Some(name) => Within::Syscall(name),
        None => Within::Everything,
    }
}

fn of_diff(diff: &Diff) -> Vec<Changed> {
    let changed = |row: kprism_report::diff::FunctionDiff| {
        let func = &diff.funcs[row.func as usize];
        let own = row.rows.map(|row| row.unwrap_or_default().own);
        Changed {
            name: func.name.clone(),
            module: func.module.clone(),
            kernel: func.kernel,
            insns: own.map(|own| own.insns),
            calls: own.map(|own| own.calls),
        }
    };
    diff.functions().into_iter().map(changed).collect()
}

fn of_summaries(old: &Flow, new: &Flow) -> Vec<Changed> {
    let mut all: BTreeMap<(&str, &str), Changed> = BTreeMap::new();
    for (side, flow) in [old, new].into_iter().enumerate() {
        for function in &flow.functions {
            let changed = all.entry((&function.name, &function.module)).or_insert_with(|| Changed {
                name: function.name.clone(),
                module: function.module.clone(),
                kernel: function.kernel,
                ..Changed::default()
            });
            changed.insns[side] = function.self_insns;
            changed.calls[side] = function.calls;
        }
    }
    all.into_values().collect()
}

/// The paths whose own instructions changed most. Paths that are the same as far as they are shown are one: the same code called
/// from two places, of which one made less and the other more, is no change.
fn paths(diff: &Diff, in_kernel: bool) -> Vec<Path> {
    let mut sums: BTreeMap<Vec<&str>, Path> = BTreeMap::new();
    for (number, node) in (0..).zip(&diff.nodes) {
        let taken = match &node.label {
            Label::Func(func) => diff.funcs[*func as usize].kernel || !in_kernel,
            Label::All | Label::Comm(_) => !in_kernel,
        };
        if !taken || node.amounts.iter().flatten().all(|amount| amount.insns == 0) {
            continue;
        }
        let path = diff.path(number);
        let frames: Vec<&str> = path.iter().rev().take(SHOWN).map(|&at| diff.name(at)).collect();
        let sum = sums.entry(frames).or_default();
        sum.is_cut |= path.len() > SHOWN;
        for (sum, amount) in sum.insns.iter_mut().zip(node.amounts) {
            *sum = sum.saturating_add(amount.map_or(0, |amount| amount.insns));
        }
    }
    sums.retain(|_, path| path.insns[0] != path.insns[1]);
    let mut sums: Vec<(Vec<&str>, Path)> = sums.into_iter().collect();
    sums.sort_by_key(|(_, path)| std::cmp::Reverse(path.insns[0].abs_diff(path.insns[1])));
    let named = |frames: Vec<&str>| frames.into_iter().map(str::to_owned).collect();
    sums.into_iter().take(NAMED).map(|(frames, path)| Path { frames: named(frames), ..path }).collect()
}

/// Innermost frames by which paths are told apart.
const SHOWN: usize = 5;

impl Path {
    /// Its frames as text, the innermost first.
    pub fn shown(&self) -> String {
        self.frames.join(" < ") + if self.is_cut { " < …" } else { "" }
    }
}
