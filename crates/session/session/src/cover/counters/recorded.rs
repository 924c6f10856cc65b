// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of gcov as they were recorded: in a run, an archive, or a folder.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_cover::counters::window::{self, Windowed};
use kprism_gcov::{Data, data};
use kprism_store::GcovFiles;

use super::archive::{self, Archive};
use super::folder::Found;
use super::same_object::Names;
use crate::cover::input::is_cover;

/// All counters of one moment.
pub enum Counters {
    Archive(Archive),
    /// Files, and the folder that they are below.
    Files(Vec<PathBuf>, Option<PathBuf>),
}

impl Counters {
    pub fn len(&self) -> usize {
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

    pub fn names(&self, index: usize) -> Names {
        match self {
            Counters::Archive(_) => Names::of_archive(self.object(index)),
            Counters::Files(files, folder) => Names::of_file(&files[index], folder.as_deref()),
        }
    }

    pub fn data(&self, index: usize) -> Result<Data> {
        match self {
            Counters::Archive(archive) => Ok(data::read(&archive.bytes[archive.files[index].1.clone()])?),
            Counters::Files(files, _) => Ok(data::read(&fs::read(&files[index])?)?),
        }
    }
}

/// The counters of a run, an archive or a folder, and those from before its window.
pub struct Recorded {
    pub counters: Counters,
    /// In order of time.
    pub earlier: Vec<Earlier>,
    /// Notes in the folder.
    pub notes: Vec<PathBuf>,
    /// Files that are named like counters, and cannot be read as such.
    pub others: Vec<PathBuf>,
}

/// Counters of an earlier moment, by the object's name.
pub struct Earlier {
    bytes: Vec<u8>,
    places: HashMap<String, Range<usize>>,
}

impl Recorded {
    /// Opens them.
    pub fn open(input: &Path, since_boot: bool) -> Result<Self> {
        let mut earlier = Vec::new();
        let mut found = Found::default();
        let counters = if is_cover(input) {
            let files = GcovFiles::of(input);
            let before = files.idle().into_iter().chain([files.before()]);
            for path in before.filter(|path| path.exists() && !since_boot) {
                let Archive { bytes, files } = archive::read(&path)?;
                earlier.push(Earlier { bytes, places: files.into_iter().collect() });
            }
            Counters::Archive(archive::read(&files.after())?)
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
                _ => Counters::Archive(archive::read(input)?),
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
    pub fn len(&self) -> usize {
        self.counters.len()
    }

    /// An object's path on the machine that built it, without the suffix.
    pub fn object(&self, index: usize) -> PathBuf {
        self.counters.object(index)
    }

    /// Counters of an object in the window, and the part of them that reading them added.
    pub fn window(&self, index: usize) -> Result<Windowed> {
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
    pub fn unloaded(&self) -> Vec<&str> {
        let (Counters::Archive(after), Some(before)) = (&self.counters, self.earlier.last()) else {
            return Vec::new();
        };
        let there: HashSet<&str> = after.files.iter().map(|(name, _)| name.as_str()).collect();
        before.places.keys().map(String::as_str).filter(|name| !there.contains(name)).collect()
    }
}
