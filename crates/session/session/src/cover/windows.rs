// SPDX-License-Identifier: MIT OR Apache-2.0
//! Windows between two conditions: what of a run its coverage is of.
//!
//! In: a run's manifest, which the recorder wrote. Out: the conditions and the number of windows, for views; and, where gcov's
//! counters were added up over the windows, what is to be said of single objects.

use std::path::Path;

use kprism_profile::units::grouped;
use kprism_store::{Manifest, OptionKey, Run};
use serde::{Deserialize, Serialize};

/// The windows of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Windows {
    /// The condition that opens a window; `None`: the begin of the command does.
    pub from: Option<String>,
    /// The condition that closes it; `None`: the end of the command does.
    pub until: Option<String>,
    /// Number of windows; `None` if the recorder did not come to its end.
    pub windows: Option<u64>,
    /// Number of times that a condition could not be computed.
    pub condition_faults: Option<u64>,
    /// Number of calls and intervals that were not followed to their end.
    pub condition_forgotten: Option<u64>,
    /// Facts about gcov's counters in the windows; a flow has none.
    #[serde(skip)]
    pub counted: Option<Counted>,
}

/// gcov's counters, added up over windows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Guest time in ns at which each window opened and closed; `None`: at the begin or the end of the command.
    pub spans: Vec<(Option<u64>, Option<u64>)>,
    /// Objects whose counters started again from 0 in a window.
    pub restarted: Vec<String>,
    /// Objects that were gone at the end of a window.
    pub unloaded: Vec<String>,
    /// Windows in which all counters were cleared: the number of objects that show it.
    pub resets: Vec<usize>,
}

impl Counted {
    /// Its name in the manifest's options.
    pub const OPTION: OptionKey = OptionKey::CoverageWindows;
}

impl Windows {
    /// Reads them from a run. `None`: it has no windows, or is no run.
    pub fn of(run: &Path) -> Option<Self> {
        Self::in_manifest(&Run::open(run).and_then(|run| run.manifest()).ok()?)
    }

    fn in_manifest(manifest: &Manifest) -> Option<Self> {
        let facts = manifest.option_facts();
        let (from, until) = (facts.from, facts.until);
        if from.is_none() && until.is_none() {
            return None;
        }
        Some(Windows {
            from,
            until,
            windows: facts.windows,
            condition_faults: facts.condition_faults,
            condition_forgotten: facts.condition_forgotten,
            counted: manifest
                .option(Counted::OPTION)
                .and_then(|value| serde_json::from_value(value.clone()).ok()),
        })
    }

    /// In words: how many, and between which conditions.
    pub fn to_text(&self) -> String {
        let mut text = match self.windows {
            Some(1) => "1 window".to_owned(),
            Some(n) => format!("{} windows", grouped(n)),
            None => "windows".to_owned(),
        };
        for (word, condition) in [("from", &self.from), ("until", &self.until)] {
            if let Some(condition) = condition {
                text += &format!(" {word} `{condition}`");
            }
        }
        text + &self.faults()
    }

    /// The loud remark: that there was no window.
    pub fn remark(&self) -> Option<String> {
        (self.windows == Some(0))
            .then(|| format!("the condition was never met, so nothing was counted: {}", self.to_text()))
    }

    fn faults(&self) -> String {
        crate::flow::condition_faults(self.condition_faults, self.condition_forgotten)
    }
}

#[cfg(test)]
mod tests {
    use kprism_store::RunKind;
    use serde_json::json;

    use super::*;

    fn windows(options: serde_json::Value) -> Option<Windows> {
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        for (name, value) in options.as_object().unwrap() {
            manifest.options.insert(name.clone(), value.clone());
        }
        Windows::in_manifest(&manifest)
    }

    #[test]
    fn they_are_told_in_words() {
        assert_eq!(windows(json!({ "from": null, "until": null, "windows": 3 })), None);
        for (options, text) in [
            (
                json!({ "from": "a", "until": "b%return", "windows": 1234 }),
                "1,234 windows from `a` until `b%return`",
            ),
            (json!({ "until": "b", "windows": 1 }), "1 window until `b`"),
            (json!({ "from": "a if x", "until": null }), "windows from `a if x`"),
            (
                json!({ "from": "a if x", "windows": 2, "condition_faults": 5, "condition_forgotten": 0 }),
                "2 windows from `a if x`; 5 times it could not be told: a bad read or a division by zero",
            ),
        ] {
            let windows = windows(options).unwrap();
            assert_eq!(windows.to_text(), text);
            assert_eq!(windows.remark(), None);
        }
        let none = windows(json!({ "from": "a", "windows": 0 })).unwrap();
        assert!(none.remark().unwrap().contains("never met"));
    }

    #[test]
    fn what_was_counted_comes_back_as_it_was_written() {
        let counted = Counted {
            spans: vec![(None, Some(5)), (Some(7), None)],
            restarted: vec!["/b/m.gcda".into()],
            unloaded: Vec::new(),
            resets: vec![3],
        };
        let found = windows(json!({ "from": "a", Counted::OPTION.name(): counted })).unwrap();
        assert_eq!(found.counted, Some(counted));
    }
}
