// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors that point to a range of the expression's text.

use std::fmt::{self, Display, Formatter};

/// A range of the expression's text, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// Byte after the last.
    pub end: usize,
}

impl Span {
    /// Returns the smallest span that covers both.
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// An error in an expression: the range, the message and, if there is one, a remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Range of the text that the error is about.
    pub span: Span,
    /// The message.
    pub message: String,
    /// A remedy, or the names that are available.
    pub help: Option<String>,
}

/// Result whose error points into the expression.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns an error without a remedy.
    pub fn new(span: Span, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), help: None }
    }

    /// Adds a remedy.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Formats the message, the expression with the range underlined, and the remedy.
    pub fn render(&self, source: &str) -> String {
        let clean: String = source.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let width = |to: usize| {
            let mut to = to.min(source.len());
            while !source.is_char_boundary(to) {
                to -= 1;
            }
            source[..to].chars().count()
        };
        let (from, to) = (width(self.span.start), width(self.span.end));
        let mut out = format!(
            "{}\n  {clean}\n  {}{}",
            self.message,
            " ".repeat(from),
            "^".repeat((to - from.min(to)).max(1))
        );
        if let Some(help) = &self.help {
            out.push_str(&format!("\n{help}"));
        }
        out
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.span.start, self.message)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// Returns a "did you mean" sentence with the most similar name: by Jaro-Winkler similarity, or a name that ends with
/// `name`.
pub fn suggestion<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut near: Vec<(u64, &str)> = names
        .filter_map(|n| {
            let like = strsim::jaro_winkler(name, n);
            let inside = n.len() > name.len() && name.len() > 2 && n.ends_with(name);
            let score = if inside { 0.95_f64.max(like) } else { like };
            (score > 0.8).then_some(((1000.0 * (1.0 - score)) as u64, n))
        })
        .collect();
    near.sort();
    near.dedup();
    near.first().map(|(_, n)| format!("did you mean `{n}`?"))
}
