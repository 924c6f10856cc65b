// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report`: tables, the call tree, the HTML report. Each subject is a file with its options and one function.

pub mod boot;
pub mod cover;
pub mod delta;
pub mod durations;
pub mod flow;
pub mod probe;
pub mod tests;
pub mod tlb;
pub mod vms;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use kprism_export::report_page_with;
use kprism_export::sources::{Wanted, annotated};
use kprism_profile::Profile;
use kprism_report::tables;
use kprism_script::annotate::Places;
use kprism_session::Progress;
use kprism_signals::Second;
use kprism_store::{Instrument, Run};

use super::cover_args::{CallArgs, PlaceArgs};
use super::output::{FormArgs, Io, ROWS, Select, print_json, style, write_file};
use super::strict::StrictArgs;
use crate::exit::Outcome;
use crate::given::Given;

/// Options of `kprism report`.
#[derive(Debug, clap::Args)]
#[command(subcommand_value_name = "SUBJECT", subcommand_help_heading = "Subjects")]
pub struct Args {
    #[command(subcommand)]
    subject: Option<Subject>,
    /// Run folder
    #[arg(short, long, global = true, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub input: PathBuf,
    #[command(flatten)]
    pub strict: StrictArgs,
    /// Write the whole report as one HTML file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv", "limit", "pids", "comms"])]
    html: Option<PathBuf>,
    /// Put source lines and instructions of the N hottest functions into the page, with counts
    #[arg(
        long,
        value_name = "N",
        requires = "html",
        conflicts_with_all = ["syscall", "func"],
        help_heading = "Source beside the flow"
    )]
    source: Option<usize>,
    /// The same of this function: NAME, NAME@MODULE, 0x…; `*` and `?` allowed (can be repeated)
    #[arg(
        long,
        value_name = "FUNC",
        requires = "html",
        conflicts_with_all = ["syscall", "func"],
        help_heading = "Source beside the flow"
    )]
    annotate: Vec<String>,
    #[command(flatten)]
    places: PlaceArgs,
    #[command(flatten)]
    form: FormArgs,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    one: CallArgs,
}

/// A view; without one, an overview of what the run holds.
#[derive(Debug, clap::Subcommand)]
enum Subject {
    /// Calls, instructions and time of every function of a flow
    Functions(flow::TableArgs),
    /// Count and latency of every system call
    Syscalls(flow::SyscallArgs),
    /// Call stacks, weighted
    Tree(flow::TreeArgs),
    /// Instructions and time of every task
    Tasks(flow::TableArgs),
    /// Places that could not be decoded
    Errors(flow::ErrorArgs),
    /// Durations of functions: count, total, self, off the CPU, in interrupts, percentiles
    #[command(alias = "func")]
    Durations(durations::Args),
    /// TLB misses: whose memory, which code, what larger pages would save
    Tlb(tlb::Args),
    /// Intervals between markers: interrupts off, preemption off, or what --from and --to say
    Delta(delta::Args),
    /// Records of probes: what was collected, hit, lost
    Probe(probe::Args),
    /// A traced boot: initcalls and long functions
    Boot(boot::Args),
    /// Virtual machines of a host's recording: entries, exits and time of each virtual CPU
    Vms(vms::Args),
    /// Source lines, functions and branches executed: of a kernel with gcov, or from the flow by debug information
    Cover(Box<cover::Args>),
    /// The kernel's own tests: result, instructions, time, coverage of each
    Tests(tests::TestsArgs),
}

/// Shows it.
pub fn run(
    args: &Args,
    given: &Given,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let io = &mut Io { input: &args.input, style: style(color, progress), progress, out };
    match &args.subject {
        None => whole(args, given, io),
        Some(Subject::Functions(args)) => flow::functions(args, io),
        Some(Subject::Syscalls(args)) => flow::syscalls(args, io),
        Some(Subject::Tree(args)) => flow::tree(args, io),
        Some(Subject::Tasks(args)) => flow::tasks(args, io),
        Some(Subject::Errors(args)) => flow::errors(args, io),
        Some(Subject::Durations(args)) => durations::run(args, given, io),
        Some(Subject::Tlb(of)) => tlb::run(of, args.strict, io),
        Some(Subject::Delta(args)) => delta::run(args, io),
        Some(Subject::Probe(args)) => probe::run(args, io),
        Some(Subject::Boot(args)) => boot::run(args, io),
        Some(Subject::Vms(args)) => vms::run(args, io),
        Some(Subject::Cover(of)) => cover::run(of, given, args.strict, io),
        Some(Subject::Tests(of)) => tests::run(of, args.strict, io),
    }
}

/// The report as a page, or an overview of what the run holds.
fn whole(args: &Args, given: &Given, io: &mut Io<'_>) -> Result<Outcome> {
    if let Some(file) = &args.html {
        let of_call = args.one.is_given();
        if let Some(instrument) = kprism_export::pages::other(&Run::open(io.input)?).filter(|_| !of_call) {
            given.only("the page of this run", &["html"])?;
            let page = kprism_export::pages::of(io.input, instrument, io.progress)?;
            write_file(file, page, io.progress)?;
            return Ok(Outcome::Done);
        }
        let (run, profile, manifest) = kprism_session::open_profile(io.input, io.progress)?;
        let profile = args.one.call().narrow(&run, profile, &args.select.filter(), io.progress)?;
        let sources = sources(args, given, &run, &profile, io.progress)?;
        io.progress.clear();
        write_file(file, report_page_with(&run, &manifest, &profile, sources, io.progress)?, io.progress)?;
        return Ok(Outcome::Done);
    }
    given.none_of("a report in the terminal", &PLACES)?;
    let run = Run::open(io.input)?;
    let shown = args.form.shown(ROWS, io.style);
    if run.holds(Instrument::Durations) {
        given.only("the overview of durations", &["limit json csv pids comms"])?;
        let (view, filter) = (kprism_export::durations::View::Functions, args.select.filter());
        let empty = kprism_export::durations::show(&run, &view, &filter, &shown, io.progress, io.out)?;
        return Ok(Outcome::of_rows(empty));
    }
    if run.holds(Instrument::Probe) {
        given.only("the overview of probes", &["limit json csv pids"])?;
        let empty = kprism_export::probes::show(&run, &args.select.pids, &shown, io.progress, io.out)?;
        return Ok(Outcome::of_rows(empty));
    }
    if shown.csv {
        bail!("--csv needs a table: functions, syscalls, tasks or errors");
    }
    let filter = args.select.filter();
    let Some((profile, header)) = flow::open(&filter, &args.one, io)? else {
        return Ok(Outcome::NothingMatched);
    };
    let tables = tables::overview(&profile, &filter, args.form.limit.or(shown.json.then_some(0)));
    match shown.json {
        true => print_json(&tables::overview_json(&header, &tables), io.out)?,
        false => write!(io.out, "{}", tables::overview_text(&header, &profile, &tables, io.style))?,
    }
    Ok(Outcome::Done)
}

/// Options that say where sources and debug information are.
const PLACES: [&str; 3] = ["source_dir", "vmlinux", "debug_dir"];

/// The annotated functions that the page is to hold.
fn sources(
    args: &Args,
    given: &Given,
    run: &Run,
    profile: &Profile,
    progress: &Progress,
) -> Result<Vec<serde_json::Value>> {
    let wanted = Wanted { hottest: args.source.unwrap_or(0), named: &args.annotate };
    if wanted.is_empty() {
        given.none_of("a page without --source or --annotate", &PLACES)?;
        return Ok(Vec::new());
    }
    if run.holds(Instrument::Durations) {
        given.none_of("a run of durations", &["source", "annotate"])?;
    }
    kprism_signals::catch(Second::EndsProcess)?;
    let places = Places { debug: args.places.files()?, source_dir: args.places.source_dir.as_deref() };
    annotated(run, profile, &wanted, &places, &kprism_signals::end_requested, progress)
}
