// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one command in a prepared guest.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kprism_agent::{JOB_FILE, Message, SHARE_FILE, STDIN_FILE};

use crate::archive::Archive;
use crate::cache::Scratch;
use crate::collect::Collected;
use crate::counters::{CountedWindows, CounterReader};
use crate::disk;
use crate::error::{Context, Error, Result};
use crate::hold::Holder;
use crate::kernel_reports::KernelReports;
use crate::lab::Prepared;
use crate::like_host::{self, LikeHost, TakenOver};
use crate::network::Network;
use crate::options::{Job, ObserverOptions, Pace, Progress, Report, Span};
use crate::qemu::{PortFiles, Running, option};
use crate::snapshot;
use crate::symbols;
use crate::tail::{Lines, Tail, find_panic, last_lines};
use crate::written::{Full, Meter, size_of_tree};

/// Maximum time for QEMU, asked to quit, to let the observer write its data.
const QUIT_PATIENCE: Duration = Duration::from_secs(60);

/// Maximum time for a guest that was asked to end.
const ASK_PATIENCE: Duration = Duration::from_secs(120);

/// Maximum time for a guest from a snapshot to ask for its job, on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// Interval at which the guest's state is polled.
const POLL: Duration = Duration::from_millis(3);

/// The end of a run. In all cases the recording is in the run folder and can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The command ended by itself.
    Normal,
    /// The time limit was reached.
    Timeout,
    /// The user interrupted it.
    Interrupted,
    /// The recording reached its limit ([`Job::max_bytes`]), or the disk was about to be full.
    Full(Full),
    /// The guest's kernel panicked, with this message.
    Panic(String),
    /// The command could not be run, or QEMU ended, for this reason.
    Failed(String),
}

/// A file of the guest, or a debug file, that could not be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingFile {
    /// Its path in the guest; of a debug file, here.
    pub path: String,
    /// The reason, in words.
    pub why: String,
}

/// Reason for a file that the guest has not: neither the host, nor a guest in which no command ran.
const MADE_IN_THE_GUEST: &str = "it was made in the guest";

/// Result of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The end of the run.
    pub ended: Ended,
    /// The command's exit code as a shell gives it, if it ended by itself.
    pub exit_code: Option<u8>,
    /// The command's process ID in the guest, once it was started.
    pub pid: Option<u32>,
    /// State of the guest's own init when the command began, if the root file system has one:
    /// [`kprism_agent::INIT_READY`], or what is wrong.
    pub init: Option<String>,
    /// Number of warm-up turns that were asked for ([`Job::warm`]).
    pub warm_turns: u32,
    /// Exit code of each of them that ended, in their order.
    pub warm: Vec<u8>,
    /// Output of each of the job's commands for afterwards, as far as they were run.
    pub after: Vec<String>,
    /// Values that the guest took over from the recording machine ([`Job::like_host`]).
    pub like_host: TakenOver,
    /// The windows in which coverage counters were added up, if the job has any.
    pub windows: Option<CountedWindows>,
    /// Faults that the guest's kernel reported on its console since the run began.
    pub reports: KernelReports,
    /// Last lines of the guest's console, if the end was not normal.
    pub console_tail: String,
    /// Time from the start of QEMU to its end.
    pub wall: Duration,
    /// Time from the start of QEMU until the guest read the command.
    pub start: Duration,
    /// Files that the guest mapped, and debug files of such, that could not be copied to `symbols/root`.
    pub missing_files: Vec<MissingFile>,
}

/// Runs `job`. Writes below `folder`: `console.log`, `stdout`, `stderr`, with an observer `streams/`, and `symbols/`.
/// Other files in the folder stay unchanged.
///
/// # Errors
/// The run could not begin. Later errors are in the [`Outcome`].
pub fn run(
    prepared: &Prepared,
    job: &Job,
    folder: &Path,
    observer: Option<&ObserverOptions>,
    report: Report<'_>,
) -> Result<Outcome> {
    accepts(prepared, job)?;
    let folder = std::path::absolute(folder).at("find", folder)?;
    fs::create_dir_all(&folder).at("create", &folder)?;
    let scratch = scratch(&folder)?;
    let files = PortFiles {
        console: folder.join("console.log"),
        control: scratch.path().join("control"),
        stdout: folder.join("stdout"),
        stderr: folder.join("stderr"),
    };
    for file in [&files.console, &files.stdout, &files.stderr] {
        // The files of an earlier run would be taken for this one's output.
        File::create(file).at("create", file)?;
    }
    symbols::begin(prepared, &folder)?;
    let streams = match job.windows {
        Some(windows) if !windows.keeps_streams => scratch.path().join("streams"),
        _ => folder.join("streams"),
    };
    let held = job.counters == kprism_agent::CounterReading::Held;
    let (holder, guest) = held.then(|| Holder::new(&folder)).transpose()?.unzip();
    let mut plugin = OsString::new();
    if let Some(observer) = observer {
        fs::create_dir_all(&streams).at("create", &streams)?;
        plugin.push(plugin_arguments(prepared, job, observer, &streams)?);
    }
    if let Some(guest) = &guest {
        match plugin.is_empty() {
            true => plugin = Holder::plugin(&crate::find_observer()?, guest),
            false => plugin.push(Holder::argument(guest)),
        }
        if job.windows.is_some() {
            plugin.push(",hold=windows");
        }
    }
    let disks = disks(prepared, job, &folder)?;
    let start = Instant::now();
    let mut qemu = launch(prepared, job, scratch.path(), (plugin, guest), &disks, &files)?;
    let kallsyms = prepared.snapshot.folder.join("kallsyms");
    let counters = CounterReader::new(kallsyms, &folder, scratch.path(), holder).in_windows(job.windows);
    let mut watch =
        Watch::new(&files, (start, job.span == Span::Boot), Collected::new(scratch.path()), counters);
    let meter = Meter::new(&folder, &streams, job.max_bytes);
    let limits = Limits { time: job.timeout, asks_first: job.asks_first, meter: Some(meter) };
    let ended = watch.until_the_end(&mut qemu, limits, report);
    drop(qemu);
    let windows = watch.counters.counted().map(|windows| windows.with_account(&streams));
    let unpacked = watch.collected.unpack(&folder);
    if ended == Ended::Normal {
        unpacked?;
    }
    let symbols::Mapped { paths, missing: missing_files } =
        symbols::collect(prepared, job, &folder, watch.modules.as_ref())?;
    let missing = |why: &str| -> Vec<MissingFile> {
        let of = |path: &String| MissingFile { path: path.clone(), why: why.to_owned() };
        missing_files.iter().map(of).collect()
    };
    let mut missing_files =
        if prepared.rootfs.is_none() && !missing_files.is_empty() && !kprism_signals::end_requested() {
            report(Progress::Step("fetching the programs that ran, for their symbols"));
            // The recording is worth more than its symbols.
            fetch(prepared, missing_files.clone(), &folder.join("symbols/root"))
                .unwrap_or_else(|error| missing(&format!("fetching it from the guest failed: {error}")))
        } else if prepared.rootfs.is_none() && kprism_signals::end_requested() {
            missing("it was not fetched from the guest, as the run was interrupted")
        } else {
            missing(MADE_IN_THE_GUEST)
        };
    // What is left of a full disk is for the account and the tables.
    let not_kept = match ended {
        Ended::Full(Full::Disk(_)) => Vec::new(),
        _ => symbols::keep_debug(prepared, job, &folder, &paths),
    };
    missing_files.extend(
        not_kept.into_iter().map(|(file, why)| MissingFile { path: file.display().to_string(), why }),
    );
    let console_tail = if ended == Ended::Normal { String::new() } else { last_lines(&files.console, 15) };
    // What the guest told comes after the output of the job's own commands.
    let told = (watch.after.len() > job.after.len()).then(|| watch.after.pop()).flatten();
    let like_host = TakenOver::of(job.like_host.as_ref(), told.as_deref());
    Ok(Outcome {
        exit_code: watch.exit_code.filter(|_| ended == Ended::Normal),
        ended,
        pid: watch.pid,
        init: watch.init.or_else(|| prepared.snapshot.kernel.init.clone()),
        warm_turns: job.warm.turns,
        warm: watch.warm,
        after: watch.after,
        like_host,
        windows,
        reports: KernelReports::of_file(&files.console),
        console_tail,
        wall: start.elapsed(),
        start: watch.accepted.unwrap_or_default(),
        missing_files,
    })
}

/// Starts the guest for `job`, from its snapshot or its boot, with a plugin and the descriptor that QEMU is to inherit.
///
/// # Errors
/// QEMU does not start, or the snapshot cannot be restored.
pub(crate) fn launch(
    prepared: &Prepared,
    job: &Job,
    scratch: &Path,
    (plugin, inherited): (OsString, Option<OwnedFd>),
    disks: &[PathBuf],
    files: &PortFiles,
) -> Result<Running> {
    let mut arguments = job_arguments(job, false, prepared.machine.mem_mib, scratch)?;
    if !plugin.is_empty() {
        arguments.extend(["-plugin".into(), plugin]);
    }
    match job.span {
        Span::Command => {
            arguments.extend(["-incoming", "defer", "-S"].map(OsString::from));
            arguments.extend(prepared.snapshot.memory_arguments(&prepared.machine)?);
        }
        Span::Boot => arguments.extend(prepared.boot().arguments()),
    }
    arguments.extend(prepared.machine.disk_arguments(disks, job.keeps_disks));
    arguments.extend(prepared.machine.network_arguments(&job.ports));
    if let Some(socket) = &job.gdb {
        let mut place = option("unix:", socket);
        place.push(",server=on,wait=off");
        arguments.extend(["-gdb".into(), place]);
    }
    let log = scratch.join("qemu.log");
    let mut qemu = Running::start(&prepared.qemu, &prepared.machine, files, &arguments, inherited, &log)?;
    if job.span == Span::Command
        && let Err(error) = snapshot::restore(&mut qemu, &prepared.snapshot)
    {
        let (said, place) = (qemu.stderr_text(), prepared.snapshot.folder.display());
        let reason = if said.is_empty() { error.to_string() } else { said };
        return Err(Error::Qemu {
            reason: format!("{reason}\nif this lasts, delete {place}: it will be made again"),
        });
    }
    Ok(qemu)
}

/// Refuses a job that asks for what the guest does not have.
///
/// # Errors
/// [`Error::Option`].
pub fn accepts(prepared: &Prepared, job: &Job) -> Result<()> {
    if job.keeps_disks && prepared.images.is_empty() {
        return Err(Error::Option("there are no disks to keep: the guest has none".into()));
    }
    if !job.ports.is_empty() && prepared.machine.network == Network::None {
        return Err(Error::Option("no port leads into a guest without a network: add --net user".into()));
    }
    accepts_warm(job)?;
    if job.windows.is_some()
        && (job.counters != kprism_agent::CounterReading::Held || prepared.machine.pace == Pace::Fast)
    {
        return Err(Error::Option(
            "counters in windows are read while the observer holds the guest: not with --fast or --in-place"
                .into(),
        ));
    }
    Ok(())
}

/// Refuses warm-up turns of nothing, and those that would be recorded.
fn accepts_warm(job: &Job) -> Result<()> {
    if job.warm.turns == 0 {
        return Ok(());
    }
    if job.warm.argv.is_empty() {
        return Err(Error::Option(
            "--warm runs the command itself before it is recorded, and there is none: give a command, or leave --warm out"
                .into(),
        ));
    }
    if job.span == Span::Boot {
        return Err(Error::Option(
            "--warm beside a recorded boot: recording has begun before the warm-up turns; leave one of them out".into(),
        ));
    }
    Ok(())
}

/// Beginning of the name of a run's folder for temporary files.
const SCRATCH: &str = ".lab.";

/// A folder for temporary files of the run. Those that killed runs left here, and in the run that this one replaces, are removed.
fn scratch(folder: &Path) -> Result<Scratch> {
    let mut old = folder.as_os_str().to_owned();
    old.push(".old");
    for run in [folder, Path::new(&old)] {
        for place in [run.to_owned(), run.join("symbols/root")] {
            crate::cache::clean(&place, SCRATCH);
        }
    }
    Scratch::new(folder, SCRATCH)
}

/// Limits of a run.
struct Limits {
    /// See [`Job::timeout`].
    time: Option<Duration>,
    /// See [`Job::asks_first`].
    asks_first: bool,
    /// Measures the recording, if there is one.
    meter: Option<Meter>,
}

/// State of the guest during a run.
struct Watch<'a> {
    files: &'a PortFiles,
    control: Tail,
    stdout: Tail,
    stderr: Tail,
    messages: Lines,
    start: Instant,
    /// True if the boot is recorded too.
    boots: bool,
    accepted: Option<Duration>,
    /// Exit codes of the warm-up turns that ended, and when the last one did.
    warm: Vec<u8>,
    turn_ended: Option<Duration>,
    pid: Option<u32>,
    init: Option<String>,
    after: Vec<String>,
    exit_code: Option<u8>,
    failed: Option<String>,
    modules: Option<(String, String)>,
    collected: Collected,
    counters: CounterReader,
}

impl<'a> Watch<'a> {
    fn new(
        files: &'a PortFiles,
        (start, boots): (Instant, bool),
        collected: Collected,
        counters: CounterReader,
    ) -> Self {
        Self {
            files,
            control: Tail::new(&files.control),
            stdout: Tail::new(&files.stdout),
            stderr: Tail::new(&files.stderr),
            messages: Lines::default(),
            start,
            boots,
            accepted: None,
            warm: Vec::new(),
            turn_ended: None,
            pid: None,
            init: None,
            after: Vec::new(),
            exit_code: None,
            failed: None,
            modules: None,
            collected,
            counters,
        }
    }

    /// Forwards output until QEMU has ended, for whatever reason.
    fn until_the_end(&mut self, qemu: &mut Running, mut limits: Limits, report: Report<'_>) -> Ended {
        let mut asked: Option<(Instant, Ended)> = None;
        loop {
            // Checked before reading, so that nothing written before the end is missed.
            let ended = qemu.ended();
            self.follow(report);
            if let Err(error) = self.collected.read(qemu) {
                self.failed = Some(format!("what the command left in the guest: {error}"));
                return self.judge("");
            }
            if let Err(error) = self.counters.read(qemu) {
                self.failed = Some(error.to_string());
                return self.judge("");
            }
            // Before the guest can handle it, Ctrl-Alt-Del ends the guest.
            if let (Some(_), Some((_, why)), None) = (ended, &asked, self.exit_code) {
                return why.clone();
            }
            if ended.is_some_and(|status| status.success()) {
                // QEMU ends with another code when the agent ends it.
                return self.judge("the guest powered off or restarted before the command ended");
            }
            if let Some(status) = ended {
                return self.judge(&format!("QEMU ended ({status}) {}", qemu.stderr_text()));
            }
            let why = match &asked {
                Some((_, why)) => Some(why.clone()),
                None => self.reason_to_end(&mut limits, report),
            };
            if let Some(why) = why {
                let first = asked.is_none();
                let (since, _) = *asked.get_or_insert_with(|| (Instant::now(), why.clone()));
                // During the warm-up turns there is nobody to ask.
                let asks = limits.asks_first && self.pid.is_some();
                if asks && since.elapsed() < ASK_PATIENCE {
                    if first {
                        report(Progress::Step("ending the recording in the guest"));
                        ask(qemu);
                    }
                    std::thread::sleep(POLL);
                    continue;
                }
                self.counters.give_up();
                qemu.quit(QUIT_PATIENCE);
                self.follow(report);
                // It may have ended in the meantime.
                return match self.exit_code {
                    Some(_) => Ended::Normal,
                    None => why,
                };
            }
            std::thread::sleep(POLL);
        }
    }

    /// Why the guest has to end now, if it has to. Tells the size of the recording.
    fn reason_to_end(&self, limits: &mut Limits, report: Report<'_>) -> Option<Ended> {
        let mut tell = |written| report(Progress::Written(written));
        let full = limits.meter.as_mut().and_then(|meter| meter.check(&mut tell));
        if limits.time.is_some_and(|time| self.ran_for() > time) {
            Some(Ended::Timeout)
        } else if kprism_signals::end_requested() {
            Some(Ended::Interrupted)
        } else {
            full.map(Ended::Full)
        }
    }

    /// Running time of the command, or of its warm-up turn. The wait for a guest that does not take its job is limited too.
    fn ran_for(&self) -> Duration {
        let elapsed = self.start.elapsed();
        match self.turn_ended.or(self.accepted) {
            _ if self.boots => elapsed,
            Some(at) => elapsed.saturating_sub(at),
            None => elapsed.saturating_sub(START_PATIENCE),
        }
    }

    fn follow(&mut self, report: Report<'_>) {
        self.stdout.follow(|bytes| report(Progress::Stdout(bytes)));
        self.stderr.follow(|bytes| report(Progress::Stderr(bytes)));
        let mut received = Vec::new();
        self.control.follow(|bytes| {
            self.messages.add(bytes, |line| received.push(serde_json::from_slice::<Message>(line)));
        });
        for message in received {
            match message {
                Ok(Message::Accepted) => self.accepted = Some(self.start.elapsed()),
                Ok(Message::Init { state }) => self.init = Some(state),
                Ok(Message::Turn { code }) => {
                    self.warm.push(code);
                    self.turn_ended = Some(self.start.elapsed());
                }
                Ok(Message::Started { pid }) => self.pid = Some(pid),
                Ok(Message::After { output }) => self.after.push(output),
                Ok(Message::Piece { region }) => self.collected.comes(region),
                Ok(Message::Counters { name }) => self.counters.come(name),
                Ok(Message::Exit { code }) => self.exit_code = Some(code),
                Ok(Message::Failed { what }) => self.failed = Some(what),
                Ok(Message::Modules { modules, kallsyms }) => self.modules = Some((modules, kallsyms)),
                Ok(Message::Ready { .. } | Message::Stops { .. }) => {}
                Err(error) => self.failed = Some(format!("the guest's agent sent nonsense: {error}")),
            }
        }
    }

    /// The reason why QEMU ended.
    fn judge(&mut self, otherwise: &str) -> Ended {
        if let Some(what) = self.failed.take() {
            Ended::Failed(what)
        } else if self.exit_code.is_some() {
            Ended::Normal
        } else if let Some(words) = find_panic(&self.files.console) {
            Ended::Panic(words)
        } else {
            Ended::Failed(otherwise.trim().to_owned())
        }
    }
}

/// Presses Ctrl-Alt-Del. If QEMU does not accept it any more, it is about to end anyway.
fn ask(qemu: &mut Running) {
    let keys = ["ctrl", "alt", "delete"].map(|key| serde_json::json!({"type": "qcode", "data": key}));
    qemu.qmp.call("send-key", serde_json::json!({ "keys": keys })).ok();
}

/// Writes the job (and the shared folders) to `scratch`, and returns QEMU's arguments for them.
pub(crate) fn job_arguments(
    job: &Job,
    makes_ready: bool,
    mem_mib: u64,
    scratch: &Path,
) -> Result<Vec<OsString>> {
    let mut env: Vec<(String, String)> =
        Job::ENVIRONMENT.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let like_host = job.like_host.as_ref();
    let variables = like_host.into_iter().flat_map(|like| &like.variables);
    let own = job.env.iter().map(|pair| (&pair.0, &pair.1));
    for (name, value) in variables.chain(own) {
        env.retain(|(known, _)| known != name);
        env.push((name.clone(), value.clone()));
    }
    let has_files = !job.shares.is_empty() || job.stdin.is_some();
    let message = kprism_agent::Job {
        argv: job.argv.clone(),
        env,
        cwd: job.cwd.clone().unwrap_or_default(),
        before: like_host.map(LikeHost::line).into_iter().chain(job.before.iter().cloned()).collect(),
        warm: job.warm.clone(),
        begin: job.begin.clone(),
        after: job.after.iter().cloned().chain(like_host.map(|_| like_host::TELL.to_owned())).collect(),
        share: has_files,
        stdin: job.stdin.is_some(),
        collect: job.collect.clone().unwrap_or_default(),
        counters: job.counters,
        files: Vec::new(),
        sync: job.keeps_disks,
        marked_by_command: job.marked_by_command,
        makes_ready,
        leaves_tracer: job.leaves_tracer,
    };
    let mut arguments = job_file(&message, scratch)?;
    if has_files {
        let path = scratch.join("share");
        write_files(job, mem_mib, &path)?;
        arguments.extend(["-fw_cfg".into(), option(&format!("name={SHARE_FILE},file="), &path)]);
    }
    Ok(arguments)
}

/// Writes what the agent is to do to `scratch`, and returns QEMU's arguments for it.
fn job_file(job: &kprism_agent::Job, scratch: &Path) -> Result<Vec<OsString>> {
    let path = scratch.join("job");
    let text = serde_json::to_vec(job).map_err(std::io::Error::other).at("write", &path)?;
    fs::write(&path, text).at("write", &path)?;
    Ok(vec!["-fw_cfg".into(), option(&format!("name={JOB_FILE},file="), &path)])
}

/// The images of the guest's disks: those of the snapshot, or of the boot; copies in the run's folder if they are kept.
pub(crate) fn disks(prepared: &Prepared, job: &Job, folder: &Path) -> Result<Vec<PathBuf>> {
    let images = match job.span {
        Span::Command => prepared.snapshot.disks(prepared.images.len()),
        Span::Boot => prepared.images.iter().map(|image| image.raw.clone()).collect(),
    };
    if !job.keeps_disks {
        return Ok(images);
    }
    let place = folder.join("disks");
    fs::create_dir_all(&place).at("create", &place)?;
    // Their names say that they are raw: a guest may write the first bytes of another format to its disk.
    let kept: Vec<PathBuf> = (0..images.len()).map(|i| place.join(format!("disk{i}.raw"))).collect();
    for (image, copy) in images.iter().zip(&kept) {
        crate::cache::require_space(&place, disk::space_mib(image) + 64)?;
        disk::copy(image, copy)?;
    }
    Ok(kept)
}

/// Maximum time for a guest to send files.
const FETCH_PATIENCE: Duration = Duration::from_secs(60);

/// Copies files of the guest, by their absolute paths, below `to`: a second guest from the snapshot sends them. So they are
/// as they were before any command. Returns those that did not come.
///
/// # Errors
/// QEMU does not start, or `to` cannot be written.
pub fn fetch(prepared: &Prepared, paths: Vec<String>, to: &Path) -> Result<Vec<MissingFile>> {
    fs::create_dir_all(to).at("create", to)?;
    let scratch = Scratch::new(to, SCRATCH)?;
    let scratch = scratch.path();
    let files = PortFiles {
        console: scratch.join("fetch.console"),
        control: scratch.join("fetch.control"),
        stdout: "/dev/null".into(),
        stderr: "/dev/null".into(),
    };
    let mut arguments = job_file(&kprism_agent::Job { files: paths.clone(), ..Default::default() }, scratch)?;
    arguments.extend(["-incoming", "defer", "-S"].map(OsString::from));
    arguments.extend(prepared.snapshot.memory_arguments(&prepared.machine)?);
    let disks = prepared.snapshot.disks(prepared.images.len());
    arguments.extend(prepared.machine.disk_arguments(&disks, false));
    let log = scratch.join("fetch.log");
    let mut qemu = Running::start(&prepared.qemu, &prepared.machine, &files, &arguments, None, &log)?;
    snapshot::restore(&mut qemu, &prepared.snapshot)?;
    let counters = CounterReader::new(prepared.snapshot.folder.join("kallsyms"), to, scratch, None);
    let mut watch = Watch::new(&files, (Instant::now(), false), Collected::new(scratch), counters);
    let limits = Limits { time: Some(FETCH_PATIENCE), asks_first: false, meter: None };
    let ended = watch.until_the_end(&mut qemu, limits, &mut |_| {});
    // A guest that ended early has sent some.
    let unpacked = watch.collected.unpack(to);
    let why = match (&ended, unpacked) {
        (Ended::Normal, Ok(())) => MADE_IN_THE_GUEST.to_owned(),
        (Ended::Normal, Err(error)) => format!("fetching it from the guest failed: {error}"),
        (Ended::Timeout, _) => {
            format!("fetching it from the guest took more than {} s", FETCH_PATIENCE.as_secs())
        }
        (Ended::Interrupted, _) => "it was not fetched from the guest, as the run was interrupted".to_owned(),
        (Ended::Full(_), _) => "it was not fetched from the guest, as the disk is nearly full".to_owned(),
        (Ended::Panic(words) | Ended::Failed(words), _) => {
            format!("fetching it from the guest failed: {words}")
        }
    };
    let is_here = |path: &str| symbols::inside(path).is_some_and(|inside| to.join(inside).exists());
    let missing = paths.into_iter().filter(|path| !is_here(path));
    Ok(missing.map(|path| MissingFile { path, why: why.clone() }).collect())
}

fn write_files(job: &Job, mem_mib: u64, path: &Path) -> Result<()> {
    refuse_too_much(job, mem_mib)?;
    let mut archive = Archive::new(BufWriter::new(File::create(path).at("create", path)?));
    if let Some(stdin) = &job.stdin {
        let place = STDIN_FILE.trim_start_matches('/');
        let contents = fs::read(stdin).at("read", stdin)?;
        archive.parents(place).and_then(|()| archive.file(place, 0o600, &contents)).at("write", path)?;
    }
    for share in &job.shares {
        let place = share.guest.trim_matches('/');
        if !share.guest.starts_with('/') || place.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(Error::Option(format!("{}: a share's place must be an absolute path", share.guest)));
        }
        archive.parents(place).at("write", path)?;
        // Shared files are only read. So a full disk is that of the archive.
        archive.tree(&share.host, place).map_err(|error| match error {
            Error::Full { .. } => Error::Full { path: path.to_owned() },
            other => other,
        })?;
    }
    archive.finish().and_then(|mut output| output.flush()).at("write", path)
}

/// The guest keeps its files in memory. Too many would end in a kernel panic, minutes later.
fn refuse_too_much(job: &Job, mem_mib: u64) -> Result<()> {
    let mut bytes = 0;
    for path in job.shares.iter().map(|share| &share.host).chain(&job.stdin) {
        bytes += size_of_tree(path)?;
    }
    let shared_mib = bytes >> 20;
    if shared_mib.saturating_mul(100) > mem_mib * SHARE_PERCENT {
        let enough = (shared_mib * 100 / SHARE_PERCENT + 1).next_multiple_of(512);
        return Err(Error::Option(format!(
            "the files for the guest hold {shared_mib} MiB, and a guest with {mem_mib} MiB of memory, where its files \
             are, has no room for them: give it more with --mem {enough}M, or share less"
        )));
    }
    Ok(())
}

/// Percentage of the guest's memory for shared files. The rest is for its kernel, its own files and the command.
const SHARE_PERCENT: u64 = 60;

pub(crate) fn plugin_arguments(
    prepared: &Prepared,
    job: &Job,
    observer: &ObserverOptions,
    streams: &Path,
) -> Result<OsString> {
    let plugin = std::path::absolute(&observer.plugin).at("find", &observer.plugin)?;
    fs::metadata(&plugin).at("read", &plugin)?;
    let mut value = option("", &plugin);
    value.push(",out=");
    value.push(option("", streams));
    value.push(",hooks=");
    value.push(option("", &prepared.snapshot.folder.join("hooks")));
    value.push(match job.span {
        Span::Command => ",start=mark",
        Span::Boot => ",start=boot",
    });
    value.push(match prepared.machine.pace {
        Pace::Exact => ",icount=on",
        Pace::Fast => ",icount=off",
    });
    for (name, argument) in &observer.arguments {
        value.push(format!(",{name}={}", argument.replace(',', ",,")));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use kprism_agent::Warm;

    use super::*;
    use crate::options::Share;

    #[test]
    fn the_agent_is_told_of_warm_up_turns() {
        let folder = std::env::temp_dir().join(format!("kprism-warm-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let warm = Warm { turns: 2, argv: vec!["cat".into()] };
        // A recorder around the command: the turns are the command's.
        let job = Job {
            warm: warm.clone(),
            begin: vec!["echo on".into()],
            ..Job::new(["recorder".to_owned(), "cat".to_owned()])
        };
        accepts_warm(&job).unwrap();
        job_arguments(&job, false, 1024, &folder).unwrap();
        let told: kprism_agent::Job = serde_json::from_slice(&fs::read(folder.join("job")).unwrap()).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!((told.warm, told.begin, told.argv), (warm, job.begin.clone(), job.argv.clone()));
    }

    /// Values of the machine come before the user's commands and variables, which may set others.
    #[test]
    fn the_agent_is_told_of_the_machines_values() {
        let folder = tempfile::tempdir().unwrap();
        let mut like_host = LikeHost::default();
        like_host.huge_pages.insert("enabled".to_owned(), "never".to_owned());
        for (name, value) in [("LANG", "de_DE.UTF-8"), ("LC_TIME", "C")] {
            like_host.variables.insert(name.to_owned(), value.to_owned());
        }
        let job = Job {
            env: vec![("LC_TIME".into(), "POSIX".into())],
            before: vec!["echo before".into()],
            after: vec!["echo after".into()],
            like_host: Some(like_host.clone()),
            ..Job::new(["true".to_owned()])
        };
        job_arguments(&job, false, 1024, folder.path()).unwrap();
        let text = fs::read(folder.path().join("job")).unwrap();
        let told: kprism_agent::Job = serde_json::from_slice(&text).unwrap();
        assert_eq!(told.before, [like_host.line(), "echo before".to_owned()]);
        assert_eq!(told.after, ["echo after", like_host::TELL]);
        let values = |name: &str| -> Vec<&str> {
            told.env.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
        };
        assert_eq!((values("LANG"), values("LC_TIME")), (vec!["de_DE.UTF-8"], vec!["POSIX"]));
    }

    #[test]
    fn each_turn_has_the_time_of_the_command() {
        let folder = std::env::temp_dir().join(format!("kprism-turns-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let control = folder.join("control");
        fs::write(
            &control,
            "{\"m\":\"accepted\"}\n{\"m\":\"turn\",\"code\":0}\n{\"m\":\"turn\",\"code\":3}\n",
        )
        .unwrap();
        let nothing = || PathBuf::from("/dev/null");
        let files = PortFiles { console: nothing(), control, stdout: nothing(), stderr: nothing() };
        let counters = CounterReader::new(folder.join("kallsyms"), &folder, &folder, None);
        let minute = Duration::from_secs(60);
        let start = Instant::now().checked_sub(minute).unwrap();
        let mut watch = Watch::new(&files, (start, false), Collected::new(&folder), counters);
        watch.follow(&mut |_| {});
        // The job was taken a minute ago, and the second turn ended just now.
        watch.accepted = Some(Duration::ZERO);
        let ran = watch.ran_for();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(watch.warm, [0, 3]);
        assert!(ran < minute, "the time of the turns before counts: {ran:?}");
    }

    #[test]
    fn warm_up_turns_of_nothing_or_in_the_recording_are_refused() {
        let warm =
            |argv: &[&str]| Warm { turns: 1, argv: argv.iter().map(|&word| word.to_owned()).collect() };
        let refused = |job: Job| accepts_warm(&job).unwrap_err().to_string();
        let none = refused(Job { warm: warm(&[]), ..Job::new(["true".to_owned()]) });
        assert!(none.contains("there is none"), "{none}");
        let boot = Job { warm: warm(&["true"]), span: Span::Boot, ..Job::new(["true".to_owned()]) };
        assert!(refused(boot.clone()).contains("a recorded boot"));
        accepts_warm(&Job { warm: Warm::default(), ..boot }).unwrap();
    }

    #[test]
    fn a_full_disk_is_the_one_that_is_written_to() {
        let folder = std::env::temp_dir().join(format!("kprism-share-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("large"), vec![1; 1 << 20]).unwrap();
        let share = Share { host: folder.clone(), guest: "/share".into() };
        let job = Job { shares: vec![share], ..Job::new(["true".to_owned()]) };
        let error = write_files(&job, 1024, Path::new("/dev/full")).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(&error, Error::Full { path } if path == Path::new("/dev/full")), "{error}");
    }
}
