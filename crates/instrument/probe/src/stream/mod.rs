// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of `streams/probe/`, which `kprism-record` (`probe/attach`, `probe/kept`) writes: `probes.json` describes each record's bytes, `hits.bin` holds the records of
//! all CPUs in order of time, each with its CPU. Any bytes give records, or an error with an offset.

pub mod aggregate;
mod item;
pub mod printf;
pub mod shape;
pub mod tally;

use std::collections::BTreeMap;

use kprism_tracefs::beside::Pair;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use printf::Printf;
use shape::Shape;
use tally::{Tally, Totals};

pub use item::{Frame, Item, Memory, RecordingEffect};

/// Size of a record's header, bytes: its size (u32), probe (u16), CPU (u16), time (u64), thread (u32), process (u32), a bit for
/// each value that could not be read (u64).
pub const HEADER: usize = 32;
/// The version of the format.
pub const VERSION: u32 = 1;
/// Maximum of values in a record: one bit each tells whether it could be read.
pub const MOST_ITEMS: usize = 64;
/// Longest record, bytes.
pub const LONGEST: usize = 32 << 10;

/// Contents of `probes.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Version of the format, [`VERSION`].
    pub version: u32,
    /// Probes, by the number in a record's header.
    pub probes: Vec<Probe>,
    /// Counters by probe; empty until recording has ended.
    #[serde(default)]
    pub counts: Vec<Counts>,
    /// Counts by keys and histograms, by probe, if it has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub totals: Vec<Option<Totals>>,
    /// Trace state variables and their final values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<(String, i64)>,
    /// The containers that there were at the start and at the end, if their ids are shown: each cgroup's number, and the id of
    /// the container that it is in; empty if in none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<u64, String>,
    /// The TSC and the records' clock, CLOCK_MONOTONIC, before the command and after it, if a flow was recorded beside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clocks: Vec<Pair>,
}

impl Description {
    /// A probe's place and its counts by keys, if it has some.
    pub fn tallied(&self, number: usize) -> Option<(&str, &Tally, &Totals)> {
        let probe = self.probes.get(number)?;
        Some((&probe.place, probe.tally.as_ref()?, self.totals.get(number)?.as_ref()?))
    }

    /// The same of all probes that have some.
    pub fn all_tallied(&self) -> impl Iterator<Item = (&str, &Tally, &Totals)> + Clone {
        (0..self.probes.len()).filter_map(|number| self.tallied(number))
    }

    /// Returns true if any probe counted a hit by keys.
    pub fn has_counted(&self) -> bool {
        self.all_tallied().any(|(_, _, totals)| totals.rows.iter().any(|row| row.count > 0))
    }
}

/// A probe and its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The place as the user wrote it.
    pub place: String,
    /// The place in words: function, file, line.
    pub found: String,
    /// The condition as the user wrote it.
    pub condition: Option<String>,
    /// Path of its file; `None` for the kernel.
    pub file: Option<String>,
    /// Address at which it is linked, if known from debug information.
    pub address: Option<u64>,
    /// Method of attachment: uprobe, jump (behind which a uprobe waits for hits whose condition is true), uretprobe, kprobe, kretprobe,
    /// fentry, fexit, tracepoint, raw tracepoint.
    pub hook: String,
    /// Size of a record; 0 if hits leave none.
    pub record_bytes: u32,
    /// Its collected values.
    pub items: Vec<Item>,
    /// Counts kept in the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tally: Option<Tally>,
    /// The line that a record is shown as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printf: Option<Printf>,
    /// The part of a record for GDB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gdb: Option<Frame>,
    /// Effect of a hit on the recording.
    #[serde(default, rename = "part", skip_serializing_if = "RecordingEffect::is_record")]
    pub effect: RecordingEffect,
}

impl Probe {
    /// Returns true if the other probe is at another code address.
    pub fn found_apart(&self, other: &Probe) -> bool {
        self.address != other.address
    }

    /// Returns true if the kernel may pass over hits and count them: at a kprobe or a kretprobe.
    pub fn is_kprobe(&self) -> bool {
        matches!(self.hook.as_str(), "kprobe" | "kretprobe")
    }
}

/// Counters of a probe's program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Number of times that a selected process reached the place.
    pub hits: u64,
    /// Number of times that the condition was true, without skipped hits: records and lost ones, or counted hits.
    pub passed: u64,
    /// Records lost because the ring was full.
    pub lost: u64,
    /// Number of times that the condition was true but the hit was skipped: one of the first, or after the pass limit.
    #[serde(default)]
    pub left_out: u64,
    /// Hits not counted by keys because there was no room for another combination.
    #[serde(default)]
    pub keys_lost: u64,
    /// Hits not counted by keys because the keys could not be read.
    #[serde(default)]
    pub keys_failed: u64,
    /// Calls whose return was not seen.
    #[serde(default)]
    pub unreturned: u64,
    /// Conditions that could not be computed, by reason.
    pub condition_errors: BTreeMap<String, u64>,
    /// Values that could not be collected, by reason.
    pub value_errors: BTreeMap<String, u64>,
    /// Number of times that the kernel skipped the program because it was running already, over all processes.
    pub missed: u64,
    /// Number of hits of a kprobe that the kernel passed over, or of returns of a kretprobe, which keeps room for few open calls; over
    /// all processes. `None` if the kernel does not tell (before Linux 6.7), or if it is [no kprobe](Probe::is_kprobe).
    #[serde(default)]
    pub kernel_missed: Option<u64>,
}

/// The bytes are not valid records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hits.bin: offset {offset:#x}: {what}")]
pub struct StreamError {
    /// Offset in the file.
    pub offset: usize,
    /// The expected contents.
    pub what: String,
}

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit<'a> {
    /// Number of the probe.
    pub probe: u16,
    /// CPU number.
    pub cpu: u16,
    /// Time by the monotonic clock, ns.
    pub time_ns: u64,
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// One bit for each value that could not be read.
    pub failed: u64,
    /// The whole record.
    pub bytes: &'a [u8],
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl<'a> Hit<'a> {
    /// Parses the record at the start of these bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        if bytes.len() < HEADER {
            return Err(format!("expected a record's header of {HEADER} bytes, {} are left", bytes.len()));
        }
        let size = u32_at(bytes, 0) as usize;
        if !(HEADER..=LONGEST).contains(&size) || !size.is_multiple_of(8) {
            return Err(format!("expected a record's size ({HEADER} to {LONGEST}, in eights), found {size}"));
        }
        let Some(record) = bytes.get(..size) else {
            return Err(format!("expected a record of {size} bytes, {} are left", bytes.len()));
        };
        Ok(Self {
            probe: u32_at(bytes, 4) as u16,
            cpu: (u32_at(bytes, 4) >> 16) as u16,
            time_ns: u64_at(bytes, 8),
            tid: u32_at(bytes, 16),
            pid: u32_at(bytes, 20),
            failed: u64_at(bytes, 24),
            bytes: record,
        })
    }

    /// The value of an item. The error is the reason why there is none.
    pub fn value(&self, number: usize, item: &Item) -> Result<Value, &'static str> {
        let Some(shape) = &item.shape else { return Err("not available here") };
        if number < MOST_ITEMS && self.failed >> number & 1 == 1 {
            return Err("could not be read");
        }
        let bytes = self.bytes.get(item.at as usize..).unwrap_or(&[]);
        match shape.value(bytes) {
            Value::Null => Err("not in the record"),
            value => Ok(value),
        }
    }
}

/// The records in these bytes, up to the first invalid one.
pub fn hits(bytes: &[u8]) -> impl Iterator<Item = Result<Hit<'_>, StreamError>> {
    let mut offset = 0;
    let mut over = false;
    std::iter::from_fn(move || {
        let rest = bytes.get(offset..).filter(|rest| !over && !rest.is_empty())?;
        let hit = Hit::parse(rest).map_err(|what| StreamError { offset, what });
        match &hit {
            Ok(hit) => offset += hit.bytes.len(),
            Err(_) => over = true,
        }
        Some(hit)
    })
}

/// Returns true if a record of this probe may have room that a value does not use.
pub(crate) fn needs_tidying(probe: &Probe) -> bool {
    let is_loose =
        |shape: &Shape| matches!(shape, Shape::Text { .. } | Shape::Stack { .. } | Shape::Elements { .. });
    probe.items.iter().any(|item| item.shape.as_ref().is_some_and(is_loose))
}

/// Clears bytes that are not part of a value: the place of values that could not be read, and the room after a string's
/// end.
pub fn tidy(record: &mut [u8], probe: &Probe) {
    let failed = u64_at(record, 24);
    for (number, item) in probe.items.iter().enumerate() {
        if number < MOST_ITEMS && failed >> number & 1 == 1 {
            let end = probe.items.iter().map(|i| i.at).filter(|at| *at > item.at).min();
            // Data for GDB lies after the values.
            let last = probe.gdb.as_ref().map_or(probe.record_bytes, |frame| frame.registers);
            let end = end.unwrap_or(last).min(last).min(record.len() as u32);
            record[(item.at.min(end)) as usize..end as usize].fill(0);
            continue;
        }
        let (room, unit) = match item.shape {
            Some(Shape::Text { room, .. }) => (room, 1),
            Some(Shape::Stack { frames }) => (frames.saturating_mul(8), 1),
            Some(Shape::Elements { room, stride, .. }) => (room, stride),
            _ => continue,
        };
        let at = item.at as usize;
        let used = u64_at(record, at).saturating_mul(u64::from(unit)).min(u64::from(room)) as usize;
        let (from, to) = (at + 8 + used, at + 8 + room as usize);
        if let Some(rest) = record.get_mut(from..to) {
            rest.fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(size: u32, failed: u64) -> Vec<u8> {
        let mut bytes = vec![0; size as usize];
        bytes[..4].copy_from_slice(&size.to_le_bytes());
        bytes[4..8].copy_from_slice(&[1, 0, 3, 0]);
        bytes[24..32].copy_from_slice(&failed.to_le_bytes());
        bytes
    }

    #[test]
    fn records_and_what_is_none() {
        let mut bytes = record(48, 2);
        bytes.extend(record(32, 0));
        bytes.extend([32, 0, 0]);
        let found: Vec<_> = hits(&bytes).collect();
        assert_eq!(found.len(), 3);
        let first = found[0].as_ref().expect("a record");
        assert_eq!((first.probe, first.cpu, first.bytes.len()), (1, 3, 48));
        assert_eq!(found[2].as_ref().unwrap_err().offset, 80);
        let shape = Some(Shape::Int { size: 4, signed: true });
        let item = |at| Item { name: "n".into(), ty: "int".into(), at, shape: shape.clone(), missing: None };
        assert_eq!(first.value(0, &item(32)), Ok(Value::from(0)));
        assert_eq!(first.value(1, &item(40)), Err("could not be read"));
        assert_eq!(first.value(2, &item(46)), Err("not in the record"));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes: Vec<u8>, at: u32, room: u32) {
            let shape = Some(Shape::Text { room, cut: None });
            let item = Item { name: String::new(), ty: String::new(), at, shape, missing: None };
            for hit in hits(&bytes).flatten() {
                let _ = hit.value(0, &item);
            }
        }
    }
}
