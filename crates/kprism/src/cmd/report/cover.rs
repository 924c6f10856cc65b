// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report cover`: tables of folders, files and functions with the lines and branches that were executed. The lines
//! themselves: `cmd/cover_annotate.rs`, and with `--html` `view/report/src/cover/page.rs`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_report::cover::{self, Each, compare, page};
use kprism_report::header::{account_text, head};
use kprism_session::Progress;
use kprism_session::cover::sources::{Remarks, Texts};
use kprism_session::cover::{Compared, Loaded, NEVER_RAN, Options, Part, Windows, load_and_tell};
use kprism_store::Fate;
use serde_json::json;

use crate::cmd::cover::{View, no_match, notes};
use crate::cmd::cover_args::{CallArgs, CoverageArgs};
use crate::cmd::output::{Io, OutputArgs, ROWS, Select, Shown, print_json, write_file};
use crate::cmd::strict::{StrictArgs, judge_own};
use crate::exit::Outcome;
use crate::given::Given;

/// Options of `kprism report cover`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder, file or pattern of paths
    #[arg(value_name = "PATH")]
    path: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    one: CallArgs,
    /// Write the annotated sources as one HTML file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sort", "limit", "json", "csv", "each", "compare"])]
    html: Option<PathBuf>,
    #[command(flatten)]
    from: CoverageArgs,
    /// A row for each folder, file or function
    #[arg(long, value_enum, value_name = "WHAT", help_heading = "Coverage")]
    each: Option<EachArg>,
    /// Compare gcov's counters with the flow of the same run, line by line, with the reasons of differences
    #[arg(long, help_heading = "Coverage")]
    compare: bool,
}

/// The subject of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum EachArg {
    /// A folder, with all below it
    Dir,
    /// A source file
    File,
    /// A function
    Function,
    /// A run, of those put together with --merge
    Run,
}

/// Options of every view, and of tables and comparisons.
const FROM: &str = "path source_dir source_prefix build_dir vmlinux module_file debug_dir";
const COUNTED: &str = "pids comms syscall func call since_boot by_flow merge";
const TABLE: &str = "sort limit json csv";

/// Shows it.
pub fn run(args: &Args, given: &Given, strict: StrictArgs, io: &mut Io<'_>) -> Result<Outcome> {
    match (&args.html, args.compare) {
        (Some(_), _) => given.only("`report cover --html`", &[FROM, COUNTED, "html"])?,
        // The comparison is of everything in the window.
        (None, true) => given.only("`report cover --compare`", &[FROM, TABLE, "compare"])?,
        (None, false) => given.only("`report cover`", &[FROM, COUNTED, TABLE, "each"])?,
    }
    args.from.check(given, &[io.input], args.compare)?;
    let path = args.path.as_deref();
    let call = args.one.is_given().then(|| args.one.call());
    let who = Part { filter: args.select.filter(), call };
    if let Some(file) = &args.html {
        return write_html(io.input, args, &who, (path, file, strict), io.progress);
    }
    let shown = args.output.shown(ROWS, io.style);
    report(io.input, args, &who, &View { path, shown, strict }, io.progress, io.out)
}

/// `kprism report cover --html`.
fn write_html(
    input: &Path,
    args: &Args,
    who: &Part,
    (path, file, strict): (Option<&str>, &Path, StrictArgs),
    progress: &Progress,
) -> Result<Outcome> {
    let from = Options { shows_text: true, ..args.from.options() };
    let mut loaded = load_and_tell(input, &from, who, progress)?;
    progress.step("writing the page");
    let texts = Texts::new(from.source_dir.as_deref(), &loaded.built);
    let mut title =
        path.map_or_else(|| input.display().to_string(), |path| format!("{}: {path}", input.display()));
    loaded.windows_texts().iter().for_each(|text| title += &format!(" ({text})"));
    let page =
        page::render(&loaded.cover, loaded.runs.as_ref(), path, (&title, &loaded.account), &|source| {
            texts.text(source)
        })
        .context("HTML page")?;
    progress.clear();
    if page.files == 0 {
        no_match(path, progress);
        return judge_own(strict, &[(input, &loaded.account)], Outcome::NothingMatched, progress);
    }
    let Remarks { changed, short } = texts.into_remarks();
    notes(&changed, progress);
    notes(&short, progress);
    loaded.count_changed(changed);
    if page.without_source > 0 {
        progress.note(&format!(
            "{} of {} source files could not be read; --source-dir names their folder",
            page.without_source, page.files
        ));
    }
    write_file(file, page.html, progress)?;
    judge_own(strict, &[(input, &loaded.account)], Outcome::Done, progress)
}

/// `kprism report cover`.
fn report(
    input: &Path,
    args: &Args,
    who: &Part,
    view: &View<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if args.compare {
        return counters_and_flow(input, &args.from.options(), view, progress, out);
    }
    let from = args.from.options();
    from.refuse_source_dir(input)?;
    let loaded = load_and_tell(input, &from, who, progress)?;
    let windows = loaded.windows_texts();
    let Loaded { cover, runs, account, windows: in_windows, .. } = loaded;
    let (sources, totals) = cover::chosen(&cover, view.path);
    let mut table = match (args.each, &runs) {
        (None | Some(EachArg::Dir), _) => cover::table(&cover, Each::Folder, view.path),
        (Some(EachArg::File), _) => cover::table(&cover, Each::File, view.path),
        (Some(EachArg::Function), _) => cover::table(&cover, Each::Function, view.path),
        (Some(EachArg::Run), Some(runs)) => cover::runs_table(&cover, runs, view.path),
        (Some(EachArg::Run), None) => bail!("--each run needs several runs: add one with --merge RUN"),
    };
    view.shown.arrange(&mut table)?;
    if view.shown.json {
        let mut value = cover::to_json(&cover, sources.len(), &totals, &table, &account);
        if !in_windows.is_empty() {
            let of = |(run, windows): &(Option<String>, Windows)| {
                let mut value = json!(windows);
                value["run"] = json!(run);
                value
            };
            value["windows"] = in_windows.iter().map(of).collect();
        }
        print_json(&value, out)?;
    } else if view.shown.csv {
        out.write_all(table.to_csv().as_bytes())?;
    } else {
        if matches!(args.each, None | Some(EachArg::Dir | EachArg::File)) {
            table.select(&cover::SHOWN);
        }
        let never = account.count(Fate::Kept, NEVER_RAN).unwrap_or(0);
        let header = cover::header(&cover, never, sources.len(), &totals);
        windows.iter().try_for_each(|text| writeln!(out, "{text}"))?;
        write!(
            out,
            "{}{header}\n{}",
            head(Some(&account), view.shown.style),
            table.to_text(view.shown.style)
        )?;
        write!(out, "{}", account_text(Some(&account), view.shown.style))?;
    }
    let outcome = if sources.is_empty() { Outcome::NothingMatched } else { Outcome::Done };
    if sources.is_empty() {
        no_match(view.path, progress);
    }
    judge_own(view.strict, &[(input, &account)], outcome, progress)
}

/// `kprism report cover --compare`.
fn counters_and_flow(
    input: &Path,
    from: &Options,
    view: &View<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let Compared { files, counters, flow } = kprism_session::cover::compare(
        input,
        from,
        &|cover, path| cover::takes_source(cover, view.path, path),
        progress,
    )?;
    let accounts = [(input, &counters), (input, &flow)];
    if files.is_empty() {
        no_match(view.path, progress);
        return judge_own(view.strict, &accounts, Outcome::NothingMatched, progress);
    }
    let mut table = compare::table(&files);
    Shown { sort: view.shown.sort.or(Some("lines")), ..view.shown }.arrange(&mut table)?;
    if view.shown.json {
        let mut value = compare::to_json(&files, &table);
        value["run"] = json!({"counters": {"account": counters}, "flow": {"account": flow}});
        print_json(&value, out)?;
    } else if view.shown.csv {
        out.write_all(table.to_csv().as_bytes())?;
    } else {
        for (whose, account) in [("counters", &counters), ("flow", &flow)] {
            write!(out, "{whose}: {}", head(Some(account), view.shown.style))?;
        }
        write!(out, "{}\n{}", compare::summary(&compare::total(&files)), table.to_text(view.shown.style))?;
        if let [file] = &files[..] {
            write!(out, "\n{}", compare::lines(file))?;
        }
    }
    judge_own(view.strict, &accounts, Outcome::Done, progress)
}
