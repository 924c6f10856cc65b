// SPDX-License-Identifier: MIT OR Apache-2.0
//! Passes files to the host as a `newc` archive, piece by piece, in memory that the host reads while the guest is
//! stopped.
//!
//! Writing to a port would take a device access per byte. In pieces, a folder of any size needs little additional
//! memory.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cpio::newc::{Builder, trailer};
use kprism_agent::Region;

use crate::ports::PinnedBuffer;

/// Size of a piece, bytes.
const PIECE: usize = 16 << 20;

/// Sends all files below `folder`. `give` returns once the host has read the region.
pub fn send(folder: &Path, give: impl FnMut(Region)) -> io::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    let mut pieces = Pieces { buffer: PinnedBuffer::new(PIECE)?, used: 0, give };
    tree(folder, "", &mut pieces)?;
    trailer(&mut pieces)?.flush()
}

/// Sends these files, or those that they link to, under their paths without the first slash. Those that cannot be read are
/// left out.
pub fn send_files(paths: &[String], give: impl FnMut(Region)) -> io::Result<()> {
    let mut pieces = Pieces { buffer: PinnedBuffer::new(PIECE)?, used: 0, give };
    for path in paths {
        let path = Path::new(path);
        let is_file = fs::metadata(path).is_ok_and(|found| found.is_file());
        if is_file && File::open(path).is_ok() {
            file(path, path.to_string_lossy().trim_start_matches('/'), &mut pieces)?;
        }
    }
    trailer(&mut pieces)?.flush()
}

/// Files and folders below `path`, sorted by name. `name` is the path's own name in the archive, empty at the top.
fn tree(path: &Path, name: &str, output: &mut impl Write) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_file() {
        return file(path, name, output);
    }
    if !found.is_dir() {
        return Ok(());
    }
    if !name.is_empty() {
        Builder::new(name).mode(libc::S_IFDIR | (found.mode() & 0o777)).write(&mut *output, 0).finish()?;
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name());
    }
    names.sort_unstable();
    for child in names {
        let text = child.to_string_lossy();
        let below = if name.is_empty() { text.into_owned() } else { format!("{name}/{text}") };
        tree(&path.join(&child), &below, output)?;
    }
    Ok(())
}

fn file(path: &Path, name: &str, output: &mut impl Write) -> io::Result<()> {
    let size = u32::try_from(fs::metadata(path)?.len()).map_err(|_| {
        io::Error::other(format!("{} is larger than 4 GiB, which no cpio can hold", path.display()))
    })?;
    let mut writer = Builder::new(name).mode(libc::S_IFREG | 0o644).write(&mut *output, size);
    let copied = io::copy(&mut io::Read::take(File::open(path)?, size.into()), &mut writer)?;
    if copied != u64::from(size) {
        return Err(io::Error::other(format!("{} became shorter while it was read", path.display())));
    }
    writer.finish()?;
    Ok(())
}

/// Splits the output into pieces.
struct Pieces<F> {
    buffer: PinnedBuffer,
    used: usize,
    give: F,
}

impl<F: FnMut(Region)> Write for Pieces<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.used == PIECE {
            self.flush()?;
        }
        let count = bytes.len().min(PIECE - self.used);
        self.buffer.bytes()[self.used..self.used + count].copy_from_slice(&bytes[..count]);
        self.used += count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.used > 0 {
            (self.give)(self.buffer.region(self.used)?);
            self.used = 0;
        }
        Ok(())
    }
}
