// SPDX-License-Identifier: MIT OR Apache-2.0
//! The traced target: a process or the kernel, with its memory, registers, code and markers.

mod kernel;
mod labels;
pub mod markers;
mod places;
mod process;
mod usdt;

pub use kernel::{DebugFiles, Kernel};
pub use process::{Gone, Process};
pub use usdt::Marker as ProgramMarker;

use kprism_bpf::link::Link;
use kprism_bpf::numbers::Numbers;
use kprism_bpf::prog::Program;
use kprism_expr::ir::Space;

use crate::Error;
use crate::program::Whose;
use crate::registers;

/// Bytes at a probe's address that the kernel may change: a breakpoint, or a jump.
const CHANGED: usize = 5;

/// The traced target, and its code from before probes were attached.
#[derive(Debug)]
pub struct Target {
    kind: Kind,
    /// Original code, by address.
    before: Vec<(u64, Vec<u8>)>,
    whose: Option<Whose>,
}

#[derive(Debug)]
enum Kind {
    Process(Process),
    Kernel(Box<Kernel>),
}

impl Target {
    /// A process as the target.
    pub fn process(process: Process) -> Self {
        Self { kind: Kind::Process(process), before: Vec::new(), whose: None }
    }

    /// The running kernel as the target.
    pub fn kernel(kernel: Kernel) -> Self {
        Self { kind: Kind::Kernel(Box::new(kernel)), before: Vec::new(), whose: None }
    }

    /// The process, if the target is one.
    pub fn as_process(&mut self) -> Option<&mut Process> {
        match &mut self.kind {
            Kind::Process(process) => Some(process),
            Kind::Kernel(_) => None,
        }
    }

    /// The kernel, if it is the target.
    pub fn as_kernel(&mut self) -> Option<&mut Kernel> {
        match &mut self.kind {
            Kind::Process(_) => None,
            Kind::Kernel(kernel) => Some(kernel),
        }
    }

    /// The memory that expressions read.
    pub fn space(&self) -> Space {
        match self.kind {
            Kind::Process(_) => Space::User,
            Kind::Kernel(_) => Space::Kernel,
        }
    }

    /// Selects whose hits count. Uses the machine's process numbers, as the programs see them.
    pub fn whose(&mut self) -> Result<Whose, Error> {
        if let Some(whose) = self.whose {
            return Ok(whose);
        }
        let types = kprism_bpf::kernel::Kernel::running()?;
        let numbers = Numbers::here(&types)?;
        let whose = match &self.kind {
            Kind::Process(process) => Whose::Process(numbers.of(&types, &[process.pid()])?[0]),
            Kind::Kernel(_) => Whose::AllBut(numbers.own()),
        };
        self.whose = Some(whose);
        Ok(whose)
    }

    /// Reads the current memory, as far as it is readable. Code is returned as it was before probes were attached.
    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = match &self.kind {
            Kind::Process(process) => process.read(address, length),
            Kind::Kernel(kernel) => kernel.read(address, length),
        };
        for (at, code) in &self.before {
            for (n, byte) in code.iter().enumerate() {
                let place = at.wrapping_add(n as u64).wrapping_sub(address);
                if let Some(there) = usize::try_from(place).ok().and_then(|p| bytes.get_mut(p)) {
                    *there = *byte;
                }
            }
        }
        bytes
    }

    /// Attaches a program at an address.
    pub fn attach(&mut self, program: &Program, address: u64) -> Result<Link, Error> {
        if !self.before.iter().any(|(at, _)| *at == address) {
            let code = self.read(address, CHANGED);
            self.before.push((address, code));
        }
        match &mut self.kind {
            Kind::Process(process) => process.attach(program, address),
            Kind::Kernel(kernel) => kernel.attach(program, address),
        }
    }

    /// All static tracepoints as markers in GDB's format.
    pub fn markers(&mut self) -> Result<Vec<String>, Error> {
        Ok(match &mut self.kind {
            Kind::Process(process) => process.markers()?.iter().map(ProgramMarker::packet).collect(),
            Kind::Kernel(kernel) => kernel.markers()?.iter().map(markers::Marker::packet).collect(),
        })
    }

    /// The static tracepoint at an address as a marker in GDB's format.
    pub fn marker_at(&mut self, address: u64) -> Option<String> {
        match &mut self.kind {
            Kind::Process(process) => process.marker_at(address).map(|marker| marker.packet()),
            Kind::Kernel(kernel) => kernel.marker_at(address).ok().map(|marker| marker.packet()),
        }
    }

    /// News about files and markers since the last call.
    pub fn said(&mut self) -> Vec<String> {
        match &mut self.kind {
            Kind::Process(process) => process.said(),
            Kind::Kernel(kernel) => kernel.said(),
        }
    }

    /// All probes are detached.
    pub fn detached(&mut self) {
        self.before.clear();
    }

    /// The process number reported to GDB.
    pub fn pid(&self) -> u32 {
        match &self.kind {
            Kind::Process(process) => process.pid(),
            Kind::Kernel(_) => 1,
        }
    }

    /// The target's threads.
    pub fn threads(&self) -> Vec<u32> {
        match &self.kind {
            Kind::Process(process) => process.threads(),
            Kind::Kernel(_) => vec![1],
        }
    }

    /// A thread's name.
    pub fn thread_name(&self, tid: u32) -> String {
        match &self.kind {
            Kind::Process(process) => process.thread_name(tid),
            Kind::Kernel(_) => "the kernel runs on".to_owned(),
        }
    }

    /// A thread's registers, as the `g` packet has them.
    pub fn registers(&mut self, tid: u32) -> String {
        match &mut self.kind {
            Kind::Process(process) => match process.registers(tid) {
                Some(registers) => registers.packet(),
                None => registers::place_only(0),
            },
            // A running kernel has no registers of its own.
            Kind::Kernel(kernel) => registers::place_only(kernel.text()),
        }
    }

    /// Drops the cached registers.
    pub fn look_again(&mut self) {
        if let Kind::Process(process) = &mut self.kind {
            process.look_again();
        }
    }
}
