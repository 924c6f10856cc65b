// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which part of what ran was recorded: windows between conditions, snapshots of a ring, a range of addresses.
//!
//! Input: the manifest's options and its processor. Output: lines for the tops of reports. What a condition of durations left
//! out is told by [`Manifest::filtered`].

use kprism_profile::units::{counted, printable};

use crate::Manifest;

impl Manifest {
    /// The part of the run that was recorded, a line for each limit; nothing if all of it was.
    pub fn recorded_part(&self) -> Vec<String> {
        let facts = self.option_facts();
        let mut lines = Vec::new();
        if facts.from.is_some() || facts.until.is_some() || facts.windows.is_some() {
            let conditions = [("from", &facts.from), ("until", &facts.until)];
            let conditions = conditions
                .iter()
                .filter_map(|(word, text)| Some(format!(" {word} `{}`", printable(text.as_ref()?))));
            let text: String = conditions.collect();
            lines.push(format!("recorded in windows only: {}{text}", number(facts.windows, "windows")));
        }
        if facts.snapshots.is_some() || facts.snapshot_when.is_some() || facts.snapshot {
            let when = facts.snapshot_when.map(|when| format!(" when `{}`", printable(&when)));
            let count = number(facts.snapshots, "snapshots");
            let short = facts.short_snapshots.filter(|short| *short > 0).map(|short| {
                let short = counted(short, "snapshots");
                format!(
                    "; {short} without the beginning of what triggered it: it takes a larger --snapshot-size"
                )
            });
            lines.push(format!(
                "recorded in snapshots only, the last packets of each CPU: {count}{}{}",
                when.unwrap_or_default(),
                short.unwrap_or_default()
            ));
        }
        let ranges: Vec<String> = (self.processor.iter())
            .flat_map(|processor| &processor.filter)
            .map(|(first, last)| format!("{first:#x} to {last:#x}"))
            .collect();
        if !ranges.is_empty() {
            lines.push(format!("recorded at some addresses only: {}", ranges.join(", ")));
        }
        lines
    }
}

/// A number of windows or snapshots.
fn number(count: Option<u64>, unit: &str) -> String {
    count.map_or_else(|| format!("{unit}, nobody knows how many"), |n| counted(n, unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Processor, RunKind};
    use serde_json::Value;

    fn part(options: &[(&str, Value)]) -> Vec<String> {
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        manifest.options.extend(options.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        manifest.recorded_part()
    }

    #[test]
    fn windows_and_snapshots_are_told_and_all_of_a_run_is_not() {
        assert_eq!(part(&[("from", Value::Null), ("snapshot_when", Value::Null)]), [""; 0]);
        assert_eq!(
            part(&[("from", "a".into()), ("until", "b\u{1b}".into()), ("windows", 1234.into())]),
            ["recorded in windows only: 1,234 windows from `a` until `b\\u{1b}`"]
        );
        assert_eq!(
            part(&[("until", "b".into())]),
            ["recorded in windows only: windows, nobody knows how many until `b`"]
        );
        assert_eq!(
            part(&[("snapshot_when", "irqs_off > 1ms".into()), ("snapshots", 1.into())]),
            ["recorded in snapshots only, the last packets of each CPU: 1 snapshot when `irqs_off > 1ms`"]
        );
        let short = part(&[("snapshots", 3.into()), ("short_snapshots", 2.into())]).concat();
        let told = "3 snapshots; 2 snapshots without the beginning of what triggered it: it takes a larger";
        assert!(short.contains(told), "{short}");
        assert!(!part(&[("snapshots", 3.into()), ("short_snapshots", 0.into())])[0].contains("without"));
        assert_eq!(part(&[("snapshot", true.into())]).len(), 1);
    }

    #[test]
    fn the_filter_of_addresses_is_told() {
        let mut manifest = Manifest::new(RunKind::Import, 1);
        let filter = vec![(0x1000, 0x1fff)];
        manifest.processor = Some(Processor { family: 6, model: 1, stepping: 1, errata: None, filter });
        assert_eq!(manifest.recorded_part(), ["recorded at some addresses only: 0x1000 to 0x1fff"]);
    }
}
