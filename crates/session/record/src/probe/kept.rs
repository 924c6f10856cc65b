// SPDX-License-Identifier: MIT OR Apache-2.0
//! `streams/probe/hits.bin`: records as they come, or the last of them at the end.
//!
//! A disk that is full ends the recording, not the account of it: the file is cut behind a record, a little before its end,
//! so that there is room to say what was counted.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use kprism_probe::stream;

/// The destination of records.
pub struct Kept {
    file: File,
    last: Option<usize>,
    waiting: VecDeque<Box<[u8]>>,
    records: u64,
    /// Bytes in the file.
    length: u64,
    /// Ends of records, at which the file can be cut, and how many there are up to there.
    ends: VecDeque<(u64, u64)>,
    /// Why nothing more can be written.
    full: Option<String>,
}

const FILE: &str = "streams/probe/hits.bin";
/// Bytes cut off the file when the disk is full: room for the counts of all probes and the manifest.
const ROOM: u64 = 128 << 10;
/// Bytes of one write, and least distance between two places at which the file can be cut.
const PIECE: usize = 64 << 10;
/// Places at which the file can be cut.
const ENDS: usize = 64;

impl Kept {
    /// A new file; of the records only the last so many, if that is said.
    pub fn create(path: &Path, last: Option<u32>) -> Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let last = last.map(|n| n as usize);
        let (waiting, ends) = (VecDeque::new(), VecDeque::from([(0, 0)]));
        Ok(Self { file, last, waiting, records: 0, length: 0, ends, full: None })
    }

    /// Takes the records that `read` gives, one or more at once.
    pub fn take(&mut self, read: impl FnOnce(&mut dyn FnMut(&[u8])) -> u64) {
        // Written at once, so that a recorder that is killed leaves what it had.
        let mut all = Vec::new();
        let Self { last, waiting, .. } = self;
        let taken = read(&mut |records| match *last {
            Some(most) => {
                for hit in stream::hits(records).flatten() {
                    if waiting.len() == most {
                        waiting.pop_front();
                    }
                    waiting.push_back(hit.bytes.into());
                }
            }
            None => all.extend_from_slice(records),
        });
        if self.last.is_some() || taken == 0 {
            return;
        }
        let (mut piece, mut records) = (0..0, 0);
        for hit in stream::hits(&all).flatten() {
            piece.end += hit.bytes.len();
            records += 1;
            if piece.len() >= PIECE {
                self.write(&all[piece.clone()], records);
                (piece, records) = (piece.end..piece.end, 0);
            }
        }
        self.write(&all[piece], records);
    }

    fn write(&mut self, bytes: &[u8], records: u64) {
        if self.full.is_some() {
            return;
        }
        if let Err(error) = self.file.write_all(bytes) {
            self.full = Some(format!("{FILE}: {error}"));
            self.give_back();
            return;
        }
        self.length += bytes.len() as u64;
        self.records += records;
        let far = self.ends.back().is_none_or(|(end, _)| self.length - end >= PIECE as u64);
        if far {
            self.ends.push_back((self.length, self.records));
            if self.ends.len() > ENDS {
                self.ends.pop_front();
            }
        }
    }

    /// Cuts the file where a record ends.
    fn give_back(&mut self) {
        let most = self.length.saturating_sub(ROOM);
        let end = self.ends.iter().rev().find(|(end, _)| *end <= most).copied();
        (self.length, self.records) = end.unwrap_or((0, 0));
        if let Err(error) = self.file.set_len(self.length) {
            self.full = Some(format!("{FILE}: {error}"));
        }
    }

    /// Whether no more can be written.
    pub fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// Writes the records that wait. Returns the number of records in the file, and the error that stopped writing.
    pub fn end(mut self) -> (u64, Option<String>) {
        for record in std::mem::take(&mut self.waiting) {
            self.write(&record, 1);
        }
        (self.records, self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u8) -> Vec<u8> {
        let mut bytes = vec![n; 4096];
        bytes[..4].copy_from_slice(&4096_u32.to_le_bytes());
        bytes
    }

    /// A file system of its own needs rights; a limit of a file's size is refused in the same place.
    #[test]
    fn a_full_disk_leaves_whole_records() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("hits.bin");
        let mut kept = Kept::create(&path, None).expect("a file");
        for n in 0..100 {
            kept.take(|take| {
                take(&record(n));
                1
            });
        }
        // As if the disk had refused the last piece half way.
        kept.file = File::open(&path).expect("a file that cannot be written");
        kept.take(|take| {
            take(&record(100));
            1
        });
        assert!(kept.is_full());
        kept.file = File::options().write(true).open(&path).expect("the file");
        kept.give_back();
        let (records, why) = kept.end();
        assert!(why.expect("a reason").starts_with(FILE));
        let bytes = std::fs::read(&path).expect("the file");
        assert_eq!(bytes.len() as u64, records * 4096);
        assert!((100 * 4096 - bytes.len() as u64) >= ROOM && !bytes.is_empty());
        assert_eq!(stream::hits(&bytes).flatten().count() as u64, records);
    }

    #[test]
    fn the_last_are_written_at_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("hits.bin");
        let mut kept = Kept::create(&path, Some(2)).expect("a file");
        kept.take(|take| {
            (1..=5).for_each(|n| take(&record(n)));
            5
        });
        assert_eq!(kept.end(), (2, None));
        let bytes = std::fs::read(&path).expect("the file");
        assert_eq!([bytes[100], bytes[5000]], [4, 5]);
    }
}
