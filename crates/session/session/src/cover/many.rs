// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters of several runs, by object, and the notes of each object.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kprism_cover::counters::window::Windowed;
use kprism_gcov::{Data, notes};

use super::Options;
use super::recorded::{Counters, Recorded};
use crate::cover_objects::{Names, Objects, Shared};
use crate::source_files::{self, Built};

/// The counters of several runs, by object.
pub struct Many {
    /// The runs, each with its name and its counters.
    pub runs: Vec<(String, Recorded)>,
    /// Paths of objects, without suffix; the runs that have them, and where.
    pub objects: Vec<Shared>,
    /// Notes in the folders whose objects have no counters in any of them. None if no input is a folder: a run or an
    /// archive does not say which objects it could have had.
    pub never_ran: Option<Vec<PathBuf>>,
}

/// The notes of folders that no counters belong to, each once.
fn never_ran<'r>(runs: impl Iterator<Item = &'r Recorded> + Clone) -> Option<Vec<PathBuf>> {
    let folders = runs.filter_map(|recorded| match &recorded.counters {
        Counters::Files(files, Some(folder)) => Some((files, &recorded.notes, folder)),
        _ => None,
    });
    folders.clone().next()?;
    let below = |path: &Path, folder: &Path| path.strip_prefix(folder).unwrap_or(path).with_extension("");
    let mut known: HashSet<PathBuf> = HashSet::new();
    for (files, _, folder) in folders.clone() {
        known.extend(files.iter().map(|path| below(path, folder)));
    }
    let mut never = Vec::new();
    for (_, notes, folder) in folders {
        never.extend(notes.iter().filter(|path| known.insert(below(path, folder))).cloned());
    }
    Some(never)
}

impl Many {
    /// Opens a run and those to be added to it.
    pub fn open(input: &Path, options: &Options) -> Result<Self> {
        let mut runs = Vec::new();
        for path in std::iter::once(input).chain(options.merge.iter().map(PathBuf::as_path)) {
            runs.push((path.display().to_string(), Recorded::open(path, options.since_boot)?));
        }
        let mut objects = Objects::default();
        for (run, (_, recorded)) in runs.iter().enumerate() {
            for index in 0..recorded.len() {
                let names = match runs.len() {
                    // Nothing to be compared with: the stamp need not be read.
                    1 => Names::default(),
                    _ => recorded.counters.names(index),
                };
                objects.add(names, recorded.object(index), (run, index));
            }
        }
        let never_ran = never_ran(runs.iter().map(|(_, recorded)| recorded));
        let objects = objects.all;
        Ok(Many { runs, objects, never_ran })
    }

    pub(super) fn windows(&self, object: usize) -> impl Iterator<Item = (usize, Result<Windowed>)> {
        self.objects[object].1.iter().map(|&(run, index)| {
            let (name, recorded) = &self.runs[run];
            (run, recorded.window(index).with_context(|| name.clone()))
        })
    }

    /// Counters of an object in each of its runs.
    pub fn data(&self, object: usize) -> impl Iterator<Item = (usize, Result<Data>)> {
        self.windows(object).map(|(run, windowed)| (run, windowed.map(|windowed| windowed.data)))
    }

    /// Sum of its counters over all of them.
    pub fn sum(&self, object: usize) -> Result<Data> {
        let mut sum: Option<Data> = None;
        for (run, data) in self.data(object) {
            match &mut sum {
                None => sum = Some(data?),
                Some(sum) => sum.add(&data?).with_context(|| self.runs[run].0.clone())?,
            }
        }
        sum.context("no run has it")
    }
}

/// The oldest notes of each source file.
pub(super) fn built(all: &Many, options: &Options) -> Built {
    let prefixes = source_files::prefixes(&options.source_prefix);
    let (mut built, mut bytes) = (Built::default(), Vec::new());
    for object in 0..all.objects.len() {
        // Notes that cannot be read are named where counts are put together.
        let Ok(path) = read_notes(all, object, options.build_dir.as_deref(), &mut bytes) else { continue };
        let Ok(written) = fs::metadata(&path).and_then(|file| file.modified()) else { continue };
        let Ok(notes) = notes::read(&bytes) else { continue };
        for source in &notes.sources {
            let source = kprism_cover::path::absolute(notes.cwd.as_deref(), source);
            built.add(prefixes.map(&source).into_owned(), written, &path);
        }
    }
    built
}

/// Reads an object's notes into `bytes`: those beside the first of several copies of its counters that has them. Returns
/// their path.
pub fn read_notes(
    all: &Many,
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
pub(super) fn read_file(path: &Path, bytes: &mut Vec<u8>) -> std::io::Result<()> {
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
