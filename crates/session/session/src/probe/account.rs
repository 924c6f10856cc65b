// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of probes: what their programs counted in the kernel, and what the records hold.
//!
//! In: a run's description and records, and the places where no probe could be attached. Out: an [`Account`]. The counts of
//! a recorder that was killed are not known; its records are.

use std::collections::BTreeMap;

use kprism_probe::stream::shape::Shape;
use kprism_probe::stream::{Counts, Description, Hit, Item, Probe, hits};
use kprism_store::{Account, Fate};

/// Adds up what is known of a recording. `keep`: of the records only the last so many were asked for.
pub fn account(
    description: &Description,
    bytes: &[u8],
    not_attached: Vec<String>,
    keep: Option<u64>,
) -> Account {
    let counts = &description.counts;
    let known = !counts.is_empty() || description.probes.is_empty();
    let sum = |of: fn(&Counts) -> u64| known.then(|| counts.iter().map(of).fold(0, u64::saturating_add));
    let faults = |of: fn(&Counts) -> &BTreeMap<String, u64>| {
        let all = description.probes.iter().zip(counts);
        let all = all.flat_map(|(probe, counts)| of(counts).iter().map(|(why, n)| (&probe.place, why, *n)));
        let places: Vec<String> =
            all.clone().map(|(place, why, n)| format!("{place}: {n} × {why}")).collect();
        (known.then(|| all.map(|(.., n)| n).sum::<u64>()), places)
    };
    let (conditions, in_conditions) = faults(|counts| &counts.condition_errors);
    let (values, in_values) = faults(|counts| &counts.value_errors);
    let read = Read::of(description, bytes);
    let mut account =
        Account::new().with(Fate::Seen, "hits", sum(|c| c.hits)).with(Fate::Kept, "records", read.records);
    let tallied = |probe: &Probe| probe.record_bytes == 0 && probe.effect.is_record();
    if description.probes.iter().any(tallied) {
        let of = description.probes.iter().zip(counts).filter(|(probe, _)| tallied(probe));
        account =
            account.with(Fate::Kept, "hits counted", known.then(|| of.map(|(_, c)| c.passed).sum::<u64>()));
    }
    let recorded = description.probes.iter().zip(counts).filter(|(probe, _)| probe.record_bytes > 0);
    let recorded = recorded.map(|(_, counts)| counts.passed.saturating_sub(counts.lost)).sum::<u64>();
    let expected = known.then(|| keep.map_or(recorded, |most| recorded.min(most)));
    account = account
        .with(Fate::Lost, "records for which a ring had no room", sum(|c| c.lost))
        .with(Fate::Lost, "records missing from the file", expected.map(|n| n.saturating_sub(read.records)))
        .with(Fate::Lost, "hits missed: the program ran already", sum(|c| c.missed));
    if description.probes.iter().any(Probe::is_kprobe) {
        let at_kprobes = description.probes.iter().zip(counts).filter(|(probe, _)| probe.is_kprobe());
        let missed = at_kprobes.map(|(_, counts)| counts.kernel_missed).sum::<Option<u64>>();
        account = account.with(Fate::Lost, "hits missed by the kernel", missed.filter(|_| known));
    }
    account = account
        .at(Fate::Lost, "places not attached", not_attached.len() as u64, not_attached)
        .at(Fate::NotUnderstood, "damaged records", read.damaged.len() as u64, read.damaged)
        .at(Fate::NotUnderstood, "values that could not be read", values, in_values);
    // Only what can be: there are no keys to lose where nothing is counted by keys.
    let any = |is: fn(&Probe) -> bool| description.probes.iter().any(is);
    if any(|probe| probe.condition.is_some()) {
        account =
            account.at(Fate::Lost, "hits whose condition could not be computed", conditions, in_conditions);
    }
    if any(|probe| probe.hook.contains("ret") || probe.hook.contains("exit")) {
        account = account.with(Fate::Lost, "calls not seen to return", sum(|c| c.unreturned));
    }
    if any(|probe| probe.tally.as_ref().is_some_and(|tally| !tally.keys.is_empty())) {
        account = account
            .with(Fate::Lost, "hits not counted: no room for their keys", sum(|c| c.keys_lost))
            .with(Fate::Lost, "hits not counted: unreadable keys", sum(|c| c.keys_failed));
    }
    if any(|probe| probe.items.iter().enumerate().any(|item| is_text(&item))) {
        account = account.with(Fate::Lost, "ends of strings and slices that fill their room", read.cut);
    }
    account
}

/// Counts taken from the records themselves.
struct Read {
    records: u64,
    /// Strings that fill their room: the rest of them may be missing.
    cut: u64,
    /// Offset at which the file ends in no record.
    damaged: Vec<String>,
}

impl Read {
    fn of(description: &Description, bytes: &[u8]) -> Self {
        let texts: Vec<Vec<(usize, &Item)>> = description
            .probes
            .iter()
            .map(|probe| probe.items.iter().enumerate().filter(is_text).collect())
            .collect();
        let mut read = Read { records: 0, cut: 0, damaged: Vec::new() };
        for hit in hits(bytes) {
            match hit {
                Ok(hit) => {
                    read.records += 1;
                    let texts = texts.get(usize::from(hit.probe)).map_or(&[][..], Vec::as_slice);
                    read.cut +=
                        texts.iter().filter(|(number, item)| is_cut(&hit, *number, item)).count() as u64;
                }
                Err(error) => read.damaged.push(error.to_string()),
            }
        }
        read
    }
}

/// A task's name always fits: the kernel keeps no more of it.
fn is_text((_, item): &(usize, &Item)) -> bool {
    matches!(item.shape, Some(Shape::Text { .. } | Shape::Elements { .. })) && item.name != "$comm"
}

/// Whether the kernel cut the string. Where the recording does not say how long one is that was cut, one without room for
/// one more byte counts.
fn is_cut(hit: &Hit<'_>, number: usize, item: &Item) -> bool {
    let least = match item.shape {
        Some(Shape::Text { room, cut }) => u64::from(cut.unwrap_or(room)),
        Some(Shape::Elements { most, .. }) => u64::from(most) + 1,
        _ => return false,
    };
    let failed = number < 64 && hit.failed >> number & 1 == 1;
    let at = item.at as usize;
    let length = hit.bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    !failed && length >= least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(length: u64) -> Vec<u8> {
        let mut bytes = vec![0; 48];
        bytes[..4].copy_from_slice(&48u32.to_le_bytes());
        bytes[32..40].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn description() -> Description {
        let item = Item {
            name: "path".into(),
            ty: "char *".into(),
            at: 32,
            shape: Some(Shape::Text { room: 8, cut: None }),
            missing: None,
        };
        let probe = Probe {
            place: "open".into(),
            found: "open".into(),
            condition: None,
            file: None,
            address: None,
            hook: "uprobe".into(),
            record_bytes: 48,
            items: vec![item],
            tally: None,
            printf: None,
            gdb: None,
            effect: Default::default(),
        };
        let counts = Counts { hits: 3, passed: 2, ..Counts::default() };
        Description { version: 1, probes: vec![probe], counts: vec![counts], ..Description::default() }
    }

    #[test]
    fn whole_if_every_record_and_every_string_is_there() {
        let bytes = [record(3), record(7)].concat();
        let told = account(&description(), &bytes, Vec::new(), None);
        assert!(told.is_whole(), "{}", told.to_text());
        assert_eq!((told.count(Fate::Seen, "hits"), told.count(Fate::Kept, "records")), (Some(3), Some(2)));
    }

    #[test]
    fn what_is_not_there_is_counted_and_named() {
        let mut of = description();
        of.counts[0].missed = 4;
        of.probes[0].condition = Some("*p > 3".into());
        of.counts[0].condition_errors.insert("unreadable memory".into(), 5);
        of.counts[0].value_errors.insert("path: unreadable memory".into(), 6);
        let told = account(&of, &record(8), vec!["main.c:7: no code there".into()], None);
        let lost = |unit| told.count(Fate::Lost, unit);
        assert_eq!(lost("records missing from the file"), Some(1));
        assert_eq!(lost("ends of strings and slices that fill their room"), Some(1));
        assert_eq!(lost("hits missed: the program ran already"), Some(4));
        assert_eq!(lost("hits whose condition could not be computed"), Some(5));
        assert_eq!(lost("places not attached"), Some(1));
        assert_eq!(told.count(Fate::NotUnderstood, "values that could not be read"), Some(6));
        let text = told.to_text();
        assert!(
            text.contains("open: 5 × unreadable memory") && text.contains("main.c:7: no code there"),
            "{text}"
        );
        // Of the last record only one was asked for.
        let told = account(&description(), &record(3), Vec::new(), Some(1));
        assert_eq!(told.count(Fate::Lost, "records missing from the file"), Some(0));
    }

    #[test]
    fn the_kernel_tells_what_its_kprobes_missed_or_nobody_knows() {
        let mut of = description();
        let unit = "hits missed by the kernel";
        let lost = |of: &Description| account(of, &record(3), Vec::new(), None).to_text();
        assert!(!lost(&of).contains(unit), "a uprobe");
        of.probes[0].hook = "kretprobe".into();
        let told = |of: &Description| account(of, &record(3), Vec::new(), None).count(Fate::Lost, unit);
        assert_eq!(told(&of), None, "an older kernel");
        assert!(!account(&of, &record(3), Vec::new(), None).is_whole());
        of.counts[0].kernel_missed = Some(30);
        assert_eq!(told(&of), Some(30));
        of.counts.clear();
        assert_eq!(told(&of), None, "a killed recorder");
    }

    #[test]
    fn a_recorder_that_was_killed_leaves_counts_unknown() {
        let mut of = description();
        of.counts.clear();
        let told = account(&of, &[record(3), vec![1]].concat(), Vec::new(), None);
        assert_eq!((told.count(Fate::Seen, "hits"), told.count(Fate::Kept, "records")), (None, Some(1)));
        assert_eq!(told.count(Fate::Lost, "records for which a ring had no room"), None);
        assert_eq!(told.count(Fate::NotUnderstood, "damaged records"), Some(1));
    }
}
