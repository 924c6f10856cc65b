// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as one HTML file.

use std::path::Path;

use anyhow::{Context, Result};
use kprism_export::report_page;
use kprism_profile::Profile;

use kprism_session::Progress;
use kprism_store::{Manifest, Run};

use crate::exit::Outcome;

/// Writes the report as one file.
pub fn write_html(
    run: &Run,
    file: &Path,
    manifest: &Manifest,
    profile: &Profile,
    progress: &Progress,
) -> Result<Outcome> {
    let page = report_page(run, manifest, profile)?;
    std::fs::write(file, page).with_context(|| file.display().to_string())?;
    progress.say(&format!("wrote {}", file.display()));
    Ok(Outcome::Done)
}
