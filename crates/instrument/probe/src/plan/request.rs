// SPDX-License-Identifier: MIT OR Apache-2.0
//! A probe as the user writes it: a place, a condition, values, actions; and lists of those taken apart.

use crate::stream::RecordingEffect;
use crate::stream::aggregate::Function;

/// The requested probe.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// `FUNC`, `FUNC%return`, `FUNC+OFFSET`, `FILE:LINE`, `0xADDRESS`.
    pub place: &'a str,
    /// The condition's text.
    pub condition: Option<&'a str>,
    /// The expressions to collect: C expressions, `$args`, `$locals`, `$regs`.
    pub collect: &'a [String],
    /// The line that a record is shown as: `"FORMAT", EXPR, …`. The expressions are also in `collect`.
    pub printf: Option<&'a str>,
    /// Names of trace state variables.
    pub vars: &'a [String],
    /// Longest string, bytes.
    pub text: u32,
    /// Further effects of a hit.
    pub actions: Actions<'a>,
    /// True if the data that GDB needs to show a hit is kept.
    pub gdb: bool,
    /// True if the place has several code addresses. A value that is missing at one of them is left out there.
    pub several: bool,
}

/// The requested actions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Actions<'a> {
    /// Assignments to trace state variables.
    pub set: &'a [String],
    /// Keys by which hits are counted.
    pub by: &'a [String],
    /// Values counted by powers of two.
    pub hist: &'a [String],
    /// Values counted in equal steps: `EXPR,MIN,MAX,STEP`.
    pub linear: &'a [String],
    /// Values of which a function is kept.
    pub aggregates: &'a [(Function, String)],
    /// Number of first hits to skip.
    pub skip: u64,
    /// Number of hits after which all further ones are skipped.
    pub pass: Option<u64>,
    /// Effect on the recording.
    pub effect: RecordingEffect,
}

impl<'a> Request<'a> {
    /// The texts of all expressions.
    pub fn texts(&self) -> impl Iterator<Item = &'a str> {
        let Actions { set, by, hist, linear, aggregates, .. } = self.actions;
        let lists = [self.collect, set, by, hist, linear].into_iter().flatten().map(String::as_str);
        let aggregates = aggregates.iter().map(|(_, text)| text.as_str());
        self.condition.into_iter().chain(lists).chain(aggregates)
    }
}

impl Actions<'_> {
    /// Returns true if the kernel counts something.
    pub fn counts(&self) -> bool {
        !(self.by.is_empty() && self.hist.is_empty() && self.linear.is_empty() && self.aggregates.is_empty())
    }
}

/// Splits `LOCATION if EXPR`.
pub fn split(spec: &str) -> (&str, Option<&str>) {
    match spec.split_once(" if ") {
        Some((place, condition)) => (place.trim(), Some(condition.trim())),
        None => (spec.trim(), None),
    }
}

/// Splits a list of expressions at commas that are outside brackets and strings.
pub fn expressions(list: &str) -> Vec<String> {
    let (mut depth, mut quote, mut escaped) = (0_u32, None, false);
    let mut all = vec![String::new()];
    for c in list.chars() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                all.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = all.last_mut() {
            last.push(c);
        }
    }
    let trimmed = all.iter().map(|text| text.trim().to_owned());
    trimmed.filter(|text| !text.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_places() {
        assert_eq!(
            expressions("a, b[1,2],(c,d),\"e,\\\"f\",',',"),
            ["a", "b[1,2]", "(c,d)", "\"e,\\\"f\"", "','"]
        );
        assert_eq!(split("main.c:3 if a > 2"), ("main.c:3", Some("a > 2")));
        assert_eq!(split(" vfs_read "), ("vfs_read", None));
    }
}
