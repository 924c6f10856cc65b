// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record probe`: values where a condition holds, at any place of the kernel or of a program.
//!
//! Out: `streams/probe/` ([`kprism_probe::stream`]), and what was counted in the manifest too.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kprism_bpf::host;
use kprism_lab::Share;
use kprism_probe::compiled::Compiled;
use kprism_probe::plan::Site;
use kprism_probe::session::{Config, Session, Who};
use kprism_probe::stream::{Counts, Description, VERSION};
use kprism_store::{Instrument, Manifest, Run};
use kprism_tracefs::signals;
use serde_json::Value;

use super::func_args::{kib, time};
use super::probe_args::{ProbeArgs, tell};
use super::probe_kept::Kept;
use super::watch::{self, Watch};
use crate::cmd::lab::{self, GuestArgs, PacketArgs, PlaceArgs, RunArgs};
use crate::cmd::probe::Loaded;
use crate::exit::{self, Outcome};
use kprism_session::Progress;
use kprism_session::flow;

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
    if let Some(name) = args.command.first() {
        // Before anything is attached, and a run of earlier is gone.
        here(name)?;
    }
    if let (false, Some(pid)) = (args.command.is_empty(), args.pid.first()) {
        progress.say(&format!(
            "note: hits of process {pid} count, not those of the command, which is run meanwhile"
        ));
    }
    let plans = program.plans;
    // All of them together are a gigabyte at most.
    let most = (1_u64 << 30) / (host::possible_cpus() as u64).next_power_of_two();
    let bytes = args.buffer_size.saturating_mul(1024).min(most).max(1 << 16);
    let who = match (args.all, args.pid.is_empty()) {
        (true, _) => Who::All,
        (_, false) => Who::Processes(args.pid.clone()),
        _ => Who::Children,
    };
    let config = Config {
        who,
        ring_bytes: bytes.next_power_of_two() as u32,
        stop_after: args.stop_after,
        vars: program.vars.iter().map(|(_, value)| *value).collect(),
        keys: args.keys.unwrap_or(KEYS),
    };
    signals::catch();
    let session = Session::start(plans, &config)?;
    session.said().iter().for_each(|note| progress.say(&format!("note: {note}")));
    session.failed().iter().for_each(|why| progress.say(&format!("not attached: {why}")));
    let (asked, given) = (config.ring_bytes, session.ring_bytes());
    if given < asked || args.buffer_size.saturating_mul(1024) > bytes {
        let given = kprism_profile::units::grouped(u64::from(given) / 1024);
        progress.say(&format!("note: each CPU's ring has {given} KiB: all together have 512 MiB at most"));
    }
    if session.numbers_differ() {
        progress.say(
            "note: in a PID namespace: numbers of processes in records and conditions are the machine's, not this \
             namespace's",
        );
    }
    let probes = session.plans().iter().map(|plan| plan.probe.clone()).collect();
    let mut description = Description { version: VERSION, probes, ..Description::default() };

    let run = Run::create(&args.output)?;
    let mut manifest = begun(args);
    run.write_manifest(&manifest)?;
    let folder = run.probe();
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    write_description(&folder, &description)?;
    let keys = description.probes.iter().filter_map(|p| p.tally.as_ref()).flat_map(|tally| &tally.keys);
    let mut items = description.probes.iter().flat_map(|p| &p.items).chain(keys);
    if items.any(|item| item.name == "$stack") {
        let symbols = run.dir().join("symbols");
        fs::create_dir_all(&symbols).with_context(|| symbols.display().to_string())?;
        // Not fs::copy: files of /proc have no length.
        fs::write(symbols.join("kallsyms"), flow::read(Path::new("/proc/kallsyms"))?)
            .context("symbols/kallsyms")?;
    }
    let watched = watch(args, &session, &folder.join("hits.bin"), progress)?;
    description.counts = session.counts();
    description.totals = match description.probes.iter().any(|probe| probe.tally.is_some()) {
        true => session.totals()?,
        false => Vec::new(),
    };
    let names = program.vars.into_iter().map(|(name, _)| name);
    description.variables = names.zip(session.variables()).collect();
    write_description(&folder, &description)?;
    manifest.exit_code = watched.exit_code;
    manifest.stopped = match &watched.full {
        Some(why) => Some(format!("records could not be written: {why}")),
        None => watched.interrupted.then(|| "interrupted".to_owned()),
    };
    let sum = |f: fn(&Counts) -> u64| description.counts.iter().map(f).sum::<u64>();
    manifest.instruments = vec![Instrument::Probe];
    manifest.other.insert("records".into(), watched.records.into());
    manifest.other.insert("lost_records".into(), sum(|c| c.lost).into());
    let counts = serde_json::to_value(&description.counts).context("counts")?;
    manifest.other.insert("probes".into(), counts);
    let not_last = args.last.is_some().then(|| sum(|c| c.lost)).filter(|lost| *lost > 0);
    let not_last = not_last.map(|lost| {
        format!(
            "note: {lost} records found no room, so those kept need not be the last: a larger --buffer-size, or fewer hits"
        )
    });
    let notes: Vec<&String> = session.said().iter().chain(&not_last).collect();
    manifest.other.insert("notes".into(), serde_json::to_value(notes).context("notes")?);
    manifest.other.insert("not_attached".into(), session.failed().into());
    let account = Loaded::open(&run)?.account(&manifest);
    manifest.accounts.insert(Instrument::Probe, account);
    run.write_manifest(&manifest)?;
    told(&description, args.last).iter().chain(&not_last).for_each(|line| progress.say(line));
    if let Some(why) = &watched.full {
        eprintln!("kprism: {why}; recording ended there, and what was recorded until then is kept");
    }
    if let Some(line) = &watched.told {
        progress.say(line);
    }
    progress.say(&format!("recorded in {}; see: kprism report probe", run.dir().display()));
    Ok(match watched {
        Watched { interrupted: true, .. } => Outcome::Code(exit::INTERRUPTED),
        Watched { full: Some(_), .. } => Outcome::Code(NOT_ALL),
        _ if !session.failed().is_empty() => Outcome::Code(NOT_ALL),
        _ if sum(|c| c.hits) == 0 => Outcome::NothingMatched,
        _ => Outcome::Done,
    })
}

/// Some probes could not be attached, or not all records could be written.
const NOT_ALL: u8 = 2;

/// Combinations of keys that a probe counts, unless others are asked for.
const KEYS: u32 = 4096;

/// Refuses a command that is not there.
fn here(name: &str) -> Result<()> {
    match super::probe_args::found(name) {
        Some(path) => fs::metadata(&path).map(|_| ()).with_context(|| path.display().to_string()),
        None => bail!("{name}: no such program in $PATH"),
    }
}

/// The probes of a file, or of the command line.
fn compiled(args: &Args, progress: &Progress) -> Result<Compiled> {
    let Some(path) = &args.program else { return args.what.compiled(&args.command, &args.pid, progress) };
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
        told(loaded.description(), args.last).iter().for_each(|line| progress.say(line));
        progress.say(&format!("recorded in {}; see: kprism report probe", run.dir().display()));
    }
    Ok(Outcome::Code(lab::code(&ran)))
}

fn begun(args: &Args) -> Manifest {
    let options: Vec<(&str, Value)> = vec![
        ("record", "probe".into()),
        ("probes", args.what.probes.clone().into()),
        ("collect", args.what.collect.clone().into()),
        ("stop_after", args.stop_after.into()),
        ("last", args.last.into()),
    ];
    watch::begun(&args.command, options)
}

fn write_description(folder: &Path, description: &Description) -> Result<()> {
    let path = folder.join("probes.json");
    let mut text = serde_json::to_string_pretty(description).context("probes.json")?;
    text.push('\n');
    fs::write(&path, text).with_context(|| path.display().to_string())
}

struct Watched {
    exit_code: Option<i32>,
    interrupted: bool,
    records: u64,
    /// Why not all records are in the file.
    full: Option<String>,
    /// How the command ended, if that should be said.
    told: Option<String>,
}

/// Runs the command, or waits for as long as was asked, and takes records out as they come.
fn watch(args: &Args, session: &Session, path: &Path, progress: &Progress) -> Result<Watched> {
    const TICK: Duration = Duration::from_millis(5);
    let mut file = Kept::create(path, args.last)?;
    let mut reader = session.reader();
    let mut watch = Watch::begin(&args.command, args.pid.clone(), args.duration, progress)?;
    hurry();
    loop {
        file.take(|take| reader.drain(take));
        if watch.ended()? {
            break;
        }
        let enough = session.is_over() || file.is_full();
        if enough {
            // A command that has given enough goes on without probes.
            session.stop();
        }
        // Its time may be over all the same, or an interrupt may ask for its end.
        if watch.is_over() || (enough && !watch.has_command()) {
            break;
        }
        std::thread::sleep(TICK);
    }
    session.stop();
    file.take(|take| reader.finish(take));
    let (records, full) = file.end();
    let told = watch.told();
    Ok(Watched { exit_code: watch.exit_code, interrupted: signals::requested(), records, full, told })
}

/// Lets this thread run before those that fill the rings: it takes little of a CPU, and what it comes too late for is lost.
/// The command has been started already, and stays as it is. Without the right to, all stays as it is.
fn hurry() {
    // SAFETY: setpriority touches no memory; 0 is this thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
}

/// What was counted, a line for each probe, and what is wrong. `last`: only so many records are kept.
fn told(description: &Description, last: Option<u32>) -> Vec<String> {
    let mut lines = Vec::new();
    for (probe, counts) in description.probes.iter().zip(&description.counts) {
        let mut said = crate::cmd::probe_counts::counted(probe, counts).into_iter();
        lines.extend(said.next().map(|first| format!("{}: {first}", probe.place)));
        lines.extend(said);
    }
    lines.extend(crate::cmd::probe_counts::sums(&description.probes, &description.counts));
    lines.extend(last.map(|last| format!("of all records the last {last} are kept")));
    let variables = description.variables.iter().map(|(name, value)| format!("${name} = {value}"));
    lines.extend(variables);
    lines
}
