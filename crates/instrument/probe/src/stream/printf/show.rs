// SPDX-License-Identifier: MIT OR Apache-2.0
//! A conversion and a value → the bytes that C's `printf` prints.

use serde_json::Value;

use super::format::{Conversion, Length};
use crate::stream::shape::Shape;

impl Conversion {
    /// The bytes of a value; of one that is missing a question mark, in the same width.
    pub(super) fn text(&self, value: Option<(&Shape, &Value)>) -> Vec<u8> {
        let shown = value.and_then(|(shape, value)| self.shown(shape, value));
        shown.unwrap_or_else(|| self.padded(b"?".to_vec()))
    }

    fn shown(&self, shape: &Shape, value: &Value) -> Option<Vec<u8>> {
        Some(match self.letter {
            's' => {
                let mut text = text(value)?;
                text.truncate(self.precision.unwrap_or(usize::MAX));
                self.padded(text)
            }
            'c' => self.padded(vec![number(shape, value)? as u8]),
            'p' => match number(shape, value)? {
                0 => self.padded(b"(nil)".to_vec()),
                // As `%#lx`.
                n => self.integer(false, n, 16, "0x"),
            },
            'd' | 'i' => {
                let n = number(shape, value)?.cast_signed();
                let n = match self.length {
                    Length::Char => i64::from(n as i8),
                    Length::Short => i64::from(n as i16),
                    Length::Int => i64::from(n as i32),
                    Length::Long => n,
                };
                self.integer(n < 0, n.unsigned_abs(), 10, self.sign())
            }
            'u' | 'o' | 'x' | 'X' => {
                let n = number(shape, value)?;
                let n = match self.length {
                    Length::Char => n & 0xff,
                    Length::Short => n & 0xffff,
                    Length::Int => n & 0xffff_ffff,
                    Length::Long => n,
                };
                let (base, prefix) = match self.letter {
                    'u' => (10, ""),
                    'o' => (8, ""),
                    'x' => (16, if self.alternate && n != 0 { "0x" } else { "" }),
                    _ => (16, if self.alternate && n != 0 { "0X" } else { "" }),
                };
                self.integer(false, n, base, prefix)
            }
            _ => self.float(float(value)?),
        })
    }

    /// The sign of a number that is not negative.
    fn sign(&self) -> &'static str {
        match (self.plus, self.space) {
            (true, _) => "+",
            (false, true) => " ",
            _ => "",
        }
    }

    /// An integer: its digits up to the precision, then its width. `prefix` is a base, or the sign if it is not negative.
    fn integer(&self, negative: bool, magnitude: u64, base: u32, prefix: &str) -> Vec<u8> {
        let mut digits = match (base, self.letter) {
            (8, _) => format!("{magnitude:o}"),
            (16, 'X') => format!("{magnitude:X}"),
            (16, _) => format!("{magnitude:x}"),
            _ => magnitude.to_string(),
        };
        // No digit at all if both are 0.
        if (magnitude, self.precision) == (0, Some(0)) {
            digits.clear();
        }
        let least = self.precision.unwrap_or(1);
        digits.insert_str(0, &"0".repeat(least.saturating_sub(digits.len())));
        if base == 8 && self.alternate && !digits.starts_with('0') {
            digits.insert(0, '0');
        }
        let prefix = match (negative, self.letter) {
            (true, _) => "-".to_owned(),
            // An address has a sign too.
            (_, 'p') => format!("{}{prefix}", self.sign()),
            _ => prefix.to_owned(),
        };
        self.with_zeros(&prefix, &digits, self.precision.is_none())
    }

    /// Prefix and digits in the width, with zeros between them if there may be.
    fn with_zeros(&self, prefix: &str, digits: &str, zeros: bool) -> Vec<u8> {
        let missing = self.width.saturating_sub(prefix.len() + digits.len());
        if self.zeros && !self.left && zeros {
            return format!("{prefix}{}{digits}", "0".repeat(missing)).into_bytes();
        }
        self.padded(format!("{prefix}{digits}").into_bytes())
    }

    fn padded(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let missing = self.width.saturating_sub(bytes.len());
        match self.left {
            true => bytes.resize(bytes.len() + missing, b' '),
            false => drop(bytes.splice(0..0, std::iter::repeat_n(b' ', missing))),
        }
        bytes
    }

    fn float(&self, n: f64) -> Vec<u8> {
        let sign = if n.is_sign_negative() { "-" } else { self.sign() };
        let upper = self.letter.is_ascii_uppercase();
        let cased = |text: String| if upper { text.to_ascii_uppercase() } else { text };
        let size = n.abs();
        if !size.is_finite() {
            let name = if size.is_nan() { "nan" } else { "inf" };
            return self.with_zeros(sign, &cased(name.to_owned()), false);
        }
        let precision = self.precision.unwrap_or(6);
        let digits = match self.letter.to_ascii_lowercase() {
            'f' => fixed(size, precision, self.alternate),
            'e' => scientific(size, precision, self.alternate),
            _ => self.general(size, precision.max(1)),
        };
        self.with_zeros(sign, &cased(digits), true)
    }

    /// `%g`: the shorter of both forms, without zeros at the end.
    fn general(&self, size: f64, precision: usize) -> String {
        let exponent = exponent(size, precision - 1);
        let is_fixed = (-4..precision as i64).contains(&exponent);
        let digits = match is_fixed {
            true => fixed(size, (precision as i64 - 1 - exponent) as usize, self.alternate),
            false => scientific(size, precision - 1, self.alternate),
        };
        if self.alternate {
            return digits;
        }
        let (mantissa, rest) = digits.split_at(digits.find('e').unwrap_or(digits.len()));
        let short = match mantissa.contains('.') {
            true => mantissa.trim_end_matches('0').trim_end_matches('.'),
            false => mantissa,
        };
        format!("{short}{rest}")
    }
}

fn fixed(size: f64, precision: usize, point: bool) -> String {
    format!("{size:.precision$}{}", if point && precision == 0 { "." } else { "" })
}

fn scientific(size: f64, precision: usize, point: bool) -> String {
    let all = format!("{size:.precision$e}");
    let (mantissa, exponent) = all.split_once('e').unwrap_or((&all, "0"));
    let point = if point && precision == 0 { "." } else { "" };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}{point}e{sign}{:02}", exponent.unsigned_abs())
}

/// The exponent of ten of a number that is rounded to so many digits after the first.
fn exponent(size: f64, precision: usize) -> i64 {
    let all = format!("{size:.precision$e}");
    all.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0)
}

/// The bits of a number, sign-extended to 64.
fn number(shape: &Shape, value: &Value) -> Option<u64> {
    match (shape, value) {
        (Shape::Enum { names, .. }, Value::String(name)) => {
            names.iter().find(|(known, _)| known == name).map(|(_, n)| n.cast_unsigned())
        }
        (Shape::Pointer, Value::String(text)) => u64::from_str_radix(text.strip_prefix("0x")?, 16).ok(),
        // An ASCII character.
        (Shape::Char, Value::String(text)) => text.bytes().next().map(u64::from).or(Some(0)),
        (_, Value::Bool(is)) => Some((*is).into()),
        (_, Value::Number(n)) => n.as_u64().or_else(|| Some(n.as_i64()?.cast_unsigned())),
        _ => None,
    }
}

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_f64(),
        Value::String(name) => name.parse().ok(),
        _ => None,
    }
}

/// The bytes of a text. Control characters of a value are octal escapes, as where it is shown in quotes: it may come from
/// anywhere, and the line may go to a terminal.
fn text(value: &Value) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let escape = |n: u32| format!("\\{n:03o}").into_bytes();
    let mut put = |text: &str| {
        for c in text.chars() {
            match c {
                '\n' | '\t' => out.push(c as u8),
                c if c.is_control() => out.extend(escape(c.into())),
                c => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
    };
    match value {
        Value::String(text) => put(text),
        // Not UTF-8: its bytes, and a mark if it goes on.
        Value::Array(all) => all.iter().for_each(|part| match part {
            Value::String(more) => out.extend(more.bytes()),
            byte => match byte.as_u64().unwrap_or(0) as u8 {
                byte @ (b'\n' | b'\t' | b' '..=b'~' | 0x80..) => out.push(byte),
                byte => out.extend(escape(byte.into())),
            },
        }),
        Value::Number(n) => out.extend(n.to_string().bytes()),
        _ => return None,
    }
    Some(out)
}
