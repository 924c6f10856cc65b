// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listed part of the flow, and its fields.

use std::ops::Range;

use anyhow::Result;
use kprism_flow::packet_event::PacketEventKind;
use kprism_flow::replay::Task;
use kprism_image::glob::glob;
use kprism_image::symbols::FunctionId;
use kprism_profile::Filter;
use kprism_profile::units::printable;
use kprism_session::Progress;
use kprism_session::call::{OneCall, Which, of_function};
use kprism_session::flow::Loaded;
use kprism_session::moments::Kind;

/// Selects the listed part of the flow. The default selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Select {
    /// CPU numbers; empty for all.
    pub cpus: Vec<u16>,
    /// Thread or process ids; empty for all.
    pub pids: Vec<u32>,
    /// Names of tasks with `*` and `?`; empty for all.
    pub comms: Vec<String>,
    /// Only the task of this call, on its CPU if it is idle; none for all.
    pub call: Option<OneCall>,
    /// Only while one of these functions or their callees runs; empty for all.
    pub funcs: Vec<String>,
    /// With [`Select::funcs`]: without the callees.
    pub own: bool,
    /// Start time, ns.
    pub from: u64,
    /// End time, exclusive, ns.
    pub to: Option<u64>,
    /// Of events beside the flow: these kinds; empty for all.
    pub events: Vec<PacketEventKind>,
    /// Of everything: these kinds; empty for all but calls.
    pub kinds: Vec<Kind>,
    /// Of everything: the interval by which TLB misses are counted, ns; 0 for each by itself.
    pub tlb_ns: u64,
    /// Of packets: offsets in the stream, the end exclusive.
    pub offsets: Option<Range<u64>>,
    /// Only the kernel's code, or only programs'.
    pub ring: Option<Ring>,
}

/// A side of the system call boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// Kernel code.
    Kernel,
    /// Programs and libraries.
    User,
}

impl Select {
    /// Returns true if this CPU and task are selected.
    pub fn takes(&self, cpu: u16, task: &Task) -> bool {
        (self.cpus.is_empty() || self.cpus.contains(&cpu))
            && (self.pids.is_empty() || self.pids.contains(&task.pid) || self.pids.contains(&task.tgid))
            && (self.comms.is_empty() || self.comms.iter().any(|c| glob(c, &task.comm)))
            && self.call.is_none_or(|call| call.is_by(cpu, task))
    }

    /// Reduces this to one call of the function that `func` names, by one of the tasks selected so far.
    ///
    /// # Errors
    /// There is no such function or call, or several functions have the name.
    pub fn only_call(
        &mut self,
        which: Which,
        func: &str,
        loaded: &Loaded,
        progress: &Progress,
    ) -> Result<()> {
        let filter = Filter { pids: std::mem::take(&mut self.pids), comms: std::mem::take(&mut self.comms) };
        let takes = |task: &Task| filter.takes(task.pid, task.tgid, &task.comm);
        let call = of_function(which, func, loaded, &takes, progress)?;
        // Listings know functions by their printed names.
        self.funcs = vec![printable(&loaded.symbols.function(FunctionId(call.func)).name)];
        self.from = call.window.from_ns;
        // The line of its end has the time of its end. What its caller does then is in none of these functions.
        self.to = Some(call.window.to_ns.saturating_add(1));
        self.call = Some(call);
        Ok(())
    }

    /// Returns true if a function's name is one of [`Select::funcs`].
    pub fn takes_func(&self, name: &str) -> bool {
        self.funcs.iter().any(|f| glob(f, name))
    }

    /// Returns true if this time is selected.
    #[inline]
    pub fn takes_time(&self, ns: u64) -> bool {
        ns >= self.from && self.to.is_none_or(|to| ns < to)
    }

    /// Returns true if a packet at this offset and time is selected.
    pub fn takes_packet(&self, offset: usize, ns: u64) -> bool {
        self.takes_time(ns) && self.offsets.as_ref().is_none_or(|range| range.contains(&(offset as u64)))
    }

    /// Returns true if code of this side is selected.
    #[inline]
    pub fn takes_ring(&self, kernel: bool) -> bool {
        match self.ring {
            None => true,
            Some(Ring::Kernel) => kernel,
            Some(Ring::User) => !kernel,
        }
    }
}

/// A field of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// The task's name.
    Comm,
    /// Thread id.
    Pid,
    /// Process id.
    Tgid,
    /// CPU number.
    Cpu,
    /// Time of the line.
    Time,
    /// Number of the instruction on its CPU, from 1.
    Number,
    /// Address of the instruction.
    Ip,
    /// Function and offset.
    Sym,
    /// Module: kernel, kernel module or file.
    Module,
    /// Bytes of the instruction.
    Bytes,
    /// The instruction, disassembled.
    Insn,
}

impl Field {
    /// All fields, with their words and meanings.
    pub const ALL: &[(Field, &[&str], &str)] = &[
        (Field::Comm, &["comm"], "Name of the task"),
        (Field::Pid, &["pid"], "Thread id"),
        (Field::Tgid, &["tgid"], "Process id"),
        (Field::Cpu, &["cpu"], "CPU"),
        (Field::Time, &["time"], "Time"),
        (Field::Number, &["number"], "Number of the instruction on its CPU, for `kprism lab goto`"),
        (Field::Ip, &["ip"], "Address"),
        (Field::Sym, &["sym"], "Function and offset"),
        (Field::Module, &["module"], "Kernel, kernel module or file"),
        (Field::Bytes, &["bytes"], "Bytes of the instruction"),
        (Field::Insn, &["insn"], "The instruction"),
    ];
}

/// The fields of every line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields(Vec<Field>);

impl Fields {
    /// A set of fields; their order does not matter.
    pub fn new(fields: &[Field]) -> Self {
        Self(fields.to_vec())
    }

    /// Returns true if a field is in the set.
    pub fn has(&self, field: Field) -> bool {
        self.0.contains(&field)
    }
}

impl Default for Fields {
    fn default() -> Self {
        use Field::{Comm, Cpu, Insn, Ip, Module, Pid, Sym, Time};
        Self(vec![Comm, Pid, Cpu, Time, Ip, Sym, Module, Insn])
    }
}
