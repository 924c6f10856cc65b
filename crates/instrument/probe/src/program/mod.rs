// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a plan to its eBPF program. It checks what is cheapest first: whose hit it is, the condition, room in the ring. Then
//! it writes the record's header and values.
//!
//! Input: a [`Plan`], the [`Layout`] of the memory that all probes share. Output: [`Code`], which [`crate::attach`] loads.
//!
//! | module | job |
//! |---|---|
//! | `memory` | maps, and offsets in the state, the counters and the stack |
//! | `values` | segments with a probe's maps; their values → the record |
//! | `count` | counts by keys, histograms |
//!
//! Segments ([`kprism_bpf::segment`]) use the stack from its top. The program's own data lies at the bottom, and no register is kept across
//! segments. Counters and the ring are per CPU, so no two CPUs write to one cache line.

mod count;
mod memory;
mod values;

use kprism_bpf::cpu_ring;
use kprism_bpf::wanted::{self, TRACED};
use kprism_ebpf::asm::{Asm, Code, Label};
use kprism_ebpf::insn::{self, Alu, Cond, Helper, Reg, Width};
use kprism_expr::emit;
use kprism_expr::ir::Fault;

use self::memory::{
    CELL_AT, FIRST_OWN, HIDDEN_FAULTS, OF_THREAD, PID_TGID, PLACE_AT, RECORD, RINGS, STATE, TASKS,
};
use self::values::{fault, fill, increment, insert_with_maps};
use crate::Error;
use crate::plan::{CompiledActions, Plan, Segment, Site};
use crate::stream::RecordingEffect;
use kprism_bpf::segment::CONTEXT;

use Reg::{R0, R1, R2, R10};
use Width::{B4, B8};

pub use memory::{
    CELL, CONDITION_HITS, Counter, ENDED, Layout, NOT_YET, PAUSED, PROBE_STATE, RUNNING, VALUE_FAULTS,
    VARS_END,
};

/// Assembles the program of a probe.
pub fn probe(plan: &Plan, number: u32, layout: &Layout) -> Result<Code, Error> {
    let size = plan.probe.record_bytes;
    let mut asm = Asm::new();
    let (out, lost) = (asm.label(), asm.label());
    let state = number * PROBE_STATE;
    ours(&mut asm, layout, out);

    is_on(&mut asm, plan.probe.effect, layout, out);
    if let Some(place) = layout.place {
        asm.note("the place, from which a jump led here").mov_u64(R1, place).store(B8, R10, PLACE_AT, R1);
    }
    let cell = number * CELL;
    asm.note("this CPU's counters");
    cpu_ring::counter(&mut asm, &layout.rings, RINGS, cell, out);
    asm.store(B8, R10, CELL_AT, R1);
    increment(&mut asm, Counter::Hits);

    if layout.thread_vars > 0 && plan.uses_vars_from(layout.vars) {
        of_thread(&mut asm, state, out);
    }
    if let Some(guard) = &plan.guard {
        asm.note("is the stack as it should be?");
        let value = insert_with_maps(&mut asm, guard, state, layout, out)?;
        let fine = asm.label();
        asm.bind(value).branch_imm(Cond::Ne, R0, 0, fine);
        fault(&mut asm, state, Fault::NoEntry);
        asm.goto(out).bind(fine);
    }
    if let Some(condition) = &plan.condition {
        asm.note("condition");
        let value = insert_with_maps(&mut asm, condition, state, layout, out)?;
        asm.bind(value).branch_imm(Cond::Eq, R0, 0, out);
    }
    if plan.actions.leaves_out() {
        leave_out(&mut asm, &plan.actions, state - plan.after_first * PROBE_STATE + CONDITION_HITS, out);
    }
    switch(&mut asm, plan.probe.effect, layout, out);
    if let Some(most) = layout.stop_after {
        asm.note("no more than asked for").map_value(R1, STATE, layout.stop_at()).mov_imm(R0, 1);
        asm.put(insn::fetch_add(R1, 0, R0));
        asm.mov_imm(R1, most.cast_signed()).branch(Cond::Ge, R0, R1, out);
    }
    asm.load(B8, R1, R10, CELL_AT);
    increment(&mut asm, Counter::Passed);
    for segment in &plan.actions.set {
        asm.note(segment.text.clone());
        let failed = asm.label();
        let done = insert_with_maps(&mut asm, segment, state + VALUE_FAULTS, layout, failed)?;
        asm.bind(done).bind(failed);
    }
    if let Some(tally) = &plan.probe.tally {
        count::tally(&mut asm, plan, tally, number, layout)?;
    }
    if size == 0 {
        asm.bind(lost).bind(out).end();
        return Ok(asm.finish().map_err(kprism_bpf::Error::from)?);
    }
    if !plan.actions.set.is_empty() || plan.probe.tally.is_some() {
        asm.load(B8, R1, R10, CELL_AT);
    }
    let room = cpu_ring::reserve(&mut asm, &layout.rings, cell, size, lost);
    // The room is all zeros: the reader clears it before it gives it back. `submit` stores the size, the reader the CPU.
    // The time is taken after room is reserved. So the reader knows that records reserved later have later times.
    asm.note("record").store(B8, R10, RECORD, R1).call(Helper::KtimeGetNs);
    asm.load(B8, R1, R10, RECORD).store(B8, R1, 8, R0);
    asm.load(B8, R2, R10, PID_TGID).store(B8, R1, 16, R2).store_imm(B4, R1, 4, number as i32);
    for slot in &plan.slots {
        fill(&mut asm, plan, slot, state + VALUE_FAULTS, layout)?;
    }
    for slot in &plan.hidden {
        fill(&mut asm, plan, slot, state + HIDDEN_FAULTS, layout)?;
    }
    asm.note("submit").load(B8, R1, R10, RECORD);
    cpu_ring::submit(&mut asm, size);
    asm.bind(out).end();
    room.retries(&mut asm);
    asm.bind(lost).load(B8, R1, R10, CELL_AT);
    increment(&mut asm, Counter::Lost);
    asm.goto(out);
    Ok(asm.finish().map_err(kprism_bpf::Error::from)?)
}

/// Jumps to `out` unless the hit is from a selected process. Stores the context in its place.
fn ours(asm: &mut Asm, layout: &Layout, out: Label) {
    asm.store(B8, R10, CONTEXT, R1).note("whose hit is it?");
    // The process is the upper half.
    asm.call(Helper::CurrentPidTgid).store(B8, R10, PID_TGID, R0).alu_imm(Alu::Rsh, R0, 32);
    match layout.all_but {
        Some(own) => asm.branch_imm(Cond::Eq, R0, own.cast_signed(), out),
        None => {
            wanted::load(asm, TASKS, R0, R1);
            asm.branch_imm(Cond::Ne, R1, TRACED.into(), out)
        }
    };
}

/// Jumps to `out` unless the recording is on. It switches at the same moment for all probes.
fn is_on(asm: &mut Asm, effect: RecordingEffect, layout: &Layout, out: Label) {
    asm.note("is it on?").map_value(R1, STATE, layout.switch_at()).load(B8, R0, R1, 0);
    match effect {
        RecordingEffect::Start => asm.branch_imm(Cond::Gt, R0, RUNNING as i32, out),
        _ => asm.branch_imm(Cond::Ne, R0, RUNNING as i32, out),
    };
}

/// Finds the memory of the thread's variables; at the thread's first hit the kernel makes it. Jumps to `out` if there is none.
fn of_thread(asm: &mut Asm, state: u32, out: Label) {
    const CREATE: u64 = 1;
    asm.note("the thread's variables").call(Helper::CurrentTaskBtf).mov(R2, R0).map(R1, FIRST_OWN);
    asm.mov_imm(Reg::R3, 0).mov_u64(Reg::R4, CREATE).call(Helper::TaskStorageGet);
    let fine = asm.label();
    asm.branch_imm(Cond::Ne, R0, 0, fine);
    fault(asm, state, Fault::NoThread);
    asm.goto(out).bind(fine).store(B8, R10, OF_THREAD, R0);
}

/// Skips the first hits, and jumps to `out` once the pass limit is reached.
fn leave_out(asm: &mut Asm, actions: &CompiledActions, held: u32, out: Label) {
    asm.note("is its turn over?").map_value(R1, STATE, held).mov_imm(R0, 1);
    asm.put(insn::fetch_add(R1, 0, R0));
    if actions.skip > 0 {
        asm.mov_u64(R1, actions.skip).branch(Cond::Lt, R0, R1, out);
    }
    if let Some(pass) = actions.pass {
        asm.mov_u64(R1, actions.skip.saturating_add(pass)).branch(Cond::Ge, R0, R1, out);
    }
}

/// Switches the recording. Of several hits at the same time only one ends it, and an ended recording stays ended.
fn switch(asm: &mut Asm, effect: RecordingEffect, layout: &Layout, out: Label) {
    let (from, to) = match effect {
        RecordingEffect::Record => return,
        RecordingEffect::Start => (PAUSED, RUNNING),
        RecordingEffect::Pause => (RUNNING, PAUSED),
        RecordingEffect::Stop => (RUNNING, ENDED),
    };
    asm.note("switch").map_value(R2, STATE, layout.switch_at()).mov_u64(R1, to).mov_u64(R0, from);
    asm.put(insn::compare_exchange(R2, 0, R1));
    asm.branch_imm(Cond::Ne, R0, from as i32, out);
}

/// Returns true if calls of the probe's function are counted beside its returns. The kernel silently gives up on
/// returns of calls nested more than 64 deep (`MAX_URETPROBE_DEPTH`).
pub fn counts_calls(plan: &Plan) -> bool {
    matches!(plan.site, Site::User { at_return: true, .. })
}

/// Assembles the program at the entry of the probe's function.
pub fn entry(plan: &Plan, number: u32, layout: &Layout) -> Result<Code, Error> {
    let mut asm = Asm::new();
    let out = asm.label();
    ours(&mut asm, layout, out);
    if counts_calls(plan) {
        let off = asm.label();
        is_on(&mut asm, plan.probe.effect, layout, off);
        cpu_ring::counter(&mut asm, &layout.rings, RINGS, number * CELL, out);
        increment(&mut asm, Counter::Calls);
        asm.bind(off);
    }
    if plan.kept.is_empty() {
        asm.bind(out).end();
        return Ok(asm.finish().map_err(kprism_bpf::Error::from)?);
    }
    let program = emit::entry(&plan.kept, plan.site.has_registers());
    let segment = Segment { text: "entry".into(), program };
    let done = insert_with_maps(&mut asm, &segment, 0, layout, out)?;
    asm.bind(done).bind(out).end();
    Ok(asm.finish().map_err(kprism_bpf::Error::from)?)
}
