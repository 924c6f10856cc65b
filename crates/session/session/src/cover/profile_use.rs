// SPDX-License-Identifier: MIT OR Apache-2.0
//! From recorded counters to a folder that gcc takes with `-fprofile-use`.
//!
//! In: the inputs of a coverage report, and its options. Out: a `.gcda` file for each object, under the name that gcc looks
//! for, completed with what a kernel does not write. Objects whose notes are of another build are left out: gcc would be misled.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_gcov::{Data, Gaps, UnitCounter, gaps, notes, profile_use as for_gcc};

use super::counters::{Inputs, Resets, read_notes, reset_object_text, reset_text};
use super::options::Options;
use crate::progress::Progress;

/// Counts of what was written.
pub struct Written {
    /// Files.
    pub files: usize,
    /// The folder that the compiler ran in, if the names are seen from there.
    pub root: Option<String>,
    /// Objects left out, and why.
    pub problems: Vec<String>,
    /// Negative counters (torn ones), written as 0.
    pub torn: usize,
    /// Objects whose counters and notes do not go together in all functions.
    pub damaged: Vec<String>,
    /// Objects whose counters restarted in the window: theirs are since then.
    pub restarted: Vec<String>,
    /// Runs all of whose counters were cleared in the window: theirs are since then.
    pub resets: Vec<String>,
}

/// Writes the folder; one that is there must hold nothing but such files, which go.
pub fn write(
    input: &Path,
    options: &Options,
    relative: bool,
    folder: &Path,
    progress: &Progress,
) -> Result<Written> {
    progress.step("reading counters");
    let mut all = Inputs::open(input, options)?;
    let mut read = read(&all, options);
    let mut resets = all.drop_windows_cut_by_resets(&read.before);
    if !resets.is_empty() {
        read = self::read(&all, options);
    }
    resets.extend(all.resets_in_windows());
    let Read { mut objects, problems, mut restarted, damaged, roots, .. } = read;
    let in_windows = all.counted().flat_map(|(_, counted)| &counted.restarted);
    restarted.extend(in_windows.map(|name| reset_object_text(Path::new(name))));
    if objects.is_empty() {
        bail!("none of {} objects could be used; the first: {}", all.objects.len(), problems[0]);
    }
    let root = roots.into_iter().rev().max_by_key(|(_, count)| *count).map(|(root, _)| root);
    let root = match (relative, root) {
        (true, None) => {
            bail!("the notes do not tell the folder of the build (GCC 9 does): leave --relative away")
        }
        (true, root) => root,
        (false, _) => None,
    };
    clear(folder)?;
    let highest = for_gcc::highest(objects.iter().map(|(_, data)| data));
    let mut torn = 0;
    for (object, data) in &mut objects {
        torn += for_gcc::complete(data, highest);
        let object = std::path::absolute(&*object).with_context(|| object.display().to_string())?;
        let path = folder.join(for_gcc::file_name(&object.to_string_lossy(), root.as_deref()));
        fs::write(&path, data.to_bytes()).with_context(|| path.display().to_string())?;
    }
    progress.clear();
    let resets = resets.iter().map(|(run, objects)| reset_text(run, *objects)).collect();
    Ok(Written { files: objects.len(), root, problems, torn, damaged, restarted, resets })
}

/// Counters of all objects, and what was seen on the way.
#[derive(Default)]
struct Read {
    /// By the object's path.
    objects: Vec<(PathBuf, Data)>,
    problems: Vec<String>,
    restarted: Vec<String>,
    damaged: Vec<String>,
    /// Folders that the compiler ran in, each with its number of objects.
    roots: BTreeMap<String, usize>,
    /// About each run.
    before: Vec<Resets>,
}

fn read(all: &Inputs, options: &Options) -> Read {
    let mut read = Read { before: vec![Resets::default(); all.runs.len()], ..Read::default() };
    let (mut counter, mut bytes) = (UnitCounter::default(), Vec::new());
    for (index, (object, _)) in all.objects.iter().enumerate() {
        match one(all, index, options, &mut counter, &mut bytes, &mut read) {
            Ok(data) => read.objects.push((object.clone(), data)),
            Err(error) => read.problems.push(format!("{}: {error:#}", object.display())),
        }
    }
    read
}

/// Adds up an object's counters over all runs, and checks that its notes are of the same build.
fn one(
    all: &Inputs,
    index: usize,
    options: &Options,
    counter: &mut UnitCounter,
    bytes: &mut Vec<u8>,
    read: &mut Read,
) -> Result<Data> {
    let object = &all.objects[index].0;
    let mut sum: Option<Data> = None;
    let mut restarted = false;
    for (run, windowed) in all.windows(index) {
        let windowed = windowed?;
        read.before[run].add(&windowed);
        restarted |= windowed.restarted;
        match &mut sum {
            None => sum = Some(windowed.data),
            Some(sum) => sum.add(&windowed.data).with_context(|| all.runs[run].0.clone())?,
        }
    }
    let data = sum.context("no run has it")?;
    read_notes(all, index, options.build_dir.as_deref(), bytes)?;
    let notes = notes::read(bytes)?;
    counter.unit(&notes, Some(&data))?;
    if gaps(&notes, &data) != Gaps::default() {
        read.damaged.push(object.display().to_string());
    }
    if let Some(cwd) = notes.cwd {
        *read.roots.entry(cwd.into_owned()).or_default() += 1;
    }
    if restarted {
        read.restarted.push(reset_object_text(object));
    }
    Ok(data)
}

fn clear(folder: &Path) -> Result<()> {
    let context = || folder.display().to_string();
    fs::create_dir_all(folder).with_context(context)?;
    let entries = fs::read_dir(folder).with_context(context)?.collect::<std::io::Result<Vec<_>>>();
    let paths: Vec<PathBuf> = entries.with_context(context)?.iter().map(fs::DirEntry::path).collect();
    if let Some(other) = paths.iter().find(|path| path.extension().is_none_or(|suffix| suffix != "gcda")) {
        bail!(
            "{}: holds other files ({}): name a folder for the profile alone",
            folder.display(),
            other.display()
        );
    }
    for path in paths {
        fs::remove_file(&path).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
