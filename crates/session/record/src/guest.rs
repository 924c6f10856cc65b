// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command in the guest, recorded into a run.
//!
//! Input: [`Settings`]. Output: a run whose `streams/` the observer wrote, with the command's output, exit code and symbols.
//! [`kprism_signals`] reports Ctrl-C.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use kprism_lab::{
    CpuFeature, Ended, Forward, Full, Job, KernelSource, ModuleFile, Network, NotTaken, ObserverOptions,
    Options, Outcome, Pace, Prepared, Report, Share, Span, Storage, TakenOver,
};
use kprism_profile::parse;
use kprism_session::{Progress, date, flow};
use kprism_store::{
    Environment, HugePageMode, HugePages, Instrument, Kernel, KernelModule, KernelTests, KernelTree,
    Manifest, OptionKey, Run, RunKind,
};
use kprism_tracefs::beside::Beside;

use crate::{NOT_ENDED, condition, events, modules, notes, written};

/// Settings of a recording in the guest.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The run folder to write.
    pub output: PathBuf,
    /// The guest.
    pub guest: Options,
    /// The user's command, and what it finds around it.
    pub job: Job,
    /// The part of the flow that is recorded.
    pub observe: Observe,
    /// Form of the packets.
    pub packets: Packets,
    /// More arguments for the observer: names and values.
    pub observer_arguments: Vec<(String, String)>,
    /// The tests that the job is, if they are the kernel's own.
    pub tests: Option<KernelTests>,
    /// Tracepoints that the guest's kernel records beside the flow.
    pub events: Option<Beside>,
}

/// The part of the flow that is recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Observe {
    /// Nothing: the guest runs without the observer.
    Nothing,
    /// Everything of the job's span.
    #[default]
    Everything,
    /// The instructions before each place where a condition held.
    Snapshot {
        /// The condition: `FUNC[%return] [if EXPR]`.
        when: String,
        /// Bytes of each CPU's stream that a snapshot holds.
        bytes: u64,
    },
    /// The instructions between two conditions; without `from`, those before the first `until`.
    Window {
        /// The condition that opens a window.
        from: Option<String>,
        /// The condition that closes it.
        until: Option<String>,
    },
}

/// Form of Intel PT's packets. `None` leaves a setting as the observer has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packets {
    /// Returns are compressed (SDM, IA32_RTIT_CTL.DisRETC).
    pub retc: Option<bool>,
    /// Bytes between PSB packets.
    pub psb: Option<u64>,
    /// MTC period as a power of two of crystal ticks, or `off`.
    pub mtc: Option<String>,
    /// Minimum of cycles between CYC packets, `on` or `off`.
    pub cyc: Option<String>,
    /// The kernel's flow is left out. Then nothing tells when tasks are switched, so that there is no profile.
    pub user_only: bool,
}

/// Storage of the guest as a user writes it: a preset, or the time that each request takes.
///
/// # Errors
/// It is none.
pub fn storage(text: &str) -> Result<Storage, String> {
    if let Some(preset) = Storage::preset(text) {
        return Ok(preset);
    }
    let expected = |_| "expected memory, nvme, ssd, hdd, or the time of a request such as 80us".to_owned();
    parse::duration(text).map_err(expected).and_then(Storage::taking)
}

/// A period of MTC packets as a user writes it: 2^N crystal ticks (SDM, IA32_RTIT_CTL.MTCFreq), or `off`.
///
/// # Errors
/// It is none.
pub fn mtc(text: &str) -> Result<String, String> {
    match text.parse::<u8>() {
        Ok(0..=15) => Ok(text.to_owned()),
        _ if text == "off" => Ok(text.to_owned()),
        _ => Err("expected 0 to 15, or off".to_owned()),
    }
}

/// A threshold of CYC packets as a user writes it: 0 or 2^(n-1) cycles (SDM, IA32_RTIT_CTL.CycThresh), `on` or `off`.
///
/// # Errors
/// It is none.
pub fn cyc(text: &str) -> Result<String, String> {
    match text.parse::<u32>() {
        Ok(n) if n == 0 || n <= 16384 && n.is_power_of_two() => Ok(text.to_owned()),
        _ if text == "on" || text == "off" => Ok(text.to_owned()),
        _ => Err("expected 0 or a power of two up to 16384, on, or off".to_owned()),
    }
}

/// A guest in which a recorder runs beside the command, instead of the observer outside.
#[derive(Debug, Clone)]
pub struct Guest {
    /// The guest.
    pub options: Options,
    /// The user's command, and what it finds around it.
    pub job: Job,
    /// The program `kprism`, for the recorder that is a part of it: durations by BPF.
    pub program: PathBuf,
}

impl Guest {
    /// A recording into `output` without the observer.
    pub(crate) fn settings(&self, output: PathBuf) -> Settings {
        Settings {
            observe: Observe::Nothing,
            ..Settings::new(output, self.options.clone(), self.job.clone())
        }
    }
}

impl Packets {
    pub(crate) fn arguments(&self) -> Vec<(String, String)> {
        let all = [
            ("retc", self.retc.map(|on| if on { "on" } else { "off" }.to_owned())),
            ("psb", self.psb.map(|n| n.to_string())),
            ("mtc", self.mtc.clone()),
            ("cyc", self.cyc.clone()),
            ("filter", self.user_only.then(|| "user".to_owned())),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

impl Settings {
    /// Everything that `job` does in the guest `guest` is recorded into `output`.
    pub fn new(output: PathBuf, guest: Options, job: Job) -> Self {
        Settings {
            output,
            guest,
            job,
            observe: Observe::Everything,
            packets: Packets::default(),
            observer_arguments: Vec::new(),
            tests: None,
            events: None,
        }
    }

    /// The observer with its arguments; none if nothing is observed.
    ///
    /// # Errors
    /// The observer is not installed, the guest's kernel is not where it was linked, or a condition does not fit it.
    pub fn observer(&self, prepared: &Prepared) -> Result<Option<ObserverOptions>> {
        if self.observe == Observe::Nothing {
            return Ok(None);
        }
        if !prepared.is_where_linked() {
            bail!("with kaslr the names of functions cannot be found: add --unobserved, or leave kaslr out");
        }
        let plugin = kprism_lab::find_observer()?;
        let mut arguments = self.packets.arguments();
        let mut add = |option: &str, key: &str, condition: Option<&String>| -> Result<()> {
            if let Some(text) = condition {
                arguments.push((key.to_owned(), condition::argument(option, text, prepared)?));
            }
            Ok(())
        };
        match &self.observe {
            Observe::Nothing | Observe::Everything => {}
            Observe::Snapshot { when, bytes } => {
                add("--snapshot-when", "when", Some(when))?;
                arguments.push(("keep".to_owned(), bytes.to_string()));
            }
            Observe::Window { from, until } => {
                add("--from", "from", from.as_ref())?;
                add("--until", "until", until.as_ref())?;
            }
        }
        arguments.extend_from_slice(&self.observer_arguments);
        Ok(Some(ObserverOptions { plugin, arguments }))
    }

    /// All that an exact run depends on beside the command: the guest, the observer, and options that change what the command
    /// finds. Shared folders are not in it: what they hold is the command's. `None` at another pace, or with a network: then no
    /// two runs are the same.
    ///
    /// # Errors
    /// A file of the lab's cache, or the observer, cannot be read.
    pub(crate) fn environment(
        &self,
        prepared: &Prepared,
        observer: Option<&ObserverOptions>,
    ) -> Result<Option<Environment>> {
        if self.guest.pace == Pace::Fast || self.guest.network != Network::None {
            return Ok(None);
        }
        let mut parts = prepared.environment()?;
        let mut option = |name: &str, value: String| {
            if !value.is_empty() {
                parts.push((format!("option {name}"), value));
            }
        };
        let job = &self.job;
        option("--before", job.before.join("; "));
        // The names in it are sorted, so equal values are equal texts.
        option(
            "--like-host",
            job.like_host.as_ref().map(serde_json::to_string).transpose()?.unwrap_or_default(),
        );
        option(
            "--storage",
            self.guest.storage.device().map(|_| self.guest.storage.to_string()).unwrap_or_default(),
        );
        option("--warm", if job.warm.turns == 0 { String::new() } else { job.warm.turns.to_string() });
        option(
            "--env",
            job.env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "),
        );
        option(
            "--event",
            self.events.iter().flat_map(|beside| &beside.events).cloned().collect::<Vec<_>>().join(","),
        );
        option("--cwd", job.cwd.clone().unwrap_or_default());
        option("--stdin", job.stdin.as_deref().map(kprism_lab::content).transpose()?.unwrap_or_default());
        if let Some(observer) = observer {
            parts.push(("observer".to_owned(), kprism_lab::content(&observer.plugin)?));
        }
        if self.events.is_some() {
            parts.push(("recorder".to_owned(), kprism_lab::content(&kprism_lab::find_recorder()?)?));
        }
        Ok(Some(Environment::new(parts)))
    }

    fn manifest(&self, prepared: &Prepared) -> Manifest {
        let (guest, job) = (&self.guest, &self.job);
        let mut m = Manifest::new(RunKind::Lab, guest.smp);
        m.command = job.argv.clone();
        m.tests = self.tests;
        m.kernel = Some(kernel(prepared));
        m.huge_pages = Some(huge_pages(prepared, job, &TakenOver::NotTold));
        m.created = date::now();
        m.stopped = Some(NOT_ENDED.into());
        if guest.network == Network::User {
            m.notes.push("the guest had a network (--net): no two such runs are the same".to_owned());
        }
        let (mut when, mut kept, mut from, mut until) = (None, None, None, None);
        match &self.observe {
            Observe::Nothing | Observe::Everything => {}
            Observe::Snapshot { when: condition, bytes } => {
                (when, kept) = (Some(condition.clone()), Some(*bytes))
            }
            Observe::Window { from: opens, until: closes } => (from, until) = (opens.clone(), closes.clone()),
        }
        let own = [
            (OptionKey::Boot, (job.span == Span::Boot).into()),
            (OptionKey::SnapshotWhen, when.into()),
            (OptionKey::SnapshotBytes, kept.into()),
            (OptionKey::From, from.into()),
            (OptionKey::Until, until.into()),
            (OptionKey::Packets, serde_json::json!(self.packets.arguments())),
            (OptionKey::Events, serde_json::json!(self.events)),
        ];
        let of_guest = manifest_options(prepared, guest, job);
        m.set_all(of_guest.into_iter().chain(own));
        m
    }
}

/// The options of a guest and of a command in it, for a manifest.
pub(crate) fn manifest_options(
    prepared: &Prepared,
    guest: &Options,
    job: &Job,
) -> Vec<(OptionKey, serde_json::Value)> {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|p| p.display().to_string());
    let kernel = match &guest.kernel {
        // The manifest's kernel names the tree.
        KernelSource::Newest | KernelSource::Tree(_) => None,
        // The user may have named a meta package, which is another kernel next month.
        KernelSource::Package(name) => Some(prepared.kernel_package().unwrap_or(name).to_owned()),
        KernelSource::Image(image) => Some(image.display().to_string()),
    };
    vec![
        (OptionKey::Qemu, prepared.qemu_version().into()),
        (OptionKey::KernelCommandLine, prepared.command_line().into()),
        (OptionKey::Pace, if guest.pace == Pace::Fast { "fast" } else { "exact" }.into()),
        (OptionKey::MemMib, guest.mem_mib.into()),
        (OptionKey::CpuFeatures, guest.cpu_features.iter().map(CpuFeature::to_string).collect()),
        (OptionKey::Kernel, kernel.into()),
        (OptionKey::ModuleFolder, path(&guest.module_folder).into()),
        (OptionKey::GuestImage, path(&guest.guest_image).into()),
        (OptionKey::Initrd, path(&guest.initrd).into()),
        (OptionKey::Root, path(&guest.root).into()),
        (OptionKey::Init, guest.init.clone().into()),
        (OptionKey::Disk, guest.disks.iter().map(|disk| disk.display().to_string()).collect()),
        (OptionKey::Storage, serde_json::json!(guest.storage.device())),
        (OptionKey::KeepDisks, job.keeps_disks.into()),
        (OptionKey::Module, guest.modules.clone().into()),
        (OptionKey::WithModule, guest.with_modules.clone().into()),
        (OptionKey::Package, guest.packages.clone().into()),
        (OptionKey::Net, (guest.network == Network::User).then_some("user").into()),
        (OptionKey::Port, job.ports.iter().map(Forward::to_string).collect()),
        (OptionKey::Share, job.shares.iter().map(Share::to_string).collect()),
        (OptionKey::Stdin, path(&job.stdin).into()),
        (OptionKey::Before, job.before.clone().into()),
        (OptionKey::LikeHost, serde_json::json!(job.like_host)),
        (OptionKey::Warm, job.warm.turns.into()),
        (OptionKey::Env, job.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        (OptionKey::Cwd, job.cwd.clone().into()),
        (OptionKey::Timeout, job.timeout.as_ref().map(Duration::as_secs).into()),
        (OptionKey::MaxSize, job.max_bytes.into()),
    ]
}

/// The modes of transparent huge pages, of the guest and of this machine. `taken`: what the guest took over from this machine.
fn huge_pages(prepared: &Prepared, job: &Job, taken: &TakenOver) -> HugePages {
    let guest = match (sets_huge_pages(job), like_host_mode(job, taken)) {
        (Some(line), _) => HugePageMode::Unknown(format!("a command of the run names it: {line}")),
        (None, Some(mode)) => mode,
        (None, None) => prepared.huge_pages().map_or_else(HugePageMode::Unknown, HugePageMode::named),
    };
    HugePages { guest, machine: HugePageMode::of_this_machine() }
}

/// The mode of transparent huge pages that the guest took over (`--like-host`); `None` if it was not to.
fn like_host_mode(job: &Job, taken: &TakenOver) -> Option<HugePageMode> {
    let mode = job.like_host.as_ref()?.huge_pages.get("enabled")?;
    Some(match taken {
        TakenOver::NotAsked | TakenOver::NotTold => HugePageMode::Unknown(
            "the guest did not tell whether it took over the machine's (--like-host)".to_owned(),
        ),
        TakenOver::AllBut(all) => match all.iter().find(|one| one.name == NotTaken::HUGE_PAGES) {
            Some(one) => HugePageMode::Unknown(format!("--like-host: {one}")),
            None => HugePageMode::named(mode),
        },
    })
}

/// A command of the job that may set the mode of transparent huge pages.
fn sets_huge_pages(job: &Job) -> Option<&str> {
    let mut words = job.before.iter().chain(&job.argv).map(String::as_str);
    words.find(|word| word.contains("transparent_hugepage/"))
}

/// Notes that the recording is not whole for a reason that the guest does not know of: the run failed, whatever its command
/// ended with.
fn fail(ended: &mut Ended, manifest: &mut Manifest, why: &str) {
    if *ended == Ended::Normal {
        *ended = Ended::Failed(why.to_owned());
    }
    manifest.stopped.get_or_insert_with(|| why.to_owned());
}

/// Bytes that must fit on the disk behind a run, so that nobody doubts that its last output did.
const ROOM: usize = 64 << 10;

/// Fails if the disk of this folder is full. QEMU drops what it cannot write of the console and of the command's output, and
/// tells nobody.
fn has_room(folder: &Path) -> Result<(), String> {
    let path = folder.join(".room");
    let written = std::fs::write(&path, [0; ROOM]);
    // Without the file, there is nothing to remove.
    let _ = std::fs::remove_file(&path);
    written.map_err(|error| {
        let place = folder.display();
        format!("no room at the end of the run, its output may be cut off: {place}: {error}")
    })
}

/// The guest's kernel, for a manifest.
pub(crate) fn kernel(prepared: &Prepared) -> Kernel {
    let kernel = prepared.kernel();
    let tree = prepared.tree().map(|tree| KernelTree {
        folder: tree.folder.clone(),
        commit: tree.commit.clone(),
        changed: tree.changed,
        gaps: tree.gaps.clone(),
    });
    let module = |module: &ModuleFile| KernelModule {
        name: module.name.clone(),
        file: module.file.clone(),
        build_id: module.build_id.clone(),
    };
    Kernel {
        release: kernel.release.clone(),
        build_id: kernel.build_id.clone(),
        tree,
        modules: prepared.module_files().iter().map(module).collect(),
    }
}

/// Makes a guest ready: fetches, boots and snapshots it, unless the cache has it.
///
/// # Errors
/// [`kprism_lab::Error`].
pub fn prepare(guest: &Options, progress: &Progress) -> Result<Prepared> {
    let prepared = kprism_lab::prepare(guest, &mut |p| show(progress, p))?;
    progress.clear();
    for note in prepared.tree().iter().flat_map(|tree| &tree.notes) {
        progress.say(&format!("note: {note}"));
    }
    Ok(prepared)
}

/// Says what will not be seen of a kernel of the user's, for a recording of its flow.
pub(crate) fn say_gaps(prepared: &Prepared, progress: &Progress) {
    for gap in prepared.tree().iter().flat_map(|tree| &tree.gaps) {
        progress.say(&format!("note: {gap}"));
    }
}

/// Makes the guest ready, runs the command and records it. The command's output goes to `report`.
///
/// # Errors
/// As of [`prepare`] and [`record`].
pub fn run(settings: &Settings, progress: &Progress, report: Report<'_>) -> Result<(Run, Outcome)> {
    run_job(settings, &settings.job, progress, report)
}

/// The same, of a job that the user's command stands for ([`Settings::job`], which the manifest names).
pub(crate) fn run_job(
    settings: &Settings,
    job: &Job,
    progress: &Progress,
    report: Report<'_>,
) -> Result<(Run, Outcome)> {
    accepts_limit(job, settings.observe != Observe::Nothing)?;
    if settings.observe != Observe::Nothing {
        // Better before a long boot than after it.
        kprism_lab::find_observer()?;
    }
    if let Some(beside) = &settings.events {
        events::possible(settings, beside)?;
        kprism_lab::find_recorder()?;
    }
    let prepared = prepare(&settings.guest, progress)?;
    if settings.observe != Observe::Nothing {
        say_gaps(&prepared, progress);
    }
    progress.step("running the command");
    let (run, ran) = record(settings, job, &prepared, report)?;
    progress.clear();
    complain(&ran, progress);
    Ok((run, ran))
}

/// Refuses a limit of what nobody writes outside the guest. A recorder in the guest keeps what it records in the guest's memory.
///
/// # Errors
/// `job` has the limit, and the observer does not write.
pub fn accepts_limit(job: &Job, is_observed: bool) -> Result<()> {
    if job.max_bytes.is_some() && !is_observed {
        bail!(
            "--max-size limits the streams that the observer writes, and this run has none: leave it out, or limit the run by --timeout"
        );
    }
    Ok(())
}

/// Records `job` into a new run. It is the user's own ([`Settings::job`], which the manifest names), or wraps that.
///
/// # Errors
/// The run cannot be written, or QEMU cannot be started. A guest that did not come to its end is no error: see
/// [`Outcome::ended`].
pub fn record(
    settings: &Settings,
    job: &Job,
    prepared: &Prepared,
    report: Report<'_>,
) -> Result<(Run, Outcome)> {
    let (run, mut ran) = record_only(settings, job, prepared, report)?;
    check_room(&run, &mut ran);
    Ok((run, ran))
}

/// The same for a caller that writes to the run's disk as well: it calls [`check_room`] when it has.
pub(crate) fn record_only(
    settings: &Settings,
    job: &Job,
    prepared: &Prepared,
    report: Report<'_>,
) -> Result<(Run, Outcome)> {
    let wrapped = match &settings.events {
        Some(beside) => {
            events::possible(settings, beside)?;
            Some(events::around(job, beside)?)
        }
        None => None,
    };
    let job = wrapped.as_ref().unwrap_or(job);
    kprism_lab::accepts(prepared, job)?;
    accepts_limit(job, settings.observe != Observe::Nothing)?;
    let observer = settings.observer(prepared)?;
    let run = Run::create(&settings.output)?;
    let mut manifest = settings.manifest(prepared);
    manifest.environment = settings.environment(prepared, observer.as_ref())?;
    run.write_manifest(&manifest)?;
    let begun = SystemTime::now();
    let mut ran = kprism_lab::run(prepared, job, run.dir(), observer.as_ref(), report)?;
    manifest.exit_code = ran.exit_code.map(i32::from);
    manifest.stopped = reason(&ran.ended);
    manifest.notes.extend(notes::of(&ran));
    if settings.job.like_host.is_some() {
        manifest.huge_pages = Some(huge_pages(prepared, &settings.job, &ran.like_host));
    }
    if settings.events.is_some() && events::recorded(&run)?.is_none() {
        let said = ran.after.first().map(|text| text.trim()).filter(|text| !text.is_empty());
        let why = said.unwrap_or("the guest did not come to its end");
        manifest.notes.push(format!("no kernel events were recorded: {why}"));
    }
    if job.collect.is_some() {
        adopt(&mut manifest, run.own_manifest()?, observer.is_some());
    }
    if let Some(observer) = observer {
        // First: it is what `kprism report` shows if nothing is said.
        manifest.instruments.insert(0, Instrument::Flow);
        if observer.arguments.iter().any(|(name, _)| name == "tlb") {
            manifest.instruments.push(Instrument::Tlb);
        }
        let had_stopped = manifest.stopped.is_some();
        flow::complete(&run, &mut manifest);
        // What is left of a full disk is for the account and the tables.
        match &ran.ended {
            Ended::Full(Full::Disk(_)) => {
                manifest
                    .notes
                    .push("debug files and modules are not kept: the disk is nearly full".to_owned());
            }
            _ => modules::keep(&run, prepared, job, begun, &mut manifest),
        }
        // The command may have ended well after its recorder had to give up.
        if let Some(why) = manifest.stopped.clone().filter(|_| !had_stopped) {
            fail(&mut ran.ended, &mut manifest, &why);
        }
        // A recorder that cannot go on ends QEMU: its reason is the one to tell.
        if let (Ended::Failed(why), Some(stopped)) = (&mut ran.ended, &manifest.stopped) {
            why.clone_from(stopped);
        }
    }
    run.write_manifest(&manifest)?;
    Ok((run, ran))
}

/// Fails a run whose disk is full: see [`has_room`].
pub(crate) fn check_room(run: &Run, ran: &mut Outcome) {
    if let Err(why) = has_room(run.dir()) {
        fail_run(run, ran, &why);
    }
}

/// Notes in a run that was written that its recording is not whole; see [`fail`].
pub(crate) fn fail_run(run: &Run, ran: &mut Outcome, why: &str) {
    let noted = run.own_manifest().map_err(anyhow::Error::from).and_then(|mut manifest| {
        fail(&mut ran.ended, &mut manifest, why);
        Ok(run.write_manifest(&manifest)?)
    });
    if let Err(error) = noted {
        // Without room for the manifest either, the command's end tells it.
        ran.ended = Ended::Failed(format!("{why}; the run's account does not have it: {error:#}"));
    }
}

/// A recorder in the guest writes a manifest of its own, which was collected. From it are taken: clock, counts, accounts, and how
/// the user's command ended. How the recorder ended is known from outside. A recorder that writes no manifest leaves the lab's
/// as it was. The clock is that of the flow, if there is one.
fn adopt(manifest: &mut Manifest, collected: Manifest, has_flow: bool) {
    if collected.kind != RunKind::Host {
        return;
    }
    // Each field is named, so that a new one does not compile before it is decided on.
    let Manifest {
        clock,
        exit_code,
        stopped,
        durations,
        probe,
        accounts,
        instruments,
        notes,
        options,
        other,
        // The lab knows these better, or nothing in the guest decodes.
        version: _,
        run_id: _,
        tool: _,
        kind: _,
        command: _,
        kernel: _,
        environment: _,
        huge_pages: _,
        created: _,
        vcpus: _,
        instructions: _,
        instructions_recorded: _,
        decode_errors: _,
        lost_bytes: _,
        tests: _,
        // Listed anew in the folder that the files are collected into.
        files: _,
        absent: _,
        grown: _,
        unlisted: _,
        // Made in the folder that the files are collected into.
        tables: _,
        unmarked: _,
        // The guest has none of its own.
        processor: _,
    } = collected;
    if !has_flow {
        manifest.clock = clock;
    }
    manifest.exit_code = exit_code;
    manifest.stopped = manifest.stopped.take().or(stopped);
    manifest.durations = durations;
    manifest.probe = probe;
    manifest.accounts.extend(accounts);
    manifest.instruments.extend(instruments);
    manifest.notes.extend(notes);
    for (name, value) in options {
        manifest.options.entry(name).or_insert(value);
    }
    for (name, value) in other {
        manifest.other.entry(name).or_insert(value);
    }
}

/// Shows the lab's steps and the guest's console; the command's output is left out.
pub fn show(progress: &Progress, p: kprism_lab::Progress<'_>) {
    match p {
        kprism_lab::Progress::Step(text) => progress.long_step(text),
        kprism_lab::Progress::Console(line) => progress.detail(line),
        kprism_lab::Progress::Written(written) => {
            progress.state(&format!("running the command: {}", written::line(&written)));
        }
        kprism_lab::Progress::Stdout(_) | kprism_lab::Progress::Stderr(_) => {}
    }
}

/// Why a guest did not come to its end; nothing if it did.
pub fn reason(ended: &Ended) -> Option<String> {
    match ended {
        Ended::Normal => None,
        Ended::Timeout => Some("time-out".into()),
        Ended::Interrupted => Some("interrupted".into()),
        Ended::Full(full) => Some(written::reason(*full)),
        Ended::Panic(words) => Some(format!("the guest's kernel panicked: {words}")),
        Ended::Failed(why) => Some(why.clone()),
    }
}

/// Tells what went wrong, if anything did, with the end of the guest's console.
pub fn complain(ran: &Outcome, progress: &Progress) {
    notes::of(ran).iter().for_each(|note| progress.say(&format!("note: {note}")));
    if let Some(reason) = reason(&ran.ended) {
        progress.error(&format!("kprism: {reason}"));
        // The console tells nothing of an end that came from outside.
        let is_from_outside = matches!(ran.ended, Ended::Interrupted | Ended::Full(_));
        if !ran.console_tail.is_empty() && !is_from_outside {
            progress.error(&format!("last lines of the guest's console:\n{}", ran.console_tail.trim_end()));
        }
    }
    if progress.is_verbose() {
        progress.say(&format!(
            "kprism: the guest took the command after {:.3} s, ended after {:.3} s",
            ran.start.as_secs_f64(),
            ran.wall.as_secs_f64()
        ));
        for file in &ran.missing_files {
            progress.say(&format!("kprism: no symbols of {}: {}", file.path, file.why));
        }
    }
}

/// True if the error is that an end was asked for ([`kprism_signals`]).
pub fn is_interrupt(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<kprism_lab::Error>(), Some(kprism_lab::Error::Interrupted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_fails_a_run_whatever_its_command_ended_with() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(has_room(folder.path()), Ok(()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let why = has_room(&folder.path().join("none")).unwrap_err();
        assert!(why.starts_with("no room at the end of the run"), "{why}");
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        let mut ended = Ended::Normal;
        fail(&mut ended, &mut manifest, &why);
        assert_eq!((&ended, manifest.stopped.as_ref()), (&Ended::Failed(why.clone()), Some(&why)));
        ended = Ended::Timeout;
        fail(&mut ended, &mut manifest, "another");
        assert_eq!((ended, manifest.stopped), (Ended::Timeout, Some(why)));
    }

    #[test]
    fn a_limit_of_streams_that_are_not_written_is_refused() {
        let mut job = Job::new(["true".to_owned()]);
        accepts_limit(&job, false).unwrap();
        job.max_bytes = Some(1 << 20);
        accepts_limit(&job, true).unwrap();
        assert!(accepts_limit(&job, false).unwrap_err().to_string().starts_with("--max-size"));
        let ended = Ended::Full(kprism_lab::Full::Size(1 << 20));
        assert_eq!(reason(&ended).as_deref(), Some("the recording reached --max-size, 1.0 MiB"));
    }

    #[test]
    fn a_command_that_sets_the_mode_of_huge_pages_is_noticed() {
        let mut job = Job::new(["cat".to_owned(), "/sys/kernel/mm".to_owned()]);
        assert_eq!(sets_huge_pages(&job), None);
        let line = "echo never > /sys/kernel/mm/transparent_hugepage/enabled";
        job.before.push(line.to_owned());
        assert_eq!(sets_huge_pages(&job), Some(line));
    }

    /// A mode that was asked for is no fact before the guest told.
    #[test]
    fn the_mode_that_a_guest_took_over_is_known_when_it_told() {
        let mut job = Job::new(["true".to_owned()]);
        let none = TakenOver::AllBut(Vec::new());
        assert_eq!(like_host_mode(&job, &none), None);
        let mut like_host = kprism_lab::LikeHost::default();
        like_host.huge_pages.insert("enabled".to_owned(), "madvise".to_owned());
        job.like_host = Some(like_host);
        assert_eq!(like_host_mode(&job, &none), Some(HugePageMode::Madvise));
        let other = NotTaken { name: "umask".to_owned(), why: "0022 in the guest".to_owned() };
        let known = TakenOver::AllBut(vec![other.clone()]);
        assert_eq!(like_host_mode(&job, &known), Some(HugePageMode::Madvise));
        let refused = NotTaken { name: NotTaken::HUGE_PAGES.to_owned(), ..other };
        for taken in [TakenOver::NotTold, TakenOver::AllBut(vec![refused])] {
            let mode = like_host_mode(&job, &taken).unwrap();
            assert_eq!(mode.name(), None, "{taken:?}");
        }
    }

    #[test]
    fn a_recorder_in_the_guest_knows_its_clock_and_the_command() {
        let mut collected = crate::begun_by_bpf(&["false".into()], vec![(OptionKey::Record, "probe".into())]);
        collected.exit_code = Some(1);
        collected.stopped = None;
        collected.probe.records = Some(3);
        // The recorder itself ended with 0.
        let mut manifest = Manifest { exit_code: Some(0), ..Manifest::new(RunKind::Lab, 1) };
        adopt(&mut manifest, collected.clone(), false);
        assert_eq!((manifest.clock.name.as_str(), manifest.exit_code), ("monotonic", Some(1)));
        assert_eq!((manifest.probe.records, manifest.stopped.as_deref()), (Some(3), None));
        assert_eq!(manifest.options["record"], "probe");

        let mut stopped = Manifest { stopped: Some("time-out".into()), ..Manifest::new(RunKind::Lab, 1) };
        adopt(&mut stopped, Manifest { stopped: Some(NOT_ENDED.into()), ..collected }, false);
        assert_eq!(stopped.stopped.as_deref(), Some("time-out"));

        let own = Manifest { exit_code: Some(2), ..Manifest::new(RunKind::Lab, 1) };
        let mut manifest = own.clone();
        adopt(&mut manifest, Manifest { stopped: Some(NOT_ENDED.into()), ..own.clone() }, false);
        assert_eq!(manifest, own, "nothing was collected but the lab's own manifest");
    }
}
