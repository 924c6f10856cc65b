// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constant folding, algebraic identities and common subexpressions.

use std::collections::HashMap;

use crate::interp;
use crate::ir::{BinOp, Block, Cond, Def, Func, Op, Term, Val, Width};

use super::graph::replace;

/// Makes one pass. Returns true if the function changed.
pub fn fold(func: &mut Func) -> bool {
    let dominators = dominators(func);
    let mut with: HashMap<Val, Val> = HashMap::new();
    let mut seen: HashMap<(Op, Width), Vec<(Block, Val)>> = HashMap::new();
    let mut changed = false;
    let find = |with: &HashMap<Val, Val>, mut v: Val| {
        while let Some(&next) = with.get(&v) {
            v = next;
        }
        v
    };
    for block in func.layout.clone() {
        let mut kept = Vec::new();
        // An identity may need a new constant, which is placed before its user.
        for v in func.body(block).insts.clone() {
            func.vals[v.0 as usize].op.map(|u| find(&with, u));
            let before = func.vals[v.0 as usize].op.clone();
            match simplify(func, v, &mut kept) {
                Some(Simpler::Value(other)) => {
                    with.insert(v, other);
                    changed = true;
                    continue;
                }
                Some(Simpler::Op(op)) => {
                    changed |= op != before;
                    func.vals[v.0 as usize].op = op;
                }
                None => {}
            }
            let Def { op, width } = func.vals[v.0 as usize].clone();
            if op.repeats() {
                let known = seen.entry((op, width)).or_default();
                if let Some((_, other)) = known.iter().find(|(b, _)| dominates(&dominators, *b, block)) {
                    with.insert(v, *other);
                    changed = true;
                    continue;
                }
                known.push((block, v));
            }
            kept.push(v);
        }
        let body = func.body_mut(block);
        body.insts = kept;
        if let Some(term) = &mut body.term {
            term.map(|u| find(&with, u));
        }
        truth(func, block);
    }
    replace(func, &with);
    changed
}

/// Replaces a branch on `x != 0` by a branch on `x`.
fn truth(func: &mut Func, block: Block) {
    let Some(Term::Branch(v, then, other)) = func.body(block).term.clone() else { return };
    if let Op::Cmp(cond @ (Cond::Ne | Cond::Eq), a, b) = *func.op(v)
        && func.constant(b) == Some(0)
        && let Op::Cmp(..) = func.op(a)
    {
        let term = if cond == Cond::Ne { Term::Branch(a, then, other) } else { Term::Branch(a, other, then) };
        func.body_mut(block).term = Some(term);
    }
}

enum Simpler {
    Value(Val),
    Op(Op),
}

fn simplify(func: &mut Func, v: Val, kept: &mut Vec<Val>) -> Option<Simpler> {
    let width = func.width(v);
    let number = |v: Val| func.constant(v);
    let all = width.wrap(u64::MAX);
    match *func.op(v) {
        Op::Ext { bits, signed, of } => {
            if let Some(n) = number(of) {
                return Some(Simpler::Op(Op::Const(width.wrap(interp::extend(n, bits, signed)))));
            }
            let from = func.width(of);
            match *func.op(of) {
                // The inner extension has no effect on the bits that the outer one keeps.
                Op::Ext { bits: inner, of: deeper, .. } if inner >= bits => {
                    return Some(Simpler::Op(Op::Ext { bits, signed, of: deeper }));
                }
                // The outer extension has no effect: the inner one already set these bits.
                Op::Ext { bits: inner, signed: s, of: deeper }
                    if inner < bits && (!s || (signed && from == width)) =>
                {
                    return Some(Simpler::Op(Op::Ext { bits: inner, signed: s, of: deeper }));
                }
                Op::Ext { bits: inner, signed: true, of: deeper }
                    if inner < bits && signed && from == Width::W32 && bits == 32 =>
                {
                    return Some(Simpler::Op(Op::Ext { bits: inner, signed: true, of: deeper }));
                }
                Op::Cmp(..) | Op::TextEq(..) if bits > 1 && from == width => return Some(Simpler::Value(of)),
                // The load already zero-extended from fewer bits.
                Op::Load { size, signed: false, .. } if size * 8 < bits && from == width => {
                    return Some(Simpler::Value(of));
                }
                Op::Load { size, signed: s, .. } if size * 8 == bits && s == signed && from == width => {
                    return Some(Simpler::Value(of));
                }
                _ => {}
            }
            if u32::from(bits) >= width.bits() && from == width {
                return Some(Simpler::Value(of));
            }
            None
        }
        Op::Cmp(cond, a, b) => {
            let w = func.width(a);
            if let (Some(x), Some(y)) = (number(a), number(b)) {
                return Some(Simpler::Op(Op::Const(u64::from(interp::compare(cond, w, x, y)))));
            }
            if a == b {
                let holds = matches!(cond, Cond::Eq | Cond::Ule | Cond::Sle);
                return Some(Simpler::Op(Op::Const(u64::from(holds))));
            }
            if number(b) == Some(0) {
                match (cond, func.op(a).clone()) {
                    // (x == y) != 0
                    (Cond::Ne, Op::Cmp(..) | Op::TextEq(..)) => return Some(Simpler::Value(a)),
                    // (x < y) == 0
                    (Cond::Eq, Op::Cmp(inner, x, y)) => {
                        return Some(Simpler::Op(match inner {
                            Cond::Eq => Op::Cmp(Cond::Ne, x, y),
                            Cond::Ne => Op::Cmp(Cond::Eq, x, y),
                            Cond::Ult => Op::Cmp(Cond::Ule, y, x),
                            Cond::Ule => Op::Cmp(Cond::Ult, y, x),
                            Cond::Slt => Op::Cmp(Cond::Sle, y, x),
                            Cond::Sle => Op::Cmp(Cond::Slt, y, x),
                        }));
                    }
                    // A comparison's result, extended.
                    (_, Op::Ext { of, bits, .. })
                        if bits > 1
                            && matches!(func.op(of), Op::Cmp(..))
                            && matches!(cond, Cond::Eq | Cond::Ne) =>
                    {
                        let zero = func.value(Op::Const(0), Width::W32);
                        kept.push(zero);
                        return Some(Simpler::Op(Op::Cmp(cond, of, zero)));
                    }
                    _ => {}
                }
            }
            narrow_compare(func, cond, a, b, kept)
        }
        Op::Bin(op, a, b) => {
            if let (Some(x), Some(y)) = (number(a), number(b)) {
                return Some(Simpler::Op(Op::Const(interp::bin(op, width, x, y)?)));
            }
            let (a, b) = if op.commutes() && number(a).is_some() { (b, a) } else { (a, b) };
            if let Some(n) = number(b) {
                let power = n.is_power_of_two().then(|| u64::from(n.trailing_zeros()));
                match (op, n) {
                    (BinOp::Add | BinOp::Sub | BinOp::Or | BinOp::Xor, 0)
                    | (BinOp::Shl | BinOp::Shr | BinOp::Sar, 0)
                    | (BinOp::Mul | BinOp::UDiv | BinOp::SDiv, 1) => return Some(Simpler::Value(a)),
                    (BinOp::Mul | BinOp::And, 0) => return Some(Simpler::Op(Op::Const(0))),
                    (BinOp::URem | BinOp::SRem, 1) => return Some(Simpler::Op(Op::Const(0))),
                    (BinOp::And, n) if n == all => return Some(Simpler::Value(a)),
                    _ => {}
                }
                let other = match (op, power) {
                    (BinOp::Mul, Some(p)) => Some((BinOp::Shl, p)),
                    (BinOp::UDiv, Some(p)) => Some((BinOp::Shr, p)),
                    (BinOp::URem, Some(_)) => Some((BinOp::And, n - 1)),
                    (BinOp::Sub, _) => Some((BinOp::Add, width.wrap(n.wrapping_neg()))),
                    _ => None,
                };
                if let Some((op, n)) = other {
                    let c = func.value(Op::Const(n), width);
                    kept.push(c);
                    return Some(Simpler::Op(Op::Bin(op, a, c)));
                }
                // (x + 1) + 2
                if op == BinOp::Add
                    && let Op::Bin(BinOp::Add, x, c) = *func.op(a)
                    && let Some(m) = number(c)
                {
                    let c = func.value(Op::Const(width.wrap(n.wrapping_add(m))), width);
                    kept.push(c);
                    return Some(Simpler::Op(Op::Bin(BinOp::Add, x, c)));
                }
            } else if a == b && !op.divides() {
                match op {
                    BinOp::Sub | BinOp::Xor => return Some(Simpler::Op(Op::Const(0))),
                    BinOp::And | BinOp::Or => return Some(Simpler::Value(a)),
                    _ => {}
                }
            }
            Some(Simpler::Op(Op::Bin(op, a, b)))
        }
        // `$x = $x + n` becomes an atomic addition, so that no concurrent update is lost.
        Op::SetVar(n, sum) => match *func.op(sum) {
            Op::Bin(BinOp::Add, a, b) => {
                let other = match (func.op(a), func.op(b)) {
                    (Op::GetVar(m), _) if *m == n => b,
                    (_, Op::GetVar(m)) if *m == n => a,
                    _ => return None,
                };
                let get = if other == b { a } else { b };
                let from = kept.iter().position(|k| *k == get)?;
                let clear = kept[from + 1..]
                    .iter()
                    .all(|k| !matches!(func.op(*k), Op::SetVar(m, _) | Op::AddVar(m, _) if *m == n));
                clear.then_some(Simpler::Op(Op::AddVar(n, other)))
            }
            _ => None,
        },
        _ => None,
    }
}

/// Replaces a 64-bit comparison of two values that were extended alike from 32 bits by a 32-bit comparison.
fn narrow_compare(func: &mut Func, cond: Cond, a: Val, b: Val, kept: &mut Vec<Val>) -> Option<Simpler> {
    if func.width(a) != Width::W64 {
        return None;
    }
    let Op::Ext { bits: 32, signed, of } = *func.op(a) else { return None };
    if func.width(of) != Width::W32 {
        return None;
    }
    let fits = match cond {
        Cond::Eq | Cond::Ne => true,
        Cond::Slt | Cond::Sle => signed,
        Cond::Ult | Cond::Ule => !signed,
    };
    let same = |n: u64| interp::extend(n, 32, signed) == n;
    let other = match *func.op(b) {
        Op::Ext { bits: 32, signed: s, of: y } if s == signed && func.width(y) == Width::W32 => y,
        Op::Const(n) if same(n) => {
            let c = func.value(Op::Const(Width::W32.wrap(n)), Width::W32);
            kept.push(c);
            c
        }
        _ => return None,
    };
    fits.then_some(Simpler::Op(Op::Cmp(cond, of, other)))
}

/// Returns the immediate dominator of each block. Jumps go forward only, so one pass is enough.
fn dominators(func: &Func) -> HashMap<Block, Block> {
    let order: HashMap<Block, usize> = func.layout.iter().enumerate().map(|(i, b)| (*b, i)).collect();
    let mut idom: HashMap<Block, Block> = HashMap::new();
    for &block in &func.layout {
        for target in func.body(block).term.iter().flat_map(Term::targets) {
            let to = target.block;
            let Some(&known) = idom.get(&to) else {
                idom.insert(to, block);
                continue;
            };
            let (mut a, mut b) = (known, block);
            while a != b {
                let later = if order.get(&a) > order.get(&b) { &mut a } else { &mut b };
                match idom.get(later) {
                    Some(up) => *later = *up,
                    None => break,
                }
            }
            idom.insert(to, a);
        }
    }
    idom
}

fn dominates(idom: &HashMap<Block, Block>, above: Block, mut below: Block) -> bool {
    loop {
        if above == below {
            return true;
        }
        match idom.get(&below) {
            Some(&up) => below = up,
            None => return false,
        }
    }
}
