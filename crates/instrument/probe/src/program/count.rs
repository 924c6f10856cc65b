// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instructions that count by keys, in histograms and aggregates: find the cell, then add to it.
//!
//! Keys are assembled on the stack, as in a record without its header: first the word of failed values, then the keys.
//! Every addition is atomic, so an interrupt loses no count.

use kprism_ebpf::asm::{Asm, Label};
use kprism_ebpf::insn::{self, Alu, Cond, Helper, Reg, Width};

use super::memory::{CELL, CELL_AT, Counter, Layout, PROBE_STATE, RECORD, STATE, VALUE_FAULTS};
use super::values::{fill, increment, insert_with_maps};
use crate::Error;
use crate::plan::Plan;
use crate::stream::HEADER;
use crate::stream::aggregate::Function;
use crate::stream::tally::{Histogram, Scale, Tally, ZERO};
use kprism_bpf::segment::STACK;

use Reg::{R0, R1, R2, R3, R4, R5, R10};
use Width::B8;

/// Stack offset of the word of keys that could not be read. The keys follow it.
const FAILED: i16 = -(STACK as i16);
const KEY: i16 = FAILED + 8;

/// Counts the hit.
pub(crate) fn tally(
    asm: &mut Asm,
    plan: &Plan,
    tally: &Tally,
    number: u32,
    layout: &Layout,
) -> Result<(), Error> {
    let done = asm.label();
    let faults = number * PROBE_STATE + VALUE_FAULTS;
    if plan.actions.keys.is_empty() {
        asm.note("what it counts on this CPU").load(B8, R0, R10, CELL_AT);
        asm.alu_imm(Alu::Add, R0, (layout.tally_at(number) - number * CELL).cast_signed());
    } else {
        keyed(asm, plan, faults, layout, done)?;
    }
    asm.store(B8, R10, RECORD, R0);
    asm.mov(R1, R0).mov_imm(R0, 1).put(insn::atomic_add(R1, 0, R0));
    for ((at, histogram), segment) in tally.places().zip(&plan.actions.values) {
        asm.note(segment.text.clone());
        let (failed, next) = (asm.label(), asm.label());
        let value = insert_with_maps(asm, segment, faults, layout, failed)?;
        let here = |asm: &mut Asm| {
            asm.load(B8, R1, R10, RECORD).alu_imm(Alu::Add, R1, at.cast_signed());
        };
        asm.bind(value);
        here(asm);
        asm.put(insn::atomic_add(R1, 8, R0));
        slot(asm, histogram);
        here(asm);
        asm.alu_imm(Alu::Lsh, R2, 3).alu(Alu::Add, R1, R2);
        asm.mov_imm(R0, 1).put(insn::atomic_add(R1, 16, R0)).goto(next).bind(failed);
        here(asm);
        asm.mov_imm(R0, 1).put(insn::atomic_add(R1, 0, R0)).bind(next);
    }
    for (index, ((at, aggregate), segment)) in
        tally.aggregate_places().zip(&plan.actions.aggregates).enumerate()
    {
        asm.note(aggregate.title());
        let (failed, next) = (asm.label(), asm.label());
        let value = insert_with_maps(asm, segment, faults, layout, failed)?;
        let here = |asm: &mut Asm| {
            asm.load(B8, R1, R10, RECORD).alu_imm(Alu::Add, R1, at.cast_signed());
        };
        asm.bind(value);
        match aggregate.function {
            Function::Latest if plan.actions.keys.is_empty() => {
                asm.map_value(R1, STATE, layout.last_at(number, index as u32)).store(B8, R1, 0, R0);
            }
            Function::Latest => {
                here(asm);
                asm.store(B8, R1, 8, R0);
            }
            Function::Sum | Function::Avg => {
                here(asm);
                add(asm, aggregate.signed);
            }
            Function::Min | Function::Max => {
                here(asm);
                exceed(asm, aggregate.flips(), failed, next);
            }
        }
        asm.goto(next).bind(failed);
        here(asm);
        asm.mov_imm(R0, 1).put(insn::atomic_add(R1, 0, R0)).bind(next);
    }
    asm.bind(done);
    Ok(())
}

/// Adds r0 to the 128-bit number after the word at r1. Each half is added atomically, and the carry of an addition
/// depends on that addition alone, so the number is exact when no addition is under way.
fn add(asm: &mut Asm, signed: bool) {
    let (no_carry, done) = (asm.label(), asm.label());
    asm.mov(R2, R0).put(insn::fetch_add(R1, 8, R0));
    asm.alu(Alu::Add, R0, R2).mov_imm(R3, 0).branch(Cond::Ge, R0, R2, no_carry).mov_imm(R3, 1).bind(no_carry);
    if signed {
        asm.alu_imm(Alu::Arsh, R2, 63).alu(Alu::Add, R3, R2);
    }
    asm.branch_imm(Cond::Eq, R3, 0, done).put(insn::atomic_add(R1, 16, R3)).bind(done);
}

/// Attempts to enter a value while other CPUs enter theirs.
const ATTEMPTS: usize = 16;

/// Replaces the word after the one at r1 by r0 with these bits flipped, if that is greater; then jumps to `done`. Jumps to
/// `lost` if other CPUs entered greater values at each attempt.
fn exceed(asm: &mut Asm, flips: u64, lost: Label, done: Label) {
    asm.mov(R2, R0);
    if flips != 0 {
        asm.mov_wide(R3, flips).alu(Alu::Xor, R2, R3);
    }
    asm.load(B8, R0, R1, 8);
    for _ in 0..ATTEMPTS {
        asm.branch(Cond::Ge, R0, R2, done).mov(R3, R0).put(insn::compare_exchange(R1, 8, R2));
        asm.branch(Cond::Eq, R0, R3, done);
    }
    asm.branch(Cond::Lt, R0, R2, lost);
}

/// Sets r0 to the cell of the hit's keys. Jumps to `done` if there is none.
fn keyed(asm: &mut Asm, plan: &Plan, faults: u32, layout: &Layout, done: Label) -> Result<(), Error> {
    const ONLY_NEW: i32 = 1;
    let keys = layout.entries_map() + usize::from(!plan.kept.is_empty());
    let bytes = plan.actions.key_bytes as i16;
    asm.note("keys");
    for at in (FAILED..KEY + bytes).step_by(8) {
        asm.store_imm(B8, R10, at, 0);
    }
    asm.mov(R1, R10).alu_imm(Alu::Add, R1, i32::from(KEY) - HEADER as i32).store(B8, R10, RECORD, R1);
    for slot in &plan.actions.keys {
        fill(asm, plan, slot, faults, layout)?;
    }
    let (read, found, room) = (asm.label(), asm.label(), asm.label());
    asm.note("its cell").load(B8, R0, R10, FAILED).branch_imm(Cond::Eq, R0, 0, read);
    asm.load(B8, R1, R10, CELL_AT);
    increment(asm, Counter::KeysFailed);
    asm.goto(done).bind(read);
    let key = |asm: &mut Asm| {
        asm.map(R1, keys).mov(R2, R10).alu_imm(Alu::Add, R2, i32::from(KEY));
    };
    key(asm);
    asm.call(Helper::MapLookup).branch_imm(Cond::Ne, R0, 0, found);
    key(asm);
    asm.map_value(R3, STATE, layout.zeros_at()).mov_imm(R4, ONLY_NEW).call(Helper::MapUpdate);
    // Another CPU may have inserted it first.
    key(asm);
    asm.call(Helper::MapLookup).branch_imm(Cond::Ne, R0, 0, room);
    asm.load(B8, R1, R10, CELL_AT);
    increment(asm, Counter::KeysLost);
    asm.goto(done).bind(room).bind(found);
    Ok(())
}

/// Sets r2 to the slot of the value in r0; see [`Scale::slot`].
fn slot(asm: &mut Asm, histogram: &Histogram) {
    let done = asm.label();
    match histogram.scale {
        Scale::Log2 => {
            asm.mov_imm(R2, ZERO as i32).branch_imm(Cond::Eq, R0, 0, done);
            asm.mov_imm(R3, 0).mov_imm(R4, 0);
            if histogram.signed {
                let positive = asm.label();
                asm.branch_imm(Cond::SGt, R0, 0, positive);
                asm.alu_imm(Alu::Neg, R0, 0).mov_imm(R4, 1).bind(positive);
            }
            for bits in [32, 16, 8, 4, 2, 1] {
                let less = asm.label();
                asm.mov(R5, R0).alu_imm(Alu::Rsh, R5, bits).branch_imm(Cond::Eq, R5, 0, less);
                asm.mov(R0, R5).alu_imm(Alu::Add, R3, bits).bind(less);
            }
            let positive = asm.label();
            asm.branch_imm(Cond::Eq, R4, 0, positive);
            asm.mov_imm(R2, ZERO as i32 - 1).alu(Alu::Sub, R2, R3).goto(done);
            asm.bind(positive).mov_imm(R2, ZERO as i32 + 1).alu(Alu::Add, R2, R3);
        }
        Scale::Linear { min, max, step } => {
            let last = histogram.scale.slots() as i32 - 1;
            let (below, above) = if histogram.signed { (Cond::SLt, Cond::SGe) } else { (Cond::Lt, Cond::Ge) };
            asm.mov_imm(R2, 0).mov_u64(R3, min.cast_unsigned()).branch(below, R0, R3, done);
            asm.mov_imm(R2, last).mov_u64(R3, max.cast_unsigned()).branch(above, R0, R3, done);
            asm.mov_u64(R3, min.cast_unsigned()).alu(Alu::Sub, R0, R3);
            asm.mov_u64(R3, step).alu(Alu::Div, R0, R3);
            // It is always below; the verifier cannot see that.
            asm.branch_imm(Cond::Ge, R0, last, done).mov(R2, R0).alu_imm(Alu::Add, R2, 1);
        }
    }
    asm.bind(done);
}
