// SPDX-License-Identifier: MIT OR Apache-2.0
//! The size of a recording while it is written, and the disk that is left for it.
//!
//! In: a run folder, and the folder of its streams. Out: what was written so far ([`Written`]), and the reason to end the
//! recording, once there is one ([`Full`]): it reached the user's limit, or the disk is nearly full. On a full disk the streams would
//! end anywhere, and the run's account and tables would have no place.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cache::free_space;
use crate::error::{Context, Result};

/// Interval of the measurements. A recorder writes some 100 MB/s, so that it passes a limit by some MB.
const MEASURE: Duration = Duration::from_millis(50);

/// Interval at which the user is told.
const TELL: Duration = Duration::from_secs(1);

/// Free bytes on the disk of a run folder at which a recording is ended: room for what QEMU still has in memory, symbols, the account,
/// and tables, and for other programs that write to the same disk.
pub const RESERVE: u64 = 256 << 20;

/// On a disk with less than this at the beginning there is no reserve: it may be enough for a short run, and a recorder that finds it
/// full says so.
const SMALL: u64 = 32 << 20;

/// Size of what a recording has written so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Time since the recording's guest was started.
    pub elapsed: Duration,
    /// Bytes of the streams; `None` if there are none, as without the observer.
    pub bytes: Option<u64>,
    /// Bytes per second since the time before; `None` the first time.
    pub per_second: Option<u64>,
    /// The user's limit of the streams in bytes.
    pub limit: Option<u64>,
    /// Free bytes on the disk of the run folder; `None` if the file system does not tell.
    pub left: Option<u64>,
}

/// The reason to end a recording that has become too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The streams reached the user's limit, of so many bytes.
    Size(u64),
    /// The disk of the run folder has only so many bytes left.
    Disk(u64),
}

/// Measures a recording.
#[derive(Debug)]
pub struct Meter {
    folder: PathBuf,
    streams: PathBuf,
    limit: Option<u64>,
    /// Free bytes at which the recording is ended.
    reserve: u64,
    start: Instant,
    measured: Instant,
    told: Instant,
    /// Bytes of the streams when the user was told.
    bytes_told: Option<u64>,
}

impl Meter {
    /// Of the recording whose run folder is `folder`, and that ends when its `streams` have `limit` bytes. The recording begins now.
    pub fn new(folder: &Path, streams: &Path, limit: Option<u64>) -> Self {
        let now = Instant::now();
        Meter {
            folder: folder.to_owned(),
            streams: streams.to_owned(),
            limit,
            reserve: free_space(folder).map_or(0, reserve),
            start: now,
            measured: now,
            told: now,
            bytes_told: None,
        }
    }

    /// Measures, if it is time, and tells the result once a second. Returns the reason to end the recording.
    pub fn check(&mut self, tell: &mut dyn FnMut(Written)) -> Option<Full> {
        let now = Instant::now();
        if now.duration_since(self.measured) < MEASURE {
            return None;
        }
        self.measured = now;
        let bytes = size_of_tree(&self.streams).ok();
        let left = free_space(&self.folder);
        let since = now.duration_since(self.told);
        if since >= TELL {
            let grown = bytes.zip(self.bytes_told).map(|(bytes, before)| bytes.saturating_sub(before));
            tell(Written {
                elapsed: now.duration_since(self.start),
                bytes,
                per_second: grown.map(|grown| (grown as f64 / since.as_secs_f64()) as u64),
                limit: self.limit,
                left,
            });
            self.told = now;
            self.bytes_told = bytes;
        }
        full(bytes, self.limit, left, self.reserve)
    }
}

/// The bytes to be left free on a disk that has `free` at the beginning: at most half of them.
fn reserve(free: u64) -> u64 {
    if free < SMALL { 0 } else { RESERVE.min(free / 2) }
}

fn full(bytes: Option<u64>, limit: Option<u64>, left: Option<u64>, reserve: u64) -> Option<Full> {
    match (bytes, limit) {
        (Some(bytes), Some(limit)) if bytes >= limit => Some(Full::Size(limit)),
        _ => left.filter(|left| *left < reserve).map(Full::Disk),
    }
}

/// Bytes of a file, or of all files below a folder.
pub(crate) fn size_of_tree(path: &Path) -> Result<u64> {
    let found = fs::symlink_metadata(path).at("read", path)?;
    if !found.is_dir() {
        return Ok(if found.is_file() { found.len() } else { 0 });
    }
    let mut bytes = 0;
    for entry in fs::read_dir(path).at("read", path)? {
        bytes += size_of_tree(&entry.at("read", path)?.path())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_leaves_half_of_a_small_disk() {
        assert_eq!(reserve(1 << 40), RESERVE);
        assert_eq!(reserve(100 << 20), 50 << 20);
        assert_eq!(reserve(1 << 20), 0);
    }

    #[test]
    fn a_limit_or_a_disk_ends_a_recording_and_what_is_not_known_does_not() {
        assert_eq!(full(Some(8), Some(8), Some(1), 2), Some(Full::Size(8)));
        assert_eq!(full(Some(7), Some(8), Some(1), 2), Some(Full::Disk(1)));
        assert_eq!(full(Some(7), Some(8), Some(2), 2), None);
        assert_eq!(full(None, Some(8), None, 2), None);
        assert_eq!(full(Some(9), None, None, 2), None);
    }

    #[test]
    fn streams_are_measured_while_they_grow() {
        let folder = tempfile::tempdir().unwrap();
        let streams = folder.path().join("streams");
        let mut meter = Meter::new(folder.path(), &streams, Some(100));
        let mut told = Vec::new();
        let mut check = |meter: &mut Meter| {
            // As if a second had passed.
            let before = Instant::now().checked_sub(2 * TELL).unwrap();
            (meter.measured, meter.told) = (before, before);
            meter.check(&mut |written| told.push((written.bytes, written.per_second.is_some())))
        };
        assert_eq!(check(&mut meter), None);
        fs::create_dir_all(streams.join("tlb")).unwrap();
        fs::write(streams.join("cpu0.pt"), [0; 60]).unwrap();
        assert_eq!(check(&mut meter), None);
        fs::write(streams.join("tlb/misses"), [0; 40]).unwrap();
        assert_eq!(check(&mut meter), Some(Full::Size(100)));
        assert_eq!(told, [(None, false), (Some(60), false), (Some(100), true)]);
    }
}
