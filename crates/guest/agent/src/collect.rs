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
    send_through(folder, pieces(give)?)
}

/// An output whose pieces are memory that the host can read.
fn pieces(
    mut give: impl FnMut(Region),
) -> io::Result<Pieces<PinnedBuffer, impl FnMut(&PinnedBuffer, usize) -> io::Result<()>>> {
    let give = move |buffer: &PinnedBuffer, used| {
        give(buffer.region(used)?);
        Ok(())
    };
    Ok(Pieces { buffer: PinnedBuffer::new(PIECE)?, used: 0, give })
}

fn send_through<B: AsMut<[u8]>>(
    folder: &Path,
    mut pieces: Pieces<B, impl FnMut(&B, usize) -> io::Result<()>>,
) -> io::Result<()> {
    tree(folder, "", &mut pieces)?;
    trailer(&mut pieces)?.end()
}

/// Sends these files, or those that they link to, under their paths without the first slash. Those that cannot be read are
/// left out.
pub fn send_files(paths: &[String], give: impl FnMut(Region)) -> io::Result<()> {
    let mut pieces = pieces(give)?;
    for path in paths {
        let path = Path::new(path);
        let is_file = fs::metadata(path).is_ok_and(|found| found.is_file());
        if is_file && File::open(path).is_ok() {
            file(path, path.to_string_lossy().trim_start_matches('/'), &mut pieces)?;
        }
    }
    trailer(&mut pieces)?.end()
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

/// Splits the output into pieces: fills the buffer, and gives it with the number of bytes in it.
struct Pieces<B, F> {
    buffer: B,
    used: usize,
    give: F,
}

impl<B: AsMut<[u8]>, F: FnMut(&B, usize) -> io::Result<()>> Pieces<B, F> {
    /// Sends what is left.
    fn end(&mut self) -> io::Result<()> {
        if self.used > 0 {
            (self.give)(&self.buffer, self.used)?;
            self.used = 0;
        }
        Ok(())
    }
}

impl<B: AsMut<[u8]>, F: FnMut(&B, usize) -> io::Result<()>> Write for Pieces<B, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.used == self.buffer.as_mut().len() {
            self.end()?;
        }
        let rest = &mut self.buffer.as_mut()[self.used..];
        let count = bytes.len().min(rest.len());
        rest[..count].copy_from_slice(&bytes[..count]);
        self.used += count;
        Ok(count)
    }

    /// Does nothing: the archive's writer asks for it after each file, and each piece stops the guest for some 20 ms.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_share_a_piece_and_a_large_one_takes_several() {
        let folder = std::env::temp_dir().join(format!("kprism-pieces-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for i in 0..20 {
            fs::write(folder.join(format!("small{i:02}")), format!("content {i}")).unwrap();
        }
        fs::write(folder.join("zlarge"), vec![7; 10_000]).unwrap();
        let (mut all, mut sizes) = (Vec::new(), Vec::new());
        let give = |buffer: &Vec<u8>, used: usize| {
            all.extend_from_slice(&buffer[..used]);
            sizes.push(used);
            Ok(())
        };
        let sent = send_through(&folder, Pieces { buffer: vec![0; 4096], used: 0, give });
        fs::remove_dir_all(&folder).unwrap();
        sent.unwrap();
        assert!(sizes.len() == all.len().div_ceil(4096) && sizes.len() > 3, "{sizes:?}");
        let (mut input, mut names) = (&all[..], Vec::new());
        loop {
            let mut reader = cpio::newc::Reader::new(input).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            names.push(reader.entry().name().to_owned());
            let mut content = Vec::new();
            io::Read::read_to_end(&mut reader, &mut content).unwrap();
            let expected = match names.len() - 1 {
                20 => vec![7; 10_000],
                i => format!("content {i}").into_bytes(),
            };
            assert_eq!(content, expected, "{names:?}");
            input = reader.finish().unwrap();
        }
        assert_eq!(names.len(), 21);
    }
}
