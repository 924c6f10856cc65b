// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of gcov as they were recorded: in a run, an archive, or a folder.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_cover::counters::window::{self, Windowed};
use kprism_gcov::{Data, data};
use kprism_store::GcovFiles;

use super::archive::Archive;
use super::folder::Found;
use super::same_object::Names;
use crate::cover::input::is_cover;
use crate::cover::windows::Windows;

/// All counters of one moment.
pub enum Counters {
    Archive(Archive),
    /// Files, and the folder that they are below.
    Files(Vec<PathBuf>, Option<PathBuf>),
}

impl Counters {
    pub fn len(&self) -> usize {
        match self {
            Counters::Archive(archive) => archive.names().len(),
            Counters::Files(files, _) => files.len(),
        }
    }

    /// The object's path on the machine that built it, without the suffix.
    fn object(&self, index: usize) -> PathBuf {
        match self {
            Counters::Archive(archive) => {
                let name = archive.names().nth(index).unwrap_or_default();
                Path::new("/").join(name).with_extension("")
            }
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
            Counters::Archive(archive) => archive.data(index),
            Counters::Files(files, _) => Ok(data::read(&fs::read(&files[index])?)?),
        }
    }
}

/// The counters of a run, an archive or a folder, and those from before its window.
pub struct Recorded {
    pub counters: Counters,
    /// In order of time.
    pub earlier: Vec<Earlier>,
    /// The counters are those of windows between conditions, added up.
    pub windows: Option<Windows>,
    /// Notes in the folder.
    pub notes: Vec<PathBuf>,
    /// Files that are named like counters, and cannot be read as such.
    pub others: Vec<PathBuf>,
}

/// Counters of an earlier moment, by the object's name.
pub struct Earlier {
    archive: Archive,
    places: HashMap<String, usize>,
}

impl Recorded {
    /// Opens them.
    pub fn open(input: &Path, since_boot: bool) -> Result<Self> {
        let mut earlier = Vec::new();
        let mut found = Found::default();
        let windows = if is_cover(input) && !since_boot { Windows::of(input) } else { None };
        let counters = if windows.is_some() {
            // Not there: the counters of the whole command would be taken for those of the windows.
            Counters::Archive(Archive::open_of_run(&GcovFiles::of(input).windows())?)
        } else if is_cover(input) {
            let files = GcovFiles::of(input);
            let before = files.idle().into_iter().chain([files.before()]);
            for path in before.filter(|path| path.exists() && !since_boot) {
                let archive = Archive::open_of_run(&path)?;
                let places = archive.names().map(str::to_owned).zip(0..).collect();
                earlier.push(Earlier { archive, places });
            }
            Counters::Archive(Archive::open_of_run(&files.after())?)
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
                _ => Counters::Archive(Archive::open(input)?),
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
        Ok(Recorded { counters, earlier, windows, notes, others })
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
        if let Counters::Archive(archive) = &self.counters
            && let Some(name) = archive.names().nth(index)
        {
            for earlier in &self.earlier {
                if let Some(&place) = earlier.places.get(name) {
                    before.push(earlier.archive.data(place)?);
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
        let there: HashSet<&str> = after.names().collect();
        before.places.keys().map(String::as_str).filter(|name| !there.contains(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use cpio::newc::{Builder, trailer};

    use super::*;

    /// An archive with this file.
    fn archive(name: &str, contents: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = Builder::new(name).mode(0o100_400).write(&mut out, contents.len() as u32);
        std::io::Write::write_all(&mut writer, contents).unwrap();
        writer.finish().unwrap();
        trailer(&mut out).unwrap();
        out
    }

    #[test]
    fn damage_in_a_reading_before_the_window_is_told_by_file_and_offset() {
        // A header of GCC 12 and no functions.
        let data = b"adcg*22B\x01\0\0\0\x01\0\0\0\0\0\0\0";
        let good = archive("build/a.gcda", data);
        let at = |part: &[u8]| good.windows(part.len()).position(|bytes| bytes == part).unwrap();
        let with = |place: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[place] = byte;
            bytes
        };
        let contents = at(data);
        let end = at(b"TRAILER") - 110;
        for (bytes, words) in [
            (with(0, b'x'), vec!["offset 0".to_owned()]),
            (with(end, b'x'), vec![format!("offset {end}")]),
            (good[..end].to_vec(), vec![format!("offset {end}")]),
            (with(at(b".gcda"), b'_'), vec!["offset 0".to_owned(), "build/a_gcda".to_owned()]),
            (with(contents, b'x'), vec![format!("offset {contents}: build/a.gcda"), "offset 0".to_owned()]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let files = GcovFiles::of(dir.path());
            fs::create_dir_all(files.folder()).unwrap();
            fs::write(files.after(), &good).unwrap();
            fs::write(files.before(), bytes).unwrap();
            let told = Recorded::open(dir.path(), false).and_then(|recorded| recorded.window(0).map(drop));
            let told = format!("{:#}", told.unwrap_err());
            let file = files.before().display().to_string();
            assert!(told.contains(&file) && words.iter().all(|word| told.contains(word)), "{told}");
            Recorded::open(dir.path(), true).unwrap().window(0).unwrap();
        }
    }
}
