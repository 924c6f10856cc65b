// SPDX-License-Identifier: MIT OR Apache-2.0
//! The impact of a software tracer on a command's system calls (paper 1, section 3.5).
//!
//! Input: the profile of a command alone, and that of the same command with a tracer switched on. Output: an
//! [`Impact`]: for each system call its cost in both, and the functions that make up the difference; and the cost of
//! the whole command by place. Waiting is excluded: instructions and time are those of the command's own tasks on a
//! CPU. Interrupts in the middle of a system call are counted separately, because they depend on the clock and not on
//! the call.
//!
//! Functions are the same if name and module are. A system call includes everything from the instruction that makes it
//! to the one that returns from it, because tracers of system calls run at its entry and exit, outside its body.

mod page;
mod split;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use kprism_profile::Profile;

use kprism_profile::units;

pub use page::{render, render_syscall};
pub use view::{Page, Tracer, to_json, to_text};

/// A recording of the command.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// The recorded profile.
    pub profile: &'a Profile,
    /// The command's process id. Its children have higher ones; a tracer's own tasks started before.
    pub pid: u32,
}

/// A sum. Functions around a system call that shares them with others count in proportion, so these are not integers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Number of calls.
    pub calls: f64,
    /// Number of instructions.
    pub insns: f64,
    /// On-CPU time, ns.
    pub ns: f64,
}

impl Cost {
    fn add(&mut self, other: Cost) {
        self.calls += other.calls;
        self.insns += other.insns;
        self.ns += other.ns;
    }

    fn times(self, factor: f64) -> Cost {
        Cost { calls: self.calls * factor, insns: self.insns * factor, ns: self.ns * factor }
    }

    /// The mean over this many calls.
    pub fn per(self, calls: f64) -> Cost {
        if calls == 0.0 { Cost::default() } else { self.times(1.0 / calls) }
    }

    /// The difference from another cost.
    pub fn minus(self, other: Cost) -> Cost {
        let Cost { calls, insns, ns } = other;
        Cost { calls: self.calls - calls, insns: self.insns - insns, ns: self.ns - ns }
    }
}

/// The cost of the same item in both recordings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pair {
    /// Without the tracer.
    pub bare: Cost,
    /// With the tracer.
    pub traced: Cost,
}

/// A function's part of a system call, without its callees.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionImpact {
    /// Its name; untrusted.
    pub name: String,
    /// Its module.
    pub module: String,
    /// Sums over all calls of the system call.
    pub sums: Pair,
}

/// Differences of single calls. A few calls that had to fetch memory in only one recording hardly change the median,
/// but do change sums and means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// The smallest difference.
    pub least: i64,
    /// The median, the lower of two.
    pub median: i64,
    /// The largest difference.
    pub most: i64,
}

/// A system call in both recordings.
#[derive(Debug, Clone, PartialEq)]
pub struct SyscallImpact {
    /// Its name in the man page.
    pub name: String,
    /// Sums over all calls.
    pub sums: Pair,
    /// Instructions added to each single call, if both recordings have the same calls in the same order.
    pub spread: Option<Spread>,
    /// The functions that cost more or less with the tracer, most added first.
    pub functions: Vec<FunctionImpact>,
    /// True if the program makes this and other system calls at the same place. The functions around the bodies are
    /// then attributed in proportion to instructions, because their exact share is unknown.
    pub shared: bool,
}

impl SyscallImpact {
    /// Mean cost added to one call.
    pub fn added(&self) -> Cost {
        let Pair { bare, traced } = self.sums;
        traced.per(traced.calls).minus(bare.per(bare.calls))
    }

    /// Mean cost that a function adds to one call.
    pub fn added_by(&self, function: &FunctionImpact) -> Cost {
        let Pair { bare, traced } = self.sums;
        function.sums.traced.per(traced.calls).minus(function.sums.bare.per(bare.calls))
    }
}

/// Places where the command's instructions ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The program.
    User,
    /// System calls, with the page faults in them.
    Syscalls,
    /// Page faults and other exceptions of the program.
    Exceptions,
    /// Interrupts of the command.
    Interrupts,
    /// Other kernel code: a new task's path to its program.
    Otherwise,
}

impl Place {
    /// All places, in order of display.
    pub const ALL: [Place; 5] =
        [Place::User, Place::Syscalls, Place::Exceptions, Place::Interrupts, Place::Otherwise];

    /// The name, for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Place::User => "user code",
            Place::Syscalls => "system calls",
            Place::Exceptions => "exceptions",
            Place::Interrupts => "interrupts",
            Place::Otherwise => "kernel otherwise",
        }
    }
}

/// A tracer's impact on a command.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Impact {
    /// System calls, those with the most instructions by themselves first.
    pub syscalls: Vec<SyscallImpact>,
    /// The cost of the whole command by place. Calls are entries to the place.
    pub places: BTreeMap<Place, Pair>,
}

impl Impact {
    /// Compares two recordings.
    pub fn new(bare: Side<'_>, traced: Side<'_>) -> Self {
        let (mut old, mut new) = (split::split(bare), split::split(traced));
        let spreads = spreads(&split::sequences(bare), &split::sequences(traced));
        let names: BTreeSet<String> = old.syscalls.keys().chain(new.syscalls.keys()).cloned().collect();
        let mut syscalls: Vec<SyscallImpact> = names
            .into_iter()
            .map(|name| {
                let [old, new] = [&mut old, &mut new].map(|s| s.syscalls.remove(&name).unwrap_or_default());
                let shared = old.shared || new.shared;
                let sums = Pair { bare: old.sum, traced: new.sum };
                let spread = spreads.as_ref().and_then(|s| s.get(&name).copied());
                let mut impact = SyscallImpact { name, sums, spread, functions: Vec::new(), shared };
                impact.functions = functions(old.functions, new.functions);
                let mut functions = std::mem::take(&mut impact.functions);
                let key = |f: &FunctionImpact| impact.added_by(f);
                // A difference in time alone comes from the clock's resolution, not from the function.
                functions.retain(|f| key(f).insns.abs() > ROUNDING || key(f).calls.abs() > ROUNDING);
                functions.sort_by(|a, b| key(b).insns.total_cmp(&key(a).insns));
                SyscallImpact { functions, ..impact }
            })
            .collect();
        syscalls.sort_by(|a, b| b.sums.bare.insns.total_cmp(&a.sums.bare.insns));
        let place = |p: &Place| Pair {
            bare: old.places.get(p).copied().unwrap_or_default(),
            traced: new.places.get(p).copied().unwrap_or_default(),
        };
        Impact { syscalls, places: Place::ALL.iter().map(|p| (*p, place(p))).collect() }
    }

    /// The cost of the whole command.
    pub fn total(&self) -> Pair {
        let mut sum = Pair::default();
        for pair in self.places.values() {
            sum.bare.add(pair.bare);
            sum.traced.add(pair.traced);
        }
        sum
    }

    /// The sum of all system calls, as if they were one: the effect on a mean call of this command.
    pub fn all_syscalls(&self) -> SyscallImpact {
        let mut sums = Pair::default();
        let (mut old, mut new) = (BTreeMap::new(), BTreeMap::new());
        for call in &self.syscalls {
            sums.bare.add(call.sums.bare);
            sums.traced.add(call.sums.traced);
            for f in &call.functions {
                let key = (f.name.clone(), f.module.clone());
                old.entry(key.clone()).or_insert_with(Cost::default).add(f.sums.bare);
                new.entry(key).or_insert_with(Cost::default).add(f.sums.traced);
            }
        }
        let mut all = SyscallImpact {
            name: "all system calls".into(),
            sums,
            spread: None,
            functions: Vec::new(),
            shared: false,
        };
        let mut functions = functions(old, new);
        functions.sort_by(|a, b| all.added_by(b).insns.total_cmp(&all.added_by(a).insns));
        all.functions = functions;
        all
    }

    /// Keeps the system calls of these names.
    pub fn retain(&mut self, names: &[String]) {
        self.syscalls.retain(|call| names.contains(&call.name));
    }
}

/// Rounding errors of means of equal sums are below this.
const ROUNDING: f64 = 1e-6;

type Functions = BTreeMap<(String, String), Cost>;

fn functions(mut old: Functions, mut new: Functions) -> Vec<FunctionImpact> {
    let names: BTreeSet<(String, String)> = old.keys().chain(new.keys()).cloned().collect();
    let both = |key: (String, String)| {
        let bare = old.remove(&key).unwrap_or_default();
        let traced = new.remove(&key).unwrap_or_default();
        FunctionImpact { name: key.0, module: key.1, sums: Pair { bare, traced } }
    };
    names.into_iter().map(both).collect()
}

/// Differences of the single calls by system call; `None` if the calls are not the same.
fn spreads(old: &[split::Sequence], new: &[split::Sequence]) -> Option<BTreeMap<String, Spread>> {
    let names = |tasks: &[split::Sequence]| -> Vec<Vec<String>> {
        tasks.iter().map(|calls| calls.iter().map(|(name, _)| name.clone()).collect()).collect()
    };
    if names(old) != names(new) {
        return None;
    }
    let mut added: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for ((name, old), (_, new)) in old.iter().flatten().zip(new.iter().flatten()) {
        let size = i64::try_from(new.abs_diff(*old)).unwrap_or(i64::MAX);
        added.entry(name.clone()).or_default().push(if new < old { -size } else { size });
    }
    let spread = |mut added: Vec<i64>| {
        added.sort_unstable();
        let (least, most) = (*added.first()?, *added.last()?);
        Some(Spread { least, median: added[(added.len() - 1) / 2], most })
    };
    Some(added.into_iter().filter_map(|(name, added)| Some((name, spread(added)?))).collect())
}

/// The profile of one system call of the command, with its entry and exit, for any other view. Its only task is named
/// after the system call; its calls are the entries. `None` if the command does not make it.
pub fn isolate(side: Side<'_>, syscall: &str) -> Option<Profile> {
    split::isolate(side, syscall)
}

/// The system call's name, if `function` is the body of one.
fn body_of(function: &str) -> Option<String> {
    let name = units::syscall_name(function);
    (name != function).then_some(name)
}
