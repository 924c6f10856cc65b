// SPDX-License-Identifier: MIT OR Apache-2.0
//! Optimiser: shortens a function without changing its result or the operations that fail.

mod demand;
mod fold;
mod graph;

use std::collections::HashSet;

use crate::ir::{Func, Term, Val};

pub(crate) use graph::unreachable;

/// Limit of rounds. Each is linear, and the second rarely finds much.
const ROUNDS: usize = 4;

/// Runs all passes: constants, common subexpressions, unused extensions, jumps, dead code.
pub fn optimise(func: &mut Func) {
    for _ in 0..ROUNDS {
        let mut changed = graph::tidy(func);
        changed |= fold::fold(func);
        changed |= demand::narrow(func);
        changed |= sweep(func);
        if !changed {
            break;
        }
    }
}

/// Removes operations that are unused and cannot fail.
fn sweep(func: &mut Func) -> bool {
    let mut used: HashSet<Val> = HashSet::new();
    let mut changed = false;
    for block in func.layout.clone().into_iter().rev() {
        let body = func.body(block);
        used.extend(body.term.iter().flat_map(Term::uses));
        let mut kept = Vec::new();
        for &v in body.insts.iter().rev() {
            if used.contains(&v) || func.op(v).stays() {
                used.extend(func.op(v).uses());
                kept.push(v);
            }
        }
        kept.reverse();
        changed |= kept.len() != body.insts.len();
        func.body_mut(block).insts = kept;
    }
    changed
}
