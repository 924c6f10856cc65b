// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts process IDs between PID namespaces. Programs see the IDs of the initial namespace. In a container, this
//! process, `/proc` and the user have other IDs.

use std::fs::File;
use std::io::Read as _;

use kprism_btf::Btf;

use crate::error::Error;
use crate::kernel::Kernel;
use crate::link::Link;
use crate::map::{Map, MapKind};
use crate::prog::{ProgKind, Program};
use kprism_ebpf::asm::Asm;
use kprism_ebpf::insn::{Alu, Cond, Helper, Reg, Width};

use Reg::{R0, R1, R2, R3, R6, R7, R8, R10};
use Width::{B4, B8};

/// PIDs of this process, and its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// PID of this process in the initial namespace.
    own: u32,
    /// Nesting level of the process's namespace; 0 is the initial one.
    level: u32,
    /// Inode number of the namespace.
    inode: u32,
}

/// Offsets of a task's PIDs in kernel structures.
struct Offsets {
    pid: i16,
    thread_pid: i16,
    level: i16,
    numbers: i16,
    namespace: i16,
    inode: i16,
}

/// Size of `struct upid` in bytes: a number, padding, and the namespace.
const UPID: u32 = 16;
/// Limit of the nesting of namespaces (`MAX_PID_NS_LEVEL`).
const DEEPEST: u32 = 32;

impl Offsets {
    fn of(btf: &Btf) -> Result<Self, Error> {
        Ok(Self {
            pid: btf.offset("task_struct", "pid")?,
            thread_pid: btf.offset("task_struct", "thread_pid")?,
            level: btf.offset("pid", "level")?,
            numbers: btf.offset("pid", "numbers")?,
            namespace: btf.offset("upid", "ns")?,
            inode: btf.offset("pid_namespace", "ns.inum")?,
        })
    }
}

/// `*to = *(from + offset)`, of `bytes` bytes; `to` is a stack offset. Clobbers all registers except `R6` to `R9`.
fn read(asm: &mut Asm, to: i16, bytes: i32, from: Reg, offset: i16) {
    asm.mov(R3, from).alu_imm(Alu::Add, R3, offset.into());
    asm.mov(R1, R10).alu_imm(Alu::Add, R1, to.into()).mov_imm(R2, bytes).call(Helper::ProbeReadKernel);
}

impl Numbers {
    /// Determines the numbers of this process.
    pub fn here(kernel: &Kernel) -> Result<Self, Error> {
        let at = Offsets::of(kernel.btf())?;
        let told = Map::memory("kp_numbers", 16)?;
        let mut asm = Asm::new();
        let out = asm.label();
        asm.store_imm(B8, R10, -8, 0).store_imm(B8, R10, -16, 0).store_imm(B8, R10, -24, 0);
        asm.store_imm(B8, R10, -32, 0);
        asm.call(Helper::CurrentPidTgid).alu_imm(Alu::Rsh, R0, 32);
        asm.map_value(R1, 0, 0).store(B4, R1, 0, R0);
        asm.call(Helper::CurrentTask).mov(R6, R0);
        read(&mut asm, -8, 8, R6, at.thread_pid);
        asm.load(B8, R7, R10, -8);
        read(&mut asm, -16, 4, R7, at.level);
        asm.load(B4, R8, R10, -16).map_value(R1, 0, 0).store(B4, R1, 4, R8);
        asm.branch_imm(Cond::Gt, R8, DEEPEST as i32, out);
        asm.alu_imm(Alu::Mul, R8, UPID as i32).alu(Alu::Add, R7, R8);
        read(&mut asm, -24, 8, R7, at.numbers.saturating_add(at.namespace));
        asm.load(B8, R7, R10, -24);
        read(&mut asm, -32, 4, R7, at.inode);
        asm.load(B4, R8, R10, -32).map_value(R1, 0, 0).store(B4, R1, 8, R8);
        asm.bind(out).mov_imm(R0, 0).end();
        let program = Program::load("kp_numbers", ProgKind::RawTracepoint, &asm.finish()?, &[&told])?;
        program.test_run(&mut [0], 0)?;
        let memory = told.mapped()?;
        let (first, second) = (memory.read(0), memory.read(8));
        Ok(Self { own: first as u32, level: (first >> 32) as u32, inode: second as u32 })
    }

    /// PID of this process in the initial namespace.
    pub fn own(&self) -> u32 {
        self.own
    }

    /// Returns true if programs and users see different PIDs for the same process.
    pub fn differ(&self) -> bool {
        self.level > 0
    }

    /// Converts PIDs (or thread IDs) of this namespace to those of the initial one.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of(&self, kernel: &Kernel, numbers: &[u32]) -> Result<Vec<u32>, Error> {
        if !self.differ() || numbers.is_empty() {
            return Ok(numbers.to_vec());
        }
        let asked = Map::create("kp_asked", MapKind::Hash, 4, 4, numbers.len() as u32, 0)?;
        for number in numbers {
            asked.update(&number.to_le_bytes(), &[0; 4])?;
        }
        self.walk(kernel, &asked)?;
        let found = |number: &u32| {
            let value = asked.lookup(&number.to_le_bytes())?;
            let value = value.and_then(|v| Some(u32::from_le_bytes(v.try_into().ok()?)));
            let none = || Error::refused(format!("process {number}"), "there is none in this PID namespace");
            value.filter(|value| *value != 0).ok_or_else(none)
        };
        numbers.iter().map(found).collect()
    }

    /// Iterates over all tasks, and stores the initial namespace's PID for each requested one.
    fn walk(&self, kernel: &Kernel, asked: &Map) -> Result<(), Error> {
        let at = Offsets::of(kernel.btf())?;
        let own = at.numbers.saturating_add((self.level * UPID) as i16);
        let mut asm = Asm::new();
        let out = asm.label();
        asm.store_imm(B8, R10, -8, 0).store_imm(B8, R10, -16, 0).store_imm(B8, R10, -24, 0);
        // `struct bpf_iter__task`: metadata, then the task, which is null after the last one.
        asm.load(B8, R6, R1, 8).branch_imm(Cond::Eq, R6, 0, out);
        asm.load(B4, R8, R6, at.pid).load(B8, R7, R6, at.thread_pid);
        read(&mut asm, -8, 4, R7, at.level);
        asm.load(B4, R1, R10, -8).branch_imm(Cond::Lt, R1, self.level.cast_signed(), out);
        read(&mut asm, -24, UPID as i32, R7, own);
        asm.load(B8, R3, R10, -24 + at.namespace);
        asm.mov(R7, R3);
        read(&mut asm, -32, 4, R7, at.inode);
        asm.load(B4, R1, R10, -32).mov_u64(R2, self.inode.into()).branch(Cond::Ne, R1, R2, out);
        asm.map(R1, 0).mov(R2, R10).alu_imm(Alu::Add, R2, -24).call(Helper::MapLookup);
        asm.branch_imm(Cond::Eq, R0, 0, out).store(B4, R0, 0, R8);
        asm.bind(out).mov_imm(R0, 0).end();
        let kind = ProgKind::Iter(kernel.iterator("task")?);
        let program = Program::load("kp_walk", kind, &asm.finish()?, &[asked])?;
        let mut walk = File::from(Link::iterator(&program)?);
        let mut nothing = Vec::new();
        walk.read_to_end(&mut nothing)
            .map_err(|source| Error::System { what: "walking over the tasks".into(), source })?;
        Ok(())
    }
}
