// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracepoints in perf.data: `perf record -e 'sched:*'`, `perf sched record`, `perf trace record`.
//!
//! Input: the bytes of a perf.data, file or pipe, with the formats of its tracepoints (`HEADER_TRACING_DATA`) and
//! samples with raw data; of a folder (`perf record --threads`), all its files. Output: ftrace's events in order of time, and
//! the changes of tasks' names. Losses are reported where perf recorded them. A sample's raw record equals that of the ring
//! buffer; task and CPU come from the sample.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kprism_ftrace::dat::Dat;
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::{Context, Data, Event, UNKNOWN_PID};

use crate::ImportError;
use crate::error::read_file;

use kprism_perfdata::attr::{clock_name, flag, kind};
use kprism_perfdata::record::sample;
use kprism_perfdata::{Attr, Contents, Fields, Header, Record, Trailer};

use super::comms::Comms;
use super::recording::{self, Files};

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
    /// Number of samples of tracepoints whose record is not where their event's attributes put it, or that do not tell their task, time
    /// and CPU.
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

/// Returns true if a path, a file or perf's folder, holds tracepoints and no Intel PT.
#[must_use]
pub fn detect(path: &Path) -> bool {
    recording::detect(path, is_trace)
}

/// Copies the file or the folder's files into a run: `streams/ftrace/perf.data`, `symbols/kallsyms`.
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
    let to = streams.join("ftrace/perf.data");
    for file in recording::paths(path) {
        // perf's folder is one here, too.
        let to = file
            .strip_prefix(path)
            .ok()
            .filter(|name| *name != Path::new(""))
            .map_or(to.clone(), |name| to.join(name));
        put(to, &read_file(&file)?)?;
    }
    let inside = Some(path.join("kcore_dir/kallsyms")).filter(|path| path.is_file());
    if let Some(path) = kallsyms.map(Path::to_owned).or(inside) {
        put(symbols.join("kallsyms"), &read_file(&path)?)?;
    }
    Ok(())
}

/// Returns true if a perf.data holds tracepoints, and no Intel PT.
fn is_trace(bytes: &[u8]) -> bool {
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
    let Contents { header, events, notes, .. } = files.contents();
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
    let (mut comms, mut sampled) = (Comms::default(), BTreeSet::new());
    for event in events {
        let Trailer { pid, tid, time, cpu: at, .. } = event.trailer;
        let (ns, cpu) = (time.unwrap_or(0), at.unwrap_or(0));
        match event.record {
            Record::Sample(body) => {
                // A tracepoint's record states its own event.
                let number = event.attr.unwrap_or(0);
                let attr = header.attrs.get(number).filter(|attr| attr.kind == kind::TRACEPOINT);
                let Some(attr) = attr else {
                    trace.others += 1;
                    continue;
                };
                let is_placed = tid.is_some() && time.is_some() && at.is_some();
                match raw(attr, body).filter(|record| record.len() >= 8 && is_placed) {
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
            record => comms.add(ns, record),
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
    trace.names = comms.names().into_iter().map(Into::into).collect();
    trace.sampled = sampled.into_iter().map(|number| setting(&header, number)).collect();
    Ok(trace)
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
