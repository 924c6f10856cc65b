// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output of lines: a large buffer, a limit, and the first error.

use std::io::{self, Write};

/// Bytes collected before a write.
const FULL: usize = 256 << 10;

/// Appends the first `len` bytes of a text. A short one, with `N` bytes and more behind its start, is copied whole, by a few
/// instructions in place of a call.
#[inline(always)]
pub(crate) fn append<const N: usize>(out: &mut Vec<u8>, text: &[u8], len: usize) {
    match text.first_chunk::<N>() {
        Some(chunk) if len <= N => {
            let end = out.len() + len;
            out.extend_from_slice(chunk);
            out.truncate(end);
        }
        _ => out.extend_from_slice(&text[..len]),
    }
}

/// Collects lines and writes them in large pieces.
pub struct Output<'w> {
    to: &'w mut dyn Write,
    buffer: Vec<u8>,
    /// Number of lines still to be written.
    left: u64,
    lines: u64,
    error: Option<io::Error>,
    /// Polled for an interrupt.
    interrupted: &'w dyn Fn() -> bool,
    stopped: bool,
}

impl std::fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output")
            .field("lines", &self.lines)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<'w> Output<'w> {
    /// Writes to `to`, at most `limit` lines.
    pub fn new(to: &'w mut dyn Write, limit: Option<u64>, interrupted: &'w dyn Fn() -> bool) -> Self {
        Self {
            to,
            buffer: Vec::with_capacity(FULL + (64 << 10)),
            left: limit.unwrap_or(u64::MAX),
            lines: 0,
            error: None,
            interrupted,
            stopped: false,
        }
    }

    /// The buffer for a line; [`Output::end_line`] ends it.
    #[inline(always)]
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Ends a line; its line feed is written already.
    #[inline(always)]
    pub(crate) fn end_line(&mut self) {
        self.lines += 1;
        self.left -= 1;
        if self.buffer.len() >= FULL {
            self.flush();
        }
    }

    /// Writes a line, which ends in its line feed.
    pub fn line(&mut self, text: &str) {
        self.buffer.extend_from_slice(text.as_bytes());
        self.end_line();
    }

    /// Writes a line about the list, which is none of its lines.
    pub fn remark(&mut self, text: &str) {
        self.buffer.extend_from_slice(text.as_bytes());
    }

    /// Returns true if no more lines are wanted or possible.
    #[inline(always)]
    pub fn is_done(&self) -> bool {
        self.left == 0 || self.stopped
    }

    #[inline(never)]
    fn flush(&mut self) {
        if let Err(error) = self.to.write_all(&self.buffer) {
            self.error = Some(error);
            self.stopped = true;
        }
        self.buffer.clear();
        self.stopped = self.stopped || (self.interrupted)();
    }

    /// Writes the rest of the buffer. Returns the number of lines.
    ///
    /// # Errors
    /// The first error of writing.
    pub fn finish(mut self) -> io::Result<u64> {
        if self.error.is_none() {
            self.flush();
        }
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.lines),
        }
    }
}
