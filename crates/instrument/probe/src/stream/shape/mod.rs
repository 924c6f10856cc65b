// SPDX-License-Identifier: MIT OR Apache-2.0
//! The type of a collected value's bytes. It is derived from C's types when a probe is made and stored beside the
//! records. So values can be shown on another machine, without debug information.

mod show;

use kprism_expr::ctype::{Def, Kin, Ty, Types, resolve, size_of};
use serde::{Deserialize, Serialize};

pub(crate) use show::MORE;

/// Maximum depth of nested structures. Deeper ones are shown as bytes.
const DEPTH: usize = 12;
/// Maximum number of parts in one value.
const PARTS: usize = 400;

/// Type of some bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Shape {
    /// A number.
    Int {
        /// 1, 2, 4 or 8.
        size: u8,
        /// True if it is signed.
        signed: bool,
    },
    /// True or false.
    Bool,
    /// A character.
    Char,
    /// A number with names.
    Enum {
        /// Size, bytes.
        size: u8,
        /// True if it is signed.
        signed: bool,
        /// Names of values.
        names: Vec<(String, i64)>,
    },
    /// An address.
    Pointer,
    /// A floating-point number of 4 or 8 bytes, or of 16 bytes of which the processor's extended format uses 10.
    Float {
        /// Size, bytes.
        size: u8,
    },
    /// An integer of 16 bytes.
    Wide {
        /// True if it is signed.
        signed: bool,
    },
    /// `u64 length`, which includes the zero byte, then a fixed room for the string.
    Text {
        /// Size of the room, bytes.
        room: u32,
        /// The stored length that marks a string that continued. Its last two bytes are then not shown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cut: Option<u32>,
    },
    /// `u64 count`, then a fixed room for the elements, one after the other.
    Elements {
        /// Type of an element.
        of: Box<Shape>,
        /// Distance between elements, bytes.
        stride: u32,
        /// Size of the room, bytes.
        room: u32,
        /// Maximum of elements in the room.
        most: u32,
        /// True if they are text in UTF-8.
        #[serde(default)]
        text: bool,
    },
    /// Characters. Zero bytes at the end are not shown.
    Chars {
        /// Size, bytes.
        size: u32,
    },
    /// Elements one after the other.
    Array {
        /// Type of an element.
        of: Box<Shape>,
        /// Number of elements.
        count: u32,
        /// Distance between elements, bytes.
        stride: u32,
    },
    /// A structure or union.
    Record {
        /// Its members.
        members: Vec<Member>,
    },
    /// Data of one of several variants, as in a Rust enum.
    Choice {
        /// The number that selects the variant; `None` if there is only one.
        by: Option<Box<Member>>,
        /// Each variant's number and contents. The one without a number applies if no other does.
        variants: Vec<(Option<u64>, Member)>,
    },
    /// The value is not available.
    Missing {
        /// The reason.
        why: String,
    },
    /// `u64 length` in bytes, then return addresses, the innermost first.
    Stack {
        /// Maximum of addresses.
        frames: u32,
    },
    /// The number of a cgroup, which views turn into the id of the container that it is in.
    Container,
    /// Bytes of unknown type.
    Bytes {
        /// Number of bytes.
        size: u32,
    },
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name; empty for an anonymous structure.
    pub name: String,
    /// Offset of its start, bits.
    pub offset: u64,
    /// Width of a bitfield, bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<u8>,
    /// Type of its bytes.
    pub shape: Shape,
}

impl Shape {
    /// The shape of a type in C.
    pub fn of(types: &dyn Types, ty: &Ty) -> Shape {
        let mut left = PARTS;
        of(types, ty, 0, &mut left)
    }

    /// Marks the parts in these bits as missing.
    pub(crate) fn lacks(&mut self, from: u64, bits: u64) {
        self.lack(0, (from, from.saturating_add(bits)));
    }

    fn lack(&mut self, at: u64, gap: (u64, u64)) {
        let apart = |at: u64, bits: u64| at >= gap.1 || at.saturating_add(bits) <= gap.0;
        match self {
            Shape::Record { members } => {
                for member in members {
                    let at = at + member.offset;
                    let bits = member.bits.map_or_else(|| member.shape.bits(), u64::from);
                    if !apart(at, bits) {
                        member.shape.lack(at, gap);
                    }
                }
            }
            // All elements share one shape, so it cannot say which of them are missing.
            _ => *self = Shape::Missing { why: "optimised out here".to_owned() },
        }
    }

    fn bits(&self) -> u64 {
        8 * match self {
            Shape::Int { size, .. } | Shape::Enum { size, .. } | Shape::Float { size } => u64::from(*size),
            Shape::Bool | Shape::Char => 1,
            Shape::Pointer | Shape::Container => 8,
            Shape::Wide { .. } => 16,
            Shape::Text { room, .. } | Shape::Elements { room, .. } => 8 + u64::from(*room),
            Shape::Chars { size } | Shape::Bytes { size } => u64::from(*size),
            Shape::Array { count, stride, .. } => u64::from(*count) * u64::from(*stride),
            Shape::Stack { frames } => 8 + 8 * u64::from(*frames),
            Shape::Record { members } => members
                .iter()
                .map(|m| (m.offset + m.bits.map_or_else(|| m.shape.bits(), u64::from)).div_ceil(8))
                .max()
                .unwrap_or(0),
            Shape::Choice { variants, .. } => {
                variants.iter().map(|(_, m)| (m.offset + m.shape.bits()).div_ceil(8)).max().unwrap_or(0)
            }
            Shape::Missing { .. } => 0,
        }
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
        Ok(Def::Plain(Ty::Ptr(_)) | Def::Function | Def::Reference(_)) => Shape::Pointer,
        Ok(Def::Plain(Ty::Array(_, None))) => Shape::Missing { why: "of unknown length".to_owned() },
        Ok(Def::Enum(e)) => Shape::Enum { size: e.int.size, signed: e.int.signed, names: e.variants },
        Ok(Def::Wide(name, 16)) if name.contains("int") && !name.contains("complex") => {
            Shape::Wide { signed: !name.contains("unsigned") }
        }
        Ok(Def::Wide(name, 16)) if name == "i128" || name == "u128" => Shape::Wide { signed: name == "i128" },
        Ok(Def::Float(name, 16)) if name == "long double" => Shape::Float { size: 16 },
        Ok(Def::Float(_, size @ (4 | 8))) => Shape::Float { size: size as u8 },
        Ok(Def::Plain(Ty::Array(elem, Some(count)))) => {
            let stride = size_of(types, &elem).ok().flatten().unwrap_or(0);
            let (Ok(count), Ok(stride)) = (u32::try_from(count), u32::try_from(stride)) else { return bytes };
            // As in GDB: `unsigned char` is text too, `u8` a number.
            let shown = kprism_expr::ctype::name(types, &elem);
            match of(types, &elem, depth + 1, left) {
                Shape::Char => Shape::Chars { size: count },
                Shape::Int { size: 1, .. } if shown.ends_with(" char") => Shape::Chars { size: count },
                each => Shape::Array { of: Box::new(each), count, stride },
            }
        }
        Ok(Def::Record(record)) if record.declared => {
            Shape::Missing { why: "of a type that is only declared".to_owned() }
        }
        Ok(Def::Record(record)) => {
            let mut each = |member: kprism_expr::ctype::Member| {
                let shape = match member.kin {
                    Kin::Virtual => Shape::Missing { why: "a virtual base".to_owned() },
                    _ => of(types, &member.ty, depth + 1, left),
                };
                let name = match member.kin {
                    Kin::Own => member.name.unwrap_or_default(),
                    // As in GDB.
                    _ => format!("<{}>", kprism_expr::ctype::name(types, &member.ty)),
                };
                Member { name, offset: member.offset, bits: member.bits, shape }
            };
            match record.choice {
                Some(choice) => {
                    let by = choice.by.clone().map(|by| Box::new(each(by)));
                    let width = by.as_ref().map_or(64, |by| by.shape.bits());
                    let mask = if width >= 64 { u64::MAX } else { (1 << width) - 1 };
                    if width > 64 {
                        return bytes;
                    }
                    let variant = |(n, member): &(Option<i128>, kprism_expr::ctype::Member)| {
                        (n.map(|n| n as u64 & mask), each(member.clone()))
                    };
                    let variants = choice.variants.iter().map(variant).collect();
                    Shape::Choice { by, variants }
                }
                None => Shape::Record { members: record.members.into_iter().map(each).collect() },
            }
        }
        _ => bytes,
    }
}
