// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the kernel's coverage counters: all of `/sys/kernel/debug/gcov` as one archive.
//!
//! Each file there is read whole at once, through one buffer and by one process: reading is itself kernel code that
//! is counted, and a shell that copies file by file leaves three times as many counts behind. The files have no
//! sizes to `stat` (which is why `tar` finds them empty), and the archive keeps their paths: those of the objects
//! on the machine that built the kernel.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cpio::newc::{Builder, trailer};

/// Where the kernel shows its counters.
pub const FOLDER: &str = "/sys/kernel/debug/gcov";

/// A regular file that its owner may read.
const FILE: u32 = 0o100400;

/// Writes every `.gcda` file below `folder` to `out`, as a `newc` archive with paths relative to `folder`.
///
/// # Errors
/// If the folder cannot be read: the kernel has no gcov, debugfs is not mounted, or the caller is not root.
pub fn archive(folder: &Path, out: &mut dyn Write) -> io::Result<usize> {
    let mut names = Vec::new();
    list(folder, &mut names)?;
    // Counters are read one right after the other, from the shortest possible window.
    let mut contents = Vec::new();
    let mut ends = Vec::with_capacity(names.len());
    for name in &names {
        // A module that is unloaded now takes its files along.
        if let Ok(mut file) = File::open(name) {
            file.read_to_end(&mut contents)?;
        }
        ends.push(contents.len());
    }
    let mut start = 0;
    for (name, end) in names.iter().zip(ends) {
        let bytes = &contents[start..end];
        start = end;
        if bytes.is_empty() {
            continue;
        }
        let relative = name.strip_prefix(folder).unwrap_or(name).to_string_lossy();
        let size = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut writer = Builder::new(&relative).mode(FILE).nlink(1).write(&mut *out, size);
        writer.write_all(bytes)?;
        writer.finish()?;
    }
    trailer(&mut *out)?;
    Ok(names.len())
}

/// Lists the data files, sorted: the same kernel gives the same archive.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_holds_the_data_files_under_their_paths() {
        let folder = std::env::temp_dir().join(format!("kprism-agent-gcov-{}", std::process::id()));
        fs::create_dir_all(folder.join("build/kernel")).unwrap();
        for (name, contents) in [("b.gcda", "bb"), ("a.gcda", "a"), ("a.gcno", "no"), ("empty.gcda", "")] {
            fs::write(folder.join("build/kernel").join(name), contents).unwrap();
        }
        let mut out = Vec::new();
        assert_eq!(archive(&folder, &mut out).unwrap(), 3);
        let mut input = io::Cursor::new(out);
        let mut found = Vec::new();
        loop {
            let mut reader = cpio::newc::Reader::new(input).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let mut contents = String::new();
            reader.read_to_string(&mut contents).unwrap();
            found.push((reader.entry().name().to_owned(), contents));
            input = reader.finish().unwrap();
        }
        let expected = [("build/kernel/a.gcda", "a"), ("build/kernel/b.gcda", "bb")];
        assert_eq!(found, expected.map(|(name, contents)| (name.to_owned(), contents.to_owned())));
        fs::remove_dir_all(folder).unwrap();
    }
}
