// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism diff`: two runs, one against the other.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_export::compare;
use kprism_profile::{Counts, Profile};
use kprism_report::calltree::Weight;
use kprism_report::compared::Comparison;
use kprism_report::diff::{self, Diff, Scale, Within};
use kprism_report::environment::{Compared, unknown};
use kprism_report::header::{Header, conditions, head};
use kprism_report::{Style, boot, durations, html, shape};
use kprism_store::{Instrument, Manifest, Run};
use serde_json::json;

use super::cover;
use super::cover_args::COVERAGE;
use super::output::{Select, Shown, default_rows, print_json, style, words, write_file};
use super::strict::StrictArgs;
use crate::exit::Outcome;
use crate::given::Given;
use kprism_session::call::{Call, Which};
use kprism_session::{Progress, open_profile};

const AFTER_HELP: &str = "\
What a tracer does to mmap():
  kprism lab run -o plain  -- ls /bin
  kprism lab run -o traced --before 'echo 1 > /sys/kernel/tracing/events/enable' -- ls /bin
  kprism diff plain traced --syscall mmap --html diff.html

Functions are the same if name and module are.";

/// Options of `kprism diff`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Run folder to compare with
    pub old: PathBuf,
    /// Run folder to look at
    #[arg(required_unless_present = "patch")]
    pub new: Option<PathBuf>,
    #[command(flatten)]
    pub strict: StrictArgs,
    /// Only what this system call does, averages per call
    #[arg(long, value_name = "NAME", conflicts_with = "function", group = "callee")]
    pub syscall: Option<String>,
    /// Only what this function does, averages per call
    #[arg(long, value_name = "NAME", group = "callee")]
    pub function: Option<String>,
    /// Of --syscall or --function: one call in each run: `slowest`, `median`, `fastest`, or its number, from 1
    #[arg(long, value_name = "WHICH", requires = "callee", conflicts_with = "sums")]
    pub call: Option<Which>,
    /// Sums instead of averages per call
    #[arg(long)]
    pub sums: bool,
    #[command(flatten)]
    pub select: Select,
    /// Compare instructions, or time on a CPU (of durations it is always time)
    #[arg(long, value_parser = words(Weight::ALL))]
    pub by: Option<Weight>,
    /// Sort functions by this column of the JSON; differences by their size, `-COLUMN` turns it round
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// Show no more than this many rows of each table; 0 shows all [default: 30; JSON has all]
    #[arg(long, value_name = "ROWS")]
    pub limit: Option<usize>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    /// Write the comparison as one HTML file instead: of flows both sunbursts side by side, with the tables
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "sort"])]
    pub html: Option<PathBuf>,
    /// Of one run with coverage: what was executed of the lines that this patch adds
    #[arg(long, value_name = "FILE", conflicts_with = "new", help_heading = "Coverage")]
    pub patch: Option<PathBuf>,
    /// Of runs with coverage: only this folder, file or pattern of paths
    #[arg(long, value_name = "PATH", help_heading = "Coverage")]
    pub under: Option<String>,
    /// Compare coverage of runs that hold a flow: lines that ran in one of them only
    #[arg(long = "cover", help_heading = "Coverage")]
    pub cover_lines: bool,
    #[command(flatten)]
    pub cover: super::cover_args::CoverageArgs,
}

impl Args {
    /// Rows of each table.
    fn rows(&self) -> usize {
        self.limit.unwrap_or(default_rows(self.json, 30))
    }

    /// The call that is compared, if it is a single one.
    fn one_call(&self) -> Call {
        let new = |which| Call::new(self.syscall.clone(), self.function.clone(), which);
        self.call.map(new).unwrap_or_default()
    }

    /// The runs that are read.
    pub fn runs(&self) -> Vec<&Path> {
        std::iter::once(&self.old).chain(&self.new).map(PathBuf::as_path).collect()
    }
}

/// A run opened.
struct Opened {
    profile: Profile,
    header: Header,
    /// Of a recording of durations, which counts no instructions.
    counts: Option<Counts>,
    manifest: Manifest,
}

impl Opened {
    fn header(&self, style: Style) -> String {
        match &self.counts {
            Some(counts) => durations::header(&self.header, &self.profile, counts, style),
            None => self.header.to_text(&self.profile, style),
        }
    }

    fn json(&self) -> serde_json::Value {
        match &self.counts {
            Some(counts) => durations::header_json(&self.header, counts),
            None => self.header.to_json(),
        }
    }
}

/// The amounts to compare. Of durations there are no instructions.
fn weight(args: &Args, runs: [&Opened; 2]) -> Result<Weight> {
    match (args.by, runs.map(|run| run.counts.is_some())) {
        (by, [false, false]) => Ok(by.unwrap_or(Weight::Instructions)),
        (Some(Weight::Instructions), _) => {
            bail!("--by instructions: a recording of durations counts none; compare time: --by time")
        }
        (None, [a, b]) if a != b => {
            bail!(
                "one run holds a flow of instructions, the other durations: --by time compares what both have"
            )
        }
        _ => Ok(Weight::Time),
    }
}

fn open(path: &Path, args: &Args, progress: &Progress) -> Result<Opened> {
    let (run, profile, manifest) = open_profile(path, progress)?;
    if args.call.is_some() {
        progress.clear();
        progress.say(&format!("{}:", path.display()));
    }
    let profile = args
        .one_call()
        .narrow(&run, profile, &args.select.filter(), progress)
        .with_context(|| path.display().to_string())?;
    progress.clear();
    let header = Header::new(&manifest, &profile);
    let counts = match run.holds(Instrument::Durations) {
        true => Some(kprism_store::load_times(&run, &profile)?.counts),
        false => None,
    };
    Ok(Opened { profile, header, counts, manifest })
}

/// Options of coverage, those of [`COVERAGE`] too.
const COVER: &str = "old new pids comms sort limit json under cover_lines";
const COVER_PAGE: &str = "old new pids comms html under cover_lines";
const PATCH: &str = "old patch pids comms sort limit json under";
/// Options of flows and durations, and those that a page honours.
const FLOWS: &str = "old new syscall function call sums pids comms by sort limit json";
const PAGE: &str = "old new syscall function call sums pids comms html";

/// Refuses what is no file or folder, and counters beside something else.
fn comparable(args: &Args, new: &Path) -> Result<()> {
    use kprism_session::cover::is_alone;
    for path in [&args.old, new] {
        if !path.exists() {
            bail!(
                "{}: no such file or folder; record a run with `kprism lab run` or `kprism import`",
                path.display()
            );
        }
    }
    match [args.old.as_path(), new].map(is_alone) {
        [true, false] | [false, true] if !args.cover_lines => bail!(
            "{} and {}: one holds counters of gcov, the other is a run: --cover compares the lines that they executed",
            args.old.display(),
            new.display()
        ),
        _ => Ok(()),
    }
}

/// Compares and shows it.
pub fn run(
    args: &Args,
    given: &Given,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let style = style(color, progress);
    let (path, sort) = (args.under.as_deref(), args.sort.as_deref());
    let shown = Shown { sort, rows: args.rows(), json: args.json, csv: false, style };
    let view = cover::View { path, shown, strict: args.strict };
    let who = kprism_session::cover::Part { filter: args.select.filter(), call: None };
    let asked = (&args.cover.options(), &who);
    let new = match (&args.new, &args.patch) {
        (_, Some(patch)) => {
            given.only("`diff --patch`", &[PATCH, COVERAGE])?;
            args.cover.check(given, &[&args.old], false)?;
            return cover::of_patch(&args.old, patch, asked, &view, progress, out);
        }
        (Some(new), _) => new,
        (None, None) => bail!("a second run to compare with, or --patch"),
    };
    comparable(args, new)?;
    let holds_counters =
        |path: &Path| kprism_session::cover::is_cover(path) || kprism_session::cover::is_alone(path);
    if args.cover_lines || holds_counters(&args.old) && holds_counters(new) {
        match args.html {
            Some(_) => given.only("`diff --html` of coverage", &[COVER_PAGE, COVERAGE])?,
            None => given.only("`diff` of coverage", &[COVER, COVERAGE])?,
        }
        args.cover.check(given, &[&args.old, new], false)?;
        if let Some(file) = &args.html {
            return cover::page_of_two([&args.old, new], asked, &view, file, progress);
        }
        return cover::of_two(&args.old, new, asked, &view, progress, out);
    }
    if kprism_session::boot::is_boot(&args.old) && kprism_session::boot::is_boot(new) {
        given.only("`diff` of boots", &["old new html json limit"])?;
        return diff_boots(args, new, style, progress, out);
    }
    // Options that only flows and durations honour ask for those, whatever else the runs hold.
    let of_calls =
        args.syscall.is_some() || args.function.is_some() || args.by.is_some() || args.sort.is_some();
    let instrument = match of_calls || !args.select.comms.is_empty() {
        true => Instrument::Flow,
        false => compare::instrument(&args.old, new)?,
    };
    let paths = [args.old.as_path(), new.as_path()];
    match (instrument, &args.html) {
        (Instrument::Tlb, _) => {
            given.only("`diff` of TLB misses", &["old new html json limit"])?;
            return compared(args, compare::of_misses(paths, progress)?, style, progress, out);
        }
        (Instrument::Probe, _) => {
            given.only("`diff` of probes", &["old new html json limit pids"])?;
            return compared(
                args,
                compare::of_probes(paths, &args.select.pids, progress)?,
                style,
                progress,
                out,
            );
        }
        // Of one function there is a tree of what it calls.
        (Instrument::Durations, Some(_)) => {
            given.only("`diff --html` of durations", &["old new html pids comms"])?;
            let both = compare::of_durations(paths, &args.select.filter(), progress)?;
            return compared(args, both, style, progress, out);
        }
        _ => {}
    }
    match args.html {
        Some(_) => given.only("`diff --html`", &[PAGE])?,
        None => given.only("`diff` of flows or durations", &[FLOWS])?,
    }
    let new_path = new;
    let (old, new) = (open(&args.old, args, progress)?, open(new_path, args, progress)?);
    let weight = weight(args, [&old, &new])?;
    let environment = Compared::of_runs([&old.manifest, &new.manifest]);
    let (within, name) = match (&args.syscall, &args.function) {
        (Some(name), _) => (Within::Syscall(name), name.as_str()),
        (_, Some(name)) => (Within::Function(name), name.as_str()),
        _ if args.sums => bail!("--sums needs --syscall or --function: of whole runs there are only sums"),
        _ => (Within::Everything, "all"),
    };
    let Some(diff) = Diff::new(&old.profile, &new.profile, within, &args.select.filter()) else {
        progress.say("neither run has what is to be compared");
        return Ok(Outcome::NothingMatched);
    };
    let recorded = [old.manifest.recorded(), new.manifest.recorded()];
    let accounts = [&old, &new].map(|run| run.header.account.as_ref());
    let unknown = unknown(recorded.each_ref(), accounts);
    let diff = diff.with_gaps(unknown, [&old, &new].map(|run| run.counts.is_some()));
    let scale = match diff.invocations {
        Some(calls) if !args.sums => Scale::PerCall(calls),
        _ => Scale::Sums,
    };
    if let Some(file) = &args.html {
        let paths = [args.old.display().to_string(), new_path.display().to_string()];
        let page =
            html::render_diff(&diff, scale, [&old.header, &new.header], &paths, name, Some(&environment))
                .context("HTML comparison")?;
        write_file(file, page, progress)?;
        return Ok(Outcome::Done);
    }
    let mut functions = diff::functions_table(&diff, weight, scale);
    if let Some(key) = &args.sort {
        functions.sort_by(key)?;
    }
    let frames = if args.json { usize::MAX } else { diff::FRAMES };
    let mut paths = diff::paths_table(&diff, weight, scale, frames);
    if args.rows() > 0 {
        functions.limit(args.rows());
        paths.limit(args.rows());
    }
    if args.json {
        let mut value = diff::to_json(&diff, scale, &functions, &paths);
        value["runs"] = json!({"old": old.json(), "new": new.json()});
        value["environment"] = environment.to_json();
        print_json(&value, out)?;
        return Ok(Outcome::Done);
    }
    for (side, path, run) in [("OLD", &args.old, &old), ("NEW", new_path, &new)] {
        write!(out, "{} {}: {}", style.bold(side), path.display(), run.header(style))?;
    }
    functions.select(&diff::shown(weight));
    write!(out, "{}", environment.to_text())?;
    write!(out, "\n{}", diff::to_text(&diff, name, scale, [&functions, &paths], style))?;
    Ok(Outcome::Done)
}

/// Two runs of another instrument: as a page, as JSON or as text.
fn compared(
    args: &Args,
    mut comparison: Comparison,
    style: Style,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if let Some(file) = &args.html {
        write_file(file, comparison.render().context("HTML comparison")?, progress)?;
        return Ok(Outcome::Done);
    }
    comparison.limit(args.rows());
    match args.json {
        true => print_json(&comparison.to_json(), out)?,
        false => write!(out, "{}", comparison.to_text(style))?,
    }
    Ok(Outcome::Done)
}

/// Two traced boots.
fn diff_boots(
    args: &Args,
    new: &Path,
    style: Style,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let titles = [args.old.display().to_string(), new.display().to_string()];
    let manifests = [Run::open(&args.old)?.manifest()?, Run::open(new)?.manifest()?];
    let paths = [&args.old, new];
    let (old, new) = (kprism_session::boot::load(&args.old)?, kprism_session::boot::load(new)?);
    let account = kprism_session::boot::account_of_run;
    let accounts = [account(paths[0], &old)?, account(paths[1], &new)?];
    let environment = Compared::of_runs(manifests.each_ref());
    if let Some(file) = &args.html {
        let sides = ((&old, titles[0].as_str()), (&new, titles[1].as_str()));
        let page = boot::render_two(sides.0, sides.1, accounts.each_ref().map(Some), Some(&environment))
            .context("HTML page")?;
        write_file(file, page, progress)?;
        return Ok(Outcome::Done);
    }
    let compared = kprism_boot::compare(&old, &new);
    let mut changes = boot::changes(&compared);
    if args.rows() > 0 {
        changes.limit(args.rows());
    }
    if args.json {
        let mut value = boot::compared_json(&compared, &changes);
        value["runs"] = json!({"old": shape::run(Some(&manifests[0]), Some(&accounts[0])), "new": shape::run(Some(&manifests[1]), Some(&accounts[1]))});
        value["environment"] = environment.to_json();
        print_json(&value, out)?;
    } else {
        for (side, account) in ["OLD", "NEW"].iter().zip(&accounts) {
            write!(out, "{} {}", style.bold(side), head(Some(account), style))?;
        }
        for (side, manifest) in ["OLD", "NEW"].iter().zip(&manifests) {
            let told = conditions(&manifest.conditions(None), style);
            told.lines().try_for_each(|line| writeln!(out, "{} {line}", style.bold(side)))?;
        }
        write!(out, "{}", environment.to_text())?;
        write!(out, "{}", boot::compared_text(&compared, &changes, style))?;
    }
    Ok(Outcome::Done)
}
