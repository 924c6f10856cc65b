// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of `kprism record durations`, and what they mean to the recorder.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use kprism_profile::parse;
use kprism_record::durations::{self as recorder, Scope, Settings};

use crate::cmd::guest_args::{GuestArgs, PlaceArgs};
use crate::cmd::on;

/// Options of `kprism record durations`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Command to record, with all that it starts
    #[arg(trailing_var_arg = true, value_name = "CMD",
        required_unless_present_any = ["all", "pid", "tid", "cgroup"])]
    pub command: Vec<String>,
    /// Write the numbers so far into the run folder each time that this time is over, for `kprism top`
    #[arg(long, hide = true, value_name = "TIME", value_parser = kprism_profile::parse::duration)]
    pub current: Option<Duration>,
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub output: PathBuf,
    /// Leave calls out that take less than this, such as 1ms or 100us: in the kernel, at no cost in buffer
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub longer_than: Option<Duration>,
    /// What measures: the kernel's tracer, or BPF at each function named with -T
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    pub backend: Backend,
    /// Keep no calls but each function's count, total, self, least, most, histogram; by BPF
    #[arg(long)]
    pub aggregate: bool,
    /// Keep or count only calls for which this C expression holds: parameters, $comm, $pid, $cgroup; $retval, $duration; by BPF
    #[arg(long = "if", value_name = "EXPR", conflicts_with = "remeasure")]
    pub condition: Option<String>,
    /// Run CMD once more with only the functions found traced, every call of them; see: report durations --remeasured
    #[arg(long, requires = "command", conflicts_with = "aggregate")]
    pub remeasure: bool,
    /// Only this function; globs, and GLOB:mod:MODULE (can be repeated)
    #[arg(short = 'T', long = "trace-funcs", value_name = "FUNC", help_heading = "Functions")]
    pub functions: Vec<String>,
    /// Not this function (can be repeated)
    #[arg(short = 'N', long = "notrace-funcs", value_name = "FUNC", help_heading = "Functions")]
    pub not_functions: Vec<String>,
    /// Only this function with all that it calls (can be repeated)
    #[arg(short = 'G', long = "graph-funcs", value_name = "FUNC", help_heading = "Functions")]
    pub graph: Vec<String>,
    /// Not the functions that this function calls (can be repeated)
    #[arg(short = 'g', long = "nograph-funcs", value_name = "FUNC", help_heading = "Functions")]
    pub not_graph: Vec<String>,
    /// At most so many calls inside each other
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Functions")]
    pub depth: Option<u32>,
    /// Leave out functions that ran in interrupts
    #[arg(long, help_heading = "Functions")]
    pub no_irqs: bool,
    /// Durations without the time the task did not run
    #[arg(long, help_heading = "Functions")]
    pub no_sleep_time: bool,
    /// Record everybody; until Ctrl-C, or while CMD runs
    #[arg(short, long, group = "who", help_heading = "Whose calls")]
    pub all: bool,
    /// Record this process, its threads and what it starts (can be repeated); until it ends, or Ctrl-C
    #[arg(
        short,
        long,
        value_name = "PID",
        group = "who",
        conflicts_with = "guest",
        help_heading = "Whose calls"
    )]
    pub pid: Vec<u32>,
    /// Record this thread (can be repeated)
    #[arg(
        short,
        long,
        value_name = "TID",
        group = "who",
        conflicts_with = "guest",
        help_heading = "Whose calls"
    )]
    pub tid: Vec<u32>,
    /// Record what runs in this control group now, and what it starts; a path below /sys/fs/cgroup
    #[arg(long, value_name = "PATH", group = "who", conflicts_with = "guest", help_heading = "Whose calls")]
    pub cgroup: Option<PathBuf>,
    /// Record these CPUs, as in 0-3,7
    #[arg(short = 'C', long, value_name = "CPUS", help_heading = "Whose calls")]
    pub cpu: Option<String>,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub duration: Option<Duration>,
    /// Record this event too, SYSTEM:NAME with globs (can be repeated)
    #[arg(short = 'e', long = "event", value_name = "EVENT", help_heading = "Trace")]
    pub more_events: Vec<String>,
    /// Leave out task switches and interrupts: self time then includes the interrupts
    #[arg(long, help_heading = "Trace")]
    pub no_events: bool,
    /// Ring buffer of each CPU, such as 512K or 16M; larger ones lose less
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = parse::ring_kib, help_heading = "Trace")]
    pub buffer_size: u64,
    /// The trace's clock, as in trace_clock
    #[arg(long, value_name = "CLOCK", default_value = "local", help_heading = "Trace")]
    pub clock: String,
    /// Use the machine's one buffer, as kernels before 6.11 need, instead of an own instance
    #[arg(long, help_heading = "Trace")]
    pub top_level: bool,
    /// Record in a guest with a stock kernel instead of this machine
    #[arg(long, requires = "command", help_heading = "Guest")]
    pub guest: bool,
    #[command(flatten, next_help_heading = "Guest")]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub guest_args: GuestArgs,
}

/// The measuring backend.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Backend {
    /// ftrace, or BPF with --aggregate or where the kernel has no function_graph
    Auto,
    /// function_graph
    Ftrace,
    /// Trampolines: the cheapest for each call
    BpfFentry,
    /// kprobe.session or kprobe.multi: thousands of functions at once
    BpfKprobe,
}

impl Args {
    /// As the library takes them.
    pub fn settings(&self) -> Result<Settings> {
        if self.current.is_some() && (!self.aggregate || self.guest) {
            bail!("--current goes with --aggregate, and without --guest");
        }
        let guest = match self.guest {
            true => Some(self.guest_args.guest(self.place.job(&self.command))?),
            false => None,
        };
        Ok(Settings {
            output: kprism_placed::output(&self.output),
            command: self.command.clone(),
            backend: match self.backend {
                Backend::Auto => recorder::Backend::Auto,
                Backend::Ftrace => recorder::Backend::Ftrace,
                Backend::BpfFentry => recorder::Backend::BpfFentry,
                Backend::BpfKprobe => recorder::Backend::BpfKprobe,
            },
            aggregate: self.aggregate,
            condition: self.condition.clone(),
            remeasure: self.remeasure,
            trace: self.trace(),
            guest,
            keep_current: self.current,
        })
    }

    /// The same in the words of `kprism-recorder`.
    ///
    /// # Errors
    /// Options do not go together.
    pub fn for_recorder(&self) -> Result<on::Words> {
        let settings = recorder::for_recorder(&self.settings()?);
        Ok(settings.map(|settings| {
            let words = ["record", on::RUN, settings.as_str()].into_iter();
            words.chain(self.command.iter().map(String::as_str)).map(Into::into).collect()
        }))
    }

    /// The run folder, if counts can be read from it while it is written.
    pub fn growing(&self) -> Result<PathBuf> {
        if !self.aggregate {
            bail!(
                "`kprism top` shows durations that are counted in the kernel: add --aggregate and -T FUNC, or record \
                 without `top`, then: kprism tui"
            );
        }
        if self.guest {
            bail!("--guest does not go with `kprism top`: the counts are in the guest until its end");
        }
        Ok(self.output.clone())
    }

    fn trace(&self) -> kprism_tracefs::Settings {
        let scope = match (&self.cgroup, self.all) {
            (Some(group), _) => Scope::Cgroup(group.clone()),
            (None, true) => Scope::All,
            (None, false) if !self.pid.is_empty() => Scope::Processes(self.pid.clone()),
            (None, false) if !self.tid.is_empty() => Scope::Threads(self.tid.clone()),
            (None, false) => Scope::Command,
        };
        kprism_tracefs::Settings {
            scope,
            longer_than: self.longer_than,
            functions: self.functions.clone(),
            not_functions: self.not_functions.clone(),
            lenient: false,
            graph: self.graph.clone(),
            not_graph: self.not_graph.clone(),
            depth: self.depth,
            cpus: self.cpu.clone(),
            sleep_time: !self.no_sleep_time,
            interrupts: !self.no_irqs,
            events: !self.no_events,
            more_events: self.more_events.clone(),
            buffer_kib: self.buffer_size,
            clock: self.clock.clone(),
            top_level: self.top_level,
            duration: self.duration,
            // The lab has the guest's already.
            symbols: !self.guest,
        }
    }
}
