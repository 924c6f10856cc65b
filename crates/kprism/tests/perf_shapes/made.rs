// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes one recording in the shapes that `perf record` gives it. In: the `data` of an exported run. Out: bytes of another
//! `data` with the same packets.

use std::io::Cursor;

use kprism_perfdata::attr::{flag, kind};
use kprism_perfdata::record::sample;
use kprism_perfdata::{Attr, Auxtrace, Contents, Features, Put, Record, Trailer, Writer};

pub const NONE: u32 = u32::MAX;
pub const LAYOUT: u64 = sample::IP | sample::TID | sample::TIME | sample::CPU | sample::IDENTIFIER;

/// Data follows the record.
pub const AUXTRACE: u32 = 71;
pub const AUXTRACE_INFO: u32 = 70;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;
const FINISHED_ROUND: u32 = 68;

/// What follows each other in the file.
#[derive(Debug, Clone)]
pub enum Part {
    Record(Vec<u8>),
    Aux(Auxtrace, Vec<u8>),
}

/// A piece of an AUX buffer, as the kernel tells of it, and perf writes it.
#[derive(Debug, Clone)]
pub struct Piece {
    pub cpu: u32,
    pub tid: u32,
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// AUX records: offset, size, flags.
    pub told: Vec<[u64; 3]>,
}

#[derive(Debug, Clone)]
pub struct Recording<'a> {
    pub attrs: Vec<Attr>,
    pub names: Vec<&'static str>,
    pub layout: u64,
    /// Settings of Intel PT.
    pub words: Vec<u64>,
    /// Records from before the recording.
    pub head: Vec<Record<'a>>,
    pub events: Vec<(Trailer, Record<'a>)>,
    /// Packets of each CPU.
    pub cpus: Vec<&'a [u8]>,
    pub features: Features,
}

impl<'a> Recording<'a> {
    pub fn new(contents: &Contents<'a>) -> Self {
        let mut this = Self {
            attrs: contents.header.attrs.clone(),
            names: vec!["intel_pt//", "dummy:u"],
            layout: LAYOUT,
            words: Vec::new(),
            head: Vec::new(),
            events: Vec::new(),
            cpus: contents.traces.iter().map(|(_, bytes)| *bytes).collect(),
            features: Features {
                release: contents.header.release.clone(),
                version: "6.1".to_owned(),
                cpus: contents.traces.len() as u32,
                command: contents.header.command.clone(),
                ..Features::default()
            },
        };
        for (path, id) in &contents.header.build_ids {
            let record = Record::BuildId { pid: NONE, id: id.clone(), path: path.clone() };
            record.encode(0, &Trailer::default(), &mut this.features.build_ids);
        }
        for event in &contents.events {
            match &event.record {
                Record::AuxtraceInfo { words, .. } => this.words.clone_from(words),
                Record::Aux { .. } => {}
                record if event.trailer.time.is_none_or(|ns| ns == 0) => this.head.push(record.clone()),
                record => this.events.push((event.trailer, record.clone())),
            }
        }
        this
    }

    /// Encodes a record with its trailer.
    pub fn record(&self, trailer: &Trailer, record: &Record<'_>) -> Part {
        let mut bytes = Vec::new();
        record.encode(self.layout, trailer, &mut bytes);
        Part::Record(bytes)
    }

    /// The id of Intel PT's event in a buffer.
    fn id(&self, piece: &Piece) -> u64 {
        let ids = &self.attrs[0].ids;
        ids[if piece.cpu == NONE { 0 } else { piece.cpu as usize % ids.len() }]
    }

    /// The head of the data.
    pub fn before(&self) -> Vec<Part> {
        let none = Trailer::default();
        let mut parts =
            vec![self.record(&none, &Record::AuxtraceInfo { kind: 1, words: self.words.clone() })];
        parts.extend(self.head.iter().map(|record| self.record(&none, record)));
        parts
    }

    /// In rounds, as perf empties its buffers: trace data, then what the kernel says about them, then the other records.
    pub fn rounds(&self, rounds: &[Vec<Piece>]) -> Vec<Part> {
        let mut parts = self.before();
        let (first, last) = (self.events[0].0.time.unwrap(), self.events.last().unwrap().0.time.unwrap());
        let mut from = 0;
        for (number, pieces) in (1..).zip(rounds) {
            let until = first + (last - first) * number / rounds.len() as u64;
            let to = self.events.partition_point(|(trailer, _)| trailer.time.unwrap() <= until);
            for piece in pieces {
                let &Piece { cpu, tid, offset, .. } = piece;
                let size = piece.bytes.len() as u64;
                let idx = if cpu == NONE { tid } else { cpu };
                let head = Auxtrace { size, offset, reference: until, idx, tid, cpu };
                parts.push(Part::Aux(head, piece.bytes.clone()));
                for &[offset, size, flags] in &piece.told {
                    let own = |number: u32| (number != NONE).then_some(number);
                    let trailer = Trailer {
                        pid: own(tid),
                        tid: own(tid),
                        time: Some(until),
                        cpu: own(cpu),
                        id: Some(self.id(piece)),
                    };
                    parts.push(self.record(&trailer, &Record::Aux { offset, size, flags }));
                }
            }
            for (trailer, record) in &self.events[from..to] {
                parts.push(self.record(trailer, record));
            }
            parts.push(self.record(&Trailer::default(), &Record::Other(FINISHED_ROUND)));
            from = to;
        }
        parts
    }

    /// A file of these parts.
    pub fn file(&self, parts: &[Part]) -> Vec<u8> {
        let mut out = Cursor::new(Vec::new());
        let mut writer = Writer::new(&mut out, self.attrs.clone()).unwrap();
        for part in parts {
            match part {
                Part::Record(bytes) => writer.records(bytes).unwrap(),
                Part::Aux(head, bytes) => writer.auxtrace(*head, bytes).unwrap(),
            }
        }
        let features = Features { events: self.names.clone(), ..self.features.clone() };
        writer.finish(&features).unwrap();
        out.into_inner()
    }

    /// Another event beside those there are, with an id for each CPU.
    pub fn add_event(&mut self, name: &'static str, kind: u32, config: u64, more: u64) -> Vec<u64> {
        let first = self.attrs.iter().flat_map(|attr| &attr.ids).max().unwrap() + 1;
        let ids: Vec<u64> = (first..).take(self.cpus.len()).collect();
        let (sample_type, flags) = (self.layout | more, flag::SAMPLE_ID_ALL | flag::INHERIT);
        self.attrs.push(Attr { kind, config, sample_type, flags, ids: ids.clone(), ..Attr::default() });
        self.names.push(name);
        for record in &mut self.head {
            if let Record::IdIndex(entries) = record {
                entries.extend((0..).zip(&ids).map(|(cpu, &id)| [id, cpu, cpu, u64::MAX]));
            }
        }
        ids
    }

    /// Switches as samples of the kernel's tracepoint, with its id, instead of records of their own.
    pub fn switches_by_tracepoint(&mut self, config: u64) {
        let ids =
            self.add_event("sched:sched_switch", kind::TRACEPOINT, config, sample::PERIOD | sample::RAW);
        self.words[7] = 1;
        for (trailer, record) in &mut self.events {
            let Record::SwitchCpuWide { out: true, tid, .. } = *record else { continue };
            let (prev, cpu) = (trailer.tid.unwrap(), trailer.cpu.unwrap());
            let mut raw = Vec::new();
            raw.u16(config as u16);
            raw.u16(0);
            raw.u32(prev);
            for pid in [prev, tid] {
                raw.put(&[0; 16]);
                raw.u32(pid);
                raw.u32(120);
                raw.put(if raw.len() < 40 { &[0; 8][..] } else { &[] });
            }
            let mut body = Vec::new();
            body.u64(ids[cpu as usize]);
            body.u64(0);
            body.u32(trailer.pid.unwrap());
            body.u32(prev);
            body.u64(trailer.time.unwrap());
            body.u64(cpu.into());
            body.u64(1);
            // The size of the data and the data fill words.
            raw.resize((raw.len() + 4).next_multiple_of(8) - 4, 0);
            body.u32(raw.len() as u32);
            body.put(&raw);
            *record = Record::Sample(body.leak());
        }
    }
}

pub fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// Calls `each` with the place, the type and the bytes of every record.
pub fn walk(file: &[u8], mut each: impl FnMut(usize, u32, &[u8])) {
    let mut at = word(file, 40);
    let end = at + word(file, 48);
    while at < end {
        let (kind, size) = (word(file, at) as u32, word(file, at) >> 48);
        each(at, kind, &file[at..at + size]);
        at += size + if kind == AUXTRACE { word(file, at + 8) } else { 0 };
    }
}

/// Feature sections of a file: number, bytes.
fn sections(file: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let (table, bits) = (word(file, 40) + word(file, 48), word(file, 72));
    let ids = (0..64).filter(|id| bits >> id & 1 == 1);
    let section = |(row, id): (usize, u64)| {
        let (at, len) = (word(file, table + 16 * row), word(file, table + 16 * row + 8));
        (id, file[at..at + len].to_vec())
    };
    ids.enumerate().map(section).collect()
}

/// The file with another feature section.
pub fn with_section(file: &[u8], id: u64, body: &[u8]) -> Vec<u8> {
    let mut all = sections(file);
    all.push((id, body.to_vec()));
    all.sort_by_key(|(id, _)| *id);
    let end = word(file, 40) + word(file, 48);
    let mut out = file[..end].to_vec();
    let mut at = end + 16 * all.len();
    for (_, body) in &all {
        out.u64(at as u64);
        out.u64(body.len() as u64);
        at += body.len();
    }
    all.iter().for_each(|(_, body)| out.put(body));
    let bits = all.iter().fold(0u64, |bits, (id, _)| bits | 1 << id);
    out[72..80].copy_from_slice(&bits.to_le_bytes());
    out
}

/// The same as `perf record -o -` writes it.
pub fn piped(file: &[u8]) -> Vec<u8> {
    let mut out = b"PERFILE2".to_vec();
    out.u64(16);
    let record = |out: &mut Vec<u8>, record: Record<'_>| record.encode(0, &Trailer::default(), out);
    let (size, attrs, attrs_len) = (word(file, 16), word(file, 24), word(file, 32));
    for attr in file[attrs..attrs + attrs_len].chunks(size) {
        let (ids, ids_len) = (word(attr, size - 16), word(attr, size - 8));
        record(&mut out, Record::Attr(&[&attr[..size - 16], &file[ids..ids + ids_len]].concat()));
    }
    const TRACING_DATA: u64 = 1;
    const AUXTRACE_INDEX: u64 = 18;
    for (id, body) in sections(file) {
        match id {
            TRACING_DATA => {
                let padded = body.len().next_multiple_of(8);
                out.put(&[66, 0, 0, 0, 0, 0, 12, 0]);
                out.u32(body.len() as u32);
                out.put(&body);
                out.put(&vec![0; padded - body.len()]);
            }
            2 => out.put(&body),
            AUXTRACE_INDEX => {}
            _ => {
                let padded = [&body[..], &vec![0; body.len().next_multiple_of(8) - body.len()]].concat();
                record(&mut out, Record::Feature { id, body: &padded });
            }
        }
    }
    let from = word(file, 40);
    out.put(&file[from..from + word(file, 48)]);
    out
}

/// The kernel's records compressed, as by `perf record -z`: one zstd stream, whose blocks perf flushes record by record.
/// The blocks are of zstd's kind that stores data as they are.
pub fn compressed(parts: &[Part], kind: u32) -> Vec<Part> {
    let (mut out, mut waiting) = (Vec::new(), Vec::new());
    // Magic number; no size, no checksum; a window of 8 MiB.
    let mut stream_head = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3];
    let mut flush = |waiting: &mut Vec<u8>, out: &mut Vec<Part>| {
        // A record may begin in one block and end in the next.
        for chunk in waiting.chunks(1001) {
            let mut block = std::mem::take(&mut stream_head);
            block.put(&(chunk.len() as u32 * 8).to_le_bytes()[..3]);
            block.put(chunk);
            let len = block.len();
            let mut record = Vec::new();
            record.u32(kind);
            record.u16(0);
            if kind == COMPRESSED2 {
                block.resize(len.next_multiple_of(8), 0);
                record.u16(block.len() as u16 + 16);
                record.u64(len as u64);
            } else {
                record.u16(block.len() as u16 + 8);
            }
            record.put(&block);
            out.push(Part::Record(record));
        }
        waiting.clear();
    };
    for part in parts {
        match part {
            Part::Record(bytes) if bytes[0] < 64 && bytes[1..4] == [0; 3] => waiting.put(bytes),
            Part::Record(bytes) => {
                if bytes[0] == FINISHED_ROUND as u8 {
                    flush(&mut waiting, &mut out);
                }
                out.push(part.clone());
            }
            Part::Aux(..) => out.push(part.clone()),
        }
    }
    flush(&mut waiting, &mut out);
    out
}

/// Numbers of the two records for compressed data.
pub const PACKED: [u32; 2] = [COMPRESSED, COMPRESSED2];

/// The section with the settings of the compression: version, zstd, level, ratio, size of the ring buffer.
pub fn compression() -> Vec<u8> {
    let mut body = Vec::new();
    [1, 1, 1, 1, 1 << 20].iter().for_each(|&word| body.u32(word));
    body
}
