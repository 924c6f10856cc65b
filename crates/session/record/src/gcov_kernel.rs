// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel with gcov in the guest, and its counters around a command.
//!
//! The guest stops right before the command and right after it, and the counters are read from its memory. Only
//! their difference is shown. So counters need not be cleared, those of the boot stay in the run, and the reading adds none. With
//! [`Reading::InGuest`] the guest's agent reads debugfs, as on a machine, and what that adds is taken out.
//!
//! With [`Windows`] the observer evaluates conditions, and holds the guest before the instruction at which one is met. The counters
//! are read there too, and what they grew by in the windows is added up. A flow that is recorded beside is of the same windows.

use std::path::PathBuf;

use anyhow::{Result, bail};
use kprism_lab::gcov_kernel::GcovKernel;
pub use kprism_lab::gcov_kernel::{BuildOptions, Counting};
use kprism_lab::{
    CountedWindows, CounterReading, CounterWindows, Ended, Job, KernelSource, ObserverOptions, Options,
    Outcome, Pace, Prepared, Report,
};
use kprism_session::cover::Counted;
use kprism_session::{Progress, date};
use kprism_store::{Instrument, Manifest, OptionKey, Run, RunKind};
use serde_json::json;

use crate::guest::{self, show};
use crate::{NOT_ENDED, condition, notes};

/// Settings of a recording.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The run folder to write.
    pub output: PathBuf,
    /// The user's command, and what it finds around it; an empty command is an empty window.
    pub job: Job,
    /// The guest but for its kernel. Modules of the kernel that is built are named by their names.
    pub guest: Options,
    /// The kernel to build.
    pub build: BuildOptions,
    /// The reader of the counters.
    pub reading: Reading,
    /// The observer records the flow, too.
    pub flow: bool,
    /// The part of the command that counts; all of it if `None`.
    pub windows: Option<Windows>,
}

/// Conditions between which coverage counts, each time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    /// The condition that opens a window; without it the begin of the command does.
    pub from: Option<String>,
    /// The condition that closes it; without it the end of the command does.
    pub until: Option<String>,
}

/// The reader of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// The lab, from the memory of the guest while that stands still.
    OfMemory,
    /// The guest's agent, in debugfs.
    InGuest,
}

/// A kernel that is built and booted.
#[derive(Debug)]
pub struct Ready {
    /// The kernel: its folder and image.
    pub kernel: GcovKernel,
    /// The guest.
    pub prepared: Prepared,
    options: Options,
    observer: Option<ObserverOptions>,
}

/// A line of the configuration that adds debug information.
pub const DEBUG_INFO: &str = "CONFIG_DEBUG_INFO_DWARF5=y";

/// Lines of the configuration that add the kernel's types (BTF), which need debug information.
const TYPES: [&str; 2] = ["CONFIG_BPF_SYSCALL=y", "CONFIG_DEBUG_INFO_BTF=y"];

impl Settings {
    /// The lines of the configuration that the recording needs: debug information for coverage of a flow, types for conditions on
    /// values.
    pub fn needed_lines(flow: bool, windows: Option<&Windows>) -> Vec<String> {
        let mut conditions =
            windows.into_iter().flat_map(|windows| windows.from.iter().chain(&windows.until));
        let types = conditions.any(|text| condition::needs_types(text));
        let debug = (flow || types).then_some(DEBUG_INFO);
        let types = TYPES.iter().copied().filter(|_| types);
        debug.into_iter().chain(types).map(str::to_owned).collect()
    }
}

/// Refuses a recording of a kernel that will not count.
///
/// # Errors
/// The kernel is built without counters.
pub fn suits(settings: &Settings) -> Result<()> {
    if settings.build.counting != Counting::On {
        bail!("this kernel has no counters: leave CMD away, and run it with `kprism lab run --tree`");
    }
    if settings.windows.is_some() && settings.reading == Reading::InGuest {
        bail!(
            "windows between conditions are read of the guest's memory, at an instruction: not in the guest"
        );
    }
    if settings.windows.is_some() && settings.guest.pace == Pace::Fast {
        bail!(
            "windows between conditions need the exact pace: guest time would go on while counters are read"
        );
    }
    guest::accepts_limit(&settings.job, settings.flow || settings.windows.is_some())
}

/// Builds the kernel and boots a guest with it, unless the cache has them.
///
/// # Errors
/// The source cannot be fetched or built, or the guest does not boot.
pub fn prepare(settings: &Settings, progress: &Progress) -> Result<Ready> {
    let refresh = settings.guest.refresh;
    let kernel = GcovKernel::find(&settings.build, refresh, &mut |p| show(progress, p))?;
    let options = options(&settings.guest, &kernel);
    let prepared = guest::prepare(&options, progress)?;
    let observer = observer(settings, &prepared)?;
    if settings.flow {
        guest::say_gaps(&prepared, progress);
    }
    Ok(Ready { kernel, prepared, options, observer })
}

/// The observer, if it is needed: for the flow, or for conditions.
fn observer(settings: &Settings, prepared: &Prepared) -> Result<Option<ObserverOptions>> {
    if !settings.flow && settings.windows.is_none() {
        return Ok(None);
    }
    let mut arguments = Vec::new();
    if let Some(Windows { from, until }) = &settings.windows {
        if !prepared.is_where_linked() {
            bail!("with kaslr the places of conditions cannot be found: leave kaslr out");
        }
        for (option, key, text) in [("--from", "from", from), ("--until", "until", until)] {
            if let Some(text) = text {
                arguments.push((key.to_owned(), condition::argument(option, text, prepared)?));
            }
        }
    }
    Ok(Some(ObserverOptions { plugin: kprism_lab::find_observer()?, arguments }))
}

/// Runs the command, and records the counters before and after it.
///
/// # Errors
/// The kernel does not count, or the run cannot be written. A guest that did not come to its end is no error: see
/// [`Outcome::ended`].
pub fn record(
    settings: &Settings,
    ready: &Ready,
    progress: &Progress,
    report: Report<'_>,
) -> Result<(Run, Outcome)> {
    suits(settings)?;
    let job = Job {
        counters: match (settings.reading, ready.options.pace) {
            (Reading::InGuest, _) => CounterReading::Read,
            (Reading::OfMemory, Pace::Fast) => CounterReading::Stopped,
            (Reading::OfMemory, Pace::Exact) => CounterReading::Held,
        },
        windows: settings.windows.as_ref().map(|windows| CounterWindows {
            opens_at_begin: windows.from.is_none(),
            keeps_streams: settings.flow,
        }),
        ..settings.job.clone()
    };
    let run = Run::create(&settings.output)?;
    let mut manifest = manifest(settings, ready);
    run.write_manifest(&manifest)?;
    progress.step("running the command");
    let mut ran = kprism_lab::run(&ready.prepared, &job, run.dir(), ready.observer.as_ref(), report)?;
    progress.clear();
    manifest.exit_code = ran.exit_code.map(i32::from);
    manifest.notes.extend(notes::of(&ran));
    if let Some(windows) = ran.windows.take() {
        enter(&windows, &mut ran.ended, &mut manifest)?;
    }
    let flow = settings.flow.then_some(Instrument::Flow);
    manifest.instruments = flow.into_iter().chain([Instrument::Cover]).collect();
    manifest.stopped = guest::reason(&ran.ended);
    run.write_manifest(&manifest)?;
    guest::complain(&ran, progress);
    Ok((run, ran))
}

/// Enters what was counted in windows into the manifest, and why the recorder stopped early, if it did.
fn enter(windows: &CountedWindows, ended: &mut Ended, manifest: &mut Manifest) -> Result<()> {
    let of = &windows.facts;
    let counted = Counted {
        spans: windows.spans.clone(),
        restarted: of.restarted.iter().cloned().collect(),
        unloaded: of.unloaded.iter().cloned().collect(),
        resets: of.resets.clone(),
    };
    let options = [
        (Counted::OPTION, serde_json::to_value(counted)?),
        (OptionKey::Windows, json!(of.windows)),
        (OptionKey::ConditionFaults, json!(windows.faults)),
        (OptionKey::ConditionForgotten, json!(windows.forgotten)),
    ];
    manifest.set_all(options);
    match (&mut *ended, &windows.stopped) {
        // A recorder that cannot go on ends QEMU: its reason is the one to tell.
        (Ended::Failed(why), Some(stopped)) => why.clone_from(stopped),
        (Ended::Normal, _) if windows.observed != Some(of.windows) => {
            let observed = windows.observed.map_or("no account of them".to_owned(), |n| n.to_string());
            *ended = Ended::Failed(format!(
                "the counters were read for {} windows, and the recorder left {observed}",
                of.windows
            ));
        }
        _ => {}
    }
    Ok(())
}

/// The guest with the kernel.
fn options(guest: &Options, kernel: &GcovKernel) -> Options {
    Options { kernel: KernelSource::Tree(kernel.folder.clone()), ..guest.clone() }
}

fn manifest(settings: &Settings, ready: &Ready) -> Manifest {
    let options = &ready.options;
    let mut manifest = Manifest::new(RunKind::Lab, options.smp);
    manifest.command = settings.job.argv.clone();
    manifest.kernel = Some(guest::kernel(&ready.prepared));
    manifest.created = date::now();
    manifest.stopped = Some(NOT_ENDED.into());
    let counters = match settings.reading {
        Reading::InGuest => "read in the guest",
        Reading::OfMemory => "of the guest's memory",
    };
    let windows = settings.windows.as_ref();
    let own = [
        (OptionKey::Instrument, json!("cover")),
        (OptionKey::Counters, json!(counters)),
        (OptionKey::From, json!(windows.and_then(|windows| windows.from.as_ref()))),
        (OptionKey::Until, json!(windows.and_then(|windows| windows.until.as_ref()))),
    ];
    let of_guest = guest::manifest_options(&ready.prepared, options, &settings.job);
    manifest.set_all(of_guest.into_iter().chain(own));
    manifest
}
