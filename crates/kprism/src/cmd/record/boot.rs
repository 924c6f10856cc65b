// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record boot`: the kernel command line for a traced boot, and what such a boot left.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::func_args::time;
use crate::exit::Outcome;
use crate::progress::Progress;

pub const HELP: &str = "\
";

/// Options of `kprism record boot`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = crate::DEFAULT_RUN)]
    pub output: PathBuf,
    /// Every call of at least this long too, such as 1ms
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub longer_than: Option<Duration>,
}

/// Prints or collects.
pub fn run(_args: &Args, _progress: &Progress, _out: &mut dyn Write) -> Result<Outcome> {
    anyhow::bail!("soon")
}
