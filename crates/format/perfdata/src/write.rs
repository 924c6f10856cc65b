// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the file around the records: header, attributes, data, feature sections
//! (tools/perf/Documentation/perf.data-file-format.txt).

use std::io::{Result, Seek, SeekFrom, Write};

use crate::attr::Attr;
use crate::bytes::Put;
use crate::record::{Auxtrace, Record, Trailer};
use crate::{MAGIC, feature};

/// Length of `struct perf_file_header`.
const HEADER: u64 = 104;

/// Data of the header besides the attributes.
#[derive(Debug, Clone, Default)]
pub struct Features {
    /// Release of the kernel; empty to leave it out.
    pub release: String,
    /// Version of the writer.
    pub version: String,
    /// Number of CPUs.
    pub cpus: u32,
    /// Command line of the writer.
    pub command: Vec<String>,
    /// Names of the events, in the order of the attributes.
    pub events: Vec<&'static str>,
    /// Encoded [`Record::BuildId`]s.
    pub build_ids: Vec<u8>,
}

/// A perf.data file being written.
pub struct Writer<W> {
    out: W,
    attrs: Vec<Attr>,
    at: u64,
    /// AUXTRACE records: offset and size of each.
    index: Vec<(u64, u64)>,
    data: u64,
}

impl<W: Write + Seek> Writer<W> {
    /// Writes the attributes. Records must follow.
    pub fn new(mut out: W, attrs: Vec<Attr>) -> Result<Self> {
        let ids: u64 = attrs.iter().map(|a| 8 * a.ids.len() as u64).sum();
        let mut head = vec![0; HEADER as usize];
        let mut at = HEADER;
        for id in attrs.iter().flat_map(|a| &a.ids) {
            head.u64(*id);
        }
        for attr in &attrs {
            attr.encode(&mut head);
            head.u64(at);
            head.u64(8 * attr.ids.len() as u64);
            at += 8 * attr.ids.len() as u64;
        }
        out.write_all(&head)?;
        let data = HEADER + ids + attrs.len() as u64 * (Attr::LEN as u64 + 16);
        Ok(Self { out, attrs, at: data, index: Vec::new(), data })
    }

    /// Appends encoded records.
    pub fn records(&mut self, bytes: &[u8]) -> Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Appends trace data with its record.
    pub fn auxtrace(&mut self, head: Auxtrace, trace: &[u8]) -> Result<()> {
        let mut record = Vec::new();
        Record::Auxtrace(head).encode(0, &Trailer::default(), &mut record);
        self.index.push((self.at, record.len() as u64));
        self.records(&record)?;
        self.records(trace)
    }

    /// Writes the feature sections and the header.
    pub fn finish(mut self, features: &Features) -> Result<()> {
        let end = self.at;
        let sections = self.sections(features);
        let table = 16 * sections.len() as u64;
        let mut at = end + table;
        let mut bits = 0u64;
        let mut tail = Vec::new();
        for (id, bytes) in &sections {
            bits |= 1 << id;
            tail.u64(at);
            tail.u64(bytes.len() as u64);
            at += bytes.len() as u64;
        }
        for (_, bytes) in &sections {
            tail.put(bytes);
        }
        self.out.write_all(&tail)?;
        let attr_len = Attr::LEN as u64 + 16;
        let attrs = self.attrs.len() as u64 * attr_len;
        let mut head = MAGIC.to_vec();
        for word in
            [HEADER, attr_len, self.data - attrs, attrs, self.data, end - self.data, 0, 0, bits, 0, 0, 0]
        {
            head.u64(word);
        }
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&head)?;
        self.out.flush()
    }

    /// Feature sections, ordered by number.
    fn sections(&self, features: &Features) -> Vec<(u64, Vec<u8>)> {
        let text = |text: &str| {
            let mut bytes = Vec::new();
            bytes.counted_text(text);
            bytes
        };
        let mut cpus = Vec::new();
        cpus.u32(features.cpus);
        cpus.u32(features.cpus);
        let mut command = Vec::new();
        command.u32(features.command.len() as u32);
        features.command.iter().for_each(|word| command.counted_text(word));
        let mut index = Vec::new();
        index.u64(self.index.len() as u64);
        for (at, size) in &self.index {
            index.u64(*at);
            index.u64(*size);
        }
        let mut sections = vec![(feature::BUILD_ID, features.build_ids.clone())];
        if !features.release.is_empty() {
            sections.push((feature::RELEASE, text(&features.release)));
        }
        sections.extend([
            (feature::VERSION, text(&features.version)),
            (feature::ARCH, text("x86_64")),
            (feature::CPUS, cpus),
            (feature::COMMAND, command),
            (feature::EVENTS, self.events(features)),
            (feature::AUXTRACE, index),
        ]);
        sections
    }

    fn events(&self, features: &Features) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.u32(self.attrs.len() as u32);
        bytes.u32(Attr::LEN as u32);
        for (attr, name) in self.attrs.iter().zip(&features.events) {
            attr.encode(&mut bytes);
            bytes.u32(attr.ids.len() as u32);
            bytes.counted_text(name);
            attr.ids.iter().for_each(|id| bytes.u64(*id));
        }
        bytes
    }
}
