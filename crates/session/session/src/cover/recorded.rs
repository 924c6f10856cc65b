// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of gcov as they were recorded: in a run, an archive, or a folder.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Cursor;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_agent::gcov::{AFTER, BEFORE, IDLE};
use kprism_cover::counters::window::{self, Windowed};
use kprism_gcov::{Data, data};

use super::{FOLDER, is_cover};
use crate::cover_objects::{Found, Names};

/// An archive in memory, its files by name.
pub(super) struct Archive {
    bytes: Vec<u8>,
    files: Vec<(String, Range<usize>)>,
}

/// All counters of one moment.
pub(super) enum Counters {
    Archive(Archive),
    /// Files, and the folder that they are below.
    Files(Vec<PathBuf>, Option<PathBuf>),
}

impl Counters {
    pub(super) fn len(&self) -> usize {
        match self {
            Counters::Archive(archive) => archive.files.len(),
            Counters::Files(files, _) => files.len(),
        }
    }

    /// The object's path on the machine that built it, without the suffix.
    fn object(&self, index: usize) -> PathBuf {
        match self {
            Counters::Archive(archive) => Path::new("/").join(&archive.files[index].0).with_extension(""),
            Counters::Files(files, _) => files[index].with_extension(""),
        }
    }

    pub(super) fn names(&self, index: usize) -> Names {
        match self {
            Counters::Archive(_) => Names::of_archive(self.object(index)),
            Counters::Files(files, folder) => Names::of_file(&files[index], folder.as_deref()),
        }
    }

    pub(super) fn data(&self, index: usize) -> Result<Data> {
        match self {
            Counters::Archive(archive) => Ok(data::read(&archive.bytes[archive.files[index].1.clone()])?),
            Counters::Files(files, _) => Ok(data::read(&fs::read(&files[index])?)?),
        }
    }
}

/// The counters of a run, an archive or a folder, and those from before its window.
pub struct Recorded {
    pub(super) counters: Counters,
    /// In order of time.
    pub(super) earlier: Vec<Earlier>,
    /// Notes in the folder.
    pub(super) notes: Vec<PathBuf>,
    /// Files that are named like counters, and cannot be read as such.
    pub(super) others: Vec<PathBuf>,
}

/// Counters of an earlier moment, by the object's name.
pub(super) struct Earlier {
    bytes: Vec<u8>,
    places: HashMap<String, Range<usize>>,
}

impl Recorded {
    /// Opens them.
    pub fn open(input: &Path, since_boot: bool) -> Result<Self> {
        let mut earlier = Vec::new();
        let mut found = Found::default();
        let counters = if is_cover(input) {
            let folder = input.join("streams").join(FOLDER);
            let before = IDLE.into_iter().chain([BEFORE]).map(|name| folder.join(name));
            for path in before.filter(|path| path.exists() && !since_boot) {
                let Archive { bytes, files } = archive(&path)?;
                earlier.push(Earlier { bytes, places: files.into_iter().collect() });
            }
            Counters::Archive(archive(&folder.join(AFTER))?)
        } else if input.is_file() {
            match input.extension().and_then(|suffix| suffix.to_str()) {
                Some("gcda") => Counters::Files(vec![input.to_owned()], None),
                Some(suffix @ ("info" | "xml" | "json" | "gcno" | "tar" | "gz" | "xz" | "zst" | "zip")) => {
                    bail!(
                        "{}: {}; counters are read from a run, a folder with .gcda files, one .gcda file, or a cpio archive of them",
                        input.display(),
                        match suffix {
                            "gcno" => "notes have no counts: the .gcda file beside them has",
                            "info" | "xml" | "json" => "this is coverage that was worked out already",
                            _ => "an archive that has to be unpacked first",
                        }
                    )
                }
                _ => Counters::Archive(archive(input)?),
            }
        } else {
            found = Found::below(input).with_context(|| input.display().to_string())?;
            Counters::Files(std::mem::take(&mut found.data), Some(input.to_owned()))
        };
        if counters.len() == 0 {
            bail!(
                "{}: no .gcda files in it: counters are written when a program built with --coverage ends",
                input.display()
            );
        }
        let Found { notes, others, .. } = found;
        Ok(Recorded { counters, earlier, notes, others })
    }

    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.counters.len()
    }

    /// An object's path on the machine that built it, without the suffix.
    pub fn object(&self, index: usize) -> PathBuf {
        self.counters.object(index)
    }

    /// Counters of an object in the window, and the part of them that reading them added.
    pub(super) fn window(&self, index: usize) -> Result<Windowed> {
        let after = self.counters.data(index)?;
        let mut before = Vec::new();
        if let Counters::Archive(archive) = &self.counters {
            for earlier in &self.earlier {
                if let Some(range) = earlier.places.get(&archive.files[index].0) {
                    before.push(data::read(&earlier.bytes[range.clone()])?);
                }
            }
        }
        Ok(window::between(&before, after)?)
    }

    /// Modules that went in the window, with their counters.
    pub(super) fn unloaded(&self) -> Vec<&str> {
        let (Counters::Archive(after), Some(before)) = (&self.counters, self.earlier.last()) else {
            return Vec::new();
        };
        let there: HashSet<&str> = after.files.iter().map(|(name, _)| name.as_str()).collect();
        before.places.keys().map(String::as_str).filter(|name| !there.contains(name)).collect()
    }
}

/// The inputs that coverage is read from.
const TAKEN: &str =
    "a run, a folder with .gcda files, one .gcda file, or a cpio archive of them (newc) is expected";

/// First bytes of cpio archives in the format newc, without checksums and with them.
const CPIO: [&[u8]; 2] = [b"070701", b"070702"];

/// Reads an archive of counters.
fn archive(path: &Path) -> Result<Archive> {
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
