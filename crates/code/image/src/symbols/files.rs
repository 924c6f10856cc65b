// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files with the functions of programs: copies of the mapped files, and their separate debug files.
//!
//! Input: a path on the recorded machine, the folder with that machine's files, and folders with debug files. Output: the
//! functions of the file there. Files are mapped, and of a debug file only the symbols are read.

use std::path::{Component, Path, PathBuf};

use super::elf::{self, ElfSymbols};
use crate::build_id::BuildId;
use crate::bytes::Bytes;
use crate::separate;

/// Begins a path in a file system of which it is not known where it is mounted. Another file may have the rest as its path.
const NOT_MOUNTED: char = '…';

/// The path below `root` of a file of the recorded machine. `None` if it would leave `root`, or is not known as a whole.
pub fn under_root(root: &Path, path: &str) -> Option<PathBuf> {
    if path.starts_with(NOT_MOUNTED) {
        return None;
    }
    let mut place = root.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => place.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(place)
}

/// Size above which a file is not read, in bytes. No program is so large, and this limits the reader's memory.
const MAX_ELF_BYTES: u64 = 1 << 30;

/// The same of a debug file, of which only the symbols are read; a browser's has some GiB.
const MAX_DEBUG_BYTES: u64 = 16 << 30;

/// Path of the copy of a mapped file.
pub(super) fn place(root: Option<&Path>, path: &str) -> Result<PathBuf, String> {
    let root = root.ok_or("no folder of guest files was given")?;
    // The kernel adds this suffix to files that were removed while they were mapped.
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    if path.is_empty() || path == "//anon" || path == "[anon]" {
        return Err("anonymous memory".to_owned());
    }
    if path.starts_with(NOT_MOUNTED) {
        return Err(format!("{path}: where it is mounted is not known"));
    }
    under_root(root, path).ok_or_else(|| "the path leaves the root folder".to_owned())
}

/// Reads the functions of a mapped file; those of its debug file under one of the folders `debug`, too. `not_used` gets the reason
/// why a debug file is not read.
pub(super) fn read_elf(
    root: Option<&Path>,
    path: &str,
    debug: &[PathBuf],
    not_used: &mut Vec<String>,
) -> Result<(ElfSymbols, Bytes), String> {
    let place = place(root, path)?;
    let bytes = open_elf(&place, MAX_ELF_BYTES)?;
    let name = place.file_name().map_or_else(|| path.into(), |n| n.to_string_lossy().into_owned());
    let debug = debug_file(&bytes, path, debug).unwrap_or_else(|reason| {
        not_used.push(reason);
        None
    });
    let elf = elf::parse_with(&bytes, debug.as_deref(), &name);
    Ok((elf.map_err(|e| format!("{}: {e}", place.display()))?, bytes))
}

/// Maps a file, unless it has more than `most` bytes.
fn open_elf(place: &Path, most: u64) -> Result<Bytes, String> {
    let size = std::fs::metadata(place).map_err(|e| format!("{}: {e}", place.display()))?.len();
    if size > most {
        return Err(format!("{}: {size} bytes are more than {most}", place.display()));
    }
    Bytes::open(place).map_err(|e| format!("{}: {e}", place.display()))
}

/// The separate debug file of the file with these contents, which was at `path`. `None` if there is none.
///
/// # Errors
/// It is there and cannot be used.
fn debug_file(bytes: &[u8], path: &str, folders: &[PathBuf]) -> Result<Option<Bytes>, String> {
    let Some(id) = (!folders.is_empty()).then(|| BuildId::of_elf(bytes)).flatten() else { return Ok(None) };
    if let Some(place) = separate::by_build_id(&id, folders) {
        return open_elf(&place, MAX_DEBUG_BYTES).map(Some);
    }
    match separate::of_another_build(&id, folders) {
        Some(other) => Err(format!(
            "{}: not the debug file of {path}, whose build id is {id}: expected an ELF file with this build id",
            other.display()
        )),
        None => Ok(None),
    }
}
