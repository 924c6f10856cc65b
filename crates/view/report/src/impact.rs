// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a software tracer adds to a command's system calls (paper 1, section 3.5).
//!
//! What comes in: the profile of a command by itself, and that of the same command with a tracer switched on.
//! What goes out: an [`Impact`]: for each system call what one call cost in both, and the functions in which the
//! difference is; and for all that the command did, where it was done. Waiting is no part of it: instructions
//! and time are those of the command's own tasks on a CPU. Interrupts that came in the middle of a system call
//! are told apart, since they come by the clock and not by the call.
//!
//! Functions are the same if name and module are. What a system call did is everything from the instruction that
//! makes it to the one that returns from it: tracers of system calls sit at its entry and exit, outside its body.

mod page;
mod split;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use kprism_profile::Profile;

use kprism_profile::units;

pub use page::render;
pub use view::{Page, Tracer, to_json, to_text};

/// A recording of the command.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// What was recorded.
    pub profile: &'a Profile,
    /// The command's process id. What it starts has higher ones; a tracer's own tasks were there before.
    pub pid: u32,
}

/// A sum. Of functions around a system call that shares them with others, a share: so no integers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// How often.
    pub calls: f64,
    /// Instructions.
    pub insns: f64,
    /// On-CPU nanoseconds.
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

    /// The mean of so many.
    pub fn per(self, calls: f64) -> Cost {
        if calls == 0.0 { Cost::default() } else { self.times(1.0 / calls) }
    }

    /// How much more this is.
    pub fn minus(self, other: Cost) -> Cost {
        let Cost { calls, insns, ns } = other;
        Cost { calls: self.calls - calls, insns: self.insns - insns, ns: self.ns - ns }
    }
}

/// Something in both recordings: sums by itself and with the tracer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pair {
    /// By itself.
    pub bare: Cost,
    /// With the tracer.
    pub traced: Cost,
}

/// A function's part of a system call, without what it calls.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionImpact {
    /// Its name; untrusted.
    pub name: String,
    /// Its module.
    pub module: String,
    /// Sums over all calls of the system call.
    pub sums: Pair,
}

/// Differences of single calls. The middle one is hardly moved by the few calls that had to fetch memory in one
/// recording and not in the other; sums and means are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// The smallest.
    pub least: i64,
    /// The middle one, the lower of two.
    pub median: i64,
    /// The largest.
    pub most: i64,
}

/// A system call in both.
#[derive(Debug, Clone, PartialEq)]
pub struct SyscallImpact {
    /// As in its man page.
    pub name: String,
    /// Sums over all calls.
    pub sums: Pair,
    /// Instructions added to each single call, if the command made the same calls in the same order.
    pub spread: Option<Spread>,
    /// The functions that cost more or less with the tracer, most added first.
    pub functions: Vec<FunctionImpact>,
    /// The program makes this and other system calls at one and the same place: which of the functions around the
    /// bodies ran how often for which of them is shared out by their instructions, not known.
    pub shared: bool,
}

impl SyscallImpact {
    /// What is added to one call, on average.
    pub fn added(&self) -> Cost {
        let Pair { bare, traced } = self.sums;
        traced.per(traced.calls).minus(bare.per(bare.calls))
    }

    /// What a function adds to one call.
    pub fn added_by(&self, function: &FunctionImpact) -> Cost {
        let Pair { bare, traced } = self.sums;
        function.sums.traced.per(traced.calls).minus(function.sums.bare.per(bare.calls))
    }
}

/// Where the command's instructions ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The program.
    User,
    /// System calls, with the page faults in them.
    Syscalls,
    /// Page faults and other exceptions of the program.
    Exceptions,
    /// Interrupts.
    Interrupts,
    /// The kernel otherwise: a new task's way to its program.
    Otherwise,
}

impl Place {
    /// All of them, in order of display.
    pub const ALL: [Place; 5] =
        [Place::User, Place::Syscalls, Place::Exceptions, Place::Interrupts, Place::Otherwise];

    /// For people, and for programs.
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
    /// All that the command did, by where it was done. Calls are entries into it.
    pub places: BTreeMap<Place, Pair>,
}

impl Impact {
    /// Compares.
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
                // Time alone differs by the clock's steps, not by anything that the function did.
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

    /// All that the command did.
    pub fn total(&self) -> Pair {
        let mut sum = Pair::default();
        for pair in self.places.values() {
            sum.bare.add(pair.bare);
            sum.traced.add(pair.traced);
        }
        sum
    }

    /// All system calls as if they were one: what a mean call of this command gets.
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

/// Means of equal sums differ by less.
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

/// What was added to the calls of each system call; nothing if the calls are not the same.
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

/// A profile of nothing but one system call of the command, entry and exit with it, for any other view. Its only
/// task is named after the system call, its calls are the entries. Nothing if the command does not make it.
pub fn isolate(side: Side<'_>, syscall: &str) -> Option<Profile> {
    split::isolate(side, syscall)
}

/// The system call's name if `function` is the body of one.
fn body_of(function: &str) -> Option<String> {
    let name = units::syscall_name(function);
    (name != function).then_some(name)
}
