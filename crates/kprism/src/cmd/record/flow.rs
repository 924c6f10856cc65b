// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record flow`: perf records Intel PT, kprism imports it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use kprism_profile::parse;
use kprism_record::flow::{Filter, Rings, Settings, record};
use kprism_session::Progress;
use kprism_signals::Second;

use crate::exit::Outcome;

pub const HELP: &str = "\
Examples:
  kprism record flow --user -- ls             one program, no rights needed
  kprism record flow --cyc -- ls              with the kernel, as root
  kprism record flow --filter vfs_read -- ls  only inside one kernel function
  kprism record flow -p 1234 --duration 2     a process that runs already
  kprism record flow -a --snapshot=1M         the last MiB of each CPU at Ctrl-C,
                                              and at each SIGUSR2
  kprism record flow --snapshot-when 'vfs_read%return if $duration > 1ms' -- CMD
                                              what led to each slow read, as root

Without the PMU intel_pt (other processors, most virtual machines), `kprism lab run`
makes the same packets in a guest.";

/// Options of `kprism record flow`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Command to record
    #[arg(trailing_var_arg = true, value_name = "CMD", required_unless_present_any = ["all_cpus", "pid"])]
    command: Vec<String>,
    /// Record everything that runs, on all CPUs; until Ctrl-C, or while CMD runs
    #[arg(short, long, conflicts_with = "pid")]
    all_cpus: bool,
    /// Record this process and its threads; until it ends, or Ctrl-C
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub output: PathBuf,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    duration: Option<Duration>,
    /// Keep what perf wrote, as RUN.perf.data
    #[arg(long)]
    keep_perf_data: bool,
    /// Trace the kernel only
    #[arg(long, conflicts_with = "user")]
    kernel: bool,
    /// Trace programs only; without either, both
    #[arg(long)]
    user: bool,
    /// Trace only while inside this function: of the kernel, or with @FILE of a program (can be repeated)
    #[arg(long, value_name = "FUNC[@FILE]", value_parser = Filter::parse)]
    filter: Vec<Filter>,
    /// Keep only the last SIZE bytes of each CPU: saved at the end, and at SIGUSR2
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, value_parser = parse::bytes)]
    snapshot: Option<Option<u64>>,
    /// Keep only the last bytes of each CPU before this holds, each time: FUNC[%return] [if EXPR]; as root
    #[arg(long, value_name = "CONDITION")]
    snapshot_when: Option<String>,
    /// Cycle counts between packets, for fine times; with N at most each 2^(N-1) cycles
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true,
        value_parser = clap::value_parser!(u8).range(0..=15), help_heading = "Packets")]
    cyc: Option<Option<u8>>,
    /// A time packet each 2^N ticks of the crystal clock
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15), help_heading = "Packets")]
    mtc_period: Option<u8>,
    /// A place to begin decoding each 2^(N+11) bytes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15), help_heading = "Packets")]
    psb_period: Option<u8>,
    /// perf's buffer for packets, for each CPU; larger ones lose less
    #[arg(long, value_name = "SIZE", value_parser = parse::bytes, help_heading = "Packets")]
    buffer: Option<u64>,
}

impl Args {
    /// As the library takes them.
    fn settings(&self) -> Settings {
        Settings {
            output: self.output.clone(),
            command: self.command.clone(),
            all_cpus: self.all_cpus,
            pid: self.pid,
            duration: self.duration,
            keep_perf_data: self.keep_perf_data,
            rings: match (self.kernel, self.user) {
                (true, _) => Rings::Kernel,
                (_, true) => Rings::User,
                (false, false) => Rings::Both,
            },
            filter: self.filter.clone(),
            // A condition needs the ring, of perf's own size if no other is given.
            snapshot: self.snapshot.or(self.snapshot_when.as_ref().map(|_| None)),
            snapshot_when: self.snapshot_when.clone(),
            cyc: self.cyc,
            mtc_period: self.mtc_period,
            psb_period: self.psb_period,
            buffer: self.buffer,
        }
    }
}

/// Records and imports.
pub fn run(args: &Args, progress: &Progress) -> Result<Outcome> {
    kprism_signals::catch(Second::EndsProcess)?;
    if args.snapshot.is_some() {
        kprism_signals::catch_snapshot()?;
    }
    let imported = record(&args.settings(), progress)?;
    Ok(if imported.empty { Outcome::NothingMatched } else { Outcome::Done })
}
