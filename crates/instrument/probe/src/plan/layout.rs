// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of a record, and of keys: values in IR → compiled, with their places and the types of their bytes.

use kprism_expr::ctype::Ty;
use kprism_expr::ir::{Func, MOST_CALLERS};
use kprism_expr::lower::{Collected, What};
use kprism_expr::regs;
use kprism_expr::scope::Scope;

use super::lower::Wanted;
use super::{Fill, LARGEST, Segment, Slot};
use crate::Error;
use crate::stream::shape::{Member, Shape};
use crate::stream::{HEADER, Item};

/// Compiles a function; the text is for messages.
pub(super) type Compile<'c> = dyn Fn(&str, &Func) -> Result<Segment, Error> + 'c;

/// Limits on the size of a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of a string that are shown, plus one.
    text: u32,
    /// Return addresses of a stack.
    frames: u32,
    /// The value is a key. Equal strings must then be equal bytes, whatever follows their ends in memory.
    key: bool,
}

impl Limits {
    /// Those of values of a record: strings are kept up to `text` bytes.
    pub fn of_records(text: u32) -> Self {
        Self { text, frames: 64, key: false }
    }

    /// Those of keys. A name used as a key needs no more room than most names have.
    pub fn of_keys(text: u32) -> Self {
        Self { text: text.min(64), frames: 24, key: true }
    }
}

/// Places the values after a record's header, one after the other. Returns their description, where each is filled in, and
/// the end offset.
pub(super) fn lay_out(
    wanted: &[Wanted],
    scope: &dyn Scope,
    limits: Limits,
    compile: &Compile<'_>,
) -> Result<(Vec<Item>, Vec<Slot>, u32), Error> {
    let (mut items, mut slots) = (Vec::new(), Vec::new());
    let mut at = HEADER as u32;
    let frames = limits.frames;
    for (number, item) in wanted.iter().enumerate() {
        let (name, ty, shape, fill, size) = match item {
            Wanted::Missing { name, ty, why } => {
                let (name, ty) = (name.clone(), ty.clone());
                items.push(Item { name, ty, at, shape: None, missing: Some(why.clone()) });
                continue;
            }
            Wanted::Registers => {
                ("$regs".to_owned(), "struct pt_regs".to_owned(), registers(), Fill::Registers, 168)
            }
            Wanted::Stack { user } => {
                let user = *user;
                let name = if user { "$ustack" } else { "$stack" }.to_owned();
                let room = 8 * frames;
                let fill = Fill::Stack { user, skip: 0, room };
                (name, "stack".to_owned(), Shape::Stack { frames }, fill, 8 + room)
            }
            Wanted::Callers { user, skip } => {
                let (frames, ty) = (frames.min(MOST_CALLERS.into()), "stack".to_owned());
                let room = 8 * frames;
                let fill = Fill::Stack { user: *user, skip: *skip, room };
                ("$callers".to_owned(), ty, Shape::Stack { frames }, fill, 8 + room)
            }
            Wanted::Expression(name, Collected { what: What::Parts(size), parts, ty, shown, .. }) => {
                let mut shape = Shape::of(scope, ty);
                // In order: each part is written as eight bytes, and the next one overwrites the excess.
                for part in parts {
                    match &part.func {
                        Some(func) => {
                            let fill = Fill::Value(compile(name, func)?);
                            slots.push(Slot { at: at + part.at as u32, number: number as u32, fill });
                        }
                        None => shape.lacks(part.at * 8, part.size * 8),
                    }
                }
                let (name, ty) = (name.clone(), shown.clone());
                items.push(Item { name, ty, at, shape: Some(shape), missing: None });
                at += size.next_multiple_of(8) as u32 + 8;
                continue;
            }
            Wanted::Expression(
                name,
                Collected { func, what: What::Elements(elements), parts, shown, .. },
            ) => {
                let count = parts.first().and_then(|part| part.func.as_ref());
                let count =
                    count.ok_or_else(|| Error::Cannot(format!("`{name}` has no number of elements")))?;
                let (address, count) = (compile(name, func)?, compile(name, count)?);
                // An element that is longer than a string would be is kept alone.
                let (bytes, stride) = (u64::from(limits.text), elements.size);
                let most = if limits.key { bytes / stride } else { (bytes / stride).max(1) };
                if most == 0 || stride > LARGEST {
                    let what =
                        format!("each element of `{name}` has {stride} bytes: name one of them, or a member");
                    return Err(Error::Cannot(what));
                }
                let room = (most * stride).next_multiple_of(8) as u32;
                let (most, stride) = (most as u32, stride as u32);
                let of = Box::new(Shape::of(scope, &elements.of));
                let shape = Shape::Elements { of, stride, room, most, text: elements.text };
                (
                    name.clone(),
                    shown.clone(),
                    shape,
                    Fill::Elements { address, count, stride, most },
                    8 + room,
                )
            }
            Wanted::Expression(name, collected) => {
                let segment = compile(name, &collected.func)?;
                let (shape, fill, size) = whole(scope, collected, segment, limits)?;
                (name.clone(), collected.shown.clone(), shape, fill, size)
            }
        };
        items.push(Item { name, ty, at, shape: Some(shape), missing: None });
        slots.push(Slot { at, number: number as u32, fill });
        at += size;
    }
    Ok((items, slots, at))
}

/// A value in one piece: the type of its bytes, its source, its size in the record.
fn whole(
    scope: &dyn Scope,
    collected: &Collected,
    segment: Segment,
    limits: Limits,
) -> Result<(Shape, Fill, u32), Error> {
    let name = segment.text.clone();
    Ok(match collected.what {
        What::Comm => (Shape::Text { room: 16, cut: None }, Fill::Comm, 24),
        // An array that is not too long is copied whole.
        What::Text(Some(n)) if !limits.key && (1..u64::from(limits.text)).contains(&n) => {
            let size = n as u32;
            (Shape::Chars { size }, Fill::Memory(segment, size), size.next_multiple_of(8))
        }
        What::Text(limit) => {
            // One byte more than is shown tells whether the string continues.
            let most = if limits.key { limits.text } else { limits.text + 1 };
            let whole = limit.and_then(|n| u32::try_from(n.saturating_add(1)).ok()).filter(|n| *n < most);
            let (bytes, cut) = match whole {
                Some(n) => (n, None),
                None => (most, Some(most)),
            };
            let room = bytes.next_multiple_of(8);
            (Shape::Text { room, cut }, Fill::Text(segment, room, bytes), 8 + room)
        }
        What::Parts(_) | What::Elements(_) => {
            return Err(Error::Cannot(format!("`{name}` is not in memory as a whole")));
        }
        What::Memory(size) if size == 0 || size > LARGEST => {
            let what = format!("`{name}` has {size} bytes, {LARGEST} can be collected: name a member of it");
            return Err(Error::Cannot(what));
        }
        What::Memory(size) => {
            let size = size as u32;
            let shape = Shape::of(scope, &collected.ty);
            (shape, Fill::Memory(segment, size), size.next_multiple_of(8))
        }
        // A number that views turn into the container's id.
        What::Value if collected.shown == "container" => (Shape::Container, Fill::Value(segment), 8),
        What::Value => {
            let shape = match Shape::of(scope, &collected.ty) {
                // A bitfield or an enumerator: the computed value has 64 bits.
                Shape::Int { signed, .. } => Shape::Int { size: 8, signed },
                Shape::Enum { signed, names, .. } => Shape::Enum { size: 8, signed, names },
                shape @ (Shape::Bool | Shape::Char | Shape::Pointer) => shape,
                // An array's value is the address of its first element.
                _ if matches!(collected.ty, Ty::Array(..)) => Shape::Pointer,
                _ => Shape::Int { size: 8, signed: true },
            };
            (shape, Fill::Value(segment), 8)
        }
    })
}

fn registers() -> Shape {
    let member = |(n, reg): (usize, &regs::Reg)| Member {
        name: reg.name().to_owned(),
        offset: 64 * n as u64,
        bits: None,
        shape: Shape::Pointer,
    };
    Shape::Record { members: regs::ALL.iter().enumerate().map(member).collect() }
}
