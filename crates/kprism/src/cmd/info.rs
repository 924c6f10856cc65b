// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism info`: what a run is, what was lost, what its guest is not, whether it was decoded.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_options::KeptOptions;
use kprism_report::info;
use kprism_store::{Condition, Manifest, Run, load_profile_if_made};

use super::output::print_json;
use super::strict::StrictArgs;
use crate::exit::Outcome;

/// Options of `kprism info`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run folder
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub input: PathBuf,
    #[command(flatten)]
    pub strict: StrictArgs,
    /// Print the options that a file (kprism.toml) gives to commands, instead of a run's
    #[arg(long, conflicts_with_all = ["input", "json", "strict"])]
    pub options: bool,
    /// Print the manifest as JSON
    #[arg(long)]
    pub json: bool,
}

/// The manifest as it is, and what its reader found.
#[derive(serde::Serialize)]
struct Facts<'a> {
    #[serde(flatten)]
    manifest: &'a Manifest,
    /// Recorded files that are missing or shorter.
    absent: &'a [String],
    /// Recorded files that are longer than recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    longer: Vec<&'a String>,
    /// Whether nothing was lost, guessed or not understood.
    whole: bool,
    /// Properties in which the guest differs from a machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    guest: Vec<Condition>,
    /// Why the tables cannot be read: conditions of the guest that depend on calls are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    tables_unreadable: Option<String>,
}

/// Prints it.
pub fn run(args: &Args, kept: &KeptOptions, out: &mut dyn Write) -> Result<Outcome> {
    if args.options {
        kept.lines().iter().try_for_each(|line| writeln!(out, "{line}"))?;
        return Ok(Outcome::of_rows(kept.lines().is_empty()));
    }
    let run = Run::open(&args.input)?;
    let manifest = run.manifest()?;
    let (profile, tables_unreadable) = match load_profile_if_made(&run) {
        Ok(profile) => (profile, None),
        Err(error) => (None, Some(error.to_string())),
    };
    if args.json {
        let guest = manifest.conditions(profile.as_ref());
        let (absent, whole) = (&manifest.absent[..], manifest.is_whole());
        let longer = manifest.grown.values().collect();
        print_json(&Facts { manifest: &manifest, absent, longer, whole, guest, tables_unreadable }, out)?;
    } else {
        let tables = match &tables_unreadable {
            None => Ok(profile.as_ref()),
            Some(why) => Err(why.as_str()),
        };
        write!(out, "{}", info::to_text(run.dir(), &run.instruments(), &manifest, tables))?;
        if let Some(path) = kept.path() {
            writeln!(out, "options file  {} (`kprism info --options` shows it)", path.display())?;
        }
    }
    Ok(Outcome::Done)
}
