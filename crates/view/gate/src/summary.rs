// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of a run that rules are about: small enough to be kept in a repository as a baseline.
//!
//! In: a run. Out: [`Summary`], which is also a file of JSON. An instrument that did not record is `None`, so that a rule
//! about it is refused, and not compared with 0.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kprism_profile::{Filter, Profile, units};
use kprism_report::cover::patch;
use kprism_report::rows;
use kprism_session::cover::{Loaded, Options};
use kprism_session::{Progress, open_with};
use kprism_store::{Environment, Instrument, Manifest, Recorded};
use serde::{Deserialize, Serialize};

/// Version of the file.
const VERSION: u32 = 1;

/// The numbers of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Version of this layout. Its name tells files of summaries from others.
    pub kprism_summary: u32,
    /// The command.
    #[serde(default)]
    pub command: Vec<String>,
    /// Release of the kernel.
    #[serde(default)]
    pub kernel: String,
    /// The environment of an exact run; `None` where counts vary from run to run, or may.
    #[serde(default)]
    pub environment: Option<Environment>,
    /// What was recorded, and how; `None` in files of older versions, which do not tell.
    #[serde(default)]
    pub recorded: Option<Recorded>,
    /// Why the recording is not whole; `None` if it is.
    #[serde(default)]
    pub fault: Option<String>,
    /// Exit code of the command.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// Numbers of the flow of instructions.
    #[serde(default)]
    pub flow: Option<Flow>,
    /// Numbers of a recording of durations.
    #[serde(default)]
    pub durations: Option<Vec<Timed>>,
    /// Misses of the last level, by TLB, in the order of the recording.
    #[serde(default)]
    pub tlb: Option<Vec<(String, u64)>>,
    /// Lines of source files.
    #[serde(default)]
    pub cover: Option<Vec<Covered>>,
    /// The lines that a patch adds. They are of this patch alone, so no baseline has them.
    #[serde(skip)]
    pub patch: Option<Patched>,
}

/// Numbers of the flow of instructions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Instructions in the kernel.
    pub kernel_insns: u64,
    /// Instructions in programs.
    pub user_insns: u64,
    /// Nanoseconds on a CPU.
    pub cpu_ns: u64,
    /// Places that could not be decoded.
    pub decode_errors: u64,
    /// Functions, by name and module.
    pub functions: Vec<Function>,
    /// System calls, by name.
    pub syscalls: Vec<Syscall>,
    /// Intervals between markers, such as interrupts off, by name.
    pub intervals: BTreeMap<String, Spread>,
}

/// A function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its module.
    pub module: String,
    /// True if it runs in ring 0.
    pub kernel: bool,
    /// Number of entries.
    pub calls: u64,
    /// Instructions in the function itself.
    pub self_insns: u64,
    /// Instructions with callees.
    pub total_insns: u64,
}

/// A system call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Syscall {
    /// Name as in the man page.
    pub name: String,
    /// Sum of the kernel's instructions.
    pub insns: u64,
    /// Wall times, ns.
    pub wall: Spread,
}

/// A function of a recording of durations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// Its name.
    pub name: String,
    /// Its module.
    pub module: String,
    /// Durations of calls, ns.
    pub durations: Spread,
}

/// The distribution of values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// Number of values.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// 50th percentile.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Largest value.
    pub max: u64,
}

/// A source file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covered {
    /// Its path.
    pub path: String,
    /// Lines with code.
    pub lines: u64,
    /// Lines that ran.
    pub executed: u64,
}

/// The lines that a patch adds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Patched {
    /// Number of source files to which lines are added.
    pub files: usize,
    /// Number of lines added.
    pub added: u64,
    /// Those of them with code.
    pub lines: u64,
    /// Those of them that ran.
    pub executed: u64,
    /// Lines with code that did not run, by file: `kernel/fork.c: 11-12 30`.
    pub missed: Vec<String>,
    /// Source files of the patch of which the run has no code.
    pub not_in_run: Vec<String>,
}

impl Patched {
    fn new(loaded: &Loaded, added: &BTreeMap<String, Vec<u32>>) -> Self {
        let files = patch::found(&loaded.cover, added, None);
        let totals = patch::totals(&files);
        let missed = files.iter().filter_map(|file| {
            let missed = file.missed_text();
            (!missed.is_empty()).then(|| format!("{}: {missed}", file.path))
        });
        let sources = || files.iter().filter(|file| is_source(file.path) || file.source.is_some());
        let unknown = sources().filter(|file| file.source.is_none());
        Patched {
            files: sources().count(),
            added: totals.added,
            lines: totals.lines.all,
            executed: totals.lines.hit,
            missed: missed.collect(),
            not_in_run: unknown.map(|file| file.path.to_owned()).collect(),
        }
    }

    /// Remarks on a verdict about it.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.lines == 0 {
            let added = units::grouped(self.added);
            notes.push(format!(
                "patch_coverage: of the {added} lines added, none has code in the run; it counts as 100 %"
            ));
        }
        let part = |names: &[String]| names.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
        if !self.missed.is_empty() {
            notes.push(format!("lines added that did not run: {}{}", part(&self.missed), more(&self.missed)));
        }
        if !self.not_in_run.is_empty() {
            let names = part(&self.not_in_run);
            notes.push(format!(
                "files of the patch that are not in the run: {names}{}",
                more(&self.not_in_run)
            ));
        }
        notes
    }
}

/// True if a file has code, by its suffix. Documentation and configuration have none, in no run.
fn is_source(path: &str) -> bool {
    const SUFFIXES: [&str; 14] =
        ["c", "h", "cc", "cpp", "cxx", "c++", "hh", "hpp", "hxx", "inc", "rs", "go", "s", "S"];
    path.rsplit('/')
        .next()
        .and_then(|name| name.rsplit_once('.'))
        .is_some_and(|(_, suffix)| SUFFIXES.contains(&suffix))
}

/// Files named in a note.
const NAMED: usize = 10;

fn more(names: &[String]) -> String {
    match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        rest => format!("; and {rest} more files"),
    }
}

impl From<&kprism_profile::Histogram> for Spread {
    fn from(h: &kprism_profile::Histogram) -> Self {
        let at = |percent| h.percentile(percent);
        Spread { count: h.count, sum: h.sum, p50: at(50.0), p90: at(90.0), p99: at(99.0), max: at(100.0) }
    }
}

/// The parts of a summary that need more than the run's tables.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Lines of source files, also of a run of which they must be worked out from the flow: that needs debug information.
    pub cover: bool,
    /// Lines added by file, of [`kprism_report::cover::patch::added`].
    pub patch: Option<BTreeMap<String, Vec<u32>>>,
}

/// Reads a run, or a saved summary. A run's profile comes with it, for the paths behind a difference.
///
/// # Errors
/// It is neither, or it cannot be read.
pub fn load(path: &Path, wanted: &Wanted, progress: Progress) -> Result<(Summary, Option<Profile>)> {
    match path.is_file() {
        true if wanted.patch.is_some() => {
            bail!("{}: a saved summary has no lines to hold a patch against; give the run", path.display())
        }
        true => Ok((from_file(path)?, None)),
        false => of_run(path, wanted, progress),
    }
}

fn from_file(path: &Path) -> Result<Summary> {
    let place = path.display().to_string();
    let text = std::fs::read(path).with_context(|| place.clone())?;
    parse(&text, &place)
}

/// Parses a saved summary, which is from `place`.
///
/// # Errors
/// It is none, or of another version.
pub fn parse(text: &[u8], place: &str) -> Result<Summary> {
    let summary: Summary = serde_json::from_slice(text)
        .with_context(|| format!("{place}: expected a summary that `kprism gate --save` wrote"))?;
    if summary.kprism_summary != VERSION {
        bail!("{place}: a summary of version {}, this kprism reads {VERSION}", summary.kprism_summary);
    }
    Ok(summary)
}

/// The numbers of all instruments of a run.
fn of_run(path: &Path, wanted: &Wanted, progress: Progress) -> Result<(Summary, Option<Profile>)> {
    // What is found in one run is not told of another.
    let progress = progress.apart();
    let session = open_with(path, progress.clone())?;
    let instruments = session.instruments();
    let holds = |instrument| instruments.contains(&instrument);
    let (mut summary, mut of_flow) = (Summary { kprism_summary: VERSION, ..Summary::default() }, None);
    if holds(Instrument::Flow) {
        let profile = session.flow()?;
        summary.flow = Some(flow(&profile));
        of_flow = Some(profile);
    }
    if holds(Instrument::Durations) {
        let (profile, times) = session.durations()?;
        let timed = |(func, times): (&kprism_profile::Func, &kprism_profile::FuncTimes)| Timed {
            name: func.name.clone(),
            module: func.module.clone(),
            durations: Spread::from(&times.durations),
        };
        summary.durations = Some(profile.funcs.iter().zip(&times.funcs).map(timed).collect());
    }
    if holds(Instrument::Tlb) {
        let mut loaded = session.tlb()?;
        let all = loaded.profile()?.all();
        let names = match loaded.geometries()? {
            models if models.is_empty() => vec![loaded.source()?],
            models => models.into_iter().map(|model| model.name).collect(),
        };
        summary.tlb = Some(names.into_iter().zip(all).collect());
        // With the method and the models, which the manifest does not hold.
        summary.recorded = Some(loaded.recorded()?);
    }
    if wanted.cover || wanted.patch.is_some() {
        let loaded = session.cover(&Options::default())?;
        summary.cover = Some(files(&loaded));
        summary.patch = wanted.patch.as_ref().map(|added| Patched::new(&loaded, added));
    } else if holds(Instrument::Cover) {
        // No rule is about it; a summary that is saved has it if the notes of the build are there.
        match session.cover(&Options::default()) {
            Ok(loaded) => summary.cover = Some(files(&loaded)),
            Err(error) => progress.note(&format!("{}: without coverage: {error:#}", path.display())),
        }
    }
    // Decoding enters its account into the manifest.
    facts(&mut summary, &session.run.manifest()?);
    summary.fault = summary.fault.or_else(|| progress.fault());
    Ok((summary, of_flow))
}

/// Lines by file. Paths are relative to the folder of the sources, so that they are the same in every checkout.
fn files(loaded: &Loaded) -> Vec<Covered> {
    let root = loaded.cover.root.as_deref().unwrap_or_default();
    let short = |path: &str| path.strip_prefix(root).unwrap_or(path).trim_start_matches('/').to_owned();
    let sources = loaded.cover.sources.iter().map(|source| Covered {
        path: short(&source.path),
        lines: source.lines.len() as u64,
        executed: source.lines.iter().filter(|line| line.count > 0).count() as u64,
    });
    sources.collect()
}

fn facts(summary: &mut Summary, manifest: &Manifest) {
    summary.command.clone_from(&manifest.command);
    summary.kernel = manifest.kernel.as_ref().map(|kernel| kernel.release.clone()).unwrap_or_default();
    summary.environment.clone_from(&manifest.environment);
    summary.recorded.get_or_insert_with(|| manifest.recorded());
    summary.exit_code = manifest.exit_code;
    summary.fault = manifest.fault();
}

fn flow(profile: &Profile) -> Flow {
    let all = Filter::default();
    let tasks = rows::tasks(profile, &all);
    let mut functions: Vec<Function> = Vec::new();
    let mut known: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for row in rows::functions(profile, &all) {
        let func = &profile.funcs[row.func as usize];
        let at = *known.entry((&func.name, &func.module)).or_insert_with(|| {
            functions.push(Function {
                name: func.name.clone(),
                module: func.module.clone(),
                kernel: func.kernel,
                ..Function::default()
            });
            functions.len() - 1
        });
        let sum = &mut functions[at];
        sum.calls = sum.calls.saturating_add(row.calls);
        sum.self_insns = sum.self_insns.saturating_add(row.self_insns);
        sum.total_insns = sum.total_insns.saturating_add(row.total_insns);
    }
    functions.sort_by(|a, b| (&a.name, &a.module).cmp(&(&b.name, &b.module)));
    let mut syscalls: Vec<Syscall> = rows::syscalls(profile, &all)
        .iter()
        .map(|row| Syscall {
            name: row.name.clone(),
            insns: row.insns,
            wall: Spread {
                count: row.count(),
                sum: row.wall_total_ns(),
                p50: row.percentile_ns(50),
                p90: row.percentile_ns(90),
                p99: row.percentile_ns(99),
                max: row.percentile_ns(100),
            },
        })
        .collect();
    syscalls.sort_by(|a, b| a.name.cmp(&b.name));
    // Tables on disk may be damaged, and hold any numbers.
    let sum = |of: fn(&rows::TaskRow) -> u64| tasks.iter().map(of).fold(0u64, u64::saturating_add);
    let user_insns = sum(|task| task.user_insns);
    Flow {
        kernel_insns: profile.totals.instructions().saturating_sub(user_insns),
        user_insns,
        cpu_ns: sum(|task| task.ns),
        decode_errors: profile.totals.errors(),
        functions,
        syscalls,
        intervals: profile.deltas.iter().map(|delta| (delta.name.clone(), Spread::from(&delta.ns))).collect(),
    }
}
