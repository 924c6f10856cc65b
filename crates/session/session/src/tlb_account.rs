// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of recorded TLB misses: what the recorder counted beside what its streams hold.
//!
//! In: `streams/tlb/counts.json`, misses and allocations as they were read, damage. Out: an [`Account`]. Each way to record
//! has things of its own that it can lose: threads of one program, brackets around the kernel's reads on the bus, samples.

use kprism_store::{Account, Fate};
use serde_json::Value;

/// Counts of a reader of the streams.
#[derive(Debug, Clone, Default)]
pub struct Read {
    /// Misses of the last level, of the first geometry; of samples, what they stand for.
    pub misses: u64,
    /// Only misses that meet a condition were kept.
    pub chosen: bool,
    /// Allocations whose caller is not known.
    pub nameless: u64,
    /// Files that are damaged or missing.
    pub damage: Vec<String>,
}

/// The account of a run.
pub fn account(counts: &Value, read: &Read) -> Account {
    let account = match counts["method"].as_str() {
        Some("sampled") => sampled(counts, read),
        Some("ptat") => bus(counts, read),
        method => models(counts, read, method == Some("user")),
    };
    account.at(Fate::NotUnderstood, "damaged or missing files", read.damage.len() as u64, read.damage.clone())
}

/// The sum of the three kinds of access at `path` of each CPU.
fn sum(counts: &Value, of: impl Fn(&Value) -> &Value) -> Option<u64> {
    let kinds = |cpu: &Value| of(cpu).as_object().map(|k| k.values().filter_map(Value::as_u64).sum::<u64>());
    let cpus = counts["vcpus"].as_array()?;
    cpus.iter().map(kinds).try_fold(0u64, |sum, n| Some(sum.saturating_add(n?)))
}

fn models(counts: &Value, read: &Read, user: bool) -> Account {
    let counted = sum(counts, |cpu| &cpu["models"][0]["misses"]);
    let left_out = |why: &str| match read.chosen {
        true => counts["left_out"][why].as_u64(),
        false => Some(0),
    };
    let (unmet, not_computed) = (left_out("unmet"), left_out("not_computed"));
    let lost = counted.zip(unmet.zip(not_computed)).map(|(counted, (unmet, unknown))| {
        counted.saturating_sub(read.misses.saturating_add(unmet).saturating_add(unknown))
    });
    let mut account = Account::new()
        .with(Fate::Seen, "accesses", sum(counts, |cpu| &cpu["references"]))
        .with(Fate::Seen, "misses", counted);
    if read.chosen {
        account = account.with(Fate::Seen, "misses that do not meet the condition, left out", unmet);
    }
    account = account.with(Fate::Kept, "misses", read.misses).with(Fate::Lost, "misses", lost);
    if read.chosen {
        account = account.with(Fate::Lost, "misses whose condition could not be computed", not_computed);
    }
    if user {
        for (key, unit) in [
            ("threads_not_followed", "threads not followed"),
            ("forks_not_followed", "forked processes not followed"),
            ("programs_not_followed", "programs not followed that the command became"),
            ("unwritten_bytes", "bytes of misses not written"),
            ("unwritten_mappings", "mappings not written"),
        ] {
            account = account.with(Fate::Lost, unit, counts[key].as_u64());
        }
        if counts["ended"] != true {
            let unit = "accesses just before the end, at most 512 of each thread that ran,";
            account = account.with(Fate::Lost, unit, None);
        }
    } else {
        account = account.with(Fate::Guessed, "allocations without a known caller", read.nameless);
    }
    account
}

fn sampled(counts: &Value, read: &Read) -> Account {
    Account::new()
        .with(Fate::Seen, "samples", seen_samples(counts))
        .with(Fate::Kept, "samples", counts["samples"].as_u64())
        .with(Fate::Lost, "samples", counts["lost"].as_u64())
        .with(Fate::NotUnderstood, "misses without an address", counts["without_address"].as_u64())
        .with(Fate::NotUnderstood, "samples of no known event", counts["of_no_known_event"].as_u64())
        .with(Fate::NotUnderstood, "samples cut short", counts["cut_short"].as_u64())
        .with(Fate::Guessed, "misses, estimated from the samples", read.misses)
}

fn seen_samples(counts: &Value) -> Option<u64> {
    let events = counts["events"].as_array()?;
    let nameless = counts["of_no_known_event"].as_u64().unwrap_or(0);
    events.iter().map(|e| e["samples"].as_u64()).try_fold(nameless, |sum, n| Some(sum.saturating_add(n?)))
}

fn bus(counts: &Value, read: &Read) -> Account {
    let of = |key: &str| counts["accesses"][key].as_u64();
    let mut account = Account::new()
        .with(Fate::Seen, "accesses to page tables", of("all"))
        .with(Fate::Kept, "misses", read.misses)
        .with(Fate::Lost, "page tables outside the region", counts["escaped_tables"].as_u64())
        .with(Fate::Lost, "address spaces not followed", counts["overlooked_spaces"].as_u64())
        .with(Fate::Lost, "accesses not written", counts["unwritten_accesses"].as_u64())
        .with(Fate::NotUnderstood, "accesses to pages of nobody known", of("unknown"))
        .with(Fate::NotUnderstood, "reads that may be the kernel's or a walk", of("unsure"))
        .with(Fate::NotUnderstood, "records of the module", counts["unknown_records"].as_u64())
        .with(Fate::Guessed, "missed brackets, in which the kernel's reads are taken for walks", {
            counts["missed_brackets"].as_u64()
        });
    // Of a capture that was imported.
    if counts["boards"].is_array() {
        for (fate, key, unit) in [
            (Fate::Lost, "lost_records", "records of the boards, at least"),
            (Fate::NotUnderstood, "out_of_step", "tags on the bus without their record of the kernel"),
            (Fate::NotUnderstood, "without_entry", "mappings without their entry's address"),
            (Fate::NotUnderstood, "never_mapped", "pages unmapped that were never mapped"),
            (Fate::Guessed, "late_accesses", "accesses out of order of time, taken where they are"),
        ] {
            account = account.with(fate, unit, counts[key].as_u64());
        }
    }
    account
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_missing_in_the_streams_is_lost() {
        let counts = json!({"vcpus": [{"references": {"load": 9, "store": 1},
            "models": [{"misses": {"load": 5, "fetch": 2}}]}]});
        let read = Read { misses: 4, ..Read::default() };
        let account = account(&counts, &read);
        assert_eq!(account.count(Fate::Seen, "accesses"), Some(10));
        assert_eq!(account.count(Fate::Lost, "misses"), Some(3));
        assert!(!account.is_whole());
    }

    #[test]
    fn what_a_condition_leaves_out_is_not_lost() {
        let mut counts = json!({"vcpus": [{"references": {"load": 9}, "models": [{"misses": {"load": 7}}]}],
            "left_out": {"unmet": 3, "not_computed": 0}});
        let read = Read { misses: 4, chosen: true, ..Read::default() };
        let all = account(&counts, &read);
        assert!(all.is_whole());
        let unit = "misses that do not meet the condition, left out";
        assert_eq!((all.count(Fate::Seen, unit), all.count(Fate::Kept, "misses")), (Some(3), Some(4)));
        // The condition cannot be computed of one, which might have met it.
        counts["left_out"] = json!({"unmet": 2, "not_computed": 1});
        let all = account(&counts, &read);
        let unit = "misses whose condition could not be computed";
        assert!(!all.is_whole());
        assert_eq!((all.count(Fate::Lost, unit), all.count(Fate::Lost, "misses")), (Some(1), Some(0)));
        // The recorder left no such counts.
        counts["left_out"] = Value::Null;
        assert!(!account(&counts, &read).is_whole());
    }

    #[test]
    fn a_program_that_was_ended_has_accesses_nobody_counted() {
        let counts = |ended| {
            json!({"method": "user", "ended": ended, "threads_not_followed": 0, "forks_not_followed": 0,
                "programs_not_followed": 0, "unwritten_bytes": 0, "unwritten_mappings": 0, "vcpus": []})
        };
        assert!(account(&counts(true), &Read::default()).is_whole());
        assert!(!account(&counts(false), &Read::default()).is_whole());
    }

    #[test]
    fn reads_of_the_bus_that_may_be_anybodys_are_not_whole() {
        let mut counts = json!({"method": "ptat", "accesses": {"all": 7, "unknown": 0, "unsure": 0},
            "escaped_tables": 0, "overlooked_spaces": 0, "unwritten_accesses": 0, "unknown_records": 0, "missed_brackets": 0});
        assert!(account(&counts, &Read::default()).is_whole());
        counts["accesses"]["unsure"] = 1.into();
        assert!(!account(&counts, &Read::default()).is_whole());
    }
}
