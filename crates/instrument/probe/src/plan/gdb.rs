// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data with which GDB shows a hit as a trace frame: the registers, and all memory that the expressions read.
//!
//! An expression's code determines what it reads. For each of its loads, the code up to that load is compiled once to
//! give the address, and once to give the value. Both lie after the record's values, and are not values themselves.

use kprism_expr::ir::{Block, Func, Op, Term, Val, Width};
use kprism_expr::lower::What;
use kprism_expr::opt;

use super::layout::Compile;
use super::lower::Wanted;
use super::{Fill, Segment, Slot};
use crate::Error;
use crate::stream::shape::Shape;
use crate::stream::{Frame, Item, Memory};

/// Size of the registers, bytes.
const REGISTERS: u32 = 168;

/// The function up to an instruction, returning this value; 0 if execution does not reach the instruction.
fn cut(func: &Func, block: Block, count: usize, value: Val) -> Func {
    let mut func = func.clone();
    let body = func.body_mut(block);
    body.insts.truncate(count);
    body.term = Some(Term::Return(value));
    let mut reached = vec![func.layout[0]];
    let mut next = 0;
    while let Some(at) = reached.get(next).copied() {
        let targets: Vec<Block> =
            func.body(at).term.iter().flat_map(Term::targets).map(|target| target.block).collect();
        reached.extend(targets.into_iter().filter(|to| !reached.contains(to)).collect::<Vec<_>>());
        next += 1;
    }
    func.layout.retain(|b| reached.contains(b));
    for other in func.layout.clone() {
        if other != block && matches!(func.body(other).term, Some(Term::Return(_))) {
            let zero = func.value(Op::Const(0), Width::W64);
            let body = func.body_mut(other);
            body.insts.push(zero);
            body.term = Some(Term::Return(zero));
        }
    }
    opt::optimise(&mut func);
    func
}

/// The loads of a function: address, size, value.
fn loads(func: &Func) -> Vec<(Func, u32, Func)> {
    let mut all = Vec::new();
    for block in &func.layout {
        for (n, v) in func.body(*block).insts.iter().enumerate() {
            if let Op::Load { size, addr, .. } = func.op(*v) {
                all.push((cut(func, *block, n, *addr), u32::from(*size), cut(func, *block, n + 1, *v)));
            }
        }
    }
    all
}

/// Lays out the data kept for these expressions, from offset `at` on. `items` and `slots` describe the record's values.
pub(super) fn lay_out(
    values: &[Wanted],
    items: &[Item],
    slots: &[Slot],
    mut at: u32,
    compile: &Compile<'_>,
) -> Result<(Frame, Vec<Slot>, u32), Error> {
    let mut frame = Frame { registers: at, memory: Vec::new() };
    let mut hidden = vec![Slot { at, number: 0, fill: Fill::Registers }];
    at += REGISTERS;
    let mut seen: Vec<Segment> = Vec::new();
    for (number, wanted) in values.iter().enumerate() {
        let Wanted::Expression(_, collected) = wanted else { continue };
        let number = number as u32;
        let mut keep = |segment: Segment, at: &mut u32| {
            hidden.push(Slot { at: *at, number, fill: Fill::Value(segment) });
            *at += 8;
            *at - 8
        };
        // For an array, the number of its elements is read too.
        let counts = match collected.what {
            What::Elements(_) => &collected.parts[..],
            _ => &[],
        };
        let counts = counts.iter().filter_map(|part| part.func.as_ref()).flat_map(loads);
        for (address, size, value) in loads(&collected.func).into_iter().chain(counts) {
            let address = compile("an address for GDB", &address)?;
            if seen.contains(&address) {
                continue;
            }
            seen.push(address.clone());
            let address = keep(address, &mut at);
            let bytes = keep(compile("memory for GDB", &value)?, &mut at);
            frame.memory.push(Memory { item: number, address, bytes, size, text: false });
        }
        let Some(slot) = slots.iter().find(|slot| slot.number == number) else { continue };
        let (size, text) = match (&slot.fill, items.get(number as usize).and_then(|i| i.shape.as_ref())) {
            (Fill::Memory(_, size), _) => (*size, false),
            (Fill::Text(_, room, _), Some(Shape::Text { .. })) => (*room, true),
            (Fill::Elements { stride: 1, most, .. }, _) => (*most, true),
            _ => continue,
        };
        let address = keep(compile("an address for GDB", &collected.func)?, &mut at);
        let bytes = if text { slot.at + 8 } else { slot.at };
        frame.memory.push(Memory { item: number, address, bytes, size, text });
    }
    Ok((frame, hidden, at))
}
