// SPDX-License-Identifier: MIT OR Apache-2.0
//! `streams/probe/hits.bin`: records as they come, or the last of them at the end.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use kprism_probe::stream;

/// Where records go.
pub struct Kept {
    file: BufWriter<File>,
    last: Option<usize>,
    waiting: VecDeque<Box<[u8]>>,
    records: u64,
}

const FILE: &str = "streams/probe/hits.bin";

impl Kept {
    /// A new file; of the records only the last so many, if that is said.
    pub fn create(path: &Path, last: Option<u32>) -> Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let last = last.map(|n| n as usize);
        Ok(Self { file: BufWriter::with_capacity(1 << 20, file), last, waiting: VecDeque::new(), records: 0 })
    }

    /// Takes the records that `read` gives, one or more at once.
    pub fn take(&mut self, read: impl FnOnce(&mut dyn FnMut(&[u8])) -> u64) -> Result<()> {
        let mut failed = None;
        let Self { file, last, waiting, .. } = self;
        let taken = read(&mut |records| match *last {
            Some(most) => {
                for hit in stream::hits(records).flatten() {
                    if waiting.len() == most {
                        waiting.pop_front();
                    }
                    waiting.push_back(hit.bytes.into());
                }
            }
            None if failed.is_none() => failed = file.write_all(records).err(),
            None => {}
        });
        if let Some(error) = failed {
            return Err(error).context(FILE);
        }
        self.records += taken;
        // So that a recorder that is killed leaves what it had.
        if taken > 0 { file.flush().context(FILE) } else { Ok(()) }
    }

    /// Writes what waits; how many records there are in the file.
    pub fn end(mut self) -> Result<u64> {
        for record in &self.waiting {
            self.file.write_all(record).context(FILE)?;
        }
        self.file.flush().context(FILE)?;
        Ok(if self.last.is_some() { self.waiting.len() as u64 } else { self.records })
    }
}
