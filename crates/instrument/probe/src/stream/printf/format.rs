// SPDX-License-Identifier: MIT OR Apache-2.0
//! A format of `printf` → literal text and conversions, and which types each conversion is for.

use std::iter::Peekable;

use super::Kind;

/// Largest width and precision.
const WIDEST: usize = 4096;

/// A part of a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text.
    Text(String),
    /// A conversion.
    Value(Conversion),
}

/// Length of an integer argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    /// `hh`.
    Char,
    /// `h`.
    Short,
    /// None.
    Int,
    /// `l`, `ll`, `q`, `j`, `z`, `t`.
    Long,
}

/// A conversion: flags, width, precision, length, letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversion {
    pub(super) left: bool,
    pub(super) zeros: bool,
    pub(super) plus: bool,
    pub(super) space: bool,
    pub(super) alternate: bool,
    pub(super) width: usize,
    pub(super) precision: Option<usize>,
    pub(super) length: Length,
    pub(super) letter: char,
    /// The text in the format.
    written: String,
}

/// Splits a format.
///
/// # Errors
/// A conversion is not known. The error names it, and the remedy.
pub fn pieces(format: &str) -> Result<Vec<Piece>, String> {
    let (mut all, mut text, mut rest) = (Vec::new(), String::new(), format);
    while let Some(at) = rest.find('%') {
        text += &rest[..at];
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("%%") {
            text.push('%');
            rest = after;
            continue;
        }
        if !text.is_empty() {
            all.push(Piece::Text(std::mem::take(&mut text)));
        }
        let (conversion, length) = conversion(rest)?;
        all.push(Piece::Value(conversion));
        rest = &rest[length..];
    }
    text += rest;
    if !text.is_empty() {
        all.push(Piece::Text(text));
    }
    Ok(all)
}

/// The conversion at the start of `text`, which begins with `%`, and its length in bytes.
fn conversion(text: &str) -> Result<(Conversion, usize), String> {
    let mut of = Conversion {
        left: false,
        zeros: false,
        plus: false,
        space: false,
        alternate: false,
        width: 0,
        precision: None,
        length: Length::Int,
        letter: ' ',
        written: String::new(),
    };
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((_, c)) = chars.peek() {
        match c {
            '-' => of.left = true,
            '0' => of.zeros = true,
            '+' => of.plus = true,
            ' ' => of.space = true,
            '#' => of.alternate = true,
            _ => break,
        }
        chars.next();
    }
    of.width = digits(&mut chars, "width")?;
    if chars.next_if(|(_, c)| *c == '.').is_some() {
        of.precision = Some(digits(&mut chars, "precision")?);
    }
    if chars.peek().is_some_and(|(_, c)| *c == '*') {
        return Err("`*` in a format: write the number of columns".to_owned());
    }
    let mut longs = 0;
    while let Some((_, c)) = chars.peek() {
        of.length = match (c, of.length) {
            ('h', Length::Int) => Length::Short,
            ('h', Length::Short) => Length::Char,
            ('l', Length::Int) => Length::Long,
            ('l', Length::Long) if longs == 1 => Length::Long,
            ('q' | 'j' | 'z' | 't', Length::Int) => Length::Long,
            _ => break,
        };
        longs += usize::from(*c == 'l');
        chars.next();
    }
    let Some((at, letter)) = chars.next() else {
        return Err(format!(
            "`{text}` at the end of the format is no conversion: write %% for a percent sign"
        ));
    };
    let length = at + letter.len_utf8();
    of.letter = letter;
    of.written = text[..length].to_owned();
    let written = of.written.escape_debug();
    match letter {
        'd' | 'i' | 'u' | 'o' | 'x' | 'X' => {}
        'c' | 's' | 'p' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' if of.length == Length::Int => {}
        'c' | 's' | 'p' => return Err(format!("`{written}`: write %{letter}, without a length")),
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' if of.length == Length::Long && longs == 1 => {}
        'n' => return Err("`%n` prints nothing: leave it out".to_owned()),
        _ => {
            let known = "%d %i %u %o %x %X %c %s %p %f %e %g, and %% for a percent sign";
            return Err(format!("`{written}` is no conversion: there are {known}"));
        }
    }
    Ok((of, length))
}

/// A decimal number, 0 if there is none.
fn digits(chars: &mut Peekable<impl Iterator<Item = (usize, char)>>, what: &str) -> Result<usize, String> {
    let mut n = 0_usize;
    while let Some(digit) = chars.peek().and_then(|(_, c)| c.to_digit(10)) {
        n = n.saturating_mul(10).saturating_add(digit as usize);
        chars.next();
    }
    match n {
        0..=WIDEST => Ok(n),
        n => Err(format!("a {what} of {n} in a format: up to {WIDEST}")),
    }
}

impl Conversion {
    /// The conversion as it was written.
    pub fn written(&self) -> &str {
        &self.written
    }

    /// The same with another length and letter, for a remedy.
    fn instead(&self, length: &str, letter: char) -> String {
        let end = self.written.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        format!("write `{end}{length}{letter}`")
    }

    /// Checks that a value of this kind can be shown. The error is the remedy.
    pub(super) fn check(&self, kind: Kind) -> Result<(), String> {
        let of_int = matches!(self.letter, 'd' | 'i' | 'u' | 'o' | 'x' | 'X');
        let length = |size: u8| if size > 4 { "l" } else { "" };
        let number = |signed: bool| if signed { 'd' } else { 'u' };
        match (self.letter, kind) {
            (_, Kind::Other) => Err("a format shows numbers, text and addresses: name a member".to_owned()),
            (_, Kind::Int { size, .. } | Kind::Enum { size }) if of_int => {
                match (self.length == Length::Long, size > 4) {
                    (true, false) | (false, true) => Err(self.instead(length(size), self.letter)),
                    _ => Ok(()),
                }
            }
            ('c', Kind::Int { size: ..=4, .. }) | ('s', Kind::Text | Kind::Enum { .. }) => Ok(()),
            ('p', Kind::Pointer) | ('e' | 'E' | 'f' | 'F' | 'g' | 'G', Kind::Float) => Ok(()),
            (_, Kind::Int { size, signed }) => Err(self.instead(length(size), number(signed))),
            (_, Kind::Enum { size }) => {
                Err(format!("{}, or `%s` for the name", self.instead(length(size), 'd')))
            }
            (_, Kind::Pointer) => Err(self.instead("", 'p')),
            ('p', Kind::Text) => Err("it is kept as text: write `%s`, or convert it: `(void *)…`".to_owned()),
            (_, Kind::Text) => Err(self.instead("", 's')),
            (_, Kind::Float) => Err(self.instead("", 'g')),
        }
    }
}
