// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of CTF, and the metadata that describe them. In: events in order of time. Out: a file for each CPU, written a packet at
//! a time, and `metadata`.
//!
//! Every field is byte-aligned, so nothing is padded. An event is described once for each name and each list of fields: where a
//! value is now a number and now a text, there are two descriptions of one name.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kprism_probe::view::ctf::{FieldNames, quoted, string};

use super::event::{Event, Field};

/// Bytes of events at which a packet is written.
const PACKET: usize = 256 << 10;
/// Bytes of a packet before its events; those without a CPU have 4 less.
const BEFORE: usize = 8 + 36;

/// The kind of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Number,
    Large,
    Float,
    Text,
}

impl Kind {
    fn of(field: &Field<'_>) -> Self {
        match field {
            Field::Number(_) => Kind::Number,
            Field::Large(_) => Kind::Large,
            Field::Float(_) => Kind::Float,
            Field::Text(_) => Kind::Text,
        }
    }

    fn declared(self) -> &'static str {
        match self {
            Kind::Number => "integer { size = 64; align = 8; signed = true; }",
            Kind::Large => "integer { size = 64; align = 8; signed = false; }",
            Kind::Float => "floating_point { exp_dig = 11; mant_dig = 53; align = 8; }",
            Kind::Text => "string",
        }
    }
}

/// A description of an event: the stream's kind, its name, its fields.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Described {
    stream: u32,
    name: String,
    fields: Vec<(String, Kind)>,
}

/// A stream's file and the packet that is not written yet.
struct Stream {
    file: File,
    first: u64,
    last: u64,
    packet: Vec<u8>,
}

/// All streams.
pub(super) struct Streams<'p> {
    dir: &'p Path,
    /// By CPU.
    streams: BTreeMap<Option<u16>, Stream>,
    /// Numbers of descriptions, and these in order of their numbers.
    ids: HashMap<Described, u32>,
    events: u64,
}

impl<'p> Streams<'p> {
    /// Streams in this empty folder.
    pub fn new(dir: &'p Path) -> Self {
        Streams { dir, streams: BTreeMap::new(), ids: HashMap::new(), events: 0 }
    }

    /// Adds an event. Events come in order of time.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn push(&mut self, ns: u64, cpu: Option<u16>, event: Event<'_>) -> Result<()> {
        let fields = event.fields.iter().map(|(name, field)| (name.to_string(), Kind::of(field))).collect();
        let described = Described { stream: cpu.is_none().into(), name: event.name, fields };
        let next = u32::try_from(self.ids.len()).context("too many kinds of events")?;
        let id = *self.ids.entry(described).or_insert(next);
        let stream = match self.streams.entry(cpu) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let file = match cpu {
                    Some(cpu) => self.dir.join(format!("cpu_{cpu}")),
                    None => self.dir.join("no_cpu"),
                };
                let file = create(file)?;
                entry.insert(Stream { file, first: ns, last: ns, packet: Vec::new() })
            }
        };
        if stream.packet.is_empty() {
            stream.first = ns.max(stream.last);
        }
        stream.last = ns.max(stream.last);
        let out = &mut stream.packet;
        out.extend(id.to_le_bytes());
        out.extend(stream.last.to_le_bytes());
        out.extend((event.tid as i32).to_le_bytes());
        string(event.comm, out);
        for (_, field) in &event.fields {
            match field {
                Field::Number(n) => out.extend(n.to_le_bytes()),
                Field::Large(n) => out.extend(n.to_le_bytes()),
                Field::Float(n) => out.extend(n.to_le_bytes()),
                Field::Text(text) => string(text, out),
            }
        }
        self.events += 1;
        if stream.packet.len() >= PACKET { stream.write(cpu) } else { Ok(()) }
    }

    /// Writes what is left, and the metadata with these facts on the run. Returns the number of events.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn finish(mut self, facts: &[(&str, String)]) -> Result<u64> {
        for (cpu, stream) in &mut self.streams {
            if !stream.packet.is_empty() {
                stream.write(*cpu)?;
            }
        }
        let mut described: Vec<(u32, Described)> = self.ids.into_iter().map(|(d, id)| (id, d)).collect();
        described.sort_by_key(|(id, _)| *id);
        fs::write(self.dir.join("metadata"), metadata(facts, &described)).context("metadata")?;
        Ok(self.events)
    }
}

fn create(path: PathBuf) -> Result<File> {
    File::create(&path).with_context(|| path.display().to_string())
}

impl Stream {
    fn write(&mut self, cpu: Option<u16>) -> Result<()> {
        let before = BEFORE - if cpu.is_none() { 4 } else { 0 };
        let bits = 8 * (before + self.packet.len()) as u64;
        let mut head = Vec::with_capacity(before);
        head.extend(0xc1fc_1fc1_u32.to_le_bytes());
        head.extend(u32::from(cpu.is_none()).to_le_bytes());
        for word in [self.first, self.last, bits, bits] {
            head.extend(word.to_le_bytes());
        }
        if let Some(cpu) = cpu {
            head.extend(u32::from(cpu).to_le_bytes());
        }
        self.file.write_all(&head)?;
        self.file.write_all(&self.packet)?;
        self.packet.clear();
        Ok(())
    }
}

const HEAD: &str = "/* CTF 1.8 */
typealias integer { size = 32; align = 8; signed = false; } := uint32_t;
typealias integer { size = 32; align = 8; signed = true; } := int32_t;
typealias integer { size = 64; align = 8; signed = false; } := uint64_t;
trace {
\tmajor = 1;
\tminor = 8;
\tbyte_order = le;
\tpacket.header := struct {
\t\tuint32_t magic;
\t\tuint32_t stream_id;
\t};
};
clock {
\tname = \"monotonic\";
\tdescription = \"The clock of the run\";
\tfreq = 1000000000;
\toffset = 0;
};
typealias integer { size = 64; align = 8; signed = false; map = clock.monotonic.value; } := time_ns;
";

fn metadata(facts: &[(&str, String)], described: &[(u32, Described)]) -> String {
    let mut out = HEAD.to_owned();
    out.push_str("env {\n");
    for (name, value) in facts {
        let _ = writeln!(out, "\t{name} = {};", quoted(value));
    }
    out.push_str("\ttracer_major = 2;\n\ttracer_minor = 9;\n};\n");
    for (id, cpu) in [(0, "\t\tuint32_t cpu_id;\n"), (1, "")] {
        let _ = write!(
            out,
            "stream {{\n\tid = {id};\n\tpacket.context := struct {{\n\t\ttime_ns timestamp_begin;\n\t\ttime_ns timestamp_end;\n\
             \t\tuint64_t content_size;\n\t\tuint64_t packet_size;\n{cpu}\t}};\n\tevent.header := struct {{\n\t\tuint32_t id;\n\
             \t\ttime_ns timestamp;\n\t}};\n\tevent.context := struct {{\n\t\tint32_t _tid;\n\t\tstring _procname;\n\t}};\n}};\n"
        );
    }
    for (id, Described { stream, name, fields }) in described {
        let _ = writeln!(out, "event {{\n\tid = {id};\n\tname = {};\n\tstream_id = {stream};", quoted(name));
        out.push_str("\tfields := struct {\n");
        let mut names = FieldNames::new(&[]);
        for (name, kind) in fields {
            let _ = writeln!(out, "\t\t{} _{};", kind.declared(), names.of(name));
        }
        out.push_str("\t};\n};\n");
    }
    out
}
