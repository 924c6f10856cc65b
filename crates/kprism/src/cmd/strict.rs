// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--strict`: the exit code tells whether the result is whole.
//!
//! In: the runs that a command read. Out: [`Outcome::Incomplete`] if an account says that something was lost, not
//! understood or guessed, or that nobody counted it.

use std::path::Path;

use anyhow::Result;
use kprism_store::{Account, Manifest, Run};

use crate::exit::Outcome;
use kprism_session::Progress;

/// The option, for commands that read runs.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct StrictArgs {
    /// Exit with 4 unless the run's account says that nothing was lost, not understood or guessed
    #[arg(long)]
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
        if let Some(reason) = fault(&manifest) {
            progress.say(&format!("kprism: --strict: {}: {reason}", run.display()));
            return Ok(Outcome::Incomplete);
        }
    }
    Ok(outcome)
}

/// The same of inputs whose account the command drew up itself, which need not be runs.
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
        let of_run = manifest.as_ref().and_then(|manifest| stopped(manifest).or_else(|| recorded(manifest)));
        if let Some(reason) = of_run.or_else(|| bad(account)) {
            progress.say(&format!("kprism: --strict: {}: {reason}", input.display()));
            return Ok(Outcome::Incomplete);
        }
    }
    Ok(if outcome == Outcome::Done { Outcome::Whole } else { Outcome::WholeNothing })
}

/// Why the run is not whole.
fn fault(manifest: &Manifest) -> Option<String> {
    if let Some(reason) = stopped(manifest) {
        return Some(reason);
    }
    if manifest.accounts.is_empty() {
        return Some("it has no account of what was lost".into());
    }
    recorded(manifest)
}

fn stopped(manifest: &Manifest) -> Option<String> {
    Some(format!("recording ended early: {}", manifest.stopped.as_ref()?))
}

/// The first of the run's accounts that is not whole.
fn recorded(manifest: &Manifest) -> Option<String> {
    manifest.accounts.iter().find_map(|(name, account)| Some(format!("{name}: {}", bad(account)?)))
}

/// The first fault of an account: something missing or guessed.
pub fn bad(account: &Account) -> Option<String> {
    let entries = account.entries.iter().filter(|e| e.fate.is_fault() && e.count != Some(0));
    let texts: Vec<String> = entries.map(|e| format!("{} {}", e.fate.name(), e.to_text())).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_store::{Account, Fate, RunKind};

    #[test]
    fn whole_runs_pass_and_others_say_why() {
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        assert_eq!(fault(&manifest).as_deref(), Some("it has no account of what was lost"));
        let whole = Account::new().with(Fate::Lost, "bytes", 0);
        manifest.accounts.insert(kprism_store::Instrument::Flow, whole.clone());
        assert_eq!(fault(&manifest), None);
        manifest.accounts.insert(kprism_store::Instrument::Tlb, whole.with(Fate::Lost, "records", None));
        assert_eq!(fault(&manifest).as_deref(), Some("tlb: lost records not known"));
        manifest.stopped = Some("the disk is full".into());
        assert_eq!(fault(&manifest).as_deref(), Some("recording ended early: the disk is full"));
    }
}
