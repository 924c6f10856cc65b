// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands, one file each.

pub mod annotate;
mod bisect;
mod check;
mod compile;
mod cover;
mod cover_annotate;
mod cover_args;
mod diff;
mod ended;
mod explain;
mod export;
mod flow_cost;
mod gate;
mod gcov_kernel;
mod gdbserver;
mod generate;
mod goto;
pub mod guest_args;
mod impact;
mod import;
mod info;
mod kernel_tests;
mod lab;
mod lake;
mod list;
mod list_events;
mod observe;
mod on;
mod output;
mod pass;
mod record;
mod report;
pub mod script;
mod strict;
mod tlb_annotate;
mod top;
mod tui;
mod view;

use std::io::Write;

use anyhow::Result;

use crate::exit::Outcome;
use crate::given::Given;
use kprism_options::KeptOptions;
use kprism_session::Progress;
use kprism_store::KernelTests;

/// What kprism can be asked to do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run commands in a guest with a stock kernel, watched from outside
    #[command(subcommand)]
    Lab(lab::Command),
    /// Run your own QEMU machine and record its kernel and programs, watched from outside
    #[command(after_help = observe::HELP)]
    Observe(Box<observe::Args>),
    /// Begin and pause what `kprism observe` records
    Mark(observe::MarkArgs),
    /// Record on this machine's own processor, or another machine's
    Record(record::Args),
    /// Show where the time went: tables, call tree, HTML
    Report(Box<report::Args>),
    /// Show runs in a browser, with the source of each function
    #[command(after_help = view::HELP)]
    View(view::Args),
    /// Browse a run in the terminal: tables to sort, filter and follow
    #[command(after_help = tui::HELP)]
    Tui(tui::Args),
    /// Record, and watch the counts grow: `top` in front of a command that records
    #[command(after_help = top::HELP)]
    Top(top::Args),
    /// What software tracers add to each system call of a command
    Impact(Box<impact::Args>),
    /// Compare two runs: what one did that the other did not, and what cost more
    Diff(diff::Args),
    /// Fail where a run costs more than it may: rules over exact counts, for continuous integration
    #[command(after_help = gate::help())]
    Gate(gate::Args),
    /// Find the commit, or the kernel, that made a command cost more
    #[command(after_help = bisect::HELP)]
    Bisect(Box<bisect::Args>),
    /// Many runs as one table: add, merge, ask by SQL
    #[command(subcommand, after_help = lake::HELP)]
    Lake(lake::Command),
    /// Write a run for other tools: Perfetto, flame graphs, JSON, CSV
    #[command(after_help = kprism_export::formats::after_help())]
    Export(export::Args),
    /// Print what ran, line by line: instructions, branches, calls, system calls
    Script(script::Args),
    /// Show a function's instructions as they ran: counts, time, branches, source
    Annotate(annotate::Args),
    /// Show what a condition reads at a place in the code, and the eBPF that it becomes
    #[command(after_help = explain::HELP)]
    Explain(Box<explain::Args>),
    /// Compile probes into a file, for machines without debug information
    #[command(after_help = compile::HELP)]
    Compile(Box<compile::Args>),
    /// Weigh trace size against temporal resolution, over packet settings
    #[command(after_help = flow_cost::HELP)]
    FlowCost(Box<flow_cost::Args>),
    /// Turn what other tools recorded into a run: Intel PT, ftrace
    Import(import::Args),
    /// Serve tracepoints to GDB: of a running process, a program, or the kernel
    #[command(after_help = gdbserver::HELP)]
    Gdbserver(gdbserver::Args),
    /// Show what a run is and what was lost
    Info(info::Args),
    /// List the runs in a folder, or static tracepoints (list events)
    List(list::Args),
    /// Show what this machine can do, and the remedy for the rest
    Check(check::Args),
    /// Print the completion script of a shell
    Completions(generate::CompletionsArgs),
    /// Print the man page, or write those of all commands
    Man(generate::ManArgs),
}

impl Command {
    /// Whether standard output is text about a run, in which nothing may command a terminal. What a command in the guest
    /// prints, and files, go out as they are.
    pub fn writes_text(&self) -> bool {
        match self {
            Command::Report(_)
            | Command::Impact(_)
            | Command::Diff(_)
            | Command::Gate(_)
            | Command::Bisect(_)
            | Command::Script(_)
            | Command::Annotate(_)
            | Command::Explain(_)
            | Command::Info(_)
            | Command::List(_)
            | Command::Top(_)
            | Command::View(_) => true,
            Command::Lab(_)
            | Command::Observe(_)
            | Command::Mark(_)
            | Command::Record(_)
            | Command::Export(_)
            | Command::Lake(_)
            | Command::Compile(_)
            | Command::FlowCost(_)
            | Command::Import(_)
            | Command::Gdbserver(_)
            | Command::Check(_)
            | Command::Completions(_)
            | Command::Tui(_)
            | Command::Man(_) => false,
        }
    }

    /// Whether the exit code belongs to a command in the guest.
    pub fn is_lab_run(&self) -> bool {
        use lab::Command::{Boot, Goto, Prepare, SaveGuest};
        let is_other =
            |command: &lab::Command| matches!(command, Boot(_) | Goto(_) | Prepare(_) | SaveGuest(_));
        matches!(self, Command::Lab(command) if !is_other(command))
    }
}

/// Does it. `out` is standard output; `given` holds the options that were typed, `kept` those of a file.
pub fn run(
    command: &Command,
    given: &Given,
    kept: &KeptOptions,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    given.in_place()?;
    match command {
        Command::Lab(lab::Command::Run(args)) => lab::run(args, progress, out),
        Command::Lab(lab::Command::Goto(args)) => goto::run(args, progress, out),
        Command::Lab(lab::Command::Prepare(args)) => lab::prepare(args, progress),
        Command::Lab(lab::Command::SaveGuest(args)) => lab::save_guest(args, progress),
        Command::Lab(lab::Command::GcovKernel(args)) => gcov_kernel::run(args, progress, out),
        Command::Lab(lab::Command::Kunit(args)) => {
            kernel_tests::run(KernelTests::Kunit, args, color, progress, out)
        }
        Command::Lab(lab::Command::Kselftest(args)) => {
            kernel_tests::run(KernelTests::Kselftest, args, color, progress, out)
        }
        Command::Lab(lab::Command::Boot(args)) => record::boot_guest(args, color, progress, out),
        Command::Observe(args) => observe::run(args, progress),
        Command::Mark(args) => observe::mark(args, out),
        Command::Record(args) => record::run(args, given, color, progress, out),
        Command::Report(args) => {
            let outcome = report::run(args, given, color, progress, out)?;
            match given.first(&["csv", "html", "ftd", "junit"]) {
                Some(_) => strict::tell(args.strict, &[&args.input], progress)?,
                None => strict::tell_found(args.strict, &[&args.input], progress)?,
            }
            strict::judge(args.strict, &[&args.input], outcome, progress)
        }
        Command::View(args) => view::run(args, progress, out),
        Command::Tui(args) => tui::run(args, color, progress),
        Command::Top(args) => top::run(args, given, color, progress, out),
        Command::Impact(args) => impact::run(args, color, progress, out),
        Command::Diff(args) => {
            let outcome = diff::run(args, given, color, progress, out)?;
            match given.first(&["html"]) {
                Some(_) => strict::tell(args.strict, &args.runs(), progress)?,
                None => strict::tell_found(args.strict, &args.runs(), progress)?,
            }
            strict::judge(args.strict, &args.runs(), outcome, progress)
        }
        Command::Gate(args) => gate::run(args, color, progress, out),
        Command::Bisect(args) => bisect::run(args, color, progress, out),
        Command::Export(args) => {
            let outcome = export::run(args, given, progress, out)?;
            strict::tell(args.strict, &[&args.input], progress)?;
            strict::judge(args.strict, &[&args.input], outcome, progress)
        }
        Command::Lake(command) => lake::run(command, progress, out),
        Command::Script(args) => {
            let outcome = script::run(args, given, progress, out)?;
            strict::tell(args.strict, &[&args.input], progress)?;
            Ok(outcome)
        }
        Command::Annotate(args) => {
            let outcome = annotate::run(args, given, color, progress, out)?;
            strict::tell(args.strict, &[&args.input], progress)?;
            strict::judge(args.strict, &[&args.input], outcome, progress)
        }
        Command::Explain(args) => explain::run(args, progress, out),
        Command::Compile(args) => compile::run(args, given, progress),
        Command::FlowCost(args) => flow_cost::run(args, color, progress, out),
        Command::Import(args) => import::run(args, given, progress),
        Command::Gdbserver(args) => gdbserver::run(args, progress),
        Command::Info(args) => {
            let outcome = info::run(args, kept, out)?;
            strict::judge(args.strict, &[&args.input], outcome, progress)
        }
        Command::List(args) => list::run(args, progress, out),
        Command::Check(args) => check::run(args, progress, out),
        Command::Completions(args) => generate::completions(args, out),
        Command::Man(args) => generate::man(args, out),
    }
}
