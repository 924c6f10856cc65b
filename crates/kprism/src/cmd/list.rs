// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism list`: the runs in a folder, or static tracepoints.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kprism_profile::units::grouped;
use kprism_store::{Manifest, Run};
use serde_json::json;

use crate::exit::Outcome;
use kprism_profile::units::quoted;

/// Options of `kprism list`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Folder that holds runs
    #[arg(value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// What else can be listed.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// Static tracepoints of the kernel or a program, with their fields
    #[command(after_help = super::list_events::HELP)]
    Events(super::list_events::Args),
}

/// Prints one line a run, by name.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Outcome> {
    if let Some(What::Events(args)) = &args.what {
        return super::list_events::run(args, out);
    }
    let runs = find(&args.folder)?;
    if args.json {
        let list: Vec<_> = runs.iter().map(|(path, m)| json!({"path": path, "manifest": m})).collect();
        serde_json::to_writer_pretty(&mut *out, &list)?;
        writeln!(out)?;
    } else {
        for (path, m) in &runs {
            let insns = m.instructions.map_or_else(|| "not decoded".into(), |n| grouped(n) + " insns");
            let kernel = m.kernel.as_ref().map_or("", |k| &k.release);
            let what = if m.command.is_empty() { m.tool.clone() } else { quoted(&m.command) };
            writeln!(out, "{}  {}  {insns}  {kernel}  {what}", path.display(), m.created)?;
        }
    }
    Ok(if runs.is_empty() { Outcome::NothingMatched } else { Outcome::Done })
}

/// The runs directly in `folder`, and `folder` itself if it is one. Broken ones are skipped.
fn find(folder: &Path) -> Result<Vec<(PathBuf, Manifest)>> {
    let own = |path: PathBuf| path.strip_prefix("./").map(Path::to_owned).unwrap_or(path);
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(own(e.ok()?.path()))).collect();
    paths.push(folder.to_owned());
    paths.sort();
    let load = |path: PathBuf| {
        let manifest = Run::open(&path).ok()?.manifest().ok()?;
        Some((path, manifest))
    };
    Ok(paths.into_iter().filter_map(load).collect())
}
