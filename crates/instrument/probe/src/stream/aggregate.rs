// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums, least, greatest, mean and latest values that a probe keeps in the kernel, for each combination of its keys.
//!
//! Input: words of a cell, as the program in the kernel leaves them. Output: numbers. A cell is all zeros at first, and
//! those of several CPUs are combined, so the words hold what makes both simple:
//!
//! | function | words after that of failed values |
//! |---|---|
//! | sum, avg | the sum, 128 bits: no number of 64-bit values overflows it |
//! | min, max | the value, mapped so that the wanted one is the greatest unsigned number, and 0 stands for none |
//! | latest | the value; one cell for all CPUs |

use serde::{Deserialize, Serialize};

/// Function of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// Their sum.
    Sum,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// Their mean.
    Avg,
    /// The latest.
    Latest,
}

impl Function {
    /// All of them.
    pub const ALL: [Function; 5] =
        [Function::Sum, Function::Min, Function::Max, Function::Avg, Function::Latest];

    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Function::Sum => "sum",
            Function::Min => "min",
            Function::Max => "max",
            Function::Avg => "avg",
            Function::Latest => "latest",
        }
    }

    /// Number of words that hold its value.
    fn words(self) -> u32 {
        match self {
            Function::Sum | Function::Avg => 2,
            Function::Min | Function::Max | Function::Latest => 1,
        }
    }
}

/// Definition of an aggregate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregate {
    /// The function.
    pub function: Function,
    /// The expression.
    pub name: String,
    /// Its type in C.
    #[serde(rename = "type")]
    pub ty: String,
    /// True if values are signed.
    pub signed: bool,
}

/// The words of an aggregate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregated {
    /// Number of values that could not be computed, or not be entered because other CPUs entered theirs all the time.
    pub failed: u64,
    /// Number of the others.
    pub values: u64,
    /// The first word.
    pub low: u64,
    /// The upper half of a sum.
    #[serde(default)]
    pub high: u64,
}

/// The value of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A sum or one of the values.
    Whole(i128),
    /// A mean.
    Mean(f64),
}

impl Aggregate {
    /// The aggregate as it is shown, such as `sum(count)`.
    pub fn title(&self) -> String {
        format!("{}({})", self.function.name(), self.name)
    }

    /// Size in a cell, bytes: the word of failed values, then the value.
    pub fn bytes(&self) -> u32 {
        8 + 8 * self.function.words()
    }

    /// Bits that are flipped in a value before the greatest unsigned number is kept.
    pub fn flips(&self) -> u64 {
        let order = if self.signed { 1 << 63 } else { 0 };
        match self.function {
            Function::Max => order,
            Function::Min => !order,
            Function::Sum | Function::Avg | Function::Latest => 0,
        }
    }

    /// Combines the words of another cell, without the word of failed values, with these.
    pub fn combine(&self, into: &mut [u64], other: &[u64]) {
        match (self.function, into, other) {
            (Function::Sum | Function::Avg, [low, high], [a, b]) => {
                let carry;
                (*low, carry) = low.overflowing_add(*a);
                *high = high.wrapping_add(*b).wrapping_add(u64::from(carry));
            }
            (Function::Min | Function::Max, [word], [other]) => *word = (*word).max(*other),
            // There is one cell; those of other CPUs are 0.
            (Function::Latest, [word], [other]) => *word |= *other,
            _ => {}
        }
    }

    /// Its value; `None` if there was none.
    pub fn value(&self, found: &Aggregated) -> Option<Number> {
        if found.values == 0 {
            return None;
        }
        let number = |bits: u64| match self.signed {
            true => i128::from(bits.cast_signed()),
            false => i128::from(bits),
        };
        let sum = (u128::from(found.high) << 64 | u128::from(found.low)).cast_signed();
        Some(match self.function {
            Function::Sum => Number::Whole(sum),
            Function::Avg => Number::Mean(sum as f64 / found.values as f64),
            Function::Min | Function::Max => Number::Whole(number(found.low ^ self.flips())),
            Function::Latest => Number::Whole(number(found.low)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters a value into a cell, as the program in the kernel does.
    fn enter(aggregate: &Aggregate, words: &mut [u64], value: u64) {
        match aggregate.function {
            Function::Sum | Function::Avg => {
                let high = if aggregate.signed && value >> 63 == 1 { u64::MAX } else { 0 };
                aggregate.combine(words, &[value, high]);
            }
            Function::Min | Function::Max => words[0] = words[0].max(value ^ aggregate.flips()),
            Function::Latest => words[0] = value,
        }
    }

    #[test]
    fn extremes_of_both_signs_on_two_cpus() {
        let signed = [[5, i64::MIN, -1], [i64::MAX, i64::MAX, 7]];
        let unsigned = [[u64::MAX, u64::MAX, 3], [1 << 63, 9, 8]];
        let of = |function, signed| Aggregate { function, name: "n".into(), ty: "long".into(), signed };
        let fill = |aggregate: &Aggregate, cpus: [[u64; 3]; 2]| {
            let mut all = vec![0; aggregate.function.words() as usize];
            for cpu in cpus {
                let mut words = vec![0; all.len()];
                cpu.iter().for_each(|value| enter(aggregate, &mut words, *value));
                aggregate.combine(&mut all, &words);
            }
            let high = all.get(1).copied().unwrap_or(0);
            aggregate.value(&Aggregated { failed: 0, values: 6, low: all[0], high })
        };
        let all: Vec<i128> = signed.iter().flatten().map(|n| i128::from(*n)).collect();
        let bits = signed.map(|cpu| cpu.map(i64::cast_unsigned));
        let sum: i128 = all.iter().sum();
        assert_eq!(fill(&of(Function::Sum, true), bits), Some(Number::Whole(sum)));
        assert_eq!(fill(&of(Function::Avg, true), bits), Some(Number::Mean(sum as f64 / 6.0)));
        assert_eq!(fill(&of(Function::Min, true), bits), Some(Number::Whole(i64::MIN.into())));
        assert_eq!(fill(&of(Function::Max, true), bits), Some(Number::Whole(i64::MAX.into())));
        let all: Vec<i128> = unsigned.iter().flatten().map(|n| i128::from(*n)).collect();
        assert_eq!(fill(&of(Function::Sum, false), unsigned), Some(Number::Whole(all.iter().sum())));
        assert_eq!(fill(&of(Function::Min, false), unsigned), Some(Number::Whole(3)));
        assert_eq!(fill(&of(Function::Max, false), unsigned), Some(Number::Whole(u64::MAX.into())));
        let none = Aggregated { failed: 3, ..Aggregated::default() };
        assert_eq!(of(Function::Min, true).value(&none), None);
    }
}
