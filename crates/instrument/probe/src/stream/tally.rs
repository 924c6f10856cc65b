// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts that a probe keeps in the kernel instead of records: hits by keys, histograms of values, and sums and other
//! aggregates of them.
//!
//! A cell holds a count, then for each histogram a word for values that could not be computed, a word for their sum,
//! and its slots, then the words of each [`Aggregate`]. Without keys there is one cell per CPU; with keys, one per combination of their values.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;
use crate::stream::Item;
use crate::stream::aggregate::{Aggregate, Aggregated, Function};

/// Maximum size of all keys together, in bytes: they lie on the program's stack.
pub const LONGEST_KEY: u32 = 256;
/// Maximum of slots in a linear histogram.
const MOST_STEPS: u64 = 1000;
/// Maximum of histograms per probe.
pub const MOST_HISTOGRAMS: usize = 8;
/// Maximum of aggregates per probe.
pub const MOST_AGGREGATES: usize = 16;
/// The slot of 0 in a histogram by powers of two. Positive values are above it, negative ones below.
pub const ZERO: u32 = 64;
/// Number of slots in a histogram by powers of two.
const POWERS: u32 = 129;

/// Definition of a probe's counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// The keys. They are laid out one after the other, as in a record.
    pub keys: Vec<Item>,
    /// The histograms, besides the count.
    pub histograms: Vec<Histogram>,
    /// Sums and other functions of values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aggregates: Vec<Aggregate>,
}

/// A histogram of an expression's values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The expression.
    pub name: String,
    /// Its type in C.
    #[serde(rename = "type")]
    pub ty: String,
    /// True if values are signed.
    pub signed: bool,
    /// The slots.
    pub scale: Scale,
}

/// Division of values into slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// One slot from each power of two to the next.
    Log2,
    /// One slot below `min`, equal steps up to `max` (exclusive), and one above.
    Linear {
        /// Start of the first step.
        min: i64,
        /// End of the last step, exclusive.
        max: i64,
        /// Width of each.
        step: u64,
    },
}

impl Scale {
    /// Parses `EXPR,MIN,MAX,STEP`: returns the expression and the scale.
    pub fn linear(text: &str) -> Result<(&str, Self), Error> {
        let parsed = || {
            let mut parts = text.rsplitn(4, ',');
            let mut number = || parts.next()?.trim().parse::<i64>().ok();
            let (step, max, min) = (number()?, number()?, number()?);
            let scale = Self::Linear { min, max, step: u64::try_from(step).ok()? };
            Some((parts.next()?.trim(), scale))
        };
        let what =
            || format!("`{text}`: expected EXPR,MIN,MAX,STEP with numbers, such as `count,0,4096,512`");
        let (expression, scale) = parsed().ok_or_else(|| Error::Cannot(what()))?;
        match scale.checked() {
            Ok(()) => Ok((expression, scale)),
            Err(why) => Err(Error::Cannot(format!("`{text}`: {why}"))),
        }
    }

    /// Checks the limits. The error is the reason.
    pub fn checked(&self) -> Result<(), String> {
        match *self {
            Self::Log2 => Ok(()),
            Self::Linear { min, max, step } if step == 0 || min >= max => {
                Err("MIN must be below MAX, and STEP above 0".to_owned())
            }
            Self::Linear { .. } if self.steps() > MOST_STEPS => {
                Err(format!("{} steps, a histogram has up to {MOST_STEPS}", self.steps()))
            }
            Self::Linear { .. } => Ok(()),
        }
    }

    fn steps(&self) -> u64 {
        match *self {
            Self::Log2 => 0,
            Self::Linear { min, max, step } => max.abs_diff(min).div_ceil(step.max(1)),
        }
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        match self {
            Self::Log2 => POWERS,
            Self::Linear { .. } => self.steps() as u32 + 2,
        }
    }

    /// The first and the last value of a slot; `None` where it is unbounded.
    pub fn range(&self, slot: u32) -> (Option<i128>, Option<i128>) {
        match *self {
            Self::Log2 => match slot.checked_sub(ZERO) {
                Some(0) => (Some(0), Some(0)),
                Some(above) => (Some(1 << (above - 1)), Some((1 << above) - 1)),
                None => (Some(1 - (1 << (ZERO - slot))), Some(-(1 << (ZERO - slot - 1)))),
            },
            Self::Linear { min, max, step } => {
                let (min, max, steps) = (i128::from(min), i128::from(max), i128::from(self.slots()) - 2);
                match i128::from(slot) {
                    0 => (None, Some(min - 1)),
                    n if n > steps => (Some(max), None),
                    n => {
                        let from = min + (n - 1) * i128::from(step);
                        (Some(from), Some((from + i128::from(step)).min(max) - 1))
                    }
                }
            }
        }
    }

    /// The slot of a value, as the program in the kernel computes it.
    pub fn slot(&self, value: i128) -> u32 {
        match *self {
            Self::Log2 if value == 0 => ZERO,
            Self::Log2 => {
                let power = value.unsigned_abs().ilog2().min(63);
                if value > 0 { ZERO + 1 + power } else { ZERO - 1 - power }
            }
            Self::Linear { min, .. } if value < i128::from(min) => 0,
            Self::Linear { max, .. } if value >= i128::from(max) => self.slots() - 1,
            Self::Linear { min, step, .. } => 1 + ((value - i128::from(min)) / i128::from(step)) as u32,
        }
    }
}

impl Tally {
    /// Size of a cell, bytes.
    pub fn cell_bytes(&self) -> u32 {
        self.aggregates_at() + self.aggregates.iter().map(|a| a.bytes()).sum::<u32>()
    }

    fn aggregates_at(&self) -> u32 {
        8 + self.histograms.iter().map(|h| h.bytes()).sum::<u32>()
    }

    /// Returns true if any aggregate is the latest value: all CPUs then need one cell.
    pub fn keeps_latest(&self) -> bool {
        self.aggregates.iter().any(|aggregate| aggregate.function == Function::Latest)
    }

    /// Offset of each aggregate in a cell.
    pub fn aggregate_places(&self) -> impl Iterator<Item = (u32, &Aggregate)> {
        self.aggregates.iter().scan(self.aggregates_at(), |at, aggregate| {
            let here = *at;
            *at += aggregate.bytes();
            Some((here, aggregate))
        })
    }

    /// Adds another CPU's cell to these words.
    pub fn combine(&self, into: &mut [u64], cell: &[u64]) {
        let aggregates = self.aggregates_at() as usize / 8;
        for (sum, word) in into.iter_mut().zip(cell).take(aggregates) {
            *sum = sum.wrapping_add(*word);
        }
        for (at, aggregate) in self.aggregate_places() {
            let (from, to) = (at as usize / 8, (at + aggregate.bytes()) as usize / 8);
            let (Some(into), Some(cell)) = (into.get_mut(from..to), cell.get(from..to)) else { return };
            into[0] = into[0].wrapping_add(cell[0]);
            aggregate.combine(&mut into[1..], &cell[1..]);
        }
    }

    /// Offset of each histogram in a cell.
    pub fn places(&self) -> impl Iterator<Item = (u32, &Histogram)> {
        self.histograms.iter().scan(8, |at, histogram| {
            let here = *at;
            *at += histogram.bytes();
            Some((here, histogram))
        })
    }
}

impl Histogram {
    /// Size in a cell, bytes: values that could not be computed, sum, slots.
    pub fn bytes(&self) -> u32 {
        16 + 8 * self.scale.slots()
    }

    /// A value, or a sum of values, as a signed or unsigned number.
    pub fn number(&self, bits: u64) -> i128 {
        if self.signed { i128::from(bits.cast_signed()) } else { i128::from(bits) }
    }
}

/// The counts of a probe.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Rows by keys, the most frequent first; without keys one row.
    pub rows: Vec<Row>,
}

/// The counts of one combination of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The keys' values.
    pub key: Vec<Value>,
    /// Number of hits.
    pub count: u64,
    /// The histograms, in the order of their definition.
    pub histograms: Vec<Filled>,
    /// The aggregates, in the order of their definition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aggregates: Vec<Aggregated>,
}

/// The contents of a histogram.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// Number of values that could not be computed.
    pub failed: u64,
    /// Sum of the other values, modulo 2^64.
    pub sum: u64,
    /// Non-empty slots, with the number of values in each.
    pub slots: Vec<(u32, u64)>,
}

impl Filled {
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.slots.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }
}

impl Row {
    /// Builds a row from a cell's words, which may be those of several CPUs, [combined](Tally::combine).
    pub fn of(tally: &Tally, key: Vec<Value>, words: &[u64]) -> Self {
        let word = |at: u32| words.get(at as usize / 8).copied().unwrap_or(0);
        let filled = |(at, histogram): (u32, &Histogram)| {
            let slots = (0..histogram.scale.slots()).map(|slot| (slot, word(at + 16 + 8 * slot)));
            let slots = slots.filter(|(_, n)| *n > 0).collect();
            Filled { failed: word(at), sum: word(at + 8), slots }
        };
        let count = word(0);
        let aggregated = |(at, aggregate): (u32, &Aggregate)| {
            let high = if aggregate.bytes() > 16 { word(at + 16) } else { 0 };
            let failed = word(at);
            Aggregated { failed, values: count.saturating_sub(failed), low: word(at + 8), high }
        };
        Self {
            key,
            count,
            histograms: tally.places().map(filled).collect(),
            aggregates: tally.aggregate_places().map(aggregated).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_of_too_many_steps_is_refused() {
        assert!(Scale::linear("n,0,1000,1").is_ok());
        let Err(refused) = Scale::linear("n,0,1001,1") else { panic!("1001 steps are taken") };
        assert!(refused.to_string().contains("1001 steps, a histogram has up to 1000"), "{refused}");
    }

    #[test]
    fn slots_hold_their_values() {
        let linear = Scale::linear("a[1, 2], -10, 15, 10").expect("a scale");
        assert_eq!(linear.0, "a[1, 2]");
        assert_eq!(linear.1.slots(), 5);
        assert_eq!(linear.1.range(3), (Some(10), Some(14)));
        for scale in [Scale::Log2, linear.1] {
            let edges = [0, 1, 2, 3, 4, 7, 8, 9, 10, 14, 15, 19, 1 << 40, i128::from(i64::MAX)];
            let all = edges.iter().flat_map(|n| [*n, -*n]).chain([i128::from(i64::MIN), u64::MAX.into()]);
            for value in all {
                let (from, to) = scale.range(scale.slot(value));
                assert!(from.is_none_or(|from| from <= value), "{scale:?} {value}");
                assert!(to.is_none_or(|to| value <= to), "{scale:?} {value}");
            }
        }
        for bad in ["a,1,2", "a,1,1,1", "a,0,10,0", "a,0,2000,1", "a,x,2,1", "a,0,10,-1"] {
            assert!(Scale::linear(bad).is_err(), "{bad}");
        }
    }
}
