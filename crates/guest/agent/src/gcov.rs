// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the kernel's coverage counters: all of `/sys/kernel/debug/gcov`, before and after a window.
//!
//! Reading executes kernel code, which is counted too. So a single process reads, each file at once and into memory
//! that is already there, and it reads several times before the window. The differences between these readings are the
//! cost of one reading, which can be subtracted from the window ([`Session`]). The files have no size for `stat` (so
//! `tar` finds them empty). The result is stored as archives, with the files named after the objects on the machine
//! that built the kernel.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cpio::newc::{Builder, trailer};
use kprism_layout::GcovFiles;

/// Folder in which the kernel exposes its counters.
pub const FOLDER: &str = "/sys/kernel/debug/gcov";

/// File mode: a regular file that its owner may read.
const FILE: u32 = 0o100400;
/// Step in which memory for counters is allocated, bytes.
const STEP: usize = 1 << 20;

/// All counters at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    files: Vec<(PathBuf, Range<usize>)>,
    bytes: Vec<u8>,
}

impl Snapshot {
    /// Reads every `.gcda` file below `folder`, sorted by name. `room` is the expected number of bytes. Memory for them
    /// is allocated and touched before, not while reading.
    ///
    /// # Errors
    /// The folder cannot be read: the kernel has no gcov, debugfs is not mounted, or the caller is not root.
    pub fn take(folder: &Path, room: usize) -> io::Result<Self> {
        // The memory is touched first: reading into new pages would take page faults, and not equally many in each
        // reading.
        let mut bytes = vec![1; room.next_multiple_of(STEP)];
        let (mut names, mut files, mut used) = (Vec::new(), Vec::new(), 0);
        list(folder, &mut names)?;
        files.reserve(names.len());
        for name in names {
            // A module that is unloaded now takes its files with it.
            let mut file = match File::open(&name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            let start = used;
            loop {
                if used == bytes.len() {
                    bytes.resize(used + STEP, 1);
                }
                match file.read(&mut bytes[used..])? {
                    0 => break,
                    count => used += count,
                }
            }
            if used > start {
                files.push((name, start..used));
            }
        }
        bytes.truncate(used);
        Ok(Self { files, bytes })
    }

    /// Size of all counters, bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Number of objects that have counters.
    pub fn objects(&self) -> usize {
        self.files.len()
    }

    /// Writes the counters as a `newc` archive, with paths relative to `folder`.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn archive(&self, folder: &Path, out: &mut dyn Write) -> io::Result<()> {
        let files = self.files.iter().map(|(name, range)| {
            let relative = name.strip_prefix(folder).unwrap_or(name).to_string_lossy();
            (relative, &self.bytes[range.clone()])
        });
        write_archive(files, out)
    }
}

/// Writes files, each with its name, as a `newc` archive.
///
/// # Errors
/// A file is larger than 4 GiB, or writing to `out` fails.
pub fn write_archive<N: AsRef<str>, B: AsRef<[u8]>>(
    files: impl IntoIterator<Item = (N, B)>,
    out: &mut dyn Write,
) -> io::Result<()> {
    for (name, bytes) in files {
        let size = u32::try_from(bytes.as_ref().len()).map_err(io::Error::other)?;
        let mut writer = Builder::new(name.as_ref()).mode(FILE).nlink(1).write(&mut *out, size);
        writer.write_all(bytes.as_ref())?;
        writer.finish()?;
    }
    trailer(out).map(|_| ())
}

/// Lists the data files in sorted order, so that the same kernel gives the same archive.
fn list(folder: &Path, names: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_unstable_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&entry.path(), names)?;
        } else if kind.is_file() && entry.file_name().as_bytes().ends_with(b".gcda") {
            names.push(entry.path());
        }
    }
    Ok(())
}

/// A window: several readings of the counters before it, and one after it.
#[derive(Debug, Default)]
pub struct Session {
    folder: PathBuf,
    before: Vec<Snapshot>,
    after: Option<Snapshot>,
}

impl Session {
    /// Reads the counters below `folder` several times, the last time for the window. Call this right before it.
    ///
    /// # Errors
    /// As [`Snapshot::take`].
    pub fn begin(folder: &Path) -> io::Result<Self> {
        // The first reading fills caches, and shows the size.
        let room = Snapshot::take(folder, 0)?.size() + STEP;
        let mut before = Vec::with_capacity(GcovFiles::IDLE_READINGS + 1);
        for _ in 0..=GcovFiles::IDLE_READINGS {
            before.push(Snapshot::take(folder, room)?);
        }
        Ok(Self { folder: folder.to_owned(), before, after: None })
    }

    /// Reads the counters after the window. Call this right after it.
    ///
    /// # Errors
    /// As [`Snapshot::take`].
    pub fn end(&mut self) -> io::Result<()> {
        let room = self.before.last().map_or(0, Snapshot::size) + STEP;
        self.after = Some(Snapshot::take(&self.folder, room)?);
        Ok(())
    }

    /// Number of objects with counters, at the end.
    pub fn objects(&self) -> usize {
        self.after.as_ref().or(self.before.last()).map_or(0, Snapshot::objects)
    }

    /// Writes an archive for each reading.
    ///
    /// # Errors
    /// Writing fails.
    pub fn save(&self, files: &GcovFiles) -> io::Result<()> {
        fs::create_dir_all(files.folder())?;
        let before = files.idle().into_iter().chain([files.before()]).zip(&self.before);
        for (path, snapshot) in before.chain(self.after.as_ref().map(|after| (files.after(), after))) {
            let mut out = BufWriter::new(File::create(path)?);
            snapshot.archive(&self.folder, &mut out)?;
            out.flush()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(archive: &Path) -> Vec<(String, String)> {
        let mut input = io::Cursor::new(fs::read(archive).unwrap());
        let mut found = Vec::new();
        loop {
            let mut reader = cpio::newc::Reader::new(input).unwrap();
            if reader.entry().is_trailer() {
                return found;
            }
            let mut contents = String::new();
            reader.read_to_string(&mut contents).unwrap();
            found.push((reader.entry().name().to_owned(), contents));
            input = reader.finish().unwrap();
        }
    }

    #[test]
    fn a_session_holds_the_data_files_of_three_moments() {
        let folder = std::env::temp_dir().join(format!("kprism-agent-gcov-{}", std::process::id()));
        let below = folder.join("from/build/kernel");
        fs::create_dir_all(&below).unwrap();
        for (name, contents) in [("b.gcda", "bb"), ("a.gcda", "a"), ("a.gcno", "no"), ("empty.gcda", "")] {
            fs::write(below.join(name), contents).unwrap();
        }
        let mut session = Session::begin(&folder.join("from")).unwrap();
        // One module is loaded, another unloaded.
        fs::write(below.join("c.gcda"), "ccc").unwrap();
        fs::remove_file(below.join("b.gcda")).unwrap();
        session.end().unwrap();
        assert_eq!(session.objects(), 2);
        session.save(&GcovFiles::of(&folder.join("to"))).unwrap();
        let pair = |name: &str, contents: &str| (format!("build/kernel/{name}.gcda"), contents.to_owned());
        assert_eq!(files(&folder.join("to/streams/gcov/idle-1.cpio")), [pair("a", "a"), pair("b", "bb")]);
        assert_eq!(files(&folder.join("to/streams/gcov/before.cpio")), [pair("a", "a"), pair("b", "bb")]);
        assert_eq!(files(&folder.join("to/streams/gcov/counters.cpio")), [pair("a", "a"), pair("c", "ccc")]);
        fs::remove_dir_all(folder).unwrap();
    }
}
