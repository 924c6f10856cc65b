// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joins events and log. Both list the same initcalls, in the same order within each task. The events have the times,
//! the log has the names.

use std::collections::BTreeMap;

use crate::events::{BY_NAME, Called, Read, Started};
use crate::log::Call;
use crate::{Boot, Initcall, LongCall};

/// Level of initcalls in modules.
const MODULE: &str = "module";

/// Builds a boot. `name` gives the function and module at an address now, which is right for code that is still there.
pub fn join(
    read: &Read,
    log: &[Call],
    tasks: Vec<(u32, String)>,
    name: &dyn Fn(u64) -> Option<(String, Option<String>)>,
) -> Boot {
    let mut boot = Boot { lost: read.lost, orphans: read.orphans, tasks, ..Boot::default() };
    let matched = pair(&read.initcalls, log, name);
    for (started, call) in read.initcalls.iter().zip(&matched) {
        boot.unnamed += usize::from(call.is_none());
        boot.initcalls.push(of_events(started, call.map(|at| &log[at]), name, read.last_ns));
    }
    let mut told = vec![false; log.len()];
    matched.iter().flatten().for_each(|&at| told[at] = true);
    let ahead = ahead(&read.initcalls, log, &matched);
    let rest: Vec<Initcall> =
        log.iter().zip(told).filter(|(_, told)| !told).map(|(call, _)| of_log(call, ahead)).collect();
    boot.coarse = rest.len();
    boot.initcalls.extend(rest);
    boot.initcalls.sort_by_key(|call| call.start_ns);
    boot.calls = read.calls.iter().map(|called| long_call(called, &boot.initcalls, name)).collect();
    boot.calls.sort_by_key(|call| (call.start_ns, std::cmp::Reverse(call.ns)));
    boot
}

/// Offset of the log's clock from the trace's, ns: the median, because single log lines are late.
fn ahead(started: &[Started], log: &[Call], matched: &[Option<usize>]) -> i128 {
    let pairs = started.iter().zip(matched).filter_map(|(started, at)| Some((started, &log[(*at)?])));
    let mut ahead: Vec<i128> =
        pairs.map(|(started, call)| i128::from(call.start_ns) - i128::from(started.start_ns)).collect();
    ahead.sort_unstable();
    ahead.get(ahead.len() / 2).copied().unwrap_or(0)
}

fn of_log(call: &Call, ahead: i128) -> Initcall {
    let level = if call.module.is_some() { MODULE } else { "" };
    let (ns, result) = call.end.map_or((0, None), |(ns, result)| (ns, Some(result)));
    Initcall {
        name: call.name.clone(),
        module: call.module.clone(),
        level: level.to_owned(),
        pid: call.pid,
        start_ns: u64::try_from(i128::from(call.start_ns) - ahead).unwrap_or(0),
        ns,
        result,
        address: 0,
    }
}

fn of_events(
    started: &Started,
    call: Option<&Call>,
    name: &dyn Fn(u64) -> Option<(String, Option<String>)>,
    last_ns: u64,
) -> Initcall {
    let (function, module) = match call {
        Some(call) => (call.name.clone(), call.module.clone()),
        None => now(started, name).unwrap_or_else(|| (format!("{:#x}", started.address), None)),
    };
    let level = match (&module, &started.level) {
        (None, level) if started.pid <= 1 => level.clone().unwrap_or_default(),
        _ => MODULE.to_owned(),
    };
    let (ns, result) = match started.end {
        Some((ns, result)) => (ns, Some(result)),
        None => (last_ns.saturating_sub(started.start_ns), None),
    };
    let (pid, start_ns, address) = (started.pid, started.start_ns, started.address);
    Initcall { name: function, module, level, pid, start_ns, ns, result, address }
}

/// The function at an initcall's address now, or at the time when a text was made of the trace.
fn now(
    started: &Started,
    name: &dyn Fn(u64) -> Option<(String, Option<String>)>,
) -> Option<(String, Option<String>)> {
    if started.address == BY_NAME { started.name.clone() } else { name(started.address) }
}

/// Finds for each initcall of the events its line in the log. Both are in order of time. Either may lack some; a log
/// that was too small lacks its beginning. So within each task the two lists are aligned: initcalls with the same name
/// by address are anchors, and entries between two anchors match if there are equally many.
fn pair(
    started: &[Started],
    log: &[Call],
    name: &dyn Fn(u64) -> Option<(String, Option<String>)>,
) -> Vec<Option<usize>> {
    let mut pairs = vec![None; started.len()];
    let mut by_task: BTreeMap<u32, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (at, started) in started.iter().enumerate() {
        // The log also gives 0 before the first task runs.
        by_task.entry(started.pid).or_default().0.push(at);
    }
    for (at, call) in log.iter().enumerate() {
        by_task.entry(call.pid).or_default().1.push(at);
    }
    for (events, calls) in by_task.values() {
        let names: Vec<Option<String>> =
            events.iter().map(|&at| now(&started[at], name).map(|(name, _)| name)).collect();
        let mut position: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, &call) in calls.iter().enumerate() {
            position.entry(&log[call].name).or_default().push(at);
        }
        // Pairs of indices with the same name, increasing in both lists.
        let mut fixed: Vec<(usize, usize)> = Vec::new();
        let mut next = 0;
        for (at, name) in names.iter().enumerate() {
            let places = name.as_deref().and_then(|name| position.get(name));
            if let Some(&place) = places.and_then(|places| places.iter().find(|&&place| place >= next)) {
                fixed.push((at, place));
                next = place + 1;
            }
        }
        fixed.push((events.len(), calls.len()));
        let (mut event, mut call) = (0, 0);
        for (until_event, until_call) in fixed {
            let (gap, other) = (until_event - event, until_call.saturating_sub(call));
            if gap == other {
                for step in 0..gap {
                    pairs[events[event + step]] = Some(calls[call + step]);
                }
            }
            if until_event < events.len() {
                pairs[events[until_event]] = Some(calls[until_call]);
            }
            (event, call) = (until_event + 1, until_call + 1);
        }
    }
    pairs
}

/// Names a long call. If an initcall had its address at that time, it is that initcall, whatever function is there now.
fn long_call(
    called: &Called,
    initcalls: &[Initcall],
    name: &dyn Fn(u64) -> Option<(String, Option<String>)>,
) -> LongCall {
    let from = initcalls.partition_point(|call| call.start_ns <= called.start_ns);
    // The event comes just before the call, so it is this task's newest one.
    let initcall = initcalls[..from].iter().rev().take(8).find(|call| call.pid == called.pid);
    let same = initcall.filter(|call| call.address != 0 && call.address.abs_diff(called.address) <= 16);
    let name = match (&called.name, same) {
        (Some(name), _) => name.clone(),
        (None, Some(call)) => call.name.clone(),
        (None, None) => {
            name(called.address).map_or_else(|| format!("{:#x}", called.address), |(name, _)| name)
        }
    };
    LongCall { name, pid: called.pid, depth: called.depth, start_ns: called.start_ns, ns: called.ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(address: u64, pid: u32, start_ns: u64) -> Started {
        Started { address, pid, start_ns, level: Some("device".into()), end: Some((10, 0)), name: None }
    }

    fn call(name: &str, module: Option<&str>, pid: u32) -> Call {
        Call { name: name.into(), module: module.map(str::to_owned), pid, start_ns: 0, end: None }
    }

    /// The name found now is wrong for address 3, and address 4 is unknown.
    fn now(address: u64) -> Option<(String, Option<String>)> {
        let (name, module) = match address {
            1 => ("first_init", None),
            2 => ("second_init", None),
            3 => ("virtblk_add_req", Some("virtio_blk")),
            _ => return None,
        };
        Some((name.to_owned(), module.map(str::to_owned)))
    }

    #[test]
    fn names_come_from_the_log() {
        let read = Read {
            initcalls: vec![started(1, 1, 5), started(2, 1, 20), started(3, 132, 40), started(4, 133, 60)],
            calls: vec![Called { address: 3, pid: 132, depth: 2, start_ns: 41, ns: 8, ..Called::default() }],
            last_ns: 100,
            ..Read::default()
        };
        let log = [
            call("first_init", None, 1),
            call("second_init", None, 1),
            call("ext4_init_fs", Some("ext4"), 132),
            call("virtio_blk_init", Some("virtio_blk"), 133),
        ];
        let boot = join(&read, &log, Vec::new(), &now);
        let found: Vec<_> =
            boot.initcalls.iter().map(|c| (c.name.as_str(), c.module.as_deref(), c.level.as_str())).collect();
        let expected = [
            ("first_init", None, "device"),
            ("second_init", None, "device"),
            ("ext4_init_fs", Some("ext4"), "module"),
            ("virtio_blk_init", Some("virtio_blk"), "module"),
        ];
        assert_eq!((&found[..], boot.unnamed), (&expected[..], 0));
        assert_eq!(boot.calls[0].name, "ext4_init_fs");
    }

    #[test]
    fn a_log_without_its_beginning_names_the_rest() {
        let read = Read {
            initcalls: vec![started(9, 1, 1), started(1, 1, 5), started(4, 1, 7), started(2, 1, 20)],
            ..Read::default()
        };
        let log = [call("first_init", None, 1), call("gone_init", None, 1), call("second_init", None, 1)];
        let boot = join(&read, &log, Vec::new(), &now);
        let names: Vec<_> = boot.initcalls.iter().map(|c| c.name.as_str()).collect();
        assert_eq!((&names[..], boot.unnamed), (&["0x9", "first_init", "gone_init", "second_init"][..], 1));
    }

    /// As if the tracer began after the first initcall.
    #[test]
    fn what_only_the_log_knows_is_put_in_its_time() {
        let read = Read { initcalls: vec![started(1, 1, 1000), started(2, 1, 2000)], ..Read::default() };
        let mut log =
            [call("early_init", None, 1), call("first_init", None, 1), call("second_init", None, 1)];
        for (call, ns) in log.iter_mut().zip([650, 1150, 2100]) {
            (call.start_ns, call.end) = (ns, Some((40, 0)));
        }
        let boot = join(&read, &log, Vec::new(), &now);
        let found: Vec<_> = boot.initcalls.iter().map(|c| (c.name.as_str(), c.start_ns, c.ns)).collect();
        assert_eq!(found, [("early_init", 500, 40), ("first_init", 1000, 10), ("second_init", 2000, 10)]);
        assert_eq!((boot.coarse, boot.unnamed), (1, 0));
    }

    #[test]
    fn without_events_the_log_alone_will_do() {
        let mut log = [call("slow_init", None, 1)];
        log[0].end = Some((4_000_000, 0));
        let boot = join(&Read::default(), &log, Vec::new(), &now);
        assert!(boot.coarse == 1 && boot.initcalls[0].ns == 4_000_000);
    }
}
