// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the numbers of a rule mean the same on both sides, and what the rule says.
//!
//! In: a rule, and both sides. Out: why there is no verdict, or nothing. What was recorded is that of
//! [`kprism_store::Recorded`], as `kprism diff` tells it.

use kprism_profile::units::printable;
use kprism_store::recorded::{BearsOn, CLOCK};
use kprism_store::{Difference, Instrument, Recorded};

use crate::metric::{Metric, Unit};
use crate::rule::Rule;
use crate::verdict::Side;

/// Differences named in a reason.
const NAMED: usize = 3;

/// Why a rule cannot be judged; `None` if it can.
pub(crate) fn why_not(rule: &Rule, old: Option<&Side>, new: &Side) -> Option<String> {
    let metric = &rule.metric;
    let old = old.filter(|_| rule.is_relative());
    let all = || old.into_iter().chain([new]).flat_map(|side| &side.summaries);
    let recorded: Vec<&Recorded> = all().filter_map(|summary| summary.recorded.as_ref()).collect();
    if metric.kind.unit == Unit::Ns
        && let Some(why) = recorded.iter().find_map(|recorded| no_time(recorded))
    {
        return Some(why);
    }
    let (first, rest) = recorded.split_first()?;
    let differences = rest
        .iter()
        .map(|other| first.differences(other).into_iter().filter(|one| concerns(&one.part, metric)).collect())
        .find(|found: &Vec<Difference>| !found.is_empty())?;
    Some(format!("not the same was recorded: {}", named(&differences)))
}

/// Why a run's times are no nanoseconds.
fn no_time(recorded: &Recorded) -> Option<String> {
    match recorded.get(CLOCK)? {
        "none" => Some("the run has no times".to_owned()),
        clock if clock.ends_with(kprism_store::recorded::GUESSED) => {
            Some(format!("{}: its ticks are no nanoseconds", printable(clock)))
        }
        _ => None,
    }
}

/// Whether a metric depends on a part of what was recorded.
fn concerns(part: &str, metric: &Metric) -> bool {
    let of_misses = metric.kind.instrument == Instrument::Tlb;
    match BearsOn::of_part(part) {
        BearsOn::All => true,
        BearsOn::Times => metric.kind.unit == Unit::Ns,
        BearsOn::Misses => of_misses,
        BearsOn::FirstModel => of_misses && metric.argument.is_none(),
        BearsOn::Model(name) => of_misses && metric.argument.as_deref() == Some(name),
    }
}

/// The first of them in a line.
fn named(differences: &[Difference]) -> String {
    let side = |value: &Option<String>| value.as_deref().map_or_else(|| "none".to_owned(), printable);
    let one = |d: &Difference| format!("{}: {} → {}", printable(&d.part), side(&d.old), side(&d.new));
    let mut text = differences.iter().take(NAMED).map(one).collect::<Vec<_>>().join("; ");
    if differences.len() > NAMED {
        text += &format!("; and {} more", differences.len() - NAMED);
    }
    text
}
