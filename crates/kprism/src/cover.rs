// SPDX-License-Identifier: MIT OR Apache-2.0
//! From recorded counters to coverage: finds counters and notes, and puts them together on all CPUs.
//!
//! In: a run with `streams/gcov/counters.cpio` (and, for a window, `before.cpio`), such an archive alone, or a folder
//! with `.gcda` files; of a run that has a flow instead, see `flow_cover`. Out: a [`Cover`], with what was wrong with single objects.
//!
//! Counters are named after the object on the machine that built the kernel: notes are looked for beside it there,
//! or below `--build-dir`, under as much of the path's end as is found there.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use kprism_gcov::runs::{Marks, Runs};
use kprism_gcov::{Collector, Cover, Data, Solver, data, notes};
use kprism_report::Filter;

use crate::cmd::call::CallArgs;
use crate::progress::Progress;

/// Where a run keeps its counters.
pub const COUNTERS: &str = "gcov/counters.cpio";
/// Where it keeps those from before the window.
pub const BEFORE: &str = "gcov/before.cpio";

/// Coverage, and what could not be used.
pub struct Loaded {
    /// What was executed.
    pub cover: Cover,
    /// Objects left out, and why.
    pub problems: Vec<String>,
    /// Of several runs, which executed what.
    pub runs: Option<Runs>,
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
    /// Add what this run counted, of the same build; views then tell which run executed a line (can be repeated)
    #[arg(long, value_name = "RUN", help_heading = "Coverage")]
    pub merge: Vec<PathBuf>,
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
    input.join("streams").join(COUNTERS).exists()
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

/// The counters of a run, an archive or a folder, and those from before its window.
pub struct Recorded {
    counters: Counters,
    before: Option<Archive>,
    /// The files of `before`, by name.
    earlier: HashMap<String, Range<usize>>,
}

impl Recorded {
    /// Opens them.
    pub fn open(input: &Path, since_boot: bool) -> Result<Self> {
        let streams = input.join("streams");
        let (counters, before) = if is_cover(input) {
            let before = streams.join(BEFORE);
            let before = (before.exists() && !since_boot).then(|| archive(&before)).transpose()?;
            (Counters::Archive(archive(&streams.join(COUNTERS))?), before)
        } else if input.is_file() {
            (Counters::Archive(archive(input)?), None)
        } else {
            let mut files = Vec::new();
            data_files(input, &mut files).with_context(|| input.display().to_string())?;
            (Counters::Files(files), None)
        };
        if counters.len() == 0 {
            bail!("{}: no .gcda files in it", input.display());
        }
        let earlier = before.iter().flat_map(|archive| archive.files.iter().cloned()).collect();
        Ok(Recorded { counters, before, earlier })
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.counters.len()
    }

    /// An object's path on the machine that built it, without the suffix.
    pub fn object(&self, index: usize) -> PathBuf {
        self.counters.object(index)
    }

    /// What it counted in the window.
    pub fn data(&self, index: usize) -> Result<Data> {
        let mut data = self.counters.data(index)?;
        if let (Counters::Archive(archive), Some(before)) = (&self.counters, &self.before)
            && let Some(range) = self.earlier.get(&archive.files[index].0)
        {
            data.subtract(&data::read(&before.bytes[range.clone()])?)?;
        }
        Ok(data)
    }
}

/// Reads an object's notes into `bytes`.
pub fn read_notes(object: &Path, build_dir: Option<&Path>, bytes: &mut Vec<u8>) -> Result<()> {
    let notes = find_notes(object, build_dir);
    bytes.clear();
    File::open(&notes)
        .and_then(|mut file| file.read_to_end(bytes))
        .with_context(|| format!("{}; --build-dir names the folder of the build", notes.display()))?;
    Ok(())
}

/// Reads coverage.
pub fn load(input: &Path, from: &From, who: &Who, progress: &Progress) -> Result<Loaded> {
    if !is_cover(input) && input.join("manifest.json").exists() {
        if !from.merge.is_empty() {
            bail!("{}: --merge adds up gcov's counters; this run has none", input.display());
        }
        return crate::flow_cover::load(input, &from.debug, who, progress);
    }
    if who.call.is_some() || who.filter != Filter::default() {
        bail!(
            "{}: gcov's counters are of all tasks: --task, --comm and --syscall need a recorded flow",
            input.display()
        );
    }
    progress.step("reading coverage");
    let all = Many::open(input, from)?;
    let loaded = collect(&all, from.build_dir.as_deref());
    progress.clear();
    if loaded.cover.objects == 0 {
        bail!("none of {} objects could be used; the first: {}", all.objects.len(), loaded.problems[0]);
    }
    Ok(loaded)
}

/// The counters of several runs, by object.
pub struct Many {
    /// What the runs are called, and what they counted.
    pub runs: Vec<(String, Recorded)>,
    /// Paths of objects, without suffix; the runs that have them, and where.
    pub objects: Vec<(PathBuf, Vec<(usize, usize)>)>,
}

impl Many {
    /// Opens a run and those to be added to it.
    pub fn open(input: &Path, from: &From) -> Result<Self> {
        let mut runs = Vec::new();
        for path in std::iter::once(input).chain(from.merge.iter().map(PathBuf::as_path)) {
            runs.push((path.display().to_string(), Recorded::open(path, from.since_boot)?));
        }
        let mut objects: Vec<(PathBuf, Vec<(usize, usize)>)> = Vec::new();
        let mut known: HashMap<PathBuf, usize> = HashMap::new();
        for (run, (_, recorded)) in runs.iter().enumerate() {
            for index in 0..recorded.len() {
                let object = recorded.object(index);
                let place = *known.entry(object.clone()).or_insert(objects.len());
                match objects.get_mut(place) {
                    Some((_, found)) => found.push((run, index)),
                    None => objects.push((object, vec![(run, index)])),
                }
            }
        }
        Ok(Many { runs, objects })
    }

    /// What an object counted in each of its runs.
    pub fn data(&self, object: usize) -> impl Iterator<Item = (usize, Result<Data>)> {
        self.objects[object].1.iter().map(|&(run, index)| {
            let (name, recorded) = &self.runs[run];
            (run, recorded.data(index).with_context(|| name.clone()))
        })
    }

    /// What it counted in all of them.
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

fn collect(all: &Many, build_dir: Option<&Path>) -> Loaded {
    let collector = Collector::default();
    let marks = (all.runs.len() > 1).then(Marks::default);
    let problems = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let one = |index: usize, solver: &mut Solver, bytes: &mut Vec<u8>| -> Result<()> {
        let sum = all.sum(index)?;
        read_notes(&all.objects[index].0, build_dir, bytes)?;
        let notes = notes::read(bytes)?;
        if let Some(marks) = &marks {
            for (run, data) in all.data(index) {
                let unit = solver.unit(&notes, Some(&data?)).with_context(|| all.runs[run].0.clone())?;
                marks.mark(u16::try_from(run).unwrap_or(u16::MAX), &notes, &unit);
            }
        }
        Ok(collector.add_read(solver, &notes, &sum)?)
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let (mut solver, mut bytes) = (Solver::default(), Vec::new());
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= all.objects.len() {
                        break;
                    }
                    if let Err(error) = one(index, &mut solver, &mut bytes) {
                        let problem = format!("{}: {error:#}", all.objects[index].0.display());
                        problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(problem);
                    }
                }
            });
        }
    });
    let mut problems = problems.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    problems.sort_unstable();
    let names = all.runs.iter().map(|(name, _)| name.clone()).collect();
    Loaded { cover: collector.finish(), problems, runs: marks.map(|marks| marks.finish(names)) }
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
