// SPDX-License-Identifier: MIT OR Apache-2.0
//! From recorded counters to coverage: finds counters and notes, and puts them together on all CPUs.
//!
//! In: a run with `streams/gcov/counters.cpio` (and, for a window, `before.cpio`, and readings from before that, which
//! tell what reading adds), such an archive alone, or a folder
//! with `.gcda` files; of a run that has a flow instead, see `flow_cover`. Out: a [`Cover`], with what was wrong with single objects.
//!
//! Counters are named after the object on the machine that built the kernel: notes are looked for beside it there,
//! or below `--build-dir`, under as much of the path's end as is found there.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use kprism_gcov::{Collector, Cover, Data, Solver, data, window};

use kprism_agent::gcov::{AFTER, BEFORE, IDLE};
use kprism_report::Filter;

use crate::cmd::call::CallArgs;
use crate::progress::Progress;

/// Where a run keeps its counters, below its streams.
const FOLDER: &str = "gcov";

/// Coverage, and what could not be used.
pub struct Loaded {
    /// What was executed.
    pub cover: Cover,
    /// Objects left out, and why.
    pub problems: Vec<String>,
    /// What reading the counters added to the window, if they were read in it.
    pub footprint: Option<Footprint>,
}

/// What reading the counters costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Counters that a reading adds to: it was taken out of the window.
    pub counters: usize,
    /// Those to which readings did not always add the same.
    pub varying: usize,
    /// Functions whose counts in the window have the reading's in them.
    pub unsure: usize,
}

/// Where coverage is read from.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct From {
    /// Folder with the notes (.gcno) of the build, if they are not where it was built
    #[arg(long, value_name = "DIR", help_heading = "Coverage")]
    pub build_dir: Option<PathBuf>,
    /// Count from the boot on, not only in the run's window
    #[arg(long, help_heading = "Coverage")]
    pub since_boot: bool,
    /// Count by the flow, of a run that has gcov's counters, too
    #[arg(long, help_heading = "Coverage")]
    pub by_flow: bool,
    #[command(flatten)]
    pub debug: DebugFiles,
}

/// Where debug information is, for coverage of a flow and source lines of functions.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Debug information")]
pub struct DebugFiles {
    /// The kernel with debug information, for source lines of its functions
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,
    /// A kernel module (.ko) with debug information (can be repeated); modules that the lab loaded from a file are found
    #[arg(long, value_name = "FILE")]
    pub module_file: Vec<PathBuf>,
    /// Folder with debug information by build id (can be repeated; /usr/lib/debug is always looked at)
    #[arg(long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,
}

/// Whose work is counted, of a flow.
#[derive(Debug, Clone, Default)]
pub struct Who {
    /// Tasks; all if empty.
    pub filter: Filter,
    /// One call of a system call.
    pub call: Option<CallArgs>,
}

impl DebugFiles {
    /// Folders with debug information by build id, distributions' own last.
    pub fn folders(&self) -> Vec<PathBuf> {
        let mut folders = self.debug_dir.clone();
        folders.push(PathBuf::from(DEBUG));
        folders
    }
}

/// Where distributions put debug information.
const DEBUG: &str = "/usr/lib/debug";

/// Whether the run holds coverage.
pub fn is_cover(input: &Path) -> bool {
    input.join("streams").join(FOLDER).join(AFTER).exists()
}

/// An archive in memory, its files by name.
struct Archive {
    bytes: Vec<u8>,
    files: Vec<(String, Range<usize>)>,
}

/// All counters of one moment.
enum Counters {
    Archive(Archive),
    Files(Vec<PathBuf>),
}

impl Counters {
    fn len(&self) -> usize {
        match self {
            Counters::Archive(archive) => archive.files.len(),
            Counters::Files(files) => files.len(),
        }
    }

    /// The object's path on the machine that built it, without the suffix.
    fn object(&self, index: usize) -> PathBuf {
        match self {
            Counters::Archive(archive) => Path::new("/").join(&archive.files[index].0).with_extension(""),
            Counters::Files(files) => files[index].with_extension(""),
        }
    }

    fn data(&self, index: usize) -> Result<Data> {
        match self {
            Counters::Archive(archive) => Ok(data::read(&archive.bytes[archive.files[index].1.clone()])?),
            Counters::Files(files) => Ok(data::read(&fs::read(&files[index])?)?),
        }
    }
}

/// Reads coverage.
pub fn load(input: &Path, from: &From, who: &Who, progress: &Progress) -> Result<Loaded> {
    if from.by_flow || !is_cover(input) && input.join("manifest.json").exists() {
        return crate::flow_cover::load(input, &from.debug, who, progress);
    }
    if who.call.is_some() || who.filter != Filter::default() {
        bail!(
            "{}: gcov's counters are of all tasks: --task, --comm and --syscall need a recorded flow",
            input.display()
        );
    }
    progress.step("reading coverage");
    let folder = input.join("streams").join(FOLDER);
    let (mut counters, mut earlier) = (Counters::Files(Vec::new()), Vec::new());
    if is_cover(input) {
        counters = Counters::Archive(archive(&folder.join(AFTER))?);
        let before = IDLE.into_iter().chain([BEFORE]).map(|name| folder.join(name));
        for path in before.filter(|path| path.exists() && !from.since_boot) {
            earlier.push(archive(&path)?);
        }
    } else if input.is_file() {
        counters = Counters::Archive(archive(input)?);
    } else if let Counters::Files(files) = &mut counters {
        data_files(input, files).with_context(|| input.display().to_string())?;
    }
    if counters.len() == 0 {
        bail!("{}: no .gcda files in it", input.display());
    }
    let loaded = collect(&counters, &earlier, from.build_dir.as_deref());
    progress.clear();
    if loaded.cover.objects == 0 {
        bail!("none of {} objects could be used; the first: {}", counters.len(), loaded.problems[0]);
    }
    Ok(loaded)
}

/// The data of one object in an archive, by the object's name.
struct Earlier<'a> {
    archive: &'a Archive,
    places: HashMap<&'a str, Range<usize>>,
}

impl<'a> Earlier<'a> {
    fn new(archive: &'a Archive) -> Self {
        let places = archive.files.iter().map(|(name, range)| (name.as_str(), range.clone()));
        Self { archive, places: places.collect() }
    }

    fn data(&self, name: &str) -> Result<Option<Data>> {
        let range = self.places.get(name).cloned();
        Ok(range.map(|range| data::read(&self.archive.bytes[range])).transpose()?)
    }
}

/// Puts all objects together; `earlier` are the counters from before the window, in order of time.
fn collect(counters: &Counters, earlier: &[Archive], build_dir: Option<&Path>) -> Loaded {
    let earlier: Vec<Earlier<'_>> = earlier.iter().map(Earlier::new).collect();
    let collector = Collector::default();
    let problems = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let footprint = Mutex::new(Footprint::default());
    let one = |index: usize, solver: &mut Solver, bytes: &mut Vec<u8>| -> Result<()> {
        let mut data = counters.data(index)?;
        if let Counters::Archive(archive) = counters
            && !earlier.is_empty()
        {
            let before = earlier.iter().map(|e| e.data(&archive.files[index].0));
            let before = before.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect::<Vec<_>>();
            let windowed = window::between(&before, data)?;
            data = windowed.data;
            if windowed.anew {
                let object = counters.object(index);
                let problem = format!(
                    "{}: its counters began anew in the window: these are since then",
                    object.display()
                );
                problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(problem);
            }
            let mut sum = footprint.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            sum.counters += windowed.footprint;
            sum.varying += windowed.varying;
            sum.unsure += windowed.unsure;
        }
        let notes = find_notes(&counters.object(index), build_dir);
        bytes.clear();
        File::open(&notes)
            .and_then(|mut file| file.read_to_end(bytes))
            .with_context(|| format!("{}; --build-dir names the folder of the build", notes.display()))?;
        Ok(collector.add(solver, bytes, &data)?)
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let (mut solver, mut bytes) = (Solver::default(), Vec::new());
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= counters.len() {
                        break;
                    }
                    if let Err(error) = one(index, &mut solver, &mut bytes) {
                        let problem = format!("{}: {error:#}", counters.object(index).display());
                        problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(problem);
                    }
                }
            });
        }
    });
    let mut problems = problems.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let (Some(before), Counters::Archive(after)) = (earlier.last(), counters) {
        let there: HashSet<&str> = after.files.iter().map(|(name, _)| name.as_str()).collect();
        let gone = before.places.keys().filter(|name| !there.contains(**name));
        problems.extend(gone.map(|name| {
            format!("/{name}: unloaded in the window, and what it counted is lost: boot with gcov_persist=1")
        }));
    }
    problems.sort_unstable();
    let footprint = footprint.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Loaded { cover: collector.finish(), problems, footprint: (earlier.len() > 1).then_some(footprint) }
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

fn data_files(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_unstable_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            data_files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "gcda") {
            found.push(path);
        }
    }
    Ok(())
}

/// Reads an archive of counters.
fn archive(path: &Path) -> Result<Archive> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let files = entries(&bytes).with_context(|| format!("{}: not a good cpio archive", path.display()))?;
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
