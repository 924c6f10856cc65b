// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report`: tables, the call tree, the HTML report.

use std::io::{IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_profile::Filter;
use kprism_profile::Profile;
use kprism_report::calltree::{self, Options, Weight};
use kprism_report::header::Header;
use kprism_report::html::{self, Budget};
use kprism_report::{Style, Table, deltas, tables, tree};
use kprism_store::{Instrument, Manifest, Run};
use serde_json::json;

use super::cover::{self, CoverArgs};
use super::cover_args::CallArgs;
use super::delta::{self, DeltaArgs};
use super::func::{self, FuncArgs};
use super::probe;
use super::record;
use super::shown::Shown;
use super::strict::StrictArgs;
use super::tlb;
use crate::exit::Outcome;
use crate::given::Given;
use kprism_session::Progress;
use kprism_session::flow;
use kprism_session::held;

/// Options of `kprism report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to show; an overview if not given
    #[arg(value_enum)]
    pub subject: Option<Subject>,
    /// Which of the intervals, for `delta`; which view, for `tlb`; for `cover`, a folder, file or pattern of paths
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Run folder
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub input: PathBuf,
    #[command(flatten)]
    pub strict: StrictArgs,
    /// Write the report as one HTML file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "pids", "comms", "parts"])]
    pub html: Option<PathBuf>,
    /// Sort by this column, from large to small; `-COLUMN` turns it round
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// Show no more than this many rows (40, or 12 of each list of `delta`); 0 shows all
    #[arg(long, value_name = "ROWS")]
    pub limit: Option<usize>,
    #[command(flatten)]
    pub select: Select,
    #[command(flatten)]
    pub one: CallArgs,
    /// For `tlb counters`: a processor's own counts, as `perf stat -x, -o FILE` writes them
    #[arg(long, value_name = "FILE")]
    pub counters: Option<PathBuf>,
    /// For `syscalls`: split the time into entry, body, interrupts, off CPU and exit
    #[arg(long)]
    pub parts: bool,
    /// Weigh the tree by instructions or by time on a CPU
    #[arg(long, value_enum, default_value_t = By::Instructions)]
    pub by: By,
    /// Fold branches of the tree below this share
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub min_percent: f64,
    /// Show no more than this many levels of the tree
    #[arg(long, value_name = "LEVELS", default_value_t = 40)]
    pub depth: usize,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub delta: DeltaArgs,
    #[command(flatten)]
    pub func: FuncArgs,
    #[command(flatten)]
    pub cover: CoverArgs,
}

/// Rows of a table unless told otherwise.
const ROWS: usize = 40;

impl Args {
    /// How tables are shown, with so many rows unless told otherwise.
    fn shown(&self, rows: usize, style: Style) -> Shown<'_> {
        let rows = self.limit.unwrap_or(rows);
        Shown { sort: self.sort.as_deref(), rows, json: self.json, csv: self.delta.csv, style }
    }

    fn limit(&self) -> usize {
        self.limit.unwrap_or(ROWS)
    }
}

/// Which tasks to take.
#[derive(Debug, clap::Args)]
pub struct Select {
    /// Only this process or thread id (can be repeated)
    #[arg(long = "task", value_name = "PID")]
    pub pids: Vec<u32>,
    /// Only tasks of this name, `*` and `?` allowed (can be repeated)
    #[arg(long = "comm", value_name = "GLOB")]
    pub comms: Vec<String>,
}

impl Select {
    /// As the views want it.
    pub fn filter(&self) -> Filter {
        Filter { pids: self.pids.clone(), comms: self.comms.clone() }
    }
}

/// Rows of each table of a boot, unless others are asked for.
const BOOT_ROWS: usize = 12;

/// Rows of each list of the overview of TLB misses, unless others are asked for.
const OVERVIEW_ROWS: usize = 12;

/// Rows of each list about one kind of interval, unless fewer are asked for.
const DELTA_ROWS: usize = 12;

/// A view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Subject {
    /// Durations of functions: count, total, self, off the CPU, in interrupts, percentiles
    Func,
    /// Calls, instructions and time of every function
    Functions,
    /// Count and latency of every system call
    Syscalls,
    /// Call stacks, weighted
    Tree,
    /// Instructions and time of every task
    Tasks,
    /// Places that could not be decoded
    Errors,
    /// TLB misses: by `objects`, `functions`, `processes`, `threads`, `pages`, their `distribution`, `advice`, `counters`
    Tlb,
    /// Intervals between markers: interrupts off, preemption off, or what --from and --to say
    Delta,
    /// Records of probes: what was collected, hit, lost
    Probe,
    /// A traced boot: initcalls and long functions
    Boot,
    /// Source lines, functions and branches executed: of a kernel with gcov, or from the flow by debug information
    Cover,
}

/// What a tree is weighted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// Retired instructions
    Instructions,
    /// Time on a CPU
    Time,
}

impl From<By> for Weight {
    fn from(by: By) -> Self {
        match by {
            By::Instructions => Weight::Instructions,
            By::Time => Weight::Time,
        }
    }
}

/// The table of a subject; the tree is none.
pub fn table(subject: Subject, profile: &Profile, filter: &Filter) -> Option<Table> {
    match subject {
        Subject::Functions => Some(tables::functions(profile, filter)),
        Subject::Syscalls => Some(tables::syscalls(profile, filter)),
        Subject::Tasks => Some(tables::tasks(profile, filter)),
        Subject::Errors => Some(tables::errors(profile)),
        Subject::Delta => Some(deltas::summary(profile)),
        Subject::Tree | Subject::Boot | Subject::Cover | Subject::Func | Subject::Probe | Subject::Tlb => {
            None
        }
    }
}

/// Shows it.
pub fn run(
    args: &Args,
    given: &Given,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let style = Style { color: wants_color(color) };
    if args.subject == Some(Subject::Boot) {
        given.only("`report boot`", &["subject", "input", "html", "json", "limit"])?;
        let (input, html) = (args.input.as_path(), args.html.as_deref());
        let limit = args.limit.unwrap_or(BOOT_ROWS);
        let shown = record::ShownBoot { input, html, json: args.json, limit, style };
        return record::report_boot(&shown, progress, out);
    }
    if args.subject == Some(Subject::Cover) {
        match (&args.html, args.cover.compare) {
            (Some(_), _) => given.only("`report cover --html`", &[COVER, "html"])?,
            (None, true) => given.only("`report cover --compare`", &[COMPARE])?,
            (None, false) => given.only("`report cover`", &[COVER, COVER_TABLE])?,
        }
        args.cover.from.check(given, &[&args.input], args.cover.compare)?;
        let path = args.name.as_deref();
        let shown = args.shown(if args.json { 0 } else { ROWS }, style);
        let view = cover::View { path, shown, strict: args.strict };
        let call = args.one.syscall.is_some().then(|| args.one.call());
        let who = kprism_session::cover::Part { filter: args.select.filter(), call };
        if let Some(file) = &args.html {
            return cover::write_html(&args.input, &args.cover, &who, (path, file, args.strict), progress);
        }
        return cover::report(&args.input, &args.cover, &who, &view, progress, out);
    }
    if args.subject == Some(Subject::Delta) {
        given.only("`report delta`", &[DELTA])?;
        needs_a_flow(&args.input)?;
        let what = (args.name.as_deref(), args.html.as_deref());
        return delta::run(&args.input, &args.delta, what, &args.shown(DELTA_ROWS, style), progress, out);
    }
    let of_func = args.subject == Some(Subject::Func);
    let holds_durations = || Ok::<_, anyhow::Error>(Run::open(&args.input)?.holds(Instrument::Durations));
    // One page holds every view of durations; a flow's has more than those.
    let page = args.html.is_some() && of_func && holds_durations()?;
    if page {
        given.only("`report func --html`, which writes every view", &["subject", "input", "html"])?;
    }
    if args.html.is_some() && of_func && !page {
        bail!("--html writes all views of a flow: leave the subject away");
    }
    if (of_func && !page)
        || (args.html.is_none() && (args.subject.is_none() || args.func.is_given()) && holds_durations()?)
    {
        match args.func.tree {
            true => given.only("`report func --tree`", &[FUNC_TREE])?,
            false => given.only("`report func`", &[FUNC])?,
        }
        let tree = Options { weight: Weight::Time, min_percent: args.min_percent, max_depth: args.depth };
        // A file for other tools is whole unless told otherwise.
        let rows = if args.func.ftd || args.delta.csv { 0 } else { ROWS };
        let (which, shown) = ((&args.select.filter(), tree), args.shown(rows, style));
        return func::run(&Run::open(&args.input)?, &args.func, which, &shown, progress, out);
    }
    let holds_records = || Ok::<_, anyhow::Error>(Run::open(&args.input)?.holds(Instrument::Probe));
    if args.subject == Some(Subject::Probe) || (args.subject.is_none() && holds_records()?) {
        given.only("`report probe`", &["subject", "input", "limit", "pids", "json", "csv"])?;
        let run = Run::open(&args.input)?;
        return probe::report(&run, &args.select.pids, &args.shown(ROWS, style), out);
    }
    if args.subject == Some(Subject::Tlb) {
        given.only("`report tlb`", &[TLB])?;
        let view = tlb::View {
            name: args.name.as_deref(),
            select: &args.select,
            counters: args.counters.as_deref(),
        };
        let rows = if view.name.is_none() { OVERVIEW_ROWS } else { ROWS };
        return tlb::run(&args.input, &view, &args.shown(rows, style), progress, out);
    }
    if !page {
        honoured(args, given)?;
    }
    if args.html.is_none() {
        needs_a_flow(&args.input)?;
    }
    let (run, profile, manifest) = flow::open(&args.input, progress)?;
    let filter = args.select.filter();
    let profile = args.one.call().narrow(&run, profile, &filter, progress)?;
    progress.clear();
    if let Some(file) = &args.html {
        return write_html(&run, file, &manifest, &profile, progress);
    }
    if !filter.tasks(&profile).contains(&true) {
        progress.say("no task matches");
        return Ok(Outcome::NothingMatched);
    }
    let header = Header::new(&manifest, &profile);
    let Some(subject) = args.subject else {
        return overview(args, &profile, &header, style, out);
    };
    let table = match args.parts {
        true => Some(tables::syscall_parts(&profile, &filter)),
        false => table(subject, &profile, &filter),
    };
    let Some(mut table) = table else {
        return show_tree(args, &profile, &header, style, out);
    };
    let outcome = args.shown(ROWS, style).arrange(&mut table)?;
    let unlisted = match subject {
        Subject::Errors => Some(tables::unlisted(&header, &profile)),
        _ => None,
    };
    match args.json {
        true => print_json(&tables::to_json(&header, &table, unlisted), out)?,
        false => write!(out, "{}", tables::to_text(&header, &profile, &table, unlisted, style))?,
    }
    Ok(outcome)
}

/// Tables of a flow count instructions. Of a recording of durations they would hold zeros that nobody measured.
fn needs_a_flow(input: &Path) -> Result<()> {
    let run = Run::open(input)?;
    if run.holds(Instrument::Durations) { Err(held::lacks(&run, Instrument::Flow)) } else { Ok(()) }
}

/// What `report func` honours, and with `--tree`.
const FUNC: &str = "subject input sort limit json csv pids comms ftd callees callers by_task remeasured";
const FUNC_TREE: &str = "subject input limit json pids comms tree min_percent depth";
const COVER: &str = "subject name input pids comms syscall call source_dir source_prefix build_dir \
    since_boot by_flow merge vmlinux module_file debug_dir";
const DELTA: &str = "subject name input limit json html from to per nested count csv";
const COVER_TABLE: &str = "sort limit json each";
/// The comparison is of everything in the window.
const COMPARE: &str = "subject name input sort limit json compare source_dir source_prefix build_dir \
    vmlinux module_file debug_dir";
const TLB: &str = "subject name input limit sort pids comms counters json csv";

/// Refuses options that the views of a flow would ignore.
fn honoured(args: &Args, given: &Given) -> Result<()> {
    const ONE: &str = "subject input syscall call";
    let view = |subject: &str, more: &str| given.only(subject, &[ONE, more]);
    if args.html.is_some() {
        return match args.subject {
            None => view("--html", "html"),
            Some(_) => bail!(
                "--html writes all views: leave the subject away, or use it with `cover`, `delta`, `boot`"
            ),
        };
    }
    match args.subject {
        None => view("the overview", "limit pids comms json"),
        Some(Subject::Syscalls) => view("`report syscalls`", "sort limit pids comms json parts"),
        // Errors are a stream's, not a task's.
        Some(Subject::Errors) => given.only("`report errors`", &["subject input sort limit json"]),
        Some(Subject::Tree) if args.json => {
            view("`report tree --json`", "pids comms json by min_percent depth")
        }
        Some(Subject::Tree) => view("`report tree`", "limit pids comms by min_percent depth"),
        Some(Subject::Functions) => view("`report functions`", "sort limit pids comms json"),
        Some(Subject::Tasks) => view("`report tasks`", "sort limit pids comms json"),
        // Shown by commands of their own.
        Some(
            Subject::Boot | Subject::Cover | Subject::Delta | Subject::Func | Subject::Probe | Subject::Tlb,
        ) => Ok(()),
    }
}

/// The report as a page.
pub fn html(run: &Run, manifest: &Manifest, profile: &Profile) -> Result<String> {
    let budget = Budget::default();
    let page = match run.holds(Instrument::Durations) {
        true => {
            let times = kprism_store::load_times(run, profile)?;
            html::render_durations(manifest, profile, &times, &budget)
        }
        false => html::render(manifest, profile, &budget),
    };
    page.context("HTML report")
}

/// Writes the report as one file.
pub fn write_html(
    run: &Run,
    file: &Path,
    manifest: &Manifest,
    profile: &Profile,
    progress: &Progress,
) -> Result<Outcome> {
    let page = html(run, manifest, profile)?;
    std::fs::write(file, page).with_context(|| file.display().to_string())?;
    progress.say(&format!("wrote {}", file.display()));
    Ok(Outcome::Done)
}

/// Header and the top of the main tables.
fn overview(
    args: &Args,
    profile: &Profile,
    header: &Header,
    style: Style,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if args.sort.is_some() {
        bail!("--sort needs a table: functions, syscalls, tasks or errors");
    }
    let filter = args.select.filter();
    let tables = tables::overview(profile, &filter, args.limit());
    match args.json {
        true => print_json(&tables::overview_json(header, &tables), out)?,
        false => write!(out, "{}", tables::overview_text(header, profile, &tables, style))?,
    }
    Ok(Outcome::Done)
}

fn show_tree(
    args: &Args,
    profile: &Profile,
    header: &Header,
    style: Style,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if args.sort.is_some() {
        bail!("the tree is sorted by its weight: choose it with --by");
    }
    let tree = tree::by_comm(profile, &args.select.filter());
    let options = Options { weight: args.by.into(), min_percent: args.min_percent, max_depth: args.depth };
    if args.json {
        let value = json!({"run": header.to_json(), "tree": calltree::to_json(profile, &tree, &options)});
        print_json(&value, out)?;
        return Ok(Outcome::Done);
    }
    let text = calltree::to_text(profile, &tree, &options, style);
    writeln!(out, "{}", header.to_text(profile, style))?;
    write!(out, "{}", calltree::limited(&text, args.limit(), style))?;
    write!(out, "\n{}", header.account_text(style))?;
    Ok(Outcome::Done)
}

/// Prints it, indented.
pub fn print_json(value: &impl serde::Serialize, out: &mut dyn Write) -> Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    Ok(writeln!(out)?)
}

/// Colour goes to terminals only, and not where `NO_COLOR` asks for none (<https://no-color.org>).
pub fn wants_color(choice: clap::ColorChoice) -> bool {
    match choice {
        clap::ColorChoice::Always => true,
        clap::ColorChoice::Never => false,
        clap::ColorChoice::Auto => {
            let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
            !refused && std::io::stdout().is_terminal()
        }
    }
}
