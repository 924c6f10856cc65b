// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the files of a capture piece by piece. Input: paths. Output: accesses, records, and where a file is damaged.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use kprism_tlb::bus::BusError;
use kprism_tlb::bus::layout::{Decoder, Layout, Losses, Order};
use kprism_tlb::bus::mappings::{Form, Record};
use kprism_tlb::bus::tags::{MARK, Piece};
use kprism_tlb::bus::trace::{Access, HEADER, Header};

use crate::ImportError;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// A window that moves over a file.
#[derive(Debug)]
struct Window {
    file: File,
    path: PathBuf,
    bytes: Vec<u8>,
    at: usize,
    /// Offset of `bytes` in the file.
    before: u64,
    ended: bool,
}

impl Window {
    fn open(path: &Path) -> Result<Self, ImportError> {
        let open = || {
            let file = File::open(path)?;
            match file.metadata()?.is_dir() {
                true => Err(io::Error::from(io::ErrorKind::IsADirectory)),
                false => Ok(file),
            }
        };
        let file = open().map_err(|source| ImportError::Io { path: path.to_owned(), source })?;
        Ok(Window { file, path: path.to_owned(), bytes: Vec::new(), at: 0, before: 0, ended: false })
    }

    /// The next bytes: at least `most`, unless the file ends before.
    #[inline]
    fn look(&mut self, most: usize) -> Result<&[u8], BusError> {
        if self.bytes.len() - self.at < most && !self.ended {
            self.fill(most)?;
        }
        Ok(&self.bytes[self.at..])
    }

    fn fill(&mut self, most: usize) -> Result<(), BusError> {
        self.bytes.drain(..self.at);
        self.before += self.at as u64;
        self.at = 0;
        while self.bytes.len() < most && !self.ended {
            let had = self.bytes.len();
            let read = (&self.file).take(CHUNK as u64).read_to_end(&mut self.bytes);
            let offset = self.offset();
            read.map_err(|error| BusError { offset, what: format!("cannot be read: {error}") })?;
            self.ended = self.bytes.len() == had;
        }
        Ok(())
    }

    /// Offset of the next bytes in the file.
    fn offset(&self) -> usize {
        self.before as usize + self.at
    }

    fn take(&mut self, length: usize) {
        self.at = (self.at + length).min(self.bytes.len());
    }
}

/// The form of a board's records.
pub(super) enum Shape {
    Own(Header),
    Device(Box<Decoder>),
}

impl Shape {
    pub fn device(layout: Layout, order: Order) -> Self {
        Shape::Device(Box::new(Decoder::new(layout, order)))
    }
}

/// A board's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    /// Its place in the description.
    pub number: u32,
    /// The file.
    pub path: PathBuf,
    /// The losses, if its records show them.
    pub losses: Option<Losses>,
}

/// A board's accesses, as its file is read.
pub(super) struct Accesses {
    window: Window,
    number: u32,
    shape: Shape,
    failed: bool,
}

impl Accesses {
    pub fn open(path: &Path, number: u32, shape: Shape) -> Result<Self, ImportError> {
        let mut window = Window::open(path)?;
        if let Shape::Own(_) = shape {
            let head = window.look(HEADER).map(<[u8]>::len);
            head.map_err(|e| ImportError::format(path, format!("byte {}", e.offset), e.what))?;
            window.take(HEADER);
        }
        Ok(Accesses { window, number, shape, failed: false })
    }

    pub fn board(&self) -> Board {
        let losses = match &self.shape {
            Shape::Own(_) => None,
            Shape::Device(decoder) => Some(decoder.losses),
        };
        Board { number: self.number, path: self.window.path.clone(), losses }
    }

    fn record(&mut self) -> Result<Option<Access>, BusError> {
        let length = match &self.shape {
            Shape::Own(header) => header.record_length(),
            Shape::Device(decoder) => decoder.length(),
        };
        loop {
            let offset = self.window.offset();
            let bytes = self.window.look(length)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let access = match &mut self.shape {
                Shape::Own(header) => Some(header.record(bytes, offset)?),
                Shape::Device(decoder) => decoder.record(bytes, offset)?,
            };
            self.window.take(length);
            if access.is_some() {
                return Ok(access);
            }
        }
    }
}

impl Iterator for Accesses {
    type Item = Result<Access, BusError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let record = self.record();
        self.failed = record.is_err();
        record.transpose()
    }
}

/// Pieces of HMTT's kernel trace.
pub(super) struct Pieces {
    window: Window,
    failed: bool,
}

impl Pieces {
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        Ok(Pieces { window: Window::open(path)?, failed: false })
    }

    fn piece(&mut self) -> Result<Option<Piece>, BusError> {
        let offset = self.window.offset();
        let bytes = self.window.look(MARK)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let (piece, length) = Piece::read(bytes, offset)?;
        self.window.take(length);
        Ok(Some(piece))
    }
}

impl Iterator for Pieces {
    type Item = Result<Piece, BusError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let piece = self.piece();
        self.failed = piece.is_err();
        piece.transpose()
    }
}

/// Records of a file of mappings.
pub(super) struct Records {
    window: Window,
    form: Form,
    ended: bool,
    pub damage: Option<String>,
}

impl Records {
    /// Opens a file of this form: with its magic number, or, of narrow records, without.
    pub fn open(path: &Path, form: &str) -> Result<Self, ImportError> {
        let mut window = Window::open(path)?;
        let head = window.look(8).map_err(|e| ImportError::format(path, "byte 0", e.what))?;
        let said = Form::of(head);
        let form = match (form, said) {
            ("narrow", None | Some(Form::Narrow)) => Form::Narrow,
            ("wide", Some(Form::Wide)) => Form::Wide,
            ("narrow", _) => {
                return Err(ImportError::format(path, "byte 0", "KPPTE001, or records without it"));
            }
            _ => return Err(ImportError::format(path, "byte 0", "KPPTE002")),
        };
        if said.is_some() {
            window.take(8);
        }
        Ok(Records { window, form, ended: false, damage: None })
    }

    fn record(&mut self) -> Result<Option<Record>, BusError> {
        let offset = self.window.offset();
        let bytes = self.window.look(self.form.length())?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let record = self.form.record(bytes, offset)?;
        self.window.take(self.form.length());
        Ok(Some(record))
    }
}

impl Iterator for Records {
    type Item = Record;

    /// Ends at damage, which is noted.
    fn next(&mut self) -> Option<Record> {
        if self.ended {
            return None;
        }
        let record = self.record().unwrap_or_else(|error| {
            self.damage = Some(format!("{}: {error}", self.window.path.display()));
            None
        });
        self.ended = record.is_none();
        record
    }
}

/// The accesses of a trace with its own header, piece by piece.
///
/// # Errors
/// It cannot be opened, or has no such header.
pub fn trace(path: &Path) -> Result<(Header, impl Iterator<Item = Result<Access, BusError>>), ImportError> {
    let mut window = Window::open(path)?;
    let head = window.look(HEADER).and_then(Header::parse);
    let header = head.map_err(|e| ImportError::format(path, format!("byte {}", e.offset), e.what))?;
    window.take(HEADER);
    Ok((header, Accesses { window, number: 0, shape: Shape::Own(header), failed: false }))
}

/// The records of a file of wide mappings, piece by piece, up to damage.
///
/// # Errors
/// It cannot be opened, or is no such file.
pub fn records(path: &Path) -> Result<impl Iterator<Item = Record>, ImportError> {
    Records::open(path, "wide")
}
