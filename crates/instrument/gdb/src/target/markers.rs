// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's static tracepoints as GDB markers. A marker has the tracepoint's name and the address of the function
//! that calls its probes. GDB knows that function's parameters, which are the tracepoint's arguments, so conditions can
//! name them. Each place of the tracepoint in the code is a marker too, `SYSTEM:NAME@FUNCTION` (`places.rs`).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use kprism_bpf::host;
use kprism_ftrace::format::{Field, Format};
use kprism_rsp::hex;

use super::places::Place;
use crate::Error;

/// Prefix of the functions' names.
const PREFIX: &str = "__traceiter_";
/// Bytes for a record's strings and arrays, after its fields.
const STRINGS: u32 = 512;
/// Largest record, bytes.
const LARGEST: u32 = 4096;

/// A static tracepoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// Address of the function that calls its probes, or of the place in the code.
    pub address: u64,
    /// Its name.
    pub name: String,
    /// Set for a place in the code.
    pub place: Option<Place>,
    /// Its subsystem, and the folder that describes its event. `None` for tracepoints without an event.
    event: Option<(String, PathBuf)>,
}

impl Marker {
    /// The marker in GDB's format `ADDRESS:ID:EXTRA`, the last two in hexadecimal.
    pub fn packet(&self) -> String {
        let system = self.event.as_ref().map(|(system, _)| system.as_str());
        let (id, extra) = match &self.place {
            Some(place) => {
                let system = system.map_or(String::new(), |system| format!("{system}:"));
                let without = match place.missing.as_slice() {
                    [] => String::new(),
                    missing => format!(", without {}", missing.join(", ")),
                };
                let id = format!("{system}{}@{}", self.name, place.function);
                (id, format!("locals of {}{without}", place.function))
            }
            None => (self.name.clone(), system.unwrap_or("no event: it has no $_sdata").to_owned()),
        };
        format!("{:x}:{}:{}", self.address, hex::bytes(id.as_bytes()), hex::bytes(extra.as_bytes()))
    }

    /// The layout of its record.
    pub fn format(&self) -> Result<Format, Error> {
        let why = match host::tracefs() {
            Some(_) => "is a tracepoint but no event: it has no $_sdata",
            None => {
                "has its $_sdata described by tracefs, which is not mounted: mount -t tracefs tracefs /sys/kernel/tracing"
            }
        };
        let missing = || Error::Cannot(format!("{} {why}", self.name));
        let (system, folder) = self.event.as_ref().ok_or_else(missing)?;
        let path = folder.join("format");
        let text = fs::read(&path).map_err(Error::system(path.display().to_string()))?;
        Format::parse(system, &text).map_err(|why| Error::Cannot(why.to_string()))
    }
}

/// All markers of the running kernel. `symbols` is the text of `/proc/kallsyms`, `places` are places of tracepoints in
/// the code. Without tracefs none of them has an event.
pub fn all<'p>(symbols: &str, places: impl Iterator<Item = &'p Place>) -> Vec<Marker> {
    let events = host::tracefs().map(|tracefs| tracefs.join("events")).unwrap_or_default();
    let folders = |path: &PathBuf| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect::<Vec<_>>()
    };
    let name = |path: &PathBuf| path.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
    let mut known = HashMap::new();
    for system in folders(&events) {
        for event in folders(&system) {
            known.insert(name(&event), (name(&system), event));
        }
    }
    let mut found: Vec<Marker> = functions(symbols)
        .map(|(address, name)| Marker {
            address,
            name: name.to_owned(),
            place: None,
            event: known.get(name).cloned(),
        })
        .collect();
    found.extend(places.map(|place| Marker {
        address: place.address,
        name: place.tracepoint.clone(),
        event: known.get(&place.tracepoint).cloned(),
        place: Some(place.clone()),
    }));
    found.sort_by(|a, b| {
        (&a.name, a.place.is_some(), a.address).cmp(&(&b.name, b.place.is_some(), b.address))
    });
    found
}

fn functions(symbols: &str) -> impl Iterator<Item = (u64, &str)> {
    symbols.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((address, words.nth(1)?.strip_prefix(PREFIX)?))
    })
}

/// Number of bytes of a record that are copied.
pub fn record_bytes(format: &Format) -> u32 {
    let end = format.fields.iter().map(|f| f.offset.saturating_add(f.size)).max().unwrap_or(0);
    let strings = if format.fields.iter().any(|f| f.kind.contains("_loc")) { STRINGS } else { 0 };
    (u32::try_from(end).unwrap_or(LARGEST).saturating_add(strings)).min(LARGEST).next_multiple_of(8)
}

/// A record as text: `NAME=VALUE …`.
pub fn text(format: &Format, record: &[u8]) -> String {
    let mut out = String::new();
    for field in format.fields.iter().filter(|f| !f.name.starts_with("common_")) {
        let gap = if out.is_empty() { "" } else { " " };
        let _ = write!(out, "{gap}{}={}", field.name, value(field, record).unwrap_or_else(|| "?".to_owned()));
    }
    out
}

fn value(field: &Field, record: &[u8]) -> Option<String> {
    let bytes = record.get(field.offset..field.offset.checked_add(field.size)?)?;
    let number = || {
        let mut word = [0; 8];
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    };
    let quoted = |bytes: &[u8]| {
        let text = bytes.split(|b| *b == 0).next().unwrap_or(&[]);
        format!("\"{}\"", text.escape_ascii())
    };
    if field.kind.contains("__data_loc") || field.kind.contains("__rel_loc") {
        // The lower half is the offset, the upper half the length.
        let place = number()?;
        let relative = if field.kind.contains("__rel_loc") { field.offset + field.size } else { 0 };
        let at = (place & 0xffff) as usize + relative;
        let data = record.get(at..at + (place >> 16 & 0xffff) as usize)?;
        return Some(if field.kind.contains("char") {
            quoted(data)
        } else {
            format!("0x{}", hex::bytes(data))
        });
    }
    Some(match field.size {
        size if size > 1 && field.kind.ends_with("char") => quoted(bytes),
        1 | 2 | 4 | 8 if field.kind.contains('*') => format!("{:#x}", number()?),
        size @ (1 | 2 | 4 | 8) => {
            let unsigned = field.kind.split(' ').any(|w| {
                matches!(w, "unsigned" | "u8" | "u16" | "u32" | "u64" | "__u8" | "__u16" | "__u32" | "__u64")
                    || matches!(w, "size_t" | "bool" | "uid_t" | "gid_t" | "dev_t" | "ino_t" | "sector_t")
            });
            let shift = 64 - 8 * size as u32;
            let n = number()?;
            if unsigned { n.to_string() } else { ((n << shift) as i64 >> shift).to_string() }
        }
        _ => format!("0x{}", hex::bytes(bytes)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &[u8] = b"name: one\nID: 7\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:int a;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:unsigned int b;\toffset:12;\tsize:4;\tsigned:0;\n\
        \tfield:char comm[8];\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:__data_loc char[] name;\toffset:24;\tsize:4;\tsigned:0;\n\
        \tfield:void * p;\toffset:32;\tsize:8;\tsigned:0;\n\nprint fmt: \"\"\n";

    #[test]
    fn records_in_words() {
        let format = Format::parse("sys", FORMAT).unwrap();
        assert_eq!(record_bytes(&format), 40 + 512);
        let mut record = vec![0; 60];
        record[8..12].copy_from_slice(&(-2i32).to_le_bytes());
        record[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        record[16..19].copy_from_slice(b"cat");
        record[24..28].copy_from_slice(&(5u32 << 16 | 40).to_le_bytes());
        record[32] = 0x10;
        record[40..44].copy_from_slice(b"a\"b\xff");
        let wanted = r#"a=-2 b=4294967295 comm="cat" name="a\"b\xff" p=0x10"#;
        assert_eq!(text(&format, &record), wanted);
        assert!(text(&format, &record[..26]).ends_with("comm=\"cat\" name=? p=?"));
    }

    #[test]
    fn functions_of_kallsyms() {
        let text = "ffffffff81000000 T _text\nffffffffc0001010 T __traceiter_one\t[mod]\n";
        assert_eq!(functions(text).collect::<Vec<_>>(), [(0xffff_ffff_c000_1010, "one")]);
    }
}
