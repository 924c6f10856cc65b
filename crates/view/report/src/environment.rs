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
}

impl Compared {
    /// Compares the environments of an old and a new run.
    pub fn new(old: Option<&Environment>, new: Option<&Environment>) -> Self {
        let differences = old.zip(new).map(|(old, new)| old.differences(new)).unwrap_or_default();
        Compared { ids: [old, new].map(|e| e.map(|e| e.id.clone())), differences }
    }

    /// True if both are known and the same.
    pub fn is_same(&self) -> bool {
        self.ids[0].is_some() && self.ids[0] == self.ids[1]
    }

    /// A line if they are the same or one is not known, else also a line for each difference. Empty if neither is known:
    /// recordings of processors have none.
    pub fn to_text(&self) -> String {
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
            return format!("the same environment ({old}): what differs comes from the command\n");
        }
        let mut text =
            format!("environments differ ({old}, {new}): counts may differ for that reason alone\n");
        let side = |value: &Option<String>| match value {
            Some(value) => printable(value).to_string(),
            None => "none".into(),
        };
        for difference in self.differences.iter().take(LISTED) {
            let (old, new) = (side(&difference.old), side(&difference.new));
            text += &format!("  {}: {old} → {new}\n", printable(&difference.part));
        }
        if self.differences.len() > LISTED {
            text += &format!("  … {} more\n", self.differences.len() - LISTED);
        }
        text
    }

    /// The same as JSON; `same` is null if one is not known.
    pub fn to_json(&self) -> Value {
        let same = self.ids.iter().all(Option::is_some).then(|| self.is_same());
        json!({"old": self.ids[0], "new": self.ids[1], "same": same, "differences": self.differences})
    }
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
}
