// SPDX-License-Identifier: MIT OR Apache-2.0
//! Splits a profile by system call: the functions of each, including entry and exit.
//!
//! In a calling-context tree all system calls made at one place of the program share the frame of the kernel entry.
//! Mostly that is one system call, because libraries have a function for each. If there are several, the functions
//! around the bodies are attributed in proportion to the instructions of each system call there.

use std::collections::{BTreeMap, HashMap};

use kprism_profile::{FrameKind, NO_PARENT, Node, Profile, Syscall, Task};

use super::{Cost, Functions, Place, Side, body_of};
use kprism_profile::units;

/// One system call.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub sum: Cost,
    pub functions: Functions,
    pub shared: bool,
}

/// A split profile.
#[derive(Debug, Default)]
pub(super) struct Split {
    pub syscalls: BTreeMap<String, Call>,
    pub places: BTreeMap<Place, Cost>,
}

/// A task's system calls in order: names and instruction counts.
pub(super) type Sequence = Vec<(String, u64)>;

/// The location of a node.
#[derive(Debug, Clone, Copy)]
struct Within {
    place: Place,
    /// The frame of the system call's entry above it.
    entry: Option<u32>,
    /// The body that contains it.
    body: Option<u32>,
}

fn cost(node: &Node) -> Cost {
    Cost { calls: node.calls as f64, insns: node.insns as f64, ns: node.ns as f64 }
}

/// For each frame of a system call's entry: the bodies below it, and the share of each in the surrounding frames.
type Shares = HashMap<u32, Vec<(u32, f64)>>;

/// Splits the command's work by system call.
pub(super) fn split(side: Side<'_>) -> Split {
    let profile = side.profile;
    let name_of = |func: u32| units::syscall_name(&profile.funcs[func as usize].name);
    let mut split = Split::default();
    for (call, spent) in calls(side) {
        split.syscalls.entry(name_of(call.func)).or_default().sum.add(spent);
    }
    let within = places(side);
    let shares = shares(side, &within);
    for parts in shares.values().filter(|parts| parts.len() > 1) {
        for (body, _) in parts {
            split.syscalls.entry(name_of(*body)).or_default().shared = true;
        }
    }
    for (node, at) in profile.nodes.iter().zip(&within) {
        let Some(at) = at else { continue };
        split.places.entry(at.place).or_default().add(cost(node));
        let func = &profile.funcs.get(node.func as usize);
        for (body, share) in parts_of(at, &shares) {
            let (Some(func), call) = (func, split.syscalls.entry(name_of(body)).or_default()) else {
                continue;
            };
            call.functions
                .entry((func.name.clone(), func.module.clone()))
                .or_default()
                .add(cost(node).times(share));
        }
    }
    split
}

/// The profile of one system call of the command, from entry to exit and without interrupts: a single task whose calls
/// are the entries. `None` if the command does not make it.
pub(super) fn isolate(side: Side<'_>, syscall: &str) -> Option<Profile> {
    let profile = side.profile;
    let is_it = |func: u32| units::syscall_name(&profile.funcs[func as usize].name) == syscall;
    let mut entries: HashMap<u32, u64> = HashMap::new();
    for (call, _) in calls(side).filter(|(call, _)| is_it(call.func)) {
        *entries.entry(call.node).or_default() += 1;
    }
    if entries.is_empty() {
        return None;
    }
    let within = places(side);
    let shares = shares(side, &within);
    let root = Node { parent: NO_PARENT, func: 0, calls: 1, insns: 0, ns: 0, kind: FrameKind::Root };
    let mut nodes = vec![root];
    let mut place: Vec<u32> = vec![0; profile.nodes.len()];
    for (i, (node, at)) in profile.nodes.iter().zip(&within).enumerate() {
        let Some(at) = at else { continue };
        let share: f64 = parts_of(at, &shares).filter(|(body, _)| is_it(*body)).map(|(_, share)| share).sum();
        let entry = entries.get(&(i as u32));
        if share == 0.0 && entry.is_none() {
            continue;
        }
        let part = |n: u64| (n as f64 * share).round() as u64;
        // The frame of the entry becomes a child of the task, whatever the program's stack was.
        let parent = if entry.is_some() { 0 } else { place[node.parent as usize] };
        place[i] = nodes.len() as u32;
        let calls = entry.copied().unwrap_or(part(node.calls));
        nodes.push(Node { parent, calls, insns: part(node.insns), ns: part(node.ns), ..node.clone() });
    }
    let task = Task { comm: syscall.to_owned(), ..Task::default() };
    Some(Profile { funcs: profile.funcs.clone(), tasks: vec![task], nodes, ..Profile::default() })
}

/// The bodies to which a frame belongs, and its share in each.
fn parts_of<'a>(at: &Within, shares: &'a Shares) -> impl Iterator<Item = (u32, f64)> + 'a {
    let body = at.body;
    let parts = at.entry.and_then(|entry| shares.get(&entry)).into_iter().flatten();
    // A body that never returned, such as that of `exit_group`, has no share.
    parts
        .filter(move |(b, _)| body.is_none_or(|body| body == *b))
        .map(move |(b, share)| (*b, if body.is_some() { 1.0 } else { *share }))
}

fn shares(side: Side<'_>, within: &[Option<Within>]) -> Shares {
    // The records of the system calls, by the frame of their entry and their body.
    let mut known: BTreeMap<u32, BTreeMap<u32, f64>> = BTreeMap::new();
    for (call, spent) in calls(side) {
        *known.entry(call.node).or_default().entry(call.func).or_default() += spent.insns;
    }
    let mut inside: HashMap<(u32, u32), f64> = HashMap::new();
    for (node, at) in side.profile.nodes.iter().zip(within) {
        if let Some(Within { entry: Some(entry), body: Some(body), .. }) = at {
            *inside.entry((*entry, *body)).or_default() += node.insns as f64;
        }
    }
    let around = |entry: u32, body: u32, all: f64| {
        (all - inside.get(&(entry, body)).copied().unwrap_or_default()).max(0.0)
    };
    let parts = |(entry, bodies): (u32, BTreeMap<u32, f64>)| {
        let mut parts: Vec<(u32, f64)> =
            bodies.into_iter().map(|(body, all)| (body, around(entry, body, all))).collect();
        let whole: f64 = parts.iter().map(|(_, part)| part).sum();
        match &mut parts[..] {
            [(_, part)] => *part = 1.0,
            parts => parts.iter_mut().for_each(|(_, part)| *part /= whole.max(1.0)),
        }
        (entry, parts)
    };
    known.into_iter().map(parts).collect()
}

/// The command's system calls with the cost of each, without interrupts.
fn calls<'a>(side: Side<'a>) -> impl Iterator<Item = (&'a Syscall, Cost)> + 'a {
    let profile = side.profile;
    let ours = move |task: u32| profile.tasks[task as usize].tgid >= side.pid;
    profile.syscalls.iter().filter(move |call| ours(call.task)).map(|call| {
        let aside = call.parts.interrupts;
        let insns = call.insns.saturating_sub(aside.insns) as f64;
        (call, Cost { calls: 1.0, insns, ns: call.on_cpu_ns.saturating_sub(aside.ns) as f64 })
    })
}

/// The system calls of each of the command's tasks in order; tasks are in order of their ids.
pub(super) fn sequences(side: Side<'_>) -> Vec<Sequence> {
    let profile = side.profile;
    let mut tasks: BTreeMap<u32, Vec<(u64, String, u64)>> = BTreeMap::new();
    for (call, spent) in calls(side) {
        let name = units::syscall_name(&profile.funcs[call.func as usize].name);
        let pid = profile.tasks[call.task as usize].pid;
        tasks.entry(pid).or_default().push((call.start_ns, name, spent.insns as u64));
    }
    let sorted = |mut calls: Vec<(u64, String, u64)>| {
        calls.sort_by_key(|call| call.0);
        calls.into_iter().map(|(_, name, insns)| (name, insns)).collect()
    };
    tasks.into_values().map(sorted).collect()
}

/// The location of each node; `None` for those of other tasks.
fn places(side: Side<'_>) -> Vec<Option<Within>> {
    let profile = side.profile;
    let task_of = profile.task_of_nodes();
    let mut within: Vec<Option<Within>> = Vec::with_capacity(profile.nodes.len());
    for (i, node) in profile.nodes.iter().enumerate() {
        let ours = task_of[i].is_some_and(|t| profile.tasks[t as usize].tgid >= side.pid);
        if !ours {
            within.push(None);
            continue;
        }
        let above = match node.parent {
            NO_PARENT => Within { place: Place::User, entry: None, body: None },
            parent => match within[parent as usize] {
                Some(above) => above,
                None => Within { place: Place::User, entry: None, body: None },
            },
        };
        let func = profile.funcs.get(node.func as usize);
        let kernel = node.parent != NO_PARENT && func.is_some_and(|f| f.kernel);
        let outside = |place| Within { place, entry: None, body: None };
        within.push(Some(match node.kind {
            _ if !kernel => outside(Place::User),
            FrameKind::Syscall => Within { place: Place::Syscalls, entry: Some(i as u32), body: None },
            FrameKind::Interrupt => outside(Place::Interrupts),
            FrameKind::Exception if above.place == Place::User => outside(Place::Exceptions),
            _ if above.place == Place::User => outside(Place::Otherwise),
            _ => {
                let begins = above.entry.is_some()
                    && above.body.is_none()
                    && func.is_some_and(|f| body_of(&f.name).is_some());
                Within { body: if begins { Some(node.func) } else { above.body }, ..above }
            }
        }));
    }
    within
}
