// SPDX-License-Identifier: MIT OR Apache-2.0
//! Selection of processes or threads: an array with a byte for each possible ID. A program reads it with four
//! instructions; a hash map takes 140. A program at fork passes the selection on to children.

use crate::error::Error;
use crate::map::Map;
use crate::mapping::Mapping;
use kprism_btf::Btf;
use kprism_ebpf::asm::{Asm, Code};
use kprism_ebpf::insn::{Alu, Cond, Reg, Width};

use Reg::{R0, R1, R2, R3};
use Width::{B1, B4, B8};

/// The process is traced.
pub const TRACED: u8 = 1;
/// The process is not traced, but its children will be.
pub const CHILDREN_ONLY: u8 = 2;
/// Number of possible IDs (`PID_MAX_LIMIT`).
const NUMBERS: u32 = 4 << 20;

/// The array of bytes, initially 0.
#[derive(Debug)]
pub struct Wanted {
    map: Map,
    memory: Mapping,
}

impl Wanted {
    /// Creates the array.
    pub fn new(name: &str) -> Result<Self, Error> {
        let map = Map::memory(name, NUMBERS)?;
        let memory = map.mapped()?;
        Ok(Self { map, memory })
    }

    /// The map, for programs.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Sets the byte of a process.
    pub fn set(&self, number: u32, what: u8) -> Result<(), Error> {
        if number >= NUMBERS {
            return Err(Error::refused(format!("process {number}"), "there is none"));
        }
        self.memory.write_byte(number as usize, what);
        Ok(())
    }

    /// The byte of a process; 0 if there can be none.
    pub fn get(&self, number: u32) -> u8 {
        if number < NUMBERS { self.memory.read_byte(number as usize) } else { 0 }
    }
}

/// `to =` the byte of the ID in `number`. Clobbers `number`.
pub fn load(asm: &mut Asm, map: usize, number: Reg, to: Reg) {
    asm.alu_imm(Alu::And, number, NUMBERS.cast_signed() - 1);
    asm.map_value(to, map, 0).alu(Alu::Add, to, number).load(B1, to, to, 0);
}

/// Generates the program at `sched_process_fork(parent, child)`. A child of a selected process is traced. A child that
/// reuses the ID of a formerly selected process is not. A new thread belongs to its process.
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
    Ok(asm.finish()?)
}
