// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recording: creates maps, loads and attaches programs, and removes everything when dropped.

use std::time::Duration;

use super::emit::{self, Condition, Keep, Regions, Shape, Site};
use super::layout::{self, OFF, STACK_BYTES, STACKS, STACKS_BYTES, cpu, row};
use super::sched::{self, TaskOffsets, Tasks};
use super::stats::{self, FunctionStats, Losses};
use crate::error::Error;
use crate::host;
use crate::kernel::{Function, Kernel};
use crate::link::{Link, When};
use crate::map::{MMAPABLE, Map, MapKind};
use crate::mapping::Mapping;
use crate::numbers::Numbers;
use crate::prog::{BtfTarget, ProgKind, Program};
use crate::ring::Ring;
use crate::wanted::{self, CHILDREN_ONLY, TRACED, Wanted};
use kprism_btf::Btf;
use kprism_ebpf::asm::{Asm, Code};
use kprism_ebpf::insn::{Reg, Width};
use kprism_expr::emit::RESULT;
use kprism_expr::ir::{FAULTS, Fault};

/// Method of hooking functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// A trampoline for each function, with two programs each: the lowest cost for each call, the slowest start.
    Fentry,
    /// One program for entry and return of all functions (since 6.10).
    KprobeSession,
    /// One program for all entries, one for all returns (since 5.18).
    KprobeMulti,
}

impl Hook {
    /// Name of the method in the kernel.
    pub fn name(self) -> &'static str {
        match self {
            Hook::Fentry => "fentry/fexit",
            Hook::KprobeSession => "kprobe.session",
            Hook::KprobeMulti => "kprobe.multi",
        }
    }
}

/// Selection of the tasks to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All tasks except this process.
    All,
    /// Processes that are passed to [`Session::trace`], and their children.
    Processes,
    /// Threads that are passed to [`Session::trace`], but not threads that they start.
    Threads,
    /// Processes that this process starts from now on, and their children.
    Children,
}

/// Parameters of a recording.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Treatment of calls.
    pub keep: Keep,
    /// Selection of tasks.
    pub scope: Scope,
    /// Method of hooking.
    pub hook: Hook,
    /// Size of the ring in bytes, a power of two.
    pub ring_bytes: u32,
}

/// A recording in progress.
#[derive(Debug)]
pub struct Session {
    // Fields are dropped in order. Links come first, because no program may run once the maps are gone.
    entries: Vec<Link>,
    exits: Vec<Link>,
    sched_links: Vec<Link>,
    programs: Vec<Program>,
    /// Missed calls counted by links that are already detached.
    missed: u64,
    maps: Maps,
    numbers: Numbers,
    regions: Mapping,
    /// Offset of each CPU's region.
    bases: Vec<usize>,
    /// Number of rows: one for each function, or 0 if calls are kept as records.
    rows: usize,
    verified: u64,
    left_out: Vec<LeftOut>,
}

/// A function that the kernel does not allow to hook, with the kernel's reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Name of the function.
    pub name: String,
    /// Reason for the refusal.
    pub why: String,
}

#[derive(Debug)]
struct Maps {
    cpus: Map,
    stacks: Map,
    ring: Map,
    sleeping: Map,
    free: Map,
    wanted: Wanted,
    faults: Map,
}

/// Limit of functions with trampolines. More would take too long to hook one by one.
const MOST_TRAMPOLINES: usize = 400;

/// Returns the cheapest method that the kernel has for these functions, and the reason for the choice.
pub fn choose(kernel: &mut Kernel, functions: &[Function]) -> (Hook, String) {
    let many = if kernel.btf().function("bpf_session_is_return").is_ok() {
        Hook::KprobeSession
    } else {
        Hook::KprobeMulti
    };
    if functions.len() > MOST_TRAMPOLINES {
        return (many, format!("{} functions, more than {MOST_TRAMPOLINES}", functions.len()));
    }
    match functions.iter().find(|function| !kernel.knows(function)) {
        Some(function) if function.ambiguous => (many, format!("there are several {}", function.name)),
        Some(function) => (many, format!("BTF does not describe {}", function.name)),
        None => (Hook::Fentry, "all functions are described by BTF".into()),
    }
}

impl Session {
    /// Hooks the functions. `conditions` has one for each function whose calls are not all kept. The recording runs
    /// when this returns.
    pub fn start(
        kernel: &mut Kernel,
        functions: &[Function],
        conditions: &[Option<Condition>],
        config: &Config,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Self, Error> {
        if let Some(why) = host::Host::here().function_refusal() {
            return Err(Error::refused("measuring functions", why));
        }
        if functions.is_empty() {
            return Err(Error::refused("measuring functions", "there is none to be measured"));
        }
        // Only sums need a row for each function; kept calls are records.
        let rows = if config.keep == Keep::Aggregate { functions.len() } else { 0 };
        let (regions, cpus_map) = regions(rows)?;
        let maps = Maps {
            cpus: cpus_map,
            stacks: Map::memory("kp_stacks", STACKS_BYTES)?,
            ring: Map::ring("kp_calls", config.ring_bytes)?,
            sleeping: Map::create("kp_sleeping", MapKind::Hash, 4, 8, STACKS, 0)?,
            free: Map::create("kp_free", MapKind::Queue, 0, 8, STACKS, 0)?,
            wanted: Wanted::new("kp_wanted")?,
            faults: Map::memory("kp_faults", RESULT as u32)?,
        };
        for stack in 1..STACKS {
            maps.free.push(&u64::from(stack * STACK_BYTES).to_le_bytes())?;
        }
        let mapping = maps.cpus.mapped()?;
        let stride = match regions {
            Regions::Shifted { shift, .. } => 1usize << shift,
            Regions::Looked => layout::region(rows) as usize,
        };
        let bases: Vec<usize> = (0..host::possible_cpus()).map(|cpu| cpu * stride).collect();
        for &base in &bases {
            mapping.write(base + cpu::TOP as usize, u64::from(OFF));
            for function in 0..rows {
                mapping.write(stats::row_of(base, function) + row::LOW as usize, u64::MAX);
            }
        }
        let mut session = Self {
            entries: Vec::new(),
            exits: Vec::new(),
            sched_links: Vec::new(),
            programs: Vec::new(),
            missed: 0,
            maps,
            numbers: Numbers::here(kernel)?,
            regions: mapping,
            bases,
            rows,
            verified: 0,
            left_out: Vec::new(),
        };
        if config.scope == Scope::Children {
            session.maps.wanted.set(session.numbers.own(), CHILDREN_ONLY)?;
        }
        session.follow_tasks(kernel, config, regions)?;
        let conditional = conditions.iter().any(Option::is_some);
        let shape = Shape { keep: config.keep, regions, conditional };
        match config.hook {
            Hook::Fentry => session.hook_each(kernel, functions, conditions, &shape, progress)?,
            Hook::KprobeSession => {
                for (condition, numbers) in groups(functions.len(), conditions) {
                    session.hook_session(kernel.btf(), functions, &numbers, &shape, condition)?;
                }
            }
            Hook::KprobeMulti => {
                for (condition, numbers) in groups(functions.len(), conditions) {
                    session.hook_all(functions, &numbers, &shape, condition)?;
                }
            }
        }
        visit_every_cpu();
        Ok(session)
    }

    fn load(&mut self, name: &str, kind: ProgKind<'_>, code: &Code) -> Result<&Program, Error> {
        let maps = [&self.maps.cpus, &self.maps.stacks, &self.maps.ring, &self.maps.faults];
        self.programs.push(Program::load(name, kind, code, &maps)?);
        let program = &self.programs[self.programs.len() - 1];
        self.verified += u64::from(program.info().map_or(0, |info| info.verified));
        Ok(program)
    }

    fn follow_tasks(&mut self, kernel: &Kernel, config: &Config, regions: Regions) -> Result<(), Error> {
        let offsets = TaskOffsets::new(kernel.btf())?;
        let who = match config.scope {
            Scope::All => Tasks::AllBut(self.numbers.own()),
            Scope::Processes | Scope::Children => Tasks::Wanted,
            Scope::Threads => Tasks::WantedThreads,
        };
        let maps = &self.maps;
        let code = sched::switch(offsets, who, regions)?;
        let kind = ProgKind::TpBtf(kernel.tracepoint("sched_switch")?);
        let all = [&maps.cpus, &maps.sleeping, &maps.free, maps.wanted.map(), &maps.stacks];
        let switch = Program::load("kp_switch", kind, &code, &all)?;
        self.sched_links.push(Link::tracing(&switch, 0)?);
        self.programs.push(switch);
        if who == Tasks::Wanted {
            let kind = ProgKind::TpBtf(kernel.tracepoint("sched_process_fork")?);
            let fork = Program::load("kp_fork", kind, &wanted::fork(kernel.btf())?, &[maps.wanted.map()])?;
            self.sched_links.push(Link::tracing(&fork, 0)?);
            self.programs.push(fork);
        }
        Ok(())
    }

    /// Hooks each function's return before its entry. A call in between is then known to have begun before the
    /// recording.
    fn hook_each(
        &mut self,
        kernel: &Kernel,
        functions: &[Function],
        conditions: &[Option<Condition>],
        shape: &Shape,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), Error> {
        for (number, function) in functions.iter().enumerate() {
            let target = kernel.target(function).filter(|_| !function.ambiguous).ok_or_else(|| {
                let why = "BTF does not describe it, or another has its name: use --backend bpf-kprobe";
                Error::refused(format!("fentry at {}", function.name), why)
            })?;
            let site = Site::One(number as u32);
            let condition = conditions.get(number).and_then(Option::as_ref);
            match self.hook_one(target, shape, site, condition) {
                Ok((exit, entry)) => {
                    self.exits.push(exit);
                    self.entries.push(entry);
                }
                // The function does not return, or belongs to tracing itself, and so on. The kernel knows more such
                // functions with each version.
                Err(error) => {
                    self.left_out.push(LeftOut { name: function.name.clone(), why: error.brief() });
                    if self.left_out.len() == functions.len() {
                        return Err(at(function, error));
                    }
                }
            }
            progress(number + 1);
        }
        Ok(())
    }

    fn hook_one(
        &mut self,
        target: BtfTarget<'_>,
        shape: &Shape,
        site: Site,
        condition: Option<&Condition>,
    ) -> Result<(Link, Link), Error> {
        let exit = self.load("kp_exit", ProgKind::Fexit(target), &emit::exit(shape, site, condition)?)?;
        let exit = Link::tracing(exit, 0)?;
        let entry = self.load("kp_entry", ProgKind::Fentry(target), &emit::entry(shape, site, condition)?)?;
        Ok((exit, Link::tracing(entry, 0)?))
    }

    /// Functions that could not be hooked.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    fn hook_session(
        &mut self,
        btf: &Btf,
        functions: &[Function],
        numbers: &[usize],
        shape: &Shape,
        condition: Option<&Condition>,
    ) -> Result<(), Error> {
        let is_return = btf.function("bpf_session_is_return").map_err(|_| {
            let why = "this kernel has none (6.10 does): use --backend bpf-kprobe";
            Error::refused("kprobe.session", why)
        })?;
        let code = emit::session(shape, functions.len() as u32, is_return.id, condition)?;
        let program = self.load("kp_session", ProgKind::KprobeSession, &code)?;
        let (addresses, cookies) = places(functions, numbers);
        let link = Link::kprobe_session(program, &addresses, &cookies)?;
        self.entries.push(link);
        Ok(())
    }

    fn hook_all(
        &mut self,
        functions: &[Function],
        numbers: &[usize],
        shape: &Shape,
        condition: Option<&Condition>,
    ) -> Result<(), Error> {
        let site = Site::Cookie(functions.len() as u32);
        let (addresses, cookies) = places(functions, numbers);
        let exit = self.load("kp_exit", ProgKind::KprobeMulti, &emit::exit(shape, site, condition)?)?;
        let exit = Link::kprobe_multi(exit, &addresses, &cookies, When::Return)?;
        self.exits.push(exit);
        let entry = self.load("kp_entry", ProgKind::KprobeMulti, &emit::entry(shape, site, condition)?)?;
        let entry = Link::kprobe_multi(entry, &addresses, &cookies, When::Entry)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Traces a process with all its threads and children, or with [`Scope::Threads`] a thread, from now on. Takes
    /// effect for each thread when it is next scheduled.
    pub fn trace(&self, number: u32) -> Result<(), Error> {
        let numbers = match self.numbers.differ() {
            true => self.numbers.of(&Kernel::running()?, &[number])?,
            false => vec![number],
        };
        numbers.into_iter().try_for_each(|number| self.maps.wanted.set(number, TRACED))?;
        visit_every_cpu();
        Ok(())
    }

    /// Number of instructions that the verifier processed for all programs.
    pub fn verified(&self) -> u64 {
        self.verified
    }

    /// Opens the ring of records. Functions are identified by number.
    ///
    /// A record has 72 bytes: `function u64` (index of the measured function), `enter_ns u64, exit_ns u64, pid u32,
    /// tgid u32, cpu u32, depth u32, child_ns u64, comm [u8; 16], off_ns u64`, little-endian.
    pub fn calls(&self) -> Result<Ring<'_>, Error> {
        Ring::new(&self.maps.ring)
    }

    /// Stops the recording. Only entries are detached, so that open calls still return to their frames.
    pub fn stop(&mut self) {
        self.missed += missed(&self.entries);
        self.entries.clear();
    }

    /// Returns the sums so far: one for each function, or none if calls are kept as records.
    pub fn stats(&self) -> Vec<FunctionStats> {
        (0..self.rows).map(|number| stats::read_function(&self.regions, &self.bases, number)).collect()
    }

    /// Evaluations of a condition that failed, by kind. The condition did not hold for these calls.
    pub fn faults(&self) -> Result<Vec<(Fault, u64)>, Error> {
        let memory = self.maps.faults.mapped()?;
        Ok(FAULTS.iter().enumerate().map(|(n, fault)| (*fault, memory.read(8 * n))).collect())
    }

    /// Returns the counts of what is missing from the result.
    pub fn losses(&self) -> Losses {
        let programs: u64 = self.programs.iter().filter_map(|p| p.info().ok()).map(|info| info.missed).sum();
        let links = self.missed + missed(&self.entries) + missed(&self.exits);
        stats::read_losses(&self.regions, &self.bases, programs + links)
    }
}

fn missed(links: &[Link]) -> u64 {
    links.iter().filter_map(|link| link.missed().ok()).sum()
}

fn at(function: &Function, error: Error) -> Error {
    Error::refused(function.name.clone(), format!("the kernel refuses BPF programs there: {}", error.brief()))
}

/// Addresses and cookies of the functions with these numbers.
fn places(functions: &[Function], numbers: &[usize]) -> (Vec<u64>, Vec<u64>) {
    numbers.iter().map(|&number| (functions[number].address, number as u64)).unzip()
}

/// The functions' numbers by condition: one program serves all that have the same. Most have: a parameter at the same
/// position, or no parameter at all, gives the same instructions.
fn groups(functions: usize, conditions: &[Option<Condition>]) -> Vec<(Option<&Condition>, Vec<usize>)> {
    let mut groups: Vec<(Option<&Condition>, Vec<usize>)> = Vec::new();
    for number in 0..functions {
        let own = conditions.get(number).and_then(Option::as_ref);
        match groups.iter_mut().find(|(condition, _)| *condition == own) {
            Some((_, numbers)) => numbers.push(number),
            None => groups.push((own, vec![number])),
        }
    }
    groups
}

/// Creates the CPUs' regions: in one value if they are small enough, else in one value each.
fn regions(functions: usize) -> Result<(Regions, Map), Error> {
    let cpus = host::possible_cpus();
    let shift = layout::shift(functions);
    let all = (cpus as u64).next_power_of_two() << shift;
    if all <= u64::from(STACKS_BYTES) {
        let map = Map::memory("kp_cpus", all as u32)?;
        let mask = if knows_cpus(&map, shift)? { None } else { Some((cpus.next_power_of_two() - 1) as i32) };
        return Ok((Regions::Shifted { shift, mask }, map));
    }
    let each = layout::region(functions);
    if each > u64::from(STACKS_BYTES) {
        let most = (u64::from(STACKS_BYTES - cpu::BYTES)) / u64::from(layout::ROW);
        let why = format!("{most} at most: narrow the globs, or use --backend ftrace");
        return Err(Error::refused(format!("measuring {functions} functions"), why));
    }
    let map = Map::create("kp_cpus", MapKind::Array, 4, each as u32, cpus as u32, MMAPABLE)?;
    Ok((Regions::Looked, map))
}

/// Returns true if the verifier knows that a CPU number is less than the number of CPUs (since Linux 6.9).
fn knows_cpus(cpus: &Map, shift: u32) -> Result<bool, Error> {
    let mut asm = Asm::new();
    // R1 contains the context here, and a time in the real programs.
    emit::cpu_region(&mut asm, Regions::Shifted { shift, mask: None }, -8);
    asm.load(Width::B8, Reg::R1, Reg::R2, 0).end();
    match Program::load("kp_try", ProgKind::RawTracepoint, &asm.finish()?, &[cpus]) {
        Ok(_) => Ok(true),
        Err(Error::Verifier { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Moves this thread to each CPU. A task that keeps running does not reach the scheduler by itself; this forces a
/// switch.
fn visit_every_cpu() {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: an all-zero set is a valid one.
    let mut before: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of the size given, ours alone.
    if unsafe { libc::sched_getaffinity(0, size, &raw mut before) } != 0 {
        return;
    }
    for cpu in host::online_cpus().into_iter().filter(|&cpu| cpu < 8 * size) {
        // SAFETY: as above; the CPU's number is within the set.
        unsafe {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut one);
            libc::sched_setaffinity(0, size, &raw const one);
        }
        // Leaving the CPU is a second switch, back to the previous task.
        std::thread::sleep(Duration::from_micros(50));
    }
    // SAFETY: as above.
    unsafe { libc::sched_setaffinity(0, size, &raw const before) };
}
