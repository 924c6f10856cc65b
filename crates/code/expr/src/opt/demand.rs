// SPDX-License-Identifier: MIT OR Apache-2.0
//! Removes extensions whose upper bits are not used.
//!
//! A backward pass computes the number of low bits of each value that matter. Addition, multiplication and similar
//! operations carry upwards only, so bits above the demand of the result do not matter in the operands either. Agent
//! bytecode extends after each step; this pass removes most of those extensions.

use std::collections::HashMap;

use crate::ir::{BinOp, Func, Op, Term, Val};

use super::graph::replace;

/// Removes them. Returns true if the function changed.
pub fn narrow(func: &mut Func) -> bool {
    let mut demand: HashMap<Val, u32> = HashMap::new();
    let mut want = |v: Val, bits: u32| {
        let d = demand.entry(v).or_insert(0);
        *d = (*d).max(bits);
        *d
    };
    let mut with = HashMap::new();
    for &block in func.layout.iter().rev() {
        let body = func.body(block);
        for v in body.term.iter().flat_map(Term::uses) {
            want(v, 64);
        }
        for &v in body.insts.iter().rev() {
            let width = func.width(v).bits();
            let wanted = want(v, 0).min(width);
            match func.op(v) {
                Op::Bin(BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::And | BinOp::Or | BinOp::Xor, a, b) => {
                    want(*a, wanted);
                    want(*b, wanted);
                }
                Op::Bin(BinOp::Shl, a, b) => {
                    want(*a, wanted);
                    want(*b, 64);
                }
                Op::Ext { bits, of, .. } => {
                    want(*of, wanted.min(u32::from(*bits)));
                    if wanted <= u32::from(*bits) && func.width(*of) == func.width(v) && wanted > 0 {
                        with.insert(v, *of);
                    }
                }
                op => {
                    for used in op.uses() {
                        want(used, 64);
                    }
                }
            }
        }
    }
    // An operand that replaces an extension inherits the demand of the extension's users.
    replace(func, &with);
    !with.is_empty()
}
