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
    progress.step("measuring calls");
    let mut collector = Collector::default();
    let _ = follow(&loaded, &mut collector, progress);
    let Measured { profile, times, .. } = collector.finish(&loaded.symbols);
    Ok((profile, times))
}
