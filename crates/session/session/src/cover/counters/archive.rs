// SPDX-License-Identifier: MIT OR Apache-2.0
//! An archive of counters: a cpio archive of `.gcda` files, in memory.

use std::fs;
use std::io::Cursor;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// An archive in memory, its files by name.
pub struct Archive {
    pub bytes: Vec<u8>,
    pub files: Vec<(String, Range<usize>)>,
}

/// The inputs that coverage is read from.
const TAKEN: &str =
    "a run, a folder with .gcda files, one .gcda file, or a cpio archive of them (newc) is expected";

/// First bytes of cpio archives in the format newc, without checksums and with them.
const CPIO: [&[u8]; 2] = [b"070701", b"070702"];

/// Reads an archive of counters.
pub fn read(path: &Path) -> Result<Archive> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let files = match entries(&bytes) {
        Ok(files) => files,
        Err(error) if CPIO.iter().any(|magic| bytes.starts_with(magic)) => {
            return Err(error.context(format!("{}: a cpio archive that is damaged", path.display())));
        }
        Err(_) if bytes.starts_with(b"adcg") || bytes.starts_with(b"gcda") => {
            bail!("{}: counters under another name: {TAKEN} (.gcda)", path.display())
        }
        Err(_) => bail!("{}: no counters: {TAKEN}", path.display()),
    };
    Ok(Archive { bytes, files })
}

fn entries(bytes: &[u8]) -> Result<Vec<(String, Range<usize>)>> {
    let mut files = Vec::new();
    let mut input = Cursor::new(bytes);
    loop {
        let at = input.position();
        let reader = cpio::newc::Reader::new(input).with_context(|| format!("offset {at}"))?;
        let (name, size) = (reader.entry().name().to_owned(), reader.entry().file_size() as usize);
        if reader.entry().is_trailer() {
            return Ok(files);
        }
        // A header of 110 bytes, the name with its NUL, padding; then the contents.
        let start = at as usize + (110 + name.len() + 1).next_multiple_of(4);
        input = reader.finish().with_context(|| format!("offset {at}"))?;
        if start + size > bytes.len() {
            bail!("offset {at}: {name}: the archive ends within it");
        }
        if name.ends_with(".gcda") {
            files.push((name, start..start + size));
        }
    }
}
