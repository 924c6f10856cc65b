// SPDX-License-Identifier: MIT OR Apache-2.0
//! One guest for all recordings, and one recording.

use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_lab::Ended;
use kprism_profile::Profile;
use kprism_report::header::Header;
use kprism_report::impact::Side;
use kprism_store::Run;

use super::Args;
use super::tracers::{self, Tracer};
use crate::cmd::lab::{self, GuestArgs, PacketArgs, RunArgs};
use kprism_session::Progress;
use kprism_session::flow;

/// Programs lie at the same addresses in all recordings: page faults and page tables depend on it.
const SAME_ADDRESSES: &str = "echo 0 > /proc/sys/kernel/randomize_va_space";

/// What was begun before has ended.
const REST: &str = "sleep 1";

/// A recording, or why there is none.
pub type Recorded = Result<Recording, String>;

/// One recording of the command.
pub struct Recording {
    pub profile: Profile,
    pub pid: u32,
    pub header: Header,
    pub exit_code: Option<u8>,
    /// What the tracer said of its events.
    pub events: Option<String>,
}

impl Recording {
    /// As comparisons want it.
    pub fn side(&self) -> Side<'_> {
        Side { profile: &self.profile, pid: self.pid }
    }
}

/// The guest for all recordings. Tracers whose packages or modules cannot be had are told why.
pub fn guest(
    args: &Args,
    tracers: &mut [(Tracer, Option<String>)],
    progress: &Progress,
) -> Result<GuestArgs> {
    let lttng = tracers.iter_mut().find(|(t, _)| t.name == tracers::LTTNG);
    let mut modules = Vec::new();
    if let Some((_, unavailable)) = lttng {
        match args.lttng.as_deref().map(modules_of) {
            Some(found) => modules = found?,
            None => {
                *unavailable = Some(
                    "its kernel modules are no part of the kernel; build them for the guest's kernel and name \
                     their folder with --lttng"
                        .into(),
                );
            }
        }
    }
    let with = |tracers: &[&Tracer]| {
        let mut guest = args.guest.clone();
        for tracer in tracers {
            guest.package.extend(tracer.packages.iter().cloned());
            guest.mem = guest.mem.max(tracer.mem_mib);
            if tracer.name == tracers::LTTNG {
                guest.with_module.extend(modules.iter().cloned());
            }
        }
        guest
    };
    let prepare = |guest: &GuestArgs| {
        kprism_lab::prepare(&guest.options(), &mut |p| lab::show(progress, p)).map(|_| progress.clear())
    };
    let all: Vec<&Tracer> = tracers.iter().filter(|(_, no)| no.is_none()).map(|(t, _)| t).collect();
    let guest = with(&all);
    let Err(error) = prepare(&guest) else { return Ok(guest) };
    if matches!(error, kprism_lab::Error::Interrupted) || all.iter().all(|t| t.packages.is_empty()) {
        return Err(error.into());
    }
    // One of them spoils it: each by itself tells which.
    for (tracer, unavailable) in tracers.iter_mut().filter(|(t, no)| no.is_none() && !t.packages.is_empty()) {
        if let Err(error) = prepare(&with(&[tracer])) {
            *unavailable = Some(error.to_string());
        }
    }
    let rest: Vec<&Tracer> = tracers.iter().filter(|(_, no)| no.is_none()).map(|(t, _)| t).collect();
    let guest = with(&rest);
    prepare(&guest)?;
    Ok(guest)
}

/// LTTng's modules below a folder.
fn modules_of(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let entry = entry.with_context(|| folder.display().to_string())?;
            let path = entry.path();
            if entry.file_type().with_context(|| path.display().to_string())?.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "ko") {
                found.push(path.display().to_string());
            }
        }
    }
    if found.is_empty() {
        bail!("{}: no kernel modules (*.ko) below it", folder.display());
    }
    found.sort_unstable();
    Ok(found)
}

/// Records the command; `before` and `after` are the tracer's.
pub fn record(
    args: &Args,
    guest: &GuestArgs,
    name: &str,
    before: &str,
    after: &str,
    progress: &Progress,
) -> Result<Recorded> {
    let mut place = args.place.clone();
    place.before.extend([SAME_ADDRESSES, before, REST].iter().filter(|l| !l.is_empty()).map(|&l| l.into()));
    let run_args =
        RunArgs::recording(&args.command, args.output.join(name), (&place, guest), PacketArgs::default());
    let mut job = run_args.job();
    job.after.extend((!after.is_empty()).then(|| after.to_owned()));
    // The command's output is kept in its run; the same lines from every recording would help nobody.
    let prepared = lab::prepared(guest, progress)?;
    let observer = run_args.observer(&prepared)?;
    let (run, ran) = lab::record(&run_args, &job, observer.as_ref(), &prepared, &mut |_| {})?;
    if ran.ended == Ended::Interrupted {
        return Err(kprism_lab::Error::Interrupted.into());
    }
    if ran.exit_code.is_none() {
        return Ok(Err(why(&run, &ran.ended)));
    }
    let (profile, manifest) = flow::decode(&run, progress)?;
    progress.clear();
    let header = Header::new(&manifest, &profile);
    let events = ran.after.first().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    Ok(Ok(Recording { profile, pid: ran.pid.unwrap_or(1), header, exit_code: ran.exit_code, events }))
}

/// Why a recording failed: the last words in the guest, or the lab's.
fn why(run: &Run, ended: &Ended) -> String {
    const LINES: usize = 8;
    let said = std::fs::read(run.stderr()).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    match ended {
        Ended::Failed(_) if !lines.is_empty() => lines[lines.len().saturating_sub(LINES)..].join("\n"),
        ended => lab::reason(ended).unwrap_or_else(|| "the command's end was not seen".into()),
    }
}
