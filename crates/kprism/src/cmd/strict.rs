// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--strict`: the exit code tells whether the result is whole.
//!
//! In: the runs that a command read. Out: [`Outcome::Incomplete`] if an account says that something was lost, not
//! understood or guessed, or that nobody counted it.

use std::path::Path;

use anyhow::Result;
use kprism_store::{Manifest, Run};

use crate::exit::Outcome;
use crate::progress::Progress;

/// The option, for commands that read runs.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct StrictArgs {
    /// Exit with 4 unless the run's account says that nothing was lost, not understood or guessed
    #[arg(long)]
    pub strict: bool,
}

/// The outcome of a command that read these runs. Other failures come first.
pub fn judge(strict: StrictArgs, runs: &[&Path], outcome: Outcome, progress: &Progress) -> Result<Outcome> {
    if !strict.strict || outcome != Outcome::Done {
        return Ok(outcome);
    }
    for run in runs {
        let manifest = Run::open(run)?.manifest()?;
        if let Some(reason) = fault(&manifest) {
            progress.say(&format!("kprism: --strict: {}: {reason}", run.display()));
            return Ok(Outcome::Incomplete);
        }
    }
    Ok(Outcome::Done)
}

/// Why the run is not whole.
fn fault(manifest: &Manifest) -> Option<String> {
    if let Some(stopped) = &manifest.stopped {
        return Some(format!("recording ended early: {stopped}"));
    }
    if manifest.accounts.is_empty() {
        return Some("it has no account of what was lost".into());
    }
    let bad = |account: &kprism_store::Account| {
        let entries = account.entries.iter().filter(|e| e.fate.is_fault() && e.count != Some(0));
        let texts: Vec<String> = entries.map(|e| format!("{} {}", e.fate.name(), e.to_text())).collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    };
    manifest.accounts.iter().find_map(|(name, account)| Some(format!("{name}: {}", bad(account)?)))
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
        manifest.accounts.insert("flow".into(), whole.clone());
        assert_eq!(fault(&manifest), None);
        manifest.accounts.insert("tlb".into(), whole.with(Fate::Lost, "records", None));
        assert_eq!(fault(&manifest).as_deref(), Some("tlb: lost records not known"));
        manifest.stopped = Some("the disk is full".into());
        assert_eq!(fault(&manifest).as_deref(), Some("recording ended early: the disk is full"));
    }
}
