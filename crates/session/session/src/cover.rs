// SPDX-License-Identifier: MIT OR Apache-2.0
//! From recorded counters to coverage: finds counters and notes, and puts them together on all CPUs.
//!
//! In: a run with `streams/gcov/counters.cpio` (and, for a window, `before.cpio`, and readings from before that, which
//! tell what reading adds), such an archive alone, or a folder
//! with `.gcda` files; of a run that has a flow instead, see `flow_cover`. Out: a [`Cover`], with what was wrong with single objects.
//!
//! [`compare`] sets the counters beside the flow of the same run; [`place`] finds a file, lines or a function by a text.
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
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use kprism_agent::gcov::{AFTER, BEFORE, IDLE};
use kprism_cover::gather::Inferred;
use kprism_gcov::cover::Object;
use kprism_gcov::memory::TRIES;
use kprism_gcov::runs::{Marks, Runs};
use kprism_gcov::window::{self, Windowed};
use kprism_gcov::{Collector, Cover, Data, Gaps, Solver, data, gaps, notes};
use kprism_profile::Filter;
use kprism_store::{Account, Fate, Run};

use crate::call::Call;
use crate::cover_objects::{Found, Names, Objects, Shared};
use crate::progress::Progress;
use crate::source_files::{self, Built};

mod compare;
pub mod place;
mod remarks;

pub use compare::{Compared, compare};

/// Where a run keeps its counters, below its streams.
const FOLDER: &str = "gcov";

/// Coverage, and what could not be used.
pub struct Loaded {
    /// What was executed.
    pub cover: Cover,
    /// Objects left out or not whole, and why.
    pub problems: Vec<Problem>,
    /// What reading the counters added to the window, if they were read in it.
    pub footprint: Option<Footprint>,
    /// What changed while it was read, if that was in memory.
    pub unsettled: Option<Unsettled>,
    /// Of several runs, which executed what.
    pub runs: Option<Runs>,
    /// How much of what was recorded is in it.
    pub account: Account,
    /// When the code was built, or ran, for sources that are read.
    pub built: Built,
    /// Lines without code whose counts follow from lines around them; counters have none.
    pub inferred: Option<Inferred>,
    /// Runs all of whose counters were cleared in the window, and how many objects show it.
    pub resets: Vec<(String, usize)>,
}

/// An object that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// What became of it.
    pub kind: ProblemKind,
    /// Its name, and why.
    pub text: String,
}

/// What became of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemKind {
    /// It is not in the result.
    LeftOut,
    /// What it counted before its counters began anew is not in the result.
    Anew,
    /// Its module went, and what it counted.
    Unloaded,
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

/// Functions that ran while their counters were read from the memory of a kernel that went on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Unsettled {
    /// Those that were never twice the same: their counts are of several moments.
    pub functions: u64,
    /// Of them, those that never are: reading runs through them.
    pub reading: u64,
    /// Readings that were done again.
    pub again: u64,
}

impl Unsettled {
    /// In words, if there are any.
    pub fn told(self) -> Option<String> {
        (self.functions > 0).then(|| {
            format!(
                "{} functions ran while their counters were read, at each of {} readings, {} of them for the reading itself: \
                 their counts are of several moments",
                self.functions,
                TRIES + 1,
                self.reading
            )
        })
    }

    /// What the manifest calls it.
    pub const OPTION: &str = "unsettled";

    fn of(run: &Path) -> Option<Self> {
        let manifest = Run::open(run).and_then(|run| run.manifest()).ok()?;
        serde_json::from_value(manifest.options.get(Self::OPTION)?.clone()).ok()
    }
}

/// Options of reading coverage.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Folder with the notes (.gcno) of the build, if they are not where it was built.
    pub build_dir: Option<PathBuf>,
    /// Count from the boot on, not only in the run's window.
    pub since_boot: bool,
    /// Count by the flow, of a run that has gcov's counters, too.
    pub by_flow: bool,
    /// Add what this run counted, of the same build; views then tell which run executed a line.
    pub merge: Vec<PathBuf>,
    /// Sources of OLD are in NEW, everywhere: in tables, exports, and to be read.
    pub source_prefix: Vec<(String, String)>,
    /// Folder with the sources, if they are not where they were: the longest end of a path that is there counts.
    pub source_dir: Option<PathBuf>,
    /// Debug information, for coverage of a flow.
    pub debug: DebugFiles,
    /// The text of sources is shown: notes tell when each was built.
    pub shows_text: bool,
}

/// Where debug information is, for coverage of a flow and source lines of functions.
#[derive(Debug, Clone, Default)]
pub struct DebugFiles {
    /// The kernel with debug information, for source lines of its functions.
    pub vmlinux: Option<PathBuf>,
    /// A kernel module (.ko) with debug information (can be repeated); modules that the lab loaded from a file are found.
    pub module_file: Vec<PathBuf>,
    /// Folder with debug information by build id (can be repeated; /usr/lib/debug is always looked at).
    pub debug_dir: Vec<PathBuf>,
}

/// The part of a flow whose coverage is counted.
#[derive(Debug, Clone, Default)]
pub struct Part {
    /// Tasks; all if empty.
    pub filter: Filter,
    /// One system call.
    pub call: Option<Call>,
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

/// Whether coverage of it is read from a flow, not from counters.
pub fn is_flow(input: &Path, options: &Options) -> bool {
    options.by_flow || !is_cover(input) && input.join("manifest.json").exists()
}

/// Whether it is no run: counters by themselves, in a file or a folder.
pub fn is_alone(input: &Path) -> bool {
    input.is_file()
        || input.is_dir() && !input.join("manifest.json").exists() && !input.join("streams").exists()
}

/// The time at which counters were recorded: that of the run's file, or else of `input` itself.
pub fn recorded(input: &Path) -> SystemTime {
    let counters = input.join("streams").join(FOLDER).join(AFTER);
    let place = if counters.exists() { &counters } else { input };
    fs::metadata(place).and_then(|file| file.modified()).unwrap_or(UNIX_EPOCH)
}

/// An archive in memory, its files by name.
struct Archive {
    bytes: Vec<u8>,
    files: Vec<(String, Range<usize>)>,
}

/// All counters of one moment.
enum Counters {
    Archive(Archive),
    /// Files, and the folder that they are below.
    Files(Vec<PathBuf>, Option<PathBuf>),
}

impl Counters {
    fn len(&self) -> usize {
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

    fn names(&self, index: usize) -> Names {
        match self {
            Counters::Archive(_) => Names::of_archive(self.object(index)),
            Counters::Files(files, folder) => Names::of_file(&files[index], folder.as_deref()),
        }
    }

    fn data(&self, index: usize) -> Result<Data> {
        match self {
            Counters::Archive(archive) => Ok(data::read(&archive.bytes[archive.files[index].1.clone()])?),
            Counters::Files(files, _) => Ok(data::read(&fs::read(&files[index])?)?),
        }
    }
}

/// The counters of a run, an archive or a folder, and those from before its window.
pub struct Recorded {
    counters: Counters,
    /// In order of time.
    earlier: Vec<Earlier>,
    /// Notes in the folder.
    notes: Vec<PathBuf>,
    /// Files that are named like counters, and cannot be read as such.
    others: Vec<PathBuf>,
}

/// Counters of an earlier moment, by the object's name.
struct Earlier {
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
    fn len(&self) -> usize {
        self.counters.len()
    }

    /// An object's path on the machine that built it, without the suffix.
    pub fn object(&self, index: usize) -> PathBuf {
        self.counters.object(index)
    }

    /// What it counted in the window, and what of that is the reading's.
    fn window(&self, index: usize) -> Result<Windowed> {
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
    fn unloaded(&self) -> Vec<&str> {
        let (Counters::Archive(after), Some(before)) = (&self.counters, self.earlier.last()) else {
            return Vec::new();
        };
        let there: HashSet<&str> = after.files.iter().map(|(name, _)| name.as_str()).collect();
        before.places.keys().map(String::as_str).filter(|name| !there.contains(name)).collect()
    }
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

fn read_file(path: &Path, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    bytes.clear();
    if path.exists() && !path.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    File::open(path).and_then(|mut file| file.read_to_end(bytes)).map(drop)
}

/// Reads coverage.
pub fn load(input: &Path, options: &Options, part: &Part, progress: &Progress) -> Result<Loaded> {
    if is_flow(input, options) {
        if !options.merge.is_empty() {
            bail!("{}: --merge adds up gcov's counters; this is read from the flow", input.display());
        }
        return crate::flow_cover::load(input, options, part, progress);
    }
    if part.call.is_some() || part.filter != Filter::default() {
        bail!(
            "{}: gcov's counters are of all tasks: --task, --comm and --syscall need a recorded flow",
            input.display()
        );
    }
    progress.step("reading coverage");
    let mut all = Many::open(input, options)?;
    let (mut loaded, mut seen) = collect(&all, options);
    // A reset is of all objects: differences with what was counted before it would be wrong even where none is negative.
    let mut resets = Vec::new();
    for ((name, recorded), seen) in all.runs.iter_mut().zip(&seen.before) {
        if window::is_reset(seen.anew, seen.stood) {
            recorded.earlier.clear();
            resets.push((name.clone(), seen.anew));
        }
    }
    if !resets.is_empty() {
        (loaded, seen) = collect(&all, options);
    }
    loaded.resets = resets;
    loaded.unsettled = Unsettled::of(input);
    loaded.account = account(&all, &loaded, &seen.gaps);
    if !is_alone(input) {
        loaded.built = Built::of_run(input);
    } else if options.shows_text {
        loaded.built = built(&all, options);
    }
    progress.clear();
    if loaded.cover.objects == 0 {
        bail!("none of {} objects could be used; the first: {}", all.objects.len(), loaded.problems[0].text);
    }
    Ok(loaded)
}

/// The counters of several runs, by object.
pub struct Many {
    /// What the runs are called, and what they counted.
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

    fn windows(&self, object: usize) -> impl Iterator<Item = (usize, Result<Windowed>)> {
        self.objects[object].1.iter().map(|&(run, index)| {
            let (name, recorded) = &self.runs[run];
            (run, recorded.window(index).with_context(|| name.clone()))
        })
    }

    /// What an object counted in each of its runs.
    pub fn data(&self, object: usize) -> impl Iterator<Item = (usize, Result<Data>)> {
        self.windows(object).map(|(run, windowed)| (run, windowed.map(|windowed| windowed.data)))
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

/// The oldest notes of each source file.
fn built(all: &Many, options: &Options) -> Built {
    let prefixes = source_files::prefixes(&options.source_prefix);
    let (mut built, mut bytes) = (Built::default(), Vec::new());
    for object in 0..all.objects.len() {
        // Notes that cannot be read are named where counts are put together.
        let Ok(path) = read_notes(all, object, options.build_dir.as_deref(), &mut bytes) else { continue };
        let Ok(written) = fs::metadata(&path).and_then(|file| file.modified()) else { continue };
        let Ok(notes) = notes::read(&bytes) else { continue };
        for source in &notes.sources {
            let source = kprism_gcov::path::absolute(notes.cwd.as_deref(), source);
            built.add(prefixes.map(&source).into_owned(), written, &path);
        }
    }
    built
}

/// What became of the counters that a run has from before its window.
#[derive(Debug, Clone, Copy, Default)]
struct Before {
    /// Objects that had counted more then than at the end.
    anew: usize,
    /// Those that had counted something, and no more since.
    stood: usize,
}

/// Facts that collecting gives beside the coverage.
struct Collected {
    /// Of each run.
    before: Vec<Before>,
    /// Counters that do not go with their notes, by name.
    gaps: Vec<(String, Gaps)>,
}

/// Unit of the account: objects without counters.
pub const NEVER_RAN: &str = "objects that never ran (notes, and no counters)";
/// Unit of the account: lines with calls that returned more often than they were made.
const RETURNED: &str = "lines with calls that returned more often than they were made";
/// Unit of the account: lines whose counters several CPUs changed at once, or that changed while they were read.
pub const TORN: &str = "lines with counts that cannot be (torn counters)";

/// What is in a coverage, and what is not.
fn account(all: &Many, loaded: &Loaded, gaps: &[(String, Gaps)]) -> Account {
    let cover = &loaded.cover;
    let footprint = loaded.footprint.unwrap_or_default();
    let (left_out, anew): (Vec<&Problem>, Vec<&Problem>) =
        loaded.problems.iter().partition(|problem| matches!(problem.kind, ProblemKind::LeftOut));
    let texts = |problems: &[&Problem]| problems.iter().map(|p| p.text.clone()).collect::<Vec<_>>();
    let (gone, anew): (Vec<&Problem>, Vec<&Problem>) =
        anew.into_iter().partition(|problem| matches!(problem.kind, ProblemKind::Unloaded));
    let resets = loaded.resets.iter().map(|(run, objects)| reset_text(run, *objects));
    let unsettled = loaded.unsettled.unwrap_or_default();
    let others = all.runs.iter().map(|(_, run)| run.others.len()).sum::<usize>();
    let never = all.never_ran.as_ref();
    let seen = all.objects.len() + never.map_or(0, Vec::len) + others;
    let gap = |of: fn(&Gaps) -> u64| {
        let found = gaps.iter().map(move |(name, gaps)| (name, of(gaps))).filter(|(_, count)| *count > 0);
        let places = found.clone().map(|(name, count)| format!("{name}: {count}")).collect();
        (found.map(|(_, count)| count).sum::<u64>(), places)
    };
    let (without_data, data_places) = gap(|gaps| gaps.without_data);
    let (without_notes, notes_places) = gap(|gaps| gaps.without_notes);
    let (unknown, unknown_places) = gap(|gaps| gaps.unknown);
    let (after_end, end_places) = gap(|gaps| gaps.after_end);
    let account = Account::new().with(Fate::Seen, "objects", seen as u64).with(
        Fate::Kept,
        "objects",
        u64::from(cover.objects),
    );
    let account = match never {
        Some(never) => account.with(Fate::Kept, NEVER_RAN, never.len() as u64),
        None => account,
    };
    // No fault: a call that was made before the window or a reset of the counters returned after it, and fork() returns
    // twice. Of a kernel without atomic counters they may be torn ones.
    let account = account.with(Fate::Kept, RETURNED, cover.returned_only() as u64);
    account
        .at(Fate::Lost, "objects left out", left_out.len() as u64, texts(&left_out))
        .at(Fate::Lost, "objects of modules that went in the window", gone.len() as u64, texts(&gone))
        .at(Fate::Lost, "objects whose counters began anew in the window", anew.len() as u64, texts(&anew))
        .at(
            Fate::Lost,
            "windows cut by a reset of all counters",
            loaded.resets.len() as u64,
            resets.collect(),
        )
        .at(Fate::Lost, "functions without counters, shown as never called", without_data, data_places)
        .with(Fate::NotUnderstood, TORN, cover.torn() as u64)
        .at(Fate::NotUnderstood, "functions that the notes do not have", without_notes, notes_places)
        .at(Fate::NotUnderstood, "records of unknown kinds", unknown, unknown_places)
        .at(Fate::NotUnderstood, "bytes after the end of counters", after_end, end_places)
        .with(Fate::Guessed, "functions whose counts have the reading's in them", footprint.unsure as u64)
        .with(
            Fate::Guessed,
            "functions never read twice the same",
            unsettled.functions.saturating_sub(unsettled.reading),
        )
}

/// What is said of a reset.
pub fn reset_text(run: &str, objects: usize) -> String {
    format!(
        "{run}: all counters were cleared in the window ({objects} objects count less at its end than at its beginning): \
         this is since the reset, with what reading them added"
    )
}

fn collect(all: &Many, options: &Options) -> (Loaded, Collected) {
    let before = Mutex::new(vec![Before::default(); all.runs.len()]);
    let prefixes = source_files::prefixes(&options.source_prefix);
    let build_dir = options.build_dir.as_deref();
    let marks = (all.runs.len() > 1).then(|| Marks::renaming(prefixes.clone()));
    let collector = Collector::renaming(prefixes);
    let problems = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let footprint = Mutex::new(Footprint::default());
    let damaged = Mutex::new(Vec::new());
    let complain = |kind: ProblemKind, text: String| {
        problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(Problem { kind, text });
    };
    let one = |index: usize, solver: &mut Solver, bytes: &mut Vec<u8>| -> Result<()> {
        let mut sum: Option<Data> = None;
        let (mut read, mut gaps_here) = (Vec::new(), Vec::new());
        for (run, windowed) in all.windows(index) {
            read.push((run, windowed?));
        }
        read_notes(all, index, build_dir, bytes)?;
        let notes = notes::read(bytes)?;
        for (run, windowed) in read {
            let found = gaps(&notes, &windowed.data);
            if found != Gaps::default() {
                let copies = all.objects[index].1.iter().find(|(with, _)| *with == run);
                let object = copies.map(|&(_, at)| all.runs[run].1.object(at)).unwrap_or_default();
                gaps_here.push((object.display().to_string(), found));
            }
            let mut found = footprint.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            found.counters += windowed.footprint;
            found.varying += windowed.varying;
            found.unsure += windowed.unsure;
            drop(found);
            let mut before = before.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            before[run].anew += usize::from(windowed.anew);
            before[run].stood += usize::from(windowed.stood);
            drop(before);
            if windowed.anew {
                let object = all.objects[index].0.display();
                complain(
                    ProblemKind::Anew,
                    format!("{object}: its counters began anew in the window: these are since then"),
                );
            }
            match &mut sum {
                None => sum = Some(windowed.data),
                Some(sum) => sum.add(&windowed.data).with_context(|| all.runs[run].0.clone())?,
            }
        }
        let sum = sum.context("no run has it")?;
        if let Some(marks) = &marks {
            for (run, data) in all.data(index) {
                let unit = solver.unit(&notes, Some(&data?)).with_context(|| all.runs[run].0.clone())?;
                marks.mark(u16::try_from(run).unwrap_or(u16::MAX), &notes, &unit);
            }
        }
        let object = Object { number: index as u32, path: all.objects[index].0.to_str() };
        collector.add_read(solver, object, &notes, &sum)?;
        damaged.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(gaps_here);
        Ok(())
    };
    let never_ran = all.never_ran.as_deref().unwrap_or_default();
    let unexecuted = |index: usize, solver: &mut Solver, bytes: &mut Vec<u8>| -> Result<()> {
        let path = &never_ran[index];
        read_file(path, bytes).with_context(|| path.display().to_string())?;
        let notes = notes::read(bytes)?;
        let path = path.with_extension("");
        let object = Object { number: (all.objects.len() + index) as u32, path: path.to_str() };
        collector.add_never_ran(solver, object, &notes)?;
        if notes.unknown > 0 {
            let gaps = Gaps { unknown: notes.unknown.into(), ..Gaps::default() };
            let name = path.display().to_string();
            damaged.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((name, gaps));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let (mut solver, mut bytes) = (Solver::default(), Vec::new());
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let (name, result) = if let Some((object, _)) = all.objects.get(index) {
                        (object, one(index, &mut solver, &mut bytes))
                    } else if let Some(notes) = never_ran.get(index - all.objects.len()) {
                        (notes, unexecuted(index - all.objects.len(), &mut solver, &mut bytes))
                    } else {
                        break;
                    };
                    if let Err(error) = result {
                        complain(ProblemKind::LeftOut, format!("{}: {error:#}", name.display()));
                    }
                }
            });
        }
    });
    let mut problems = problems.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    problems.extend(all.runs.iter().flat_map(|(_, run)| run.unloaded()).map(|name| Problem {
        kind: ProblemKind::Unloaded,
        text: format!(
            "/{name}: unloaded in the window, and what it counted is lost: boot with gcov_persist=1"
        ),
    }));
    problems.extend(all.runs.iter().flat_map(|(_, run)| &run.others).map(|path| Problem {
        kind: ProblemKind::LeftOut,
        text: format!("{}: not a regular file, so not counters that were written", path.display()),
    }));
    problems.sort_unstable();
    let mut gaps = damaged.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    gaps.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let footprint = footprint.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let names = all.runs.iter().map(|(name, _)| name.clone()).collect();
    let loaded = Loaded {
        cover: collector.finish(),
        problems,
        footprint: all.runs.iter().any(|(_, run)| run.earlier.len() > 1).then_some(footprint),
        unsettled: None,
        runs: marks.map(|marks| marks.finish(names)),
        account: Account::new(),
        built: Built::default(),
        inferred: None,
        resets: Vec::new(),
    };
    let before = before.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    (loaded, Collected { before, gaps })
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
