// SPDX-License-Identifier: GPL-2.0-or-later
//! Files mapped into memory: data written there is in the file, however this process ends.
//!
//! No file stays open, because the program owns the file descriptors here and may close them all. The file's space is
//! reserved on the disk before it is mapped; otherwise a full disk would cause a signal.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use kprism_tlb::stream::live;

/// Size of the first mapped piece of a stream, and the maximum; multiples of a page.
const FIRST: usize = 64 << 10;
const LARGEST: usize = 1 << 20;

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

fn reserve(file: &File, from: usize, length: usize) -> io::Result<()> {
    // Above the program's own limit the kernel would send it a signal, for a file that is not its own.
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    // SAFETY: the kernel writes a limit to where one lies.
    let told = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    if told && limit.rlim_cur < (from + length) as u64 {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    // SAFETY: a system call on a file that is open.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), from as i64, length as i64) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn map(file: &File, from: usize, length: usize) -> io::Result<*mut u8> {
    let (how, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
    // SAFETY: a new mapping, wherever there is room.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), length, how, libc::MAP_SHARED, fd, from as i64) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}

/// The words of [`live`], for the process's life.
pub struct Words {
    all: &'static [AtomicU64],
    path: PathBuf,
}

impl Words {
    pub fn new(path: PathBuf) -> io::Result<Self> {
        let file = open(&path)?;
        file.set_len(live::WORDS as u64 * 8)?;
        reserve(&file, 0, live::HEAD * 8)?;
        let at = map(&file, 0, live::WORDS * 8)?.cast::<AtomicU64>();
        // SAFETY: mapped above, never unmapped, aligned to a page; only accessed as atomic words.
        let all = unsafe { std::slice::from_raw_parts(at, live::WORDS) };
        Ok(Words { all, path })
    }

    pub fn head(&self, word: usize) -> &'static AtomicU64 {
        &self.all[word]
    }

    /// The words of a slot. Their space is reserved on the disk.
    pub fn slot(&self, slot: usize) -> io::Result<&'static [AtomicU64]> {
        let first = live::HEAD + slot * live::SLOT;
        let words = self.all.get(first..first + live::SLOT).ok_or(io::ErrorKind::OutOfMemory)?;
        reserve(&open(&self.path)?, first * 8, live::SLOT * 8)?;
        Ok(words)
    }
}

/// A stream that grows. One piece of it is mapped at a time.
pub struct Stream {
    path: PathBuf,
    piece: *mut u8,
    length: usize,
    /// Number of bytes of the file before the piece, and of those written in the piece.
    before: usize,
    filled: usize,
}

impl Stream {
    pub fn new(path: PathBuf) -> io::Result<Self> {
        let mut stream = Stream { path, piece: std::ptr::null_mut(), length: 0, before: 0, filled: 0 };
        stream.advance()?;
        Ok(stream)
    }

    /// Number of bytes so far.
    pub fn bytes(&self) -> usize {
        self.before + self.filled
    }

    /// Adds bytes. Returns the number of bytes that could not be added.
    pub fn add(&mut self, mut bytes: &[u8]) -> (usize, Option<io::Error>) {
        while !bytes.is_empty() {
            if self.filled == self.length
                && let Err(e) = self.advance()
            {
                return (bytes.len(), Some(e));
            }
            let count = bytes.len().min(self.length - self.filled);
            // SAFETY: the piece has `length` bytes, of which `filled` are taken, and is this one's alone.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.piece.add(self.filled), count) };
            self.filled += count;
            bytes = &bytes[count..];
        }
        (0, None)
    }

    /// Maps the next piece.
    fn advance(&mut self) -> io::Result<()> {
        let (before, length) = (self.before + self.length, (self.length * 2).clamp(FIRST, LARGEST));
        let file = open(&self.path)?;
        reserve(&file, before, length)?;
        let piece = map(&file, before, length)?;
        self.unmap();
        (self.piece, self.length, self.before, self.filled) = (piece, length, before, 0);
        Ok(())
    }

    fn unmap(&mut self) {
        if !self.piece.is_null() {
            // SAFETY: mapped by `advance`, with this length, and not used any more.
            unsafe { libc::munmap(self.piece.cast(), self.length) };
            self.piece = std::ptr::null_mut();
        }
    }

    /// Truncates the reserved but unused space.
    pub fn finish(&mut self) -> io::Result<()> {
        let bytes = self.bytes() as u64;
        self.unmap();
        (self.before, self.length, self.filled) = (bytes as usize, 0, 0);
        open(&self.path)?.set_len(bytes)
    }
}
