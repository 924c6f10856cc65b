// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracepoints in perf.data: `perf record -e 'sched:*'`, `perf sched record`, `perf trace record`.
//!
//! Input: the bytes of a perf.data, file or pipe, with the formats of its tracepoints (`HEADER_TRACING_DATA`) and
//! samples with raw data; of a folder (`perf record --threads`), all its files. Output: ftrace's events in order of time, and
//! the changes of tasks' names. Losses are reported where perf recorded them. A sample's raw record equals that of the ring
//! buffer; task and CPU come from the sample.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use kprism_ftrace::dat::Dat;
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::{Context, Data, Event, UNKNOWN_PID};
use kprism_image::Bytes;

use crate::ImportError;
use crate::error::read_file;

use kprism_perfdata::attr::{clock_name, flag, kind};
use kprism_perfdata::record::sample;
use kprism_perfdata::{Attr, Contents, Fields, Header, MAGIC, Record, Trailer};

/// The tracepoints in a perf.data.
#[derive(Debug, Default)]
pub struct Trace<'a> {
    /// Formats, and names of tasks, in trace-cmd's form.
    pub dat: Dat<'a>,
    /// Release of the kernel, if known.
    pub release: String,
    /// The recorded command, if known.
    pub command: Vec<String>,
    /// Name of the clock.
    pub clock: String,
    /// Names of tasks and their processes: time, thread, process, name.
    pub names: Vec<(u64, u32, u32, String)>,
    /// Number of samples of events that are no tracepoints.
    pub others: u64,
    /// Number of samples of tracepoints whose record is not where their event's attributes put it.
    pub broken: u64,
    /// Events of which perf took samples only, `NAME (-F 99)`. What happened between samples nobody counted.
    pub sampled: Vec<String>,
    /// Parts of the file that are missing or were not understood, each with its offset.
    pub notes: Vec<String>,
    /// Samples in order of time.
    samples: Vec<Sample<'a>>,
}

#[derive(Debug)]
struct Sample<'a> {
    ns: u64,
    cpu: u32,
    /// Thread id; `None` for a loss.
    tid: Option<u32>,
    /// Process id.
    pid: u32,
    lost: u64,
    record: &'a [u8],
}

/// A recording's files: one, or `data`, `data.0`, … of a folder, of which only the first has attributes and formats.
#[derive(Debug, Default)]
pub struct Files(Vec<(Bytes, Unpacked)>);

/// Records that perf compressed in a file (`perf record -z`).
#[derive(Debug, Default)]
struct Unpacked {
    /// The records; empty if the file has no compressed ones.
    records: Vec<u8>,
    /// Why they end early.
    note: Option<String>,
}

impl Files {
    /// Unpacks the records that perf compressed. Each file has a compressed stream of its own.
    #[must_use]
    pub fn new(data: Vec<Bytes>) -> Self {
        let unpacked = |(number, bytes): (usize, Bytes)| {
            let mut contents = Contents::default();
            whole_or_records(number, &bytes, &mut contents);
            let unpacked = match &contents.compressed[..] {
                [] => Unpacked::default(),
                parts => {
                    let (records, note) = kprism_perfdata::unpack(parts);
                    Unpacked { records, note }
                }
            };
            drop(contents);
            (bytes, unpacked)
        };
        Self(data.into_iter().enumerate().map(unpacked).collect())
    }

    /// Bytes that were compressed, unpacked: with the files' own, the most that can be read.
    #[must_use]
    pub fn unpacked_len(&self) -> usize {
        self.0.iter().map(|(_, unpacked)| unpacked.records.len()).sum()
    }

    /// The files that [`copy`] wrote, the first of which is `first`.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn open(first: &Path) -> Result<Self, ImportError> {
        let mut data = vec![read_file(first)?];
        for part in parts(|number| numbered(first, number)) {
            data.push(read_file(&part)?);
        }
        Ok(Self::new(data))
    }
}

/// Only the first file of a folder has a head.
fn whole_or_records<'a>(number: usize, bytes: &'a [u8], contents: &mut Contents<'a>) {
    match number {
        0 => kprism_perfdata::read(bytes, contents),
        _ => kprism_perfdata::records(bytes, 0..bytes.len(), contents),
    }
}

/// `FIRST.0`, `FIRST.1`, …
fn numbered(first: &Path, number: usize) -> PathBuf {
    let mut name = first.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// The files of further threads of perf, as far as there are any.
fn parts(name: impl Fn(usize) -> PathBuf) -> impl Iterator<Item = PathBuf> {
    (0..).map(name).take_while(|path| path.is_file())
}

/// Returns true if a path, a file or perf's folder, holds tracepoints and no Intel PT.
#[must_use]
pub fn detect(path: &Path) -> bool {
    let (file, mut head) = (data(path), [0; 8]);
    let begins = fs::File::open(&file).and_then(|mut file| file.read_exact(&mut head)).is_ok();
    begins && head == *MAGIC && Bytes::open(&file).is_ok_and(|bytes| is_trace(&bytes))
}

/// The data file in perf's folder.
fn data(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("data") } else { path.to_owned() }
}

/// Copies the files into a run: `streams/ftrace/perf.data`, `perf.data.0` and so on, `symbols/kallsyms`.
///
/// # Errors
/// A file cannot be read or written.
pub fn copy(path: &Path, kallsyms: Option<&Path>, streams: &Path, symbols: &Path) -> Result<(), ImportError> {
    let put = |to: PathBuf, bytes: &[u8]| {
        let dir = to.parent().unwrap_or(&to);
        fs::create_dir_all(dir)
            .and_then(|()| fs::write(&to, bytes))
            .map_err(|source| ImportError::Io { path: to.clone(), source })
    };
    let first = streams.join("ftrace/perf.data");
    put(first.clone(), &read_file(&data(path))?)?;
    if path.is_dir() {
        for (number, part) in parts(|number| path.join(format!("data.{number}"))).enumerate() {
            put(numbered(&first, number), &read_file(&part)?)?;
        }
    }
    let inside = Some(path.join("kcore_dir/kallsyms")).filter(|path| path.is_file());
    if let Some(path) = kallsyms.map(Path::to_owned).or(inside) {
        put(symbols.join("kallsyms"), &read_file(&path)?)?;
    }
    Ok(())
}

/// Returns true if a perf.data holds tracepoints, and no Intel PT.
fn is_trace(bytes: &[u8]) -> bool {
    if !bytes.starts_with(MAGIC) {
        return false;
    }
    let mut contents = Contents::default();
    kprism_perfdata::read(bytes, &mut contents);
    let traced = contents.events.iter().any(|e| matches!(e.record, Record::AuxtraceInfo { .. }));
    contents.header.tracing.is_some() && !traced && contents.traces.is_empty()
}

/// Reads a recording.
///
/// # Errors
/// The formats of the samples are missing.
pub fn read(files: &Files) -> Result<Trace<'_>, kprism_ftrace::FtraceError> {
    let mut contents = Contents::default();
    for (number, (bytes, unpacked)) in files.0.iter().enumerate() {
        whole_or_records(number, bytes, &mut contents);
        let records = &unpacked.records;
        kprism_perfdata::records(records, 0..records.len(), &mut contents);
        contents.notes.extend(unpacked.note.clone());
    }
    let Contents { header, events, notes, .. } = contents;
    let mut trace = Trace {
        dat: Dat::parse_head(header.tracing.unwrap_or_default())?,
        release: header.release.clone(),
        command: header.command.clone(),
        clock: header.attrs.first().map_or("perf", clock_name).to_owned(),
        notes,
        ..Trace::default()
    };
    // perf's totals of losses for each event at the end of a recording repeat those that the kernel reported, as far as
    // it could.
    let (mut told, mut summed) = (0u64, 0u64);
    let (mut changes, mut sampled) = (Vec::new(), BTreeSet::new());
    for event in events {
        let Trailer { pid, tid, time, cpu, .. } = event.trailer;
        let (ns, cpu) = (time.unwrap_or(0), cpu.unwrap_or(0));
        match event.record {
            Record::Sample(body) => {
                // A tracepoint's record states its own event.
                let number = event.attr.unwrap_or(0);
                let attr = header.attrs.get(number).filter(|attr| attr.kind == kind::TRACEPOINT);
                let Some(attr) = attr else {
                    trace.others += 1;
                    continue;
                };
                match raw(attr, body).filter(|record| record.len() >= 8) {
                    Some(record) => {
                        let pid = pid.unwrap_or(0);
                        trace.samples.push(Sample { ns, cpu, tid, pid, lost: 0, record });
                        sampled.extend(leaves_out(attr).then_some(number));
                    }
                    None => trace.broken += 1,
                }
            }
            Record::LostSamples { lost } => summed = summed.saturating_add(lost),
            Record::Lost { lost } => {
                told = told.saturating_add(lost);
                trace.samples.push(Sample { ns, cpu, tid: None, pid: 0, lost, record: &[] });
            }
            Record::Comm { pid, tid, comm, .. } => changes.push((ns, tid, pid, Change::Name(comm))),
            Record::Fork { pid, tid, ptid, .. } => changes.push((ns, tid, pid, Change::Born(ptid))),
            _ => {}
        }
    }
    trace.samples.sort_by_key(|sample| sample.ns);
    if let Some(lost) = summed.checked_sub(told).filter(|lost| *lost > 0) {
        trace
            .notes
            .push(format!("{lost} of the lost events could not be placed in time: they are at the end"));
        let last = trace.samples.last().map_or((0, 0), |last| (last.ns, last.cpu));
        trace.samples.push(Sample { ns: last.0, cpu: last.1, tid: None, pid: 0, lost, record: &[] });
    }
    trace.names = names(changes);
    trace.sampled = sampled.into_iter().map(|number| setting(&header, number)).collect();
    Ok(trace)
}

/// A change of a task's name.
enum Change {
    /// It has this one now.
    Name(String),
    /// It is new, and has the name of the thread that made it.
    Born(u32),
}

/// The names of tasks in order of time. A task that was born without a name of its own has its parent's, as in perf
/// (`thread__fork` in tools/perf/util/thread.c).
fn names(mut changes: Vec<(u64, u32, u32, Change)>) -> Vec<(u64, u32, u32, String)> {
    changes.sort_by_key(|change| change.0);
    let mut own: BTreeMap<u32, String> = BTreeMap::new();
    let named = |(ns, tid, pid, change): (u64, u32, u32, Change)| {
        let name = match change {
            Change::Name(name) => name,
            Change::Born(parent) => own.get(&parent)?.clone(),
        };
        own.insert(tid, name.clone());
        Some((ns, tid, pid, name))
    };
    changes.into_iter().filter_map(named).collect()
}

/// True if an event's samples are not all that happened. Of a period that each sample states for itself and that is no
/// frequency's, the kernel takes every event and the period is its weight (`perf_swevent_event` in kernel/events/core.c).
fn leaves_out(attr: &Attr) -> bool {
    let stated = attr.sample_type & sample::PERIOD != 0;
    attr.flags & flag::FREQUENCY != 0 || attr.period > 1 && !stated
}

/// An event's name and how perf sampled it.
fn setting(header: &Header<'_>, number: usize) -> String {
    let attr = &header.attrs[number];
    let own = header.names.iter().find(|(id, _)| attr.ids.contains(id)).map(|(_, name)| name);
    let name = own.or(header.in_order.get(number)).map_or("an event", String::as_str);
    let option = if attr.flags & flag::FREQUENCY != 0 { 'F' } else { 'c' };
    format!("{name} (-{option} {})", attr.period)
}

impl<'a> Trace<'a> {
    /// Number of samples of tracepoints, and of losses.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Thread ids with their process ids.
    pub fn groups(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let known = |id: &u32| *id != UNKNOWN_PID;
        self.samples.iter().filter_map(move |sample| Some((sample.tid.filter(known)?, sample.pid)))
    }

    /// The events, in order of time.
    pub fn events(&self, decoder: &Decoder) -> impl Iterator<Item = Event<'a>> {
        self.samples.iter().map(|sample| {
            let &Sample { ns, cpu, record, .. } = sample;
            let Some(tid) = sample.tid else {
                let data = Data::Lost { count: Some(sample.lost) };
                return Event { ns, cpu, pid: UNKNOWN_PID, context: Context::Task, data };
            };
            let (own, context, data) = decoder.record(record);
            // The kernel states -1 for a task that is dead already; the event's own field has its number.
            let pid = if tid == UNKNOWN_PID { own } else { tid };
            Event { ns, cpu, pid, context, data }
        })
    }
}

/// Bits of `perf_event_attr::read_format`.
mod read_format {
    pub const TOTAL_TIME_ENABLED: u64 = 1;
    pub const TOTAL_TIME_RUNNING: u64 = 2;
    pub const ID: u64 = 4;
    pub const GROUP: u64 = 8;
    pub const LOST: u64 = 16;
}

/// A sample's raw data.
fn raw<'a>(attr: &Attr, body: &'a [u8]) -> Option<&'a [u8]> {
    let has = |bit| attr.sample_type & bit != 0;
    if !has(sample::RAW) {
        return None;
    }
    let mut f = Fields(body);
    Trailer::of_sample(attr.sample_type, &mut f)?;
    if has(sample::PERIOD) {
        f.u64()?;
    }
    skip_to_raw(attr, &mut f)?;
    let size = f.u32()?;
    f.take(size as usize)
}

/// Skips a sample's fields between its period and its raw data.
pub(super) fn skip_to_raw(attr: &Attr, f: &mut Fields<'_>) -> Option<()> {
    if attr.sample_type & sample::READ != 0 {
        skip_counts(attr, f)?;
    }
    if attr.sample_type & sample::CALLCHAIN != 0 {
        let count = f.u64()?;
        f.take(usize::try_from(count.checked_mul(8)?).ok()?)?;
    }
    Some(())
}

/// Skips a sample's counters (`PERF_SAMPLE_READ`).
fn skip_counts(attr: &Attr, f: &mut Fields<'_>) -> Option<()> {
    let asked = |bit| u64::from(attr.read_format & bit != 0);
    let times = asked(read_format::TOTAL_TIME_ENABLED) + asked(read_format::TOTAL_TIME_RUNNING);
    let each = 1 + asked(read_format::ID) + asked(read_format::LOST);
    let words = match asked(read_format::GROUP) {
        0 => times + each,
        _ => f.u64()?.checked_mul(each)?.checked_add(times)?,
    };
    f.take(usize::try_from(words.checked_mul(8)?).ok()?).map(|_| ())
}
