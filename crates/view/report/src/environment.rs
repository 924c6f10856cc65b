// SPDX-License-Identifier: MIT OR Apache-2.0
//! The environments of two runs, as text and JSON.
//!
//! In: the environments of two manifests. Out: whether they are the same, and what differs: a difference of counts may
//! come from that alone.

use kprism_profile::units::printable;
use kprism_store::{Difference, Environment};
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
    /// What was recorded of the command, where that differs: no part of an environment.
    pub recorded: Vec<Difference>,
}

/// Settings of recorders that choose what is recorded, as a manifest's options have them; those below `settings` first.
const CHOICES: [&str; 21] = [
    "settings.functions",
    "settings.not_functions",
    "settings.graph",
    "settings.not_graph",
    "settings.depth",
    "settings.longer_than",
    "settings.scope",
    "settings.interrupts",
    "settings.events",
    "settings.more_events",
    "settings.sleep_time",
    "settings.top_level",
    "backend",
    "hook",
    "aggregate",
    "functions",
    "longer_than_ns",
    "condition",
    "from",
    "until",
    "snapshot_when",
];

/// The choices that differ between two manifests' options.
fn choices(old: &Value, new: &Value) -> Vec<Difference> {
    let of = |options: &Value, key: &str| {
        let value = key.split('.').fold(options, |value, key| &value[key]);
        match value {
            Value::Null | Value::Bool(false) => None,
            Value::Array(all) if all.is_empty() => None,
            Value::String(text) => Some(text.clone()),
            value => Some(value.to_string()),
        }
    };
    let difference = |key: &&str| Difference {
        part: key.trim_start_matches("settings.").replace('_', " "),
        old: of(old, key),
        new: of(new, key),
    };
    CHOICES.iter().map(difference).filter(|difference| difference.old != difference.new).collect()
}

impl Compared {
    /// Compares the environments of an old and a new run.
    pub fn new(old: Option<&Environment>, new: Option<&Environment>) -> Self {
        let differences = old.zip(new).map(|(old, new)| old.differences(new)).unwrap_or_default();
        Compared { ids: [old, new].map(|e| e.map(|e| e.id.clone())), differences, recorded: Vec::new() }
    }

    /// Compares what was recorded, too, by the options of the manifests.
    #[must_use]
    pub fn with_recorders(self, old: &Value, new: &Value) -> Self {
        Compared { recorded: choices(old, new), ..self }
    }

    /// True if both are known and the same.
    pub fn is_same(&self) -> bool {
        self.ids[0].is_some() && self.ids[0] == self.ids[1]
    }

    /// A line if they are the same or one is not known, else also a line for each difference; then what was recorded, where
    /// that differs. Without that it is empty if neither is known: recordings of processors have none.
    pub fn to_text(&self) -> String {
        let mut text = self.environments();
        if !self.recorded.is_empty() {
            text += "not the same was recorded: counts may differ for that reason alone\n";
            text += &lines(&self.recorded);
        }
        text
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
            let cause = match self.recorded.is_empty() {
                true => ": what differs comes from the command",
                false => "",
            };
            return format!("the same environment ({old}){cause}\n");
        }
        let text = format!("environments differ ({old}, {new}): counts may differ for that reason alone\n");
        text + &lines(&self.differences)
    }

    /// The same as JSON; `same` is null if one is not known.
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
    use super::*;

    #[test]
    fn differences_are_named_and_the_unknown_is_said() {
        let of = |qemu: &str| Environment::new([("qemu".to_owned(), qemu.to_owned())]);
        let compared = Compared::new(Some(&of("9")), Some(&of("10")));
        assert!(!compared.is_same());
        assert!(compared.to_text().ends_with("reason alone\n  qemu: 9 → 10\n"), "{}", compared.to_text());
        assert_eq!(compared.to_json()["differences"][0]["new"], "10");
        let same = Compared::new(Some(&of("9")), Some(&of("9")));
        assert!(same.is_same() && same.to_text().starts_with("the same environment"));
        assert!(Compared::new(None, Some(&of("9"))).to_text().starts_with("the old run states no"));
        assert_eq!(Compared::new(None, None).to_text(), "");
    }

    #[test]
    fn what_was_recorded_is_a_reason_of_its_own() {
        let environment = Environment::new([("qemu".to_owned(), "9".to_owned())]);
        let compared = |old: Value, new: Value| {
            Compared::new(Some(&environment), Some(&environment)).with_recorders(&old, &new)
        };
        let ftrace = json!({"backend": "ftrace", "settings": {"functions": ["vfs_*"], "depth": null}});
        let bpf = json!({"backend": "bpf", "aggregate": true, "mem_mib": 512});
        let text = compared(ftrace.clone(), bpf).to_text();
        let (first, rest) = text.split_once('\n').unwrap();
        assert_eq!(first, format!("the same environment ({})", environment.id));
        assert_eq!(
            rest,
            "not the same was recorded: counts may differ for that reason alone\n  functions: [\"vfs_*\"] → none\n  \
             backend: ftrace → bpf\n  aggregate: none → true\n"
        );
        assert!(compared(ftrace.clone(), ftrace).to_text().ends_with("comes from the command\n"));
        assert_eq!(compared(json!({"from": "a"}), json!({})).to_json()["recorded"][0]["part"], "from");
    }
}
