// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record probe`: values where a condition holds, at any place of the kernel or of a program.
//!
//! The library records ([`kprism_session::record::probe`]); here are the options, the guest, and what is printed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kprism_lab::Share;
use kprism_probe::compiled::Compiled;
use kprism_probe::plan::Site;
use kprism_probe::stream::Description;
use kprism_session::probe::Loaded;
use kprism_session::record::probe::{KEYS, Recorded, Settings, record};
use kprism_session::record::probes::tell;
use kprism_session::{Progress, flow};
use kprism_tracefs::signals;

use super::func_args::{kib, time};
use super::probe_args::ProbeArgs;
use crate::cmd::lab::{self, GuestArgs, PacketArgs, PlaceArgs, RunArgs};
use crate::exit::{self, Outcome};

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
  kprism record probe 'parse' --exec /usr/lib/libx.so --collect '$args,$regs' -p 1234

Nothing outlives kprism, also not kill -9. Then: kprism report probe, kprism script probe.

Exit codes: 0 done, 1 no hit, 2 error, 130 interrupted.";

/// What is in a file of compiled probes already.
const COMPILED: [&str; 15] = [
    "probes",
    "collect",
    "debug_file",
    "vmlinux",
    "vars",
    "for_gdb",
    "set",
    "by",
    "hist",
    "linear",
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
    program: Option<PathBuf>,
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
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub duration: Option<Duration>,
    /// Ring buffer for each CPU, such as 512K or 16M
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = kib)]
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
    #[command(flatten, next_help_heading = "Guest")]
    place: PlaceArgs,
    #[command(flatten)]
    guest_args: GuestArgs,
}

/// Records.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    if args.command.is_empty() && args.pid.is_empty() && !args.all {
        bail!("whose hits? name a command (-- CMD), a process (-p PID), or everybody (-a)");
    }
    if !args.guest
        && let Some(option) = args.place.given().or(args.guest_args.given())
    {
        bail!("{option} is about a guest: add --guest, or leave it out");
    }
    let program = compiled(args, progress)?;
    let has_keys =
        program.plans.iter().any(|plan| plan.probe.tally.as_ref().is_some_and(|t| !t.keys.is_empty()));
    if args.keys.is_some() && !has_keys {
        bail!("--keys: nothing is counted by keys (--by)");
    }
    if args.guest {
        kprism_lab::interrupt::catch_signals();
        return in_guest(args, &program, progress, out);
    }
    let settings = Settings {
        output: args.output.clone(),
        command: args.command.clone(),
        processes: args.pid.clone(),
        everybody: args.all,
        stop_after: args.stop_after,
        last: args.last,
        keys: args.keys.unwrap_or(KEYS),
        duration: args.duration,
        buffer_kib: args.buffer_size,
        probes: args.what.probes.clone(),
        collect: args.what.collect.clone(),
    };
    signals::catch();
    let recorded = record(program, &settings, progress)?;
    let Recorded { run, description, full, remarks, .. } = &recorded;
    told(description, args.last).iter().for_each(|line| progress.say(line));
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

/// The probes of a file, or of the command line.
fn compiled(args: &Args, progress: &Progress) -> Result<Compiled> {
    let Some(path) = &args.program else {
        return args.what.probes().compile(&args.command, &args.pid, progress);
    };
    let mut program = Compiled::parse(&flow::read(path)?, &path.display().to_string())?;
    if let Some(file) = &args.what.exec {
        elsewhere(&mut program, file)?;
    }
    program.plans.iter().for_each(|plan| tell(plan, progress));
    Ok(program)
}

/// The program that the probes are for lies at another place here.
fn elsewhere(program: &mut Compiled, file: &Path) -> Result<()> {
    let mut named = None;
    for plan in &mut program.plans {
        let Site::User { file: own, .. } = &mut plan.site else { continue };
        if named.get_or_insert_with(|| own.clone()) != own {
            bail!("--exec: the probes are for several programs ({}, {})", own.display(), file.display());
        }
        *own = file.to_owned();
        plan.probe.file = Some(file.display().to_string());
    }
    if named.is_none() {
        bail!("--exec: the probes are for the kernel, not for a program");
    }
    Ok(())
}

/// Where this program, the probes and the run are in a guest.
const GUEST: [&str; 3] = ["/kprism/kprism", "/kprism/probes", "/kprism/run"];

/// Gives the guest this program and the compiled probes; what it records is copied out.
fn in_guest(args: &Args, program: &Compiled, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let folder = tempfile::tempdir().context("a folder for the probes")?;
    let file = folder.path().join("probes");
    fs::write(&file, program.bytes()?).with_context(|| file.display().to_string())?;
    let prepared = lab::prepared(&args.guest_args, progress)?;
    let place = (&args.place, &args.guest_args);
    let run_args = RunArgs::recording(&args.command, args.output.clone(), place, PacketArgs::default());
    let mut job = run_args.job();
    let own = std::env::current_exe().context("this program's own file")?;
    job.shares.push(Share { host: own, guest: GUEST[0].into() });
    job.shares.push(Share { host: file, guest: GUEST[1].into() });
    let [kprism, probes, run] = GUEST.map(str::to_owned);
    // It is this program, outside, that says what was recorded.
    let words = ["-q", "record", "probe", "--program", &probes, "-o", &run];
    job.argv = std::iter::once(kprism).chain(words.map(str::to_owned)).collect();
    if args.all {
        job.argv.push("--all".to_owned());
    }
    if let Some(most) = args.stop_after {
        job.argv.extend(["--stop-after".to_owned(), most.to_string()]);
    }
    if let Some(last) = args.last {
        job.argv.extend(["--last".to_owned(), last.to_string()]);
    }
    if let Some(keys) = args.keys {
        job.argv.extend(["--keys".to_owned(), keys.to_string()]);
    }
    job.argv.extend(["--buffer-size".to_owned(), format!("{}K", args.buffer_size), "--".to_owned()]);
    job.argv.extend(args.command.iter().cloned());
    job.collect = Some(GUEST[2].into());
    let mut output = lab::Output::new(out, progress);
    let (run, ran) = lab::record(&run_args, &job, None, &prepared, &mut |p| output.pass(p))?;
    progress.clear();
    lab::complain(&ran, progress);
    let mut manifest = run.manifest()?;
    manifest.options.insert("record".into(), "probe".into());
    run.write_manifest(&manifest)?;
    let strings = |key: &str| {
        let all = manifest.other.get(key).and_then(|all| all.as_array()).into_iter().flatten();
        all.filter_map(|text| text.as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    strings("notes")
        .iter()
        .for_each(|note| progress.say(&format!("note: {}", note.trim_start_matches("note: "))));
    strings("not_attached").iter().for_each(|why| progress.say(&format!("not attached: {why}")));
    if let Ok(loaded) = Loaded::open(&run) {
        told(&loaded.description, args.last).iter().for_each(|line| progress.say(line));
        progress.say(&format!("recorded in {}; see: kprism report probe", run.dir().display()));
    }
    Ok(Outcome::Code(lab::code(&ran)))
}

/// What was counted, a line for each probe, and what is wrong. `last`: only so many records are kept.
fn told(description: &Description, last: Option<u32>) -> Vec<String> {
    let mut lines = Vec::new();
    for (probe, counts) in description.probes.iter().zip(&description.counts) {
        let mut said = kprism_probe::summary::counted(probe, counts).into_iter();
        lines.extend(said.next().map(|first| format!("{}: {first}", probe.place)));
        lines.extend(said);
    }
    lines.extend(kprism_probe::summary::sums(&description.probes, &description.counts));
    lines.extend(last.map(|last| format!("of all records the last {last} are kept")));
    let variables = description.variables.iter().map(|(name, value)| format!("${name} = {value}"));
    lines.extend(variables);
    lines
}
