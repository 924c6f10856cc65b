// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism export`: a run for other tools; the file's suffix picks the format.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_profile::Filter;
use kprism_profile::Profile;
use kprism_report::calltree::{self, Options};
use kprism_report::header::Header;
use kprism_report::{folded, perfetto, pprof, tree};
use kprism_store::{Instrument, Manifest, Run, load_times};
use serde_json::json;

use super::cover_args::CallArgs;
use super::report::{By, Select, Subject, table};
use super::strict::StrictArgs;
use super::tlb;
use crate::exit::Outcome;
use crate::given::Given;
use kprism_session::Progress;
use kprism_session::flow;
use kprism_session::held;
use kprism_session::perfdata;

const AFTER_HELP: &str = "\
Formats by suffix of FILE:
  .perfetto-trace .pftrace  timeline for ui.perfetto.dev
  .folded                   call stacks for flame graph tools
  .pprof .pb.gz             pprof's profile: calls, time on a CPU; of durations, time off it and in interrupts
  .json                     the table of SUBJECT, or the tree; a view of `tlb`; what probes collected
  .csv                      the table of SUBJECT; a view of `tlb`; what probes collected
  .parquet                  what probes collected
  .ctf                      what probes collected: folder for babeltrace2, Trace Compass
  .tf                       what probes collected with --for-gdb: target tfile FILE
  .html                     the report of `kprism report --html`
  .info .xml                coverage for lcov and genhtml, Cobertura; `cover` with .json is gcov's
  .llvm.json                coverage as llvm-cov exports it
  .gcda                     folder of counters for gcc -fprofile-use=FILE
  .afdo .prof               of a flow, samples for gcc -fauto-profile=FILE, clang -fprofile-sample-use=FILE
  .perf.data                folder for perf: perf script -i FILE --symfs FILE/symfs --itrace=...

The tables of the run itself are Parquet files: RUN/tables/*.parquet";

/// Options of `kprism export`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Table to write as .json or .csv
    #[arg(value_enum, default_value_t = Subject::Functions)]
    pub subject: Subject,
    /// Which view, for `tlb`: objects (default), functions, processes, threads, pages, heat, distribution, advice
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Run folder
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub input: PathBuf,
    #[command(flatten)]
    pub strict: StrictArgs,
    /// File to write; its suffix picks the format. `-.SUFFIX` writes to standard output
    #[arg(short, long, value_name = "FILE", allow_hyphen_values = true)]
    pub output: PathBuf,
    #[command(flatten)]
    pub select: Select,
    #[command(flatten)]
    pub one: CallArgs,
    /// Weigh folded stacks by instructions, or by time on a CPU as those of durations always are
    #[arg(long, value_enum)]
    pub by: Option<By>,
    #[command(flatten)]
    pub cover: super::cover_args::CoverageArgs,
    /// Name .gcda files from the build's folder on, for gcc's -fprofile-prefix-path=BUILD (GCC 12)
    #[arg(long, help_heading = "Coverage")]
    pub relative: bool,
}

enum Format {
    Perfetto,
    Folded,
    Pprof,
    Json,
    Csv,
    Html,
}

fn format(path: &Path) -> Result<Format> {
    let suffix = path.extension().map(|s| s.to_string_lossy().to_ascii_lowercase());
    Ok(match suffix.as_deref() {
        Some("perfetto-trace" | "pftrace") => Format::Perfetto,
        Some("folded") => Format::Folded,
        Some("pprof") => Format::Pprof,
        Some("gz") if path.to_string_lossy().to_ascii_lowercase().ends_with(".pb.gz") => Format::Pprof,
        Some("json") => Format::Json,
        Some("csv") => Format::Csv,
        Some("html") => Format::Html,
        _ => bail!(
            "{}: the suffix picks the format: one of .perfetto-trace .pftrace .folded .pprof .pb.gz .json .csv .html .perf.data",
            path.display()
        ),
    })
}

/// Writes it.
pub fn run(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let is_counters = kprism_session::cover::is_alone(&args.input);
    if is_counters && args.subject != Subject::Cover {
        super::cover::check_format(&args.input, &args.output)?;
    }
    if perfdata::is_named(&args.output) {
        given.only("a .perf.data", &["input", "output"])?;
        return perfdata::export(&args.input, &args.output, progress).map(|()| Outcome::Done);
    }
    if super::cover::suffix(&args.output) == "gcda" {
        given.only(
            "a folder of .gcda",
            &["subject", "input", "output", "build_dir", "since_boot", "merge", "relative"],
        )?;
        args.cover.check(given, &[&args.input], false)?;
        return super::cover::write_profile(
            &args.input,
            &args.cover.options(),
            (args.relative, args.strict),
            &args.output,
            progress,
        );
    }
    if let Some(write) = super::cover::samples(&args.output) {
        given.only("samples for a compiler", &SAMPLES)?;
        let call = args.one.syscall.is_some().then(|| args.one.call());
        let who = kprism_session::cover::Part { filter: args.select.filter(), call };
        return super::cover::write_samples(
            &args.input,
            (&args.cover.options(), &who),
            (&args.output, write, args.strict),
            progress,
        );
    }
    if args.subject == Subject::Cover || super::cover::is_export(&args.output) {
        given.only(
            "an export of coverage",
            &[COVER.as_slice(), &["pids", "comms", "syscall", "call"]].concat(),
        )?;
        args.cover.check(given, &[&args.input], false)?;
        let call = args.one.syscall.is_some().then(|| args.one.call());
        let who = kprism_session::cover::Part { filter: args.select.filter(), call };
        return super::cover::write(
            &args.input,
            (&args.cover.options(), &who),
            (&args.output, args.strict),
            progress,
            out,
        );
    }
    if args.subject == Subject::Tlb {
        return misses(args, given, progress, out);
    }
    if args.name.is_some() {
        bail!("NAME names a view of `export tlb`; other subjects have one each");
    }
    let run = Run::open(&args.input)?;
    if run.holds(Instrument::Probe) {
        // A record has its task's number, no name.
        given.only("an export of probes", &["subject", "input", "output", "pids"])?;
        return super::probe::export(&run, &args.output, &args.select.pids, progress, out);
    }
    let format = format(&args.output)?;
    honoured(args, &format, given)?;
    let (run, profile, manifest) = flow::open(&args.input, progress)?;
    let of_durations = run.holds(Instrument::Durations);
    if of_durations && profile.funcs.is_empty() {
        bail!(
            "{}: holds no calls of functions; its events, if there are any: kprism script",
            run.dir().display()
        );
    }
    let of_flow = matches!(format, Format::Csv | Format::Json) && !is_of_durations(args.subject);
    if of_durations && of_flow {
        return Err(held::lacks(&run, Instrument::Flow));
    }
    let profile = args.one.call().narrow(&run, profile, &args.select.filter(), progress)?;
    progress.clear();
    if args.output.to_string_lossy().starts_with("-.") {
        write(&format, args, &run, &manifest, &profile, out)?;
        return Ok(Outcome::Done);
    }
    let name = || args.output.display().to_string();
    let mut file = BufWriter::new(std::fs::File::create(&args.output).with_context(name)?);
    write(&format, args, &run, &manifest, &profile, &mut file)
        .and_then(|()| Ok(file.flush()?))
        .with_context(name)?;
    progress.say(&format!("wrote {}", args.output.display()));
    Ok(Outcome::Done)
}

/// Tables that a recording of durations has too.
fn is_of_durations(subject: Subject) -> bool {
    matches!(subject, Subject::Functions | Subject::Func | Subject::Tree)
}

/// A view of TLB misses, all its rows.
fn misses(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    given.only("an export of TLB misses", &["subject", "name", "input", "output", "pids"])?;
    let json = match format(&args.output) {
        Ok(Format::Json) => true,
        Ok(Format::Csv) => false,
        _ => bail!(
            "{}: TLB misses are written as .json or .csv; each miss is a row of RUN/tables/tlb_misses.parquet",
            args.output.display()
        ),
    };
    let view = tlb::View {
        name: Some(args.name.as_deref().unwrap_or("objects")),
        rows: Some(0),
        sort: None,
        select: &args.select,
        counters: None,
        json,
        csv: !json,
        style: kprism_report::Style::default(),
    };
    if args.output.to_string_lossy().starts_with("-.") {
        return tlb::run(&args.input, &view, progress, out);
    }
    let mut text = Vec::new();
    let outcome = tlb::run(&args.input, &view, progress, &mut text)?;
    std::fs::write(&args.output, text).with_context(|| args.output.display().to_string())?;
    progress.say(&format!("wrote {}", args.output.display()));
    Ok(outcome)
}

/// Options of every export of coverage.
const COVER: [&str; 12] = [
    "subject",
    "input",
    "output",
    "build_dir",
    "since_boot",
    "by_flow",
    "merge",
    "vmlinux",
    "module_file",
    "debug_dir",
    "source_dir",
    "source_prefix",
];
const SAMPLES: [&str; 9] =
    ["input", "output", "pids", "comms", "syscall", "call", "vmlinux", "module_file", "debug_dir"];

/// Refuses options that a format of a flow would ignore.
fn honoured(args: &Args, format: &Format, given: &Given) -> Result<()> {
    const ONE: [&str; 4] = ["input", "output", "syscall", "call"];
    let (view, more): (&str, &[&str]) = match (format, args.subject) {
        (Format::Perfetto, _) => ("a timeline of all tasks", &[]),
        (Format::Html, _) => ("a page of all views and tasks", &[]),
        (Format::Folded, _) => ("folded stacks", &["pids", "comms", "by"]),
        (Format::Pprof, _) => ("a profile for pprof", &["pids", "comms"]),
        (Format::Csv | Format::Json, Subject::Errors | Subject::Delta) => ("this table", &["subject"]),
        (Format::Json, Subject::Tree) => ("the tree", &["subject", "pids", "comms", "by"]),
        (Format::Csv | Format::Json, _) => ("this table", &["subject", "pids", "comms"]),
    };
    given.only(view, &[ONE.as_slice(), more].concat())
}

fn write(
    format: &Format,
    args: &Args,
    run: &Run,
    manifest: &Manifest,
    profile: &Profile,
    mut out: &mut dyn Write,
) -> Result<()> {
    let filter: Filter = args.select.filter();
    let of_durations = run.holds(Instrument::Durations);
    let otherwise = if of_durations { By::Time } else { By::Instructions };
    let by = args.by.unwrap_or(otherwise).into();
    match format {
        Format::Perfetto => perfetto::write(profile, &switches(run)?, &mut out)?,
        Format::Folded => folded::write(profile, &filter, by, &mut out)?,
        Format::Pprof => {
            // One call of a run of durations is not taken out of it: its times are those of the profile.
            let times = of_durations.then(|| load_times(run, profile)).transpose()?;
            pprof::write(profile, times.as_ref(), &filter, &manifest.command.join(" "), &mut out)?;
        }
        Format::Html => out.write_all(super::report::html(run, manifest, profile)?.as_bytes())?,
        Format::Csv if of_durations && args.subject != Subject::Tree => {
            let (table, _) = super::func::whole(run, manifest, profile, &filter)?;
            out.write_all(table.to_csv().as_bytes())?;
        }
        Format::Json if of_durations && args.subject != Subject::Tree => {
            let (table, header) = super::func::whole(run, manifest, profile, &filter)?;
            serde_json::to_writer(&mut out, &json!({"run": header, "rows": table.to_json()}))?;
            writeln!(out)?;
        }
        Format::Csv => match table(args.subject, profile, &filter) {
            Some(table) => out.write_all(table.to_csv().as_bytes())?,
            None => bail!("this subject is no table: a tree can be written as .json or .folded"),
        },
        Format::Json => {
            let header = Header::new(manifest, profile).to_json();
            let value = match table(args.subject, profile, &filter) {
                Some(table) => json!({"run": header, "rows": table.to_json()}),
                None => {
                    let tree = tree::by_comm(profile, &filter);
                    let whole = Options { weight: by, min_percent: 0.0, max_depth: usize::MAX };
                    json!({"run": header, "tree": calltree::to_json(profile, &tree, &whole)})
                }
            };
            serde_json::to_writer(&mut out, &value)?;
            writeln!(out)?;
        }
    }
    Ok(())
}

/// Context switches, for the timeline of CPUs; none where the run has no sideband.
fn switches(run: &Run) -> Result<Vec<perfetto::Switch>> {
    Ok(perfetto::read_switches(run.sideband_text()?.as_slice())?)
}
