// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs at function entry and return. Their instructions are the cost of tracing.
//!
//! They call only two helpers: for the clock and for the CPU number; the kernel inlines the second. There are no
//! lookups and no atomic instructions. Rare cases (a duration outside the current range, a stack out of order) are
//! behind a jump.
//!
//! An entry reserves its frame before filling it in, and a return releases it last. So a program that interrupts in
//! between finds the stack in order, and leaves it so.
//!
//! With a [`Condition`] every call still has its frame, whether the condition holds or not: its time is that of a traced
//! call from its caller either way. A call for which it does not hold is only counted when it returns. The verdict of an
//! entry is the highest bit of the time of entry. A condition is evaluated outside of the measured time.

use super::layout::{AWAY, CHILD, ENTERED, FRAME, FULL, KEY, OFF, ROW, TOP_MASK, cpu, row};
use crate::error::Error;
use crate::segment::{self, CONTEXT, Operand};
use kprism_ebpf::asm::{Asm, Code, Label};
use kprism_ebpf::insn::{Alu, Cond, Helper, Reg, Width};
use kprism_expr::emit::{MEASURED, Program, RESULT, Reloc};

use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R10};
use Width::B8;

/// Indices of the maps, in the order in which the programs are loaded with them.
pub const CPUS: usize = 0;
pub const STACKS: usize = 1;
pub const RING: usize = 2;
/// Counters of the faults of conditions, by kind.
pub const FAULTS: usize = 3;

/// Treatment of a call when it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The call is added to its function's row.
    Aggregate,
    /// The call becomes a record if it took at least this many ns.
    LongerThan(u64),
}

/// A condition on a function's calls. The others are not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The compiled condition, for the context of the hook.
    pub program: Program,
    /// True if it is evaluated where the call returns, because it asks for the result or the duration.
    pub at_return: bool,
}

/// Identification of the traced function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// The program is for this function only.
    One(u32),
    /// The attachment's cookie is the function's number. The value is the number of functions.
    Cookie(u32),
}

/// Parameters of the generated programs.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Treatment of calls.
    pub keep: Keep,
    /// Location of the CPUs' regions.
    pub regions: Regions,
    /// True if some functions have a condition: then all calls are told apart by their functions' numbers.
    pub conditional: bool,
}

/// Method of finding a CPU's region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Regions {
    /// All regions are in one value, at multiples of a power of two. The mask is for kernels whose verifier does not
    /// know that the CPU number is less than the number of CPUs.
    Shifted {
        /// Shift from the CPU number to the region's offset.
        shift: u32,
        /// Mask for the CPU number.
        mask: Option<i32>,
    },
    /// Each region is a value of its own, because together they exceed the size limit of a value.
    Looked,
}

/// Size of a kept call's record in bytes, as in the ring. `calls.bin` has the same layout, but with the function's
/// address instead of its number. Little-endian.
pub const RECORD: i32 = 72;

/// `R2 =` the CPU's region. Preserves `R1` by spilling it to `spill`. If the kernel inlines the call, it removes the
/// spill, and the stack too if nothing else is on it. For this, `spill` must be the lowest stack slot in use.
pub(super) fn cpu_region(asm: &mut Asm, regions: Regions, spill: i16) {
    asm.store(B8, R10, spill, R1).call(Helper::SmpProcessorId);
    match regions {
        Regions::Shifted { shift, mask } => {
            asm.load(B8, R1, R10, spill);
            if let Some(mask) = mask {
                asm.alu_imm(Alu::And, R0, mask);
            }
            asm.alu_imm(Alu::Lsh, R0, shift.cast_signed()).map_value(R2, CPUS, 0).alu(Alu::Add, R2, R0);
        }
        Regions::Looked => {
            let there = asm.label();
            let key = spill - 8;
            asm.store(Width::B4, R10, key, R0);
            asm.map(R1, CPUS).mov(R2, R10).alu_imm(Alu::Add, R2, key.into()).call(Helper::MapLookup);
            asm.branch_imm(Cond::Ne, R0, 0, there).end().bind(there);
            asm.mov(R2, R0).load(B8, R1, R10, spill);
        }
    }
}

/// `[region + field] += 1`. Clobbers `free`.
fn count(asm: &mut Asm, region: Reg, field: i16, free: Reg) {
    asm.load(B8, free, region, field).alu_imm(Alu::Add, free, 1).store(B8, region, field, free);
}

/// Generates the program at entry.
pub fn entry(shape: &Shape, site: Site, condition: Option<&Condition>) -> Result<Code, Error> {
    let mut asm = Asm::new();
    entry_body(&mut asm, shape, site, condition)?;
    Ok(asm.finish()?)
}

/// Generates the program at return.
pub fn exit(shape: &Shape, site: Site, condition: Option<&Condition>) -> Result<Code, Error> {
    let mut asm = Asm::new();
    exit_body(&mut asm, shape, site, condition)?;
    Ok(asm.finish()?)
}

/// Generates a combined program for entry and return. `is_return` is the BTF ID of `bpf_session_is_return`.
pub fn session(
    shape: &Shape,
    functions: u32,
    is_return: u32,
    condition: Option<&Condition>,
) -> Result<Code, Error> {
    let mut asm = Asm::new();
    let returned = asm.label();
    asm.mov(R6, R1).kfunc(is_return, 0);
    asm.put(kprism_ebpf::insn::alu32_imm(Alu::And, R0, 1));
    asm.mov(R1, R6).branch_imm(Cond::Ne, R0, 0, returned);
    entry_body(&mut asm, shape, Site::Cookie(functions), condition)?;
    asm.bind(returned);
    exit_body(&mut asm, shape, Site::Cookie(functions), condition)?;
    Ok(asm.finish()?)
}

/// `R7 =` the function's number from the cookie. Ends the program if it is out of range.
fn number(asm: &mut Asm, functions: u32) {
    let good = asm.label();
    asm.call(Helper::GetAttachCookie).mov(R7, R0);
    asm.branch_imm(Cond::Lt, R7, functions.cast_signed(), good);
    asm.end().bind(good);
}

/// Stack slots below those of a condition, beside [`CONTEXT`] and [`MEASURED`]. The first has the function's number and,
/// once that is back, the verdict; then come the region and `top`.
const NUMBER: i16 = CONTEXT + 8;
const REGION: i16 = CONTEXT + 16;
const TOP: i16 = CONTEXT + 24;

/// Inserts a condition; all registers are lost. `R0` is not 0 where it continues if the condition holds.
fn insert(asm: &mut Asm, condition: &Condition) -> Result<(), Error> {
    let find = |reloc| match reloc {
        Reloc::MapValue(_, offset @ 0..RESULT) => Some(Operand::Memory(FAULTS, offset.cast_unsigned())),
        _ => None,
    };
    let (fault, told) = (asm.label(), asm.label());
    let value = segment::insert(asm, &condition.program, &find, fault, false)
        .map_err(|what| Error::refused("the condition", what))?;
    asm.bind(value).goto(told).bind(fault).mov_imm(R0, 0).bind(told);
    Ok(())
}

/// Evaluates the condition of an entry if the task is traced. Keeps `R7`; the verdict is at [`NUMBER`].
fn judge_entry(
    asm: &mut Asm,
    shape: &Shape,
    site: Site,
    condition: &Condition,
    not_traced: Label,
) -> Result<(), Error> {
    if let Site::Cookie(_) = site {
        asm.note("the function's number").store(B8, R10, NUMBER, R7);
    }
    asm.note("is the task traced?").mov_imm(R1, 0);
    cpu_region(asm, shape.regions, -8);
    asm.load(B8, R3, R2, cpu::TOP).branch_imm(Cond::Eq, R3, OFF.cast_signed(), not_traced);
    asm.note("condition");
    insert(asm, condition)?;
    if matches!(site, Site::Cookie(_)) {
        asm.load(B8, R7, R10, NUMBER);
    }
    asm.store(B8, R10, NUMBER, R0);
    Ok(())
}

/// The condition, if it is evaluated at this end of the call.
fn at(condition: Option<&Condition>, at_return: bool) -> Option<&Condition> {
    condition.filter(|condition| condition.at_return == at_return)
}

fn entry_body(asm: &mut Asm, shape: &Shape, site: Site, condition: Option<&Condition>) -> Result<(), Error> {
    let not_traced = asm.label();
    let condition = at(condition, false);
    if condition.is_some() {
        asm.store(B8, R10, CONTEXT, R1);
    }
    if let Site::Cookie(functions) = site {
        number(asm, functions);
    }
    if let Some(condition) = condition {
        judge_entry(asm, shape, site, condition, not_traced)?;
    }
    asm.note("when").call(Helper::KtimeGetNs).mov(R1, R0);
    if condition.is_some() {
        let holds = asm.label();
        asm.load(B8, R2, R10, NUMBER).branch_imm(Cond::Ne, R2, 0, holds).note("not to be kept");
        asm.mov_imm(R2, 1).alu_imm(Alu::Lsh, R2, 63).alu(Alu::Or, R1, R2).bind(holds);
    }
    asm.note("the CPU's region");
    cpu_region(asm, shape.regions, -8);
    asm.note("the task's stack").load(B8, R3, R2, cpu::TOP);
    let full = asm.label();
    asm.branch_imm(Cond::Set, R3, FULL.cast_signed(), full);
    asm.alu_imm(Alu::And, R3, TOP_MASK.cast_signed());
    asm.map_value(R4, STACKS, 0).alu(Alu::Add, R4, R3);
    asm.note("reserve a frame").alu_imm(Alu::Add, R3, FRAME).store(B8, R2, cpu::TOP, R3);
    asm.note("fill it in");
    match site {
        // A condition needs stack. Since Linux 6.13, programs with 64 bytes of it have a stack of their own, and their
        // frame pointer is not the trampoline's.
        Site::One(index) if shape.conditional => asm.store_imm(B8, R4, 64 + KEY, index.cast_signed() + 1),
        // The key is the frame pointer: entry and return of a call use the same frame of the same trampoline.
        Site::One(_) => asm.store(B8, R4, 64 + KEY, R10),
        Site::Cookie(_) => asm.alu_imm(Alu::Add, R7, 1).store(B8, R4, 64 + KEY, R7),
    };
    asm.store(B8, R4, 64 + ENTERED, R1)
        .store_imm(B8, R4, 64 + CHILD, 0)
        .store_imm(B8, R4, 64 + AWAY, 0)
        .end();
    asm.bind(full).note("no frame").branch_imm(Cond::Eq, R3, OFF.cast_signed(), not_traced);
    count(asm, R2, cpu::OVERFLOWED, R1);
    asm.bind(not_traced).end();
    Ok(())
}

/// Generates the end of a call: judged, taken from the stack, kept.
fn exit_body(asm: &mut Asm, shape: &Shape, site: Site, condition: Option<&Condition>) -> Result<(), Error> {
    let (matched, odd, pop, filtered) = (asm.label(), asm.label(), asm.label(), asm.label());
    if at(condition, true).is_some() {
        asm.store(B8, R10, CONTEXT, R1);
    }
    let key = match site {
        Site::One(index) if shape.conditional => {
            asm.mov_imm(R7, index.cast_signed());
            R7
        }
        Site::One(_) => R10,
        Site::Cookie(_) => R7,
    };
    if let Site::Cookie(functions) = site {
        number(asm, functions);
    }
    asm.note("when").call(Helper::KtimeGetNs).mov(R1, R0);
    asm.note("the CPU's region");
    let spill = if shape.keep == Keep::Aggregate { -8 } else { BELOW_RECORD };
    cpu_region(asm, shape.regions, spill);
    asm.note("the task's stack").load(B8, R3, R2, cpu::TOP);
    asm.alu_imm(Alu::And, R3, TOP_MASK.cast_signed());
    asm.map_value(R4, STACKS, 0).alu(Alu::Add, R4, R3);
    asm.note("is the last frame ours?").load(B8, R5, R4, 32 + KEY);
    if key == R7 {
        asm.alu_imm(Alu::Sub, R5, 1);
    }
    asm.branch(Cond::Ne, R5, key, odd);
    asm.bind(matched).note("how long").load(B8, R5, R4, 32 + ENTERED);
    if at(condition, false).is_some() {
        asm.alu_imm(Alu::Lsh, R5, 1).alu_imm(Alu::Rsh, R5, 1);
    }
    asm.alu(Alu::Sub, R1, R5);
    let here = asm.label();
    asm.note("off the CPU meanwhile?").load(B8, R0, R4, 32 + AWAY).branch_imm(Cond::Eq, R0, 0, here);
    asm.load(B8, R5, R4, AWAY).alu(Alu::Add, R5, R0).store(B8, R4, AWAY, R5).bind(here);
    asm.note("the caller's callees").load(B8, R5, R4, CHILD).alu(Alu::Add, R5, R1).alu(Alu::Sub, R5, R0);
    asm.store(B8, R4, CHILD, R5);
    match condition {
        Some(condition) if condition.at_return => judge_return(asm, site, condition, filtered)?,
        Some(_) => {
            asm.note("is it kept?").load(B8, R5, R4, 32 + ENTERED).branch_imm(Cond::SLt, R5, 0, filtered);
        }
        None => {}
    }
    match shape.keep {
        Keep::Aggregate => aggregate(asm, site, pop),
        Keep::LongerThan(least) => record(asm, site, least, pop),
    }
    asm.bind(pop).note("give the frame back").alu_imm(Alu::Sub, R3, FRAME).store(B8, R2, cpu::TOP, R3).end();
    if condition.is_some() {
        asm.bind(filtered).note("not kept");
        count(asm, R2, cpu::FILTERED, R5);
        asm.goto(pop);
    }
    asm.bind(odd);
    out_of_order(asm, key, matched);
    Ok(())
}

/// Evaluates the condition of a return. Keeps `R1` (the duration), `R2` (region), `R3` (`top`), `R4` (the stack), `R7`.
fn judge_return(asm: &mut Asm, site: Site, condition: &Condition, filtered: Label) -> Result<(), Error> {
    asm.note("condition").store(B8, R10, MEASURED, R1).store(B8, R10, REGION, R2).store(B8, R10, TOP, R3);
    if let Site::Cookie(_) = site {
        asm.store(B8, R10, NUMBER, R7);
    }
    insert(asm, condition)?;
    if let Site::Cookie(functions) = site {
        let good = asm.label();
        // The verifier forgets a number's bounds in memory.
        asm.load(B8, R7, R10, NUMBER)
            .branch_imm(Cond::Lt, R7, functions.cast_signed(), good)
            .end()
            .bind(good);
    }
    asm.load(B8, R1, R10, MEASURED).load(B8, R2, R10, REGION).load(B8, R3, R10, TOP);
    asm.alu_imm(Alu::And, R3, TOP_MASK.cast_signed()).map_value(R4, STACKS, 0).alu(Alu::Add, R4, R3);
    asm.branch_imm(Cond::Eq, R0, 0, filtered);
    Ok(())
}

/// Adds `R1` ns to the function's row. `R2` is the region, `R4` the stack. Preserves `R3`.
fn aggregate(asm: &mut Asm, site: Site, pop: Label) {
    let (leaf, here, beyond) = (asm.label(), asm.label(), asm.label());
    // Base and offset of the row: within reach of an offset, or in R0.
    let (row_of, offset) = match site {
        Site::One(index) => {
            let at = cpu::BYTES + index * ROW;
            if at + ROW <= i16::MAX as u32 {
                (R2, at as i16)
            } else {
                asm.mov(R0, R2).alu_imm(Alu::Add, R0, at.cast_signed());
                (R0, 0)
            }
        }
        Site::Cookie(_) => {
            asm.mov(R0, R7).alu_imm(Alu::Mul, R0, ROW.cast_signed()).alu(Alu::Add, R0, R2);
            (R0, cpu::BYTES as i16)
        }
    };
    let field = |field: i16| offset + field;
    let add = |asm: &mut Asm, at: i16, what: Reg| {
        asm.load(B8, R5, row_of, field(at)).alu(Alu::Add, R5, what).store(B8, row_of, field(at), R5);
    };
    asm.note("total");
    add(asm, row::TOTAL, R1);
    asm.note("off the CPU").load(B8, R5, R4, 32 + AWAY).branch_imm(Cond::Eq, R5, 0, here);
    asm.load(B8, R4, row_of, field(row::AWAY)).alu(Alu::Add, R4, R5).store(B8, row_of, field(row::AWAY), R4);
    asm.map_value(R4, STACKS, 0).alu(Alu::Add, R4, R3).bind(here);
    asm.note("its callees").load(B8, R4, R4, 32 + CHILD).branch_imm(Cond::Eq, R4, 0, leaf);
    add(asm, row::CHILD, R4);
    asm.bind(leaf).note("in the range at hand?").load(B8, R4, row_of, field(row::LOW));
    asm.mov(R5, R1).alu(Alu::Sub, R5, R4).load(B8, R4, row_of, field(row::SPAN));
    asm.branch(Cond::Gt, R5, R4, beyond);
    count(asm, row_of, field(row::AT_HAND), R4);
    // The hot path ends here; rare cases follow.
    asm.alu_imm(Alu::Sub, R3, FRAME).store(B8, R2, cpu::TOP, R3).end();

    asm.bind(beyond).note("another range");
    if row_of == R2 {
        asm.mov(R0, R2);
    }
    renew_range(asm, offset);
    asm.load(B8, R3, R2, cpu::TOP).alu_imm(Alu::And, R3, TOP_MASK.cast_signed()).goto(pop);
}

/// Closes the current range of the row at `R0 + offset` and opens the one that contains `R1`. Clobbers `R3`–`R5`.
fn renew_range(asm: &mut Asm, offset: i16) {
    let field = |field: i16| offset + field;
    // Add the calls of the current range to their bucket.
    asm.load(B8, R5, R0, field(row::BUCKET)).alu_imm(Alu::And, R5, 63 * 8).alu(Alu::Add, R5, R0);
    asm.load(B8, R3, R0, field(row::AT_HAND));
    asm.load(B8, R4, R5, field(row::BUCKETS)).alu(Alu::Add, R4, R3).store(B8, R5, field(row::BUCKETS), R4);
    asm.store_imm(B8, R0, field(row::AT_HAND), 1);
    // Update minimum and maximum.
    let (not_min, not_max) = (asm.label(), asm.label());
    asm.mov(R3, R1).alu_imm(Alu::Xor, R3, -1).load(B8, R4, R0, field(row::NOT_MIN));
    asm.branch(Cond::Le, R3, R4, not_min).store(B8, R0, field(row::NOT_MIN), R3).bind(not_min);
    asm.load(B8, R4, R0, field(row::MAX)).branch(Cond::Le, R1, R4, not_max);
    asm.store(B8, R0, field(row::MAX), R1).bind(not_max);
    // Bucket number: the binary logarithm, by bisection.
    asm.mov(R3, R1).mov_imm(R4, 0);
    for bits in [32, 16, 8, 4, 2, 1] {
        let small = asm.label();
        asm.mov(R5, R3).alu_imm(Alu::Rsh, R5, bits).branch_imm(Cond::Eq, R5, 0, small);
        asm.mov(R3, R5).alu_imm(Alu::Add, R4, bits).bind(small);
    }
    asm.mov(R5, R4).alu_imm(Alu::Lsh, R5, 3).store(B8, R0, field(row::BUCKET), R5);
    // New range: the bucket's bounds, narrowed to the minimum and maximum.
    let (from_bucket, to_bucket, not_zero) = (asm.label(), asm.label(), asm.label());
    asm.mov_imm(R3, 1).alu(Alu::Lsh, R3, R4).mov(R5, R3).alu(Alu::Add, R5, R3).alu_imm(Alu::Sub, R5, 1);
    asm.branch_imm(Cond::Ne, R4, 0, not_zero).mov_imm(R3, 0).bind(not_zero);
    asm.load(B8, R4, R0, field(row::NOT_MIN)).alu_imm(Alu::Xor, R4, -1);
    asm.branch(Cond::Ge, R3, R4, from_bucket).mov(R3, R4).bind(from_bucket);
    asm.load(B8, R4, R0, field(row::MAX));
    asm.branch(Cond::Le, R5, R4, to_bucket).mov(R5, R4).bind(to_bucket);
    asm.store(B8, R0, field(row::LOW), R3).alu(Alu::Sub, R5, R3).store(B8, R0, field(row::SPAN), R5);
}

/// The stack slot below those that [`record`] uses.
const BELOW_RECORD: i16 = -48;

/// Writes a record if the call took `least` ns or more; `R1` is the duration. Values that must survive helper calls are
/// on the stack, not in callee-saved registers: saving those would cost every call, including the many that are
/// dropped.
fn record(asm: &mut Asm, site: Site, least: u64, pop: Label) {
    const REGION: i16 = -8;
    const TOP: i16 = -16;
    const STACK: i16 = -24;
    const TOOK: i16 = -32;
    const OUT: i16 = -40;
    let (keep, full, done) = (asm.label(), asm.label(), asm.label());
    match i32::try_from(least) {
        Ok(least) => asm.branch_imm(Cond::Ge, R1, least, keep),
        Err(_) => asm.mov_u64(R5, least).branch(Cond::Ge, R1, R5, keep),
    };
    // The hot path ends here.
    asm.alu_imm(Alu::Sub, R3, FRAME).store(B8, R2, cpu::TOP, R3).end();

    asm.bind(keep).note("a record");
    asm.store(B8, R10, REGION, R2).store(B8, R10, TOP, R3).store(B8, R10, STACK, R4).store(B8, R10, TOOK, R1);
    asm.map(R1, RING).mov_imm(R2, RECORD).mov_imm(R3, 0).call(Helper::RingbufReserve);
    asm.branch_imm(Cond::Eq, R0, 0, full).store(B8, R10, OUT, R0);
    match site {
        Site::One(index) => asm.store_imm(B8, R0, 0, index.cast_signed()),
        Site::Cookie(_) => asm.store(B8, R0, 0, R7),
    };
    asm.load(B8, R4, R10, STACK).load(B8, R1, R4, 32 + CHILD).store(B8, R0, 40, R1);
    asm.load(B8, R1, R4, 32 + AWAY).store(B8, R0, 64, R1);
    asm.load(B8, R1, R4, 32 + ENTERED).store(B8, R0, 8, R1);
    asm.load(B8, R2, R10, TOOK).alu(Alu::Add, R2, R1).store(B8, R0, 16, R2);
    // Depth: the number of frames below.
    asm.load(B8, R1, R10, TOP).alu_imm(Alu::And, R1, 0x7e0).alu_imm(Alu::Rsh, R1, 5).alu_imm(Alu::Sub, R1, 1);
    asm.store(Width::B4, R0, 36, R1);
    asm.call(Helper::CurrentPidTgid).load(B8, R1, R10, OUT).store(Width::B4, R1, 24, R0);
    asm.alu_imm(Alu::Rsh, R0, 32).store(Width::B4, R1, 28, R0);
    asm.call(Helper::SmpProcessorId).load(B8, R1, R10, OUT).store(Width::B4, R1, 32, R0);
    asm.alu_imm(Alu::Add, R1, 48).mov_imm(R2, 16).call(Helper::CurrentComm);
    asm.load(B8, R1, R10, OUT).mov_imm(R2, 0).call(Helper::RingbufSubmit);
    asm.load(B8, R2, R10, REGION).goto(done);
    asm.bind(full).note("no room in the ring").load(B8, R2, R10, REGION);
    count(asm, R2, cpu::LOST, R1);
    asm.bind(done).load(B8, R3, R10, TOP).goto(pop);
}

/// Handles a return whose call is not the last frame. Either an older frame matches, and the returns of the newer ones
/// were missed, or the call's entry was missed. `R3` is the stack, `R2` the region, `R1` the time.
fn out_of_order(asm: &mut Asm, key: Reg, matched: Label) {
    let (found, orphan, ignored, next) = (asm.label(), asm.label(), asm.label(), asm.label());
    asm.note("out of order").load(B8, R5, R2, cpu::TOP);
    // Calls on a full stack were counted at entry; calls of untraced tasks are not counted.
    asm.branch_imm(Cond::Set, R5, FULL.cast_signed(), ignored);
    asm.mov_imm(R0, 0).bind(next);
    asm.mov(R5, R3).alu_imm(Alu::And, R5, 0x7e0).branch_imm(Cond::Eq, R5, 0, orphan);
    asm.alu_imm(Alu::Sub, R3, FRAME).alu_imm(Alu::And, R3, TOP_MASK.cast_signed());
    asm.alu_imm(Alu::Add, R0, 1);
    asm.map_value(R4, STACKS, 0).alu(Alu::Add, R4, R3).load(B8, R5, R4, 32 + KEY);
    if key == R7 {
        asm.alu_imm(Alu::Sub, R5, 1);
    }
    asm.branch(Cond::Eq, R5, key, found);
    asm.branch_imm(Cond::Lt, R0, 64, next);
    asm.bind(orphan);
    count(asm, R2, cpu::ORPHANS, R5);
    asm.bind(ignored).end();
    asm.bind(found).load(B8, R5, R2, cpu::ABANDONED).alu(Alu::Add, R5, R0);
    asm.store(B8, R2, cpu::ABANDONED, R5).store(B8, R2, cpu::TOP, R3).goto(matched);
}
