// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much of a function's time is the tracer's own.
//!
//! In: what tracing cost where it was recorded ([`Cost`], from the run's manifest), and a function's [`Row`]. Out: ns
//! of its total. Where every call was kept, they are counted: each call below a function adds all that a traced call
//! costs, its own what lies between the two times. Where only long calls were kept, those that were dropped cost as
//! much and are not there to be counted: then the time on a CPU is taken to be as much longer as a known path was.

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
    /// The tracer's own part of a function's total, ns.
    #[must_use]
    pub fn of(&self, row: &Row) -> u64 {
        let on_cpu = row.total_ns.saturating_sub(row.off_ns).saturating_sub(row.irq_ns);
        let inside = self.inside_ns.unwrap_or(0).saturating_mul(row.outermost);
        let counted = self.call_ns.saturating_mul(row.below).saturating_add(inside);
        let guessed = match self.slowdown {
            Some(factor) if self.dropped && factor > 1.0 => (on_cpu as f64 * (1.0 - 1.0 / factor)) as u64,
            _ => 0,
        };
        counted.max(guessed).min(row.total_ns)
    }

    /// The same, in percent of the total.
    #[must_use]
    pub fn percent(&self, row: &Row) -> f64 {
        if row.total_ns == 0 { 0.0 } else { self.of(row) as f64 * 100.0 / row.total_ns as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_costs_all_and_the_call_itself_a_part() {
        let cost = Cost { call_ns: 1400, inside_ns: Some(300), slowdown: Some(10.0), dropped: false };
        let row = Row { calls: 2, outermost: 2, below: 10, total_ns: 100_000, ..Row::default() };
        assert_eq!(cost.of(&row), 14_600);
        assert_eq!(cost.of(&Row { total_ns: 1000, ..row }), 1000, "never more than there is");
    }

    #[test]
    fn what_was_dropped_slows_time_on_a_cpu() {
        let cost = Cost { call_ns: 462, inside_ns: None, slowdown: Some(10.0), dropped: true };
        let row = Row { calls: 1, outermost: 1, total_ns: 3_000_000, off_ns: 2_000_000, ..Row::default() };
        assert_eq!(cost.of(&row), 900_000);
        assert!((cost.percent(&row) - 30.0).abs() < 1e-9);
        assert_eq!(cost.percent(&Row::default()), 0.0);
    }
}
