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
    // What was found may be of a run that is whole by its own account.
    let mut is_told = true;
    for run in runs {
        let Some(manifest) = manifest(run)? else {
            is_told = false;
            continue;
        };
        match manifest.recording_fault() {
            Some(reason) => progress.note(&format!("{}: not whole: {reason}", run.display())),
            None => is_told = false,
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

/// The manifest of a run; `None` of a folder that is none.
fn manifest(run: &Path) -> Result<Option<Manifest>> {
    match run.join("manifest.json").exists() {
        true => Ok(Some(Run::open(run)?.manifest()?)),
        false => Ok(None),
    }
}

/// Says on standard error what was found as runs were read anew, if the account that one of them keeps, and with it the head of the
/// report, says nothing is missing.
pub fn tell_found(strict: StrictArgs, runs: &[&Path], progress: &Progress) -> Result<()> {
    let mut is_told = true;
    for run in runs {
        is_told &= manifest(run)?.is_some_and(|manifest| manifest.recording_fault().is_some());
    }
    if let Some(reason) = progress.untold().filter(|_| !strict.strict && !is_told) {
        progress.note(&format!("{}: not whole, as read now: {reason}", names(runs)));
    }
    Ok(())
}

/// The same as [`tell`] of an account that the command drew up itself. What [`tell`] says of the run is not said twice.
pub fn tell_own(strict: StrictArgs, input: &Path, account: &Account, progress: &Progress) -> Result<()> {
    let is_told = manifest(input)?.is_some_and(|manifest| manifest.recording_fault().is_some());
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
        let of_run = manifest(input)?.as_ref().and_then(Manifest::recording_fault);
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kprism_session::Update;
    use kprism_store::{Fate, Instrument, RunKind};

    use super::*;

    /// A run whose account has lost so many bytes.
    fn run(folder: &Path, lost: u64) -> std::path::PathBuf {
        let run = Run::create(&folder.join(format!("lost-{lost}"))).unwrap();
        std::fs::create_dir_all(run.streams()).unwrap();
        std::fs::write(run.pt(0), [7; 8]).unwrap();
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        manifest.accounts.insert(Instrument::Flow, Account::new().with(Fate::Lost, "bytes", lost));
        run.write_manifest(&manifest).unwrap();
        run.dir().to_owned()
    }

    #[test]
    fn what_was_found_in_one_run_is_not_taken_for_the_known_fault_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let (whole, damaged) = (run(folder.path(), 0), run(folder.path(), 3));
        let said = |runs: &[&Path], tell: fn(StrictArgs, &[&Path], &Progress) -> Result<()>| {
            let notes = Arc::new(Mutex::new(Vec::new()));
            let heard = notes.clone();
            let progress = Progress::new(false, move |update| {
                if let Update::Note(text) = update {
                    heard.lock().unwrap().push(text.to_owned());
                }
            });
            progress.found(&Account::new().with(Fate::Lost, "bytes", 5));
            tell(StrictArgs::default(), runs, &progress).unwrap();
            let notes = notes.lock().unwrap();
            notes.iter().filter(|note| note.contains("as read now: lost 5 bytes")).count()
        };
        for tell in [tell, tell_found] {
            assert_eq!(said(&[&whole], tell), 1);
            assert_eq!(said(&[&damaged], tell), 0, "its own account says it");
            assert_eq!(said(&[&damaged, &whole], tell), 1);
        }
    }
}
