// SPDX-License-Identifier: MIT OR Apache-2.0
//! The environments of two runs, as text and JSON.
//!
//! In: the environments of two manifests. Out: whether they are the same, and what differs: a difference of counts may
//! come from that alone.

use kprism_profile::units::printable;
use kprism_store::{Account, Difference, Entry, Environment, Fate, Manifest, Recorded};
use serde_json::{Value, json};

/// Differences listed as text.
const LISTED: usize = 12;

/// Two environments compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// Ids of the old and the new one; `None` if the run states none.
    pub ids: [Option<String>; 2],
    /// The parts that differ; empty if one is not known.
    pub differences: Vec<Difference>,
    /// What was recorded of the command, where that differs: no part of an environment. `None` if a run does not tell: a summary
    /// of an older version.
    pub recorded: Option<Vec<Difference>>,
}

impl Compared {
    /// Compares the environments of an old and a new run, and what was recorded of them.
    pub fn new(environments: [Option<&Environment>; 2], recorded: [Option<&Recorded>; 2]) -> Self {
        let [old, new] = environments;
        let differences = old.zip(new).map(|(old, new)| old.differences(new)).unwrap_or_default();
        let recorded = recorded[0].zip(recorded[1]).map(|(old, new)| old.differences(new));
        Compared { ids: environments.map(|e| e.map(|e| e.id.clone())), differences, recorded }
    }

    /// The same of two manifests.
    pub fn of_runs([old, new]: [&Manifest; 2]) -> Self {
        let recorded = [old.recorded(), new.recorded()];
        Self::new([old.environment.as_ref(), new.environment.as_ref()], recorded.each_ref().map(Some))
    }

    /// True if both are known and the same.
    pub fn is_same(&self) -> bool {
        self.ids[0].is_some() && self.ids[0] == self.ids[1]
    }

    /// True if it is known that the same was recorded.
    pub fn recorded_same(&self) -> bool {
        self.recorded.as_ref().is_some_and(Vec::is_empty)
    }

    /// A line if they are the same or one is not known, else also a line for each difference; then what was recorded, where
    /// that differs. Without that it is empty if neither is known: recordings of processors have none.
    pub fn to_text(&self) -> String {
        self.environments() + &self.recorders()
    }

    fn recorders(&self) -> String {
        match &self.recorded {
            None => {
                "it is not known whether the same was recorded: an older kprism saved one of the two\n".into()
            }
            Some(recorded) if recorded.is_empty() => String::new(),
            Some(recorded) => format!(
                "not the same was recorded: counts may differ for that reason alone\n{}",
                lines(recorded)
            ),
        }
    }

    fn environments(&self) -> String {
        let (old, new) = match &self.ids {
            [None, None] => return String::new(),
            [Some(_), None] => {
                return "the new run states no environment: counts may differ for that reason\n".into();
            }
            [None, Some(_)] => {
                return "the old run states no environment: counts may differ for that reason\n".into();
            }
            [Some(old), Some(new)] => (old, new),
        };
        if old == new {
            let cause = if self.recorded_same() { ": what differs comes from the command" } else { "" };
            return format!("the same environment ({old}){cause}\n");
        }
        let text = format!("environments differ ({old}, {new}): counts may differ for that reason alone\n");
        text + &lines(&self.differences)
    }

    /// The same as JSON; `same` is null if one is not known, and so is `recorded`.
    pub fn to_json(&self) -> Value {
        let same = self.ids.iter().all(Option::is_some).then(|| self.is_same());
        json!({
            "old": self.ids[0],
            "new": self.ids[1],
            "same": same,
            "differences": self.differences,
            "recorded": self.recorded,
        })
    }
}

/// Whether what a run does not have is not known there, rather than zero: not the same was recorded, or its account tells of losses.
/// A run without an account says nothing, and its header says that.
pub fn unknown(recorded: [&Recorded; 2], accounts: [Option<&Account>; 2]) -> [bool; 2] {
    let [old, new] = recorded;
    let same = old.sees_the_same(new);
    let misses = |entry: &Entry| entry.is_fault() && entry.fate != Fate::Guessed;
    accounts.map(|account| !same || account.is_some_and(|account| account.entries.iter().any(misses)))
}

/// Said where something is not known for that reason.
pub const UNKNOWN: &str = "–: not known, as not the same was recorded or something was lost";

/// A line for each of the first differences.
fn lines(differences: &[Difference]) -> String {
    let side = |value: &Option<String>| match value {
        Some(value) => printable(value).to_string(),
        None => "none".into(),
    };
    let mut text = String::new();
    for difference in differences.iter().take(LISTED) {
        let (old, new) = (side(&difference.old), side(&difference.new));
        text += &format!("  {}: {old} → {new}\n", printable(&difference.part));
    }
    if differences.len() > LISTED {
        text += &format!("  … {} more\n", differences.len() - LISTED);
    }
    text
}

#[cfg(test)]
mod tests {
    use kprism_store::RunKind;

    use super::*;

    fn compared(old: Option<&Environment>, new: Option<&Environment>) -> Compared {
        let nothing = Recorded::default();
        Compared::new([old, new], [Some(&nothing), Some(&nothing)])
    }

    #[test]
    fn differences_are_named_and_the_unknown_is_said() {
        let of = |qemu: &str| Environment::new([("qemu".to_owned(), qemu.to_owned())]);
        let differ = compared(Some(&of("9")), Some(&of("10")));
        assert!(!differ.is_same());
        assert!(differ.to_text().ends_with("reason alone\n  qemu: 9 → 10\n"), "{}", differ.to_text());
        assert_eq!(differ.to_json()["differences"][0]["new"], "10");
        let same = compared(Some(&of("9")), Some(&of("9")));
        assert!(same.is_same() && same.to_text().starts_with("the same environment"));
        assert!(compared(None, Some(&of("9"))).to_text().starts_with("the old run states no"));
        assert_eq!(compared(None, None).to_text(), "");
    }

    #[test]
    fn what_was_recorded_is_a_reason_of_its_own() {
        let environment = Environment::new([("qemu".to_owned(), "9".to_owned())]);
        let run = |options: Value| {
            let mut manifest = Manifest::new(RunKind::Host, 1);
            manifest.environment = Some(environment.clone());
            manifest.options = serde_json::from_value(options).unwrap();
            manifest
        };
        let ftrace = run(json!({"backend": "ftrace", "settings": {"functions": ["vfs_*"], "depth": null}}));
        let bpf = run(json!({"backend": "bpf", "aggregate": true, "share": "x"}));
        let text = Compared::of_runs([&ftrace, &bpf]).to_text();
        let (first, rest) = text.split_once('\n').unwrap();
        assert_eq!(first, format!("the same environment ({})", environment.id));
        assert_eq!(
            rest,
            "not the same was recorded: counts may differ for that reason alone\n  aggregate: none → true\n  \
             backend: ftrace → bpf\n  functions: [\"vfs_*\"] → none\n"
        );
        assert!(Compared::of_runs([&ftrace, &ftrace]).to_text().ends_with("comes from the command\n"));
        let window = Compared::of_runs([&run(json!({"from": "a"})), &run(json!({}))]);
        assert_eq!(window.to_json()["recorded"][0]["part"], "from");
    }

    #[test]
    fn what_a_run_lacks_is_zero_only_if_nothing_was_lost() {
        let recorded = Recorded::default();
        let account = |fate, count| Account::new().with(fate, "bytes", count);
        let of = |account: Account| unknown([&recorded; 2], [Some(&account), None]);
        assert_eq!(of(account(Fate::Lost, Some(0))), [false, false]);
        assert_eq!(of(account(Fate::Guessed, Some(3))), [false, false]);
        assert_eq!(of(account(Fate::Lost, Some(3))), [true, false]);
        assert_eq!(of(account(Fate::NotUnderstood, None)), [true, false]);
        let mut window = Recorded::default();
        window.add("from", "a");
        assert_eq!(unknown([&recorded, &window], [None; 2]), [true; 2]);
    }

    #[test]
    fn a_run_that_does_not_tell_what_was_recorded_is_not_the_same() {
        let environment = Environment::new([("qemu".to_owned(), "9".to_owned())]);
        let old = Compared::new([Some(&environment); 2], [None, Some(&Recorded::default())]);
        assert!(old.to_text().contains("not known whether the same was recorded"), "{}", old.to_text());
        assert!(!old.to_text().contains("comes from the command"));
        assert!(old.to_json()["recorded"].is_null());
    }
}
