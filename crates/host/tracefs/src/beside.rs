// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracepoints recorded beside another instrument of a guest.
//!
//! The input is [`Beside`], the names of events and the size of the buffer. `begin` switches them on, `end` switches
//! them off and writes the ring buffers' pages with all that decodes them. Between the two nothing of this crate runs:
//! no reader takes time from the guest, and what does not fit the buffer is lost, the oldest first, and counted.
//!
//! The clock is the TSC, which every CPU of a guest reads without a conversion. Pairs of it and of the kernel's other
//! clocks are measured before and after, so that what bears those can be placed too.
//!
//! The instance is not removed: the guest ends.
//!
//! What was recorded can be read anywhere. Only x86-64 has a TSC, so `begin`, `end` and `monotonic` are there alone.

#[cfg(target_arch = "x86_64")]
mod record;

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Context as _, Result};
use crate::stats::CpuStats;
#[cfg(target_arch = "x86_64")]
pub use record::{begin, end, monotonic};

/// The clock of the events.
pub const CLOCK: &str = "x86-tsc";

/// Settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// Events, as `SYSTEM:NAME` with globs, or `SYSTEM`.
    pub events: Vec<String>,
    /// Ring buffer of each CPU, in KiB.
    pub buffer_kib: u64,
}

/// A reading of another clock between two readings of the TSC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// The TSC before.
    pub before: u64,
    /// The other clock, in ns.
    pub ns: u64,
    /// The TSC after.
    pub after: u64,
}

/// Pairs of the TSC and of other clocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// The clock of the kernel's log, in whole microseconds.
    pub local: Vec<Pair>,
    /// CLOCK_MONOTONIC.
    pub monotonic: Vec<Pair>,
}

/// The recorded events, without their pages: `events.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedEvents {
    /// The settings.
    pub settings: Beside,
    /// The events that they name, as `SYSTEM/NAME`.
    pub events: Vec<String>,
    /// The trace's clock.
    pub clock: String,
    /// The kernel's counts, by CPU number.
    pub cpus: Vec<(u32, CpuStats)>,
    /// The TSC and other clocks, before and after.
    pub clocks: Clocks,
}

impl RecordedEvents {
    /// Number of events recorded, on all CPUs.
    pub fn recorded(&self) -> u64 {
        self.cpus.iter().map(|(_, stats)| stats.read).sum()
    }

    /// Number of events lost, on all CPUs.
    pub fn lost(&self) -> u64 {
        self.cpus.iter().map(|(_, stats)| stats.lost()).sum()
    }

    /// Writes it into a run's folder of events.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, events: &Path) -> Result<()> {
        let path = events.join(FILE);
        let text = serde_json::to_vec_pretty(self).map_err(std::io::Error::other).at("write", &path)?;
        fs::write(&path, text).at("write", &path)
    }

    /// Reads it back from a run's folder of events; none if nothing was recorded there.
    ///
    /// # Errors
    /// The file is malformed or cannot be read.
    pub fn load(events: &Path) -> Result<Option<Self>> {
        let path = events.join(FILE);
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(std::io::Error::other).at("read", &path).map(Some)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at("read", &path),
        }
    }
}

const FILE: &str = "events.json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_events_has_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(RecordedEvents::load(folder.path()).unwrap(), None);
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(RecordedEvents::load(folder.path()).is_err());
    }
}
