// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simplifies the control-flow graph: removes unreachable blocks, merges a block into its only predecessor, redirects
//! jumps through blocks whose branch is already decided, and removes parameters that always have the same value.

use std::collections::{HashMap, HashSet};

use crate::interp;
use crate::ir::{Block, Fault, Func, Op, Target, Term, Val};

/// Limit of instructions in a block that is evaluated for its predecessor.
const THREADED: usize = 4;

/// Runs each simplification once. Returns true if the function changed.
pub fn tidy(func: &mut Func) -> bool {
    let mut changed = constant_branches(func);
    changed |= faults(func);
    changed |= thread(func);
    changed |= unreachable(func);
    changed |= parameters(func);
    changed |= join(func);
    changed
}

/// Replaces each use of a key of `with` by its value.
pub fn replace(func: &mut Func, with: &HashMap<Val, Val>) {
    if with.is_empty() {
        return;
    }
    let find = |mut v: Val| {
        while let Some(&next) = with.get(&v) {
            v = next;
        }
        v
    };
    for block in func.layout.clone() {
        for v in func.body(block).insts.clone() {
            func.vals[v.0 as usize].op.map(find);
        }
        if let Some(term) = &mut func.body_mut(block).term {
            term.map(find);
        }
    }
}

fn constant_branches(func: &mut Func) -> bool {
    let mut changed = false;
    for block in func.layout.clone() {
        let Some(Term::Branch(v, then, other)) = &func.body(block).term else { continue };
        let target = match func.constant(*v) {
            Some(0) => other.clone(),
            Some(_) => then.clone(),
            None if then == other => then.clone(),
            None => continue,
        };
        func.body_mut(block).term = Some(Term::Jump(target));
        changed = true;
    }
    changed
}

/// Ends a block at a division by the constant zero, which always fails.
fn faults(func: &mut Func) -> bool {
    let mut changed = false;
    for block in func.layout.clone() {
        let fails = |v: &Val| match func.op(*v) {
            Op::Bin(op, _, b) => op.divides() && func.constant(*b) == Some(0),
            _ => false,
        };
        if let Some(at) = func.body(block).insts.iter().position(fails) {
            let body = func.body_mut(block);
            body.insts.truncate(at);
            body.term = Some(Term::Fault(Fault::Divide));
            changed = true;
        }
    }
    changed
}

/// Removes blocks without predecessors. Returns true if there were any.
pub fn unreachable(func: &mut Func) -> bool {
    let mut reached: HashSet<Block> = func.layout.first().copied().into_iter().collect();
    for block in func.layout.clone() {
        if reached.contains(&block)
            && let Some(term) = &func.body(block).term
        {
            reached.extend(term.targets().map(|t| t.block));
        }
    }
    let before = func.layout.len();
    func.layout.retain(|b| reached.contains(b));
    before != func.layout.len()
}

fn predecessors(func: &Func) -> HashMap<Block, Vec<(Block, Vec<Val>)>> {
    let mut all: HashMap<Block, Vec<(Block, Vec<Val>)>> = HashMap::new();
    for &block in &func.layout {
        for target in func.body(block).term.iter().flat_map(Term::targets) {
            all.entry(target.block).or_default().push((block, target.args.clone()));
        }
    }
    all
}

/// Removes parameters that have the same value on all edges.
fn parameters(func: &mut Func) -> bool {
    let before = predecessors(func);
    let mut with = HashMap::new();
    for &block in &func.layout.clone() {
        let Some(edges) = before.get(&block) else { continue };
        let params = func.body(block).params.clone();
        let same = |i: usize| {
            let first = *edges.first()?.1.get(i)?;
            let number = func.constant(first);
            let alike = |v: Val| v == first || (number.is_some() && func.constant(v) == number);
            edges.iter().all(|(_, args)| args.get(i).is_some_and(|v| alike(*v))).then_some((first, number))
        };
        let found: Vec<_> = (0..params.len()).map(same).collect();
        if found.iter().all(Option::is_none) {
            continue;
        }
        for (i, found) in found.iter().enumerate() {
            let Some((first, number)) = *found else { continue };
            let width = func.width(params[i]);
            let value = match number {
                // The predecessors' constants do not dominate this block, so it gets its own.
                Some(n) => {
                    let v = func.value(Op::Const(n), width);
                    func.body_mut(block).insts.insert(0, v);
                    v
                }
                None => first,
            };
            with.insert(params[i], value);
        }
        let keep = |i: usize| found[i].is_none();
        let mut i = 0;
        func.body_mut(block).params.retain(|_| {
            i += 1;
            keep(i - 1)
        });
        for (from, _) in edges {
            let targets = func.body_mut(*from).term.iter_mut().flat_map(Term::targets_mut);
            for target in targets.filter(|t| t.block == block && t.args.len() == params.len()) {
                let mut i = 0;
                target.args.retain(|_| {
                    i += 1;
                    keep(i - 1)
                });
            }
        }
    }
    replace(func, &with);
    !with.is_empty()
}

/// Merges a block into its only predecessor, if that jumps only there.
fn join(func: &mut Func) -> bool {
    let mut changed = false;
    let counts: HashMap<Block, usize> = predecessors(func).into_iter().map(|(b, p)| (b, p.len())).collect();
    for block in func.layout.clone() {
        while let Some(Term::Jump(target)) = func.body(block).term.clone() {
            let next = target.block;
            if counts.get(&next) != Some(&1) || !target.args.is_empty() || next == block {
                break;
            }
            let body = func.body_mut(next);
            let (insts, term) = (std::mem::take(&mut body.insts), body.term.take());
            body.term = Some(Term::Fault(Fault::Loop));
            let body = func.body_mut(block);
            body.insts.extend(insts);
            body.term = term;
            func.layout.retain(|b| *b != next);
            changed = true;
        }
    }
    changed
}

/// Jump threading: a jump whose constant arguments decide the target's branch goes directly to the chosen block.
fn thread(func: &mut Func) -> bool {
    let mut changed = false;
    for block in func.layout.clone() {
        let Some(mut term) = func.body(block).term.clone() else { continue };
        let mut moved = false;
        for target in term.targets_mut() {
            if let Some(next) = decided(func, target) {
                *target = next;
                moved = true;
            }
        }
        if moved {
            func.body_mut(block).term = Some(term);
            changed = true;
        }
    }
    changed
}

/// Returns the target that the block at `target` is certain to choose.
fn decided(func: &Func, target: &Target) -> Option<Target> {
    let body = func.body(target.block);
    if body.insts.len() > THREADED {
        return None;
    }
    let mut known: HashMap<Val, u64> = HashMap::new();
    let mut passed: HashMap<Val, Val> = HashMap::new();
    for (param, arg) in body.params.iter().zip(&target.args) {
        passed.insert(*param, *arg);
        if let Some(n) = func.constant(*arg) {
            known.insert(*param, n);
        }
    }
    for v in &body.insts {
        let number = |v: &Val| known.get(v).copied().or_else(|| func.constant(*v));
        let width = func.width(*v);
        let value = match func.op(*v) {
            Op::Const(n) => Some(*n),
            Op::Ext { bits, signed, of } => number(of).map(|n| interp::extend(n, *bits, *signed)),
            Op::Cmp(c, a, b) => Some(u64::from(interp::compare(*c, func.width(*a), number(a)?, number(b)?))),
            Op::Bin(op, a, b) if !op.divides() => interp::bin(*op, width, number(a)?, number(b)?),
            _ => None,
        }?;
        known.insert(*v, width.wrap(value));
    }
    let next = match body.term.as_ref()? {
        Term::Jump(next) if body.insts.is_empty() => next,
        Term::Branch(v, then, other) => {
            if known.get(v).copied().or_else(|| func.constant(*v))? != 0 {
                then
            } else {
                other
            }
        }
        _ => return None,
    };
    // The arguments passed on must be available at the jump. Other blocks must not use this block's values.
    let args = next.args.iter().map(|a| match passed.get(a) {
        Some(v) => Some(*v),
        None if body.insts.contains(a) => None,
        None => Some(*a),
    });
    let args = args.collect::<Option<Vec<_>>>()?;
    let uses_here = |v: &Val| body.params.contains(v) || body.insts.contains(v);
    let elsewhere = func.layout.iter().filter(|b| **b != target.block).any(|b| {
        let other = func.body(*b);
        other.insts.iter().any(|v| func.op(*v).uses().iter().any(uses_here))
            || other.term.iter().any(|t| t.uses().iter().any(uses_here))
    });
    (!elsewhere).then_some(Target { block: next.block, args })
}
