// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events of a trace that holds no calls of functions.

use anyhow::Result;
use kprism_durations::events::{Seen, Tally};
use kprism_durations::ftrace::Collector;
use kprism_ftrace::Event;
use kprism_ftrace::show::Describe;
use kprism_profile::{Filter, Profile, Task};
use kprism_store::Run;

use super::{Consumer, again};
use crate::progress::Progress;

/// Events by name and task.
#[derive(Debug, Clone, Default)]
pub struct Events {
    /// Number of events of all tasks.
    pub total: u64,
    /// Those of the tasks that were chosen, most frequent first.
    pub rows: Vec<Seen>,
}

/// Reads the trace again and counts its events. `filter` chooses tasks.
///
/// # Errors
/// The trace cannot be read.
pub fn events(run: &Run, filter: &Filter, progress: &Progress) -> Result<Events> {
    progress.step("reading the events");
    let mut tally = Tally::default();
    let mut visit = |collector: &mut Collector<'_>, event: &Event<'_>, describe: Describe<'_>| {
        tally.add(collector, event, describe);
        true
    };
    again(run, &mut Consumer::Events(&mut visit), progress)?;
    let mut rows = tally.finish();
    let total = rows.iter().map(|of| of.count).sum();
    let task = |of: &Seen| Task { pid: of.pid, tgid: of.pid, comm: of.comm.clone(), root: 0 };
    let profile = Profile { tasks: rows.iter().map(task).collect(), ..Profile::default() };
    let mut taken = filter.tasks(&profile).into_iter();
    rows.retain(|_| taken.next().unwrap_or(false));
    Ok(Events { total, rows })
}
