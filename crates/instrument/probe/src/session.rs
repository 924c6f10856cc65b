// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs probes: creates maps and programs, attaches them, and reads the rings. File descriptors own all of it. When the
//! process ends, in whatever way, nothing is left in the kernel.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use kprism_bpf::cpu_ring::CpuRing;
use kprism_bpf::host;
use kprism_bpf::kernel::{Function, Kernel};
use kprism_bpf::link::{Link, When};
use kprism_bpf::map::{Map, MapKind};
use kprism_bpf::mapping::{self, Mapping};
use kprism_bpf::numbers::Numbers;
use kprism_bpf::prog::{ProgKind, Program};
use kprism_bpf::wanted::{self, CHILDREN_ONLY, TRACED, Wanted};
use kprism_debuginfo::Image;
use kprism_ebpf::asm::Code;
use kprism_expr::ir::FAULTS;

use crate::Error;
use crate::merge::Merge;
use crate::plan::{Plan, Site};
use crate::program::{self, CELL, Layout, PROBE_STATE};
use crate::stream::{Counts, HEADER, Item, Part};
use crate::tally::{Row, Tally, Totals};

/// Selects whose hits count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HitScope {
    /// Everyone's but this process's.
    All,
    /// Those of these processes and of the processes that they start.
    Processes(Vec<u32>),
    /// Those of the processes that this one starts.
    Children,
}

/// Options of a recording.
#[derive(Debug, Clone)]
pub struct Config {
    /// Selects whose hits count.
    pub who: HitScope,
    /// Size of each CPU's ring in bytes: a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Maximum of records; then recording ends.
    pub stop_after: Option<u32>,
    /// Initial values of trace state variables.
    pub vars: Vec<i64>,
    /// Maximum of key combinations per probe.
    pub keys: u32,
}

/// Maximum of open calls whose entries are kept.
const OPEN_CALLS: u32 = 16 << 10;

/// Probes that are attached.
#[derive(Debug)]
pub struct Session {
    plans: Vec<Plan>,
    layout: Layout,
    /// Attachments, with the index of their probe. Emptied when recording stops, while a reader may still read.
    links: RefCell<Vec<(Option<usize>, Link)>>,
    programs: Vec<Program>,
    /// By probe: the map of its counts by keys.
    keyed: Vec<Option<Map>>,
    said: Vec<String>,
    failed: Vec<String>,
    numbers: Numbers,
    state: Mapping,
    /// Counters and rings, by CPU.
    rings: Mapping,
    _maps: Vec<Map>,
}

impl Session {
    /// Loads and attaches all probes.
    pub fn start(plans: Vec<Plan>, config: &Config) -> Result<Self, Error> {
        let mut kernel = Kernel::running()?;
        let slide = checked(&plans)?;
        let starts = plans.iter().any(|plan| plan.probe.part == Part::Start);
        let numbers = Numbers::here(&kernel)?;
        let layout = Layout {
            all_but: (config.who == HitScope::All).then_some(numbers.own()),
            stop_after: config.stop_after,
            vars: config.vars.len() as u32,
            slide,
            ..Layout::of(&plans, host::possible_cpus() as u32, config.ring_bytes)?
        };
        let tasks = Wanted::new("kp_tasks")?;
        let state = Map::memory("kp_state", layout.state_bytes())?;
        let state_memory = state.mapped()?;
        state_memory.write(layout.switch_at() as usize, program::NOT_YET);
        for (number, value) in config.vars.iter().enumerate() {
            state_memory.write(layout.vars_at() as usize + 8 * number, value.cast_unsigned());
        }
        let rings = layout.rings.map("kp_rings")?;
        match &config.who {
            HitScope::All => {}
            HitScope::Processes(pids) => {
                numbers.of(&kernel, pids)?.into_iter().try_for_each(|pid| tasks.set(pid, TRACED))?;
            }
            HitScope::Children => tasks.set(numbers.own(), CHILDREN_ONLY)?,
        }
        let (mut programs, mut links, mut maps) = (Vec::new(), Vec::new(), Vec::new());
        let mut keyed = Vec::new();
        if config.who != HitScope::All {
            let code = wanted::fork(kernel.btf())?;
            let kind = ProgKind::TpBtf(kernel.tracepoint("sched_process_fork")?);
            let program = Program::load("kp_fork", kind, &code, &[tasks.map()])?;
            links.push((None, Link::tracing(&program, 0)?));
        }
        let shared = [tasks.map(), &rings, &state];
        let (mut attached_plans, mut said, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut first_place = 0;
        for mut plan in plans {
            let number = attached_plans.len();
            // The first attached address of a probe counts for all of them.
            if plan.after_first == 0 {
                first_place = number;
            }
            plan.after_first = (number - first_place) as u32;
            let mut attach =
                |plan: &Plan| attached(&mut kernel, plan, number as u32, &layout, config.keys, &shared);
            let attached = match attach(&plan) {
                Ok(attached) => attached,
                Err(why) => match plan.instead.take().map(|instead| (attach(&instead), instead)) {
                    Some((Ok(attached), instead)) => {
                        plan = *instead;
                        // The verifier's log is only of use to readers of programs.
                        let why = why.to_string();
                        let why = why.lines().next().unwrap_or_default();
                        let note = format!("a {}, as the kernel refuses another: {why}", plan.probe.hook);
                        said.push(note);
                        attached
                    }
                    // The other probes continue, unless the failed one was to switch them.
                    _ if plan.probe.part.is_record() => {
                        failed.push(format!("{}: {why}", plan.probe.place));
                        continue;
                    }
                    _ => return Err(Error::Cannot(format!("{}: {why}", plan.probe.place))),
                },
            };
            programs.push(attached.program);
            links.extend(attached.links.into_iter().map(|link| (Some(number), link)));
            maps.extend(attached.entries);
            keyed.push(attached.keyed);
            attached_plans.push(plan);
        }
        let plans = attached_plans;
        if !plans.iter().any(|plan| plan.probe.part.is_record()) {
            return Err(Error::Cannot(failed.join("\n")));
        }
        let ring_memory = rings.mapped()?;
        // All probes are attached: from now on hits of all of them count.
        let first = if starts { program::PAUSED } else { program::RUNNING };
        state_memory.write(layout.switch_at() as usize, first);
        maps.extend([rings, state]);
        Ok(Self {
            plans,
            layout,
            links: RefCell::new(links),
            programs,
            keyed,
            said,
            failed,
            numbers,
            state: state_memory,
            rings: ring_memory,
            _maps: maps,
        })
    }

    /// The probes as they are attached.
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Differences from the plan, as messages.
    pub fn said(&self) -> &[String] {
        &self.said
    }

    /// Probes that could not be attached, with the reasons. The others are attached.
    pub fn failed(&self) -> &[String] {
        &self.failed
    }

    /// Size of each CPU's ring, bytes. It is smaller than requested if all rings together would be more than a program
    /// can address.
    pub fn ring_bytes(&self) -> u32 {
        self.layout.rings.ring
    }

    /// Returns a reader of the rings.
    pub fn reader(&self) -> Reader<'_> {
        let layout = &self.layout.rings;
        let ring = |cpu: u32| CpuRing::new(&self.rings, layout, cpu as usize);
        Reader { rings: (0..layout.cpus).map(ring).collect(), session: self, merge: Merge::new(&self.plans) }
    }

    /// Returns true if process numbers in records and conditions, which are the machine's, differ from this PID
    /// namespace's.
    pub fn numbers_differ(&self) -> bool {
        self.numbers.differ()
    }

    /// Ends the recording for all probes at once, and detaches them. Records in the rings can still be read.
    pub fn stop(&self) {
        self.state.write(self.layout.switch_at() as usize, program::ENDED);
        let links = std::mem::take(&mut *self.links.borrow_mut());
        Link::detach_all(links.into_iter().map(|(_, link)| link).collect());
    }

    /// Detaches probes that have reached their pass limit. Returns true if no more hits will come: all probes are
    /// detached, the maximum of records is reached, or a probe ended the recording.
    pub fn is_over(&self) -> bool {
        let word = |at: u32| self.state.read(at as usize);
        let enough =
            self.layout.stop_after.is_some_and(|most| word(self.layout.stop_at()) >= u64::from(most));
        if enough || word(self.layout.switch_at()) == program::ENDED {
            return true;
        }
        let had = |number: usize, plan: &Plan| {
            let first = number as u32 - plan.after_first;
            let held = word(first * PROBE_STATE + program::HELD);
            plan.actions.pass.is_some_and(|pass| held >= plan.actions.skip.saturating_add(pass))
        };
        let over: Vec<bool> = self.plans.iter().enumerate().map(|(number, plan)| had(number, plan)).collect();
        let over_now = |(number, _): &mut (Option<usize>, Link)| number.is_some_and(|number| over[number]);
        let gone = self.links.borrow_mut().extract_if(.., over_now).map(|(_, link)| link).collect();
        Link::detach_all(gone);
        // Probes that only switch the recording have nothing left to switch then.
        over.iter().zip(&self.plans).all(|(over, plan)| *over || !plan.probe.part.is_record())
            && over.contains(&true)
    }

    /// Current values of trace state variables.
    pub fn variables(&self) -> Vec<i64> {
        let at = |number: u32| self.state.read((self.layout.vars_at() + 8 * number) as usize).cast_signed();
        (0..self.layout.vars).map(at).collect()
    }

    /// The counts by keys and in histograms, by probe.
    pub fn totals(&self) -> Result<Vec<Option<Totals>>, Error> {
        let mut all = Vec::new();
        for (number, plan) in self.plans.iter().enumerate() {
            let totals = match (&plan.probe.tally, &self.keyed[number]) {
                (None, _) => None,
                (Some(tally), None) => Some(Totals { rows: vec![self.total(number, tally)] }),
                (Some(tally), Some(map)) => Some(by_keys(plan, tally, map)?),
            };
            all.push(totals);
        }
        Ok(all)
    }

    /// The counts of a probe, summed over all CPUs.
    fn total(&self, number: usize, tally: &Tally) -> Row {
        let from = self.layout.tally_at(number as u32);
        let rings = &self.layout.rings;
        let at = |cpu: usize, word: u32| rings.counter(cpu, from + 8 * word);
        let all_cpus = |word| {
            (0..rings.cpus as usize).map(|cpu| self.rings.read(at(cpu, word))).fold(0, u64::wrapping_add)
        };
        let words: Vec<u64> = (0..tally.cell_bytes() / 8).map(all_cpus).collect();
        Row::of(tally, Vec::new(), &words)
    }

    /// The counters so far, by probe.
    pub fn counts(&self) -> Vec<Counts> {
        let cell = |number: usize, word: u32| -> u64 {
            let rings = &self.layout.rings;
            let at = number as u32 * CELL + 8 * word;
            (0..rings.cpus as usize).map(|cpu| self.rings.read(rings.counter(cpu, at))).sum()
        };
        let errors = |from: usize| -> BTreeMap<String, u64> {
            let all =
                FAULTS.iter().enumerate().map(|(n, fault)| (fault.name(), self.state.read(from + 8 * n)));
            all.filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n)).collect()
        };
        let counts = |(number, program): (usize, &Program)| {
            let state = number * PROBE_STATE as usize;
            let actions = &self.plans[number].actions;
            // The addresses of one probe count together, at the first of them.
            let held = match self.plans[number].after_first {
                0 => self.state.read(state + program::HELD as usize),
                _ => 0,
            };
            let after = actions.pass.map_or(0, |pass| held.saturating_sub(actions.skip.saturating_add(pass)));
            Counts {
                hits: cell(number, 0),
                passed: cell(number, 1),
                lost: cell(number, 2),
                left_out: held.min(actions.skip) + after,
                keys_lost: cell(number, 3),
                keys_failed: cell(number, 4),
                unreturned: cell(number, 5).saturating_sub(cell(number, 0)),
                condition_errors: errors(state),
                value_errors: errors(state + PROBE_STATE as usize / 2),
                missed: program.info().map_or(0, |info| info.missed),
            }
        };
        self.programs.iter().enumerate().map(counts).collect()
    }
}

/// Reads records from the rings. It polls: a wake-up would cost time at each hit.
#[derive(Debug)]
pub struct Reader<'s> {
    rings: Vec<CpuRing<'s>>,
    session: &'s Session,
    merge: Merge,
}

impl Reader<'_> {
    /// Passes the records of all CPUs to `take`, in order of time and in the form of the file, one or more at once.
    /// Returns their number. Records that another CPU's could still precede are kept for the next call.
    pub fn drain(&mut self, take: impl FnMut(&[u8])) -> u64 {
        // Records made from now on have later times.
        let now = host::monotonic_ns();
        let mut safe = now;
        for ring in &mut self.rings {
            safe = safe.min(self.merge.fill(ring, &self.session.plans, now));
        }
        self.merge.give(safe, take)
    }

    /// Passes on all remaining records, after the end of the recording.
    pub fn finish(&mut self, take: impl FnMut(&[u8])) -> u64 {
        for ring in &mut self.rings {
            self.merge.fill(ring, &self.session.plans, u64::MAX);
        }
        self.merge.give(u64::MAX, take)
    }
}

/// Checks that the plans are for this kernel and these files. Returns the offset of the kernel's addresses from those
/// at which it is linked.
fn checked(plans: &[Plan]) -> Result<u64, Error> {
    let mut slide = None;
    let kernel = std::cell::LazyCell::new(host::kernel_build_id);
    for plan in plans {
        let place = &plan.probe.place;
        let (found, what) = match &plan.site {
            Site::User { file, .. } => {
                (Image::map(file).ok().and_then(|image| image.build_id()), file.display().to_string())
            }
            _ => (kernel.clone(), "the running kernel".to_owned()),
        };
        let found = found.map(|id| id.to_string());
        if let (Some(made_for), Some(found)) = (&plan.origin.build_id, &found)
            && made_for != found
        {
            let why = format!("its debug information has build id {made_for}, {what} has {found}");
            return Err(Error::Cannot(format!("{place}: made for another file: {why}")));
        }
        // All plans are for one kernel. Finding its address reads all symbols, so this is done once.
        if let (Some(linked), None) = (plan.origin.text, slide) {
            slide = Some(host::kernel_text()?.wrapping_sub(linked));
        }
    }
    Ok(slide.unwrap_or(0))
}

/// The counts by keys, the most frequent first.
fn by_keys(plan: &Plan, tally: &Tally, map: &Map) -> Result<Totals, Error> {
    let mut rows = Vec::new();
    for key in map.keys()? {
        let Some(cells) = map.lookup(&key)? else { continue };
        let cells: Vec<u64> = cells
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)))
            .collect();
        let size = tally.cell_bytes() as usize / 8;
        let mut words = vec![0_u64; size];
        for cell in cells.chunks_exact(size) {
            words.iter_mut().zip(cell).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
        }
        // The key has the layout of a record's values.
        let bytes = [&[0; HEADER][..], &key].concat();
        let value = |item: &Item| {
            let shape = item.shape.as_ref();
            shape.map_or(serde_json::Value::Null, |s| s.value(bytes.get(item.at as usize..).unwrap_or(&[])))
        };
        rows.push(Row::of(tally, tally.keys.iter().map(value).collect(), &words));
    }
    debug_assert_eq!(plan.actions.keys.len(), tally.keys.len());
    rows.sort_by_cached_key(|row| {
        (std::cmp::Reverse(row.count), serde_json::to_string(&row.key).unwrap_or_default())
    });
    Ok(Totals { rows })
}

/// An attached probe.
struct Attached {
    program: Program,
    links: Vec<Link>,
    /// The map with the entries of its function.
    entries: Option<Map>,
    /// The map of its counts by keys.
    keyed: Option<Map>,
}

/// Loads a probe's programs and attaches them.
fn attached(
    kernel: &mut Kernel,
    plan: &Plan,
    number: u32,
    layout: &Layout,
    keys: u32,
    shared: &[&Map],
) -> Result<Attached, Error> {
    let entries = match plan.kept.len() as u32 {
        0 => None,
        n => Some(Map::create("kp_entries", MapKind::LruHash, 16, 8 * n, OPEN_CALLS, 0)?),
    };
    let keyed = match (&plan.probe.tally, plan.actions.key_bytes) {
        (None, _) | (_, 0) => None,
        (Some(tally), bytes) => {
            // Counts are per CPU. Per-CPU histograms would take too much memory.
            let kind = if tally.histograms.is_empty() { MapKind::PercpuHash } else { MapKind::Hash };
            Some(Map::create("kp_keys", kind, bytes, tally.cell_bytes(), keys, 0)?)
        }
    };
    let mut all = shared.to_vec();
    all.extend(&entries);
    all.extend(&keyed);
    let mut at = Attach { kernel, plan, slide: layout.slide };
    let code = |sleeps| program::probe(plan, number, &Layout { sleeps, ..*layout });
    let (program, link) = at.attach("kp_probe", &code, &all, true)?;
    // Returns are attached before entries. So a return without an entry belongs to a call that began before.
    let mut links = vec![link];
    if !plan.kept.is_empty() || program::counts_calls(plan) {
        let code = |sleeps| program::entry(plan, number, &Layout { sleeps, ..*layout });
        links.push(at.attach("kp_entry", &code, &all, false)?.1);
    }
    Ok(Attached { program, links, entries, keyed })
}

struct Attach<'a> {
    kernel: &'a mut Kernel,
    plan: &'a Plan,
    slide: u64,
}

impl Attach<'_> {
    /// Loads the program and attaches it: at the probe's place, or at the function's entry.
    fn attach(
        &mut self,
        name: &str,
        code: &dyn Fn(bool) -> Result<Code, Error>,
        maps: &[&Map],
        own: bool,
    ) -> Result<(Program, Link), Error> {
        if let Site::User { file, offset, listeners: 0, entry, at_return } = &self.plan.site {
            let (offset, when) = match (own, at_return) {
                (true, true) => (*offset, When::Return),
                (true, false) => (*offset, When::Entry),
                (false, _) => (*entry, When::Entry),
            };
            return in_program(name, code, maps, file, offset, when);
        }
        if let Site::User { file, offset, listeners, .. } = &self.plan.site {
            let program = Program::load_sleepable(name, ProgKind::Kprobe, &code(true)?, maps);
            let program = program
                .or_else(|_| Ok::<_, Error>(Program::load(name, ProgKind::Kprobe, &code(false)?, maps)?))?;
            let link = Link::usdt(&program, file, *offset, *listeners)?;
            return Ok((program, link));
        }
        let code = &code(false)?;
        let when = |at_return: bool| if own && at_return { When::Return } else { When::Entry };
        match &self.plan.site {
            // Handled above.
            Site::User { .. } => Err(Error::Cannot(format!("{name}: no place in a program"))),
            Site::Kernel { address, entry, at_return } => {
                let program = Program::load(name, ProgKind::Kprobe, code, maps)?;
                let address = if own { *address } else { *entry }.wrapping_add(self.slide);
                let link = Link::kprobe_at(&program, address, when(*at_return), 0)?;
                Ok((program, link))
            }
            Site::Named { function, module, at_return } => {
                let program = Program::load(name, ProgKind::Kprobe, code, maps)?;
                let symbol = match module {
                    Some(module) => format!("{module}:{function}"),
                    None => function.clone(),
                };
                let link = Link::kprobe(&program, &symbol, 0, when(*at_return), 0)?;
                Ok((program, link))
            }
            Site::Event { system, name: event } => {
                let program = Program::load(name, ProgKind::Tracepoint, code, maps)?;
                let link = Link::tracepoint(&program, system, event, 0)?;
                Ok((program, link))
            }
            Site::Raw { name: event } => {
                let program = Program::load(name, ProgKind::RawTracepoint, code, maps)?;
                let link = Link::raw_tracepoint(&program, event)?;
                Ok((program, link))
            }
            Site::Traced { function, module, at_return } => {
                let function = Function {
                    name: function.clone(),
                    module: module.clone(),
                    aliases: Vec::new(),
                    address: 0,
                    ambiguous: false,
                };
                self.kernel.knows(&function);
                let unknown = || {
                    let what = "BTF does not describe it as a function that can be traced";
                    Error::Cannot(format!("{}: {what}", function.name))
                };
                let target = self.kernel.target(&function).ok_or_else(unknown)?;
                let kind = match when(*at_return) {
                    When::Return => ProgKind::Fexit(target),
                    When::Entry => ProgKind::Fentry(target),
                };
                let program = Program::load(name, kind, code, maps)?;
                let link = Link::tracing(&program, 0).map_err(|why| {
                    // The kernel reports "busy" for this too.
                    if excluded(&function.name) {
                        let what =
                            "the kernel excludes it from tracing: it is not in available_filter_functions";
                        return Error::Cannot(what.to_owned());
                    }
                    why.into()
                })?;
                Ok((program, link))
            }
        }
    }
}

/// Attaches in a program or library.
///
/// uprobe.multi links (Linux 6.6) can be detached together; those of perf events go one after another, 100 ms each.
/// Programs that may sleep (6.0) can read memory that a process has not touched yet; a forked child, for example, has
/// not touched the contents of files.
fn in_program(
    name: &str,
    code: &dyn Fn(bool) -> Result<Code, Error>,
    maps: &[&Map],
    file: &Path,
    offset: u64,
    when: When,
) -> Result<(Program, Link), Error> {
    let sleeping = code(true)?;
    // An instruction on which no breakpoint can be set is refused now, instead of silently wherever it is mapped later.
    let _mapped = mapping::code_page(file, offset);
    let multi = || {
        let program = Program::load_sleepable(name, ProgKind::UprobeMulti, &sleeping, maps)?;
        let link = Link::uprobe_multi(&program, file, &[offset], &[], when, 0)?;
        Ok::<_, kprism_bpf::Error>((program, link))
    };
    let single = || {
        let program = Program::load_sleepable(name, ProgKind::Kprobe, &sleeping, maps)?;
        let link = Link::uprobe(&program, file, offset, when, -1, 0)?;
        Ok::<_, kprism_bpf::Error>((program, link))
    };
    if let Ok(attached) = multi().or_else(|_| single()) {
        return Ok(attached);
    }
    let program = Program::load(name, ProgKind::Kprobe, &code(false)?, maps)?;
    let link = Link::uprobe(&program, file, offset, when, -1, 0)?;
    Ok((program, link))
}

/// Returns true if the kernel has a list of traceable functions and this one is not in it.
fn excluded(function: &str) -> bool {
    let list = host::tracefs()
        .and_then(|folder| std::fs::read_to_string(folder.join("available_filter_functions")).ok());
    list.is_some_and(|list| !list.lines().any(|line| line.split(' ').next() == Some(function)))
}
