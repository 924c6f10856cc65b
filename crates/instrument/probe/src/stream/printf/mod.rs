// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines that records are shown as: C's `printf`, with a record's values.
//!
//! Input: `"FORMAT", EXPR, …`, checked against the types of the expressions when a probe is compiled; later a record's
//! values. Output: the text that C's `printf` prints. Any format gives text or an error with the column.
//!
//! | module | job |
//! |---|---|
//! | `format` | a format → literal text and conversions |
//! | `show` | a conversion and a value → text |

mod format;
mod show;

use kprism_expr::lex::{Token, lex};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use format::{Conversion, Piece, pieces};

use crate::stream::Item;

/// The line that a probe's records are shown as.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printf {
    /// The format, without C's escapes.
    pub format: String,
    /// For each conversion the index of its item.
    pub items: Vec<u32>,
}

/// An error in `"FORMAT", EXPR, …`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct FormatError {
    /// Offset in the text, bytes.
    pub at: usize,
    /// The message, with the remedy.
    pub what: String,
}

/// Type of a value, as far as conversions tell types apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number of so many bytes.
    Int {
        /// Its size, bytes.
        size: u8,
        /// True if it is signed.
        signed: bool,
    },
    /// An enumerator, which also has a name.
    Enum {
        /// Its size, bytes.
        size: u8,
    },
    /// An address.
    Pointer,
    /// Text.
    Text,
    /// A floating-point number of up to 8 bytes.
    Float,
    /// Something that no conversion shows.
    Other,
}

/// Splits `"FORMAT", EXPR, …` into the format, without escapes, and the expressions.
///
/// # Errors
/// There is no string first, or no comma after it, or the string is not UTF-8.
pub fn split(text: &str) -> Result<(String, Vec<String>), FormatError> {
    let blank = text.len() - text.trim_start().len();
    let error = |at: usize, what: &str| FormatError { at, what: what.to_owned() };
    let expected =
        "expected a format in double quotes, then expressions: \"%d bytes by %s\\n\", count, $comm";
    if !text[blank..].starts_with('"') {
        return Err(error(blank, expected));
    }
    // The end of the string: the first quote that is not escaped.
    let (mut end, mut escaped) = (None, false);
    for (at, c) in text.bytes().enumerate().skip(blank + 1) {
        match c {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => {
                end = Some(at + 1);
                break;
            }
            _ => {}
        }
    }
    let end = end.ok_or_else(|| error(blank, "the quote is not closed"))?;
    let literal = lex(&text[..end]).map_err(|e| error(e.span.start, &e.message))?;
    let Some((Token::Text(bytes), _)) = literal.into_iter().next() else {
        return Err(error(blank, expected));
    };
    let format = String::from_utf8(bytes).map_err(|_| error(blank, "a format is UTF-8 text"))?;
    let rest = text[end..].trim_start();
    let arguments = match rest.strip_prefix(',') {
        Some(list) => crate::plan::expressions(list),
        None if rest.is_empty() => Vec::new(),
        None => return Err(error(text.len() - rest.len(), "expected `,` after the format")),
    };
    Ok((format, arguments))
}

impl Printf {
    /// Checks that the format's conversions are for values of these types: name, type in C, kind. The error has the
    /// remedy.
    pub fn check(format: &str, values: &[(&str, &str, Kind)]) -> Result<(), String> {
        let conversions: Vec<Conversion> = pieces(format)?
            .into_iter()
            .filter_map(|piece| match piece {
                Piece::Value(conversion) => Some(conversion),
                Piece::Text(_) => None,
            })
            .collect();
        if conversions.len() != values.len() {
            let (wanted, given) = (conversions.len(), values.len());
            let what = if wanted > given { "add expressions" } else { "add conversions, such as %d" };
            return Err(format!("the format has {wanted} conversions, for {given} values: {what}"));
        }
        for (conversion, (name, ty, kind)) in conversions.iter().zip(values) {
            conversion.check(*kind).map_err(|remedy| {
                format!("`{}` does not fit `{name}` ({ty}): {remedy}", conversion.written())
            })?;
        }
        Ok(())
    }

    /// The text of a record with these items and values. A value that is missing is shown as `?`.
    pub fn text(&self, items: &[Item], value: &dyn Fn(usize) -> Option<Value>) -> String {
        let Ok(pieces) = pieces(&self.format) else { return self.format.clone() };
        let mut out = Vec::new();
        let mut numbers = self.items.iter();
        for piece in pieces {
            match piece {
                Piece::Text(text) => out.extend(text.bytes()),
                Piece::Value(conversion) => {
                    let number = numbers.next().map_or(usize::MAX, |n| *n as usize);
                    let shape = items.get(number).and_then(|item| item.shape.as_ref());
                    let known = shape.and_then(|shape| Some((shape, value(number)?)));
                    out.extend(conversion.text(known.as_ref().map(|(shape, value)| (*shape, value))));
                }
            }
        }
        readable(&out)
    }
}

/// Bytes as text. Those that are not UTF-8 are octal escapes, as in C.
fn readable(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        out += chunk.valid();
        chunk.invalid().iter().for_each(|byte| out += &format!("\\{byte:03o}"));
    }
    out
}

#[cfg(test)]
mod tests;
