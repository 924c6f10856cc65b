// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations of every function, from a run's flow.

use anyhow::Result;
use kprism_durations::Measured;
use kprism_durations::flow::Collector;
use kprism_profile::{Profile, Times};
use kprism_store::Run;

use crate::flow;
use crate::flow::follow;
use crate::progress::Progress;

/// Replays the flow and measures its calls. Nothing is saved: the run's tables are those of the flow.
///
/// # Errors
/// The streams are not there.
pub fn measure(run: &Run, progress: &Progress) -> Result<(Profile, Times)> {
    let loaded = flow::load(run, progress)?;
    for note in &loaded.notes {
        progress.note(note);
    }
    progress.step("measuring calls");
    let mut collector = Collector::default();
    follow(&loaded, &mut collector);
    let Measured { profile, times, .. } = collector.finish(&loaded.symbols);
    Ok((profile, times))
}
