// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel with gcov in the guest, and its counters around a command.
//!
//! The guest stops right before the command and right after it, and the counters are read from its memory. Only
//! their difference is shown. So counters need not be cleared, those of the boot stay in the run, and the reading adds none. With
//! [`Reading::InGuest`] the guest's agent reads debugfs, as on a machine, and what that adds is taken out.

use std::path::PathBuf;

use anyhow::{Result, bail};
use kprism_lab::gcov_kernel::GcovKernel;
pub use kprism_lab::gcov_kernel::{BuildOptions, Counting};
use kprism_lab::{
    CounterReading, Job, KernelSource, ObserverOptions, Options, Outcome, Pace, Prepared, Report,
};
use kprism_session::{Progress, date};
use kprism_store::{Instrument, Manifest, Run, RunKind};
use serde_json::json;

use crate::NOT_ENDED;
use crate::guest::{self, show};

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

/// Refuses a recording of a kernel that will not count.
///
/// # Errors
/// The kernel is built without counters.
pub fn suits(settings: &Settings) -> Result<()> {
    if settings.build.counting != Counting::On {
        bail!("this kernel has no counters: leave CMD away, and run it with `kprism lab run --tree`");
    }
    Ok(())
}

/// Builds the kernel and boots a guest with it, unless the cache has them.
///
/// # Errors
/// The source cannot be fetched or built, or the guest does not boot.
pub fn prepare(settings: &Settings, progress: &Progress) -> Result<Ready> {
    let refresh = settings.guest.refresh;
    let kernel = GcovKernel::find(&settings.build, refresh, &mut |p| show(progress, p))?;
    let plugin = settings.flow.then(kprism_lab::find_observer).transpose()?;
    let observer = plugin.map(|plugin| ObserverOptions { plugin, arguments: Vec::new() });
    let options = options(&settings.guest, &kernel);
    let prepared = guest::prepare(&options, progress)?;
    if observer.is_some() {
        guest::say_gaps(&prepared, progress);
    }
    Ok(Ready { kernel, prepared, options, observer })
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
        ..settings.job.clone()
    };
    let run = Run::create(&settings.output)?;
    let mut manifest = manifest(settings, ready);
    run.write_manifest(&manifest)?;
    progress.step("running the command");
    let ran = kprism_lab::run(&ready.prepared, &job, run.dir(), ready.observer.as_ref(), report)?;
    progress.clear();
    manifest.exit_code = ran.exit_code.map(i32::from);
    let flow = ready.observer.as_ref().map(|_| Instrument::Flow);
    manifest.instruments = flow.into_iter().chain([Instrument::Cover]).collect();
    manifest.stopped = guest::reason(&ran.ended);
    run.write_manifest(&manifest)?;
    guest::complain(&ran, progress);
    Ok((run, ran))
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
    let own = [("instrument", json!("cover")), ("counters", json!(counters))];
    let of_guest = guest::manifest_options(&ready.prepared, options, &settings.job);
    manifest.options.extend(of_guest.into_iter().chain(own).map(|(name, value)| (name.to_owned(), value)));
    manifest
}
