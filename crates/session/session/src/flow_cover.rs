// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a recorded flow to coverage: of code that was built as always, by its debug information.
//!
//! In: a run with a flow, and debug information of what ran: that of mapped programs in the run or by their build id,
//! `--vmlinux`, modules. Out: a coverage as of gcov's counters, with files that could not be used. Exact for the tasks,
//! or the single system call, that are asked for.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kprism_cover::gather::{Gatherer, Jumped, Ran};
use kprism_cover::sampled::Profile;
use kprism_cover::why::Known;
use kprism_debuginfo::lines::{Lines, Section};
use kprism_debuginfo::scopes::Scopes;
use kprism_debuginfo::separate::by_build_id;
use kprism_flow::annotate::{Counter, Counts};
use kprism_flow::replay::Task;
use kprism_flow::window::Window;
use kprism_gcov::path::Prefixes;
use kprism_image::BuildId;
use kprism_image::insn::{Kind, Mode, classify};
use kprism_image::symbols::{FunctionId, Symbols, under_root};
use kprism_profile::units::grouped;
use kprism_store::{Account, Fate, Run};

use crate::cover::{DebugFiles, Loaded, Options, Part, Problem, ProblemKind};
use crate::flow;
use crate::flow::follow;
use crate::progress::Progress;
use crate::source_files::{self, Built};

/// Unit of sources that are newer than the code.
pub const CHANGED: &str = "source files newer than the code";

/// Reads coverage.
pub fn load(input: &Path, options: &Options, part: &Part, progress: &Progress) -> Result<Loaded> {
    load_known(input, options, part, progress).map(|(loaded, _)| loaded)
}

/// The same, and which lines there are in the debug information.
pub fn load_known(
    input: &Path,
    options: &Options,
    part: &Part,
    progress: &Progress,
) -> Result<(Loaded, Known)> {
    let (mut gatherer, mut known) = (Gatherer::default(), Known::default());
    let prefixes = source_files::prefixes(&options.source_prefix);
    let (problems, seen) = each(input, (&options.debug, &prefixes), part, progress, &mut |seen| {
        known.add(seen.lines);
        gatherer.add(seen.lines, seen.ran, &seen.jumps);
    })?;
    progress.step("reading sources");
    let built = Built::of_run(input);
    let changed = RefCell::new(BTreeSet::new());
    let text = |path: &str, last: u32| {
        let found = source_files::find(path, last, options.source_dir.as_deref());
        changed.borrow_mut().extend(found.changed(path, &built));
        found.text()
    };
    let (cover, inferred) = gatherer.finish(&text);
    known.inferred = inferred;
    progress.clear();
    let inferred = known.inferred.values().map(|lines| lines.len() as u64).sum::<u64>();
    let changed: Vec<String> = changed.into_inner().into_iter().collect();
    let lost = seen.insns.saturating_sub(seen.kept);
    let account = Account::new()
        .with(Fate::Seen, "instructions", seen.insns)
        .with(Fate::Kept, "instructions", seen.kept)
        .at(Fate::Lost, "instructions in files without debug information", lost, seen.largest())
        .with(Fate::Kept, "files with debug information", u64::from(cover.objects))
        .at(Fate::Lost, "files left out", problems.len() as u64, problems.clone())
        .with(Fate::Guessed, "lines without code, told from lines around", inferred)
        .at(Fate::Guessed, CHANGED, changed.len() as u64, changed);
    let problem = |text| Problem { kind: ProblemKind::LeftOut, text };
    let problems = problems.into_iter().map(problem).collect();
    let loaded = Loaded {
        cover,
        problems,
        footprint: None,
        unsettled: None,
        runs: None,
        account,
        built,
        inferred: Some(known.inferred.clone()),
        resets: Vec::new(),
    };
    Ok((loaded, known))
}

/// What ran, for compilers that take samples; with files that could not be used.
pub fn sampled(
    input: &Path,
    debug: &DebugFiles,
    part: &Part,
    progress: &Progress,
) -> Result<(Profile, Vec<String>)> {
    let mut profile = Profile::default();
    let folders = debug.folders();
    let mut problems = Vec::new();
    let (more, _) =
        each(input, (debug, &Prefixes::default()), part, progress, &mut |seen| match Scopes::of_file(
            seen.file, &folders,
        ) {
            Ok(Some(scopes)) => profile.add(seen.lines, &scopes, &seen.ran, &seen.targets),
            Ok(None) => {}
            Err(reason) => problems.push(format!("{}: {reason}", seen.file.display())),
        })?;
    progress.clear();
    problems.extend(more);
    Ok((profile, problems))
}

/// Instructions of the tasks, or the call, that were asked for.
#[derive(Debug, Default)]
struct Instructions {
    /// All of them.
    insns: u64,
    /// Those in files with debug information.
    kept: u64,
    /// The others, by program, library or module.
    without: BTreeMap<String, u64>,
}

/// Files without debug information that are named.
const NAMED: usize = 5;

impl Instructions {
    fn lost(&mut self, module: &str, count: u64) {
        let module = if module.is_empty() { "[unknown]" } else { module };
        if count > 0 {
            *self.without.entry(module.to_owned()).or_default() += count;
        }
    }

    /// Files without debug information, those with the most instructions first.
    fn largest(&self) -> Vec<String> {
        let mut all: Vec<(&String, u64)> =
            self.without.iter().map(|(module, &count)| (module, count)).collect();
        all.sort_by_key(|&(module, count)| (std::cmp::Reverse(count), module));
        all.truncate(NAMED);
        all.into_iter().map(|(module, count)| format!("{module}: {}", grouped(count))).collect()
    }
}

/// What ran of a file, by its own addresses.
struct Seen<'s> {
    file: &'s Path,
    lines: &'s Lines,
    ran: Vec<Ran>,
    /// Whom instructions called indirectly.
    targets: BTreeMap<u64, Vec<(String, u64)>>,
    /// Where they jumped indirectly, in their own functions.
    jumps: Jumped,
}

/// Goes through the files with debug information; returns what could not be used, and how many instructions that leaves.
fn each(
    input: &Path,
    (debug, prefixes): (&DebugFiles, &Prefixes),
    part: &Part,
    progress: &Progress,
    take: &mut dyn FnMut(Seen<'_>),
) -> Result<(Vec<String>, Instructions)> {
    let window = match &part.call {
        Some(call) => {
            let (_, profile, _) = flow::open(input, progress)?;
            call.window(&profile, &part.filter, progress)?
        }
        None => None,
    };
    let run = Run::open(input)?;
    let loaded = flow::load(&run, progress)?;
    progress.step("reading debug information");
    let mut problems = Vec::new();
    let mut files = find(&run, &loaded, debug, &mut problems);
    for (_, lines) in files.values_mut() {
        for path in lines.files.iter_mut().chain(&mut lines.folder) {
            *path = prefixes.map(path).into_owned();
        }
    }
    if files.is_empty() {
        let why = problems.first().map(|problem| format!(" ({problem})")).unwrap_or_default();
        bail!(
            "{}: nothing that ran has debug information{why}: build programs and modules with -g, name the kernel's \
             with --vmlinux, modules' with --module-file",
            input.display()
        );
    }
    let symbols = &loaded.symbols;
    let all = (0..symbols.len() as u32).map(|id| symbols.function(FunctionId(id)));
    let chosen: Vec<bool> = all.map(|f| files.contains_key(f.module.as_str())).collect();
    progress.step("counting");
    let counts = count(&loaded, &chosen, part, window);
    let mut by_module: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, site) in counts.sites.iter().enumerate() {
        by_module.entry(&symbols.function(FunctionId(site.func)).module).or_default().push(index);
    }
    let mut seen = Instructions { insns: counts.insns, ..Instructions::default() };
    for (func, &count) in counts.elsewhere.iter().enumerate().filter(|(_, count)| **count > 0) {
        seen.lost(&symbols.function(FunctionId(func as u32)).module, count);
    }
    for (module, (file, lines)) in &files {
        let sites =
            || by_module.get(module.as_str()).into_iter().flatten().map(|&index| &counts.sites[index]);
        let places = match places(module, lines, symbols) {
            Ok(places) => places,
            Err(reason) => {
                problems.push(format!("{module}: {reason}"));
                seen.lost(module, sites().map(|site| site.count).sum());
                continue;
            }
        };
        // Programs of other tasks are none of what was asked for.
        if module.starts_with('/') && !by_module.contains_key(module.as_str()) {
            continue;
        }
        let (mut all, mut targets, mut jumps) = (Vec::new(), BTreeMap::new(), Jumped::new());
        for &index in by_module.get(module.as_str()).into_iter().flatten() {
            let site = &counts.sites[index];
            let Some(ran) = ran(&counts, index, symbols, &places) else {
                seen.lost(module, site.count);
                continue;
            };
            seen.kept += site.count;
            if site.kind == Kind::IndirectJump {
                let entry = ran.address.wrapping_sub(site.offset);
                let own = site.targets.iter().filter(|target| target.func == site.func);
                let own = own.map(|target| (entry.wrapping_add(target.offset), target.count));
                jumps.entry(ran.address).or_default().extend(own);
            } else if site.kind == Kind::IndirectCall || matches!(site.kind, Kind::Call { .. }) {
                let to = site.targets.iter().filter(|target| target.known && target.offset == 0);
                let to =
                    to.map(|target| (symbols.function(FunctionId(target.func)).name.clone(), target.count));
                targets.entry(ran.address).or_insert_with(Vec::new).extend(to);
            }
            all.push(ran);
        }
        take(Seen { file, lines, ran: all, targets, jumps });
    }
    Ok((problems, seen))
}

fn count(loaded: &flow::Loaded, chosen: &[bool], part: &Part, window: Option<Window>) -> Counts {
    let takes = |_: u16, task: &Task| part.filter.takes(task.pid, task.tgid, &task.comm);
    let never = || false;
    let lanes = loaded.streams().len();
    let mut counter = Counter::new(lanes, &loaded.symbols, chosen, &takes, &never).within(window);
    follow(loaded, &mut counter);
    counter.finish()
}

/// Debug information of what ran, by the symbols' name for it. Files without any are passed over.
fn find(
    run: &Run,
    loaded: &flow::Loaded,
    debug: &DebugFiles,
    problems: &mut Vec<String>,
) -> BTreeMap<String, (PathBuf, Lines)> {
    let folders = debug.folders();
    let mut files = BTreeMap::new();
    let mut take = |module: &str, file: &Path, asked: bool| match Lines::of_file(file, &folders) {
        Ok(Some(lines)) => drop(files.insert(module.to_owned(), (file.to_owned(), lines))),
        Ok(None) if asked => problems.push(format!("{}: no debug information", file.display())),
        Ok(None) => {}
        Err(reason) => problems.push(format!("{}: {reason}", file.display())),
    };
    let mut modules: Vec<&str> = (0..loaded.symbols.len() as u32)
        .map(|id| loaded.symbols.function(FunctionId(id)))
        .filter(|f| !f.kernel && f.module.starts_with('/'))
        .map(|f| f.module.as_str())
        .collect();
    modules.sort_unstable();
    modules.dedup();
    for module in modules {
        let Some(file) = under_root(&run.root(), module) else { continue };
        if file.exists() {
            take(module, &file, false);
        }
    }
    // A kernel that the lab built is where it was built.
    let built = loaded.manifest.options.get("build_dir").and_then(|folder| folder.as_str());
    let built = built.map(|folder| Path::new(folder).join("vmlinux")).filter(|file| file.exists());
    let vmlinux = debug.vmlinux.clone().or(built).or_else(|| installed_vmlinux(loaded, &folders));
    if let Some(file) = vmlinux {
        take("[kernel]", &file, debug.vmlinux.is_some());
    }
    let recorded = ["module", "with_module"].into_iter().filter_map(|key| loaded.manifest.options.get(key));
    let recorded = recorded.flat_map(|list| list.as_array().into_iter().flatten());
    let recorded = recorded.filter_map(|name| name.as_str()).map(PathBuf::from).filter(|file| file.is_file());
    let recorded = recorded.map(|file| (file, false)).collect::<Vec<_>>();
    for (file, asked) in recorded.into_iter().chain(debug.module_file.iter().map(|f| (f.clone(), true))) {
        // The kernel has `_` in modules' names for `-` in those of their files.
        let name = file.file_stem().map(|stem| stem.to_string_lossy().replace('-', "_")).unwrap_or_default();
        take(&format!("[{name}]"), &file, asked);
    }
    files
}

/// A section of the file, and what is to be added to its addresses to have those at which it ran.
struct Place {
    section: Section,
    bias: u64,
}

/// Where the file's sections ran: user code is told by its addresses in the file, kernel code by those in memory, which
/// functions of equal name in both tell.
fn places(module: &str, lines: &Lines, symbols: &Symbols) -> Result<Vec<Place>, String> {
    if !module.starts_with('[') {
        return Ok(lines.sections.iter().map(|&section| Place { section, bias: 0 }).collect());
    }
    let mut there: HashMap<&str, Option<u64>> = HashMap::new();
    for id in 0..symbols.len() as u32 {
        let function = symbols.function(FunctionId(id));
        if function.module == module {
            // Static functions may share a name: those do not help.
            there.entry(&function.name).and_modify(|known| *known = None).or_insert(Some(function.start));
        }
    }
    let mut places = Vec::new();
    let (mut good, mut bad) = (0, 0);
    for &section in &lines.sections {
        let own = lines.functions.iter().filter(|f| section.start <= f.start && f.start < section.end);
        let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
        for function in own {
            if let Some(Some(start)) = there.get(function.name.as_str()) {
                *votes.entry(start.wrapping_sub(function.start)).or_default() += 1;
            }
        }
        if let Some((&bias, &most)) = votes.iter().max_by_key(|(_, n)| **n) {
            good += most;
            bad += votes.values().sum::<usize>() - most;
            places.push(Place { section, bias });
        }
    }
    match good > bad {
        true => Ok(places),
        false => Err(format!("another build: {good} functions are where they ran, {bad} are not")),
    }
}

/// An instruction at its place in the file.
fn ran(counts: &Counts, index: usize, symbols: &Symbols, places: &[Place]) -> Option<Ran> {
    let site = &counts.sites[index];
    let at = symbols.function(FunctionId(site.func)).start.wrapping_add(site.offset);
    let address = places.iter().find_map(|place| {
        let address = at.wrapping_sub(place.bias);
        (place.section.start..place.section.end).contains(&address).then_some(address)
    })?;
    // Targets as seen from there.
    let kind = match site.mode {
        Mode::Bits64 => classify(&site.bytes, address, site.mode).map_or(Kind::Other, |insn| insn.kind),
        _ => return None,
    };
    let length = u8::try_from(site.bytes.len()).unwrap_or(15);
    Some(Ran { address, length, kind, count: site.count, taken: site.taken })
}

/// The debug information of the recorded kernel, where distributions put it.
pub fn installed_vmlinux(loaded: &flow::Loaded, debug: &[PathBuf]) -> Option<PathBuf> {
    let kernel = loaded.manifest.kernel.as_ref()?;
    let by_id = BuildId::from_hex(&kernel.build_id).and_then(|id| by_build_id(&id, debug));
    let by_release = debug.iter().map(|dir| dir.join(format!("boot/vmlinux-{}", kernel.release)));
    by_id.or_else(|| by_release.into_iter().find(|place| Path::is_file(place)))
}
