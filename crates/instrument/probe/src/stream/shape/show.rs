// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes and their [`Shape`] → a value as JSON, and a value as a line of text.

use serde_json::{Map, Value, json};

use super::{DEPTH, Shape};

/// A little-endian number of up to 8 bytes, from bit `from` on.
fn number(bytes: &[u8], from: u64, bits: u32) -> Option<u64> {
    let first = usize::try_from(from / 8).ok()?;
    let shift = (from % 8) as u32;
    let count = (shift + bits).div_ceil(8) as usize;
    let mut wide = [0u8; 16];
    wide[..count].copy_from_slice(bytes.get(first..first.checked_add(count)?)?);
    let all = u128::from_le_bytes(wide) >> shift;
    let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    Some(all as u64 & mask)
}

fn extended(value: u64, bits: u32) -> i64 {
    let shift = 64 - bits.clamp(1, 64);
    (value << shift).cast_signed() >> shift
}

impl Shape {
    /// Decodes a value: numbers, strings, arrays, objects; addresses as text. Null where bytes are missing.
    pub fn value(&self, bytes: &[u8]) -> Value {
        self.at(bytes, 0, None, 0).unwrap_or(Value::Null)
    }

    fn at(&self, bytes: &[u8], from: u64, bits: Option<u8>, depth: usize) -> Option<Value> {
        if depth > DEPTH + 2 {
            return None;
        }
        let part = |size: u32| {
            let start = usize::try_from(from / 8).ok()?;
            bytes.get(start..start.checked_add(size as usize)?)
        };
        let int = |size: u8| {
            let bits = u32::from(bits.unwrap_or_else(|| size.clamp(1, 8) * 8)).clamp(1, 64);
            Some((number(bytes, from, bits)?, bits))
        };
        Some(match self {
            Shape::Int { size, signed } => match int(*size)? {
                (n, bits) if *signed => json!(extended(n, bits)),
                (n, _) => json!(n),
            },
            Shape::Bool => json!(int(1)?.0 != 0),
            Shape::Char => match int(1)? {
                (n @ 0..=0x7f, 8) => text(&[n as u8], false),
                (n, bits) => json!(extended(n, bits)),
            },
            Shape::Enum { size, signed, names } => {
                let (n, bits) = int(*size)?;
                let value = if *signed { extended(n, bits) } else { n.cast_signed() };
                match names.iter().find(|(_, known)| *known == value) {
                    Some((name, _)) => json!(name),
                    None => json!(value),
                }
            }
            Shape::Container => json!(int(8)?.0),
            Shape::Pointer => json!(format!("{:#x}", int(8)?.0)),
            Shape::Float { size: 4 } => float(f64::from(f32::from_bits(int(4)?.0 as u32))),
            Shape::Float { size: 16 } => {
                let exponent = number(bytes, from.checked_add(64)?, 16)?;
                float(extended_precision(number(bytes, from, 64)?, exponent as u16))
            }
            Shape::Float { .. } => float(f64::from_bits(int(8)?.0)),
            Shape::Wide { signed } => {
                let (low, high) = (number(bytes, from, 64)?, number(bytes, from.checked_add(64)?, 64)?);
                let n = u128::from(high) << 64 | u128::from(low);
                let (small, all) = match signed {
                    true => (i64::try_from(n.cast_signed()).map(Value::from), n.cast_signed().to_string()),
                    false => (u64::try_from(n).map(Value::from), n.to_string()),
                };
                small.unwrap_or_else(|_| json!(all))
            }
            Shape::Text { room, cut } => {
                let length = number(bytes, from, 64)?.min(u64::from(*room)) as usize;
                let start = usize::try_from(from / 8).ok()?.checked_add(8)?;
                let all = bytes.get(start..start.checked_add(length)?)?;
                let cut = cut.is_some_and(|cut| length >= cut as usize);
                let all = until_zero(all);
                text(if cut { &all[..all.len().saturating_sub(1)] } else { all }, cut)
            }
            Shape::Elements { of, stride, room, most, text: is_text } => {
                let count = number(bytes, from, 64)?;
                let (kept, cut) = (count.min(u64::from(*most)), count > u64::from(*most));
                let start = usize::try_from(from / 8).ok()?.checked_add(8)?;
                let size = usize::try_from(kept.checked_mul(u64::from(*stride))?).ok()?;
                let all = bytes.get(start..start.checked_add(size.min(*room as usize))?)?;
                if *is_text {
                    return Some(text(all, cut));
                }
                let each = |at: &[u8]| of.at(at, 0, None, depth + 1);
                let mut values =
                    all.chunks_exact((*stride).max(1) as usize).map(each).collect::<Option<Vec<_>>>()?;
                values.extend(cut.then(|| json!(MORE)));
                Value::Array(values)
            }
            Shape::Choice { by, variants } => {
                let which = match by {
                    Some(by) => {
                        let bits = u32::try_from(by.shape.bits()).ok()?.clamp(8, 64);
                        Some(number(bytes, from.checked_add(by.offset)?, bits)?)
                    }
                    None => None,
                };
                let found = variants.iter().find(|(n, _)| which.is_some() && *n == which);
                let other = || variants.iter().find(|(n, _)| n.is_none());
                let (_, member) = found.or_else(other)?;
                let at = from.checked_add(member.offset)?;
                let mut all = Map::new();
                let value = member.shape.at(bytes, at, None, depth + 1).unwrap_or(Value::Null);
                all.insert(member.name.clone(), value);
                Value::Object(all)
            }
            Shape::Missing { .. } => Value::Null,
            Shape::Stack { frames } => {
                let frames = (number(bytes, from, 64)? / 8).min(u64::from(*frames));
                let each = |n| number(bytes, from.checked_add(64 * (n + 1))?, 64);
                (0..frames)
                    .map(|n| Some(json!(format!("{:#x}", each(n)?))))
                    .collect::<Option<Vec<_>>>()?
                    .into()
            }
            Shape::Chars { size } => {
                let all = part(*size)?;
                let end = all.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
                text(&all[..end], false)
            }
            Shape::Array { of, count, stride } => {
                let mut all = Vec::new();
                for n in 0..u64::from(*count).min(bytes.len() as u64) {
                    let at = n.checked_mul(u64::from(*stride) * 8)?.checked_add(from)?;
                    all.push(of.at(bytes, at, None, depth + 1)?);
                }
                Value::Array(all)
            }
            Shape::Record { members } => {
                let mut all = Map::new();
                for member in members {
                    let at = from.checked_add(member.offset)?;
                    let value = member.shape.at(bytes, at, member.bits, depth + 1).unwrap_or(Value::Null);
                    match value {
                        // The members of an anonymous structure belong to its owner.
                        Value::Object(inner) if member.name.is_empty() => all.extend(inner),
                        value => drop(all.insert(member.name.clone(), value)),
                    }
                }
                Value::Object(all)
            }
            Shape::Bytes { size } => {
                json!(part(*size)?.iter().map(|b| format!("{b:02x}")).collect::<String>())
            }
        })
    }
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().unwrap_or(&[])
}

/// Stands for the elements that are not in the record.
pub(crate) const MORE: &str = "…";

/// A string if the bytes are UTF-8, else the bytes. `cut` means that the text continued, so it may end within a
/// character.
fn text(bytes: &[u8], cut: bool) -> Value {
    let bytes = match std::str::from_utf8(bytes) {
        Err(e) if cut && e.error_len().is_none() => &bytes[..e.valid_up_to()],
        _ => bytes,
    };
    match std::str::from_utf8(bytes) {
        Ok(text) if cut => json!(format!("{text}{MORE}")),
        Ok(text) => json!(text),
        Err(_) => {
            let more = cut.then(|| json!(MORE));
            bytes.iter().map(|byte| json!(byte)).chain(more).collect()
        }
    }
}

/// JSON has no infinity or NaN, so these are given by name.
fn float(n: f64) -> Value {
    if n.is_finite() { json!(n) } else { json!(n.to_string()) }
}

/// Converts the processor's 80-bit numbers to the nearest 64-bit ones.
fn extended_precision(mantissa: u64, exponent: u16) -> f64 {
    let sign = if exponent >> 15 == 1 { -1.0 } else { 1.0 };
    match exponent & 0x7fff {
        0x7fff if mantissa << 1 == 0 => sign * f64::INFINITY,
        0x7fff => f64::NAN,
        exponent => {
            // In two steps, because the scale alone may be out of range.
            let scale = i32::from(exponent) - 16383 - 63;
            let half = scale / 2;
            sign * (mantissa as f64) * 2_f64.powi(half) * 2_f64.powi(scale - half)
        }
    }
}

/// A quoted C string. Bytes that cannot be printed are octal escapes.
fn quoted<'t>(parts: impl Iterator<Item = &'t Value>) -> String {
    let mut out = String::from('"');
    for part in parts {
        match part {
            Value::String(text) => {
                for c in text.chars() {
                    match c {
                        '"' | '\\' => out.extend(['\\', c]),
                        '\n' => out.push_str("\\n"),
                        '\t' => out.push_str("\\t"),
                        '\r' => out.push_str("\\r"),
                        c if c.is_control() => out.push_str(&format!("\\{:03o}", u32::from(c))),
                        c => out.push(c),
                    }
                }
            }
            byte => match byte.as_u64().unwrap_or(0) as u8 {
                byte @ (b'"' | b'\\') => out.extend(['\\', char::from(byte)]),
                byte @ b' '..=b'~' => out.push(char::from(byte)),
                byte => out.push_str(&format!("\\{byte:03o}")),
            },
        }
    }
    out + "\""
}

impl Shape {
    /// Formats a value as a line of C: members in their order, enumerators by name.
    pub fn line(&self, value: &Value) -> String {
        match (self, value) {
            (Shape::Missing { why }, _) => format!("<{why}>"),
            (_, Value::Null) => "?".to_owned(),
            (Shape::Float { .. } | Shape::Wide { .. }, Value::String(text)) => text.clone(),
            (
                Shape::Text { .. } | Shape::Chars { .. } | Shape::Elements { text: true, .. },
                Value::Array(all),
            ) => quoted(all.iter()),
            (Shape::Elements { of, .. }, Value::Array(all)) => {
                let each = |value: &Value| match value.as_str() {
                    Some(MORE) => MORE.to_owned(),
                    _ => of.line(value),
                };
                format!("{{{}}}", all.iter().map(each).collect::<Vec<_>>().join(", "))
            }
            (Shape::Choice { variants, .. }, Value::Object(all)) => {
                let one = |(name, value): (&String, &Value)| {
                    let found = variants.iter().find(|(_, member)| member.name == *name);
                    let inner = found.map(|(_, member)| member.shape.line(value)).unwrap_or_default();
                    format!("{name} {inner}")
                };
                all.iter().map(one).collect::<Vec<_>>().join(", ")
            }
            (
                Shape::Pointer | Shape::Container | Shape::Enum { .. } | Shape::Bytes { .. },
                Value::String(text),
            ) => text.clone(),
            (Shape::Stack { .. }, Value::Array(all)) => {
                all.iter().map(|v| v.as_str().unwrap_or("?")).collect::<Vec<_>>().join(" < ")
            }
            (_, text @ Value::String(_)) => quoted(std::iter::once(text)),
            (Shape::Array { of, .. }, Value::Array(all)) => {
                format!("{{{}}}", all.iter().map(|value| of.line(value)).collect::<Vec<_>>().join(", "))
            }
            (Shape::Record { members }, Value::Object(all)) => {
                let mut shown = Vec::new();
                for member in members {
                    match (&member.shape, all.get(&member.name)) {
                        (shape @ Shape::Record { .. }, _) if member.name.is_empty() => {
                            let inner = shape.line(value);
                            let inner = inner.trim_start_matches('{').trim_end_matches('}');
                            shown.push(inner.to_owned());
                        }
                        (shape, Some(value)) => {
                            shown.push(format!("{} = {}", member.name, shape.line(value)))
                        }
                        (_, None) => {}
                    }
                }
                format!("{{{}}}", shown.join(", "))
            }
            (_, other) => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Member;
    use super::*;

    #[test]
    fn numbers_of_all_kinds() {
        let bytes = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(Shape::Int { size: 4, signed: true }.value(&bytes), json!(-2));
        assert_eq!(Shape::Int { size: 2, signed: false }.value(&bytes), json!(0xfffe));
        assert_eq!(Shape::Pointer.value(&bytes), json!("0xfffffffffffffffe"));
        assert_eq!(Shape::Int { size: 4, signed: true }.value(&bytes[..3]), Value::Null);
        let names = vec![("TWO".to_owned(), -2)];
        assert_eq!(Shape::Enum { size: 4, signed: true, names }.value(&bytes), json!("TWO"));
        let bitfield = |offset, bits| Member {
            name: format!("b{offset}"),
            offset,
            bits: Some(bits),
            shape: Shape::Int { size: 4, signed: offset > 0 },
        };
        let record = Shape::Record { members: vec![bitfield(0, 3), bitfield(5, 7)] };
        let value = record.value(&[0b0100_0110, 0b0000_1010]);
        assert_eq!(record.line(&value), "{b0 = 6, b5 = -46}");
    }

    #[test]
    fn strings() {
        let mut bytes = vec![4, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend(b"abc\0rest");
        assert_eq!(Shape::Text { room: 8, cut: None }.value(&bytes), json!("abc"));
        assert_eq!(Shape::Chars { size: 8 }.value(&bytes[8..]), json!("abc\0rest"));
        assert_eq!(Shape::Chars { size: 5 }.value(b"abc\0\0"), json!("abc"));
        assert_eq!(Shape::Chars { size: 4 }.value(b"full"), json!("full"));
        // Bytes that are not UTF-8 are shown as bytes. A cut string is marked.
        let chars = Shape::Chars { size: 3 };
        assert_eq!(chars.value(b"a\xc8z"), json!([97, 200, 122]));
        assert_eq!(chars.line(&chars.value(b"a\xc8z")), "\"a\\310z\"");
        assert_eq!(chars.line(&chars.value(b"\"\\\x01")), "\"\\\"\\\\\\001\"");
        let long = Shape::Text { room: 8, cut: Some(6) };
        let value = long.value(b"\x06\0\0\0\0\0\0\0abcde\0\0\0");
        assert_eq!(long.line(&value), "\"abcd…\"");
        assert_eq!(long.value(b"\x05\0\0\0\0\0\0\0abcd\0\0\0\0"), json!("abcd"));
        // Rust's text may contain zero bytes. Missing elements are marked.
        let of = Box::new(Shape::Int { size: 1, signed: false });
        let part = |text| Shape::Elements { of: of.clone(), stride: 1, room: 8, most: 5, text };
        let told = |shape: &Shape, bytes: &[u8]| shape.line(&shape.value(bytes));
        assert_eq!(told(&part(true), b"\x05\0\0\0\0\0\0\0a\0cde\0\0\0"), "\"a\\000cde\"");
        assert_eq!(told(&part(true), b"\x06\0\0\0\0\0\0\0abcde\0\0\0"), "\"abcde…\"");
        assert_eq!(told(&part(false), b"\x02\0\0\0\0\0\0\0ab\0\0\0\0\0\0"), "{97, 98}");
        assert_eq!(
            told(&part(false), b"\xff\xff\xff\xff\xff\xff\xff\xffabcde\0\0\0"),
            "{97, 98, 99, 100, 101, …}"
        );
        // A wrong length.
        bytes[0] = 0xff;
        assert_eq!(Shape::Text { room: 400, cut: None }.value(&bytes), Value::Null);
    }
}
