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

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use kprism_agent::gcov::AFTER;
use kprism_cover::gather::Inferred;
use kprism_gcov::cover::Object;
use kprism_gcov::memory::TRIES;
use kprism_gcov::runs::{Marks, Runs};
use kprism_gcov::window;
use kprism_gcov::{Collector, Cover, Data, Gaps, Solver, gaps, notes};
use kprism_profile::Filter;
use kprism_store::{Account, Fate, Run};

use crate::call::Call;
use crate::progress::Progress;
use crate::source_files::{self, Built};

mod compare;
mod many;
pub mod place;
mod recorded;
mod remarks;

pub use compare::{Compared, compare};
pub use many::{Many, read_notes};
use many::{built, read_file};
pub use recorded::Recorded;
pub use remarks::{load_and_tell, tell_problems};

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
        folders.push(PathBuf::from(kprism_debuginfo::separate::GLOBAL));
        folders
    }
}

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
