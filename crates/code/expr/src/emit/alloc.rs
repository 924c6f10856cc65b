// SPDX-License-Identifier: MIT OR Apache-2.0
//! Register allocation: a linear scan over the blocks in layout order.
//!
//! Jumps go forward only, so a value's lifetime is one interval of positions. Values that live across a helper call get
//! one of r6 to r9; others may also get one of r1 to r4. A value without a register lives on the stack. The emitter
//! uses r0 and r5 as scratch; r10 is the frame pointer.

use std::collections::{HashMap, HashSet};

use crate::ir::{Cond, Func, Input, Op, Term, Val, Width};

use super::Cpu;

/// Location of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// In a register.
    Reg(u8),
    /// In this 8-byte slot of the stack, counted from 0.
    Slot(u16),
}

/// A comparison that is merged into the branch that tests it.
#[derive(Debug, Clone, Copy)]
pub struct Fused {
    pub cond: Cond,
    pub a: Val,
    pub b: Val,
}

/// Result of the allocation.
#[derive(Debug, Default)]
pub struct Allocation {
    places: HashMap<Val, Place>,
    alias: HashMap<Val, Val>,
    /// Merged comparisons, by the value that the branch tests.
    pub fused: HashMap<Val, Fused>,
    /// Location of the context pointer, if the program uses it.
    pub ctx: Option<Place>,
    /// Number of stack slots.
    pub slots: u16,
    /// Number of uses of each value; unused values are absent.
    uses: HashMap<Val, u32>,
}

const CALLEE: [u8; 4] = [6, 7, 8, 9];
const ANY: [u8; 8] = [1, 2, 3, 4, 6, 7, 8, 9];

/// Lifetime of a value, or of the context pointer (None).
struct Life {
    of: Option<Val>,
    start: i64,
    end: i64,
    calls: bool,
}

impl Allocation {
    /// Returns a value's location; None for constants and unused values.
    pub fn place(&self, v: Val) -> Option<Place> {
        self.places.get(&self.real(v)).copied()
    }

    /// Follows aliases to the value that `v` shares its register with.
    pub fn real(&self, mut v: Val) -> Val {
        while let Some(&of) = self.alias.get(&v) {
            v = of;
        }
        v
    }

    /// Returns true if the value emits no instruction of its own: an alias or a merged comparison.
    pub fn is_silent(&self, v: Val) -> bool {
        self.alias.contains_key(&v) || self.fused.contains_key(&v)
    }

    /// Returns true if the value has a use.
    pub fn is_used(&self, v: Val) -> bool {
        self.uses.contains_key(&v)
    }
}

/// Returns true if the upper half of a 32-bit value's register is zero.
fn upper_is_zero(func: &Func, v: Val, cpu: Cpu) -> bool {
    match func.op(v) {
        Op::Bin(..) | Op::Cmp(..) | Op::TextEq(..) | Op::CalledBy(_) | Op::InContainer(_) => true,
        Op::Ext { bits: ..32, .. } => true,
        // No instruction is emitted for it: the register is that of its operand.
        Op::Ext { of, .. } => func.width(*of) == Width::W32 && upper_is_zero(func, *of, cpu),
        Op::Load { signed, size, .. } => !signed || *size == 4 || cpu == Cpu::V3,
        _ => false,
    }
}

/// Returns true if the operation calls a helper.
pub fn calls(op: &Op) -> bool {
    match op {
        Op::Load { .. } | Op::TextEq(..) | Op::Entry(..) | Op::Record(_) => true,
        Op::CalledBy(_) | Op::InContainer(_) => true,
        Op::Input(input) => {
            !matches!(input, Input::Reg(_) | Input::Arg(_) | Input::Context | Input::Measured)
        }
        _ => false,
    }
}

fn views(func: &Func, cpu: Cpu) -> HashMap<Val, Val> {
    let mut alias = HashMap::new();
    for block in &func.layout {
        for &v in &func.body(*block).insts {
            if let Op::Ext { bits: 32, signed, of } = func.op(v) {
                let cut = func.width(v) == Width::W32;
                let wide = func.width(*of) == Width::W32 && !signed && upper_is_zero(func, *of, cpu);
                if (cut || wide) && func.constant(*of).is_none() {
                    alias.insert(v, *of);
                }
            }
        }
    }
    alias
}

/// Assigns a location to each value.
pub fn allocate(func: &Func, cpu: Cpu) -> Allocation {
    let mut out = Allocation { alias: views(func, cpu), ..Allocation::default() };
    for block in &func.layout {
        let body = func.body(*block);
        let inner = body.insts.iter().flat_map(|v| func.op(*v).uses());
        let ends = body.term.iter().flat_map(Term::uses);
        for v in inner.chain(ends).collect::<Vec<_>>() {
            *out.uses.entry(v).or_default() += 1;
        }
    }
    for block in &func.layout {
        if let Some(Term::Branch(v, ..)) = &func.body(*block).term
            && let Op::Cmp(cond, a, b) = func.op(*v)
            && out.uses.get(v) == Some(&1)
        {
            out.fused.insert(*v, Fused { cond: *cond, a: *a, b: *b });
        }
    }
    let mut lives = lives(func, &out);
    lives.sort_by_key(|l| (l.start, l.of));
    scan(func, lives, &mut out);
    out
}

fn lives(func: &Func, out: &Allocation) -> Vec<Life> {
    let mut start: HashMap<Val, i64> = HashMap::new();
    let mut end: HashMap<Val, i64> = HashMap::new();
    let mut call_at = Vec::new();
    let mut ctx = None;
    let mut at = 0;
    for block in &func.layout {
        let body = func.body(*block);
        for &v in &body.insts {
            at += 2;
            let op = func.op(v);
            if matches!(op, Op::Input(Input::Reg(_) | Input::Arg(_) | Input::Context) | Op::CalledBy(_)) {
                ctx = Some(at);
            }
            if out.is_silent(v) {
                continue;
            }
            if calls(op) {
                call_at.push(at);
            }
            start.entry(v).or_insert(at);
            // A record takes several helper calls, so its operands must survive the first; a search for a caller needs its own
            // after the call.
            let until = if matches!(op, Op::Record(_) | Op::CalledBy(_)) { at + 1 } else { at };
            for used in op.uses() {
                end.insert(out.real(used), until);
            }
        }
        at += 2;
        let Some(term) = &body.term else { continue };
        for used in term.uses() {
            if let Some(fused) = out.fused.get(&used) {
                end.insert(out.real(fused.a), at);
                end.insert(out.real(fused.b), at);
            } else {
                end.insert(out.real(used), at);
            }
        }
        for target in term.targets() {
            for param in &func.body(target.block).params {
                start.entry(*param).or_insert(at);
            }
        }
    }
    let crosses = |from: i64, to: i64| call_at.iter().any(|&c| from < c && c < to);
    let mut lives: Vec<Life> = start
        .iter()
        .filter(|(v, _)| func.constant(**v).is_none())
        .filter_map(|(&v, &from)| {
            let to = *end.get(&v)?;
            Some(Life { of: Some(v), start: from, end: to.max(from + 1), calls: crosses(from, to) })
        })
        .collect();
    if let Some(to) = ctx {
        lives.push(Life { of: None, start: -1, end: to + 1, calls: crosses(-1, to) });
    }
    lives
}

fn scan(func: &Func, lives: Vec<Life>, out: &mut Allocation) {
    // Holder of each register: end of its lifetime, value, and whether it lives across a call.
    let mut held: [Option<(i64, Option<Val>, bool)>; 10] = [None; 10];
    let mut chosen: HashMap<Option<Val>, Place> = HashMap::new();
    // A load expects its address in r3.
    let loads: HashSet<Val> = func
        .ops()
        .filter_map(|op| if let Op::Load { addr, .. } = op { Some(out.real(*addr)) } else { None })
        .collect();
    let mut slots = 0;
    let mut slot = || {
        slots += 1;
        Place::Slot(slots - 1)
    };
    for life in lives {
        for h in &mut held {
            if h.is_some_and(|(end, ..)| end <= life.start) {
                *h = None;
            }
        }
        let allowed: &[u8] = if life.calls { &CALLEE } else { &ANY };
        let wish = match life.of {
            None => Some(1),
            Some(v) if loads.contains(&v) && held[3].is_none() => Some(3),
            Some(v) => first_operand(func, v).and_then(|a| match chosen.get(&Some(out.real(a))) {
                Some(Place::Reg(r)) => Some(*r),
                _ => None,
            }),
        };
        let free = |r: &u8| held[usize::from(*r)].is_none();
        let reg = wish
            .filter(|r| allowed.contains(r) && free(r))
            .or_else(|| allowed.iter().copied().find(|r| free(r)));
        let reg = match reg {
            Some(reg) => reg,
            None => {
                // Spill the value with the longest remaining lifetime.
                let last = allowed.iter().copied().max_by_key(|r| held[usize::from(*r)].map(|h| h.0));
                match last {
                    Some(reg) if held[usize::from(reg)].is_some_and(|h| h.0 > life.end) => {
                        if let Some((_, of, _)) = held[usize::from(reg)] {
                            chosen.insert(of, slot());
                        }
                        reg
                    }
                    _ => {
                        chosen.insert(life.of, slot());
                        continue;
                    }
                }
            }
        };
        held[usize::from(reg)] = Some((life.end, life.of, life.calls));
        chosen.insert(life.of, Place::Reg(reg));
    }
    out.slots = slots;
    for (of, place) in chosen {
        match of {
            Some(v) => {
                out.places.insert(v, place);
            }
            None => out.ctx = Some(place),
        }
    }
}

/// Returns the operand whose register suits the result best.
fn first_operand(func: &Func, v: Val) -> Option<Val> {
    match func.op(v) {
        Op::Bin(_, a, _) | Op::Ext { of: a, .. } => Some(*a),
        _ => None,
    }
}
