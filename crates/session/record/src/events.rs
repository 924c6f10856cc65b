// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracepoints of the guest's kernel, recorded beside its flow.
//!
//! In: the names of events. Out: `streams/events` of the run. The recorder runs in the guest before the command and after it,
//! outside the recorded span: what the flow shows of the tracer is the tracepoints themselves. The trace's clock is the TSC,
//! which in a guest at the exact pace is the clock of the flow; at another pace it is not, and is refused.

use anyhow::{Context, Result, bail, ensure};
use kprism_lab::{Job, Pace, Share, Span};
use kprism_tracefs::EVENTS;
use kprism_tracefs::beside::{Beside, RecordedEvents};

use crate::durations::{GUEST_RECORDER, GUEST_RUN};
use crate::guest::{Observe, Settings};
use kprism_store::Run;

/// Refuses what events cannot be recorded beside.
///
/// # Errors
/// Says why.
pub(crate) fn possible(settings: &Settings, beside: &Beside) -> Result<()> {
    for event in &beside.events {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_-:.*?[]!".contains(c);
        ensure!(
            !event.is_empty() && event.chars().all(fits),
            "--event {event:?}: expected SYSTEM:NAME with globs, such as sched:sched_switch or irq:*"
        );
    }
    if settings.guest.pace == Pace::Fast {
        bail!(
            "--event beside --fast: at the host's speed the guest's clock is not that of the flow, and an event could not be placed \
             in it; leave --fast out"
        );
    }
    ensure!(
        settings.observe != Observe::Nothing,
        "--event beside --unobserved: there is no flow to place events in"
    );
    ensure!(
        settings.job.span != Span::Boot,
        "--event beside --boot: events are switched on when the guest has booted; kprism lab boot traces a boot"
    );
    Ok(())
}

/// The job with the recorder around it.
pub(crate) fn around(job: &Job, beside: &Beside) -> Result<Job> {
    let mut job = job.clone();
    let settings = serde_json::to_string(beside).context("settings of events")?;
    job.shares.push(Share { host: kprism_lab::find_recorder()?, guest: GUEST_RECORDER.into() });
    // The names were checked: there is no quotation mark in them. After the warm-up turns, whose events are not asked for.
    job.begin.push(format!("{GUEST_RECORDER} events-begin {GUEST_RUN} '{settings}'"));
    job.after.insert(0, format!("{GUEST_RECORDER} events-end {GUEST_RUN}"));
    job.collect = Some(GUEST_RUN.into());
    Ok(job)
}

/// The counts of what was recorded; none if the guest did not come to its end.
pub(crate) fn recorded(run: &Run) -> Result<Option<RecordedEvents>> {
    let events = RecordedEvents::load(&run.dir().join(EVENTS))?;
    Ok(events.filter(|events| !events.cpus.is_empty()))
}
