// SPDX-License-Identifier: MIT OR Apache-2.0
//! One call instead of the whole run: `--syscall NAME --call WHICH`, `--func NAME --call WHICH`.
//!
//! In: a run, which call. Out: its task and time, or the run's profile of that call alone.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::str::FromStr;

use anyhow::{Result, bail};
use kprism_flow::delta::Plan;
use kprism_flow::replay::Task;
use kprism_flow::window::Window;
use kprism_image::symbols::FunctionId;
use kprism_profile::Filter;
use kprism_profile::units::{duration, grouped, printable, syscall_name};
use kprism_profile::{Profile, Syscall};
use kprism_store::Run;

use crate::flow;
use crate::function_calls::{self, FunctionCall, FunctionCalls};
use crate::functions;
use crate::progress::Progress;

/// Which of the calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Which {
    /// The longest by wall clock; of several, the earliest.
    #[default]
    Slowest,
    /// The middle one by wall clock.
    Median,
    /// The shortest by wall clock; of several, the earliest.
    Fastest,
    /// By number, from 1, in the order in which they began.
    Nth(usize),
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "slowest" => Ok(Which::Slowest),
            "median" => Ok(Which::Median),
            "fastest" => Ok(Which::Fastest),
            _ => match text.parse() {
                Ok(n) if n > 0 => Ok(Which::Nth(n)),
                _ => Err("expected slowest, median, fastest, or a number from 1 on".to_owned()),
            },
        }
    }
}

impl Which {
    /// Takes one of `calls`, which are in the order in which they began; `times` gives a call's duration, if it is known, and its
    /// beginning, ns. A call without a known duration is taken by its number alone.
    fn of<C>(self, calls: &[C], times: impl Fn(&C) -> (Option<u64>, u64)) -> Option<&C> {
        let known = calls.iter().filter_map(|call| {
            let (wall_ns, start_ns) = times(call);
            Some((wall_ns?, start_ns, call))
        });
        match self {
            Which::Nth(n) => calls.get(n.checked_sub(1)?),
            Which::Slowest => {
                known.max_by_key(|&(wall, start, _)| (wall, Reverse(start))).map(|(.., call)| call)
            }
            Which::Fastest => known.min_by_key(|&(wall, start, _)| (wall, start)).map(|(.., call)| call),
            Which::Median => {
                let mut known: Vec<_> = known.collect();
                known.sort_by_key(|&(wall, start, _)| (wall, start));
                known.get(known.len() / 2).map(|&(.., call)| call)
            }
        }
    }
}

/// The callee: a system call or a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Callee {
    /// A system call, by its name as in its man page.
    Syscall(String),
    /// A function, as [`functions::choose`] takes it. A call of it inside another one, by the same task, is none of its own.
    Function(String),
}

/// A choice of one call. The default chooses none: the whole run.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// The system call or function.
    pub callee: Option<Callee>,
    /// One of its calls.
    pub which: Which,
}

/// One call of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneCall {
    /// The function, as the run's symbols number it.
    pub func: u32,
    /// The CPU on which it began. An idle task runs on no other, and its process id, 0, is that of all of them.
    pub cpu: u16,
    /// Its task and time.
    pub window: Window,
}

impl OneCall {
    /// Returns true if the call is of this task, on this CPU.
    pub fn is_by(&self, cpu: u16, task: &Task) -> bool {
        (task.pid, task.tgid) == (self.window.pid, self.window.tgid) && (task.pid != 0 || cpu == self.cpu)
    }
}

impl Call {
    /// One call of the system call, or else of the function, that is named; none if neither is.
    pub fn new(syscall: Option<String>, function: Option<String>, which: Which) -> Self {
        let callee = syscall.map(Callee::Syscall).or(function.map(Callee::Function));
        Call { callee, which }
    }

    /// The run's profile, reduced to that call if one is asked for.
    ///
    /// # Errors
    /// There is no such call, or the run cannot be read.
    pub fn narrow(
        &self,
        run: &Run,
        profile: Profile,
        filter: &Filter,
        progress: &Progress,
    ) -> Result<Profile> {
        let (loaded, window) = match &self.callee {
            None => return Ok(profile),
            // Tables have the times of system calls.
            Some(Callee::Syscall(name)) => {
                let window = of_syscall(self.which, name, &profile, filter, progress)?;
                (flow::load(run, progress)?, window)
            }
            Some(Callee::Function(name)) => {
                let loaded = flow::load(run, progress)?;
                let window = of_function_in(self.which, name, (&profile, &loaded), filter, progress)?;
                (loaded, window)
            }
        };
        let one = flow::profile(&loaded, Plan::nothing(), Some(window), progress);
        progress.clear();
        Ok(one)
    }

    /// The task and time of that call, if one is asked for.
    ///
    /// # Errors
    /// There is no such call.
    pub fn window(
        &self,
        (profile, loaded): (&Profile, &flow::Loaded),
        filter: &Filter,
        progress: &Progress,
    ) -> Result<Option<Window>> {
        match &self.callee {
            None => Ok(None),
            Some(Callee::Syscall(name)) => of_syscall(self.which, name, profile, filter, progress).map(Some),
            Some(Callee::Function(name)) => {
                of_function_in(self.which, name, (profile, loaded), filter, progress).map(Some)
            }
        }
    }
}

fn of_syscall(
    which: Which,
    name: &str,
    profile: &Profile,
    filter: &Filter,
    progress: &Progress,
) -> Result<Window> {
    let taken = filter.tasks(profile);
    let calls: Vec<&Syscall> = profile
        .syscalls
        .iter()
        .filter(|s| taken[s.task as usize])
        .filter(|s| syscall_name(&profile.funcs[s.func as usize].name) == name)
        .collect();
    if calls.is_empty() {
        bail!("no call of {name} in this run; `kprism report syscalls` lists those there are");
    }
    let count = calls.len();
    let Some(call) = which.of(&calls, |call| (Some(call.wall_ns), call.start_ns)) else {
        bail!("{name} was called {count} times, no more")
    };
    let task = &profile.tasks[call.task as usize];
    progress.say(&format!(
        "one {name} of {count}: {} [{}], CPU {}, from {} ns, {}",
        task.comm,
        task.pid,
        call.cpu,
        call.start_ns,
        duration(call.wall_ns)
    ));
    let to_ns = call.start_ns.saturating_add(call.wall_ns.max(1));
    Ok(Window { pid: task.pid, tgid: task.tgid, from_ns: call.start_ns, to_ns })
}

/// The window of a function's call, for counts that tell tasks by their ids alone. The filter takes tasks by their last names,
/// as tables do.
fn of_function_in(
    which: Which,
    spec: &str,
    (profile, loaded): (&Profile, &flow::Loaded),
    filter: &Filter,
    progress: &Progress,
) -> Result<Window> {
    let all = profile.tasks.iter().zip(filter.tasks(profile));
    let taken: HashSet<(u32, u32)> =
        all.filter(|(_, taken)| *taken).map(|(task, _)| (task.pid, task.tgid)).collect();
    let takes = |task: &Task| taken.contains(&(task.pid, task.tgid));
    let OneCall { window, cpu, .. } = of_function(which, spec, loaded, &takes, progress)?;
    if window.pid == 0 && profile.tasks.iter().filter(|task| task.pid == 0).count() > 1 {
        bail!(
            "this call of {spec} is by the idle task of CPU {cpu}, which this view cannot tell from those of other CPUs: \
             `kprism script calls --func {spec} --call …` and `kprism annotate {spec} --call …` can"
        );
    }
    Ok(window)
}

/// One call of the function that `spec` names, by the tasks that `takes` accepts when a call begins. Calls without a beginning
/// or an end are noted.
///
/// # Errors
/// There is no such function, there are several, or there is no such call.
pub fn of_function(
    which: Which,
    spec: &str,
    loaded: &flow::Loaded,
    takes: &dyn Fn(&Task) -> bool,
    progress: &Progress,
) -> Result<OneCall> {
    let chosen = functions::choose(spec, &loaded.symbols)?;
    let FunctionCalls { calls, without_beginning } = function_calls::find(loaded, &chosen, takes, progress);
    progress.clear();
    one_function(spec, &calls, loaded)?;
    let unseen = (without_beginning > 0).then(|| {
        format!("{} of which the beginning was not seen, without a number", grouped(without_beginning))
    });
    let unended = calls.iter().filter(|call| call.wall_ns().is_none()).count() as u64;
    let unended = (unended > 0)
        .then(|| format!("{} without a known end, to be chosen by number alone", grouped(unended)));
    let unknown: Vec<String> = unseen.into_iter().chain(unended).collect();
    let note = || format!("calls of {spec}: {}", unknown.join("; "));
    let count = calls.len();
    let Some(call) = which.of(&calls, |call| (call.wall_ns(), call.start_ns)) else {
        match (count, which) {
            (0, _) if unknown.is_empty() => {
                bail!(
                    "no call of {spec} in this run, or none by these tasks; `kprism report functions` lists those that ran"
                )
            }
            (_, Which::Nth(_)) if count > 0 => bail!("{spec} was called {count} times, no more"),
            _ => bail!("no call of {spec} has a known beginning and end ({})", note()),
        }
    };
    if !unknown.is_empty() {
        progress.note(&note());
    }
    if call.was_left {
        progress.note("this call left its stack meanwhile: what its thread ran then is counted too");
    }
    progress.say(&format!("one {spec} of {count}: {}", told(call)));
    let window = Window {
        pid: call.pid,
        tgid: call.tgid,
        from_ns: call.start_ns,
        to_ns: call.end_ns.max(call.start_ns.saturating_add(1)),
    };
    Ok(OneCall { func: call.func, cpu: call.cpu, window })
}

/// Refuses calls of several functions: their numbers would be those of no function.
fn one_function(spec: &str, calls: &[FunctionCall], loaded: &flow::Loaded) -> Result<()> {
    let named: BTreeSet<u32> = calls.iter().map(|call| call.func).collect();
    if named.len() < 2 {
        return Ok(());
    }
    let shown = |&func: &u32| {
        let function = loaded.symbols.function(FunctionId(func));
        format!("{}@{} ({:#x})", printable(&function.name), printable(&function.module), function.start)
    };
    let some: Vec<String> = named.iter().take(NAMED).map(shown).collect();
    let more = if named.len() > NAMED { ", …" } else { "" };
    bail!(
        "{spec}: {} functions of this name were called, and --call is about one: {}{more}; name it NAME@MODULE, or by its \
         address",
        named.len(),
        some.join(", ")
    )
}

/// Functions that an error names.
const NAMED: usize = 5;

/// A call's task, CPU, beginning and duration.
fn told(call: &FunctionCall) -> String {
    let FunctionCall { comm, pid, cpu, start_ns, .. } = call;
    let lasted = match (call.wall_ns(), call.ending.remark()) {
        (Some(ns), _) => duration(ns),
        (None, remark) => remark.unwrap_or_default().to_owned(),
    };
    format!("{} [{pid}], CPU {cpu}, from {start_ns} ns, {lasted}", printable(comm))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Durations, if they are known, of calls that began at 0, 1, 2 …
    fn chosen(which: Which, walls: &[Option<u64>]) -> Option<u64> {
        let calls: Vec<(Option<u64>, u64)> = walls.iter().copied().zip(0..).collect();
        which.of(&calls, |call| *call).map(|call| call.1)
    }

    #[test]
    fn of_equals_the_earliest_is_taken() {
        let walls = [3, 1, 9, 1, 9].map(Some);
        assert_eq!(chosen(Which::Slowest, &walls), Some(2));
        assert_eq!(chosen(Which::Fastest, &walls), Some(1));
        assert_eq!(chosen(Which::Median, &walls), Some(0));
        assert_eq!(chosen(Which::Nth(4), &walls), Some(3));
        assert_eq!(chosen(Which::Nth(6), &walls), None);
    }

    #[test]
    fn a_call_of_unknown_duration_is_taken_by_number_alone() {
        let walls = [None, Some(2), None, Some(5)];
        assert_eq!(chosen(Which::Slowest, &walls), Some(3));
        assert_eq!(chosen(Which::Fastest, &walls), Some(1));
        assert_eq!(chosen(Which::Nth(1), &walls), Some(0));
        assert_eq!(chosen(Which::Nth(3), &walls), Some(2));
        assert_eq!(chosen(Which::Slowest, &[None, None]), None);
    }
}
