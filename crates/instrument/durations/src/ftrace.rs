// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations from ftrace's events: passes them to [`Calls`], and collects the result at the end of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kprism_ftrace::{Context, Data, Event, Exit, UNKNOWN_PID};
use kprism_profile::{CpuTotals, Func, Profile, Task, Times, Totals};

use crate::calls::{At, CallEvent, Calls, Inside, TaskKey};
use crate::measured::{Measured, Switch};
use crate::names::{Name, Names};
use crate::per_cpu::PerCpu;
use crate::record::CallRecord;
use crate::timeline;

/// Maximum of switches kept for the timeline of CPUs.
const SWITCHES: usize = 1 << 20;

/// Receives a run's events.
pub struct Collector<'n> {
    names: Names<'n>,
    calls: Calls,
    comms: BTreeMap<u32, Arc<str>>,
    /// Number of changes of `comms`.
    renamed: u64,
    /// Names in switches that are of no thread: idle tasks have one id, and a name for each CPU.
    nobodys: BTreeSet<Arc<str>>,
    tgids: BTreeMap<u32, u32>,
    switches: Vec<Switch>,
    cpus: PerCpu<CpuTotals>,
}

impl<'n> Collector<'n> {
    /// Starts without events. `timed` is true if times of different tasks are comparable.
    #[must_use]
    pub fn new(names: Names<'n>, timed: bool) -> Self {
        Collector {
            names,
            calls: Calls::new(timed),
            comms: BTreeMap::new(),
            renamed: 0,
            nobodys: BTreeSet::new(),
            tgids: BTreeMap::new(),
            switches: Vec::new(),
            cpus: PerCpu::default(),
        }
    }

    /// Keeps the news of calls for [`Collector::take_log`] from now on.
    pub fn keep_log(&mut self) {
        self.calls.log = Some(Vec::new());
    }

    /// Moves the news of calls whose entries were seen since the last call to `into`, which is emptied first.
    pub fn take_log(&mut self, into: &mut Vec<CallEvent>) {
        into.clear();
        if let Some(log) = &mut self.calls.log {
            std::mem::swap(log, into);
        }
    }

    /// Keeps calls without an entry for [`Measured::rebuilt`] from now on.
    pub fn keep_rebuilt(&mut self) {
        self.calls.tree.rebuilt = Some(Vec::new());
    }

    /// The name of a thread, as known so far.
    #[must_use]
    pub fn comm(&self, pid: u32) -> Option<&str> {
        self.comms.get(&pid).map(|comm| &**comm)
    }

    /// The process id of a thread.
    #[must_use]
    pub fn tgid(&self, pid: u32) -> u32 {
        self.tgids.get(&pid).copied().unwrap_or(pid)
    }

    /// Adds names of threads. Known names stay.
    pub fn name_tasks(&mut self, comms: impl IntoIterator<Item = (u32, String)>) {
        for (pid, comm) in comms {
            self.comms.entry(pid).or_insert_with(|| comm.into());
        }
    }

    /// Renames a thread from now on.
    pub fn rename_task(&mut self, pid: u32, tgid: u32, comm: &str) {
        self.name(pid, comm.as_bytes());
        self.tgids.insert(pid, tgid);
    }

    /// Number of times that a thread got another name: who keeps a name asks for it again when this is another number.
    #[must_use]
    pub fn renamed(&self) -> u64 {
        self.renamed
    }

    /// Names a thread from now on. Most calls and switches have the name that is known: it is compared, and not copied.
    fn name(&mut self, pid: u32, comm: &[u8]) {
        let known = self.comms.get(&pid);
        if known.is_some_and(|known| known.as_bytes() == comm) {
            return;
        }
        let text = String::from_utf8_lossy(comm);
        if known.is_none_or(|known| **known != *text) {
            self.comms.insert(pid, text.into());
            self.renamed += 1;
        }
    }

    /// The name of a thread in a switch, as all switches of the thread share it.
    fn name_in_switch(&mut self, pid: u32, comm: &[u8]) -> Arc<str> {
        if pid != 0
            && !comm.is_empty()
            && let Some(known) = self.comms.get(&pid)
        {
            return known.clone();
        }
        let text = String::from_utf8_lossy(comm);
        if let Some(known) = self.nobodys.get(&*text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.nobodys.insert(text.clone());
        text
    }

    /// Adds process ids of threads.
    pub fn group_tasks(&mut self, tgids: impl IntoIterator<Item = (u32, u32)>) {
        self.tgids.extend(tgids);
    }

    /// Handles an event.
    pub fn event(&mut self, event: &Event<'_>) {
        let &Event { ns, cpu, pid, context, .. } = event;
        self.seen(cpu, ns);
        let at = At { key: TaskKey::new(pid, cpu), cpu, ns, context };
        match &event.data {
            Data::Entry { func, depth } => {
                let func = self.names.number(*func);
                self.calls.entry(at, func, *depth, &self.names);
            }
            Data::Exit(exit) => {
                let func = exit.func.map(|func| self.names.number(func));
                self.calls.exit(at, exit, func, None, &self.names);
            }
            Data::Switch { prev_pid, prev_comm, next_pid, next_comm } => {
                let keys = (TaskKey::new(*prev_pid, cpu), TaskKey::new(*next_pid, cpu));
                self.calls.switch(cpu, ns, keys.0, keys.1);
                for (pid, comm) in [(*prev_pid, *prev_comm), (*next_pid, *next_comm)] {
                    if pid != 0 && !comm.is_empty() {
                        self.name(pid, comm);
                    }
                }
                if self.switches.len() < SWITCHES {
                    let prev = (*prev_pid, self.name_in_switch(*prev_pid, prev_comm));
                    let next = (*next_pid, self.name_in_switch(*next_pid, next_comm));
                    self.switches.push(Switch { cpu, ns, prev, next });
                } else {
                    self.calls.counts.switches_dropped += 1;
                }
            }
            Data::IrqEnter => self.calls.irq_enter(at),
            Data::IrqExit => self.calls.irq_exit(at),
            Data::Lost { count } => self.calls.lost(cpu, *count),
            Data::Raw { .. } | Data::Text(_) | Data::Stack(_) => {}
        }
    }

    /// Handles a call that a recorder kept. Calls of a task must come in the order of their ends.
    pub fn kept(&mut self, record: &CallRecord) {
        let CallRecord { cpu, pid, depth, .. } = *record;
        self.seen(cpu, record.exit_ns);
        let func = kprism_ftrace::Func::Address(record.func);
        let number = self.names.number(func);
        let at = At { key: TaskKey::new(pid, cpu), cpu, ns: record.exit_ns, context: Context::Task };
        let times = (Some(record.enter_ns), Some(record.exit_ns));
        let exit = Exit { func: Some(func), depth, call_ns: times.0, ret_ns: times.1, overrun: 0 };
        let inside = Inside { called_ns: record.child_ns, off_ns: record.off_ns };
        self.calls.exit(at, &exit, Some(number), Some(inside), &self.names);
        self.name(pid, record.comm_bytes());
        self.tgids.insert(pid, record.tgid);
    }

    fn seen(&mut self, cpu: u32, ns: u64) {
        let totals = self.cpus.entry(cpu, || CpuTotals { first_ns: ns, ..CpuTotals::default() });
        totals.first_ns = totals.first_ns.min(ns);
        totals.last_ns = totals.last_ns.max(ns);
    }

    /// Ends the trace and returns the durations. `resolve` gives the name and module of the function at an address.
    pub fn finish(mut self, resolve: impl Fn(u64) -> Option<(String, String)>) -> Measured {
        self.calls.finish();
        let funcs: Vec<Func> = self.names.all().iter().map(|name| func(name, &resolve)).collect();
        let task = |(key, root): (TaskKey, u32)| {
            let TaskKey { pid, cpu } = key;
            let known = || self.comm(pid).map_or_else(|| format!("<{pid}>"), str::to_owned);
            let (pid, comm) = match pid {
                0 => (0, format!("swapper/{cpu}")),
                UNKNOWN_PID => (0, format!("unknown task on CPU {cpu}")),
                _ => (pid, known()),
            };
            Task { pid, tgid: self.tgids.get(&pid).copied().unwrap_or(pid), comm, root }
        };
        let tasks = self.calls.tasks().map(task).collect();
        let keys: Vec<TaskKey> = self.calls.tasks().map(|(key, _)| key).collect();
        let count = self.cpus.cpus().next_back().map_or(0, |cpu| cpu as usize + 1).min(1 << 16);
        let per_cpu = (0..count as u32).map(|cpu| self.cpus.get(cpu).cloned().unwrap_or_default()).collect();
        let mut counts = self.calls.counts;
        let tree = self.calls.tree;
        let funcs_times = tree.func_times(funcs.len());
        let rebuilt = tree.rebuilt.unwrap_or_default();
        let rebuilt = rebuilt.into_iter().map(|(task, call)| (keys[task as usize], call)).collect();
        let mut slices = tree.slices;
        slices.retain(|s| s.end_ns - s.start_ns >= tree.shortest_ns);
        counts.slices_dropped = tree.ended - slices.len() as u64;
        let times = Times { funcs: funcs_times, nodes: tree.times, counts };
        // Outer calls come before the calls inside them, which ended first.
        timeline::sort(&mut slices);
        let totals = Totals { per_cpu, ..Totals::default() };
        let profile = Profile { funcs, tasks, nodes: tree.nodes, slices, totals, ..Profile::default() };
        Measured { profile, times, switches: self.switches, rebuilt }
    }
}

/// A function in the form for views.
fn func(name: &Name, resolve: &impl Fn(u64) -> Option<(String, String)>) -> Func {
    match name {
        Name::Address(start) => {
            let (name, module) =
                resolve(*start).unwrap_or_else(|| (format!("{start:#x}"), "[kernel]".to_owned()));
            Func { name, module, start: *start, kernel: true }
        }
        Name::Text(text) => {
            let (name, module) = match text.strip_suffix(']').and_then(|t| t.rsplit_once(" [")) {
                Some((name, module)) => (name, format!("[{module}]")),
                None => (text.as_str(), "[kernel]".to_owned()),
            };
            Func { name: name.to_owned(), module, start: 0, kernel: true }
        }
    }
}
