// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program at task switches: it selects the stack of open calls of the next task.
//!
//! Time off the CPU, whether waiting or preempted, is added to the innermost open call.
//!
//! An empty stack is not stored: it stays with the CPU for the next task. Only tasks that sleep inside a traced call
//! have stacks of their own, which are found by the task's number.

use super::emit::{Regions, cpu_region};
use super::layout::{AWAY, FULL, NONE_LEFT, OFF, SINCE, STACK_BYTES, STACKS_BYTES, cpu};
use crate::error::Error;
use crate::wanted::{self, TRACED};
use kprism_btf::Btf;
use kprism_ebpf::asm::{Asm, Code};
use kprism_ebpf::insn::{Alu, Cond, Helper, Reg, Width};

use Reg::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};
use Width::{B4, B8};

/// Indices of this program's maps after that of the CPUs. Maps a task to its `top`.
pub const SLEEPING: usize = 1;
/// Unused stacks.
pub const FREE: usize = 2;
/// Tracing state of each process.
pub const WANTED: usize = 3;
/// Memory of the stacks.
pub const STACKS: usize = 4;

/// Selection of the tasks to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tasks {
    /// All processes except this one.
    AllBut(u32),
    /// Processes that are traced.
    Wanted,
    /// Threads that are traced.
    WantedThreads,
}

/// Offsets in `struct task_struct`.
#[derive(Debug, Clone, Copy)]
pub struct TaskOffsets {
    pid: i16,
    tgid: i16,
    state: i16,
}

impl TaskOffsets {
    /// Reads the offsets from the running kernel's BTF.
    pub fn new(btf: &Btf) -> Result<Self, Error> {
        let state = btf.offset("task_struct", "__state").or_else(|_| btf.offset("task_struct", "state"))?;
        Ok(Self { pid: btf.offset("task_struct", "pid")?, tgid: btf.offset("task_struct", "tgid")?, state })
    }
}

/// Generates the program at `sched_switch(preempt, prev, next, …)`.
pub fn switch(offsets: TaskOffsets, who: Tasks, regions: Regions) -> Result<Code, Error> {
    const TASK_DEAD: i32 = 0x80;
    const EXIT_BITS: i32 = 0x7e0;
    const BASE: i32 = (STACKS_BYTES - STACK_BYTES) as i32;
    let mut asm = Asm::new();
    let asm = &mut asm;
    let (dead, empty, push, next, off, fresh, popped, none, full, done) = (
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
    );
    asm.load(B8, R7, R1, 8).load(B8, R8, R1, 16);
    asm.note("the CPU's region");
    cpu_region(asm, regions, -24);
    asm.mov(R9, R2).call(Helper::SmpProcessorId).mov(R6, R0);

    asm.note("who leaves").load(B8, R1, R9, cpu::TOP);
    asm.mov(R2, R1).alu_imm(Alu::And, R2, -(STACK_BYTES as i32)).branch_imm(Cond::Eq, R2, 0, next);
    asm.load(B4, R3, R7, offsets.state).branch_imm(Cond::Set, R3, TASK_DEAD, dead);
    // A living task: store its open calls.
    asm.mov(R3, R1).alu_imm(Alu::And, R3, FULL as i32 | EXIT_BITS).branch_imm(Cond::Eq, R3, 0, empty);
    asm.store(B8, R10, -16, R1).call(Helper::KtimeGetNs).load(B8, R1, R10, -16).alu_imm(Alu::And, R1, BASE);
    asm.map_value(R2, STACKS, 0).alu(Alu::Add, R2, R1).store(B8, R2, SINCE, R0);
    task_key(asm, R7, offsets);
    asm.map(R1, SLEEPING).mov(R2, R10).alu_imm(Alu::Add, R2, -8).mov(R3, R10).alu_imm(Alu::Add, R3, -16);
    asm.mov_imm(R4, 0).call(Helper::MapUpdate).goto(next);

    asm.bind(dead).note("it ends: calls it never returned from").mov(R3, R1);
    asm.alu_imm(Alu::And, R3, FULL as i32 | EXIT_BITS).alu_imm(Alu::Rsh, R3, 5);
    asm.load(B8, R4, R9, cpu::UNFINISHED).alu(Alu::Add, R4, R3).store(B8, R9, cpu::UNFINISHED, R4);
    asm.bind(empty).note("its stack is free").load(B8, R3, R9, cpu::SPARE);
    asm.branch_imm(Cond::Ne, R3, 0, push).store(B8, R9, cpu::SPARE, R2).goto(next);
    asm.bind(push).store(B8, R10, -16, R2).map(R1, FREE).mov(R2, R10).alu_imm(Alu::Add, R2, -16);
    asm.mov_imm(R3, 0).call(Helper::MapPush);

    asm.bind(next).note("who comes: is it to be traced?");
    match who {
        Tasks::AllBut(tgid) => {
            asm.load(B4, R1, R8, offsets.tgid).branch_imm(Cond::Eq, R1, tgid.cast_signed(), off);
        }
        Tasks::Wanted | Tasks::WantedThreads => {
            let number = if who == Tasks::Wanted { offsets.tgid } else { offsets.pid };
            asm.load(B4, R1, R8, number);
            wanted::load(asm, WANTED, R1, R0);
            asm.branch_imm(Cond::Ne, R0, TRACED.into(), off);
        }
    }
    asm.note("does it have open calls?");
    task_key(asm, R8, offsets);
    asm.map(R1, SLEEPING).mov(R2, R10).alu_imm(Alu::Add, R2, -8).call(Helper::MapLookup);
    asm.branch_imm(Cond::Eq, R0, 0, fresh).load(B8, R7, R0, 0);
    asm.map(R1, SLEEPING).mov(R2, R10).alu_imm(Alu::Add, R2, -8).call(Helper::MapDelete);
    asm.note("how long it was away").call(Helper::KtimeGetNs);
    asm.mov(R1, R7).alu_imm(Alu::And, R1, BASE).map_value(R2, STACKS, 0).alu(Alu::Add, R2, R1);
    asm.load(B8, R3, R2, SINCE).alu(Alu::Sub, R0, R3).mov_imm(R1, FULL.cast_signed());
    asm.branch_imm(Cond::Set, R7, FULL.cast_signed(), full).mov(R1, R7).alu_imm(Alu::And, R1, EXIT_BITS);
    asm.bind(full).note("goes to its last call").alu(Alu::Add, R2, R1);
    asm.load(B8, R3, R2, 32 + AWAY).alu(Alu::Add, R3, R0).store(B8, R2, 32 + AWAY, R3).goto(done);

    asm.bind(fresh).note("an empty stack").load(B8, R7, R9, cpu::SPARE).store_imm(B8, R9, cpu::SPARE, 0);
    asm.branch_imm(Cond::Ne, R7, 0, popped).store_imm(B8, R10, -16, 0);
    asm.map(R1, FREE).mov(R2, R10).alu_imm(Alu::Add, R2, -16).call(Helper::MapPop);
    asm.load(B8, R7, R10, -16).branch_imm(Cond::Ne, R0, 0, none).bind(popped).goto(done);
    asm.bind(none).mov_imm(R7, NONE_LEFT.cast_signed()).goto(done);
    asm.bind(off).mov_imm(R7, OFF.cast_signed());
    asm.bind(done).store(B8, R9, cpu::TOP, R7).end();
    Ok(std::mem::take(asm).finish()?)
}

/// Stores the key of a task at `R10 - 8`: its number, or, for idle tasks, which all have number 0, the complement of
/// the CPU number. `R6` is the CPU number.
fn task_key(asm: &mut Asm, task: Reg, offsets: TaskOffsets) {
    let numbered = asm.label();
    asm.load(B4, R1, task, offsets.pid).branch_imm(Cond::Ne, R1, 0, numbered);
    asm.mov(R1, R6).alu_imm(Alu::Xor, R1, -1).bind(numbered).store(B4, R10, -8, R1);
}
