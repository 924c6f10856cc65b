// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations of every function from a flow.
use anyhow::{Result, bail};
use kprism_durations::Times;
use kprism_flow::Profile;
use kprism_store::Run;

use crate::progress::Progress;

/// Measures.
pub fn measure(_run: &Run, _progress: &Progress) -> Result<(Profile, Times)> {
    bail!("not yet")
}
