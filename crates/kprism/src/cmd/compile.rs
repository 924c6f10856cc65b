// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism compile`: probes for a machine that has no debug information.
//!
//! In: what `kprism record probe` takes. Out: a small file for its `--program`.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::record::ProbeArgs;
use crate::exit::Outcome;
use crate::given::Given;
use kprism_session::Progress;

pub const HELP: &str = "\
The file says for which kernel or program it is (its build id), and is refused by others.

Example:
  kprism compile 'vfs_read if count > 4096' --collect count -k vmlinux -o read.kprobe
  kprism record probe --program read.kprobe -- CMD      # on the target";

/// Options of `kprism compile`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    what: ProbeArgs,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Compiles.
pub fn run(args: &Args, given: &Given, progress: &Progress) -> Result<Outcome> {
    let program = args.what.probes(given)?.compile(&[], &[], progress)?;
    std::fs::write(&args.output, program.bytes()?).with_context(|| args.output.display().to_string())?;
    Ok(Outcome::Done)
}
