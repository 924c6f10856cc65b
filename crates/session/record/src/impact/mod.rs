// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command recorded by itself, then with each software tracer.
//!
//! The guest is deterministic, and the same for all recordings: the same packages and modules, the same preparations but for
//! the tracer's own. So the tracer makes all that differs; two more recordings without a tracer, one of them after other
//! preparations, show how far that holds. What the tracers added is computed from the profiles (`kprism-report`).
//!
//! Each recording stays as a run of its own below [`Settings::output`].

pub mod tracers;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use kprism_lab::{Ended, Job, Options};
use kprism_profile::Profile;
use kprism_session::{Progress, flow};
use kprism_store::{Manifest, Run};

use crate::{guest, notes};
use tracers::{LTTNG, Tracer};

/// Settings of the recordings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder of the recordings.
    pub output: PathBuf,
    /// The user's command, and what it finds around it.
    pub job: Job,
    /// The guest, but for what tracers need.
    pub guest: Options,
    /// The tracers.
    pub tracers: Vec<Tracer>,
    /// The folder of LTTng's kernel modules, built for the guest's kernel.
    pub lttng: Option<PathBuf>,
}

/// A recording, or why there is none.
pub type Recorded = Result<Recording, String>;

/// One recording of the command.
#[derive(Debug)]
pub struct Recording {
    /// Its profile.
    pub profile: Profile,
    /// The facts of its run.
    pub manifest: Manifest,
    /// The command's process id in the guest.
    pub pid: u32,
    /// The command's exit code.
    pub exit_code: Option<u8>,
    /// The tracer's words on its events.
    pub events: Option<String>,
    /// Notes on its run in the guest: warm-up turns that failed, faults that the kernel reported.
    pub notes: Vec<String>,
}

/// The recordings without a tracer, and the guest for those with one.
#[derive(Debug)]
pub struct Series<'a> {
    /// The command by itself.
    pub bare: Recording,
    /// The same once more.
    pub again: Recording,
    /// The same after other preparations: more processes, other memory, another time.
    pub otherwise: Recording,
    /// The tracers to record; of those that cannot be had, why.
    pub tracers: Vec<(Tracer, Option<String>)>,
    settings: &'a Settings,
    guest: Options,
}

/// Programs lie at the same addresses in all recordings: page faults and page tables depend on it.
const SAME_ADDRESSES: &str = "echo 0 > /proc/sys/kernel/randomize_va_space";
/// Waits until processes that the preparations began have ended.
const REST: &str = "sleep 1";
/// Other preparations, which switch nothing on: more processes, other memory, another time.
const OTHERWISE: &str =
    "for i in 1 2 3; do ls -R /sys/kernel/tracing/events > /dev/null; done; sleep 0.1234567";
/// Names of recordings without a tracer.
pub const WITHOUT: [&str; 3] = ["baseline", "baseline-2", "other-setup"];

/// True if a tracer may have this name, which is that of its recording's folder.
pub fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !WITHOUT.contains(&name) && !name.starts_with('.') && name.chars().all(fits)
}

/// The tracers that are asked for: those named, and the user's own (name and command); all that are known if none is. LTTng is
/// one of all only `with_lttng`, as it needs modules.
///
/// # Errors
/// There is no such tracer, or a name cannot be a folder's or is taken.
pub fn choose(named: &[String], own: &[(String, String)], with_lttng: bool) -> Result<Vec<Tracer>> {
    let known = tracers::names();
    let all = named.is_empty() && own.is_empty();
    let wanted = |name: &&&str| match named.is_empty() {
        true => all && (**name != LTTNG || with_lttng),
        false => named.iter().any(|tracer| tracer == **name),
    };
    if let Some(unknown) = named.iter().find(|tracer| !known.contains(&tracer.as_str())) {
        bail!("no tracer {unknown:?}; there are: {}; or give one with --with", known.join(", "));
    }
    let mut chosen: Vec<_> = known.iter().filter(wanted).filter_map(|name| tracers::find(name)).collect();
    for (name, command) in own {
        if !is_name(name) || chosen.iter().any(|tracer| tracer.name == *name) {
            bail!(
                "--with {name:?}: a recording's folder gets this name: it must be new, of letters, digits, _ - ."
            );
        }
        chosen.push(Tracer::of_user(name, command));
    }
    Ok(chosen)
}

/// Makes the guest, and records the command three times without a tracer.
///
/// # Errors
/// The guest cannot be had, the command cannot be run, or a recording failed.
pub fn begin<'a>(settings: &'a Settings, progress: &Progress) -> Result<Series<'a>> {
    let mut tracers: Vec<_> = settings.tracers.iter().cloned().map(|t| (t, None)).collect();
    let guest = guest_for(settings, &mut tracers, progress)?;
    let output = &settings.output;
    std::fs::create_dir_all(output).with_context(|| output.display().to_string())?;
    // As many processes as a simple tracer's preparations take.
    let nothing = Tracer::of_user("", ":").script();
    let one = |name: &str, before: &str| {
        let recorded = record(settings, &guest, name, before, "", progress)?;
        recorded.map_err(|reason| anyhow!("the recording without a tracer ({name}): {reason}"))
    };
    let [bare, again, otherwise] = WITHOUT;
    let bare = one(bare, &nothing)?;
    check_it_ran(settings, bare.exit_code)?;
    let (again, otherwise) = (one(again, &nothing)?, one(otherwise, OTHERWISE)?);
    Ok(Series { bare, again, otherwise, tracers, settings, guest })
}

impl Series<'_> {
    /// Records the command with a tracer of [`Series::tracers`].
    ///
    /// # Errors
    /// The recording was interrupted, or its run cannot be written or decoded. That a tracer cannot be switched on is no
    /// error.
    pub fn record(&self, tracer: &Tracer, progress: &Progress) -> Result<Recorded> {
        record(self.settings, &self.guest, &tracer.name, &tracer.script(), &tracer.events, progress)
    }
}

/// One guest for all recordings. Tracers whose packages or modules cannot be had are told why.
fn guest_for(
    settings: &Settings,
    tracers: &mut [(Tracer, Option<String>)],
    progress: &Progress,
) -> Result<Options> {
    let lttng = tracers.iter_mut().find(|(t, _)| t.name == LTTNG);
    let mut modules = Vec::new();
    if let Some((_, unavailable)) = lttng {
        match settings.lttng.as_deref().map(modules_of) {
            Some(found) => modules = found?,
            None => {
                *unavailable = Some(
                    "its kernel modules are no part of the kernel; scripts/lttng-modules.sh of the source builds them for \
                     the guest's: name their folder with --lttng"
                        .into(),
                );
            }
        }
    }
    let with = |tracers: &[&Tracer]| {
        let mut guest = settings.guest.clone();
        for tracer in tracers {
            guest.packages.extend(tracer.packages.iter().cloned());
            guest.mem_mib = guest.mem_mib.max(tracer.mem_mib);
            if tracer.name == LTTNG {
                guest.with_modules.extend(modules.iter().cloned());
            }
        }
        guest
    };
    let prepare = |guest: &Options| {
        kprism_lab::prepare(guest, &mut |p| guest::show(progress, p)).map(|prepared| {
            progress.clear();
            guest::say_gaps(&prepared, progress);
        })
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
fn record(
    settings: &Settings,
    options: &Options,
    name: &str,
    before: &str,
    after: &str,
    progress: &Progress,
) -> Result<Recorded> {
    progress.long_step(&format!("recording: {name}"));
    let mut job = settings.job.clone();
    job.before.extend([SAME_ADDRESSES, before, REST].iter().filter(|l| !l.is_empty()).map(|&l| l.into()));
    let one = guest::Settings::new(settings.output.join(name), options.clone(), job.clone());
    job.after.extend((!after.is_empty()).then(|| after.to_owned()));
    let prepared = guest::prepare(options, progress)?;
    // The command's output is kept in its run; the same lines from every recording would help nobody.
    let (run, ran) = guest::record(&one, &job, &prepared, &mut |_| {})?;
    if ran.ended == Ended::Interrupted {
        return Err(kprism_lab::Error::Interrupted.into());
    }
    let notes = notes::of(&ran);
    let failed = match &ran.ended {
        ended if ran.exit_code.is_none() => Some(why(&run, ended)),
        // The command came to its end, its recording did not: part of a flow has no costs to compare.
        Ended::Failed(why) => Some(why.clone()),
        _ => None,
    };
    if let Some(why) = failed {
        // There is no recording that would have them.
        notes.iter().for_each(|note| progress.say(&format!("note: {name}: {note}")));
        return Ok(Err(why));
    }
    let (profile, manifest) = flow::decode(&run, progress)?;
    progress.clear();
    let events = ran.after.first().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    // The tracer is on during the warm-up turns too: its own code and buffers are to be warm.
    let events = events.map(|text| match settings.job.warm.turns {
        0 => text,
        turns => format!("{text} (of {} turns of the command)", u64::from(turns) + 1),
    });
    Ok(Ok(Recording {
        profile,
        manifest,
        pid: ran.pid.unwrap_or(1),
        exit_code: ran.exit_code,
        events,
        notes,
    }))
}

/// Refuses a command that could not even be started: there would be numbers, of the attempt.
fn check_it_ran(settings: &Settings, exit_code: Option<u8>) -> Result<()> {
    let (Some(126 | 127), [program, ..]) = (exit_code, &settings.job.argv[..]) else { return Ok(()) };
    let path = settings.output.join(WITHOUT[0]).join("stderr");
    let said = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let said = String::from_utf8_lossy(&said);
    match said.lines().find(|line| line.starts_with(&format!("kprism: {program}: "))) {
        Some(line) => bail!("{}", line.trim_start_matches("kprism: ")),
        None => Ok(()),
    }
}

/// Why a recording failed: the last words in the guest, or the lab's.
fn why(run: &Run, ended: &Ended) -> String {
    const LINES: usize = 8;
    let said = std::fs::read(run.stderr()).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    match ended {
        Ended::Failed(_) if !lines.is_empty() => lines[lines.len().saturating_sub(LINES)..].join("\n"),
        ended => guest::reason(ended).unwrap_or_else(|| "the command's end was not seen".into()),
    }
}
