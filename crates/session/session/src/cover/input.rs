// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kind of an input: a run with gcov's counters, a run with a flow, or counters by themselves.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use kprism_store::GcovFiles;

use super::options::Options;

/// Returns true if the run holds gcov's counters.
pub fn is_cover(input: &Path) -> bool {
    GcovFiles::of(input).after().exists()
}

/// Returns true if coverage of it is read from a flow, not from counters.
pub fn is_flow(input: &Path, options: &Options) -> bool {
    options.by_flow || !is_cover(input) && input.join("manifest.json").exists()
}

/// Returns true if it is no run: counters by themselves, in a file or a folder.
pub fn is_alone(input: &Path) -> bool {
    input.is_file()
        || input.is_dir() && !input.join("manifest.json").exists() && !input.join("streams").exists()
}

/// The time at which counters were recorded: that of the run's file, or else of `input` itself.
pub fn recorded(input: &Path) -> SystemTime {
    let counters = GcovFiles::of(input).after();
    let place = if counters.exists() { &counters } else { input };
    fs::metadata(place).and_then(|file| file.modified()).unwrap_or(UNIX_EPOCH)
}
