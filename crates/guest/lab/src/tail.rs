// SPDX-License-Identifier: MIT OR Apache-2.0
//! Follows files that QEMU writes, and reads their last lines.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Reads a growing file piece by piece.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    file: Option<File>,
}

impl Tail {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None }
    }

    /// Passes on the bytes added since the last call.
    pub fn follow(&mut self, mut take: impl FnMut(&[u8])) {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &mut self.file else { return };
        let mut buffer = [0; 65536];
        while let Ok(count @ 1..) = file.read(&mut buffer) {
            take(&buffer[..count]);
        }
    }
}

/// Splits a stream of pieces into lines, without line ends.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    pub fn add(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8])) {
        for &byte in bytes {
            if byte == b'\n' {
                take(self.0.strip_suffix(b"\r").unwrap_or(&self.0));
                self.0.clear();
            } else {
                self.0.push(byte);
            }
        }
    }
}

/// The last `count` lines of a text file.
pub(crate) fn last_lines(path: &Path, count: usize) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(16384)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\r', "");
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// The kernel's message, if its console shows a panic.
pub(crate) fn find_panic(console: &Path) -> Option<String> {
    let bytes = std::fs::read(console).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let at = text.find("Kernel panic - not syncing")?;
    text[at..].lines().next().map(|line| line.trim().to_owned())
}
