// SPDX-License-Identifier: MIT OR Apache-2.0
//! A machine of the user's in QEMU, recorded into a run.
//!
//! Input: [`Settings`], among them QEMU's command line. Output: a run whose `streams/` the observer wrote, with the symbols
//! of the kernel and of its modules as they were in the guest's memory (`symbols`). The guest needs no agent. A recording begins
//! when another process asks for it ([`marks`]), or as soon as the kernel is known.

pub mod marks;
mod symbols;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use kprism_image::BuildId;
use kprism_kmem::Kernel as Found;
use kprism_lab::machine::arguments::Arguments;
use kprism_lab::machine::{OwnMachine, Status};
use kprism_lab::{Full, Meter, Qemu, find_observer, hooks};
use kprism_session::{Progress, date, flow};
use kprism_store::{Instrument, Kernel, Manifest, OptionKey, Run, RunKind};
use serde_json::json;

use crate::guest::{Observe, Packets};
use crate::{NOT_ENDED, condition, written};
use marks::{Answer, Listener, Request};

/// Interval at which the machine's state is asked for.
const POLL: Duration = Duration::from_millis(50);
/// Time after which the user is told that there is still no kernel.
const SAID_AFTER: Duration = Duration::from_secs(30);
/// Attempts of a request to find a kernel: its first processor may be in firmware.
const RETRIES: u32 = 5;
/// Least interval of attempts to find a kernel.
const ATTEMPTS: Duration = Duration::from_millis(300);

/// Settings of a recording of the user's machine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The run folder to write.
    pub output: PathBuf,
    /// QEMU and its arguments.
    pub command: Vec<String>,
    /// When the recording begins.
    pub begin: Begin,
    /// The part of the flow that is kept.
    pub observe: Observe,
    /// Form of the packets.
    pub packets: Packets,
    /// The folder with the guest's files, for the symbols of its programs.
    pub sysroot: Option<PathBuf>,
    /// Bytes of the streams at which the recording is ended; the machine runs on.
    pub max_bytes: Option<u64>,
}

/// When the recording begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// When [`marks::send`] asks for it.
    AtMark,
    /// As soon as the kernel is found in the guest's memory.
    WithKernel,
}

/// `PF_FORKNOEXEC` of `include/linux/sched.h`: the process has not called exec since it was forked.
const FORKED_ONLY: u32 = 0x40;

/// A condition that opens a window where a program of this name begins, and one that closes it where the first thread of a
/// process that did so ends. A child that was only forked has its parent's name, and closes nothing.
pub fn of_process(name: &str) -> Observe {
    // TASK_COMM_LEN, with the zero at its end; the last letter may be cut.
    let end = (0..=name.len().min(15)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
    let name = &name[..end];
    let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
    Observe::Window {
        from: Some(format!("begin_new_exec%return if $comm == \"{quoted}\"")),
        // do_exit calls it with the task, which do_exit itself has no name for.
        until: Some(format!(
            "exit_signals if $comm == \"{quoted}\" && $tid == $pid && !(tsk->flags & {FORKED_ONLY:#x})"
        )),
    }
}

/// A machine of the user's that was recorded.
#[derive(Debug)]
pub struct Recorded {
    /// The run.
    pub run: Run,
    /// QEMU's exit code.
    pub code: u8,
    /// Why the recorder had to give up, if it had: most often, the disk was full. The machine ran on.
    pub failed: Option<String>,
}

/// Runs the machine until it ends, and records it. That the recorder had to give up is told to `progress`.
///
/// # Errors
/// The command line is refused, QEMU cannot be started, the run cannot be written, or the machine ended before anything
/// could be recorded.
pub fn record(settings: &Settings, progress: &Progress) -> Result<Recorded> {
    let arguments = Arguments::fit(&settings.command)?;
    let qemu = Qemu::of(arguments.program.clone().into())?;
    let plugin = find_observer()?;
    let run = Run::create(&settings.output)?;
    let mut manifest = manifest(settings, &qemu);
    run.write_manifest(&manifest)?;
    let listener = Listener::new(run.dir())?;
    for note in &arguments.notes {
        progress.say(&format!("note: {note}"));
    }
    let machine = OwnMachine::start(&arguments, &plugin)?;
    let mut recording = Recording {
        settings,
        run: &run,
        machine,
        progress,
        icount: arguments.icount,
        started: Instant::now(),
        begun: None,
        no_kernel: None,
        refused: None,
        said: false,
        waits: arguments.waits,
        notes: arguments.notes.clone(),
    };
    if settings.begin == Begin::AtMark {
        progress.say(&format!(
            "nothing is recorded yet: kprism mark start{}",
            kprism_session::input_option(&run)
        ));
    }
    let code = recording.until_the_end(&listener)?;
    let Recording { begun, no_kernel, refused, mut notes, .. } = recording;
    drop(listener);
    let Some(begun) = begun else {
        let why = refused.or(no_kernel).map_or_else(String::new, |why| format!(": {why}"));
        manifest.stopped = Some(format!("the machine ended before a recording began{why}"));
        run.write_manifest(&manifest)?;
        bail!("the machine ended before a recording began{why}");
    };
    let (missing, not_kept) = symbols::collect_files(&run, settings.sysroot.as_deref())?;
    notes.extend(not_kept);
    if !missing.is_empty() {
        notes.push(format!(
            "{} program files of the guest are not here, so their functions have no names; --sysroot names a folder \
             with the guest's files (the first: {})",
            missing.len(),
            missing[0]
        ));
    }
    notes.extend(begun.notes.iter().cloned());
    for note in notes.iter().skip(arguments.notes.len()) {
        progress.say(&format!("note: {note}"));
    }
    manifest.kernel = begun.kernel;
    manifest.notes = notes;
    manifest.exit_code = Some(code.into());
    manifest.stopped = begun.stopped;
    manifest.instruments.push(Instrument::Flow);
    let known = manifest.stopped.clone();
    flow::complete(&run, &mut manifest);
    let failed = found_by_recorder(known.as_deref(), manifest.stopped.as_deref()).or(begun.no_disk);
    if let Some(why) = &failed {
        progress.error(&format!("kprism: {}: the recording is not whole: {why}", run.dir().display()));
    }
    run.write_manifest(&manifest)?;
    Ok(Recorded { run, code, failed })
}

/// The reason to have stopped that the recorder's own files gave; `None` if there is none, or it was known without them.
fn found_by_recorder(known: Option<&str>, now: Option<&str>) -> Option<String> {
    now.filter(|&why| known != Some(why)).map(str::to_owned)
}

fn manifest(settings: &Settings, qemu: &Qemu) -> Manifest {
    let mut manifest = Manifest::new(RunKind::Machine, 0);
    manifest.created = date::now();
    manifest.command = settings.command.clone();
    manifest.stopped = Some(NOT_ENDED.into());
    let (mut when, mut kept, mut from, mut until) = (None, None, None, None);
    match &settings.observe {
        Observe::Nothing | Observe::Everything => {}
        Observe::Snapshot { when: condition, bytes } => {
            (when, kept) = (Some(condition.clone()), Some(*bytes))
        }
        Observe::Window { from: opens, until: closes } => (from, until) = (opens.clone(), closes.clone()),
    }
    let options = [
        (OptionKey::Qemu, json!(qemu.version)),
        (OptionKey::Begin, json!(if settings.begin == Begin::AtMark { "mark" } else { "kernel" })),
        (OptionKey::SnapshotWhen, json!(when)),
        (OptionKey::SnapshotBytes, json!(kept)),
        (OptionKey::From, json!(from)),
        (OptionKey::Until, json!(until)),
        (OptionKey::Packets, json!(settings.packets.arguments())),
        (OptionKey::MaxSize, json!(settings.max_bytes)),
    ];
    manifest.set_all(options);
    manifest
}

/// A recording that has begun.
struct Begun {
    kernel: Option<Kernel>,
    tracing: bool,
    /// Restarts of the guest until now.
    resets: u32,
    /// See [`place`].
    place: (Option<u64>, Vec<u8>),
    /// Why the recording ended before the machine.
    stopped: Option<String>,
    /// The same, if the disk was nearly full.
    no_disk: Option<String>,
    meter: Meter,
    notes: Vec<String>,
}

struct Recording<'a> {
    settings: &'a Settings,
    run: &'a Run,
    machine: OwnMachine,
    progress: &'a Progress,
    icount: bool,
    started: Instant,
    begun: Option<Begun>,
    /// Why no kernel was found at the last attempt.
    no_kernel: Option<String>,
    /// Why it cannot be recorded as wished.
    refused: Option<String>,
    /// The user was told that there is no kernel yet.
    said: bool,
    /// QEMU waits at the guest's end, and is ended from here.
    waits: bool,
    notes: Vec<String>,
}

impl Recording<'_> {
    fn until_the_end(&mut self, listener: &Listener) -> Result<u8> {
        let (mut next, mut asked, mut read) = (Instant::now() + ATTEMPTS, false, false);
        loop {
            if let Some(status) = self.machine.ended() {
                if !read && let Some(begun) = self.begun.as_mut().filter(|begun| begun.kernel.is_some()) {
                    begun
                        .notes
                        .push("QEMU ended by itself: modules that were loaded later have no names".into());
                }
                return Ok(status.code().map_or(125, |code| u8::try_from(code).unwrap_or(125)));
            }
            let is_over = matches!(self.machine.status(), Ok(Status::ShutDown | Status::Panicked));
            if is_over && !read {
                read = true;
                self.last_reading();
            }
            if !asked && (kprism_signals::end_requested() || is_over && self.waits) {
                asked = true;
                if !std::mem::replace(&mut read, true) {
                    self.last_reading();
                }
                self.machine.quit();
            }
            self.stop_after_reset();
            self.stop_when_full();
            if let Some(mut caller) = listener.next() {
                let answer = match caller.request() {
                    Ok(request) => self.answer(request),
                    Err(error) => Answer::Refused(error),
                };
                caller.answer(&answer);
            }
            let is_due =
                self.settings.begin == Begin::WithKernel && self.begun.is_none() && self.refused.is_none();
            if is_due && !asked && !is_over && Instant::now() > next {
                let start = Instant::now();
                self.try_to_begin();
                // The guest stands still meanwhile: at most a fifth of its time. A guest that lives for seconds only is to be found in them.
                next = Instant::now() + ATTEMPTS.max(start.elapsed() * 4);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Begins if a kernel is found. If it cannot be recorded as wished, the machine runs on.
    fn try_to_begin(&mut self) {
        match self.machine.kernel() {
            Ok(Ok(kernel)) => {
                if let Err(error) = self.begin(Some(&kernel)) {
                    self.progress.say(&format!("kprism: nothing is recorded: {error:#}"));
                    self.refused = Some(format!("{error:#}"));
                }
            }
            Ok(Err(why)) => self.no_kernel = Some(why),
            // It may just have ended.
            Err(error) => self.no_kernel = Some(error.to_string()),
        }
        if self.started.elapsed() > SAID_AFTER
            && self.begun.is_none()
            && !std::mem::replace(&mut self.said, true)
            && let Some(why) = &self.no_kernel
        {
            self.progress.say(&format!(
                "nothing is recorded yet: {why}; without names: kprism mark start{}",
                kprism_session::input_option(self.run)
            ));
        }
    }

    /// Ends the recording when the guest has restarted: addresses would have the names of the kernel before.
    fn stop_after_reset(&mut self) {
        let resets = self.machine.resets();
        let Some(begun) = self.begun.as_mut().filter(|begun| begun.resets < resets) else { return };
        begun.resets = resets;
        if begun.stopped.is_none() {
            self.stop("the guest restarted".into());
        }
    }

    /// Ends the recording when it has reached its limit, or the disk is nearly full. QEMU has the terminal, so the size is not shown.
    fn stop_when_full(&mut self) {
        let is_growing = |begun: &&mut Begun| begun.tracing && begun.stopped.is_none();
        let full = self.begun.as_mut().filter(is_growing).and_then(|begun| begun.meter.check(&mut |_| {}));
        let Some(full) = full else { return };
        let why = written::reason(full);
        self.last_reading();
        self.progress.say(&format!("kprism: the recording has ended, and the machine runs on: {why}"));
        if let (Full::Disk(_), Some(begun)) = (full, &mut self.begun) {
            begun.no_disk = Some(why.clone());
        }
        self.stop(why);
    }

    /// Ends the recording for good. The machine runs on.
    fn stop(&mut self, why: String) {
        let Some(begun) = &mut self.begun else { return };
        if std::mem::take(&mut begun.tracing)
            && let Err(error) = self.machine.trace(false)
        {
            begun.notes.push(format!("the recording could not be ended, though {why}: {error}"));
        }
        begun.stopped.get_or_insert(why);
    }

    fn answer(&mut self, request: Request) -> Answer {
        let done = match (request, &mut self.begun) {
            (Request::Start, Some(Begun { stopped: Some(why), .. })) => {
                Err(anyhow!("the recording has ended: {why}"))
            }
            (Request::Start, None) => self.begin_now().map(|note| match note {
                None => "recording".to_owned(),
                Some(note) => format!("recording; {note}"),
            }),
            (Request::Start, Some(begun)) if begun.tracing => Ok("recording already".to_owned()),
            (Request::Start, Some(begun)) => {
                let on = self.machine.trace(true);
                begun.tracing = on.is_ok();
                on.map(|()| "recording again".to_owned()).map_err(Into::into)
            }
            (Request::Stop, Some(begun)) if begun.tracing => {
                begun.tracing = false;
                let stopped = self.machine.trace(false).map_err(Into::into);
                self.last_reading();
                stopped.map(|()| "stopped; the machine runs on, and a report comes when it ends".to_owned())
            }
            (Request::Stop, _) => Ok("nothing is recorded".to_owned()),
        };
        match done {
            Ok(text) => Answer::Done(text),
            Err(error) => Answer::Refused(format!("{error:#}")),
        }
    }

    /// Begins on request, with or without a kernel. Returns what is missing.
    fn begin_now(&mut self) -> Result<Option<String>> {
        let mut found = self.machine.kernel()?;
        for _ in 1..RETRIES {
            if found.is_err() {
                std::thread::sleep(ATTEMPTS);
                found = self.machine.kernel()?;
            }
        }
        match found {
            Ok(kernel) => self.begin(Some(&kernel)).map(|()| None),
            Err(why) => {
                self.begin(None)?;
                let note =
                    format!("without names of functions and tasks, as no Linux kernel was found: {why}");
                self.notes.push(format!("recorded {note}"));
                Ok(Some(note))
            }
        }
    }

    /// Begins the recording.
    fn begin(&mut self, kernel: Option<&Found>) -> Result<()> {
        let (run, settings) = (self.run, self.settings);
        let runs = self.machine.status()? == Status::Running;
        ensure!(runs, "the machine does not run: let it go on first (`cont` in its monitor)");
        std::fs::create_dir_all(run.streams()).with_context(|| run.streams().display().to_string())?;
        let out = std::path::absolute(run.streams())?;
        let mut options = vec![
            format!("out={}", out.display()),
            "start=now".into(),
            format!("icount={}", if self.icount { "on" } else { "off" }),
        ];
        if kernel.is_none() {
            options.push("guest=other".into());
        }
        options.extend(self.machine.interrupt_table().map(|idt| format!("idt={idt:#x}")));
        options
            .extend(settings.packets.arguments().into_iter().map(|(name, value)| format!("{name}={value}")));
        let (names, types) =
            kernel.map_or_else(Default::default, |kernel| (kernel.kallsyms(), &*kernel.btf_bytes));
        let mut condition = |option: &str, key: &str, text: Option<&String>| -> Result<()> {
            if let Some(text) = text {
                let compiled = condition::compile(option, text, names.as_bytes(), types, &[])?;
                options.push(format!("{key}={compiled}"));
            }
            Ok(())
        };
        match &settings.observe {
            Observe::Nothing | Observe::Everything => {}
            Observe::Snapshot { when, bytes } => {
                condition("--snapshot-when", "when", Some(when))?;
                options.push(format!("keep={bytes}"));
            }
            Observe::Window { from, until } => {
                condition("--from", "from", from.as_ref())?;
                condition("--until", "until", until.as_ref())?;
            }
        }
        let mut notes = Vec::new();
        if let Some(kernel) = kernel {
            symbols::write(run, kernel)?;
            let path = run.streams().join("hooks");
            std::fs::write(&path, hooks::make(names.as_bytes(), types)? + &symbols::current(kernel))
                .with_context(|| path.display().to_string())?;
            options.push(format!("hooks={}", out.join("hooks").display()));
            notes.extend(kernel.gaps.iter().cloned());
            if settings.begin == Begin::AtMark {
                notes.push("functions of programs that ran before the recording began have no names".into());
            }
            if kernel.btf.is_none() {
                notes.push(
                    "the kernel was built without CONFIG_DEBUG_INFO_BTF: tasks, and programs' mappings, are not known"
                        .into(),
                );
            }
        }
        self.machine.begin(&options)?;
        let known = kernel.map(|kernel| Kernel {
            release: kernel.release().unwrap_or_default().to_owned(),
            build_id: BuildId::of_notes(&kernel.notes).map(|id| id.to_string()).unwrap_or_default(),
            ..Kernel::default()
        });
        let after = self.started.elapsed();
        if settings.begin == Begin::WithKernel {
            notes.push(format!(
                "the recording begins {:.1} s after QEMU's start, when the kernel's symbols were in memory; what ran \
                 before is not in it",
                after.as_secs_f64()
            ));
            let release = known.as_ref().map_or("", |kernel| &kernel.release);
            self.progress.say(&format!("recording {release}"));
        }
        self.begun = Some(Begun {
            kernel: known,
            tracing: true,
            resets: self.machine.resets(),
            place: kernel.map(place).unwrap_or_default(),
            stopped: None,
            no_disk: None,
            meter: Meter::new(run.dir(), &run.streams(), settings.max_bytes),
            notes,
        });
        Ok(())
    }

    /// Reads the kernel's symbols once more: modules may have been loaded.
    fn last_reading(&mut self) {
        let is_known = |begun: &&mut Begun| begun.kernel.is_some() && begun.stopped.is_none();
        let Some(begun) = self.begun.as_mut().filter(is_known) else { return };
        let failed = match self.machine.kernel() {
            Ok(Ok(kernel)) if place(&kernel) != begun.place => {
                begun.stopped = Some("the guest has started another kernel, at an unknown time".into());
                None
            }
            Ok(Ok(kernel)) => {
                let new = kernel.gaps.iter().filter(|gap| !begun.notes.contains(gap));
                begun.notes.extend(new.cloned().collect::<Vec<_>>());
                symbols::add(self.run, &kernel).err().map(|error| format!("{error:#}"))
            }
            Ok(Err(why)) => Some(why),
            Err(error) => Some(error.to_string()),
        };
        let note = failed.map(|why| format!("modules that were loaded later have no names: {why}"));
        begun.notes.extend(note.filter(|note| !begun.notes.contains(note)));
    }
}

/// Tells kernels apart: the place where it was loaded, and its notes, with the build ID.
fn place(kernel: &Found) -> (Option<u64>, Vec<u8>) {
    (kernel.address("_text"), kernel.notes.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_that_gave_up_is_told_from_an_end_that_was_known() {
        let full = "writing the streams of vCPU 0: No space left on device (os error 28)";
        assert_eq!(found_by_recorder(None, Some(full)).as_deref(), Some(full));
        assert_eq!(found_by_recorder(Some("the guest restarted"), Some(full)).as_deref(), Some(full));
        assert_eq!(found_by_recorder(Some("the guest restarted"), Some("the guest restarted")), None);
        assert_eq!(found_by_recorder(None, None), None);
    }
}
