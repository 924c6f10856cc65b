// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's event counts of one CPU, parsed from `per_cpu/cpuN/stats`. The input is the file's text, the output a
//! [`CpuStats`]. Its counts of lost events tell how complete a recording is.

use serde::{Deserialize, Serialize};

/// Numbers of events of one CPU's buffer, as counted by the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuStats {
    /// Events still in the buffer.
    pub entries: u64,
    /// Events overwritten before they were read.
    pub overrun: u64,
    /// Events lost because the writer was interrupted too deeply.
    pub commit_overrun: u64,
    /// Events not written because the buffer was full (without overwriting).
    pub dropped: u64,
    /// Events read from the buffer.
    pub read: u64,
}

impl CpuStats {
    /// Parses the file's lines, `name: number`. A missing line counts as 0, as in older kernels.
    pub fn parse(text: &str) -> Self {
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        Self {
            entries: number("entries"),
            overrun: number("overrun"),
            commit_overrun: number("commit overrun"),
            dropped: number("dropped events"),
            read: number("read events"),
        }
    }

    /// Total number of lost events.
    pub fn lost(&self) -> u64 {
        self.overrun.saturating_add(self.commit_overrun).saturating_add(self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines() {
        let text = "entries: 3\noverrun: 10\ncommit overrun: 2\nbytes: 3024\noldest event ts:     5.097174\n\
            now ts:     7.770292\ndropped events: 4\nread events: 50\n";
        let stats = CpuStats::parse(text);
        let expected = CpuStats { entries: 3, overrun: 10, commit_overrun: 2, dropped: 4, read: 50 };
        assert_eq!((stats, stats.lost()), (expected, 16));
        assert_eq!(CpuStats::parse("entries: x\n\u{0}garbage"), CpuStats::default());
    }
}
