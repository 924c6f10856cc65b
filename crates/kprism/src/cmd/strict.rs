// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--strict`: the exit code tells whether the result is whole.
//!
//! In: the runs that a command read, and what it found as it read them anew ([`Progress::fault`]). Out:
//! [`Outcome::Incomplete`] if an account says that something was lost, not understood or guessed, or that nobody counted it.

use std::path::Path;

use anyhow::Result;
use kprism_store::{Account, Manifest, Run};

use crate::exit::Outcome;
use kprism_session::Progress;

/// The option, for commands that read runs.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct StrictArgs {
    /// Exit with 4 unless the run's account says that nothing was lost, not understood or guessed
    #[arg(long, global = true)]
    pub strict: bool,
}

/// The outcome of a command that read these runs. A result that is not whole counts for more than one without a row: what
/// was lost may have been what was looked for.
pub fn judge(strict: StrictArgs, runs: &[&Path], outcome: Outcome, progress: &Progress) -> Result<Outcome> {
    if !strict.strict || !matches!(outcome, Outcome::Done | Outcome::NothingMatched) {
        return Ok(outcome);
    }
    for run in runs {
        let manifest = Run::open(run)?.manifest()?;
        if let Some(reason) = manifest.fault() {
            progress.say(&format!("kprism: --strict: {}: {reason}", run.display()));
            return Ok(Outcome::Incomplete);
        }
    }
    if let Some(reason) = progress.fault() {
        progress.say(&format!("kprism: --strict: {}: as read now: {reason}", names(runs)));
        return Ok(Outcome::Incomplete);
    }
    Ok(outcome)
}

/// The runs for a message.
fn names(runs: &[&Path]) -> String {
    let names: Vec<String> = runs.iter().map(|run| run.display().to_string()).collect();
    names.join(", ")
}

/// Says on standard error which of these runs are not whole: for a result that has no place for it, such as CSV and the files of
/// other tools. With `--strict` the exit code and its reason say it. What a command finds out while it reads, it tells itself.
pub fn tell(strict: StrictArgs, runs: &[&Path], progress: &Progress) -> Result<()> {
    if strict.strict {
        return Ok(());
    }
    let mut is_told = false;
    for run in runs.iter().filter(|run| run.join("manifest.json").exists()) {
        let manifest = Run::open(run)?.manifest()?;
        if let Some(reason) = manifest.recording_fault() {
            progress.note(&format!("{}: not whole: {reason}", run.display()));
            is_told = true;
        }
        for line in manifest.recorded_part() {
            progress.note(&format!("{}: {line}", run.display()));
        }
    }
    if let Some(reason) = progress.untold().filter(|_| !is_told) {
        progress.note(&format!("{}: not whole, as read now: {reason}", names(runs)));
    }
    Ok(())
}

/// Says on standard error what was found as the run was read anew, if the account that the run keeps, and with it the head of the
/// report, says nothing is missing.
pub fn tell_found(strict: StrictArgs, runs: &[&Path], progress: &Progress) -> Result<()> {
    for run in runs.iter().filter(|run| run.join("manifest.json").exists()) {
        if Run::open(run)?.manifest()?.recording_fault().is_some() {
            return Ok(());
        }
    }
    if let Some(reason) = progress.untold().filter(|_| !strict.strict) {
        progress.note(&format!("{}: not whole, as read now: {reason}", names(runs)));
    }
    Ok(())
}

/// The same as [`tell`] of an account that the command drew up itself. What [`tell`] says of the run is not said twice.
pub fn tell_own(strict: StrictArgs, input: &Path, account: &Account, progress: &Progress) -> Result<()> {
    let is_told = match input.join("manifest.json").exists() {
        true => Run::open(input)?.manifest()?.recording_fault().is_some(),
        false => false,
    };
    if let Some(reason) = account.fault().filter(|_| !strict.strict && !is_told) {
        progress.note(&format!("{}: not whole: {reason}", input.display()));
    }
    Ok(())
}

/// [`judge`] of inputs whose account the command drew up itself, which need not be runs.
pub fn judge_own(
    strict: StrictArgs,
    inputs: &[(&Path, &Account)],
    outcome: Outcome,
    progress: &Progress,
) -> Result<Outcome> {
    if !strict.strict || !matches!(outcome, Outcome::Done | Outcome::NothingMatched) {
        return Ok(outcome);
    }
    for (input, account) in inputs {
        let manifest = match input.join("manifest.json").exists() {
            true => Some(Run::open(input)?.manifest()?),
            false => None,
        };
        let of_run = manifest.as_ref().and_then(Manifest::recording_fault);
        if let Some(reason) = of_run.or_else(|| account.fault()) {
            progress.say(&format!("kprism: --strict: {}: {reason}", input.display()));
            return Ok(Outcome::Incomplete);
        }
    }
    if let Some(reason) = progress.fault() {
        let runs: Vec<&Path> = inputs.iter().map(|(input, _)| *input).collect();
        progress.say(&format!("kprism: --strict: {}: as read now: {reason}", names(&runs)));
        return Ok(Outcome::Incomplete);
    }
    Ok(if outcome == Outcome::Done { Outcome::Whole } else { Outcome::WholeNothing })
}
