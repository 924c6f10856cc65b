// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism observe`: a machine of the user's in QEMU, watched from outside; `kprism mark`: when to record it.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_profile::parse;
use kprism_record::guest::Observe;
use kprism_record::observe::{Begin, Recorded, Settings, marks, of_process, record};
use kprism_session::{Progress, flow};
use kprism_signals::Second;

use super::guest_args::{PacketArgs, PartArgs};
use super::output::{watched, words};
use crate::exit::{self, Outcome};

pub const HELP: &str = "\
Without --all, --process or a condition nothing is recorded until another terminal says
`kprism mark start`. The machine is translated (tcg): KVM is left out of its command line,
and a processor `host` replaced. Its console and its monitor stay where they are.

Exit code: QEMU's own; 125 if not all could be recorded, as on a full disk; 2 if kprism failed.";

/// Options of `kprism observe`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The machine: qemu-system-x86_64 and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "QEMU")]
    command: Vec<String>,
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    output: PathBuf,
    /// Folder with the guest's files, for the names of its programs' functions
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
    /// End the recording when its streams have this size, such as 500M or 20G; the machine runs on
    #[arg(long, value_name = "SIZE", value_parser = parse::bytes)]
    max_size: Option<u64>,
    /// Do not decode yet
    #[arg(long)]
    no_decode: bool,
    /// Record all, from when the kernel is found in the machine's memory
    #[arg(long, conflicts_with_all = ["process", "snapshot_when", "from", "until"])]
    all: bool,
    /// Record while a program of this name runs, from its exec to its exit
    #[arg(long, value_name = "NAME", conflicts_with_all = ["snapshot_when", "from", "until"])]
    process: Option<String>,
    #[command(flatten)]
    part: PartArgs,
    #[command(flatten)]
    packets: PacketArgs,
}

impl Args {
    /// The run folder, for a reader of the streams while they are written.
    pub fn folder(&self) -> Result<PathBuf> {
        watched(&self.output, self.no_decode)
    }
}

/// Options of `kprism mark`.
#[derive(Debug, clap::Args)]
pub struct MarkArgs {
    /// What to do
    #[arg(value_parser = words(marks::Request::ALL))]
    what: marks::Request,
    /// Run folder that `kprism observe` writes
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    input: PathBuf,
}

/// Runs the machine, records, decodes.
pub fn run(args: &Args, progress: &Progress) -> Result<Outcome> {
    kprism_signals::catch(Second::EndsProcess)?;
    let observe = args.process.as_deref().map_or_else(|| args.part.observe(), of_process);
    let at_mark = observe == Observe::Everything && !args.all;
    let Recorded { run, code, failed } = record(
        &Settings {
            output: args.output.clone(),
            command: args.command.clone(),
            begin: if at_mark { Begin::AtMark } else { Begin::WithKernel },
            observe,
            packets: args.packets.packets(),
            sysroot: args.sysroot.clone(),
            max_bytes: args.max_size,
        },
        progress,
    )?;
    if !args.no_decode {
        let (_, manifest) = flow::decode(&run, progress)?;
        progress.clear();
        progress.say(&flow::summary(&run, &manifest));
    }
    Ok(Outcome::Code(if failed.is_some() { exit::LAB_FAILED } else { code }))
}

/// Asks the recorder.
pub fn mark(args: &MarkArgs, out: &mut dyn Write) -> Result<Outcome> {
    writeln!(out, "{}", marks::send(&args.input, args.what)?)?;
    Ok(Outcome::Done)
}
