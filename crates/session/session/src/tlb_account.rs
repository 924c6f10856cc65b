// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of recorded TLB misses: what the recorder counted beside what its streams hold.
//!
//! In: `streams/tlb/counts.json`, misses and allocations as they were read, damage. Out: an [`Account`]. Each way to record
//! has things of its own that it can lose: threads of one program, brackets around the kernel's reads on the bus, samples.

use kprism_store::{Account, Fate};
use kprism_tlb::counts::{Counts, Cpu, Kinds, LeftOut, Method};

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
pub fn account(counts: &Counts, read: &Read) -> Account {
    let account = match counts.method() {
        Some(Method::Sampled) => sampled(counts, read),
        Some(Method::Ptat) => bus(counts, read),
        Some(Method::User) => models(counts, read, true),
        Some(Method::Model) => models(counts, read, false),
        None => {
            let unit = "ways in which misses were found";
            models(counts, read, false).with(Fate::NotUnderstood, unit, None)
        }
    };
    let unknown = counts.not_understood();
    let account = match unknown.len() as u64 {
        0 => account,
        n => account.at(Fate::NotUnderstood, "counts of the recorder", n, unknown),
    };
    account.at(Fate::NotUnderstood, "damaged or missing files", read.damage.len() as u64, read.damage.clone())
}

/// The sum of the three kinds of access of each CPU.
fn sum(counts: &Counts, of: impl Fn(&Cpu) -> Option<Kinds>) -> Option<u64> {
    let cpus = counts.vcpus.as_ref()?;
    cpus.iter().try_fold(0u64, |sum, cpu| Some(sum.saturating_add(of(cpu)?.sum()?)))
}

fn models(counts: &Counts, read: &Read, user: bool) -> Account {
    let counted = sum(counts, |cpu| cpu.misses(0));
    let left_out = |of: fn(LeftOut) -> Option<u64>| match read.chosen {
        true => counts.left_out.and_then(of),
        false => Some(0),
    };
    let (unmet, not_computed) = (left_out(|n| n.unmet), left_out(|n| n.not_computed));
    let lost = counted.zip(unmet.zip(not_computed)).map(|(counted, (unmet, unknown))| {
        counted.saturating_sub(read.misses.saturating_add(unmet).saturating_add(unknown))
    });
    let mut account = Account::new().with(Fate::Seen, "accesses", sum(counts, |cpu| cpu.references)).with(
        Fate::Seen,
        "misses",
        counted,
    );
    if read.chosen {
        account = account.with(Fate::Seen, "misses that do not meet the condition, left out", unmet);
    }
    account = account.with(Fate::Kept, "misses", read.misses).with(Fate::Lost, "misses", lost);
    if read.chosen {
        account = account.with(Fate::Lost, "misses whose condition could not be computed", not_computed);
    }
    if user {
        for (count, unit) in [
            (counts.threads_not_followed, "threads not followed"),
            (counts.forks_not_followed, "forked processes not followed"),
            (counts.programs_not_followed, "programs not followed that the command became"),
            (counts.unwritten_bytes, "bytes of misses not written"),
            (counts.unwritten_mappings, "mappings not written"),
        ] {
            account = account.with(Fate::Lost, unit, count);
        }
        if counts.ended != Some(true) {
            let unit = "accesses just before the end, at most 512 of each thread that ran,";
            account = account.with(Fate::Lost, unit, None);
        }
    } else {
        account = account.with(Fate::Guessed, "allocations without a known caller", read.nameless);
    }
    account
}

fn sampled(counts: &Counts, read: &Read) -> Account {
    left_out_as_counted(counts)
        .with(Fate::Kept, "samples", counts.samples)
        .with(Fate::Lost, "samples", counts.lost)
        .with(Fate::NotUnderstood, "misses without an address", counts.without_address)
        .with(Fate::NotUnderstood, "samples of no known event", counts.of_no_known_event)
        .with(Fate::NotUnderstood, "samples cut short", counts.cut_short)
        .with(Fate::Guessed, "misses, estimated from the samples", read.misses)
}

/// Samples seen, and those that are left out because another event counts the same misses.
fn left_out_as_counted(counts: &Counts) -> Account {
    let account = Account::new().with(Fate::Seen, "samples", seen_samples(counts));
    let left_out = || counts.events.iter().flatten().filter(|event| event.counted_by.is_some());
    let places = left_out().map(|event| {
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        format!("{}: {} counts the same misses", name(&event.event), name(&event.counted_by))
    });
    let places: Vec<String> = places.collect();
    if places.is_empty() {
        return account;
    }
    let samples = left_out().try_fold(0u64, |sum, event| Some(sum.saturating_add(event.misses?)));
    account.at(Fate::Seen, "samples of misses that another event counts too, left out", samples, places)
}

fn seen_samples(counts: &Counts) -> Option<u64> {
    let of_events = counts.events.as_ref()?.iter().map(|event| event.samples);
    of_events.chain([counts.of_no_known_event]).try_fold(0u64, |sum, n| Some(sum.saturating_add(n?)))
}

fn bus(counts: &Counts, read: &Read) -> Account {
    let accesses = counts.accesses.unwrap_or_default();
    let mut account = Account::new()
        .with(Fate::Seen, "accesses to page tables", accesses.all)
        .with(Fate::Kept, "misses", read.misses)
        .with(Fate::Lost, "page tables outside the region", counts.escaped_tables)
        .with(Fate::Lost, "address spaces not followed", counts.overlooked_spaces)
        .with(Fate::Lost, "accesses not written", counts.unwritten_accesses)
        .with(Fate::NotUnderstood, "accesses to pages of nobody known", accesses.unknown)
        .with(Fate::NotUnderstood, "reads that may be the kernel's or a walk", accesses.unsure)
        .with(Fate::NotUnderstood, "records of the module", counts.unknown_records)
        .with(Fate::Guessed, "missed brackets, in which the kernel's reads are taken for walks", {
            counts.missed_brackets
        });
    // Of a capture that was imported.
    if counts.boards.is_some() {
        for (fate, count, unit) in [
            (Fate::Lost, counts.lost_records, "records of the boards, at least"),
            (Fate::NotUnderstood, counts.out_of_step, "tags on the bus without their record of the kernel"),
            (Fate::NotUnderstood, counts.without_entry, "mappings without their entry's address"),
            (Fate::NotUnderstood, counts.never_mapped, "pages unmapped that were never mapped"),
            (Fate::Guessed, counts.late_accesses, "accesses out of order of time, taken where they are"),
        ] {
            account = account.with(fate, unit, count);
        }
    }
    account
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn account(counts: &Value, read: &Read) -> Account {
        super::account(&Counts::parse(counts.to_string().as_bytes()).unwrap(), read)
    }

    #[test]
    fn samples_of_misses_that_another_event_counts_are_named() {
        let text = json!({"method": "sampled", "samples": 2, "lost": 0, "without_address": 0,
            "of_no_known_event": 0, "cut_short": 0, "vcpus": [], "events": [
                {"event": "page-faults", "samples": 2, "misses": 2, "counted_by": null},
                {"event": "minor-faults", "samples": 1, "misses": 1, "counted_by": "page-faults"}]});
        let told = account(&text, &Read { misses: 2, ..Read::default() });
        let unit = "samples of misses that another event counts too, left out";
        assert_eq!((told.count(Fate::Seen, "samples"), told.count(Fate::Seen, unit)), (Some(3), Some(1)));
        assert!(told.to_text().contains("minor-faults: page-faults counts the same misses"));
    }

    #[test]
    fn what_is_missing_in_the_streams_is_lost() {
        let counts = json!({"vcpus": [{"references": {"load": 9, "store": 1, "fetch": 0},
            "models": [{"misses": {"load": 5, "store": 0, "fetch": 2}}]}]});
        let read = Read { misses: 4, ..Read::default() };
        let account = account(&counts, &read);
        assert_eq!(account.count(Fate::Seen, "accesses"), Some(10));
        assert_eq!(account.count(Fate::Lost, "misses"), Some(3));
        assert!(!account.is_whole());
    }

    #[test]
    fn what_a_condition_leaves_out_is_not_lost() {
        let mut counts = json!({"vcpus": [{"references": {"load": 9, "store": 0, "fetch": 0},
            "models": [{"misses": {"load": 7, "store": 0, "fetch": 0}}]}], "left_out": {"unmet": 3, "not_computed": 0}});
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

    #[test]
    fn what_is_under_another_name_is_not_known() {
        let counts = json!({"method": "user", "ended": true, "threads_not_followed": 0, "forks_not_followed": 0,
            "programs_not_followed": 0, "unwritten_bytes": 0, "unwritten_mappings": 0, "left_out": {}, "notes": [],
            "vcpus": [{"references": {"load": 9, "store": 0, "fetch": 0},
                "models": [{"misses": {"load": 0, "store": 0, "fetch": 0}}]}]});
        assert!(account(&counts, &Read::default()).is_whole());
        for key in counts.as_object().unwrap().keys() {
            let mut counts = counts.clone();
            let value = counts.as_object_mut().unwrap().remove(key).unwrap();
            counts[format!("{key}_of_another")] = value;
            assert!(!account(&counts, &Read::default()).is_whole(), "{key}");
        }
        let mut kinds = counts.clone();
        kinds["vcpus"][0]["models"][0]["misses"] = json!({"load": 0, "stores": 3, "fetch": 0});
        assert_eq!(account(&kinds, &Read::default()).count(Fate::Lost, "misses"), None);
    }
}
