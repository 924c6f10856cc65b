// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of durations: the reader's counts beside the recorder's.
//!
//! In: what was read ([`Facts`]), what became of it ([`Counts`]), what the recorder wrote into the manifest. Out: an
//! [`Account`].

use kprism_profile::{Counts, Times};
use kprism_store::{Account, Fate, Manifest};

use super::Facts;

/// Adds up what is known of a recording.
pub(super) fn account(manifest: &Manifest, times: &Times, facts: &Facts) -> Account {
    let counts = &times.counts;
    let gapped = times.funcs.iter().map(|func| func.gapped).sum::<u64>();
    let account = Account::new().with(Fate::Seen, facts.unit(), facts.events);
    let account = match facts.others {
        Some(others) => account.with(Fate::Seen, "calls of tasks that were not asked for, left out", others),
        None => account,
    };
    let account = account.with(Fate::Kept, "calls", counts.calls);
    let account = if facts.of_calls { by_bpf(account, manifest) } else { by_ftrace(account, counts, facts) };
    let mut account = account;
    account.entries.extend(of_trace(facts).entries);
    let account = account
        .with(Fate::Guessed, "calls whose callers are not known", counts.uprooted)
        .with(Fate::Guessed, "calls across a jump of the clock", counts.clock_jumps)
        .with(Fate::Guessed, "calls shorter than what is in them", counts.overfull)
        .with(Fate::Guessed, "calls in which events were lost", gapped)
        .at(Fate::Guessed, "facts about the trace", facts.guesses.len() as u64, facts.guesses.clone());
    // Limits that few recordings reach: named by those that do.
    let limits = [
        (Fate::Seen, "calls too short for the timeline, left out", counts.slices_dropped),
        (Fate::Lost, "task switches for which timelines have no room", counts.switches_dropped),
        (Fate::Guessed, "calls with more waits than were kept", counts.waits_forgotten),
    ];
    let account =
        limits.into_iter().filter(|l| l.2 > 0).fold(account, |of, (fate, unit, n)| of.with(fate, unit, n));
    // Nobody knows them: they are not 0.
    let account = [facts.unmeasured, facts.unrecorded]
        .into_iter()
        .flatten()
        .fold(account, |account, what| account.with(Fate::Lost, what, None));
    let cost = manifest.durations.tracing_cost;
    match cost {
        // Calls that the kernel dropped for being short cost time too, and nobody counted them.
        Some(cost) if cost.dropped => account.with(Fate::Guessed, "tracing's share of the times", None),
        _ => account,
    }
}

/// What the trace itself had of damage, for a reader that ends early or measures nothing.
pub(super) fn of_trace(facts: &Facts) -> Account {
    Account::new()
        .at(Fate::NotUnderstood, "places in the trace", facts.faults, facts.fault_places.clone())
        .at(Fate::NotUnderstood, "formats of events", facts.formats.len() as u64, facts.formats.clone())
}

fn by_ftrace(account: Account, counts: &Counts, facts: &Facts) -> Account {
    account
        .with(Fate::Lost, "events", facts.lost_events(counts))
        .with(Fate::Lost, "places where events were lost uncounted", counts.lost_uncounted)
        .with(Fate::Lost, "calls too deep for the tracer", facts.too_deep())
        .with(Fate::Lost, "calls without an end", counts.unfinished)
        .with(Fate::Lost, "ends without a call", counts.orphans)
        .with(Fate::Guessed, "calls rebuilt from their ends", counts.rebuilt)
}

/// Functions and calls for which the condition of a recording could not be computed.
fn by_condition(account: Account, manifest: &Manifest) -> Account {
    let facts = manifest.option_facts();
    if facts.condition.is_none() {
        return account;
    }
    let without = facts.without_condition;
    let places = without.iter().map(|(name, why)| format!("{name} ({why})"));
    let errors = facts.condition_errors.map(|all| all.into_values().fold(0, u64::saturating_add));
    account
        .at(Fate::Lost, "functions without the condition's names", without.len() as u64, places.collect())
        .with(Fate::Lost, "calls whose condition could not be computed", errors)
}

/// The programs' own counts. A recorder that was killed wrote none of them.
fn by_bpf(account: Account, manifest: &Manifest) -> Account {
    let losses = manifest.durations.losses;
    let unended = losses.map(|l| l.unfinished.saturating_add(l.abandoned));
    let left_out = manifest.option_facts().left_out;
    let places = left_out.iter().map(|(name, why)| format!("{name} ({why})"));
    let account = by_condition(account, manifest);
    account
        .with(Fate::Lost, "calls for which the ring had no room", losses.map(|l| l.lost))
        .with(Fate::Lost, "calls beyond what a task may have open", losses.map(|l| l.overflowed))
        .with(Fate::Lost, "entries or returns missed by the kernel", losses.map(|l| l.missed))
        .with(Fate::Lost, "calls without an end", unended)
        .with(Fate::Lost, "ends without a call", losses.map(|l| l.orphans))
        .at(Fate::Lost, "functions left out", left_out.len() as u64, places.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_profile::{FuncTimes, TracingCost};
    use kprism_store::{CallLosses, RunKind};
    use serde_json::json;

    fn manifest() -> Manifest {
        Manifest::new(RunKind::Host, 1)
    }

    #[test]
    fn the_greater_count_of_lost_events_is_told() {
        let mut times = Times::default();
        times.counts.lost = 116_351;
        let facts = Facts { overwritten: Some(143_531), ..Facts::default() };
        let told = account(&manifest(), &times, &facts);
        assert_eq!(told.count(Fate::Lost, "events"), Some(143_531));
        assert!(!told.is_whole());
        let facts = Facts { overwritten: Some(0), ..Facts::default() };
        assert_eq!(account(&manifest(), &times, &facts).count(Fate::Lost, "events"), Some(116_351));
    }

    #[test]
    fn limits_that_were_reached_are_told() {
        let facts = Facts { overwritten: Some(0), ..Facts::default() };
        let mut times = Times::default();
        times.counts.slices_dropped = 3;
        assert!(account(&manifest(), &times, &facts).is_whole(), "a shorter timeline, and the same sums");
        (times.counts.switches_dropped, times.counts.waits_forgotten) = (2, 1);
        let told = account(&manifest(), &times, &facts);
        assert_eq!(told.count(Fate::Seen, "calls too short for the timeline, left out"), Some(3));
        assert_eq!(told.count(Fate::Lost, "task switches for which timelines have no room"), Some(2));
        assert_eq!(told.count(Fate::Guessed, "calls with more waits than were kept"), Some(1));
    }

    #[test]
    fn what_nobody_counted_is_not_known() {
        let told = account(&manifest(), &Times::default(), &Facts::default());
        assert!(told.to_text().contains("events not known"), "{}", told.to_text());
        let facts = Facts { overwritten: Some(0), ..Facts::default() };
        assert!(account(&manifest(), &Times::default(), &facts).is_whole());
    }

    #[test]
    fn durations_that_a_text_lacks_are_not_known() {
        let facts =
            Facts { overwritten: Some(0), unmeasured: Some("durations of calls"), ..Facts::default() };
        let told = account(&manifest(), &Times::default(), &facts);
        assert!(told.to_text().contains("durations of calls not known"), "{}", told.to_text());
        assert!(!told.is_whole());
    }

    #[test]
    fn a_threshold_hides_the_share_of_tracing() {
        let mut manifest = manifest();
        manifest.durations.tracing_cost =
            Some(TracingCost { call_ns: 500, dropped: true, ..TracingCost::default() });
        let facts = Facts { overwritten: Some(0), ..Facts::default() };
        let told = account(&manifest, &Times::default(), &facts);
        assert!(told.to_text().contains("tracing's share of the times not known"), "{}", told.to_text());
        manifest.durations.tracing_cost = Some(TracingCost { call_ns: 500, ..TracingCost::default() });
        assert!(account(&manifest, &Times::default(), &facts).is_whole());
    }

    #[test]
    fn calls_whose_condition_could_not_be_computed_are_lost() {
        let mut manifest = manifest();
        let facts = Facts { overwritten: Some(0), ..Facts::default() };
        let told = |manifest: &Manifest| by_bpf(account(manifest, &Times::default(), &facts), manifest);
        const CALLS: &str = "calls whose condition could not be computed";
        assert_eq!(told(&manifest).count(Fate::Lost, CALLS), None);
        manifest.options.insert("condition".into(), json!("*p == 3"));
        assert!(
            told(&manifest).to_text().contains(&format!("{CALLS} not known")),
            "{}",
            told(&manifest).to_text()
        );
        manifest.enter_filtered(9, [("bad read".to_owned(), 4), ("division by zero".to_owned(), 1)]);
        manifest.options.insert("without_condition".into(), json!([["vfs_fsync", "no `count`"]]));
        let told = told(&manifest);
        assert_eq!(told.count(Fate::Lost, CALLS), Some(5));
        assert_eq!(told.count(Fate::Lost, "functions without the condition's names"), Some(1));
    }

    #[test]
    fn functions_and_calls_that_bpf_left_out_are_lost() {
        let mut manifest = manifest();
        manifest.durations.losses =
            Some(CallLosses { lost: 1, overflowed: 2, missed: 3, orphans: 4, unfinished: 5, abandoned: 6 });
        let left_out = json!([{"name": "do_exit", "why": "it never returns"}]);
        manifest.options.insert("left_out".into(), left_out);
        let times =
            Times { funcs: vec![FuncTimes { gapped: 7, ..FuncTimes::default() }], ..Times::default() };
        let facts = Facts { of_calls: true, ..Facts::default() };
        let text = account(&manifest, &times, &facts).to_text();
        assert_eq!(
            text,
            "  seen            0 calls\n\
             \u{20} kept            0 calls\n\
             \u{20} lost            1 call for which the ring had no room, 2 calls beyond what a task may have open,\n\
             \u{20}                 3 entries or returns missed by the kernel, 11 calls without an end, 4 ends without a call,\n\
             \u{20}                 1 function left out\n\
             \u{20}                   functions left out: do_exit (it never returns)\n\
             \u{20} not understood  0 places in the trace, 0 formats of events\n\
             \u{20} guessed         0 calls whose callers are not known, 0 calls across a jump of the clock, \
             0 calls shorter than what is in them,\n\
             \u{20}                 7 calls in which events were lost, 0 facts about the trace\n"
        );
        manifest.durations.losses = None;
        let text = account(&manifest, &times, &facts).to_text();
        assert!(text.contains("calls for which the ring had no room not known"), "{text}");
    }
}
