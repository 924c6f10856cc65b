// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much of a function's time is the tracer's own.
//!
//! In: what tracing cost where it was recorded ([`Cost`], from the run's manifest), and a function's [`Row`]. Out: ns
//! of its total. Where every call was kept, they are counted: each call below a function adds all that a traced call
//! costs, its own what lies between the two times. Where only long calls were kept, those that were dropped cost as
//! much and nobody counted them: how much of a total is tracing is then not known, only what it would be for a path
//! of many calls such as the one that was measured. Work that calls nothing is not slowed down at all.

use serde::{Deserialize, Serialize};

use crate::rows::Row;

/// What tracing adds, as measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// To each traced call, ns.
    pub call_ns: u64,
    /// Of that, between the two times that are recorded.
    pub inside_ns: Option<u64>,
    /// A path through many functions takes so many times as long.
    pub slowdown: Option<f64>,
    /// Calls were dropped in the kernel for being short.
    pub dropped: bool,
}

/// From here on, in percent, an average says more about the tracer than is good.
pub const INFLATED: f64 = 20.0;

impl Cost {
    /// The tracer's own part of a function's total, ns; nothing where it cannot be known.
    #[must_use]
    pub fn of(&self, row: &Row) -> Option<u64> {
        (!self.dropped).then(|| self.counted(row))
    }

    /// The same, in percent of the total.
    #[must_use]
    pub fn percent(&self, row: &Row) -> Option<f64> {
        self.of(row).map(|ns| percent(ns, row))
    }

    /// The tracer's part if the function calls as many others as the path that was measured, ns; where it is known, that.
    #[must_use]
    pub fn as_path(&self, row: &Row) -> u64 {
        let on_cpu = row.total_ns.saturating_sub(row.off_ns).saturating_sub(row.irq_ns);
        let guessed = match self.slowdown {
            Some(factor) if self.dropped && factor > 1.0 => (on_cpu as f64 * (1.0 - 1.0 / factor)) as u64,
            _ => 0,
        };
        self.counted(row).max(guessed).min(row.total_ns)
    }

    /// Whether a function's total says more about the tracer than is good.
    #[must_use]
    pub fn mark(&self, row: &Row) -> Mark {
        match (self.percent(row), percent(self.as_path(row), row)) {
            (Some(known), _) if known >= INFLATED => Mark::Inflated,
            (None, maybe) if maybe >= INFLATED => Mark::Perhaps,
            _ => Mark::Sound,
        }
    }

    fn counted(&self, row: &Row) -> u64 {
        let inside = self.inside_ns.unwrap_or(0).saturating_mul(row.outermost);
        self.call_ns.saturating_mul(row.below).saturating_add(inside).min(row.total_ns)
    }
}

/// What is to be thought of a function's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Little of it is the tracer's.
    Sound,
    /// [`INFLATED`] percent and more are.
    Inflated,
    /// They may be: it depends on how much it calls.
    Perhaps,
}

impl Mark {
    /// As tables show it.
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
        let cost = Cost { call_ns: 1400, inside_ns: Some(300), slowdown: Some(10.0), dropped: false };
        let row = Row { calls: 2, outermost: 2, below: 10, total_ns: 100_000, ..Row::default() };
        assert_eq!((cost.of(&row), cost.as_path(&row), cost.mark(&row)), (Some(14_600), 14_600, Mark::Sound));
        let short = Row { total_ns: 1000, ..row };
        assert_eq!(
            (cost.of(&short), cost.mark(&short)),
            (Some(1000), Mark::Inflated),
            "never more than there is"
        );
    }

    #[test]
    fn what_was_dropped_is_not_known() {
        let cost = Cost { call_ns: 462, inside_ns: None, slowdown: Some(10.0), dropped: true };
        let row = Row { calls: 1, outermost: 1, total_ns: 3_000_000, off_ns: 2_000_000, ..Row::default() };
        assert_eq!((cost.of(&row), cost.percent(&row)), (None, None));
        // A path of many calls would have made 0.1 ms of work last 1 ms.
        assert_eq!((cost.as_path(&row), cost.mark(&row)), (900_000, Mark::Perhaps));
        let waits = Row { off_ns: 2_900_000, ..row };
        assert_eq!((cost.as_path(&waits), cost.mark(&waits)), (90_000, Mark::Sound));
        assert_eq!(cost.mark(&Row::default()), Mark::Sound);
    }
}
