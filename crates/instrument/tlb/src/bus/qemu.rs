// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU as a bus monitor: reads lines of its trace events `memory_region_ops_read` and `_write`, and returns accesses
//! and records.
//!
//! ```text
//! 4711@1733000000.123456:memory_region_ops_read cpu 0 mr 0x55d0 addr 0x190000008 value 0x67 size 8 name 'cxl-fixed-memory-region'
//! ```
//!
//! The words of the guest's module are in the same order ([`super::words`]). QEMU gives microseconds. Times here are
//! nanoseconds; each is at least one later than the last, to keep that order.

use super::mappings::Record;
use super::trace::{Access, Kind, MOST_CPU};
use super::words::{Heard, Words};

/// Content of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// An access to the region.
    Access(Access),
    /// A record of the module.
    Record(Record),
    /// A part of a record, or a line about something else.
    Nothing,
}

/// The state of the monitor.
#[derive(Debug, Clone, Default)]
pub struct Monitor {
    last: u64,
    /// The module's words.
    pub words: Words,
    /// Number of lines that are no accesses of a CXL window.
    pub others: u64,
}

impl Monitor {
    /// Handles a line.
    pub fn line(&mut self, line: &[u8]) -> Line {
        let Some((micros, access)) = parse(line) else {
            self.others += 1;
            return Line::Nothing;
        };
        let time = micros.saturating_mul(1000).max(self.last.saturating_add(1));
        self.last = time;
        let access = Access { time, ..access };
        match self.words.hear(&access) {
            Heard::Access => Line::Access(access),
            Heard::Record(record) => Line::Record(record),
            Heard::Nothing => Line::Nothing,
        }
    }
}

/// Parses a line: microseconds and the access, if it is an access to a CXL window.
fn parse(line: &[u8]) -> Option<(u64, Access)> {
    let at = line.iter().position(|&b| b == b'@')?;
    let (seconds, rest) = number(&line[at + 1..], 10)?;
    let (micros, rest) = number(rest.strip_prefix(b".")?, 10)?;
    let rest = rest.strip_prefix(b":memory_region_ops_")?;
    let (kind, rest) = match rest.strip_prefix(b"read cpu ") {
        Some(rest) => (Kind::Read, rest),
        None => (Kind::Write, rest.strip_prefix(b"write cpu ")?),
    };
    let (cpu, rest) = match rest.strip_prefix(b"-") {
        // The access is not a CPU's.
        Some(rest) => (None, number(rest, 10)?.1),
        None => {
            number(rest, 10).map(|(cpu, rest)| (u8::try_from(cpu).ok().filter(|c| *c <= MOST_CPU), rest))?
        }
    };
    let (_, rest) = number(rest.strip_prefix(b" mr 0x")?, 16)?;
    let (address, rest) = number(rest.strip_prefix(b" addr 0x")?, 16)?;
    let (value, rest) = number(rest.strip_prefix(b" value 0x")?, 16)?;
    let (size, rest) = number(rest.strip_prefix(b" size ")?, 10)?;
    rest.strip_prefix(b" name 'cxl-fixed-memory-region")?;
    let bytes = u8::try_from(size).ok().filter(|b| b.is_power_of_two() && *b <= 128)?;
    let micros = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
    (address >> 48 == 0)
        .then_some((micros, Access { time: 0, address, kind, bytes, value: Some(value), cpu }))
}

fn number(bytes: &[u8], base: u32) -> Option<(u64, &[u8])> {
    let mut n = 0u64;
    let mut length = 0;
    while let Some(digit) = bytes.get(length).and_then(|&b| char::from(b).to_digit(base)) {
        n = n.checked_mul(base.into())?.checked_add(digit.into())?;
        length += 1;
    }
    (length > 0).then_some((n, &bytes[length..]))
}
