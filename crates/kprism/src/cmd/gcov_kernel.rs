// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism lab gcov-kernel`: a kernel with gcov built, booted, loaded with a command, and its counters recorded.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_lab::{Ended, Options, Pace};
use kprism_record::gcov_kernel::{Build, Counts, DEBUG_INFO, Reading, Settings, prepare, record, suits};
use kprism_session::Progress;
use kprism_signals::Second;

use super::guest_args::PlaceArgs;
use super::lab::{self, Output};
use crate::exit::Outcome;

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

impl Args {
    /// As the library takes them.
    fn settings(&self) -> Settings {
        let mut config = self.config.clone();
        config.extend((self.debug_info || self.flow).then(|| DEBUG_INFO.to_owned()));
        let counting = match (&self.profile_use, self.uncounted) {
            (Some(profile), _) => Counts::Used(profile.clone()),
            (None, true) => Counts::Off,
            (None, false) => Counts::On,
        };
        Settings {
            output: self.output.clone(),
            job: self.place.job(&self.command),
            guest: Options {
                smp: self.smp,
                mem_mib: self.mem,
                append: self.append.clone(),
                modules: self.module.clone(),
                packages: self.package.clone(),
                pace: if self.fast { Pace::Fast } else { Pace::Exact },
                refresh: self.refresh,
                ..Options::default()
            },
            build: Build { config, only: self.only.clone(), jobs: self.jobs, counting },
            reading: if self.in_place { Reading::InGuest } else { Reading::OfMemory },
            flow: self.flow,
        }
    }
}

/// Builds, boots, runs, records, reports.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    kprism_signals::catch(Second::EndsProcess)?;
    record_and_report(args, progress, out).or_else(lab::interrupted)
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
    Ok(Outcome::Code(lab::code(&ran)))
}
