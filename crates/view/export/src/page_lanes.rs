// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes of a page's timeline from what a run holds beside its flow: the kernel's events, records of probes, TLB misses, the
//! window of coverage, the kernel's log.
//!
//! In: a run with a flow, and the flow's range of time. Out: lanes. What cannot be placed on the flow's clock is a note.

use std::collections::BTreeMap;

use anyhow::Result;
use kprism_profile::Profile;
use kprism_report::lanes::{Arg, Group, Lane, Unit};
use kprism_session::Progress;
use kprism_session::moments::{self, Kind, Moment, Wanted};
use kprism_store::{Instrument, Run};

/// Interval by which TLB misses are counted, ns.
const TLB_NS: u64 = 10_000;

/// The lanes. Events before the flow and after it are left out, with a note.
///
/// # Errors
/// A file of the run is not what it should be.
pub(crate) fn beside(run: &Run, profile: &Profile, progress: &Progress) -> Result<Vec<Lane>> {
    // Without any of them the run need not be read again.
    let others = [Instrument::Tlb, Instrument::Probe, Instrument::Cover];
    if moments::events(run)?.is_none() && !others.iter().any(|&other| run.holds(other)) {
        return Ok(Vec::new());
    }
    let cpus = &profile.totals.per_cpu;
    let begin = cpus.iter().map(|cpu| cpu.first_ns).min().unwrap_or(0);
    let end = cpus.iter().map(|cpu| cpu.last_ns).max().unwrap_or(u64::MAX);
    let kinds = vec![Kind::Coverage, Kind::Event, Kind::Lost, Kind::Probe, Kind::Tlb, Kind::Console];
    let wanted = Wanted { kinds, tlb_ns: TLB_NS, ..Wanted::default() };
    let mut lanes: BTreeMap<(Kind, Option<u16>), Lane> = BTreeMap::new();
    let mut outside = BTreeMap::<Kind, u64>::new();
    let summary = moments::each(run, &wanted, progress, &mut |moment| {
        // Losses stand among the events.
        let kind = if moment.kind == Kind::Lost { Kind::Event } else { moment.kind };
        if moment.ns < begin || moment.ns > end {
            *outside.entry(kind).or_default() += 1;
            return true;
        }
        add(lanes.entry((kind, moment.cpu)).or_insert_with(|| lane(kind, moment.cpu)), moment);
        true
    })?;
    summary.notes.iter().for_each(|note| progress.note(note));
    for source in &summary.sources {
        if let Some(why) = &source.left_out {
            progress.note(&format!("{} are not on the timeline: {why}", source.name));
        }
    }
    for (kind, count) in outside {
        let (what, only) = match kind {
            Kind::Event => ("events of the kernel", "event"),
            Kind::Probe => ("records of probes", "probe"),
            Kind::Coverage => ("windows of coverage", "coverage"),
            // Misses are of the flow's own instructions, and the log is that of the boot, too.
            _ => continue,
        };
        progress.note(&format!(
            "{count} {what} before or after the flow are not on the timeline: kprism script all --only {only}"
        ));
    }
    Ok(lanes.into_values().collect())
}

fn lane(kind: Kind, cpu: Option<u16>) -> Lane {
    let named = |name: &str| cpu.map_or_else(|| name.to_owned(), |cpu| format!("{name} CPU {cpu}"));
    match kind {
        Kind::Tlb => Lane::new(
            Group::Other,
            &named("TLB misses"),
            ("interval with TLB misses", "intervals with TLB misses"),
            &[("misses", Unit::Count)],
        ),
        Kind::Coverage => Lane::new(Group::Other, "coverage", ("window", "windows"), &[]),
        Kind::Probe => Lane::new(
            Group::Other,
            &named("probes"),
            ("record", "records"),
            &[("task", Unit::Text), ("values", Unit::Text)],
        ),
        Kind::Console => Lane::new(Group::Other, "kernel log", ("line", "lines"), &[]),
        _ => Lane::new(
            Group::Other,
            &named("kernel events"),
            ("event", "events"),
            &[("task", Unit::Text), ("values", Unit::Text)],
        ),
    }
}

fn add(lane: &mut Lane, moment: &Moment) {
    let begin = moment.ns - moment.length_ns().unwrap_or(0).min(moment.ns);
    match moment.kind {
        Kind::Tlb => {
            let misses = moment.args.iter().find(|(name, _)| name == "misses");
            let misses = misses.and_then(|(_, count)| count.as_u64()).unwrap_or(1);
            lane.push(begin, moment.length_ns(), 0, &moment.name, &[Arg::Number(misses)]);
        }
        Kind::Console | Kind::Coverage => lane.push(begin, moment.length_ns(), 0, &moment.name, &[]),
        _ => {
            let task = moment.pid.map_or_else(String::new, |pid| format!("{} [{pid}]", moment.comm));
            let task = task.trim_start();
            let values: Vec<String> =
                moment.args.iter().map(|(name, value)| format!("{name}={}", text(value))).collect();
            lane.push(begin, None, 0, &moment.name, &[Arg::Text(task), Arg::Text(&values.join(" "))]);
        }
    }
}

/// A value without the quotation marks of JSON.
fn text(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
