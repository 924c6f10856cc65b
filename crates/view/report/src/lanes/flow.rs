// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes of a run with a flow: tasks on each CPU, system calls and calls of each task, interrupts, intervals with
//! interrupts off, marks, decode errors, events of packets.
//!
//! In: the profile, and the [`Sources`] beside it. Out: lanes. Tasks beyond [`TASKS`] share one lane.

use std::cmp::Reverse;
use std::collections::HashMap;

use kprism_profile::{FrameKind, Profile, Slice, units};
use serde::Deserialize;

use super::{Arg, Group, Lane, Unit};
use crate::perfetto::{Moment, Switch};

/// Most tasks with lanes of their own: those with the most items.
const TASKS: usize = 96;

/// Events beside the profile.
#[derive(Debug, Default)]
pub struct Sources {
    /// Context switches.
    pub switches: Vec<Switch>,
    /// Marks: time in ns, CPU and name.
    pub marks: Vec<(u64, u32, String)>,
    /// Events of packets.
    pub moments: Vec<Moment>,
    /// Lanes of other instruments.
    pub others: Vec<Lane>,
}

/// Reads the marks of a run's `sideband.jsonl`. Incomplete lines and those of another kind are skipped.
pub fn read_marks(sideband: &[u8]) -> Vec<(u64, u32, String)> {
    #[derive(Deserialize)]
    struct Mark {
        k: String,
        t: u64,
        #[serde(default)]
        cpu: u32,
        what: String,
    }
    let marks = sideband.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    marks.filter(|mark: &Mark| mark.k == "mark").map(|mark| (mark.t, mark.cpu, mark.what)).collect()
}

/// Makes the lanes.
pub fn of_flow(profile: &Profile, sources: Sources) -> Vec<Lane> {
    let Sources { switches, marks, moments, others } = sources;
    let mut lanes = Vec::new();
    if !marks.is_empty() {
        let mut lane = Lane::new(Group::Run, "marks", ("mark", "marks"), &[("CPU", Unit::Count)]);
        for (ns, cpu, name) in &marks {
            lane.push(*ns, None, 0, name, &[Arg::Number((*cpu).into())]);
        }
        lanes.push(lane);
    }
    lanes.extend(on_cpus(profile, &switches));
    lanes.extend(interrupts(profile));
    lanes.extend(of_tasks(profile));
    lanes.extend(intervals(profile));
    lanes.extend(errors(profile));
    lanes.extend(packets(&moments));
    lanes.extend(others);
    lanes.retain(|lane| !lane.items.is_empty());
    for lane in &mut lanes {
        sort(lane);
    }
    lanes
}

/// Items in order of time, callers before what they call; arguments move along.
fn sort(lane: &mut Lane) {
    let width = lane.args.len();
    let mut order: Vec<usize> = (0..lane.items.len()).collect();
    order.sort_by_key(|&i| {
        let item = &lane.items[i];
        (item.start_ns, item.depth, Reverse(item.end_ns()))
    });
    let mut values = Vec::with_capacity(lane.values.len());
    for &i in &order {
        values.extend_from_slice(&lane.values[i * width..(i + 1) * width]);
    }
    lane.values = values;
    lane.items = order.iter().map(|&i| lane.items[i]).collect();
}

fn named(comm: &str, pid: u32) -> String {
    if pid == 0 { "idle".into() } else { format!("{comm} [{pid}]") }
}

/// The tasks that ran on each CPU, from one switch to the next.
fn on_cpus(profile: &Profile, switches: &[Switch]) -> Vec<Lane> {
    let mut by_cpu: Vec<Vec<&Switch>> = vec![Vec::new(); profile.totals.per_cpu.len()];
    for switch in switches {
        // A number in a file is no reason to make lanes.
        if let Some(own) = by_cpu.get_mut(switch.cpu as usize) {
            own.push(switch);
        }
    }
    let lane = |(cpu, mut own): (usize, Vec<&Switch>)| {
        own.sort_by_key(|switch| switch.ns);
        let name = format!("CPU {cpu}");
        let mut lane = Lane::new(Group::Cpu, &name, ("time slice", "time slices"), &[]);
        let totals = &profile.totals.per_cpu[cpu];
        let mut from = totals.first_ns;
        for (i, switch) in own.iter().enumerate() {
            if switch.ns > from && (i > 0 || from > 0) {
                let name = named(&switch.prev_comm, switch.prev_pid);
                lane.push(from, Some(switch.ns - from), 0, &name, &[]);
            }
            from = switch.ns.max(from);
        }
        if let Some(last) = own.last().filter(|_| totals.last_ns > from) {
            lane.push(from, Some(totals.last_ns - from), 0, &named(&last.comm, last.pid), &[]);
        }
        lane
    };
    by_cpu.into_iter().enumerate().map(lane).collect()
}

const CALL_ARGS: [(&str, Unit); 4] =
    [("instructions", Unit::Count), ("CPU", Unit::Count), ("module", Unit::Text), ("end", Unit::Text)];

/// The arguments of calls: the last one only where the profile has calls that did not end, whose length is not their duration.
fn call_args(profile: &Profile) -> &'static [(&'static str, Unit)] {
    let all = &CALL_ARGS;
    match profile.slices.iter().any(|slice| slice.unended().is_some()) {
        true => all,
        false => &all[..3],
    }
}

fn push_slice(lane: &mut Lane, profile: &Profile, slice: &Slice, depth: u16) {
    let func = &profile.funcs[slice.func as usize];
    let name = match slice.kind {
        FrameKind::Syscall => units::syscall_name(&func.name),
        _ => func.name.clone(),
    };
    let end = Arg::Text(slice.unended().unwrap_or("seen"));
    let args = [Arg::Number(slice.insns), Arg::Number(slice.cpu.into()), Arg::Text(&func.module), end];
    lane.push(slice.start_ns, Some(slice.end_ns.saturating_sub(slice.start_ns)), depth, &name, &args);
}

fn interrupts(profile: &Profile) -> Vec<Lane> {
    let args = call_args(profile);
    let mut lanes: Vec<Lane> = (0..profile.totals.per_cpu.len())
        .map(|cpu| {
            let name = format!("CPU {cpu} interrupts");
            Lane::new(Group::Cpu, &name, ("interrupt", "interrupts"), args)
        })
        .collect();
    for slice in profile.slices.iter().filter(|slice| slice.kind == FrameKind::Interrupt) {
        if let Some(lane) = lanes.get_mut(usize::from(slice.cpu)) {
            push_slice(lane, profile, slice, 0);
        }
    }
    lanes
}

/// For each task its system calls, and below them its longest calls, nested.
fn of_tasks(profile: &Profile) -> Vec<Lane> {
    const ARGS: [(&str, Unit); 3] =
        [("on a CPU", Unit::Ns), ("instructions", Unit::Count), ("CPU", Unit::Count)];
    let mut weight = vec![0_u64; profile.tasks.len()];
    for task in profile.slices.iter().map(|s| s.task).chain(profile.syscalls.iter().map(|s| s.task)) {
        weight[task as usize] += 1;
    }
    let mut tasks: Vec<u32> = (0..).zip(&weight).filter(|(_, n)| **n > 0).map(|(task, _)| task).collect();
    tasks.sort_by_key(|&task| (Reverse(weight[task as usize]), task));
    let others = tasks.len().saturating_sub(TASKS);
    tasks.truncate(TASKS);
    // On the page in order of their first appearance, which is that of the story.
    let mut first: HashMap<u32, u64> = HashMap::new();
    for (task, ns) in profile
        .syscalls
        .iter()
        .map(|call| (call.task, call.start_ns))
        .chain(profile.slices.iter().map(|slice| (slice.task, slice.start_ns)))
    {
        let known = first.entry(task).or_insert(ns);
        *known = ns.min(*known);
    }
    tasks.sort_by_key(|task| (first.get(task).copied().unwrap_or(0), *task));

    let mut at: HashMap<u32, usize> = HashMap::new();
    let mut lanes = Vec::new();
    let call_args = call_args(profile);
    for &task in &tasks {
        let own = &profile.tasks[task as usize];
        let name = named(&own.comm, own.pid);
        at.insert(task, lanes.len());
        lanes.push(Lane::new(Group::Task, &name, ("system call", "system calls"), &ARGS));
        lanes.push(Lane::new(Group::Calls, &name, ("call", "calls"), call_args));
    }
    let rest = lanes.len();
    lanes.push(Lane::new(
        Group::Task,
        &format!("{others} other tasks"),
        ("system call", "system calls"),
        &ARGS,
    ));
    for call in &profile.syscalls {
        let name = units::syscall_name(&profile.funcs[call.func as usize].name);
        let args = [Arg::Number(call.on_cpu_ns), Arg::Number(call.insns), Arg::Number(call.cpu.into())];
        let lane = at.get(&call.task).copied().unwrap_or(rest);
        lanes[lane].push(call.start_ns, Some(call.wall_ns), 0, &name, &args);
    }
    let mut least: HashMap<u32, u16> = HashMap::new();
    let is_call = |slice: &&Slice| slice.kind != FrameKind::Interrupt;
    for slice in profile.slices.iter().filter(is_call) {
        let depth = least.entry(slice.task).or_insert(slice.depth);
        *depth = (*depth).min(slice.depth);
    }
    let mut apart = 0_u64;
    for slice in profile.slices.iter().filter(is_call) {
        match at.get(&slice.task) {
            Some(&lane) => push_slice(&mut lanes[lane + 1], profile, slice, slice.depth - least[&slice.task]),
            None => apart += 1,
        }
    }
    if apart > 0 {
        lanes[rest].note = format!("{} calls of these tasks are not drawn", units::grouped(apart));
    }
    lanes
}

/// Intervals between markers. A run keeps the longest of each kind.
fn intervals(profile: &Profile) -> Vec<Lane> {
    let args = [("task", Unit::Text), ("instructions", Unit::Count), ("CPU", Unit::Count)];
    let lane = |delta: &kprism_profile::Delta| {
        let name = format!("interval {}", delta.name);
        let mut lane = Lane::new(Group::Other, &name, ("interval", "intervals"), &args);
        for interval in &delta.longest {
            let task = profile.tasks.get(interval.task as usize);
            let task = task.map_or(String::new(), |task| named(&task.comm, task.pid));
            let args = [Arg::Text(&task), Arg::Number(interval.insns), Arg::Number(interval.cpu.into())];
            lane.push(interval.start_ns, Some(interval.ns), 0, &delta.name, &args);
        }
        let kept = lane.items.len() as u64;
        if kept < delta.ns.count {
            lane.note = format!("the {} longest of {}", units::grouped(kept), units::grouped(delta.ns.count));
        }
        lane
    };
    profile.deltas.iter().map(lane).collect()
}

fn errors(profile: &Profile) -> Option<Lane> {
    let args = [("CPU", Unit::Count), ("byte of the stream", Unit::Count)];
    let mut lane = Lane::new(Group::Other, "decode errors", ("decode error", "decode errors"), &args);
    for error in &profile.errors {
        lane.push(
            error.ns,
            None,
            0,
            &error.kind,
            &[Arg::Number(error.cpu.into()), Arg::Number(error.offset)],
        );
    }
    Some(lane)
}

fn packets(moments: &[Moment]) -> Option<Lane> {
    let args = [("says", Unit::Text), ("CPU", Unit::Count), ("thread", Unit::Count)];
    let mut lane = Lane::new(Group::Other, "events of packets", ("event", "events"), &args);
    for moment in moments {
        let args = [Arg::Text(&moment.text), Arg::Number(moment.cpu.into()), Arg::Number(moment.pid.into())];
        lane.push(moment.ns, None, 0, moment.kind, &args);
    }
    Some(lane)
}

#[cfg(test)]
mod tests {
    use kprism_profile::{Ending, Func, Task};

    use super::*;

    #[test]
    fn a_call_that_did_not_end_has_a_reason_on_the_page() {
        let mut profile = Profile {
            funcs: vec![Func { name: "f".to_owned(), ..Func::default() }],
            tasks: vec![Task::default()],
            slices: vec![Slice { end_ns: 9, ending: Some(Ending::Seen), ..Slice::default() }],
            ..Profile::default()
        };
        let calls = |profile: &Profile| {
            let lanes = of_flow(profile, Sources::default());
            lanes.into_iter().find(|lane| lane.group == Group::Calls).unwrap()
        };
        assert_eq!(calls(&profile).args.len(), 3);
        profile.slices[0].ending = Some(Ending::Left);
        let lane = calls(&profile);
        assert_eq!(lane.args.last(), Some(&("end", Unit::Text)));
        assert_eq!(lane.texts[*lane.values.last().unwrap() as usize], "it left its stack");
    }
}
