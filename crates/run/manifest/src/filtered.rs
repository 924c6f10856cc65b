// SPDX-License-Identifier: MIT OR Apache-2.0
//! The condition of a recording (`record durations --if`), and how much was left out by it.
//!
//! Input: the manifest's options `condition`, `filtered` and `condition_errors`. Output: lines for the tops of reports.

use kprism_profile::units::{grouped, printable};
use serde_json::{Map, Value};

use crate::{Manifest, OptionKey};

impl Manifest {
    /// Enters how much was left out by the condition. `errors`: how often it could not be computed, by kind; these are
    /// among those that were left out.
    pub fn enter_filtered(&mut self, filtered: u64, errors: impl IntoIterator<Item = (String, u64)>) {
        self.set(OptionKey::Filtered, filtered);
        let errors = errors.into_iter().filter(|(_, count)| *count > 0);
        let errors: Map<String, Value> = errors.map(|(kind, count)| (kind, count.into())).collect();
        self.set(OptionKey::ConditionErrors, errors);
    }

    /// Describes what the condition left out, a line for each fact; nothing if the recording had no condition. `what`: the
    /// things that were left out, in the plural.
    pub fn filtered(&self, what: &str) -> Vec<String> {
        let facts = self.option_facts();
        let Some(condition) = facts.condition else {
            return Vec::new();
        };
        let condition = printable(&condition);
        let count = match facts.filtered {
            Some(count) => grouped(count),
            None => "nobody knows how many".to_owned(),
        };
        let mut lines = vec![format!("only {what} with `{condition}`: {count} others left out")];
        for (kind, count) in facts.condition_errors.unwrap_or_default() {
            let (count, kind) = (grouped(count), printable(&kind));
            lines
                .push(format!("{count} of these {what} because the condition could not be computed: {kind}"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunKind;

    #[test]
    fn the_condition_and_its_counts_are_told_without_control_characters() {
        let mut manifest = Manifest::new(RunKind::Host, 1);
        assert_eq!(manifest.filtered("calls"), Vec::<String>::new());
        manifest.options.insert("condition".into(), "$comm == \"\u{1b}[31m\"".into());
        assert!(manifest.filtered("calls")[0].ends_with("nobody knows how many others left out"));
        manifest.enter_filtered(1234, [("bad read".to_owned(), 7), ("division by zero".to_owned(), 0)]);
        let lines = manifest.filtered("calls");
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].ends_with(": 1,234 others left out") && !lines[0].contains('\u{1b}'), "{lines:?}");
        assert_eq!(lines[1], "7 of these calls because the condition could not be computed: bad read");
    }
}
