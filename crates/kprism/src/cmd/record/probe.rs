// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record probe`: values where a condition holds, at any place of the kernel or of a program.
//!
//! [`kprism_record::probe`] records; here are the options, and what is printed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use kprism_lab::Prepared;
use kprism_probe::plan::file::Compiled;
use kprism_profile::parse;
use kprism_record::guest::Guest;
use kprism_record::probe::{
    self as recorder, JumpMode, KEYS, Recorded, Settings, load, record, summary_lines,
};
use kprism_session::Progress;
use kprism_session::probe::Loaded;
use kprism_signals::Second;

use super::probe_args::ProbeArgs;
use crate::cmd::ended;
use crate::cmd::guest_args::{GuestArgs, PlaceArgs, no_guest};
use crate::cmd::pass::Output;
use crate::exit::{self, Outcome};
use crate::given::Given;

pub const HELP: &str = "\
Places: FUNC (its entry), FUNC%return, FUNC+OFFSET, FILE:LINE, 0xADDRESS.
They are looked up in --exec or -k if given, else in the program that is run, then in the
running kernel's BTF.

Examples:
  kprism record probe 'main.c:40 if n % 100 == 0' --collect n,name,*item -- ./program
  kprism record probe 'tcp_sendmsg if size > 65536' --collect size,'$comm' -a
  kprism record probe 'vfs_read%return if $retval < 0' --collect '$retval,$duration' -- CMD
  kprism record probe 'vfs_read%return if $retval > 0' --hist '$retval' --by '$comm' -a
  kprism record probe 'work' --collect '$args' --stop-when 'fail' --last 1000 -- ./program
  kprism record probe 'vfs_read%return if $retval > 0' --by '$comm' --sum '$retval' --interval 1s -a
  kprism record probe 'tcp_sendmsg' --printf '\"%s: %lu\\n\",$comm,size' -a; kprism script probe
  kprism record probe -f probes.kp -- CMD          # a file of probes (docs/probe-files.md)
  kprism record probe 'parse' --exec /usr/lib/libx.so --collect '$args,$regs' -p 1234

Nothing outlives kprism, also not kill -9 (of --jump: some unused memory in the program). Then: kprism report probe, kprism script probe.

Exit codes: 0 done, 1 no hit, 2 error, 130 interrupted.";

/// Options fixed when probes are compiled.
const COMPILED: [&str; 24] = [
    "probes",
    "file",
    "collect",
    "strings",
    "debug_file",
    "vmlinux",
    "vars",
    "thread_vars",
    "for_gdb",
    "set",
    "by",
    "hist",
    "linear",
    "sum",
    "min",
    "max",
    "avg",
    "latest",
    "printf",
    "skip",
    "pass",
    "start_when",
    "pause_when",
    "stop_when",
];

/// Options of `kprism record probe`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    what: ProbeArgs,
    /// Command to run; its hits, and those of what it starts, count (with -p only those of PID, while it runs)
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
    /// Probes that `kprism compile` made, on this machine or another
    #[arg(long, value_name = "FILE", conflicts_with_all = COMPILED)]
    pub program: Option<PathBuf>,
    /// Stop after so many records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub stop_after: Option<u32>,
    /// Keep the last N records only, and write them at the end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub last: Option<u32>,
    /// Combinations of --by that each probe counts, at most [default: 4096]
    #[arg(long, value_name = "N", help_heading = "Counts", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub keys: Option<u32>,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub duration: Option<Duration>,
    /// Print the counts so far to standard error each time that this time is over, from 10ms on
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub interval: Option<Duration>,
    /// Write the counts so far into the run folder each time that this time is over, for `kprism top`
    #[arg(long, hide = true, value_name = "TIME", value_parser = interval, conflicts_with = "interval")]
    current: Option<Duration>,
    /// Test conditions in the program itself, behind a jump that is written over the place, where a trap would cost more: `auto`
    /// where it can be, `only` or not at all. Changes the code of -p PID or CMD while it is recorded
    #[arg(long, value_name = "WHEN", default_value = "never")]
    pub jump: Jump,
    /// Ring buffer for each CPU, such as 512K or 16M
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = kprism_profile::parse::ring_kib)]
    pub buffer_size: u64,
    /// Hits of everybody count
    #[arg(short, long, group = "who")]
    pub all: bool,
    /// Hits of this process, and of what it starts, count (can be repeated)
    #[arg(short, long, value_name = "PID", group = "who")]
    pub pid: Vec<u32>,
    /// Run folder
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub output: PathBuf,
    /// Record in a guest with a stock kernel; its debug information is -k
    #[arg(long, requires = "command", conflicts_with_all = ["pid", "duration"])]
    guest: bool,
    /// Record every instruction of the guest too: records of probes stand on the timeline of the flow (with --guest)
    #[arg(long, requires = "guest")]
    flow: bool,
    /// The guest's flow is recorded from outside (said by --flow to the recorder in the guest)
    #[arg(long, hide = true, requires = "command", conflicts_with_all = ["guest", "duration"])]
    beside_flow: bool,
    #[command(flatten, next_help_heading = "Guest")]
    place: PlaceArgs,
    #[command(flatten)]
    guest_args: GuestArgs,
}

/// Whether probes of programs get jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Jump {
    /// Where they can
    Auto,
    /// Never
    Never,
    /// All, or nothing is recorded
    Only,
}

/// An interval that leaves time to print.
fn interval(text: &str) -> Result<Duration, String> {
    let time = parse::duration(text)?;
    match time < Duration::from_millis(10) {
        true => Err("the counts are printed every 10ms at most".to_owned()),
        false => Ok(time),
    }
}

impl Args {
    /// The run folder, if counts can be read from it while it is written.
    pub fn growing(&self) -> Result<PathBuf> {
        if self.guest {
            bail!("--guest does not go with `kprism top`: the counts are in the guest until its end");
        }
        if self.interval.is_some() {
            bail!("--interval: write it behind `kprism top`, which shows the counts");
        }
        Ok(self.output.clone())
    }

    /// The file of this machine that another one needs.
    pub fn sent(&self) -> Option<&Path> {
        let file = self.what.file.as_deref().filter(|path| path.as_os_str() != "-");
        self.program.as_deref().or(file)
    }
}

/// Records.
pub fn run(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    if args.command.is_empty() && args.pid.is_empty() && !args.all {
        bail!("whose hits? name a command (-- CMD), a process (-p PID), or everybody (-a)");
    }
    if !args.guest {
        no_guest(given)?;
    } else if args.current.is_some() {
        bail!("--current does not go with --guest");
    }
    if args.jump != Jump::Never {
        if args.guest {
            bail!("--jump does not go with --guest: jumps are for programs of this machine");
        }
        if args.jump == Jump::Only && args.all {
            bail!(
                "--jump only does not go with -a: name the process that gets the jumps (-p PID), or a command"
            );
        }
    }
    let mut probes = args.what.probes(given)?;
    // Probes for a guest are compiled with its kernel's types, not with those of the kernel that runs here.
    let elsewhere = args.program.is_some() || args.what.vmlinux.is_some() || args.what.exec.is_some();
    let guest = args.guest.then(|| args.guest_args.guest(args.place.job(&args.command))).transpose()?;
    let beside_flow = args.flow || args.beside_flow;
    let (mut prepared, mut described) = (None, None);
    if let Some(guest) = guest.as_ref().filter(|_| !elsewhere) {
        kprism_signals::catch(Second::EndsProcess)?;
        let prepared = prepared.insert(recorder::guest::prepare(guest, beside_flow, progress)?);
        described = Some(recorder::guest::describe(prepared, &probes.events()?)?);
    }
    probes.kernel = described.as_ref().map(|described| described.kernel.clone());
    let compiled = match &args.program {
        Some(path) => load(&kprism_placed::given(path), args.what.exec.as_deref(), progress)?,
        None => probes.compile(&args.command, &args.pid, progress)?,
    };
    let has_keys =
        compiled.plans.iter().any(|plan| plan.probe.tally.as_ref().is_some_and(|t| !t.keys.is_empty()));
    if args.keys.is_some() && !has_keys {
        bail!("--keys: nothing is counted by keys (--by)");
    }
    let settings = Settings {
        output: kprism_placed::output(&args.output),
        command: args.command.clone(),
        processes: args.pid.clone(),
        everybody: args.all,
        stop_after: args.stop_after,
        last: args.last,
        keys: args.keys.unwrap_or(KEYS),
        duration: args.duration,
        interval: args.interval.or(args.current),
        keep_current: args.current.is_some(),
        beside_flow,
        jump: match args.jump {
            Jump::Never => JumpMode::Never,
            Jump::Auto => JumpMode::Auto,
            Jump::Only => JumpMode::Only,
        },
        buffer_kib: args.buffer_size,
        probes: probes.specs(),
        collect: probes.collected(),
    };
    if let Some(guest) = &guest {
        kprism_signals::catch(Second::EndsProcess)?;
        let prepared = match prepared {
            Some(prepared) => prepared,
            None => recorder::guest::prepare(guest, beside_flow, progress)?,
        };
        return in_guest(args, &compiled, &settings, (guest, &prepared), progress, out);
    }
    kprism_signals::catch(Second::Ignored)?;
    let recorded = record(compiled, &settings, progress, &mut |since, so_far| {
        if args.interval.is_some() {
            eprint!("{}", kprism_report::probe::so_far(since, so_far));
        }
    })?;
    let Recorded { run, description, full, remarks, .. } = &recorded;
    summary_lines(description, args.last).iter().for_each(|line| progress.say(line));
    if let Some(why) = full {
        eprintln!("kprism: {why}; recording ended there, and what was recorded until then is kept");
    }
    remarks.iter().for_each(|line| progress.say(line));
    progress.say(&format!("recorded in {}; see: kprism report probe", run.dir().display()));
    Ok(match recorded {
        Recorded { interrupted: true, .. } => Outcome::Code(exit::INTERRUPTED),
        Recorded { full: Some(_), .. } => Outcome::Code(NOT_ALL),
        _ if recorded.not_attached > 0 => Outcome::Code(NOT_ALL),
        _ if recorded.hits() == 0 => Outcome::NothingMatched,
        _ => Outcome::Done,
    })
}

/// Some probes could not be attached, or not all records could be written.
const NOT_ALL: u8 = 2;

/// Records in a guest, and says what was recorded.
fn in_guest(
    args: &Args,
    compiled: &Compiled,
    settings: &Settings,
    guest: (&Guest, &Prepared),
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let mut output = Output::new(out, progress);
    let (run, ran) = recorder::guest::record(compiled, settings, guest, progress, &mut |p| output.pass(p))?;
    if let Ok(loaded) = Loaded::open(&run) {
        summary_lines(&loaded.description, args.last).iter().for_each(|line| progress.say(line));
        progress.say(&format!("recorded in {}; see: kprism report probe", run.dir().display()));
    }
    Ok(Outcome::Code(ended::code(&ran)))
}
