// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs probes. Input: plans and a [`Config`]. Output: maps, and programs that are attached; records and counts as they come.
//!
//! File descriptors own all of it. When the process ends, in whatever way, nothing is left in the kernel.
//!
//! | module | job |
//! |---|---|
//! | `link` | loads a probe's programs, and attaches them at its site |
//! | [`jump`] | jumps in programs, in place of traps |
//! | `read`, `merge` | rings of all CPUs → records in order of time |
//! | `counts` | shared memory → counts, variables, histograms |

mod counts;
pub mod jump;
mod link;
mod merge;
mod read;

use std::cell::RefCell;

use kprism_bpf::host;
use kprism_bpf::kernel::Kernel;
use kprism_bpf::link::Link;
use kprism_bpf::map::Map;
use kprism_bpf::mapping::Mapping;
use kprism_bpf::names::Names;
use kprism_bpf::numbers::Numbers;
use kprism_bpf::prog::{ProgKind, Program};
use kprism_bpf::wanted::{self, CHILDREN_ONLY, TRACED, Wanted};
use kprism_debuginfo::Image;

use crate::Error;
use crate::plan::{Plan, Site};
use crate::program::{self, Layout, PROBE_STATE};
use crate::stream::RecordingEffect;

pub use link::enable;
pub use read::Reader;

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
    /// Number of trace state variables that each thread has for itself.
    pub thread_vars: u32,
    /// Maximum of key combinations per probe.
    pub keys: u32,
}

/// Probes that are attached.
#[derive(Debug)]
pub struct Session {
    plans: Vec<Plan>,
    layout: Layout,
    /// Attachments, with the index of their probe. Emptied when recording stops, while a reader may still read.
    links: RefCell<Vec<(Option<usize>, Link)>>,
    programs: Vec<Program>,
    /// By probe: hits that the kernel passed over, as it told the last time.
    kernel_missed: RefCell<Vec<Option<u64>>>,
    /// By probe: the map of its counts by keys.
    keyed: Vec<Option<Map>>,
    notes: Vec<String>,
    failed: Vec<String>,
    numbers: Numbers,
    state: Mapping,
    /// Counters and rings, by CPU.
    rings: Mapping,
    /// Those that the programs of all probes use, for programs that are loaded later.
    tasks: Wanted,
    rings_map: Map,
    state_map: Map,
    _maps: Vec<Map>,
    jumps: jump::Jumps,
}

impl Session {
    /// Loads and attaches all probes.
    pub fn start(plans: Vec<Plan>, config: &Config) -> Result<Self, Error> {
        let mut kernel = Kernel::running()?;
        let slide = checked(&plans)?;
        let starts = plans.iter().any(|plan| plan.probe.effect == RecordingEffect::Start);
        let numbers = Numbers::here(&kernel)?;
        let layout = Layout {
            all_but: (config.who == HitScope::All).then_some(numbers.own()),
            stop_after: config.stop_after,
            vars: config.vars.len() as u32,
            thread_vars: config.thread_vars,
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
        let of_threads = match config.thread_vars {
            0 => None,
            words => Some(Map::of_threads("kp_threads", words)?),
        };
        let mut shared = vec![tasks.map(), &rings, &state];
        shared.extend(&of_threads);
        let (mut attached_plans, mut notes, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut first_place = 0;
        let mut names = Names::default();
        for mut plan in plans {
            let bound = plan.bind(&mut names);
            let number = attached_plans.len();
            // The first attached address of a probe counts for all of them.
            if plan.after_first == 0 {
                first_place = number;
            }
            plan.after_first = (number - first_place) as u32;
            let mut attach =
                |plan: &Plan| link::attach(&mut kernel, plan, number as u32, &layout, config.keys, &shared);
            let attached = match bound.and_then(|()| attach(&plan)) {
                Ok(attached) => attached,
                Err(why) => match plan.instead.take().map(|instead| (attach(&instead), instead)) {
                    Some((Ok(attached), instead)) => {
                        plan = *instead;
                        // The verifier's log is only of use to readers of programs.
                        let why = why.to_string();
                        let why = why.lines().next().unwrap_or_default();
                        let note = format!("a {}, as the kernel refuses another: {why}", plan.probe.hook);
                        notes.push(note);
                        attached
                    }
                    // The other probes continue, unless the failed one was to switch them.
                    _ if plan.probe.effect.is_record() => {
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
        if !plans.iter().any(|plan| plan.probe.effect.is_record()) {
            return Err(Error::Cannot(failed.join("\n")));
        }
        let ring_memory = rings.mapped()?;
        // All probes are attached: from now on hits of all of them count.
        let first = if starts { program::PAUSED } else { program::RUNNING };
        state_memory.write(layout.switch_at() as usize, first);
        maps.extend(of_threads);
        Ok(Self {
            plans,
            layout,
            links: RefCell::new(links),
            kernel_missed: RefCell::new(vec![None; programs.len()]),
            programs,
            keyed,
            notes,
            failed,
            numbers,
            state: state_memory,
            rings: ring_memory,
            tasks,
            rings_map: rings,
            state_map: state,
            _maps: maps,
            jumps: jump::Jumps::default(),
        })
    }

    /// The probes as they are attached.
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Differences from the plan, as messages.
    pub fn notes(&self) -> &[String] {
        &self.notes
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

    /// Returns true if process numbers in records and conditions, which are the machine's, differ from this PID
    /// namespace's.
    pub fn numbers_differ(&self) -> bool {
        self.numbers.differ()
    }

    /// The method by which a probe is met: its [hook](crate::stream::Probe::hook), or the jumps it was given.
    pub fn hook(&self, number: usize) -> &str {
        self.jumps.hook(number).unwrap_or(&self.plans[number].probe.hook)
    }

    /// From now on hits of the process `pid` do not count, if they did; those of processes that it starts still do. With
    /// [`HitScope::All`] nothing changes. Returns the process's number in records.
    ///
    /// # Errors
    /// There is no such process.
    pub fn count_only_children_of(&self, pid: u32) -> Result<u32, Error> {
        let number = self.numbers.of(&Kernel::running()?, &[pid])?;
        let number = number.first().copied().unwrap_or(pid);
        if self.tasks.get(number) == TRACED {
            self.tasks.set(number, CHILDREN_ONLY)?;
        }
        Ok(number)
    }

    /// Ends the recording for all probes at once, and detaches them. Records in the rings can still be read.
    pub fn stop(&self) {
        self.state.write(self.layout.switch_at() as usize, program::ENDED);
        self.jumps.end();
        self.ask_kernel();
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
            let held = word(first * PROBE_STATE + program::CONDITION_HITS);
            plan.actions.pass.is_some_and(|pass| held >= plan.actions.skip.saturating_add(pass))
        };
        let over: Vec<bool> = self.plans.iter().enumerate().map(|(number, plan)| had(number, plan)).collect();
        if over.contains(&true) {
            self.ask_kernel();
        }
        let over_now = |(number, _): &mut (Option<usize>, Link)| number.is_some_and(|number| over[number]);
        let gone = self.links.borrow_mut().extract_if(.., over_now).map(|(_, link)| link).collect();
        Link::detach_all(gone);
        // Probes that only switch the recording have nothing left to switch then.
        over.iter().zip(&self.plans).all(|(over, plan)| *over || !plan.probe.effect.is_record())
            && over.contains(&true)
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
            Site::Named { module: Some(module), .. } => {
                (host::module_build_id(module), format!("the loaded module {module}"))
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
