// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data of the page that compares two runs. `ui/src/diff-data.ts` reads them.

use super::prune::heaviest;
use crate::diff::{Amount, Diff, FunctionAmount, Label, SIDES, Scale, Side};
use crate::header::Header;
use kprism_profile::NO_PARENT;
use serde::Serialize;
use serde_json::Value;
use std::collections::HashMap;

/// Maximum of contexts and functions embedded: below 5 MB together.
const CONTEXTS: usize = 25_000;
const FUNCTIONS: usize = 6_000;

/// The data of the page.
#[derive(Serialize)]
pub(super) struct Data {
    /// Tells the shared parts of the program which page this is.
    name: String,
    headers: [Value; 2],
    paths: [String; 2],
    /// Divisors of the numbers, if any.
    calls: Option<[u64; 2]>,
    /// See [`Diff::unknown`] and [`Diff::uncounted`].
    unknown: [bool; 2],
    uncounted: [bool; 2],
    funcs: Funcs,
    modules: Vec<String>,
    comms: Vec<String>,
    tree: EmbeddedTree,
    functions: Functions,
}

#[derive(Default, Serialize)]
struct Funcs {
    name: Vec<String>,
    module: Vec<u32>,
    kernel: Vec<u8>,
}

/// Columns. `present` has bit 0 for OLD, bit 1 for NEW. Costs are those of OLD and of NEW; where a run lacks a row, 0 stands for
/// nothing, or for what is not known ([`Data::unknown`]).
#[derive(Default, Serialize)]
struct EmbeddedTree {
    parent: Vec<u32>,
    #[serde(rename = "ref")]
    reference: Vec<i64>,
    kind: Vec<u8>,
    present: Vec<u8>,
    calls: [Vec<u64>; 2],
    insns: [Vec<u64>; 2],
    ns: [Vec<u64>; 2],
    folded: usize,
}

#[derive(Default, Serialize)]
struct Functions {
    func: Vec<u32>,
    present: Vec<u8>,
    calls: [Vec<u64>; 2],
    self_insns: [Vec<u64>; 2],
    total_insns: [Vec<u64>; 2],
    self_ns: [Vec<u64>; 2],
    total_ns: [Vec<u64>; 2],
    omitted: usize,
}

fn present<T>(pair: &[Option<T>; 2]) -> u8 {
    u8::from(pair[0].is_some()) | u8::from(pair[1].is_some()) << 1
}

impl Data {
    pub(super) fn new(
        diff: &Diff,
        scale: Scale,
        headers: [&Header; 2],
        paths: &[String; 2],
        name: &str,
    ) -> Self {
        let mut names = Names::default();
        Data {
            name: name.to_owned(),
            headers: headers.map(Header::to_json),
            paths: paths.clone(),
            calls: match scale {
                Scale::Sums => None,
                Scale::PerCall(calls) => Some(calls),
            },
            unknown: diff.unknown,
            uncounted: diff.uncounted,
            tree: embed_tree(diff, &mut names, CONTEXTS),
            functions: embed_functions(diff, scale, &mut names, FUNCTIONS),
            funcs: names.funcs,
            modules: names.modules,
            comms: names.comms,
        }
    }
}

/// Numbers functions and modules in order of first use.
#[derive(Default)]
struct Names {
    funcs: Funcs,
    func_ids: HashMap<u32, u32>,
    modules: Vec<String>,
    module_ids: HashMap<String, u32>,
    comms: Vec<String>,
}

impl Names {
    fn func(&mut self, diff: &Diff, func: u32) -> u32 {
        *self.func_ids.entry(func).or_insert_with(|| {
            let f = &diff.funcs[func as usize];
            let next = self.modules.len() as u32;
            let module = *self.module_ids.entry(f.module.clone()).or_insert(next);
            if module == next {
                self.modules.push(f.module.clone());
            }
            self.funcs.name.push(f.name.clone());
            self.funcs.module.push(module);
            self.funcs.kernel.push(f.kernel.into());
            self.funcs.name.len() as u32 - 1
        })
    }
}

/// Embeds the heaviest contexts. The rest is folded into one node per parent, so that sums stay exact.
fn embed_tree(diff: &Diff, names: &mut Names, limit: usize) -> EmbeddedTree {
    let totals = diff.totals();
    let share = |side: Side, i: usize| {
        let (part, whole) = (totals[side as usize][i], totals[side as usize][0]);
        let insns = part.insns as f64 / whole.insns.max(1) as f64;
        insns.max(part.ns as f64 / whole.ns.max(1) as f64)
    };
    let weights: Vec<f64> =
        (0..diff.nodes.len()).map(|i| share(Side::Old, i).max(share(Side::New, i))).collect();
    let keep = heaviest(&weights, limit);

    let mut tree = EmbeddedTree::default();
    let mut place = vec![NO_PARENT; diff.nodes.len()];
    let mut fold_at: HashMap<u32, u32> = HashMap::new();
    for (i, node) in diff.nodes.iter().enumerate() {
        // The root's parent is never read.
        let parent = if node.parent == NO_PARENT { 0 } else { place[node.parent as usize] };
        if keep[i] {
            let reference = match &node.label {
                Label::All => -1,
                Label::Comm(comm) => {
                    names.comms.push(comm.clone());
                    -2 - names.comms.len() as i64
                }
                Label::Func(func) => names.func(diff, *func).into(),
            };
            place[i] = tree.push(parent, reference, super::trees::kind_number(node.kind), &node.amounts);
            continue;
        }
        tree.folded += 1;
        if !keep[node.parent as usize] {
            continue; // its weight is in that of the folded ancestor
        }
        let at = *fold_at.entry(parent).or_insert_with(|| tree.push(parent, -2, 1, &[None; 2]));
        for side in SIDES.into_iter().filter(|&s| node.amounts[s as usize].is_some()) {
            let total = totals[side as usize][i];
            let (at, side) = (at as usize, side as usize);
            tree.present[at] |= 1 << side;
            tree.calls[side][at] += total.calls;
            tree.insns[side][at] += total.insns;
            tree.ns[side][at] += total.ns;
        }
    }
    tree
}

impl EmbeddedTree {
    fn push(&mut self, parent: u32, reference: i64, kind: u8, amounts: &[Option<Amount>; 2]) -> u32 {
        self.parent.push(parent);
        self.reference.push(reference);
        self.kind.push(kind);
        self.present.push(present(amounts));
        for (side, amount) in amounts.iter().enumerate() {
            let amount = amount.unwrap_or_default();
            self.calls[side].push(amount.calls);
            self.insns[side].push(amount.insns);
            self.ns[side].push(amount.ns);
        }
        self.parent.len() as u32 - 1
    }
}

/// Embeds the functions that differ most in either measure.
fn embed_functions(diff: &Diff, scale: Scale, names: &mut Names, limit: usize) -> Functions {
    let mut rows = diff.functions();
    let difference = |rows: &[Option<FunctionAmount>; 2], value: fn(&FunctionAmount) -> u64| {
        let [old, new] = SIDES.map(|s| scale.apply(s, value(&rows[s as usize].unwrap_or_default())));
        old.abs_diff(new)
    };
    rows.sort_by_key(|r| {
        let insns = difference(&r.rows, |f| f.total_insns);
        std::cmp::Reverse((insns.max(difference(&r.rows, |f| f.total_ns)), r.func))
    });
    let mut out = Functions { omitted: rows.len().saturating_sub(limit), ..Functions::default() };
    rows.truncate(limit);
    for row in rows {
        out.func.push(names.func(diff, row.func));
        out.present.push(present(&row.rows));
        for (side, amount) in row.rows.iter().enumerate() {
            let amount = amount.unwrap_or_default();
            out.calls[side].push(amount.own.calls);
            out.self_insns[side].push(amount.own.insns);
            out.total_insns[side].push(amount.total_insns);
            out.self_ns[side].push(amount.own.ns);
            out.total_ns[side].push(amount.total_ns);
        }
    }
    out
}
