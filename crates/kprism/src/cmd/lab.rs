// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism lab`: commands in a guest with a stock kernel, watched from outside.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use kprism_lab::{Ended, KernelSource, Options, Span, guest_image};
use kprism_profile::parse;
use kprism_record::Beside;
use kprism_record::guest::{self, Observe, Settings};
use kprism_session::{Progress, flow};
use kprism_signals::Second;

use super::ended::{code, interrupted};
use super::guest_args::{GuestArgs, PacketArgs, PartArgs, PlaceArgs};
use super::output::watched;
use super::pass::Output;
use super::{goto, kernel_tests};
use crate::exit::{self, Outcome};

/// What to do with the lab.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run a command in the guest and record every instruction of it and its kernel
    #[command(after_help = RUN_HELP)]
    Run(Box<RunArgs>),
    /// Go to an instruction of a run: run it again up to there, and stop the guest for GDB
    #[command(after_help = goto::HELP)]
    Goto(goto::Args),
    /// Boot the guest with tracing on: initcalls, long functions
    #[command(after_help = super::record::BOOT_HELP)]
    Boot(Box<super::record::BootArgs>),
    /// Fetch and boot the guest now, so that the next run starts at once
    Prepare(Box<GuestArgs>),
    /// Write the guest's kernel and programs into one file, a guest image, for machines without apt
    #[command(after_help = SAVE_HELP)]
    SaveGuest(SaveArgs),
    /// Run a command on a small kernel with gcov, and record which of its code was executed
    #[command(after_help = super::gcov_kernel::HELP)]
    GcovKernel(Box<super::gcov_kernel::Args>),
    /// Run the KUnit tests of a kernel, with instructions, time and coverage of each
    #[command(after_help = kernel_tests::KUNIT, mut_arg("tests", |arg| {
        arg.value_name("SUITE").help("Suites to run, `*` and `?` allowed; all if none is given")
    }))]
    Kunit(Box<kernel_tests::Args>),
    /// Run programs of the kernel's selftests, with instructions, system calls, time and coverage of each
    #[command(after_help = kernel_tests::KSELFTEST, mut_arg("tests", |arg| {
        arg.required(true).help("A collection of tools/testing/selftests, or one of its tests: COLLECTION:TEST")
    }))]
    Kselftest(Box<kernel_tests::Args>),
}

const SAVE_HELP: &str = "\
The guest image is a container image (an OCI archive). `--guest-image FILE` of the other commands, or
$KPRISM_GUEST_IMAGE, takes the guest from it; runs are the same as with apt, to the byte.";

/// Options of `kprism lab save-guest`.
#[derive(Debug, clap::Args)]
pub struct SaveArgs {
    /// The file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Take this kernel package of Debian (linux-image-…) instead of the newest 6.12
    #[arg(long, value_name = "PACKAGE")]
    kernel: Option<String>,
    /// Put this Debian package in, too (can be repeated)
    #[arg(long, value_name = "NAME")]
    package: Vec<String>,
    /// Ask apt for newer packages than those in the cache
    #[arg(long)]
    refresh: bool,
}

/// Writes a guest image.
pub fn save_guest(args: &SaveArgs, progress: &Progress) -> Result<Outcome> {
    kprism_signals::catch(Second::EndsProcess)?;
    let options = Options {
        kernel: args.kernel.clone().map_or(KernelSource::Newest, KernelSource::Package),
        packages: args.package.clone(),
        refresh: args.refresh,
        ..Options::default()
    };
    let saved = match guest_image::save(&options, &args.file, &mut |p| guest::show(progress, p)) {
        Err(kprism_lab::Error::Interrupted) => return Ok(Outcome::Code(exit::INTERRUPTED)),
        saved => saved?,
    };
    progress.clear();
    progress.say(&format!(
        "wrote {}: {}, {} packages, {} MiB",
        args.file.display(),
        saved.kernel,
        saved.packages,
        saved.bytes >> 20
    ));
    Ok(Outcome::Done)
}

const RUN_HELP: &str = "\
The command's output is passed through and kept in RUN/stdout and RUN/stderr.

The command has its output and, with --stdin, an input; it has no terminal, and no
network but `lo` without --net user.

Exit codes: the command's own; 124 if --timeout or --max-size ended it, 125 if kprism
failed or the disk was nearly full, 130 after Ctrl-C. What was recorded until then is
kept and can be reported.";

/// Options of `kprism lab run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Command to run in the guest
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    output: PathBuf,
    #[command(flatten)]
    place: PlaceArgs,
    /// Record the whole boot, not only the command
    #[arg(long, conflicts_with_all = ["snapshot_when", "from", "until", "warm"])]
    boot: bool,
    /// Run without recording anything
    #[arg(long, conflicts_with_all = ["snapshot_when", "from", "until", "no_decode", "retc", "psb", "mtc", "cyc", "max_size"])]
    unobserved: bool,
    /// Do not decode yet
    #[arg(long)]
    no_decode: bool,
    /// Have the guest's kernel record this event too, SYSTEM:NAME with globs (can be repeated); see docs/events.md
    #[arg(short = 'e', long = "event", value_name = "EVENT", value_delimiter = ',', help_heading = "Events", conflicts_with_all = ["unobserved", "boot"])]
    events: Vec<String>,
    /// Ring buffer for events of each CPU, such as 512K or 16M; larger ones lose less
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = parse::ring_kib, requires = "events", help_heading = "Events")]
    buffer_size: u64,
    #[command(flatten)]
    part: PartArgs,
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    packets: PacketArgs,
}

impl RunArgs {
    /// The run folder, for a reader of the streams while they are written.
    pub fn folder(&self) -> Result<PathBuf> {
        if self.unobserved {
            bail!("--unobserved records nothing: there is nothing to watch");
        }
        watched(&self.output, self.no_decode)
    }

    fn settings(&self) -> Settings {
        let mut job = self.place.job(&self.command);
        if self.boot {
            job.span = Span::Boot;
        }
        let observe = if self.unobserved { Observe::Nothing } else { self.part.observe() };
        Settings {
            observe,
            packets: self.packets.packets(),
            events: (!self.events.is_empty())
                .then(|| Beside { events: self.events.clone(), buffer_kib: self.buffer_size }),
            ..Settings::new(self.output.clone(), self.guest.options(), job)
        }
    }
}

/// Fetches and boots the guest.
pub fn prepare(args: &GuestArgs, progress: &Progress) -> Result<Outcome> {
    kprism_signals::catch(Second::EndsProcess)?;
    let prepared = match guest::prepare(&args.options(), progress) {
        Err(error) => return interrupted(error),
        Ok(prepared) => prepared,
    };
    progress.say(&format!(
        "ready: {} in {}",
        prepared.kernel().release,
        prepared.snapshot_folder().display()
    ));
    Ok(Outcome::Done)
}

/// Runs, records, decodes.
pub fn run(args: &RunArgs, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    kprism_signals::catch(Second::EndsProcess)?;
    record_and_decode(args, progress, out).or_else(interrupted)
}

fn record_and_decode(args: &RunArgs, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let mut output = Output::new(out, progress);
    let (run, ran) = guest::run(&args.settings(), progress, &mut |p| output.pass(p))?;
    if ran.ended == Ended::Interrupted {
        progress.say(&format!("what was recorded is in {}", run.dir().display()));
    } else if !args.unobserved && !args.no_decode {
        let (_, manifest) = flow::decode(&run, progress)?;
        progress.clear();
        progress.say(&flow::summary(&run, &manifest));
        // The decoder has said why: most often, the disk is full.
        if code(&ran) == 0 && !run.has_tables() {
            return Ok(Outcome::Code(exit::LAB_FAILED));
        }
    }
    Ok(Outcome::Code(code(&ran)))
}
