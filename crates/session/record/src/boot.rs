// SPDX-License-Identifier: MIT OR Apache-2.0
//! A boot that ftrace traced: collected on this machine after it, or made in the guest.
//!
//! Input: a [`Plan`], whose words go to the kernel's command line. Output: a run with the boot's events and the kernel's log.

use std::path::Path;

use anyhow::{Result, bail};
use kprism_boot::Boot;
use kprism_lab::{Ended, Share, Span};
use kprism_session::Progress;
use kprism_store::{Manifest, Run};
use kprism_tracefs::boot::Collected;

pub use kprism_tracefs::boot::{Plan, was_traced};

use crate::durations::{GUEST_RECORDER, GUEST_RUN};
use crate::guest::{self, Guest};

/// A boot that was collected.
#[derive(Debug)]
pub struct Recorded {
    /// The run.
    pub run: Run,
    /// Its manifest, with the account.
    pub manifest: Manifest,
    /// The boot.
    pub boot: Boot,
}

/// Collects what this machine's boot left in tracefs, and ends the tracing. Needs root.
///
/// # Errors
/// There is no tracefs, this boot was not traced ([`was_traced`]), or the run cannot be written.
pub fn collect(output: &Path) -> Result<Recorded> {
    kprism_tracefs::Tracefs::find()?;
    let run = Run::create(output)?;
    let mut manifest = kprism_store::begun(&[]);
    manifest.stopped = None;
    run.write_manifest(&manifest)?;
    let collected = kprism_tracefs::boot::collect(run.dir(), true)?;
    finish(run, manifest, &collected)
}

/// Boots a guest with the plan's words; its job gives the time-out. `None` if an interrupt ended it
/// ([`kprism_signals`]).
///
/// # Errors
/// The guest cannot be booted, or left nothing.
pub fn in_guest(plan: &Plan, guest: &Guest, output: &Path, progress: &Progress) -> Result<Option<Recorded>> {
    let recorder = kprism_lab::find_recorder()?;
    let mut prepared = guest::prepare(&guest.options, progress)?;
    prepared.boot_with(&plan.command_line());
    let settings = guest.settings(output.to_owned());
    let mut job = guest.job.clone();
    job.span = Span::Boot;
    job.argv = [GUEST_RECORDER, "boot-here", GUEST_RUN].map(str::to_owned).to_vec();
    job.shares.push(Share { host: recorder, guest: GUEST_RECORDER.into() });
    job.collect = Some(GUEST_RUN.into());
    progress.long_step("booting the guest");
    let (run, ran) = guest::record(&settings, &job, &prepared, &mut |p| guest::show(progress, p))?;
    progress.clear();
    guest::complain(&ran, progress);
    match (&ran.ended, Collected::load(run.dir())) {
        (Ended::Interrupted, _) => Ok(None),
        (_, Ok(collected)) => {
            let manifest = run.own_manifest()?;
            finish(run, manifest, &collected).map(Some)
        }
        (_, Err(_)) => {
            let said = std::fs::read(run.stderr()).unwrap_or_default();
            bail!("nothing was collected in the guest: {}", String::from_utf8_lossy(&said).trim())
        }
    }
}

/// A boot that `kprism-recorder` collected on another machine, and whose run was brought here.
///
/// # Errors
/// The run is not of a boot, or cannot be read or written.
pub fn brought(run: Run) -> Result<Recorded> {
    let collected = Collected::load(run.dir())?;
    let manifest = run.own_manifest()?;
    finish(run, manifest, &collected)
}

fn finish(run: Run, mut manifest: Manifest, collected: &Collected) -> Result<Recorded> {
    collected.enter(&mut manifest);
    run.write_manifest(&manifest)?;
    let boot = kprism_session::boot::load(run.dir())?;
    kprism_session::boot::enter(&boot, collected, &mut manifest);
    run.write_manifest(&manifest)?;
    Ok(Recorded { run, manifest, boot })
}
