// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lexer: splits an expression's text into tokens of C.

use crate::error::{Error, Result, Span};

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// An identifier or keyword.
    Name(String),
    /// `$name`.
    Dollar(String),
    /// A number, with its suffix decoded.
    Number(Number),
    /// A character constant.
    Char(i32),
    /// A string literal's bytes.
    Text(Vec<u8>),
    /// An operator or bracket.
    Sign(&'static str),
    /// The end of the text.
    End,
}

/// An integer constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// Value, with a time unit (`ns`, `us`, `ms`, `s`) applied.
    pub value: u64,
    /// True if written in base ten. A decimal constant without `u` never gets an unsigned type.
    pub decimal: bool,
    /// Suffix `u`.
    pub unsigned: bool,
    /// Suffix `l` (1) or `ll` (2).
    pub long: u8,
}

/// Operators and brackets, longest first, so that `<<` is not read as two `<`.
const SIGNS: [&str; 45] = [
    "<<=", ">>=", "...", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=",
    "/=", "%=", "&=", "|=", "^=", "::", "+", "-", "*", "/", "%", "&", "|", "^", "~", "!", "<", ">", "=", "?",
    ":", ",", ".", "(", ")", "[", "]", ";",
];

/// Splits the text into tokens. The last one is [`Token::End`].
pub fn lex(source: &str) -> Result<Vec<(Token, Span)>> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let c = bytes[at];
        let token = match c {
            b' ' | b'\t' | b'\n' | b'\r' => {
                at += 1;
                continue;
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => Token::Name(word(bytes, &mut at).to_owned()),
            b'$' => {
                at += 1;
                Token::Dollar(word(bytes, &mut at).to_owned())
            }
            b'0'..=b'9' => number(source, &mut at)?,
            b'\'' => {
                let text = quoted(source, &mut at)?;
                match text[..] {
                    // `char` is signed, and several characters combine as in GCC.
                    [c] => Token::Char(i32::from(c as i8)),
                    [_, ..] if text.len() <= 4 => {
                        Token::Char(text.iter().fold(0, |n, c| n << 8 | i32::from(*c)))
                    }
                    _ => {
                        let span = Span { start, end: at };
                        return Err(Error::new(span, "a character constant has one to four characters"));
                    }
                }
            }
            b'"' => Token::Text(quoted(source, &mut at)?),
            _ => match SIGNS.iter().find(|s| source.as_bytes()[at..].starts_with(s.as_bytes())) {
                Some(sign) => {
                    at += sign.len();
                    Token::Sign(sign)
                }
                None => {
                    let c = source.get(at..).and_then(|s| s.chars().next()).unwrap_or('?');
                    let span = Span { start, end: at + c.len_utf8() };
                    let shown = c.escape_debug();
                    return Err(Error::new(span, format!("`{shown}` has no meaning in an expression")));
                }
            },
        };
        tokens.push((token, Span { start, end: at }));
    }
    tokens.push((Token::End, Span { start: source.len(), end: source.len() }));
    Ok(tokens)
}

fn word<'s>(bytes: &'s [u8], at: &mut usize) -> &'s str {
    let start = *at;
    while bytes.get(*at).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_') {
        *at += 1;
    }
    std::str::from_utf8(&bytes[start..*at]).unwrap_or("")
}

fn number(source: &str, at: &mut usize) -> Result<Token> {
    let bytes = source.as_bytes();
    let start = *at;
    let all = word(bytes, at);
    let span = Span { start, end: *at };
    if bytes.get(*at) == Some(&b'.') && bytes.get(*at + 1).is_none_or(u8::is_ascii_digit) {
        return Err(Error::new(span, "floating-point numbers cannot be computed in a probe"));
    }
    let (base, digits) = match all.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &all[2..]),
        [b'0', b'b' | b'B', ..] => (2, &all[2..]),
        [b'0', b'0'..=b'9', ..] => (8, &all[1..]),
        // A zero by itself, perhaps with a suffix as in `0ms`.
        _ => (10, all),
    };
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    let (digits, suffix) = digits.split_at(end);
    let mut ns = 1;
    let (unsigned, long) = match suffix.to_ascii_lowercase().as_str() {
        "" => (false, 0),
        unit @ ("ns" | "us" | "ms" | "s") if base == 10 => {
            ns = match unit {
                "ns" => 1,
                "us" => 1_000,
                "ms" => 1_000_000,
                _ => 1_000_000_000,
            };
            (false, 1)
        }
        "u" => (true, 0),
        "l" => (false, 1),
        "ul" | "lu" => (true, 1),
        "ll" => (false, 2),
        "ull" | "llu" => (true, 2),
        other if base == 10 && other.starts_with(['e', 'f']) => {
            return Err(Error::new(span, "floating-point numbers cannot be computed in a probe"));
        }
        other => {
            return Err(Error::new(span, format!("`{other}` is no suffix of an integer in base {base}")));
        }
    };
    let value = u64::from_str_radix(digits, base);
    let value = value.ok().and_then(|value| value.checked_mul(ns)).ok_or_else(|| {
        let why = if digits.is_empty() { "has no digits" } else { "does not fit 64 bits" };
        Error::new(span, format!("the number {why}"))
    })?;
    Ok(Token::Number(Number { value, decimal: base == 10, unsigned, long }))
}

/// Reads the bytes between quotes and resolves escapes.
fn quoted(source: &str, at: &mut usize) -> Result<Vec<u8>> {
    let bytes = source.as_bytes();
    let start = *at;
    let quote = bytes[start];
    let mut out = Vec::new();
    *at += 1;
    loop {
        let span = Span { start, end: (*at).min(bytes.len()) };
        let open = || Error::new(span, "the quote is not closed");
        let c = *bytes.get(*at).ok_or_else(open)?;
        *at += 1;
        if c == quote {
            return Ok(out);
        }
        if c != b'\\' {
            out.push(c);
            continue;
        }
        let c = *bytes.get(*at).ok_or_else(open)?;
        *at += 1;
        out.push(match c {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'v' => 11,
            b'e' => 27,
            b'\\' | b'\'' | b'"' | b'?' => c,
            b'0'..=b'7' => {
                let mut n = u32::from(c - b'0');
                for _ in 0..2 {
                    if let Some(d @ b'0'..=b'7') = bytes.get(*at) {
                        n = n * 8 + u32::from(d - b'0');
                        *at += 1;
                    }
                }
                n as u8
            }
            b'x' => {
                let from = *at;
                while bytes.get(*at).is_some_and(u8::is_ascii_hexdigit) && *at < from + 2 {
                    *at += 1;
                }
                let digits = source.get(from..*at).unwrap_or("");
                u8::from_str_radix(digits, 16)
                    .map_err(|_| Error::new(span, "`\\x` needs hexadecimal digits"))?
            }
            _ => {
                return Err(Error::new(
                    span,
                    format!("`\\{}` is no escape of C", char::from(c).escape_debug()),
                ));
            }
        });
    }
}
