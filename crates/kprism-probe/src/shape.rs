// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the bytes of a collected value mean. Made of C's types when a probe is made, kept beside the records, and used
//! when they are shown: on another machine, without debug information.

use kprism_expr::ctype::{Def, Ty, Types, resolve, size_of};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// How deep structures in structures are described; what is below is bytes.
const DEPTH: usize = 6;
/// Parts of one value, all told.
const PARTS: usize = 400;

/// The meaning of some bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Shape {
    /// A number of so many bytes.
    Int {
        /// 1, 2, 4 or 8.
        size: u8,
        /// Whether it has a sign.
        signed: bool,
    },
    /// True or false.
    Bool,
    /// A character.
    Char,
    /// A number with names.
    Enum {
        /// In bytes.
        size: u8,
        /// Whether it has a sign.
        signed: bool,
        /// Constants.
        names: Vec<(String, i64)>,
    },
    /// An address.
    Pointer,
    /// A floating-point number of 4 or 8 bytes.
    Float {
        /// In bytes.
        size: u8,
    },
    /// `u64 length` with the zero byte, then room for so many bytes.
    Text {
        /// Bytes of room.
        room: u32,
    },
    /// Characters up to a zero byte or the end.
    Chars {
        /// In bytes.
        size: u32,
    },
    /// Elements one after the other.
    Array {
        /// What each is.
        of: Box<Shape>,
        /// How many.
        count: u32,
        /// From one to the next.
        stride: u32,
    },
    /// A structure or union.
    Record {
        /// Its members.
        members: Vec<Member>,
    },
    /// `u64 length` in bytes, then return addresses, the innermost first.
    Stack {
        /// Addresses, at most.
        frames: u32,
    },
    /// Nothing is known of them.
    Bytes {
        /// How many.
        size: u32,
    },
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name; empty for an anonymous structure.
    pub name: String,
    /// Where it begins, in bits.
    pub offset: u64,
    /// Of a bitfield: its width.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<u8>,
    /// What it is.
    pub shape: Shape,
}

impl Shape {
    /// Of a type in C.
    pub fn of(types: &dyn Types, ty: &Ty) -> Shape {
        let mut left = PARTS;
        of(types, ty, 0, &mut left)
    }
}

fn of(types: &dyn Types, ty: &Ty, depth: usize, left: &mut usize) -> Shape {
    let size = size_of(types, ty).ok().flatten().unwrap_or(0);
    let bytes = Shape::Bytes { size: u32::try_from(size).unwrap_or(u32::MAX) };
    if depth > DEPTH || *left == 0 {
        return bytes;
    }
    *left -= 1;
    match resolve(types, ty) {
        Ok(Def::Plain(Ty::Int(int))) => match int {
            _ if int.is_bool() => Shape::Bool,
            _ if int.size == 1 && int.plain_char => Shape::Char,
            _ => Shape::Int { size: int.size, signed: int.signed },
        },
        Ok(Def::Plain(Ty::Ptr(_)) | Def::Function) => Shape::Pointer,
        Ok(Def::Enum(e)) => Shape::Enum { size: e.int.size, signed: e.int.signed, names: e.variants },
        Ok(Def::Float(_, size @ (4 | 8))) => Shape::Float { size: size as u8 },
        Ok(Def::Plain(Ty::Array(elem, Some(count)))) => {
            let stride = size_of(types, &elem).ok().flatten().unwrap_or(0);
            let (Ok(count), Ok(stride)) = (u32::try_from(count), u32::try_from(stride)) else { return bytes };
            // As GDB has it: `unsigned char` is text too, `u8` a number.
            let shown = kprism_expr::ctype::name(types, &elem);
            match of(types, &elem, depth + 1, left) {
                Shape::Char => Shape::Chars { size: count },
                Shape::Int { size: 1, .. } if shown.ends_with(" char") => Shape::Chars { size: count },
                each => Shape::Array { of: Box::new(each), count, stride },
            }
        }
        Ok(Def::Record(record)) if !record.declared => {
            let mut members = Vec::new();
            for member in record.members {
                let shape = of(types, &member.ty, depth + 1, left);
                let name = member.name.unwrap_or_default();
                members.push(Member { name, offset: member.offset, bits: member.bits, shape });
            }
            Shape::Record { members }
        }
        _ => bytes,
    }
}

/// A little-endian number of up to 8 bytes, from this bit on.
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
    /// The value in these bytes: numbers, strings, arrays, objects; addresses as text. Null where bytes are missing.
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
            Shape::Char => json!(text(&[int(1)?.0 as u8])),
            Shape::Enum { size, signed, names } => {
                let (n, bits) = int(*size)?;
                let value = if *signed { extended(n, bits) } else { n.cast_signed() };
                match names.iter().find(|(_, known)| *known == value) {
                    Some((name, _)) => json!(name),
                    None => json!(value),
                }
            }
            Shape::Pointer => json!(format!("{:#x}", int(8)?.0)),
            Shape::Float { size: 4 } => json!(f32::from_bits(int(4)?.0 as u32)),
            Shape::Float { .. } => json!(f64::from_bits(int(8)?.0)),
            Shape::Text { room } => {
                let length = number(bytes, from, 64)?.min(u64::from(*room)) as usize;
                let start = usize::try_from(from / 8).ok()?.checked_add(8)?;
                let all = bytes.get(start..start.checked_add(length)?)?;
                json!(text(until_zero(all)))
            }
            Shape::Stack { frames } => {
                let frames = (number(bytes, from, 64)? / 8).min(u64::from(*frames));
                let each = |n| number(bytes, from.checked_add(64 * (n + 1))?, 64);
                (0..frames)
                    .map(|n| Some(json!(format!("{:#x}", each(n)?))))
                    .collect::<Option<Vec<_>>>()?
                    .into()
            }
            Shape::Chars { size } => json!(text(until_zero(part(*size)?))),
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
                        // An anonymous structure's members are its owner's.
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

/// As UTF-8 where it is, else escaped as C does.
fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

impl Shape {
    /// A value of this shape in a line of text, as C writes it: members in their order, enumerators by name.
    pub fn line(&self, value: &Value) -> String {
        match (self, value) {
            (_, Value::Null) => "?".to_owned(),
            (Shape::Pointer | Shape::Enum { .. } | Shape::Bytes { .. }, Value::String(text)) => text.clone(),
            (Shape::Stack { .. }, Value::Array(all)) => {
                all.iter().map(|v| v.as_str().unwrap_or("?")).collect::<Vec<_>>().join(" < ")
            }
            (_, Value::String(text)) => format!("{text:?}"),
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
        assert_eq!(Shape::Text { room: 8 }.value(&bytes), json!("abc"));
        assert_eq!(Shape::Chars { size: 8 }.value(&bytes[8..]), json!("abc"));
        // A length that lies.
        bytes[0] = 0xff;
        assert_eq!(Shape::Text { room: 400 }.value(&bytes), Value::Null);
    }
}
