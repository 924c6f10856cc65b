// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism list events`: static tracepoints, of the running kernel by its tracefs, of any kernel by its debug
//! information, of a program by its notes.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_remote::Target;
use kprism_report::tracepoints as view;
use kprism_session::{Progress, tracepoints};

use super::on;
use super::output::print_json;
use crate::exit::Outcome;

pub const HELP: &str = "\
Examples:
  kprism list events 'sched:*'                fields of the running kernel's scheduler events
  kprism list events sched:sched_switch -k vmlinux    and where they are in the code
  kprism list events --exec /usr/bin/python3  static tracepoints (USDT) of a program";

/// Options of `kprism list events`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these, `*` for anything; their fields are shown
    #[arg(value_name = "SYSTEM:NAME")]
    pattern: Option<String>,
    /// A kernel's debug information, instead of the running kernel
    #[arg(short = 'k', long, value_name = "VMLINUX", conflicts_with = "exec")]
    vmlinux: Option<PathBuf>,
    /// A program or library
    #[arg(long, value_name = "FILE")]
    exec: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Look at this machine instead, through ssh
    #[arg(long, value_name = "ssh:[USER@]HOST[:PORT]")]
    on: Option<Target>,
}

/// Prints them.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    if let Some(target) = on::other(&args.on) {
        return on::look(target, progress, out);
    }
    let pattern = args.pattern.as_deref();
    let events = match (&args.exec, &args.vmlinux) {
        (Some(file), _) => tracepoints::of_program(file, pattern)?,
        (_, Some(file)) => tracepoints::of_kernel(file, pattern)?,
        _ => tracepoints::running(pattern)?,
    };
    match args.json {
        true => print_json(&view::to_json(&events), out)?,
        false => write!(out, "{}", view::to_text(&events, args.pattern.is_some()))?,
    }
    Ok(if events.is_empty() { Outcome::NothingMatched } else { Outcome::Done })
}
