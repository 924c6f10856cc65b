// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rewrites the IR into a form that eBPF can express.

use crate::ir::{BinOp, Block, Body, Func, Op, Target, Term, Val, Width};

use super::Cpu;

/// Removes unreachable blocks (the verifier rejects them), replaces signed division on v3, and removes arguments from
/// branches.
pub fn legalise(func: &Func, cpu: Cpu) -> Func {
    let mut func = func.clone();
    crate::opt::unreachable(&mut func);
    if cpu == Cpu::V3 {
        for block in func.layout.clone() {
            let insts = std::mem::take(&mut func.body_mut(block).insts);
            for v in insts {
                match *func.op(v) {
                    Op::Bin(op @ (BinOp::SDiv | BinOp::SRem), a, b) => divide(&mut func, block, v, op, a, b),
                    _ => func.body_mut(block).insts.push(v),
                }
            }
        }
    }
    split_edges(&mut func);
    func
}

/// Replaces signed division by unsigned division, without branches. `(x ^ s) - s`, with `s` all sign bits, is the
/// absolute value, and restores a sign. The smallest number is its own absolute value, so the result is right for it
/// too.
fn divide(func: &mut Func, block: Block, v: Val, op: BinOp, a: Val, b: Val) {
    let width = func.width(v);
    let mut push = |op: Op| {
        let v = func.value(op, width);
        func.body_mut(block).insts.push(v);
        v
    };
    let shift = push(Op::Const(u64::from(width.bits() - 1)));
    let mut absolute = |x: Val| {
        let sign = push(Op::Bin(BinOp::Sar, x, shift));
        let flipped = push(Op::Bin(BinOp::Xor, x, sign));
        (sign, push(Op::Bin(BinOp::Sub, flipped, sign)))
    };
    let (sign_a, abs_a) = absolute(a);
    let (sign_b, abs_b) = absolute(b);
    let (plain, sign) = match op {
        BinOp::SDiv => (BinOp::UDiv, push(Op::Bin(BinOp::Xor, sign_a, sign_b))),
        _ => (BinOp::URem, sign_a),
    };
    let result = push(Op::Bin(plain, abs_a, abs_b));
    let flipped = push(Op::Bin(BinOp::Xor, result, sign));
    func.vals[v.0 as usize].op = Op::Bin(BinOp::Sub, flipped, sign);
    func.vals[v.0 as usize].width = width;
    debug_assert!(matches!(width, Width::W32 | Width::W64));
    func.body_mut(block).insts.push(v);
}

/// Inserts a block on each branch edge that passes arguments.
fn split_edges(func: &mut Func) {
    let mut layout = Vec::new();
    for block in func.layout.clone() {
        layout.push(block);
        let Some(mut term) = func.body(block).term.clone() else { continue };
        if let Term::Branch(_, then, other) = &mut term {
            for target in [then, other] {
                if !target.args.is_empty() {
                    let edge = Target { block: target.block, args: std::mem::take(&mut target.args) };
                    func.blocks.push(Body {
                        params: Vec::new(),
                        insts: Vec::new(),
                        term: Some(Term::Jump(edge)),
                    });
                    target.block = Block(func.blocks.len() as u32 - 1);
                    layout.push(target.block);
                }
            }
            func.body_mut(block).term = Some(term);
        }
    }
    func.layout = layout;
}
