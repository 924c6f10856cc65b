// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of a rule: `METRIC OP LIMIT`.
//!
//! In: `insns > +0.5%`. Out: [`Rule`]. A limit with a sign is a change against the baseline, in the metric's unit or in
//! percent of the baseline's value; one without a sign is a value. A rule fires, and the gate fails, where it is true.

use anyhow::{Context as _, Result, bail};

use crate::metric::{Metric, Unit};

/// A rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// As it was given.
    pub text: String,
    /// The number.
    pub metric: Metric,
    /// The comparison.
    pub op: Op,
    /// The limit.
    pub limit: Limit,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// `>`
    More,
    /// `>=`
    AtLeast,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `==`
    Equal,
    /// `!=`
    Differs,
}

/// The right side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// A value of the metric.
    Value(f64),
    /// A change against the baseline, in the metric's unit.
    Change(f64),
    /// A change in percent of the baseline's value.
    Percent(f64),
}

/// Comparisons as rules write them; those of two characters first, since they begin like others.
const OPS: [(&str, Op); 6] = [
    (">=", Op::AtLeast),
    ("<=", Op::AtMost),
    ("==", Op::Equal),
    ("!=", Op::Differs),
    (">", Op::More),
    ("<", Op::Less),
];

impl Rule {
    /// Reads a rule.
    ///
    /// # Errors
    /// It is none: the error says what was expected where.
    pub fn parse(text: &str) -> Result<Self> {
        Self::read(text).with_context(|| format!("--fail-if {text:?}"))
    }

    fn read(text: &str) -> Result<Self> {
        // A glob in brackets may have any character but these.
        let after = text.rfind([']', ')']).map_or(0, |at| at + 1);
        let found = text[after..].find(['<', '>', '=', '!']).map(|at| after + at);
        let Some(at) = found else { bail!("expected METRIC OP LIMIT, as in `insns > +0.5%`") };
        let Some((sign, op)) = OPS.iter().find(|(sign, _)| text[at..].starts_with(sign)) else {
            bail!("expected one of > >= < <= == != before {:?}", &text[at..]);
        };
        let metric = Metric::parse(text[..at].trim())?;
        let limit = limit(text[at + sign.len()..].trim(), metric.kind.unit)?;
        if metric.is_of_patch() && !matches!(limit, Limit::Value(_)) {
            bail!("{metric} is of the run alone: write a value, as in `{metric} < 80%`");
        }
        Ok(Rule { text: text.trim().to_owned(), metric, op: *op, limit })
    }

    /// True if the rule needs a baseline.
    pub fn is_relative(&self) -> bool {
        !matches!(self.limit, Limit::Value(_))
    }

    /// True if the rule is true of these values.
    pub fn holds(&self, old: Option<f64>, new: f64) -> bool {
        let (left, right) = match (self.limit, old) {
            (Limit::Value(limit), _) => (new, limit),
            (Limit::Change(change), Some(old)) => (new - old, change),
            (Limit::Percent(percent), Some(old)) => (new - old, percent / 100.0 * old),
            (Limit::Change(_) | Limit::Percent(_), None) => return false,
        };
        match self.op {
            Op::More => left > right,
            Op::AtLeast => left >= right,
            Op::Less => left < right,
            Op::AtMost => left <= right,
            Op::Equal => left == right,
            Op::Differs => left != right,
        }
    }
}

/// Reads `5M`, `20us`, `+0.5%`, `-100`.
fn limit(text: &str, unit: Unit) -> Result<Limit> {
    let signed = text.starts_with(['+', '-']);
    let end = text.rfind(|c: char| c.is_ascii_digit() || c == '.').map_or(0, |at| at + 1);
    let (digits, suffix) = (text[..end].replace('_', ""), text[end..].trim());
    let number: f64 = match digits.parse() {
        Ok(number) if f64::is_finite(number) => number,
        _ => bail!("expected a number instead of {text:?}, as 5M, 20us, +0.5% or +100"),
    };
    let factor = match (suffix, unit) {
        ("%", Unit::Percent) if !signed => 1.0,
        ("%", _) if signed => return Ok(Limit::Percent(number)),
        ("%", _) => bail!("{text}: a percentage is of the baseline: write a sign, as in +{text}"),
        ("", _) | ("ns", Unit::Ns) => 1.0,
        ("us" | "µs", Unit::Ns) | ("k", Unit::Count) => 1e3,
        ("ms", Unit::Ns) | ("M", Unit::Count) => 1e6,
        ("s", Unit::Ns) | ("G", Unit::Count) => 1e9,
        (other, Unit::Count) => bail!("{text}: expected k, M, G or % instead of {other:?}"),
        (other, Unit::Ns) => bail!("{text}: expected ns, us, ms, s or % instead of {other:?}"),
        (other, Unit::Percent) => bail!("{text}: expected % instead of {other:?}"),
    };
    Ok(if signed { Limit::Change(number * factor) } else { Limit::Value(number * factor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_values_changes_and_percentages() {
        let rule = |text: &str| Rule::parse(text).unwrap();
        assert_eq!(rule("insns > 5M").limit, Limit::Value(5e6));
        assert_eq!(rule("calls[kmalloc*]>=+1").limit, Limit::Change(1.0));
        assert_eq!(rule("p99[openat] > 20us").limit, Limit::Value(20_000.0));
        assert_eq!(rule("insns != +0").limit, Limit::Change(0.0));
        assert!(rule("insns > +1%").holds(Some(1000.0), 1011.0));
        assert!(!rule("insns > +1%").holds(Some(1000.0), 1010.0));
        assert!(rule("insns > +1%").holds(Some(0.0), 1.0), "from nothing to something");
        assert!(rule("cover.percent[fs] < 80%").holds(None, 79.9));
        assert!(rule("cover.lines < -10").holds(Some(100.0), 80.0));
        assert!(!rule("cover.lines < -10").holds(Some(100.0), 95.0));
    }

    #[test]
    fn errors_say_what_was_expected() {
        for (text, reason) in [
            ("insns", "expected METRIC OP LIMIT"),
            ("insns > much", "expected a number"),
            ("insns > 5%", "write a sign"),
            ("insns > 5 seconds", "expected k, M, G"),
            ("insns = 5", "expected one of"),
            ("wall[read] > 5M", "expected ns, us, ms, s"),
            ("patch_coverage < -5%", "write a value"),
            ("", "expected METRIC"),
        ] {
            let error = format!("{:#}", Rule::parse(text).unwrap_err());
            assert!(error.contains(reason) && error.contains("--fail-if"), "{text}: {error}");
        }
    }
}
