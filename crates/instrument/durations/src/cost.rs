// SPDX-License-Identifier: MIT OR Apache-2.0
//! Estimates the tracer's share of a function's time.
//!
//! Input: the measured cost of tracing where it was recorded ([`TracingCost`], from the run's manifest), and a function's
//! [`Row`]. Output: ns of its total. If every call was kept, calls can be counted: each call below a function adds the
//! full cost of a traced call, the function's own call adds the part between its two timestamps. If only long calls
//! were kept, the dropped ones cost as much but were not counted. The share is then unknown; only the share on a path
//! of many calls, such as the measured one, can be given. Code that calls nothing is not slowed down at all.

use kprism_profile::TracingCost;

use crate::rows::Row;

/// Share of the tracer, in percent, from which a function's average is marked as unreliable.
pub const INFLATED: f64 = 20.0;

/// The tracer's share of a function's total, ns; `None` if unknown.
#[must_use]
pub fn known(cost: &TracingCost, row: &Row) -> Option<u64> {
    (!cost.dropped).then(|| counted(cost, row))
}

/// The tracer's share in percent of the total; `None` if unknown.
#[must_use]
pub fn known_percent(cost: &TracingCost, row: &Row) -> Option<f64> {
    known(cost, row).map(|ns| percent(ns, row))
}

/// The tracer's share in ns if it is known; else the share if the function makes as many calls as the measured
/// path.
#[must_use]
pub fn as_path(cost: &TracingCost, row: &Row) -> u64 {
    let on_cpu = row.total_ns.saturating_sub(row.off_ns).saturating_sub(row.irq_ns);
    let guessed = match cost.slowdown {
        Some(factor) if cost.dropped && factor > 1.0 => (on_cpu as f64 * (1.0 - 1.0 / factor)) as u64,
        _ => 0,
    };
    counted(cost, row).max(guessed).min(row.total_ns)
}

/// Rates the reliability of a function's total.
#[must_use]
pub fn mark(cost: &TracingCost, row: &Row) -> Mark {
    match (known_percent(cost, row), percent(as_path(cost, row), row)) {
        (Some(known), _) if known >= INFLATED => Mark::Inflated,
        (None, maybe) if maybe >= INFLATED => Mark::Perhaps,
        _ => Mark::Sound,
    }
}

fn counted(cost: &TracingCost, row: &Row) -> u64 {
    let inside = cost.inside_ns.unwrap_or(0).saturating_mul(row.outermost);
    cost.call_ns.saturating_mul(row.below).saturating_add(inside).min(row.total_ns)
}

/// Reliability of a function's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The tracer's share is small.
    Sound,
    /// The tracer's share is [`INFLATED`] percent or more.
    Inflated,
    /// The share may be that large, depending on the number of calls.
    Perhaps,
}

impl Mark {
    /// The mark as tables show it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Mark::Sound => "",
            Mark::Inflated => "!",
            Mark::Perhaps => "?",
        }
    }
}

fn percent(ns: u64, row: &Row) -> f64 {
    if row.total_ns == 0 { 0.0 } else { ns as f64 * 100.0 / row.total_ns as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_costs_all_and_the_call_itself_a_part() {
        let cost = TracingCost { call_ns: 1400, inside_ns: Some(300), slowdown: Some(10.0), dropped: false };
        let row = Row { calls: 2, outermost: 2, below: 10, total_ns: 100_000, ..Row::default() };
        assert_eq!(
            (known(&cost, &row), as_path(&cost, &row), mark(&cost, &row)),
            (Some(14_600), 14_600, Mark::Sound)
        );
        let short = Row { total_ns: 1000, ..row };
        assert_eq!(
            (known(&cost, &short), mark(&cost, &short)),
            (Some(1000), Mark::Inflated),
            "never more than there is"
        );
    }

    #[test]
    fn what_was_dropped_is_not_known() {
        let cost = TracingCost { call_ns: 462, inside_ns: None, slowdown: Some(10.0), dropped: true };
        let row = Row { calls: 1, outermost: 1, total_ns: 3_000_000, off_ns: 2_000_000, ..Row::default() };
        assert_eq!((known(&cost, &row), known_percent(&cost, &row)), (None, None));
        // A path of many calls would have made 0.1 ms of work last 1 ms.
        assert_eq!((as_path(&cost, &row), mark(&cost, &row)), (900_000, Mark::Perhaps));
        let waits = Row { off_ns: 2_900_000, ..row };
        assert_eq!((as_path(&cost, &waits), mark(&cost, &waits)), (90_000, Mark::Sound));
        assert_eq!(mark(&cost, &Row::default()), Mark::Sound);
    }
}
