// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the containers of records: a perf.data file with its sections, the same data through a pipe, records
//! compressed with zstd inside either, and a bare sequence of records.
//!
//! A file may end anywhere: the available data is read, and a note says what is missing.

use std::io::Read;

use crate::attr::Attr;
use crate::bytes::Fields;
use crate::record::{Auxtrace, Head, Record, Trailer, parse, sample};
use crate::{MAGIC, bpf, feature};

/// Maximum ratio to which compressed records are unpacked, and maximum size in bytes.
const MAX_RATIO: usize = 1024;
const MAX_UNPACKED: usize = 1 << 32;

/// Data that is stated once for the whole recording.
#[derive(Debug, Clone, Default)]
pub struct Header<'a> {
    /// The events' attributes.
    pub attrs: Vec<Attr>,
    /// Names of the attributes' events, as far as known, by one of their ids.
    pub names: Vec<(u64, String)>,
    /// Names of events in the order of their attributes. A single event often has no id.
    pub in_order: Vec<String>,
    /// Release of the kernel; empty if it is not stated.
    pub release: String,
    /// Vendor, family, model and stepping of the CPU; empty if they are not stated.
    pub cpuid: String,
    /// Command line of perf.
    pub command: Vec<String>,
    /// (path, build id).
    pub build_ids: Vec<(String, Vec<u8>)>,
    /// Functions of BPF programs.
    pub bpf: Vec<bpf::Function>,
    /// Formats of tracepoints.
    pub tracing: Option<&'a [u8]>,
}

/// A record with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    /// The record.
    pub record: Record<'a>,
    /// Its task, time and CPU, as far as it states them.
    pub trailer: Trailer,
    /// Index of its event's attributes. `None` if there are several events and the record states no id of one.
    pub attr: Option<usize>,
}

/// The contents of a file.
#[derive(Debug, Default)]
pub struct Contents<'a> {
    /// Data that is stated once.
    pub header: Header<'a>,
    /// Records, in the order of the file.
    pub events: Vec<Event<'a>>,
    /// Trace bytes with their record.
    pub traces: Vec<(Auxtrace, &'a [u8])>,
    /// Compressed records, for [`unpack`].
    pub compressed: Vec<&'a [u8]>,
    /// Parts that are missing or were not understood, each with its offset.
    pub notes: Vec<String>,
}

/// Reads a file, or data from a pipe. Without the magic number the result is only notes.
pub fn read<'a>(bytes: &'a [u8], contents: &mut Contents<'a>) {
    let mut f = Fields(bytes);
    let (magic, Some(size)) = (f.take(8), f.u64()) else {
        contents.notes.push("the file ends inside its header".to_owned());
        return;
    };
    if magic != Some(MAGIC) {
        contents.notes.push("offset 0: expected PERFILE2, little-endian".to_owned());
        return;
    }
    if size <= 16 {
        return records(bytes, 16..bytes.len(), contents);
    }
    let mut words = f.words();
    let mut word = || words.next().unwrap_or(0);
    let (attr_size, attrs_at, attrs_len) = (word(), word(), word());
    let (data_at, data_len, _, _, bits) = (word(), word(), word(), word(), word());
    if bytes.len() < 104 {
        contents.notes.push("the file ends inside its header".to_owned());
        return;
    }
    read_attrs(bytes, (attrs_at, attrs_len), attr_size, contents);
    // A killed recorder leaves no length, and nothing after the data.
    let unfinished = data_len == 0;
    let data_at = usize::try_from(data_at).unwrap_or(usize::MAX);
    let data_end = match usize::try_from(data_len) {
        _ if unfinished => bytes.len(),
        Ok(len) => data_at.saturating_add(len),
        Err(_) => usize::MAX,
    };
    if unfinished {
        contents.notes.push("the recorder did not finish the file: what it wrote is used".to_owned());
    } else {
        features(bytes, data_end, bits, contents);
    }
    if data_end > bytes.len() {
        let missing = data_end - bytes.len();
        contents.notes.push(format!("the file is cut off: {missing} bytes of its data are missing"));
    }
    records(bytes, data_at..data_end.min(bytes.len()), contents);
}

fn section(bytes: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let at = usize::try_from(at).ok()?;
    bytes.get(at..at.checked_add(usize::try_from(len).ok()?)?)
}

fn read_attrs(bytes: &[u8], place: (u64, u64), attr_size: u64, contents: &mut Contents<'_>) {
    let step = usize::try_from(attr_size).unwrap_or(0);
    let Some(attrs) = section(bytes, place.0, place.1).filter(|_| step > 16) else {
        contents.notes.push(format!("offset {}: expected the events' attributes", place.0));
        return;
    };
    for entry in attrs.chunks_exact(step) {
        let (attr, ids) = entry.split_at(step - 16);
        let Some(mut attr) = Attr::parse(attr) else { continue };
        let mut f = Fields(ids);
        let (at, len) = (f.u64().unwrap_or(0), f.u64().unwrap_or(0));
        if let Some(ids) = section(bytes, at, len) {
            attr.ids = Fields(ids).words().collect();
        }
        contents.header.attrs.push(attr);
    }
}

/// Reads the sections whose offsets are stored after the data.
fn features<'a>(bytes: &'a [u8], at: usize, bits: u64, contents: &mut Contents<'a>) {
    let mut f = Fields(bytes.get(at..).unwrap_or_default());
    for id in (0..64).filter(|id| bits >> id & 1 == 1) {
        let place = f.u64().zip(f.u64());
        match place.and_then(|(at, len)| section(bytes, at, len)) {
            Some(body) => feature(id, body, &mut contents.header),
            None => {
                contents.notes.push(format!("the file is cut off: feature section {id} is missing"));
            }
        }
    }
}

fn feature<'a>(id: u64, body: &'a [u8], header: &mut Header<'a>) {
    let mut f = Fields(body);
    match id {
        feature::BUILD_ID => {
            while let Some(head) = Head::parse(f.0) {
                let Some(record) = f.take(usize::from(head.size)).filter(|r| r.len() > Head::LEN) else {
                    break;
                };
                let head = Head { kind: 67, ..head };
                if let Some((Record::BuildId { id, path, .. }, _)) = parse(head, &record[Head::LEN..], 0) {
                    header.build_ids.push((path, id));
                }
            }
        }
        feature::TRACING_DATA => header.tracing = Some(body),
        feature::RELEASE => header.release = f.counted_text().unwrap_or_default(),
        feature::CPUID => header.cpuid = f.counted_text().unwrap_or_default(),
        feature::COMMAND => {
            let count = f.u32().unwrap_or(0);
            header.command = (0..count).map_while(|_| f.counted_text()).collect();
        }
        feature::BPF_PROG_INFO => header.bpf.extend(bpf::programs(body)),
        feature::EVENTS => {
            event_names(f, header);
        }
        _ => {}
    }
}

fn event_names(mut f: Fields<'_>, header: &mut Header<'_>) -> Option<()> {
    let (count, size) = (f.u32()?, f.u32()?);
    for _ in 0..count {
        f.take(size as usize)?;
        let ids = f.u32()?;
        let name = f.counted_text()?;
        header.in_order.push(name.clone());
        for _ in 0..ids {
            header.names.push((f.u64()?, name.clone()));
        }
    }
    Some(())
}

/// Reads consecutive records. `range` must lie inside `bytes` or be empty.
pub fn records<'a>(bytes: &'a [u8], range: std::ops::Range<usize>, contents: &mut Contents<'a>) {
    let mut rest = Fields(bytes.get(range.clone()).unwrap_or_default());
    while !rest.0.is_empty() {
        let at = range.end - rest.0.len();
        let cut = |contents: &mut Contents<'_>, what: &str| {
            contents.notes.push(format!("offset {at}: {what}: nothing after it is used"));
        };
        let Some(head) = Head::parse(rest.0) else { return cut(contents, "a record is cut off") };
        if usize::from(head.size) < Head::LEN {
            return cut(contents, &format!("a record of {} bytes, expected at least 8", head.size));
        }
        let Some(record) = rest.take(head.size.into()) else { return cut(contents, "a record is cut off") };
        let body = &record[Head::LEN..];
        let (attr, layout) = layout(head, body, &contents.header.attrs);
        let Some((record, trailer)) = parse(head, body, layout) else {
            contents.notes.push(format!("offset {at}: a record of type {} is too short for it", head.kind));
            continue;
        };
        match record {
            Record::Auxtrace(trace) => {
                let size = usize::try_from(trace.size).unwrap_or(usize::MAX);
                let there = size.min(rest.0.len());
                if there < size {
                    let text = format!("{} bytes of trace of {size} are missing", size - there);
                    contents.notes.push(format!("offset {at}: {text}"));
                }
                contents.traces.push((trace, rest.take(there).unwrap_or_default()));
            }
            Record::Attr(body) => {
                let len = Attr::len_of(body).unwrap_or(0).min(body.len());
                if let Some(attr) = Attr::parse(&body[..len]) {
                    let ids = Fields(&body[len..]).words().collect();
                    contents.header.attrs.push(Attr { ids, ..attr });
                }
            }
            Record::Feature { id, body } => feature(id, body, &mut contents.header),
            Record::BuildId { id, path, .. } => contents.header.build_ids.push((path, id)),
            Record::Compressed(data) => contents.compressed.push(data),
            // In a pipe: the size of the following formats of tracepoints.
            Record::Other(66) => {
                let size = Fields(body).u32().unwrap_or(0).checked_next_multiple_of(8).unwrap_or(0) as usize;
                contents.header.tracing = rest.take(size.min(rest.0.len()));
            }
            record => contents.events.push(Event { record, trailer, attr }),
        }
    }
}

/// Determines a record's event and the layout of its trailer. With several events, records state an id: at the very
/// end, in samples at the very beginning (`PERF_SAMPLE_IDENTIFIER`), or among other fields (`PERF_SAMPLE_ID`), which
/// must then be the same for all events.
fn layout(head: Head, body: &[u8], attrs: &[Attr]) -> (Option<usize>, u64) {
    let layout = |attr: &Attr| if head.has_trailer() { attr.trailer() } else { attr.sample_type };
    let [first, _, ..] = attrs else { return (attrs.first().map(|_| 0), attrs.first().map_or(0, layout)) };
    let kind = first.sample_type;
    let has = |bits: u64| (kind & bits).count_ones() as usize;
    let word = match (has(sample::IDENTIFIER) + has(sample::ID), head.has_trailer()) {
        (0, _) => None,
        (_, true) if has(sample::IDENTIFIER) > 0 => (body.len() / 8).checked_sub(1),
        (_, true) => (body.len() / 8).checked_sub(1 + has(sample::STREAM_ID | sample::CPU)),
        (_, false) if has(sample::IDENTIFIER) > 0 => Some(0),
        (_, false) => Some(has(sample::IP | sample::TID | sample::TIME | sample::ADDR)),
    };
    let id = word.and_then(|word| Fields(body.get(8 * word..)?).u64());
    let index = id.and_then(|id| attrs.iter().position(|attr| attr.ids.contains(&id)));
    (index, attrs.get(index.unwrap_or(0)).map_or(0, layout))
}

/// Unpacks the compressed records, which form one zstd stream. Returns also a note if it is truncated.
pub fn unpack(parts: &[&[u8]]) -> (Vec<u8>, Option<String>) {
    let mut packed = parts.concat();
    // perf never ends its stream, and a decoder holds back data that a later block may refer to. So an empty last block
    // is appended, and room for a checksum.
    packed.extend([1, 0, 0, 0, 0, 0, 0]);
    let limit = packed.len().saturating_mul(MAX_RATIO).min(MAX_UNPACKED);
    let mut out = Vec::new();
    let mut source = &packed[..];
    let result =
        ruzstd::decoding::StreamingDecoder::new(&mut source).map_err(|error| error.to_string()).and_then(
            |decoder| decoder.take(limit as u64).read_to_end(&mut out).map_err(|error| error.to_string()),
        );
    let note = match result {
        Ok(_) if out.len() == limit => {
            Some(format!("compressed records: only the first {limit} bytes are used"))
        }
        Ok(_) => None,
        Err(error) => Some(format!("compressed records break off after {} bytes: {error}", out.len())),
    };
    (out, note)
}
