// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record`: what this machine itself can record.
//!
//! Each recorder has a file with its options; [`kprism_record`] records.

mod boot;
mod cover;
mod durations;
mod durations_args;
mod flow;
mod probe;
mod probe_args;
mod tlb;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use kprism_remote::{Copied, Target};

pub use boot::{GUEST_HELP as BOOT_HELP, LabArgs as BootArgs, in_guest as boot_guest};
pub use probe_args::ProbeArgs;

use crate::cmd::on;
use crate::exit::Outcome;
use crate::given::Given;
use kprism_session::Progress;

/// Options of `kprism record`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Record on this machine, through ssh, and bring the run back (not tlb)
    #[arg(long, global = true, value_name = "ssh:[USER@]HOST[:PORT]")]
    on: Option<Target>,
    #[command(subcommand)]
    command: Command,
}

/// What can be recorded.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Record this machine's own instruction flow with Intel PT, through perf
    #[command(after_help = flow::HELP)]
    Flow(Box<flow::Args>),
    /// Record calls of kernel functions and how long they took, with the kernel's own tracer
    #[command(after_help = durations::HELP, alias = "func")]
    Durations(Box<durations_args::Args>),
    /// Record which code of the kernel a command makes run, on a kernel with gcov
    #[command(after_help = cover::HELP)]
    Cover(Box<cover::Args>),
    /// Record values where a condition holds, at any place of the kernel or a program
    #[command(after_help = probe::HELP)]
    Probe(Box<probe::Args>),
    /// Record a boot: print the kernel command line for it, or collect what such a boot left
    #[command(after_help = boot::HELP)]
    Boot(boot::Args),
    /// Record every TLB miss of a command in the guest, by models of processors' TLBs
    #[command(after_help = tlb::help())]
    Tlb(Box<tlb::Args>),
}

impl Args {
    /// The run folder of a recorder that can write its counts so far.
    pub fn growing(&self) -> Result<PathBuf> {
        if self.on.is_some() {
            bail!("--on does not go with `kprism top`: run `kprism top` on that machine");
        }
        match &self.command {
            Command::Probe(args) => args.growing(),
            Command::Durations(args) => args.growing(),
            Command::Flow(_) | Command::Cover(_) | Command::Boot(_) | Command::Tlb(_) => bail!(
                "`kprism top` goes before `record probe` and `record durations --aggregate`; record the rest without \
                 it, then: kprism tui"
            ),
        }
    }
}

/// Records.
pub fn run(
    args: &Args,
    given: &Given,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if let Some(target) = on::other(&args.on) {
        let (output, file) = match &args.command {
            Command::Flow(args) => (&args.output, None),
            Command::Durations(args) => (&args.output, None),
            Command::Cover(args) => (&args.output, None),
            Command::Probe(args) => (&args.output, args.sent()),
            Command::Boot(args) => (&args.output, None),
            Command::Tlb(_) => {
                bail!("--on does not go with `record tlb`, which needs QEMU: run kprism there")
            }
        };
        if let Some(option) = given.first(&["guest"]) {
            bail!("--on does not go with {option}: a guest is another machine already");
        }
        let words = match &args.command {
            Command::Durations(args) => args.for_recorder()?,
            Command::Boot(args) => args.for_recorder(),
            _ => Err(on::KNOWN.into()),
        };
        let ended = on::run(target, Some(output), file, words, progress, out)?;
        let Some(run) = ended.run.filter(|_| ended.copied == Copied::Recorder) else {
            return Ok(Outcome::Code(if ended.copied == Copied::Recorder { 2 } else { ended.code }));
        };
        return match &args.command {
            Command::Boot(_) => boot::brought(run, color, progress, out),
            _ => durations::brought(run, progress),
        };
    }
    match &args.command {
        Command::Flow(args) => flow::run(args, progress),
        Command::Durations(args) => durations::run(args, given, progress, out),
        Command::Cover(args) => cover::run(args, progress, out),
        Command::Probe(args) => probe::run(args, given, progress, out),
        Command::Boot(args) => boot::run(args, color, progress, out),
        Command::Tlb(args) => tlb::run(args, given, progress, out),
    }
}
