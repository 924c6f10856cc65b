// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes of a file of probes → its entries, each as tokens with their places.

use super::{Position, WrittenError};

/// Sort of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    /// The place of a probe: the first word of an entry, or a quoted text there.
    Place,
    /// A name, a number, or `$name`.
    Word,
    /// A text or character in quotes.
    Quoted,
    /// Any other character.
    Sign(char),
}

/// A token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    /// Its sort.
    pub sort: Sort,
    /// Its text.
    pub text: &'a str,
    /// Its place.
    pub at: Position,
    /// Blanks before it on the same line; a line's first token has one.
    pub before: &'a str,
    /// Number of open brackets around it.
    pub depth: usize,
}

impl Token<'_> {
    /// An error at this token.
    pub fn error(&self, what: impl Into<String>) -> WrittenError {
        WrittenError { at: self.at, what: what.into() }
    }
}

/// Splits a file into entries. Each begins in the first column; indented lines continue it. No entry is empty.
pub(super) fn entries(bytes: &[u8]) -> Result<Vec<Vec<Token<'_>>>, WrittenError> {
    let mut all: Vec<Vec<Token<'_>>> = Vec::new();
    // Brackets that are open: their place, and what closes them.
    let mut open: Vec<(Position, char)> = Vec::new();
    for (number, line) in bytes.split(|b| *b == b'\n').enumerate() {
        let line_number = number + 1;
        let text = std::str::from_utf8(line).map_err(|e| {
            let column = String::from_utf8_lossy(&line[..e.valid_up_to()]).chars().count() + 1;
            WrittenError {
                at: Position { line: line_number, column },
                what: "expected UTF-8 text".to_owned(),
            }
        })?;
        let mut at = Scan { line: text, number: line_number, offset: 0, column: 1 };
        let mut before = at.blanks();
        let indented = !before.is_empty();
        if at.is_over() {
            continue;
        }
        let mut first = true;
        if !indented {
            closed(&open)?;
            open.clear();
            all.push(vec![at.place()?]);
            first = false;
            before = at.blanks();
        } else if all.is_empty() {
            let what = "expected a probe in the first column: an indented line continues the one before";
            return Err(WrittenError { at: at.position(), what: what.to_owned() });
        }
        while !at.is_over() {
            let mut token = at.token()?;
            // Between tokens of different lines there is one blank.
            token.before = if std::mem::take(&mut first) { " " } else { before };
            if let Sort::Sign(c) = token.sort {
                let closes = match c {
                    '(' => Some(')'),
                    '[' => Some(']'),
                    _ => None,
                };
                if let Some(closes) = closes {
                    open.push((token.at, closes));
                } else if matches!(c, ')' | ']') && open.pop().is_none_or(|(_, closes)| closes != c) {
                    return Err(token.error(format!("`{c}` closes nothing that is open here")));
                }
            }
            token.depth = open.len();
            if let Some(entry) = all.last_mut() {
                entry.push(token);
            }
            before = at.blanks();
        }
    }
    closed(&open)?;
    Ok(all)
}

/// Checks that no bracket is open at the end of an entry.
fn closed(open: &[(Position, char)]) -> Result<(), WrittenError> {
    match open.first() {
        Some((at, closes)) => {
            Err(WrittenError { at: *at, what: format!("no `{closes}` closes this bracket") })
        }
        None => Ok(()),
    }
}

/// A position in a line.
struct Scan<'a> {
    line: &'a str,
    number: usize,
    offset: usize,
    column: usize,
}

impl<'a> Scan<'a> {
    fn position(&self) -> Position {
        Position { line: self.number, column: self.column }
    }

    fn rest(&self) -> &'a str {
        &self.line[self.offset..]
    }

    /// Returns true at the end of the line, or at a comment.
    fn is_over(&self) -> bool {
        self.rest().is_empty() || self.rest().starts_with('#') || self.rest().starts_with("//")
    }

    /// Takes so many bytes.
    fn take(&mut self, bytes: usize) -> &'a str {
        let text = &self.rest()[..bytes];
        self.offset += bytes;
        self.column += text.chars().count();
        text
    }

    fn blanks(&mut self) -> &'a str {
        let rest = self.rest();
        self.take(rest.find(|c: char| !matches!(c, ' ' | '\t' | '\r')).unwrap_or(rest.len()))
    }

    /// The place of a probe, up to a blank, or in quotes.
    fn place(&mut self) -> Result<Token<'a>, WrittenError> {
        let (at, rest) = (self.position(), self.rest());
        let text = match rest.starts_with('"') {
            true => self.token()?.text,
            false => self.take(rest.find(char::is_whitespace).unwrap_or(rest.len())),
        };
        Ok(Token { sort: Sort::Place, text, at, before: "", depth: 0 })
    }

    fn token(&mut self) -> Result<Token<'a>, WrittenError> {
        let (at, rest) = (self.position(), self.rest());
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        let token = |sort, text| Token { sort, text, at, before: "", depth: 0 };
        let Some(first) = rest.chars().next() else { return Ok(token(Sort::Word, "")) };
        if is_word(first) {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            return Ok(token(Sort::Word, self.take(end)));
        }
        if !matches!(first, '"' | '\'') {
            return Ok(token(Sort::Sign(first), self.take(first.len_utf8())));
        }
        let mut escaped = false;
        for (end, c) in rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                c if c == first => return Ok(token(Sort::Quoted, self.take(end + 1))),
                _ => {}
            }
        }
        Err(WrittenError {
            at,
            what: format!("expected {first} before the end of the line: the quote is not closed"),
        })
    }
}
