// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a probe counts in the kernel instead of leaving a record: how often, by keys; and histograms of values.
//!
//! A cell has a count, then for each histogram a word of values that could not be computed, a word of their sum, and its
//! slots. Without keys there is one cell for each CPU, with keys one for each combination of their values.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;
use crate::stream::Item;

/// Bytes of all keys together, at most: they lie on the program's stack.
pub const LONGEST_KEY: u32 = 256;
/// Slots of a histogram with steps, at most.
const MOST_STEPS: u64 = 1000;
/// Histograms of one probe, at most.
pub const MOST_HISTOGRAMS: usize = 8;
/// The slot of 0, where slots are powers of two: positive values are above it, negative ones below.
pub const ZERO: u32 = 64;
/// Slots of powers of two.
const POWERS: u32 = 129;

/// What is counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// By what. They lie one after the other, as in a record.
    pub keys: Vec<Item>,
    /// Of what, besides how often.
    pub histograms: Vec<Histogram>,
}

/// A histogram of an expression's values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The expression.
    pub name: String,
    /// Its type in C.
    #[serde(rename = "type")]
    pub ty: String,
    /// Whether values have a sign.
    pub signed: bool,
    /// What a slot holds.
    pub scale: Scale,
}

/// What the slots of a histogram are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// From each power of two to the next.
    Log2,
    /// Below `min`, steps up to but not with `max`, and above.
    Linear {
        /// Where the first step begins.
        min: i64,
        /// Where the last has ended.
        max: i64,
        /// Width of each.
        step: u64,
    },
}

impl Scale {
    /// Of `EXPR,MIN,MAX,STEP`: what is before the numbers, and they.
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

    /// Why it is none.
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

    /// How many there are.
    pub fn slots(&self) -> u32 {
        match self {
            Self::Log2 => POWERS,
            Self::Linear { .. } => self.steps() as u32 + 2,
        }
    }

    /// The values of a slot: the first, and the last; none is without end.
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

    /// The slot of a value: what the program in the kernel computes.
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
    /// Bytes of a cell.
    pub fn cell_bytes(&self) -> u32 {
        8 + self.histograms.iter().map(|h| h.bytes()).sum::<u32>()
    }

    /// Where each histogram is in a cell.
    pub fn places(&self) -> impl Iterator<Item = (u32, &Histogram)> {
        self.histograms.iter().scan(8, |at, histogram| {
            let here = *at;
            *at += histogram.bytes();
            Some((here, histogram))
        })
    }
}

impl Histogram {
    /// Bytes in a cell: values that could not be computed, sum, slots.
    pub fn bytes(&self) -> u32 {
        16 + 8 * self.scale.slots()
    }

    /// A sum of values, or one, as a number.
    pub fn number(&self, bits: u64) -> i128 {
        if self.signed { i128::from(bits.cast_signed()) } else { i128::from(bits) }
    }
}

/// What was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// By keys, the most frequent first; without keys one.
    pub rows: Vec<Row>,
}

/// What was counted of one combination of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The keys' values.
    pub key: Vec<Value>,
    /// How often.
    pub count: u64,
    /// By histogram.
    pub histograms: Vec<Filled>,
}

/// What is in a histogram.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// Values that could not be computed.
    pub failed: u64,
    /// The others' sum, modulo 2^64.
    pub sum: u64,
    /// Slots that are not empty, and how many values each has.
    pub slots: Vec<(u32, u64)>,
}

impl Filled {
    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.slots.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }
}

impl Row {
    /// Of a cell's words, which may be those of several CPUs, summed.
    pub fn of(tally: &Tally, key: Vec<Value>, words: &[u64]) -> Self {
        let word = |at: u32| words.get(at as usize / 8).copied().unwrap_or(0);
        let filled = |(at, histogram): (u32, &Histogram)| {
            let slots = (0..histogram.scale.slots()).map(|slot| (slot, word(at + 16 + 8 * slot)));
            let slots = slots.filter(|(_, n)| *n > 0).collect();
            Filled { failed: word(at), sum: word(at + 8), slots }
        };
        Self { key, count: word(0), histograms: tally.places().map(filled).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
