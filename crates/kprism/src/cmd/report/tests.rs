// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report tests`: the kernel's own tests one by one: result, instructions, time, coverage.

use std::path::PathBuf;

use anyhow::Result;
use kprism_export::kernel_tests::show;
use kprism_session::kernel_tests::load;

use crate::cmd::cover_args::DebugArgs;
use crate::cmd::output::{Io, OutputArgs};
use crate::cmd::strict::{StrictArgs, judge_own};
use crate::exit::Outcome;

/// Options of `kprism report tests`.
#[derive(Debug, clap::Args)]
pub struct TestsArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    /// Write JUnit's XML instead, for continuous integration
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sort", "limit", "json", "csv"])]
    pub junit: Option<PathBuf>,
    #[command(flatten)]
    pub debug: DebugArgs,
}

/// Shows them.
pub fn run(args: &TestsArgs, strict: StrictArgs, io: &mut Io<'_>) -> Result<Outcome> {
    let loaded = load(io.input, &args.debug.files(), io.progress)?;
    // A test that is not shown is not missed by anybody: all rows, unless told otherwise.
    let shown = args.output.shown(0, io.style);
    let empty = show(&loaded, (&shown, args.junit.as_deref()), io.progress, io.out)?;
    judge_own(strict, &[(io.input, &loaded.1)], Outcome::of_rows(empty), io.progress)
}
