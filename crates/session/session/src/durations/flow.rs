// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations of every function, from a run's flow.

use anyhow::Result;
use kprism_durations::Measured;
use kprism_durations::flow::Collector;
use kprism_profile::{Profile, Times};
use kprism_store::{Account, Run};

use crate::flow;
use crate::flow::follow;
use crate::progress::Progress;

/// Replays the flow and measures its calls. Nothing is saved: the run's tables are those of the flow. Returns the account of the
/// streams as they are now, too.
///
/// # Errors
/// The streams are not there.
pub fn measure(run: &Run, progress: &Progress) -> Result<(Profile, Times, Account)> {
    let loaded = flow::load(run, progress)?;
    progress.step("measuring calls");
    let mut collector = Collector::default();
    let account = follow(&loaded, &mut collector, progress);
    let Measured { profile, times, .. } = collector.finish(&loaded.symbols);
    Ok((profile, times, account))
}
