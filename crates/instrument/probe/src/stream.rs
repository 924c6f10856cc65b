// SPDX-License-Identifier: MIT OR Apache-2.0
//! `streams/probe/`: `probes.json` says what each record's bytes are, `hits.bin` has the records as the kernel made
//! them. Any bytes give records or an error that says where.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gdb::Frame;
use crate::shape::Shape;
use crate::tally::{Tally, Totals};

/// Bytes of a record before its values.
pub const HEADER: usize = 32;
/// The version of the format.
pub const VERSION: u32 = 1;
/// Values that a record can have: one bit each says which could not be read.
pub const MOST_ITEMS: usize = 64;
/// Longest record.
pub const LONGEST: usize = 32 << 10;

/// What `probes.json` holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// [`VERSION`].
    pub version: u32,
    /// By the number in a record's header.
    pub probes: Vec<Probe>,
    /// What each counted; empty until recording has ended.
    #[serde(default)]
    pub counts: Vec<Counts>,
    /// What each counted by keys or in histograms, if it did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub totals: Vec<Option<Totals>>,
    /// Trace state variables, and what they were at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<(String, i64)>,
}

/// A probe and its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// As it was written.
    pub place: String,
    /// The place in words: function, file, line.
    pub found: String,
    /// As it was written.
    pub condition: Option<String>,
    /// Its file; none for the kernel.
    pub file: Option<String>,
    /// Where it is linked, if debug information told.
    pub address: Option<u64>,
    /// How it is attached: uprobe, uretprobe, kprobe, kretprobe, fentry, fexit.
    pub hook: String,
    /// Size of a record; 0 if hits leave none.
    pub record_bytes: u32,
    /// Its values.
    pub items: Vec<Item>,
    /// What is counted in the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tally: Option<Tally>,
    /// What of a record is for GDB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gdb: Option<Frame>,
    /// What a hit does to the recording.
    #[serde(default, skip_serializing_if = "Part::is_record")]
    pub part: Part,
}

impl Probe {
    /// Whether the other is somewhere else in the code.
    pub fn found_apart(&self, other: &Probe) -> bool {
        self.address != other.address
    }
}

/// What a probe's hit does to the recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Nothing: it is recorded.
    #[default]
    Record,
    /// From then on the others are recorded.
    Start,
    /// From then on they are not, until the next start.
    Pause,
    /// It ends.
    Stop,
}

impl Part {
    /// Whether the recording goes on as before.
    pub fn is_record(&self) -> bool {
        *self == Self::Record
    }
}

/// A collected value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The expression.
    pub name: String,
    /// Its type in C.
    #[serde(rename = "type")]
    pub ty: String,
    /// Where in the record.
    pub at: u32,
    /// What is there; none if it could not be had at this place.
    pub shape: Option<Shape>,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// What a probe's program counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Times the place was reached by a process that was asked for.
    pub hits: u64,
    /// Times the condition was true, without what was left out: records and lost ones, or what was counted.
    pub passed: u64,
    /// Records that found no room.
    pub lost: u64,
    /// Times the condition was true, but the first hits were to be skipped or there had been enough.
    #[serde(default)]
    pub left_out: u64,
    /// Hits that were not counted by their keys: no room for one more combination.
    #[serde(default)]
    pub keys_lost: u64,
    /// Hits that were not counted by their keys: these could not be read.
    #[serde(default)]
    pub keys_failed: u64,
    /// Calls whose return was not seen.
    #[serde(default)]
    pub unreturned: u64,
    /// Conditions that could not be computed, and why.
    pub condition_errors: BTreeMap<String, u64>,
    /// Values that could not be collected, and why.
    pub value_errors: BTreeMap<String, u64>,
    /// Times that the kernel did not run the program as it was running already; of all processes.
    pub missed: u64,
}

/// Why bytes are no records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hits.bin: offset {offset:#x}: {what}")]
pub struct StreamError {
    /// Where.
    pub offset: usize,
    /// What was expected there.
    pub what: String,
}

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit<'a> {
    /// Which probe.
    pub probe: u16,
    /// CPU.
    pub cpu: u16,
    /// Monotonic clock.
    pub time_ns: u64,
    /// Thread.
    pub tid: u32,
    /// Process.
    pub pid: u32,
    /// A bit for each value that could not be read.
    pub failed: u64,
    /// All of it.
    pub bytes: &'a [u8],
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl<'a> Hit<'a> {
    /// The record at the beginning of these bytes.
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

    /// The value of an item: `Err` says why there is none.
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

/// The records in these bytes, up to the first that is none.
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

/// Whether a record of this probe may have room that a value does not use.
pub(crate) fn needs_tidying(probe: &Probe) -> bool {
    let is_loose =
        |shape: &Shape| matches!(shape, Shape::Text { .. } | Shape::Stack { .. } | Shape::Elements { .. });
    probe.items.iter().any(|item| item.shape.as_ref().is_some_and(is_loose))
}

/// Clears what is no value: in the place of values that could not be read, and in a string's room after its
/// end.
pub fn tidy(record: &mut [u8], probe: &Probe) {
    let failed = u64_at(record, 24);
    for (number, item) in probe.items.iter().enumerate() {
        if number < MOST_ITEMS && failed >> number & 1 == 1 {
            let end = probe.items.iter().map(|i| i.at).filter(|at| *at > item.at).min();
            // What is kept for GDB lies behind the values.
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
