// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contents of a run folder that grows, again and again.
//!
//! In: the path of a run that is, or will be, recorded. Out: [`Contents`], from a thread of its own. Reading takes one fifth of a
//! CPU at most, however much there is to read: after each reading the thread waits four times as long as that took.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use kprism_store::Run;

use crate::contents::Contents;

/// Waits between readings, in times of a reading.
const REST: u32 = 4;

/// A folder that is there already, which the recorder moves out of its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Before(Option<(u64, u64)>);

impl Before {
    /// Remembers the folder at this path. The recorder renames it, so that no other gets its number.
    pub fn of(path: &Path) -> Self {
        Before(fs::metadata(path).ok().map(|folder| (folder.dev(), folder.ino())))
    }

    /// The run at this path, unless it is still the one of before or not there yet.
    pub fn new_run(self, path: &Path) -> Option<Run> {
        if Self::of(path) == self {
            return None;
        }
        Run::open(path).ok()
    }
}

/// The readings.
pub struct Watch {
    readings: Receiver<Result<Contents>>,
}

impl Watch {
    /// Reads the run at `path` each `interval`, as soon as it is another than that of `before`.
    pub fn begin(path: &Path, before: Before, interval: Duration) -> Self {
        // One reading waits at most.
        let (to, readings) = sync_channel(1);
        let path = path.to_owned();
        thread::spawn(move || read(&path, before, interval, &to));
        Watch { readings }
    }

    /// The latest reading, if there is one that was not taken yet.
    pub fn latest(&self) -> Option<Result<Contents>> {
        let mut latest = None;
        loop {
            match self.readings.try_recv() {
                Ok(contents) => latest = Some(contents),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return latest,
            }
        }
    }
}

fn read(path: &Path, before: Before, interval: Duration, to: &SyncSender<Result<Contents>>) {
    loop {
        thread::sleep(interval);
        let Some(run) = before.new_run(path) else { continue };
        let begun = Instant::now();
        // Nobody listens any more: the recording has ended.
        if to.send(Contents::so_far(&run)).is_err() {
            return;
        }
        let rest = begun.elapsed().saturating_mul(REST);
        thread::sleep(rest.saturating_sub(interval));
    }
}
