// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as one HTML file.

use std::path::Path;

use anyhow::{Context, Result};
use kprism_profile::Profile;
use kprism_report::html::{self, Budget};
use kprism_session::Progress;
use kprism_store::{Instrument, Manifest, Run};

use crate::exit::Outcome;

/// The report as a page.
pub fn html(run: &Run, manifest: &Manifest, profile: &Profile) -> Result<String> {
    let budget = Budget::default();
    let page = match run.holds(Instrument::Durations) {
        true => {
            let times = kprism_store::load_times(run, profile)?;
            html::render_durations(manifest, profile, &times, &budget)
        }
        false => html::render(manifest, profile, &budget),
    };
    page.context("HTML report")
}

/// Writes the report as one file.
pub fn write_html(
    run: &Run,
    file: &Path,
    manifest: &Manifest,
    profile: &Profile,
    progress: &Progress,
) -> Result<Outcome> {
    let page = html(run, manifest, profile)?;
    std::fs::write(file, page).with_context(|| file.display().to_string())?;
    progress.say(&format!("wrote {}", file.display()));
    Ok(Outcome::Done)
}
