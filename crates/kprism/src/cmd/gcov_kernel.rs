// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism lab gcov-kernel`: a kernel with gcov built, booted, loaded with a command, and its counters recorded.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use kprism_lab::{Ended, Options};
use kprism_record::gcov_kernel::{
    BuildOptions, Counting, DEBUG_INFO, Reading, Settings, Windows, prepare, record, suits,
};
use kprism_session::Progress;
use kprism_signals::Second;

use super::ended;
use super::guest_args::{MachineArgs, PlaceArgs};
use super::pass::Output;
use crate::exit::{self, Outcome};

/// Help that follows the options.
pub const HELP: &str = "\
The kernel is built once (eleven minutes of one CPU, 1.6 GB in the cache folder) from
Debian's linux-source-6.12. Without a CMD it is only built and booted.

  kprism lab gcov-kernel --show kernel/sched -- sh -c 'ls -lR /usr; cat /proc/*/stat'
  kprism lab gcov-kernel --flow -- CMD       the flow, too: kprism report cover --compare
  kprism lab gcov-kernel --empty             what a window has by itself: nothing
  kprism lab gcov-kernel --from 'vfs_read if count > 4096' --until 'vfs_read%return' -- CMD
                                             only what ran in between, each time
  kprism report cover kernel/sched --each file
  kprism annotate kernel/sched/core.c
  kprism export -o cover.info

With what it counted, the same kernel is compiled again (see docs/pgo.md):

  kprism export --relative -o trained.gcda
  kprism lab gcov-kernel --profile-use trained.gcda

Exit codes as of `kprism lab run`.";

/// Options with which there are no windows between conditions: the counters are not read at an instruction, or there are none.
const WHOLE: [&str; 5] = ["in_place", "empty", "fast", "uncounted", "profile_use"];

/// Memory of the guest, MiB, if `--mem` does not say another.
const MEM_MIB: u64 = 768;

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
    #[arg(long, conflicts_with_all = ["command", "warm"])]
    pub empty: bool,
    /// Have the guest read its counters through debugfs; without it, kprism stops the guest and reads its memory
    #[arg(long)]
    pub in_place: bool,
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Record the flow, too: kprism report cover --by-flow, --compare (implies --debug-info)
    #[arg(long)]
    pub flow: bool,
    /// Count what runs from here on, each time: `FUNC`, `FUNC%return`, or the end of an interval, maybe with `if EXPR` (see docs/cover.md)
    #[arg(long, value_name = "CONDITION", requires = "command", conflicts_with_all = WHOLE, help_heading = "Windows")]
    pub from: Option<String>,
    /// Count what runs until here, each time; without --from, what runs before the first
    #[arg(long, value_name = "CONDITION", requires = "command", conflicts_with_all = WHOLE, help_heading = "Windows")]
    pub until: Option<String>,
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
    /// Number of compilers that run at the same time; 0: one for each CPU
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        help_heading = "Kernel"
    )]
    pub jobs: usize,
    /// Stop building after this time; the same command continues another time (exit code 124)
    #[arg(long, value_name = "SECONDS", help_heading = "Kernel")]
    pub build_limit: Option<u64>,
    /// Ask apt whether there is a newer source
    #[arg(long, help_heading = "Kernel")]
    pub refresh: bool,
}

impl Args {
    /// As the library takes them.
    fn settings(&self) -> Settings {
        let windows = (self.from.is_some() || self.until.is_some())
            .then(|| Windows { from: self.from.clone(), until: self.until.clone() });
        let mut config = self.config.clone();
        let needed = Settings::needed_lines(self.flow, windows.as_ref());
        config.extend((self.debug_info && needed.is_empty()).then(|| DEBUG_INFO.to_owned()));
        config.extend(needed);
        let counting = match (&self.profile_use, self.uncounted) {
            (Some(profile), _) => Counting::Used(profile.clone()),
            (None, true) => Counting::Off,
            (None, false) => Counting::On,
        };
        Settings {
            output: self.output.clone(),
            job: self.place.job(&self.command),
            guest: Options { refresh: self.refresh, ..self.machine.options(MEM_MIB) },
            build: BuildOptions {
                config,
                only: self.only.clone(),
                jobs: self.jobs,
                counting,
                limit: self.build_limit.map(Duration::from_secs),
            },
            reading: if self.in_place { Reading::InGuest } else { Reading::OfMemory },
            flow: self.flow,
            windows,
        }
    }
}

/// Builds, boots, runs, records, reports.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    kprism_signals::catch(Second::EndsProcess)?;
    record_and_report(args, progress, out).or_else(ended::interrupted).or_else(|error| match error
        .downcast_ref::<kprism_lab::Error>(
    ) {
        Some(kprism_lab::Error::Unfinished(_)) => {
            progress.error(&format!("kprism: {error:#}"));
            Ok(Outcome::Code(exit::LIMIT))
        }
        _ => Err(error),
    })
}

fn record_and_report(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let settings = args.settings();
    let records = args.empty || !args.command.is_empty();
    if records {
        suits(&settings)?;
    }
    let ready = prepare(&settings, progress)?;
    if !records {
        let (folder, image) = (ready.kernel.folder.display(), ready.kernel.image.display());
        progress.say(&format!("ready: {} in {folder}, {image}", ready.prepared.kernel().release));
        return Ok(Outcome::Done);
    }
    let mut output = Output::new(out, progress);
    let (run, ran) = record(&settings, &ready, progress, &mut |p| output.pass(p))?;
    if ran.ended == Ended::Normal {
        super::cover::tell(run.dir(), args.show.as_deref(), progress, out)?;
    }
    Ok(Outcome::Code(ended::code(&ran)))
}
