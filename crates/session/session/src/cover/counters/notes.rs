// SPDX-License-Identifier: MIT OR Apache-2.0
//! The notes (.gcno) of an object: beside its counters, or in the build's folder.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::many::Inputs;

/// Reads an object's notes into `bytes`. If its counters have several copies, the notes beside the first copy that has any
/// are read. Returns their path.
pub fn read_notes(
    all: &Inputs,
    object: usize,
    build_dir: Option<&Path>,
    bytes: &mut Vec<u8>,
) -> Result<PathBuf> {
    let mut first = None;
    for &(run, index) in &all.objects[object].1 {
        let notes = find_notes(&all.runs[run].1.object(index), build_dir);
        match read_file(&notes, bytes) {
            Ok(()) => return Ok(notes),
            Err(error) => drop(first.get_or_insert((notes, error))),
        }
    }
    let (notes, error) = first.context("no run has it")?;
    Err(error).with_context(|| format!("{}; --build-dir names the folder of the build", notes.display()))
}

/// Reads a regular file into `bytes`.
pub fn read_file(path: &Path, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    bytes.clear();
    if path.exists() && !path.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    File::open(path).and_then(|mut file| file.read_to_end(bytes)).map(drop)
}

/// The notes of an object: beside it, or in the build's folder under the longest end of its path.
fn find_notes(object: &Path, build_dir: Option<&Path>) -> PathBuf {
    let mut name = object.as_os_str().to_owned();
    name.push(".gcno");
    let notes = PathBuf::from(name);
    let Some(build_dir) = build_dir else { return notes };
    let parts: Vec<_> = notes.components().skip(1).collect();
    let ends = (0..parts.len()).map(|skip| build_dir.join(parts[skip..].iter().collect::<PathBuf>()));
    ends.into_iter().find(|path| path.exists()).unwrap_or(notes)
}
