// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaches compiled probes on this machine, and records.
//!
//! Input: compiled probes and [`Settings`]. Output: a run with `streams/probe/` ([`kprism_probe::stream`]), whose manifest has
//! the counts and the account. Nothing stays attached when [`record`] returns, or the process ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kprism_bpf::{host, names};
use kprism_lab::Job;
use kprism_probe::attach::jump::{Outcome, Process, refusal};
use kprism_probe::attach::{Config, HitScope, Session};
use kprism_probe::plan::file::Compiled;
use kprism_probe::stream::shape::Shape;
use kprism_probe::stream::{Counts, Description, VERSION};
use kprism_store::{Instrument, Manifest, OptionKey, Run};
use kprism_tracefs::beside;
use serde_json::Value;

use kprism_session::probe::Loaded;
use kprism_session::{Progress, files};

use super::kept::Kept;
use crate::here;
use crate::wait::Wait;

/// Whether probes of a program get jumps in place of traps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JumpMode {
    /// No.
    #[default]
    Never,
    /// Where they can.
    Auto,
    /// All; else nothing is recorded.
    Only,
}

/// Settings of a recording.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The run folder to write.
    pub output: PathBuf,
    /// The command to run; empty for none.
    pub command: Vec<String>,
    /// Processes whose hits count, with those that they start. Empty: the command's.
    pub processes: Vec<u32>,
    /// Everybody's hits count.
    pub everybody: bool,
    /// Stop after so many records.
    pub stop_after: Option<u32>,
    /// Keep so many of the last records only.
    pub last: Option<u32>,
    /// Combinations of keys that each probe counts at most.
    pub keys: u32,
    /// Stop after this time.
    pub duration: Option<Duration>,
    /// Pass on the counts so far each time that this time is over.
    pub interval: Option<Duration>,
    /// Write the counts so far into the run folder, too, each time that [`Settings::interval`] is over.
    pub keep_current: bool,
    /// The recording is in a guest whose flow is recorded from outside: the command is marked for the observer, and the clocks
    /// of both are compared.
    pub beside_flow: bool,
    /// Whether probes of a program get jumps.
    pub jump: JumpMode,
    /// Ring buffer of each CPU, KiB.
    pub buffer_kib: u64,
    /// The probes as the user wrote them, for the manifest.
    pub probes: Vec<String>,
    /// The values as the user wrote them, for the manifest.
    pub collect: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            output: kprism_session::DEFAULT_RUN.into(),
            command: Vec::new(),
            processes: Vec::new(),
            everybody: false,
            stop_after: None,
            last: None,
            keys: KEYS,
            duration: None,
            interval: None,
            keep_current: false,
            beside_flow: false,
            jump: JumpMode::Never,
            buffer_kib: 8 << 10,
            probes: Vec::new(),
            collect: Vec::new(),
        }
    }
}

/// A recording that has ended.
#[derive(Debug)]
pub struct Recorded {
    /// The run.
    pub run: Run,
    /// The probes, and what they counted.
    pub description: Description,
    /// Ctrl-C or a signal ended it.
    pub interrupted: bool,
    /// The reason why not all records are in the file.
    pub full: Option<String>,
    /// Probes that could not be attached.
    pub not_attached: usize,
    /// Remarks on the result: records that found no room, a command that did not end with 0.
    pub remarks: Vec<String>,
}

impl Recorded {
    /// Hits of all probes.
    pub fn hits(&self) -> u64 {
        self.description.counts.iter().map(|counts| counts.hits).sum()
    }
}

/// Combinations of keys that a probe counts, unless others are asked for.
pub const KEYS: u32 = 4096;

/// Takes the counts so far of a recording that goes on: the time since its start, the probes with all that they counted
/// until then. Hits go on meanwhile, so a count may be ahead of another by some.
pub type Live<'l> = &'l mut dyn FnMut(Duration, &Description);

/// Attaches the probes, runs the command or waits, and writes the run. Steps and notes go to `progress`, the counts of
/// each [interval](Settings::interval) to `live`.
///
/// # Errors
/// No probe can be attached, the command is not there, or the run folder cannot be written. A disk that gets full on the
/// way is no error: see [`Recorded::full`].
pub fn record(
    compiled: Compiled,
    settings: &Settings,
    progress: &Progress,
    live: Live<'_>,
) -> Result<Recorded> {
    if let Some(name) = settings.command.first() {
        // Before anything is attached, and an earlier run is rotated away.
        here::find(name, &Job::new([name.clone()]))?;
    }
    if let (false, Some(pid)) = (settings.command.is_empty(), settings.processes.first()) {
        progress.say(&format!(
            "note: hits of process {pid} count, not those of the command, which is run meanwhile"
        ));
    }
    if settings.jump == JumpMode::Only {
        let refused = compiled.plans.iter().find_map(|plan| Some((plan, refusal(plan, &compiled.plans)?)));
        if let Some((plan, why)) = refused {
            bail!(
                "--jump only: {}: no jump: {why}; --jump auto gives such a probe its trap",
                plan.probe.place
            );
        }
    }
    let config = config(&compiled, settings);
    let session = Session::start(compiled.plans, &config)?;
    session.notes().iter().for_each(|note| progress.say(&format!("note: {note}")));
    session.failed().iter().for_each(|why| progress.say(&format!("not attached: {why}")));
    let (asked, given) = (config.ring_bytes, session.ring_bytes());
    if given < asked || settings.buffer_kib.saturating_mul(1024) > most_bytes() {
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

    let run = Run::create(&settings.output)?;
    let mut manifest = begun(settings);
    run.write_manifest(&manifest)?;
    let folder = run.probe();
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    write_description(&run, &description)?;
    let keys = description.probes.iter().filter_map(|p| p.tally.as_ref()).flat_map(|tally| &tally.keys);
    let mut items = description.probes.iter().flat_map(|p| &p.items).chain(keys);
    if items.any(|item| item.name == "$stack" || item.name == "$callers") {
        let symbols = run.symbols();
        fs::create_dir_all(&symbols).with_context(|| symbols.display().to_string())?;
        // Not fs::copy: files of /proc have no length.
        fs::write(run.kallsyms(), files::read(Path::new("/proc/kallsyms"))?).context("symbols/kallsyms")?;
    }
    let tells_containers = description.probes.iter().any(|probe| {
        let keys = probe.tally.iter().flat_map(|tally| &tally.keys);
        probe.items.iter().chain(keys).any(|item| item.shape == Some(Shape::Container))
    });
    if tells_containers {
        description.containers.extend(names::by_cgroup());
    }
    let variables: Vec<String> = compiled.vars.into_iter().map(|(name, _)| name).collect();
    let count = |description: &mut Description| {
        description.counts = session.counts();
        for (number, probe) in description.probes.iter_mut().enumerate() {
            session.hook(number).clone_into(&mut probe.hook);
        }
        description.totals = match description.probes.iter().any(|probe| probe.tally.is_some()) {
            true => session.totals()?,
            false => Vec::new(),
        };
        description.variables = variables.iter().cloned().zip(session.variables()).collect();
        Ok::<_, kprism_probe::Error>(())
    };
    let mut so_far = description.clone();
    let mut ticked = |since: Duration| {
        count(&mut so_far)?;
        if settings.keep_current {
            write_description(&run, &so_far)?;
        }
        live(since, &so_far);
        Ok(())
    };
    let clocks_before = settings.beside_flow.then(beside::monotonic);
    let taken = take(settings, &session, &run.hits(), progress, &mut ticked)?;
    description.clocks = clocks_before.into_iter().flat_map(|before| [before, beside::monotonic()]).collect();
    if tells_containers {
        description.containers.extend(names::by_cgroup());
    }
    count(&mut description)?;
    write_description(&run, &description)?;
    manifest.exit_code = taken.exit_code;
    manifest.stopped = match &taken.full {
        Some(why) => Some(format!("records could not be written: {why}")),
        None => taken.interrupted.then(|| "interrupted".to_owned()),
    };
    let sum = |f: fn(&Counts) -> u64| description.counts.iter().map(f).sum::<u64>();
    manifest.instruments = vec![Instrument::Probe];
    manifest.probe.records = Some(taken.records);
    manifest.probe.lost_records = Some(sum(|c| c.lost));
    let not_last = settings.last.is_some().then(|| sum(|c| c.lost)).filter(|lost| *lost > 0);
    let not_last = not_last.map(|lost| {
        format!(
            "note: {lost} records were lost because the ring was full, so those kept may not be the last ones: try a larger --buffer-size, or a condition with fewer hits"
        )
    });
    let left = session.jumps_left().into_iter().map(|why| format!("a jump is still in a program: {why}"));
    let left: Vec<String> = left.collect();
    let notes = session.notes().iter().chain(&taken.jumps).chain(&left).chain(&not_last);
    manifest.probe.notes = notes.cloned().collect();
    manifest.probe.not_attached = session.failed().to_vec();
    let account = Loaded::open(&run)?.account(&manifest);
    manifest.accounts.insert(Instrument::Probe, account);
    run.write_manifest(&manifest)?;
    Ok(Recorded {
        description,
        interrupted: taken.interrupted,
        full: taken.full,
        not_attached: session.failed().len(),
        remarks: left.into_iter().chain(not_last).chain(taken.command_end).collect(),
        run,
    })
}

/// Maximum size of one CPU's ring, bytes: 1 GiB for the rings of all CPUs. The session then halves the rings until all
/// together fit its own limit of 512 MiB.
fn most_bytes() -> u64 {
    (1_u64 << 30) / (host::possible_cpus() as u64).next_power_of_two()
}

fn config(compiled: &Compiled, settings: &Settings) -> Config {
    let bytes = settings.buffer_kib.saturating_mul(1024).min(most_bytes()).max(1 << 16);
    let who = match (settings.everybody, settings.processes.is_empty()) {
        (true, _) => HitScope::All,
        (_, false) => HitScope::Processes(settings.processes.clone()),
        _ => HitScope::Children,
    };
    Config {
        who,
        ring_bytes: bytes.next_power_of_two() as u32,
        stop_after: settings.stop_after,
        vars: compiled.vars.iter().map(|(_, value)| *value).collect(),
        thread_vars: compiled.thread_vars.len() as u32,
        keys: settings.keys,
    }
}

fn begun(settings: &Settings) -> Manifest {
    let options: Vec<(OptionKey, Value)> = vec![
        (OptionKey::Record, "probe".into()),
        (OptionKey::Probes, settings.probes.clone().into()),
        (OptionKey::Collect, settings.collect.clone().into()),
        (OptionKey::StopAfter, settings.stop_after.into()),
        (OptionKey::Last, settings.last.into()),
    ];
    crate::begun_by_bpf(&settings.command, options)
}

fn write_description(run: &Run, description: &Description) -> Result<()> {
    let path = run.probes();
    let mut text = serde_json::to_string_pretty(description).context("probes.json")?;
    text.push('\n');
    // In one step: a reader of a run that is being recorded never sees a part of it.
    let begun = path.with_extension("json.new");
    fs::write(&begun, text)
        .and_then(|()| fs::rename(&begun, &path))
        .with_context(|| path.display().to_string())
}

struct Taken {
    exit_code: Option<i32>,
    interrupted: bool,
    records: u64,
    full: Option<String>,
    /// The end of the command, if that should be said.
    command_end: Option<String>,
    /// Which probes have a jump, and why others have none.
    jumps: Vec<String>,
}

/// Runs the command, or waits for as long as was asked, and takes records out as they come. Calls `ticked` at each
/// interval with the time since the start.
fn take(
    settings: &Settings,
    session: &Session,
    path: &Path,
    progress: &Progress,
    ticked: &mut dyn FnMut(Duration) -> Result<()>,
) -> Result<Taken> {
    const TICK: Duration = Duration::from_millis(5);
    let mut file = Kept::create(path, settings.last)?;
    let mut reader = session.reader();
    let (processes, limit) = (settings.processes.clone(), settings.duration);
    // The hits of a command count unless those of other processes do.
    let held = settings.jump != JumpMode::Never && !settings.command.is_empty() && processes.is_empty();
    let mut wait =
        Wait::begin_held(&settings.command, processes, limit, settings.beside_flow, held, progress)?;
    let jumps = match jumps(settings, session, wait.command().filter(|_| held)) {
        Ok(jumps) => jumps,
        Err(why) => {
            session.stop();
            wait.give_up();
            return Err(why);
        }
    };
    jumps.iter().for_each(|line| progress.say(&format!("note: {line}")));
    raise_priority();
    let started = Instant::now();
    let mut next = settings.interval;
    loop {
        file.take(|take| reader.drain(take));
        if wait.ended()? {
            break;
        }
        if let (Some(at), Some(interval)) = (next, settings.interval)
            && started.elapsed() >= at
        {
            let since = started.elapsed();
            ticked(since)?;
            // Intervals that passed meanwhile are left out: the next one says the same and more.
            let passed = (since.as_nanos() / interval.as_nanos().max(1)) as u32;
            next = Some(interval.saturating_mul(passed.saturating_add(1)));
        }
        let enough = session.is_over() || file.is_full();
        if enough {
            // A command that has given enough goes on without probes.
            session.stop();
        }
        // Its time may be over all the same, or an interrupt may ask for its end.
        if wait.is_over() || (enough && !wait.has_command()) {
            break;
        }
        wait.pause(TICK);
    }
    session.stop();
    file.take(|take| reader.finish(take));
    let (records, full) = file.end();
    let command_end = wait.end_text();
    Ok(Taken {
        exit_code: wait.exit_code,
        interrupted: kprism_signals::end_requested(),
        records,
        full,
        command_end,
        jumps,
    })
}

/// Gives probes their jumps. Returns a line for each place: what it has, and why.
fn jumps(settings: &Settings, session: &Session, command: Option<u32>) -> Result<Vec<String>> {
    let processes = match (settings.jump, command) {
        (JumpMode::Never, _) => return Ok(Vec::new()),
        (JumpMode::Only, Some(command)) => vec![Process::BegunOrNot(command)],
        (JumpMode::Auto, Some(command)) => vec![Process::Begun(command)],
        _ => settings.processes.iter().map(|pid| Process::Running(*pid)).collect(),
    };
    if processes.is_empty() {
        return Ok(vec![
            "traps, and no jumps: everybody's hits count (-a), in processes that are not known".to_owned(),
        ]);
    }
    let mut lines = Vec::new();
    for process in processes {
        for Outcome { number, pid, jump } in session.jump(process) {
            let probe = &session.plans()[number].probe;
            let at = probe.address.map_or_else(String::new, |address| format!(" at {address:#x}"));
            let what = format!("{}{at} in process {pid}", probe.place);
            match jump {
                Ok(()) => lines.push(format!("{what}: a jump")),
                Err(why) if settings.jump == JumpMode::Only => {
                    bail!("--jump only: {what}: no jump: {why}; --jump auto gives such a probe its trap")
                }
                Err(why) => lines.push(format!("{what}: a trap, no jump: {why}")),
            }
        }
    }
    Ok(lines)
}

/// Lets this thread run before those that fill the rings. It takes little of a CPU, and records for which it comes too late
/// are lost. The command has been started already and keeps its priority. Without the right to, nothing changes.
fn raise_priority() {
    // SAFETY: setpriority touches no memory; 0 is this thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
}
