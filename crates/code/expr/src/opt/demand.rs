// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extensions whose upper bits nobody looks at are left out.
//!
//! A walk backwards finds how many low bits of each value matter: addition, multiplication and their like carry
//! upwards only, so what is above a result's demand is above its operands' demand too. Agent bytecode extends after
//! each step, and most of that goes here.

use std::collections::HashMap;

use crate::ir::{BinOp, Func, Op, Term, Val};

use super::graph::replace;

/// Leaves them out.
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
    // The demand of an operand that takes an extension's place is that of the extension's users.
    replace(func, &with);
    !with.is_empty()
}
