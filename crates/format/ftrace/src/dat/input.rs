// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a trace.dat: in memory, or in a file of which only the needed parts are read.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::os::unix::fs::FileExt as _;

use super::unpack::unpack;
use crate::bytes::{Cursor, Order};
use crate::fault::FtraceError;

/// The bytes of a trace.dat.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// All of them.
    Whole(&'a [u8]),
    /// A file, and its size when it was opened.
    File(&'a File, u64),
}

/// Place of a CPU's pages in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Offset in the file, bytes.
    pub at: u64,
    /// Size as stored, bytes. No part of it lies behind the end of the file.
    pub size: u64,
    /// True if they are compressed, in chunks.
    pub packed: bool,
    /// Number of the notes before a note on these pages.
    pub(super) notes: usize,
}

impl<'a> Input<'a> {
    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Input::Whole(bytes) => bytes.len() as u64,
            Input::File(_, len) => *len,
        }
    }

    /// True if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `size` bytes at an offset, or fewer at the end.
    pub(super) fn bytes(&self, at: u64, size: u64) -> Result<Cow<'a, [u8]>, FtraceError> {
        let (at, size) = self.clipped(at, size);
        match self {
            Input::Whole(bytes) => Ok(Cow::Borrowed(&bytes[at as usize..][..size as usize])),
            Input::File(file, _) => {
                let mut bytes = vec![0; size as usize];
                file.read_exact_at(&mut bytes, at)
                    .map_err(|error| FtraceError::Unsupported { what: format!("offset {at}: {error}") })?;
                Ok(Cow::Owned(bytes))
            }
        }
    }

    /// The part of a range that is in the file: offset and size.
    pub(super) fn clipped(&self, at: u64, size: u64) -> (u64, u64) {
        let at = at.min(self.len());
        (at, size.min(self.len() - at))
    }

    /// A reader of `size` bytes at an offset, or of fewer at the end. It fails if a file became shorter since.
    #[must_use]
    pub fn reader(&self, at: u64, size: u64) -> Box<dyn Read + 'a> {
        let (at, size) = self.clipped(at, size);
        match self {
            Input::Whole(bytes) => Box::new(&bytes[at as usize..][..size as usize]),
            Input::File(file, _) => Box::new(Part { file, at, end: at + size }),
        }
    }
}

/// A part of a file. Each reader has its own position in it.
struct Part<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let most = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(into.len());
        if most == 0 {
            return Ok(0);
        }
        match self.file.read_at(&mut into[..most], self.at)? {
            0 => {
                let what = format!("offset {}: the file was cut short while it was read", self.at);
                Err(Error::new(ErrorKind::UnexpectedEof, what))
            }
            read => {
                self.at += read as u64;
                Ok(read)
            }
        }
    }
}

/// Pages that are stored in compressed chunks: a count, then two sizes and the data of each.
pub(super) struct Packed<'a> {
    stored: Box<dyn Read + 'a>,
    method: String,
    order: Order,
    /// Offset of the next byte in the file.
    at: u64,
    /// End of the stored bytes.
    end: u64,
    /// Chunks that follow; `None` before the count was read.
    chunks: Option<u32>,
    /// The unpacked chunk, and how much of it was given.
    chunk: Vec<u8>,
    given: usize,
}

impl<'a> Packed<'a> {
    /// Reads the pages at a place.
    pub fn new(input: Input<'a>, place: Place, method: &str, order: Order) -> Self {
        Packed {
            stored: input.reader(place.at, place.size),
            method: method.to_owned(),
            order,
            at: place.at,
            end: place.at + place.size,
            chunks: None,
            chunk: Vec::new(),
            given: 0,
        }
    }

    /// The next stored bytes; `None` if fewer are left.
    fn take(&mut self, size: u64) -> std::io::Result<Option<Vec<u8>>> {
        if size > self.end - self.at {
            return Ok(None);
        }
        let mut bytes = vec![0; size as usize];
        self.stored.read_exact(&mut bytes)?;
        self.at += size;
        Ok(Some(bytes))
    }

    fn number(&mut self) -> std::io::Result<Option<u32>> {
        let bytes = self.take(4)?;
        Ok(bytes.and_then(|bytes| Cursor { bytes: &bytes, at: 0, order: self.order }.u32()))
    }

    /// The error of a chunk that begins here and is cut short.
    fn short(&self) -> Error {
        damaged(FtraceError::format(format!("offset {}", self.at), "a compressed chunk"))
    }

    /// Unpacks the next chunk.
    fn next(&mut self) -> std::io::Result<()> {
        let (here, short) = (self.at, self.short());
        let (Some(packed), Some(whole)) = (self.number()?, self.number()?) else { return Err(short) };
        let Some(packed) = self.take(packed.into())? else { return Err(short) };
        self.chunk =
            unpack(&self.method, &packed, whole as usize, &format!("offset {here}")).map_err(damaged)?;
        self.given = 0;
        Ok(())
    }
}

/// An error of the data, which what comes before it does not share.
fn damaged(error: FtraceError) -> Error {
    Error::new(ErrorKind::InvalidData, error)
}

impl Read for Packed<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.given == self.chunk.len() {
            let chunks = match self.chunks {
                Some(chunks) => chunks,
                None => {
                    let short = self.short();
                    self.number()?.ok_or(short)?
                }
            };
            self.chunks = Some(chunks.saturating_sub(1));
            if chunks == 0 {
                return Ok(0);
            }
            self.next()?;
        }
        let size = into.len().min(self.chunk.len() - self.given);
        into[..size].copy_from_slice(&self.chunk[self.given..][..size]);
        self.given += size;
        Ok(size)
    }
}
