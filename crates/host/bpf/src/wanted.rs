// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose hits count: a byte for each process (or thread) there can be, read by programs with four instructions where a
//! hash takes 140; and the program that passes it on to children.

use crate::asm::{Asm, Code};
use crate::error::Error;
use crate::insn::{Alu, Cond, Reg, Width};
use crate::map::Map;
use crate::mapping::Mapping;
use kprism_btf::Btf;

use Reg::{R0, R1, R2, R3};
use Width::{B1, B4, B8};

/// A wanted process is traced.
pub const TRACED: u8 = 1;
/// Its children will be.
pub const CHILDREN_ONLY: u8 = 2;
/// Numbers that there can be (`PID_MAX_LIMIT`).
const NUMBERS: u32 = 4 << 20;

/// The bytes, all 0 at first.
#[derive(Debug)]
pub struct Wanted {
    map: Map,
    memory: Mapping,
}

impl Wanted {
    /// Makes them.
    pub fn new(name: &str) -> Result<Self, Error> {
        let map = Map::memory(name, NUMBERS)?;
        let memory = map.mapped()?;
        Ok(Self { map, memory })
    }

    /// The array, for programs.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Sets a process's.
    pub fn set(&self, number: u32, what: u8) -> Result<(), Error> {
        if number >= NUMBERS {
            return Err(Error::refused(format!("process {number}"), "there is none"));
        }
        self.memory.write_byte(number as usize, what);
        Ok(())
    }
}

/// `to =` the byte of the number in `number`, which is spoilt.
pub fn load(asm: &mut Asm, map: usize, number: Reg, to: Reg) {
    asm.alu_imm(Alu::And, number, NUMBERS.cast_signed() - 1);
    asm.map_value(to, map, 0).alu(Alu::Add, to, number).load(B1, to, to, 0);
}

/// At `sched_process_fork(parent, child)`: a child of a wanted process is traced, and one that got the number of a wanted
/// one of earlier is not. A thread is its process's.
pub fn fork(btf: &Btf) -> Result<Code, Error> {
    let tgid = btf.offset("task_struct", "tgid")?;
    let mut asm = Asm::new();
    let (thread, other) = (asm.label(), asm.label());
    const WANTED_HERE: usize = 0;
    asm.load(B8, R2, R1, 0).load(B8, R3, R1, 8);
    asm.load(B4, R2, R2, tgid).load(B4, R3, R3, tgid).branch(Cond::Eq, R2, R3, thread);
    load(&mut asm, WANTED_HERE, R2, R0);
    asm.branch_imm(Cond::Eq, R0, 0, other).mov_imm(R0, TRACED.into()).bind(other);
    asm.alu_imm(Alu::And, R3, NUMBERS.cast_signed() - 1);
    asm.map_value(R1, WANTED_HERE, 0).alu(Alu::Add, R1, R3).store(B1, R1, 0, R0);
    asm.bind(thread).end();
    asm.finish()
}
