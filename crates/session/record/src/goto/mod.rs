// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run of the lab, replayed up to one of its instructions, where the guest stops for GDB.
//!
//! In: a run and a place in it, [`At`]. Out: [`There`]: the stopped guest, and the instruction that the recorded flow has there. The guest, the
//! command and the recorder are those of the run's manifest. A run that was not exact, or of another environment, is refused,
//! and what differs is named. What ran is compared too: an instruction at another address than the recorded one is an error.

mod find;
mod gdb;
mod names;
mod settings;
mod symbol_elf;
mod whole;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use kprism_lab::replay::{Replayed, Stopped, replay};
use kprism_lab::{Pace, Prepared};
use kprism_profile::{parse, units::grouped};
use kprism_session::cover::DebugFiles;
use kprism_session::{Progress, flow};
use kprism_store::{Instrument, OptionKey, Run};

pub use find::Found;
pub use gdb::{Gdb, run_gdb, symbol_file};
pub use names::Names;
pub(crate) use settings::like_host;

use crate::guest::{self, Observe, Settings};
use crate::{condition, events, goto::find::Wanted};

/// A place in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    /// The instruction of this number, from 1, as `kprism script --fields number` has it.
    Number(u64),
    /// The first instruction at or after this time, ns.
    Time(u64),
    /// The instruction at which a condition holds: `FUNC[%return] [if EXPR]`.
    Place(String),
}

impl At {
    /// Parses a place: a number of an instruction, a time as printed or with its unit, or a condition.
    ///
    /// # Errors
    /// It is empty, or the number 0.
    pub fn parse(text: &str) -> Result<Self, String> {
        let digits = text.replace(',', "");
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = digits.parse().ok().filter(|number| *number > 0);
            return number
                .map(At::Number)
                .ok_or_else(|| "instructions are numbered from 1, to 2^64 - 1 at most".to_owned());
        }
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return parse::time_ns(text).map(At::Time);
        }
        match text.trim() {
            "" => Err("expected a number of an instruction, a time, or FUNC [if EXPR]".to_owned()),
            place => Ok(At::Place(place.to_owned())),
        }
    }
}

/// The place to go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Goal {
    /// The place.
    pub at: At,
    /// The CPU, for a number or a time; by a time, `None` is any of them.
    pub cpu: Option<u16>,
    /// Of a condition: the number of the time that it holds, from 1.
    pub nth: u64,
}

/// A guest that is stopped at its goal.
#[derive(Debug)]
pub struct There {
    /// The guest.
    pub stopped: Box<Stopped>,
    /// The instruction of the recording, unless the goal is a condition.
    pub found: Option<Found>,
    /// Files from which GDB has the names of the code there.
    pub names: Names,
}

/// Replays `run` up to `goal`. `files` are those with symbols that the user names.
///
/// # Errors
/// The run cannot be replayed, has no such place, took another way this time, or a file that the user names is not its own.
pub fn go(run: &Run, goal: &Goal, files: &DebugFiles, progress: &Progress) -> Result<There> {
    let manifest = run.manifest()?;
    let mut settings = settings::of(run, &manifest)?;
    let found = match &goal.at {
        At::Place(_) => None,
        At::Number(number) => Some(find(run, &settings, Wanted::Number(*number), goal.cpu, progress)?),
        At::Time(ns) => Some(find(run, &settings, Wanted::Time(*ns), goal.cpu, progress)?),
    };
    let prepared = guest::prepare(&settings.guest, progress)?;
    same_environment(&settings, &prepared, &manifest)?;
    match (&goal.at, &found) {
        (At::Place(place), _) => {
            let place = condition::argument_again("--at", place, &prepared, run, &files.module_file)?;
            settings.observer_arguments.push(("at".to_owned(), place));
            settings.observer_arguments.push(("nth".to_owned(), goal.nth.to_string()));
        }
        (_, Some(Found { cpu, number, ip, .. })) => {
            settings.observer_arguments.push(("goal".to_owned(), format!("{cpu}:{number}:{ip:#x}")));
        }
        _ => unreachable!("a number or a time was looked up"),
    }
    let observer = settings.observer(&prepared)?.context("the replay has an observer")?;
    let wrapped = settings.events.as_ref().map(|beside| events::around(&settings.job, beside)).transpose()?;
    let job = wrapped.as_ref().unwrap_or(&settings.job);
    let replayed = replay(&prepared, job, &observer, &mut |p| guest::show(progress, p));
    progress.clear();
    let stopped = match (replayed?, &goal.at) {
        (Replayed::Stopped(stopped), _) => stopped,
        (Replayed::Ended(None), At::Place(place)) => match goal.nth {
            1 => bail!("--at: `{place}` did not hold in this run"),
            nth => bail!("--at: `{place}` did not hold {nth} times in this run: choose a smaller --nth"),
        },
        (Replayed::Ended(None), _) => bail!("the replay ended before that place: {ANOTHER_WAY}"),
        (Replayed::Ended(Some(why)), _) => bail!("{why}"),
        (Replayed::Missed(cpu, number, ip), _) => bail!(
            "the replay did not come to that place: before instruction {} CPU {cpu} was at {ip:#x}. {ANOTHER_WAY}",
            grouped(number)
        ),
    };
    // Of a number or a time, the time as the recording has it: so have its mappings.
    let ns = found.as_ref().map_or(stopped.halt.ns, |found| found.ns);
    let task = names::Task { pid: stopped.halt.pid, ns };
    let socket = stopped.socket();
    let folder = socket.parent().context("GDB's socket is in a folder")?;
    let names = names::collect(run, &manifest, files, task, folder)?;
    Ok(There { stopped, found, names })
}

/// The cause of a replay that is another, as far as it is known.
const ANOTHER_WAY: &str =
    "It took another way than the run: its shared folders (--share) may hold other files now";

fn find(
    run: &Run,
    settings: &Settings,
    wanted: Wanted,
    cpu: Option<u16>,
    progress: &Progress,
) -> Result<Found> {
    if let Observe::Snapshot { .. } = settings.observe {
        // Without a separator at its end.
        let mut output = run.dir().components().as_path().as_os_str().to_owned();
        output.push("-whole");
        let timeout = run.manifest()?.option(OptionKey::Timeout).and_then(serde_json::Value::as_u64);
        bail!(
            "{}: of a run with --snapshot-when the instructions before each snapshot are not counted: give --at a condition \
             (FUNC [if EXPR]), or record the same command whole. The guest does the same there, and each instruction has its number:\n  {}",
            run.dir().display(),
            whole::command_line(settings, Path::new(&output), timeout)
        );
    }
    let cpus = settings.guest.smp;
    if let Some(cpu) = cpu.filter(|cpu| u32::from(*cpu) >= cpus) {
        bail!("--cpu {cpu}: the run has {cpus} CPUs, from 0");
    }
    if cpus > 1 && cpu.is_none() && matches!(wanted, Wanted::Number(_)) {
        bail!("the run has {cpus} CPUs, whose instructions are numbered each on its own: add --cpu N");
    }
    ensure!(run.holds(Instrument::Flow), "{}: holds no flow of instructions", run.dir().display());
    let loaded = flow::load(run, progress)?;
    progress.long_step("looking the place up in the recording");
    let found = find::find(&loaded, wanted, cpu, progress);
    progress.clear();
    found.with_context(|| run.dir().display().to_string())
}

/// Refuses a guest that is not the recorded one, and names what differs.
fn same_environment(
    settings: &Settings,
    prepared: &Prepared,
    manifest: &kprism_store::Manifest,
) -> Result<()> {
    debug_assert_eq!(settings.guest.pace, Pace::Exact, "others were refused");
    let recorded = manifest.environment.as_ref().context("a run of today states its environment")?;
    let observer = settings.observer(prepared)?;
    let now =
        settings.environment(prepared, observer.as_ref())?.context("an exact run has an environment")?;
    let differences = recorded.differences(&now);
    if differences.is_empty() {
        return Ok(());
    }
    let side = |value: &Option<String>| match value {
        Some(value) => kprism_profile::units::printable(value).to_string(),
        None => "none".into(),
    };
    let mut text = format!(
        "the run was recorded in another environment ({}, now {}), so a replay would be another run: record it again, or restore \
         what differs",
        recorded.id, now.id
    );
    for difference in &differences {
        text += &format!("\n  {}: {} → {}", difference.part, side(&difference.old), side(&difference.new));
    }
    bail!(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_number_a_time_or_a_condition() {
        assert_eq!(At::parse("59,319,757"), Ok(At::Number(59_319_757)));
        assert_eq!(At::parse("4.5"), Ok(At::Time(4_500_000_000)));
        assert_eq!(At::parse("12ms"), Ok(At::Time(12_000_000)));
        let place = "vfs_read if count > 1";
        assert_eq!(At::parse(place), Ok(At::Place(place.to_owned())));
        for bad in ["", "0", " ", "4x"] {
            assert!(At::parse(bad).is_err(), "{bad}");
        }
    }
}
