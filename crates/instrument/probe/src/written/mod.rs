// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file of probes, as a user writes it (`kprism record probe -f FILE`).
//!
//! Input: any bytes. Output: variables and probes, each with its actions and with the place of each expression in the
//! file; or an error with line, column, and what was expected there.
//!
//! ```text
//! # a comment; so is what follows //
//! var $n = 0
//! thread $began
//! LOCATION if CONDITION  collect EXPR, …  by EXPR, …
//!     hist EXPR  set $n += 1
//!     printf "FORMAT", EXPR, …
//! ```
//!
//! A line that begins in the first column begins a probe; indented lines continue it. Words such as `collect` are
//! keywords only where C has no name: after the end of an operand. So a variable may have such a name.
//!
//! | module | job |
//! |---|---|
//! | `token` | bytes → tokens with their places; comments |
//! | `clause` | tokens of a probe → its place and actions |

mod clause;
mod token;

use crate::stream::RecordingEffect;
use crate::stream::aggregate::Function;

use clause::Variable;

pub use clause::KEYWORDS;

/// Contents of a file of probes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// Trace state variables and their first values.
    pub vars: Vec<(String, i64)>,
    /// Trace state variables that each thread has for itself.
    pub thread_vars: Vec<String>,
    /// The probes, in the order of the file.
    pub probes: Vec<Wanted>,
}

/// A probe with its actions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Its place in the code.
    pub place: String,
    /// The condition.
    pub condition: Option<String>,
    /// Values to collect.
    pub collect: Vec<String>,
    /// Keys to count by.
    pub by: Vec<String>,
    /// Histograms by powers of two.
    pub hist: Vec<String>,
    /// Histograms in steps.
    pub linear: Vec<String>,
    /// Sums and other functions of values.
    pub aggregates: Vec<(Function, String)>,
    /// Assignments to variables.
    pub set: Vec<String>,
    /// The line that a record is shown as, `"FORMAT", EXPR, …`.
    pub printf: Option<String>,
    /// Number of first hits to skip.
    pub skip: u64,
    /// Number of hits after which all further ones are skipped.
    pub pass: Option<u64>,
    /// Effect on the recording.
    pub effect: RecordingEffect,
    /// Place of the probe in the file.
    pub at: Position,
    /// The expressions and where they are in the file.
    pub texts: Vec<Text>,
}

/// A place in the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line, from 1.
    pub line: usize,
    /// The character in it, from 1.
    pub column: usize,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A text of the file on one line, without comments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text {
    /// The text.
    pub text: String,
    /// Offsets in the text, ascending, and the places in the file of the bytes from there on.
    places: Vec<(usize, Position)>,
}

impl Text {
    /// The place of a byte in the file.
    pub fn position(&self, offset: usize) -> Position {
        let Some((from, at)) = self.places.iter().rev().find(|(from, _)| *from <= offset) else {
            return self.places.first().map_or_else(Position::default, |(_, at)| *at);
        };
        let between = self.text.get(*from..offset.min(self.text.len())).unwrap_or("");
        Position { line: at.line, column: at.column + between.chars().count() }
    }
}

impl Wanted {
    /// The place in the file of an error in one of its expressions; of the probe, if it is about none.
    pub fn position(&self, error: &crate::Error) -> Position {
        let crate::Error::Expression(pointed) = error else { return self.at };
        let of = self.texts.iter().find(|text| text.text.trim() == pointed.text.trim());
        of.map_or(self.at, |text| text.position(pointed.at))
    }

    /// The probe as on a command line.
    pub fn spec(&self) -> String {
        match &self.condition {
            Some(condition) => format!("{} if {condition}", self.place),
            None => self.place.clone(),
        }
    }
}

/// An error in a file of probes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct WrittenError {
    /// Where it is.
    pub at: Position,
    /// The message: what was expected, and what was found.
    pub what: String,
}

/// Parses a file.
///
/// # Errors
/// The bytes are not a file of probes.
pub fn parse(bytes: &[u8]) -> Result<Written, WrittenError> {
    let mut written = Written::default();
    for entry in token::entries(bytes)? {
        let Some(variable) = clause::variable(&entry)? else {
            written.probes.push(clause::probe(&entry)?);
            continue;
        };
        let (Variable::Shared(name, _) | Variable::OfThread(name)) = &variable;
        if written.vars.iter().any(|(other, _)| other == name) || written.thread_vars.contains(name) {
            let what = format!("`${name}` is there already");
            return Err(WrittenError { at: entry[0].at, what });
        }
        match variable {
            Variable::Shared(name, value) => written.vars.push((name, value)),
            Variable::OfThread(name) => written.thread_vars.push(name),
        }
    }
    Ok(written)
}

/// A trace state variable and its first value as a user writes them: `NAME` or `NAME=N`, the name with `$` or without.
///
/// # Errors
/// The name is none of C's, or the value no number.
pub fn variable(text: &str) -> Result<(String, i64), String> {
    let (name, value) = text.split_once('=').unwrap_or((text, "0"));
    let name = thread_variable(name)?;
    let value = value.trim().parse().map_err(|e| format!("`{value}`: {e}"))?;
    Ok((name, value))
}

/// The name of a variable of each thread as a user writes it, with `$` or without. It is 0 at first.
///
/// # Errors
/// The name is none of C's.
pub fn thread_variable(text: &str) -> Result<String, String> {
    let name = text.trim().trim_start_matches('$');
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    if !name.starts_with(first) || !name.chars().all(|c| first(c) || c.is_ascii_digit()) {
        return Err(format!("`{name}` is no name: letters, digits and _"));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests;
