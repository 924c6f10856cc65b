// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism lab gcov-kernel`: a kernel with gcov built, booted, loaded with a command, and its counters recorded.
//!
//! The guest stops right before the command and right after it, and the counters are read from its memory: what is shown
//! is their difference, so that nothing has to be cleared and the boot stays in the run, and nothing of it is of the
//! reading. With `--in-place` the guest's agent reads debugfs, as on a machine, and what that adds is taken out.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use kprism_lab::gcov_kernel::{BuildOptions, Counting, GcovKernel};
use kprism_lab::{Counters, Ended, Job, ObserverOptions, Options, Pace, Prepared, Share};
use kprism_store::{Kernel, Manifest, Run, RunKind};
use serde_json::json;

use super::lab::{PlaceArgs, complain, reason, show};
use crate::exit::{self, Outcome};
use kprism_session::Progress;
use kprism_session::flow;

/// Help that follows the options.
pub const HELP: &str = "\
The kernel is built once (eleven minutes of one CPU, 1.6 GB in the cache folder) from
Debian's linux-source-6.12. Without a CMD it is only built and booted.

  kprism lab gcov-kernel --show kernel/sched -- sh -c 'ls -lR /usr; cat /proc/*/stat'
  kprism lab gcov-kernel --flow -- CMD       the flow, too: kprism report cover --compare
  kprism lab gcov-kernel --empty             what a window has by itself: nothing
  kprism report cover kernel/sched --each file
  kprism annotate kernel/sched/core.c
  kprism export -o cover.info

With what it counted, the same kernel is compiled again (see docs/pgo.md):

  kprism export --relative -o trained.gcda
  kprism lab gcov-kernel --profile-use trained.gcda

Exit codes as of `kprism lab run`.";

/// Options of `kprism lab gcov-kernel`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
    /// Run folder to write
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub output: PathBuf,
    /// After the command, report this folder or file of the source, as kernel/sched
    #[arg(long, value_name = "PATH")]
    pub show: Option<String>,
    /// Run nothing: what is recorded is an empty window
    #[arg(long, conflicts_with = "command")]
    pub empty: bool,
    /// Have the guest read its counters itself, through debugfs, instead of reading its memory while it stands
    #[arg(long)]
    pub in_place: bool,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Guest")]
    pub smp: u32,
    /// Memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 768, help_heading = "Guest")]
    pub mem: u64,
    /// Record the flow, too: kprism report cover --by-flow, --compare (implies --debug-info)
    #[arg(long)]
    pub flow: bool,
    /// Load this module, with what it needs: ext2, minix, romfs, or a .ko file (can be repeated)
    #[arg(long, value_name = "MODULE", help_heading = "Guest")]
    pub module: Vec<String>,
    /// More words for the kernel's command line (can be repeated)
    #[arg(long, value_name = "WORDS", help_heading = "Guest")]
    pub append: Vec<String>,
    /// Debian package with programs for the guest (can be repeated)
    #[arg(long, value_name = "NAME", help_heading = "Guest")]
    pub package: Vec<String>,
    /// Follow the host's time instead of counting instructions: faster, and no two runs are the same
    #[arg(long, help_heading = "Guest")]
    pub fast: bool,
    /// Add this line to the kernel's configuration: CONFIG_NAME=y (can be repeated)
    #[arg(long, value_name = "LINE", help_heading = "Kernel")]
    pub config: Vec<String>,
    /// Build it with debug information (another 1.3 GB)
    #[arg(long, help_heading = "Kernel")]
    pub debug_info: bool,
    /// Count, or use the profile, only below this folder of the source, as kernel/sched (can be repeated)
    #[arg(long, value_name = "DIR", help_heading = "Kernel")]
    pub only: Vec<String>,
    /// Build it without gcov, to compare with
    #[arg(long, conflicts_with = "only", help_heading = "Kernel")]
    pub uncounted: bool,
    /// Build it without gcov, and let gcc use this profile: a folder that `kprism export --relative` wrote
    #[arg(long, value_name = "DIR", conflicts_with = "uncounted", help_heading = "Kernel")]
    pub profile_use: Option<PathBuf>,
    /// Compilers at once
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        help_heading = "Kernel"
    )]
    pub jobs: usize,
    /// Ask apt whether there is a newer source
    #[arg(long, help_heading = "Kernel")]
    pub refresh: bool,
}

/// What `--debug-info` adds to the configuration.
const DEBUG_INFO: &str = "CONFIG_DEBUG_INFO_DWARF5=y";

/// Builds, boots, runs, records, reports.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    kprism_lab::interrupt::catch_signals();
    record(args, progress, out).or_else(super::lab::interrupted)
}

fn record(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let mut config = args.config.clone();
    config.extend((args.debug_info || args.flow).then(|| DEBUG_INFO.to_owned()));
    let counting = match (&args.profile_use, args.uncounted) {
        (Some(profile), _) => Counting::Used(profile.clone()),
        (None, true) => Counting::Off,
        (None, false) => Counting::On,
    };
    if counting != Counting::On && (args.empty || !args.command.is_empty()) {
        bail!("this kernel has no counters: leave CMD away, and run it with `kprism lab run --kernel`");
    }
    let build = BuildOptions { config, only: args.only.clone(), jobs: args.jobs, counting };
    let kernel = GcovKernel::find(&build, args.refresh, &mut |p| show(progress, p))?;
    let plugin = args.flow.then(kprism_lab::find_observer).transpose()?;
    let observer = plugin.map(|plugin| ObserverOptions { plugin, arguments: Vec::new() });
    let prepared = kprism_lab::prepare(&options(args, &kernel), &mut |p| show(progress, p))?;
    progress.clear();
    if args.command.is_empty() && !args.empty {
        let (folder, image) = (kernel.folder.display(), kernel.image.display());
        progress.say(&format!("ready: {} in {folder}, {image}", prepared.kernel().release));
        return Ok(Outcome::Done);
    }
    let job = job(args);
    let run = Run::create(&args.output)?;
    let mut manifest = manifest(args, &kernel, &prepared);
    run.write_manifest(&manifest)?;
    progress.step("running the command");
    let ran = kprism_lab::run(&prepared, &job, run.dir(), observer.as_ref(), &mut |p| match p {
        kprism_lab::Progress::Stdout(bytes) => {
            progress.clear();
            // Nobody may be reading any more; what is recorded stays of use.
            let _ = out.write_all(bytes).and_then(|()| out.flush());
        }
        kprism_lab::Progress::Stderr(bytes) => {
            progress.clear();
            let _ = std::io::stderr().write_all(bytes);
        }
        other => show(progress, other),
    })?;
    progress.clear();
    manifest.exit_code = ran.exit_code.map(i32::from);
    manifest.instruments = vec![kprism_store::Instrument::Cover];
    manifest.stopped = reason(&ran.ended);
    run.write_manifest(&manifest)?;
    complain(&ran, progress);
    if ran.ended != Ended::Normal {
        return Ok(Outcome::Code(match ran.ended {
            Ended::Timeout => exit::TIMED_OUT,
            Ended::Interrupted => exit::INTERRUPTED,
            _ => exit::LAB_FAILED,
        }));
    }
    super::cover::tell(run.dir(), args.show.as_deref(), progress, out)?;
    Ok(Outcome::Code(ran.exit_code.unwrap_or(exit::LAB_FAILED)))
}

fn options(args: &Args, kernel: &GcovKernel) -> Options {
    // Modules of this kernel by their names; of others by their files.
    let modules = args.module.iter().map(|name| match name.contains('/') || name.ends_with(".ko") {
        true => name.clone(),
        false => kernel.folder.join(format!("fs/{name}/{name}.ko")).display().to_string(),
    });
    Options {
        smp: args.smp,
        mem_mib: args.mem,
        append: args.append.clone(),
        kernel: Some(kernel.image.clone()),
        modules: modules.collect(),
        packages: args.package.clone(),
        pace: if args.fast { Pace::Fast } else { Pace::Exact },
        refresh: args.refresh,
        ..Options::default()
    }
}

fn job(args: &Args) -> Job {
    Job {
        env: args.place.env.clone(),
        cwd: args.place.cwd.clone(),
        before: args.place.before.clone(),
        stdin: args.place.input(),
        counters: match (args.in_place, args.fast) {
            (true, _) => Counters::Read,
            (false, true) => Counters::Stopped,
            (false, false) => Counters::Held,
        },
        shares: args.place.share.iter().map(|text| Share::parse(text)).collect(),
        timeout: args.place.timeout.map(Duration::from_secs),
        ..Job::new(args.command.iter().cloned())
    }
}

fn manifest(args: &Args, kernel: &GcovKernel, prepared: &Prepared) -> Manifest {
    let mut manifest = Manifest::new(RunKind::Lab, args.smp);
    manifest.command = args.command.clone();
    let facts = prepared.kernel();
    manifest.kernel = Some(Kernel { release: facts.release.clone(), build_id: facts.build_id.clone() });
    manifest.created = flow::now();
    manifest.stopped = Some("the recorder has not ended properly".into());
    for (name, value) in [
        ("instrument", json!("cover")),
        ("build_dir", json!(kernel.folder.display().to_string())),
        ("qemu", json!(prepared.qemu_version())),
        ("kernel_command_line", json!(prepared.command_line())),
        ("counters", json!(if args.in_place { "read in the guest" } else { "of the guest's memory" })),
        ("pace", json!(if args.fast { "fast" } else { "exact" })),
        ("mem_mib", json!(args.mem)),
        ("module", json!(options(args, kernel).modules)),
        ("before", json!(args.place.before)),
    ] {
        manifest.options.insert(name.to_owned(), value);
    }
    manifest
}
