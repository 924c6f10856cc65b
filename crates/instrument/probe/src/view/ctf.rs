// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes records as a CTF 1.8 trace (diamon.org/ctf): `metadata`, which describes an event for each probe, and a
//! stream of one packet for each CPU. Every field is byte-aligned, so nothing is padded.
//!
//! Values are those of [`Shape::value`]. A value that could not be read is 0 or empty, and its name is in `unreadable`.
//! Names of C expressions become CTF names with a leading `_`, which readers remove; the expression itself is a comment
//! beside it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::stream::Probe;
use crate::stream::shape::{MORE, Member, Shape};

/// Size of a packet before its events, bytes.
const PACKET: usize = 8 + 36;

/// A record to write.
#[derive(Debug)]
pub struct Event<'a> {
    /// The probe's number.
    pub probe: u16,
    /// CPU number.
    pub cpu: u16,
    /// Time, ns.
    pub time_ns: u64,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Values by item; `None` could not be read.
    pub values: &'a [Option<Value>],
}

/// The events of all CPUs.
#[derive(Debug, Default)]
pub struct Streams {
    /// By CPU: the first and the last time, and the encoded events.
    cpus: BTreeMap<u16, (u64, u64, Vec<u8>)>,
}

impl Streams {
    /// Adds a record. The records of one CPU must come in order of time.
    pub fn push(&mut self, probe: &Probe, event: &Event<'_>) {
        let time = event.time_ns;
        let (_, last, out) = self.cpus.entry(event.cpu).or_insert((time, time, Vec::new()));
        *last = time.max(*last);
        out.extend(u32::from(event.probe).to_le_bytes());
        out.extend(last.to_le_bytes());
        out.extend(event.pid.to_le_bytes());
        out.extend(event.tid.to_le_bytes());
        let items = probe.items.iter().enumerate().filter_map(|(n, item)| {
            let value = event.values.get(n).and_then(Option::as_ref);
            Some((item, item.shape.as_ref()?, value))
        });
        let missing: Vec<&str> = items
            .clone()
            .filter(|(_, _, value)| value.is_none())
            .map(|(item, ..)| item.name.as_str())
            .collect();
        out.extend((missing.len() as u32).to_le_bytes());
        missing.iter().for_each(|name| string(name, out));
        for (_, shape, value) in items {
            put(shape, value.unwrap_or(&Value::Null), out);
        }
    }

    /// One file for each CPU: its number and bytes.
    pub fn files(self) -> impl Iterator<Item = (u16, Vec<u8>)> {
        self.cpus.into_iter().map(|(cpu, (first, last, events))| {
            let bits = 8 * (PACKET + events.len()) as u64;
            let mut out = Vec::with_capacity(PACKET + events.len());
            out.extend(0xc1fc_1fc1_u32.to_le_bytes());
            out.extend(0_u32.to_le_bytes());
            for word in [first, last, bits, bits] {
                out.extend(word.to_le_bytes());
            }
            out.extend(u32::from(cpu).to_le_bytes());
            out.extend(events);
            (cpu, out)
        })
    }
}

const HEAD: &str = "/* CTF 1.8 */
trace {
\tmajor = 1;
\tminor = 8;
\tbyte_order = le;
\tpacket.header := struct {
\t\tinteger { size = 32; align = 8; signed = false; base = hexadecimal; } magic;
\t\tinteger { size = 32; align = 8; signed = false; } stream_id;
\t};
};
env {
\ttracer_name = \"kprism\";
};
clock {
\tname = monotonic;
\tfreq = 1000000000;
};
typealias integer { size = 64; align = 8; signed = false; map = clock.monotonic.value; } := time;
stream {
\tid = 0;
\tpacket.context := struct {
\t\ttime timestamp_begin;
\t\ttime timestamp_end;
\t\tinteger { size = 64; align = 8; signed = false; } content_size;
\t\tinteger { size = 64; align = 8; signed = false; } packet_size;
\t\tinteger { size = 32; align = 8; signed = false; } cpu_id;
\t};
\tevent.header := struct {
\t\tinteger { size = 32; align = 8; signed = false; } id;
\t\ttime timestamp;
\t};
\tevent.context := struct {
\t\tinteger { size = 32; align = 8; signed = true; } pid;
\t\tinteger { size = 32; align = 8; signed = true; } tid;
\t};
};
";

/// The `metadata` for the streams of these probes.
pub fn metadata(probes: &[Probe]) -> String {
    let mut out = HEAD.to_owned();
    for (id, probe) in probes.iter().enumerate() {
        let _ = writeln!(out, "event {{\n\tid = {id};\n\tname = {};\n\tstream_id = 0;", quoted(&probe.place));
        out.push_str("\tfields := struct {\n");
        let mut names = FieldNames::new(&[]);
        field(&Shape::Stack { frames: 0 }, "unreadable", &mut names, 2, &mut out);
        for item in &probe.items {
            let Some(shape) = &item.shape else { continue };
            let comment = item.name.replace("*/", "* /").replace(|c: char| c.is_control(), " ");
            let _ = writeln!(out, "\t\t/* {comment} */");
            field(shape, &item.name, &mut names, 2, &mut out);
        }
        out.push_str("\t};\n};\n");
    }
    out
}

/// Names in one structure: letters, digits and `_`, each used once.
#[derive(Debug)]
pub struct FieldNames(Vec<String>);

impl FieldNames {
    /// No name is used but these.
    pub fn new(taken: &[&str]) -> Self {
        Self(taken.iter().map(|name| (*name).to_owned()).collect())
    }

    /// A name for this text, unlike those before.
    pub fn of(&mut self, text: &str) -> String {
        let mut name = String::new();
        for c in text.replace("->", ".").chars() {
            match c {
                'a'..='z' | 'A'..='Z' | '0'..='9' => name.push(c),
                _ if name.ends_with('_') || name.is_empty() => {}
                _ => name.push('_'),
            }
        }
        let name = name.trim_end_matches('_').to_owned();
        let name = if name.is_empty() { "value".to_owned() } else { name };
        let numbered = |n: usize| if n == 1 { name.clone() } else { format!("{name}_{n}") };
        let free = (1..).map(numbered).find(|name| !self.0.contains(name)).unwrap_or(name);
        self.0.push(free.clone());
        free
    }
}

/// A text between quotes, as metadata have it; control characters become blanks.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out + "\""
}

fn bytes_of(size: u8) -> u8 {
    if matches!(size, 1 | 2 | 4) { size } else { 8 }
}

/// Declares a value. An array is preceded by its length.
fn field(shape: &Shape, name: &str, names: &mut FieldNames, depth: usize, out: &mut String) {
    let tabs = "\t".repeat(depth);
    match shape {
        // The members of an anonymous structure belong to its owner.
        Shape::Record { members } if name.is_empty() => {
            members.iter().for_each(|m| field(&m.shape, &m.name, names, depth, out));
        }
        Shape::Array { of, .. } | Shape::Elements { of, text: false, .. } => {
            let name = names.of(name);
            let length = names.of(&format!("{name} length"));
            let _ = writeln!(out, "{tabs}integer {{ size = 32; align = 8; signed = false; }} _{length};");
            let _ = writeln!(out, "{tabs}{} _{name}[_{length}];", kind(of, depth));
        }
        Shape::Stack { .. } => {
            let name = names.of(name);
            let length = names.of(&format!("{name} length"));
            let _ = writeln!(out, "{tabs}integer {{ size = 32; align = 8; signed = false; }} _{length};");
            let _ = writeln!(out, "{tabs}string _{name}[_{length}];");
        }
        _ => {
            let name = names.of(name);
            let _ = writeln!(out, "{tabs}{} _{name};", kind(shape, depth));
        }
    }
}

/// Declares a type. An array in an array becomes a structure.
fn kind(shape: &Shape, depth: usize) -> String {
    let integer = |size: u8, signed: bool, base: u8| {
        format!("integer {{ size = {}; align = 8; signed = {signed}; base = {base}; }}", 8 * bytes_of(size))
    };
    let structure = |members: &mut dyn Iterator<Item = (&str, &Shape)>| {
        let mut inner = String::new();
        let mut names = FieldNames::new(&[]);
        members.for_each(|(name, shape)| field(shape, name, &mut names, depth + 1, &mut inner));
        format!("struct {{\n{inner}{}}} align(8)", "\t".repeat(depth))
    };
    match shape {
        Shape::Int { size, signed } => integer(*size, *signed, 10),
        Shape::Bool => integer(1, false, 10),
        Shape::Pointer => integer(8, false, 16),
        Shape::Enum { names, .. } if !names.is_empty() => {
            let names: Vec<String> =
                names.iter().map(|(name, n)| format!("{} = {n}", quoted(name))).collect();
            format!("enum : {} {{ {} }}", integer(8, true, 10), names.join(", "))
        }
        Shape::Enum { .. } => integer(8, true, 10),
        Shape::Float { size: 4 } => "floating_point { exp_dig = 8; mant_dig = 24; align = 8; }".to_owned(),
        Shape::Float { .. } => "floating_point { exp_dig = 11; mant_dig = 53; align = 8; }".to_owned(),
        Shape::Char | Shape::Text { .. } | Shape::Chars { .. } | Shape::Bytes { .. } => "string".to_owned(),
        Shape::Elements { text: true, .. } => "string".to_owned(),
        Shape::Wide { .. } | Shape::Choice { .. } | Shape::Missing { .. } | Shape::Container => {
            "string".to_owned()
        }
        Shape::Array { .. } | Shape::Stack { .. } | Shape::Elements { .. } => {
            structure(&mut std::iter::once(("values", shape)))
        }
        Shape::Record { members } => {
            structure(&mut members.iter().map(|m: &Member| (m.name.as_str(), &m.shape)))
        }
    }
}

/// Adds a text to an event: its bytes but zeros, and a zero.
pub fn string(text: &str, out: &mut Vec<u8>) {
    out.extend(text.bytes().filter(|b| *b != 0));
    out.push(0);
}

/// Writes a value as [`kind`] declares it.
fn put(shape: &Shape, value: &Value, out: &mut Vec<u8>) {
    let number = |n: i128, size: u8, out: &mut Vec<u8>| {
        out.extend(&n.to_le_bytes()[..usize::from(bytes_of(size))]);
    };
    match shape {
        Shape::Int { size, .. } => {
            let n = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
            number(n.unwrap_or(0), *size, out);
        }
        Shape::Bool => out.push(u8::from(value.as_bool().unwrap_or(false))),
        Shape::Pointer => {
            let hex = value.as_str().and_then(|text| text.strip_prefix("0x"));
            let n = hex.and_then(|hex| u64::from_str_radix(hex, 16).ok());
            out.extend(n.unwrap_or(0).to_le_bytes());
        }
        Shape::Enum { names, .. } => {
            let named = |name: &str| names.iter().find(|(known, _)| known == name).map(|(_, n)| *n);
            let n = value.as_i64().or_else(|| value.as_str().and_then(named));
            out.extend(n.unwrap_or(0).to_le_bytes());
        }
        // JSON has no number for NaN and infinity.
        Shape::Float { size } => {
            let named = value.as_str().and_then(|text| text.parse().ok());
            let n = value.as_f64().or(named).unwrap_or(f64::NAN);
            match size {
                4 => out.extend((n as f32).to_le_bytes()),
                _ => out.extend(n.to_le_bytes()),
            }
        }
        Shape::Char
        | Shape::Text { .. }
        | Shape::Chars { .. }
        | Shape::Bytes { .. }
        | Shape::Elements { text: true, .. } => {
            match value.as_str() {
                Some(text) => string(text, out),
                None if value.is_null() => string("", out),
                // The bytes are not text.
                None => string(&shape.line(value), out),
            }
        }
        Shape::Wide { .. } | Shape::Choice { .. } | Shape::Missing { .. } | Shape::Container => {
            string(&shape.line(value), out);
        }
        Shape::Array { of, .. } | Shape::Elements { of, .. } => {
            let all = value.as_array().map_or(&[][..], Vec::as_slice);
            // The note that there are more elements is no element.
            let all = match all.split_last() {
                Some((last, rest))
                    if matches!(shape, Shape::Elements { .. }) && last.as_str() == Some(MORE) =>
                {
                    rest
                }
                _ => all,
            };
            out.extend((all.len() as u32).to_le_bytes());
            all.iter().for_each(|value| put(of, value, out));
        }
        Shape::Stack { .. } => {
            let all = value.as_array().map_or(&[][..], Vec::as_slice);
            out.extend((all.len() as u32).to_le_bytes());
            all.iter().for_each(|frame| string(frame.as_str().unwrap_or_default(), out));
        }
        Shape::Record { members } => {
            let none = Map::new();
            let all = value.as_object().unwrap_or(&none);
            for member in members {
                let own = match &member.shape {
                    Shape::Record { .. } if member.name.is_empty() => Some(value),
                    _ => all.get(&member.name),
                };
                put(&member.shape, own.unwrap_or(&Value::Null), out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names() {
        let mut names = FieldNames::new(&["unreadable"]);
        let all = ["item->kind", "*item", "item.kind", "$comm", "a / (b + 1)", "", "unreadable"];
        let found = all.map(|text| names.of(text));
        assert_eq!(found, ["item_kind", "item", "item_kind_2", "comm", "a_b_1", "value", "unreadable_2"]);
    }
}
