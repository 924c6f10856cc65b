// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats events without special handling as text: `sched_wakeup: comm=ls pid=7 prio=120 target_cpu=0`.
//!
//! Input: formats, once; then records. Output: the event's name, and its fields formatted by type. The kernel's own
//! format (`print fmt`, which is C) is not used.

use std::io::Write as _;

use crate::Event;
use crate::bytes::{Order, until_nul};
use crate::format::{Field, Format};

/// Writes the text of an event; returns false if there is none.
pub type Describe<'s> = &'s dyn Fn(&Event<'_>, &mut Vec<u8>) -> bool;

/// Subsystem, name, and fields of a record.
pub type Described<'s> = (&'s str, &'s str, Vec<(&'s str, Vec<u8>)>);

/// Formatter for the events of one machine.
#[derive(Debug, Clone)]
pub struct Shown {
    by_id: Vec<Option<Format>>,
    order: Order,
}

/// Representation of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Text,
    /// Text elsewhere in the record. The lower half of the word is the offset, from the record's start or from the end
    /// of the field; the upper half is the length.
    TextAt {
        relative: bool,
    },
    Address,
    Signed,
    Unsigned,
    /// An array of numbers of this size in bytes.
    Array(usize),
}

impl Shown {
    /// Returns a formatter for these formats. `big` is true for a big-endian machine.
    #[must_use]
    pub fn new(formats: &[Format], big: bool) -> Self {
        let size = formats.iter().map(|f| usize::from(f.id) + 1).max().unwrap_or(0);
        let mut by_id = vec![None; size];
        for format in formats {
            by_id[usize::from(format.id)] = Some(format.clone());
        }
        Shown { by_id, order: if big { Order::Big } else { Order::Little } }
    }

    /// Appends a record as text. Returns `false` if the format is unknown. `named` returns the symbol of a kernel
    /// address.
    pub fn write(
        &self,
        id: u16,
        record: &[u8],
        named: &dyn Fn(u64) -> Option<String>,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(Some(format)) = self.by_id.get(usize::from(id)) else { return false };
        out.extend_from_slice(format.name.as_bytes());
        out.push(b':');
        for field in format.fields.iter().filter(|field| !field.name.starts_with("common_")) {
            let _ = write!(out, " {}=", field.name);
            if self.field(field, record, named, out).is_none() {
                out.extend_from_slice(b"(cut off)");
            }
        }
        true
    }

    /// The subsystem and the name of a record's event, and its fields as text, in their order. `None` if the format is
    /// unknown.
    pub fn fields(
        &self,
        id: u16,
        record: &[u8],
        named: &dyn Fn(u64) -> Option<String>,
    ) -> Option<Described<'_>> {
        let format = self.by_id.get(usize::from(id))?.as_ref()?;
        let own = format.fields.iter().filter(|field| !field.name.starts_with("common_"));
        let text = |field: &'_ Field| {
            let mut out = Vec::new();
            if self.field(field, record, named, &mut out).is_none() {
                out.extend_from_slice(b"(cut off)");
            }
            out
        };
        Some((&format.system, &format.name, own.map(|field| (field.name.as_str(), text(field))).collect()))
    }

    fn field(
        &self,
        field: &Field,
        record: &[u8],
        named: &dyn Fn(u64) -> Option<String>,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let rest = record.get(field.offset..)?;
        // A stack trace extends to the end of the record, whatever its format says.
        let all = field.size == 0 || field.name == "caller" && field.kind.contains('[');
        let bytes = if all { rest } else { rest.get(..field.size)? };
        let number = || self.order.number(record, field.offset, field.size);
        // Writing to memory cannot fail.
        let _ = match shape(field) {
            Shape::Text => {
                out.extend_from_slice(until_nul(bytes));
                Ok(())
            }
            Shape::TextAt { relative } => {
                let place = number()?;
                let from = (place & 0xffff) as usize + if relative { field.offset + field.size } else { 0 };
                let text = record.get(from..from + (place >> 16 & 0xffff) as usize)?;
                out.extend_from_slice(until_nul(text));
                Ok(())
            }
            Shape::Address => write_address(number()?, named, out),
            Shape::Signed => {
                let unused = 64 - 8 * field.size as u32;
                write!(out, "{}", ((number()? << unused) as i64) >> unused)
            }
            Shape::Unsigned => match number()? {
                // `unsigned long ip`: a number this large is an address.
                address if field.size == 8 && address >= KERNEL => write_address(address, named, out),
                number => write!(out, "{number}"),
            },
            Shape::Array(each) => {
                for at in (0..bytes.len() / each).map(|n| field.offset + n * each) {
                    let comma = if at > field.offset { "," } else { "" };
                    out.extend_from_slice(comma.as_bytes());
                    let _ = write_address(self.order.number(record, at, each)?, named, out);
                }
                Ok(())
            }
        };
        Some(())
    }
}

/// Start of the kernel's half of the address space.
const KERNEL: u64 = 0xffff_8000_0000_0000;

/// Writes an address, with its symbol if that is known.
fn write_address(
    address: u64,
    named: &dyn Fn(u64) -> Option<String>,
    out: &mut Vec<u8>,
) -> std::io::Result<()> {
    write!(out, "{address:#x}")?;
    match Some(address).filter(|address| *address >= KERNEL).and_then(named) {
        Some(name) => write!(out, " <{name}>"),
        None => Ok(()),
    }
}

fn shape(field: &Field) -> Shape {
    let kind = field.kind.as_str();
    let words = || kind.split([' ', '[']).filter(|word| !word.is_empty());
    let is = |word: &str| words().any(|w| w == word);
    match field.size {
        4 if kind.starts_with("__data_loc") && is("char") => Shape::TextAt { relative: false },
        4 if kind.starts_with("__rel_loc") && is("char") => Shape::TextAt { relative: true },
        1 | 2 | 4 | 8 if kind.contains('*') => Shape::Address,
        size if is("char") && size != 1 => Shape::Text,
        1 | 2 | 4 | 8 => {
            // The kernel calls an `int` of a system call unsigned, as its field is a register. A name of a type that
            // C does not have, such as `initcall_t`, tells nothing: there its word counts.
            let unsigned = |word: &str| {
                let stem = word.trim_start_matches('_');
                word == "unsigned"
                    || matches!(stem, "u8" | "u16" | "u32" | "u64" | "size_t" | "dev_t" | "bool" | "gfp_t")
                    || matches!(stem, "ino_t" | "sector_t" | "uid_t" | "gid_t")
            };
            let of_c = is("int") || is("long") || is("short") || is("char");
            match words().any(unsigned) || !of_c && field.signed == Some(false) {
                true => Shape::Unsigned,
                false => Shape::Signed,
            }
        }
        size => {
            let wide = is("long") || is("u64") || is("__u64") || is("s64") || kind.contains('*');
            Shape::Array(if wide && size % 8 == 0 {
                8
            } else if is("int") && size % 4 == 0 {
                4
            } else {
                1
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FORMAT: &[u8] = b"name: thing\nID: 7\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:char comm[8];\toffset:4;\tsize:8;\tsigned:0;\n\
        \tfield:pid_t pid;\toffset:12;\tsize:4;\tsigned:1;\n\
        \tfield:void * func;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:__data_loc char[] name;\toffset:24;\tsize:4;\tsigned:0;\n\
        \tfield:u8 flag;\toffset:28;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned long args[2];\toffset:32;\tsize:16;\tsigned:0;\n";

    #[test]
    fn fields_are_written_as_their_types_say() {
        let shown = Shown::new(&[Format::parse("x", FORMAT).unwrap()], false);
        let mut record = vec![7, 0, 0, 0];
        record.extend(b"ls\0\0\0\0\0\0");
        record.extend((-3i32).to_le_bytes());
        record.extend(0xffff_ffff_8100_0000u64.to_le_bytes());
        record.extend((3 << 16 | 48u32).to_le_bytes());
        record.extend([200, 1, 2, 3]);
        record.extend([7u64, 0xffff_ffff_ffff_ffff].map(u64::to_le_bytes).as_flattened());
        record.extend(b"io\0");
        let mut out = Vec::new();
        let named = |address| (address == 0xffff_ffff_8100_0000).then(|| "vfs_read+0x4".to_owned());
        assert!(shown.write(7, &record, &named, &mut out));
        let said = "thing: comm=ls pid=-3 func=0xffffffff81000000 <vfs_read+0x4> name=io flag=200 args=0x7,0xffffffffffffffff";
        assert_eq!(String::from_utf8_lossy(&out), said);
        out.clear();
        assert!(shown.write(7, &record[..20], &named, &mut out));
        let said = "thing: comm=ls pid=-3 func=(cut off) name=(cut off) flag=(cut off) args=(cut off)";
        assert_eq!(String::from_utf8_lossy(&out), said);
        assert!(!shown.write(8, &record, &named, &mut out));
    }

    #[test]
    fn a_type_of_the_kernel_is_signed_as_its_format_says() {
        let text = "name: initcall_start\nID: 7\nformat:\n\
            \tfield:initcall_t func;\toffset:8;\tsize:8;\tsigned:0;\n\
            \tfield:blk_opf_t op;\toffset:16;\tsize:4;\tsigned:0;\n\
            \tfield:loff_t pos;\toffset:24;\tsize:8;\tsigned:1;\n\
            \tfield:int dfd;\toffset:32;\tsize:8;\tsigned:0;\n\
            \tfield:key_t old;\toffset:40;\tsize:4;\n";
        let shown = Shown::new(&[Format::parse("x", text.as_bytes()).unwrap()], false);
        let mut record = vec![0; 8];
        record.extend(0xffff_ffff_833b_0000u64.to_le_bytes());
        record.extend([0x8000_0001u32, 0].map(u32::to_le_bytes).as_flattened());
        record.extend([-1i64, -100].map(i64::to_le_bytes).as_flattened());
        record.extend((-2i32).to_le_bytes());
        let mut out = Vec::new();
        let named = |address| (address == 0xffff_ffff_833b_0000).then(|| "jent_mod_init".to_owned());
        assert!(shown.write(7, &record, &named, &mut out));
        let said =
            "initcall_start: func=0xffffffff833b0000 <jent_mod_init> op=2147483649 pos=-1 dfd=-100 old=-2";
        assert_eq!(String::from_utf8_lossy(&out), said);
    }

    proptest! {
        #[test]
        fn any_bytes_are_text(record: Vec<u8>, size in 0usize..40, offset in 0usize..60, kind in "[a-z_]{1,10}( char)?", signed: Option<bool>) {
            let field = Field { name: "f".into(), kind, offset, size, signed, is_array: false };
            let shown = Shown::new(&[Format { id: 1, fields: vec![field], ..Format::default() }], true);
            prop_assert!(shown.write(1, &record, &|_| None, &mut Vec::new()));
        }
    }
}
