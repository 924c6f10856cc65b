// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage in `report`, `annotate`, `export` and `diff`: what those commands do with a run that has counters, or a
//! flow.

use std::io::{BufWriter, Read as _, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use kprism_agent::gcov::AFTER;
use kprism_cover::sampled::{self, Profile};
use kprism_gcov::cover::Source;
use kprism_gcov::runs::Runs;
use kprism_gcov::{Cover, demangled, export};
use kprism_report::cover::{self, Each, diff, page, source};
use kprism_report::header::account_text;
use kprism_report::table::Cell;
use kprism_report::{Style, Table};
use kprism_store::{Account, Fate};
use serde_json::json;

use super::report::print_json;
use super::strict::{StrictArgs, judge_own};
use crate::exit::Outcome;
use kprism_session::Progress;
use kprism_session::cover::{Loaded, NEVER_RAN, Options, Part, TORN, Unsettled, is_flow, load, reset_text};
use kprism_session::profile_use;
use kprism_session::source_files;

/// Rows of a table unless told otherwise.
const ROWS: usize = 40;
/// Objects left out that are named.
const NAMED: usize = 5;

/// Options of `report cover`.
#[derive(Debug, clap::Args)]
pub struct CoverArgs {
    #[command(flatten)]
    pub from: super::cover_args::CoverageArgs,
    /// A row for each folder, file or function
    #[arg(long, value_enum, value_name = "WHAT", help_heading = "Coverage")]
    pub each: Option<EachArg>,
    /// Compare gcov's counters with the flow of the same run, line by line, with the reasons of differences
    #[arg(long, help_heading = "Coverage")]
    pub compare: bool,
}

/// What a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum EachArg {
    /// A folder, with all below it
    Dir,
    /// A source file
    File,
    /// A function
    Function,
    /// A run, of those put together with --merge
    Run,
}

/// How a table is shown.
pub struct View<'a> {
    /// Folder, file or pattern.
    pub path: Option<&'a str>,
    /// Column to sort by.
    pub sort: Option<&'a str>,
    /// Rows.
    pub limit: Option<usize>,
    /// As JSON.
    pub json: bool,
    /// How text is drawn.
    pub style: Style,
    /// Whether something missing is an error.
    pub strict: StrictArgs,
}

/// `kprism report cover --html`.
pub fn write_html(
    input: &Path,
    args: &CoverArgs,
    who: &Part,
    (path, file, strict): (Option<&str>, &Path, StrictArgs),
    progress: &Progress,
) -> Result<Outcome> {
    let (cover, runs, account) = load_runs(input, (&args.from.options(), who), progress)?;
    progress.step("writing the page");
    let text = |source: &Source| source_files::of_source(source, args.from.source_dir.as_deref());
    let title =
        path.map_or_else(|| input.display().to_string(), |path| format!("{}: {path}", input.display()));
    let page = page::render(&cover, runs.as_ref(), path, &title, &text).context("HTML page")?;
    progress.clear();
    if page.files == 0 {
        progress.say("no source file matches");
        return Ok(Outcome::NothingMatched);
    }
    if page.without_source > 0 {
        progress.say(&format!(
            "kprism: note: {} of {} source files could not be read; --source-dir names their folder",
            page.without_source, page.files
        ));
    }
    std::fs::write(file, page.html).with_context(|| file.display().to_string())?;
    progress.say(&format!("wrote {}", file.display()));
    judge_own(strict, &[(input, &account)], Outcome::Done, progress)
}

/// Where coverage is read from, and of whom.
pub type Asked<'a> = (&'a Options, &'a Part);

fn load_and_complain(input: &Path, asked: Asked<'_>, progress: &Progress) -> Result<(Cover, Account)> {
    no_text(input, asked.0)?;
    let (cover, _, account) = load_runs(input, asked, progress)?;
    Ok((cover, account))
}

/// Refuses `--source-dir` where no source is read. (Of a flow, sources tell of lines without code.)
fn no_text(input: &Path, from: &Options) -> Result<()> {
    if from.source_dir.is_some() && !is_flow(input, from) {
        bail!(
            "--source-dir does not go with this view of counters: it would change nothing there; it is for `annotate` and \
             `report cover --html`, and --source-prefix OLD=NEW changes paths"
        );
    }
    Ok(())
}

type Read = (Cover, Option<Runs>, Account);

fn load_runs(input: &Path, (from, who): Asked<'_>, progress: &Progress) -> Result<Read> {
    let Loaded { cover, problems, runs, unsettled, account, resets, .. } = load(input, from, who, progress)?;
    for (run, objects) in resets {
        eprintln!("kprism: {}", reset_text(&run, objects));
    }
    complain(&problems.into_iter().map(|problem| problem.text).collect::<Vec<_>>());
    // Reading takes the same way each time: its own is taken out of the window.
    if let Some(told) = unsettled.filter(|u| u.functions > u.reading).and_then(Unsettled::told) {
        eprintln!("kprism: {told}");
    }
    let torn = account.count(Fate::NotUnderstood, TORN).unwrap_or(0);
    if torn > 0 {
        eprintln!(
            "kprism: {torn} lines have counts that cannot be (below 0): counters were changed by several CPUs at once; build with CFLAGS_GCOV+=-fprofile-update=prefer-atomic"
        );
    }
    Ok((cover, runs, account))
}

fn complain(problems: &[String]) {
    if !problems.is_empty() {
        eprintln!("kprism: {} objects left out, or not whole:", problems.len());
        for problem in problems.iter().take(NAMED) {
            eprintln!("  {problem}");
        }
    }
}

/// What a recording says of itself: its totals, what the reading added, and the folder or file that was asked for.
pub fn tell(run: &Path, show: Option<&str>, progress: &Progress, out: &mut dyn Write) -> Result<()> {
    let loaded = load(run, &Options::default(), &Part::default(), progress)?;
    let objects = loaded.cover.objects;
    progress.say(&format!(
        "{}: {objects} objects\n{}",
        run.display(),
        cover::summary(&loaded.cover.totals()).trim_end()
    ));
    if let Some(footprint) = loaded.footprint {
        progress.say(&format!(
            "reading them adds to {} counters, to {} of those not always alike: that is taken out, but of {} functions",
            footprint.counters, footprint.varying, footprint.unsure
        ));
    }
    if let Some(told) = loaded.unsettled.and_then(Unsettled::told) {
        progress.say(&told);
    }
    if let Some(first) = loaded.problems.first() {
        progress.say(&format!(
            "{} objects left out, or not whole; the first: {}",
            loaded.problems.len(),
            first.text
        ));
    }
    for (run, objects) in &loaded.resets {
        progress.say(&reset_text(run, *objects));
    }
    let torn = loaded.account.count(Fate::NotUnderstood, TORN).unwrap_or(0);
    if torn > 0 {
        progress.say(&format!(
            "{torn} lines have counts that cannot be: they were changed while they were read, or by several CPUs at once"
        ));
    }
    if show.is_some() {
        let mut table = cover::table(&loaded.cover, Each::File, show);
        table.sort_by("lines_hit")?;
        let hit = table.columns.iter().position(|column| column.key == "lines_hit");
        table.rows.retain(|row| hit.and_then(|hit| row.get(hit)) != Some(&Cell::Int(0)));
        table.limit(ROWS);
        table.select(&cover::SHOWN);
        write!(out, "{}", table.to_text(Style::default()))?;
    }
    Ok(())
}

/// `kprism report cover`.
pub fn report(
    input: &Path,
    args: &CoverArgs,
    who: &Part,
    view: &View<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if args.compare {
        return super::cover_compare::report(input, &args.from.options(), view, progress, out);
    }
    no_text(input, &args.from.options())?;
    let (cover, runs, account) = load_runs(input, (&args.from.options(), who), progress)?;
    let (sources, totals) = cover::chosen(&cover, view.path);
    let mut table = match (args.each, &runs) {
        (None | Some(EachArg::Dir), _) => cover::table(&cover, Each::Folder, view.path),
        (Some(EachArg::File), _) => cover::table(&cover, Each::File, view.path),
        (Some(EachArg::Function), _) => cover::table(&cover, Each::Function, view.path),
        (Some(EachArg::Run), Some(runs)) => cover::runs_table(&cover, runs, view.path),
        (Some(EachArg::Run), None) => bail!("--each run is about several: --merge RUN adds another"),
    };
    if let Some(key) = view.sort {
        table.sort_by(key)?;
    }
    let limit = view.limit.unwrap_or(if view.json { 0 } else { ROWS });
    if limit > 0 {
        table.limit(limit);
    }
    if view.json {
        let value = json!({
            "objects": cover.objects, "files": sources.len(), "root": cover.root,
            "totals": cover::summary_json(&totals), "rows": table.to_json(), "hidden": table.hidden,
            "account": account,
        });
        print_json(&value, out)?;
    } else {
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let (objects, files) = (cover.objects as usize, sources.len());
        let never = match account.count(Fate::Kept, NEVER_RAN) {
            Some(never) if never > 0 => format!(" ({never} of them never ran)"),
            _ => String::new(),
        };
        writeln!(out, "{objects} object{}{never}, {files} source file{}", plural(objects), plural(files))?;
        if matches!(args.each, None | Some(EachArg::Dir | EachArg::File)) {
            table.select(&cover::SHOWN);
        }
        write!(out, "{}\n{}", cover::summary(&totals), table.to_text(view.style))?;
        write!(out, "\n{}", account_text(Some(&account), view.style))?;
    }
    let outcome = if sources.is_empty() { Outcome::NothingMatched } else { Outcome::Done };
    judge_own(view.strict, &[(input, &account)], outcome, progress)
}

/// What `annotate` shows of a source file.
pub struct Annotate<'a> {
    /// The file, `FILE:LINE`, `FILE:FROM-TO`, or a function.
    pub what: &'a str,
    /// A line for each branch and call.
    pub branches: bool,
    /// As JSON.
    pub json: bool,
    /// How text is drawn.
    pub style: Style,
}

/// Lines around one that is asked for.
const AROUND: u32 = 10;

/// `kprism annotate FILE` of a run with coverage.
pub fn annotate(
    input: &Path,
    from: Asked<'_>,
    view: &Annotate<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let (cover, runs, _) = load_runs(input, from, progress)?;
    let (found, lines) = find(&cover, view.what)?;
    let path = cover.shown(&found.path);
    let shown = source::Shown { lines, branches: view.branches, runs: runs.as_ref() };
    if view.json {
        print_json(&source::to_json(path, found, shown), out)?;
        return Ok(Outcome::Done);
    }
    let text = source_files::of_source(found, from.0.source_dir.as_deref());
    if text.is_none() {
        progress.say(&format!("kprism: note: {}: no source; --source-dir names its folder", found.path));
    }
    let totals = found.totals();
    writeln!(out, "{}\n{}", view.style.bold(path), cover::summary(&totals))?;
    write!(out, "{}", source::header(shown, view.style))?;
    write!(out, "{}", source::to_text(found, text.as_deref(), shown, view.style))?;
    Ok(Outcome::Done)
}

/// The file, and which lines of it.
fn find<'a>(cover: &'a Cover, what: &str) -> Result<(&'a Source, (u32, u32))> {
    let all = (1, u32::MAX);
    let (name, lines) = match what.rsplit_once(':').and_then(|(name, lines)| Some((name, range(lines)?))) {
        Some((name, lines)) => (name, lines),
        None => (what, all),
    };
    let mut found: Vec<&Source> = Vec::new();
    for source in &cover.sources {
        let path = cover.shown(&source.path);
        if path == name || source.path == name {
            return Ok((source, lines));
        }
        if path.strip_suffix(name).is_some_and(|rest| rest.ends_with('/')) {
            found.push(source);
        }
    }
    if found.is_empty() {
        for source in &cover.sources {
            if let Some(function) = source.functions.iter().find(|function| is_called(&function.name, name)) {
                return Ok((source, function.lines));
            }
        }
    }
    match found[..] {
        [one] => Ok((one, lines)),
        [] => bail!("{name}: no such source file or function; `kprism report cover --each file` lists them"),
        _ => {
            let names: Vec<&str> = found.iter().map(|source| cover.shown(&source.path)).collect();
            bail!("{name} is several files: {}", names.join(", "))
        }
    }
}

/// Whether a function has this name: as the linker knows it, or as its source does, with parameters or without.
fn is_called(function: &str, name: &str) -> bool {
    let shown = demangled(function);
    function == name || shown == name || shown.split_once('(').is_some_and(|(plain, _)| plain == name)
}

/// `12` with some lines around it, or `12-40`.
fn range(text: &str) -> Option<(u32, u32)> {
    match text.split_once('-') {
        Some((from, to)) => Some((from.parse().ok()?, to.parse().ok()?)),
        None => {
            let line: u32 = text.parse().ok()?;
            Some((line.saturating_sub(AROUND), line.saturating_add(AROUND)))
        }
    }
}

/// Whether `export` is to write coverage.
pub fn is_export(output: &Path) -> bool {
    output.extension().is_some_and(|suffix| suffix == "info" || suffix == "xml") || is_llvm(output)
}

fn is_llvm(output: &Path) -> bool {
    output.to_string_lossy().to_ascii_lowercase().ends_with(".llvm.json")
}

/// `kprism export cover`.
pub fn write(
    input: &Path,
    from: Asked<'_>,
    (output, strict): (&Path, StrictArgs),
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let suffix = output.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
    let recorded = recorded(input);
    let cobertura = |cover: &Cover, out: &mut dyn Write| export::cobertura(cover, recorded, out);
    let write: &dyn Fn(&Cover, &mut dyn Write) -> std::io::Result<()> = match suffix.as_deref() {
        Some("info") => &export::lcov,
        Some("xml") => &cobertura,
        Some("json") if is_llvm(output) => &export::llvm,
        Some("json") => &export::json,
        Some("csv") => &|cover, out| out.write_all(cover::table(cover, Each::File, None).to_csv().as_bytes()),
        _ => bail!(
            "{}: the suffix picks the format of coverage: .info (lcov), .xml (Cobertura), .json (gcov), .llvm.json, .csv",
            output.display()
        ),
    };
    let (cover, account) = load_and_complain(input, from, progress)?;
    if output.to_string_lossy().starts_with("-.") {
        write(&cover, out)?;
        return judge_own(strict, &[(input, &account)], Outcome::Done, progress);
    }
    let name = || output.display().to_string();
    let mut file = BufWriter::new(std::fs::File::create(output).with_context(name)?);
    write(&cover, &mut file).and_then(|()| file.flush()).with_context(name)?;
    progress.say(&format!("wrote {}", output.display()));
    judge_own(strict, &[(input, &account)], Outcome::Done, progress)
}

/// When counters were recorded, as the run says, or else the file.
fn recorded(input: &Path) -> SystemTime {
    let counters = input.join("streams/gcov").join(AFTER);
    let place = if counters.exists() { &counters } else { input };
    std::fs::metadata(place).and_then(|file| file.modified()).unwrap_or(UNIX_EPOCH)
}

type WriteSamples = fn(&Profile, &mut dyn Write) -> std::io::Result<()>;

/// How `export` is to write what ran for a compiler that takes samples, if that is meant.
pub fn samples(output: &Path) -> Option<WriteSamples> {
    match output.extension()?.to_str()? {
        "afdo" => Some(sampled::gcc),
        "prof" => Some(sampled::llvm),
        _ => None,
    }
}

/// `kprism export -o FILE.afdo`, `FILE.prof`.
pub fn write_samples(
    input: &Path,
    (from, who): Asked<'_>,
    output: &Path,
    write: WriteSamples,
    progress: &Progress,
) -> Result<Outcome> {
    let (profile, problems) = kprism_session::flow_cover::sampled(input, &from.debug, who, progress)?;
    complain(&problems);
    let name = || output.display().to_string();
    let mut file = BufWriter::new(std::fs::File::create(output).with_context(name)?);
    write(&profile, &mut file).and_then(|()| file.flush()).with_context(name)?;
    let option = if output.extension().is_some_and(|s| s == "afdo") {
        "gcc takes it with -fauto-profile"
    } else {
        "clang takes it with -fprofile-sample-use"
    };
    progress.say(&format!("wrote {}: {} functions; {option}={}", name(), profile.functions.len(), name()));
    Ok(Outcome::Done)
}

/// `kprism export -o FOLDER.gcda`: what gcc takes with `-fprofile-use`.
pub fn write_profile(
    input: &Path,
    from: &Options,
    relative: bool,
    folder: &Path,
    progress: &Progress,
) -> Result<Outcome> {
    let written = profile_use::write(input, from, relative, folder, progress)?;
    complain(&written.problems);
    if written.torn > 0 {
        progress.say(&format!(
            "kprism: note: {} counters were negative (torn: several CPUs changed them at once), and are 0 in the profile",
            written.torn
        ));
    }
    if let Some(first) = written.damaged.first() {
        progress.say(&format!(
            "kprism: note: {} objects have functions without counters or without notes, the first: {first}; `kprism report \
             cover` counts them",
            written.damaged.len()
        ));
    }
    let prefix = written.root.map(|root| format!(" -fprofile-prefix-path={root}")).unwrap_or_default();
    let place = folder.canonicalize().with_context(|| folder.display().to_string())?;
    progress.say(&format!(
        "wrote {}: {} files; gcc takes them with -fprofile-use={}{prefix}",
        folder.display(),
        written.files,
        place.display()
    ));
    Ok(Outcome::Done)
}

/// `kprism diff` of two runs with coverage.
pub fn compare(
    old: &Path,
    new: &Path,
    from: Asked<'_>,
    view: &View<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let paths = (old, new);
    let (old, of_old) = load_and_complain(old, from, progress)?;
    let (new, of_new) = load_and_complain(new, from, progress)?;
    let accounts = [(paths.0, &of_old), (paths.1, &of_new)];
    let changes = diff::changes(&old, &new, view.path);
    let gained: usize = changes.values().map(|change| change.gained.len()).sum();
    let lost: usize = changes.values().map(|change| change.lost.len()).sum();
    let table = diff::table(&changes);
    let (before, after) = (old.totals(), new.totals());
    if view.json {
        let value = json!({
            "old": cover::summary_json(&before), "new": cover::summary_json(&after),
            "gained": gained, "lost": lost,
        });
        let outcome = show(table, view, value, out)?;
        return judge_own(view.strict, &accounts, outcome, progress);
    }
    writeln!(
        out,
        "lines executed: {} before, {} after; {gained} gained, {lost} lost, in {} files\n",
        before.lines.hit,
        after.lines.hit,
        changes.len()
    )?;
    let outcome = show(table, view, json!({}), out)?;
    judge_own(view.strict, &accounts, outcome, progress)
}

/// `kprism diff --patch`: what was executed of the lines a patch adds.
pub fn patch(
    input: &Path,
    patch: &Path,
    from: Asked<'_>,
    view: &View<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let text = match patch.to_str() {
        Some("-") => {
            let mut text = Vec::new();
            std::io::stdin().lock().read_to_end(&mut text).context("standard input")?;
            text
        }
        _ => std::fs::read(patch).with_context(|| patch.display().to_string())?,
    };
    let added = diff::added(&String::from_utf8_lossy(&text));
    if added.is_empty() {
        bail!("{}: not a unified diff that adds lines (git diff, diff -u)", patch.display());
    }
    let (cover, account) = load_and_complain(input, from, progress)?;
    let found = diff::found(&cover, &added, view.path);
    let totals = diff::patch_totals(&found);
    let mut value = json!({});
    if view.json {
        value["totals"] = totals.to_json();
    } else if !found.is_empty() {
        writeln!(out, "{}\n", totals.to_text())?;
    }
    let outcome = show(diff::patch_table(&found), view, value, out)?;
    judge_own(view.strict, &[(input, &account)], outcome, progress)
}

fn show(
    mut table: Table,
    view: &View<'_>,
    mut value: serde_json::Value,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if let Some(key) = view.sort {
        table.sort_by(key)?;
    }
    let outcome = if table.rows.is_empty() { Outcome::NothingMatched } else { Outcome::Done };
    let limit = view.limit.unwrap_or(0);
    if limit > 0 {
        table.limit(limit);
    }
    if view.json {
        value["rows"] = table.to_json();
        print_json(&value, out)?;
    } else {
        diff::shorten(&mut table);
        write!(out, "{}", table.to_text(view.style))?;
    }
    Ok(outcome)
}
