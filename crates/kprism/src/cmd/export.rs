// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism export`: a run for other tools; the file's suffix picks the format.
//!
//! [`formats`] lists the formats, each with its function: those of a profile and of TLB misses are here.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use kprism_profile::{Filter, Profile};
use kprism_report::calltree::{self, Options, Weight};
use kprism_report::header::Header;
use kprism_report::{Table, deltas, folded, perfetto, pprof, tables, tree};
use kprism_store::{Instrument, Manifest, Run, load_times};
use serde_json::json;

use super::cover_args::CallArgs;
use super::cover_export;
use super::formats::{self, Of};
use super::output::{Select, Shown};
use super::report::flow::By;
use super::report::{durations, tlb};
use super::strict::StrictArgs;
use crate::exit::Outcome;
use crate::given::Given;
use kprism_session::Progress;
use kprism_session::flow;
use kprism_session::held;
use kprism_session::perfdata;

/// What an export was asked for.
pub struct Request<'a> {
    /// The options.
    pub args: &'a Args,
    /// Those that were typed.
    pub given: &'a Given,
    /// Listener of the steps.
    pub progress: &'a Progress,
}

/// Options of `kprism export`.
#[derive(Debug, clap::Args)]
#[command(after_help = formats::after_help())]
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

/// The table that a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Subject {
    /// Calls, instructions and time of every function; of durations, their times
    Functions,
    /// Durations of functions
    #[value(alias = "func")]
    Durations,
    /// Count and latency of every system call
    Syscalls,
    /// Call stacks, weighted
    Tree,
    /// Instructions and time of every task
    Tasks,
    /// Places that could not be decoded
    Errors,
    /// TLB misses
    Tlb,
    /// Intervals between markers
    Delta,
    /// Records of probes
    Probe,
    /// Initcalls of a boot
    Boot,
    /// Coverage
    Cover,
}

/// The table of a subject; the tree is none.
fn table(subject: Subject, profile: &Profile, filter: &Filter) -> Option<Table> {
    match subject {
        Subject::Functions => Some(tables::functions(profile, filter)),
        Subject::Syscalls => Some(tables::syscalls(profile, filter)),
        Subject::Tasks => Some(tables::tasks(profile, filter)),
        Subject::Errors => Some(tables::errors(profile)),
        Subject::Delta => Some(deltas::summary(profile)),
        Subject::Tree
        | Subject::Boot
        | Subject::Cover
        | Subject::Durations
        | Subject::Probe
        | Subject::Tlb => None,
    }
}

/// Writes it.
pub fn run(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    if kprism_session::cover::is_alone(&args.input) && args.subject != Subject::Cover {
        cover_export::check_format(&args.input, &args.output)?;
    }
    let request = Request { args, given, progress };
    let fixed = formats::of_any_subject(&args.output);
    let of = match (fixed, args.subject) {
        (Some(format), _) => format.of,
        (None, Subject::Cover) => Of::Coverage,
        (None, Subject::Tlb) => Of::Misses,
        (None, _) if args.name.is_some() => {
            bail!("NAME names a view of `export tlb`; other subjects have one each")
        }
        (None, _) if Run::open(&args.input)?.holds(Instrument::Probe) => Of::Probes,
        (None, _) => Of::Profile,
    };
    match of {
        Of::Coverage => cover_export::honoured(&request)?,
        Of::Misses => {
            given.only("an export of TLB misses", &["subject", "name", "input", "output", "pids"])?;
        }
        // A record has its task's number, no name.
        Of::Probes => given.only("an export of probes", &["subject", "input", "output", "pids"])?,
        // Each format honours others.
        Of::Profile | Of::Compiler => {}
    }
    let format = match fixed {
        Some(format) => format,
        None => formats::find(of, &args.output)?,
    };
    (format.write)(&request, out)
}

impl Request<'_> {
    /// True if standard output is to be written to (`-.SUFFIX`).
    pub fn is_stdout(&self) -> bool {
        self.args.output.to_string_lossy().starts_with("-.")
    }

    /// Lets `write` write into the file, or to `out`, and says so.
    pub fn to_file(
        &self,
        out: &mut dyn Write,
        write: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        if self.is_stdout() {
            return write(out);
        }
        let name = || self.args.output.display().to_string();
        let mut file = BufWriter::new(std::fs::File::create(&self.args.output).with_context(name)?);
        write(&mut file).and_then(|()| Ok(file.flush()?)).with_context(name)?;
        self.progress.say(&format!("wrote {}", name()));
        Ok(())
    }
}

/// A run opened, of which the profile is written.
struct Opened {
    run: Run,
    profile: Profile,
    manifest: Manifest,
    of_durations: bool,
    weight: Weight,
}

/// Opens the run for a format that honours these options, too, and writes it.
fn of_profile(
    request: &Request<'_>,
    (view, more): (&str, &str),
    out: &mut dyn Write,
    write: impl FnOnce(&Opened, &mut dyn Write) -> Result<()>,
) -> Result<Outcome> {
    const ONE: &str = "input output syscall call";
    let Request { args, given, progress } = request;
    given.only(view, &[ONE, more])?;
    let (run, profile, manifest) = flow::open(&args.input, progress)?;
    let of_durations = run.holds(Instrument::Durations);
    if of_durations && profile.funcs.is_empty() {
        bail!(
            "{}: holds no calls of functions; its events, if there are any: kprism script",
            run.dir().display()
        );
    }
    let is_table = more.starts_with("subject");
    let has_it_too = matches!(args.subject, Subject::Functions | Subject::Durations | Subject::Tree);
    if of_durations && is_table && !has_it_too {
        return Err(held::lacks(&run, Instrument::Flow));
    }
    let profile = args.one.call().narrow(&run, profile, &args.select.filter(), progress)?;
    progress.clear();
    let otherwise = if of_durations { By::Time } else { By::Instructions };
    let weight = args.by.unwrap_or(otherwise).into();
    let opened = Opened { run, profile, manifest, of_durations, weight };
    request.to_file(out, |out| write(&opened, out))?;
    Ok(Outcome::Done)
}

pub fn timeline(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    of_profile(request, ("a timeline of all tasks", ""), out, |of, mut out| {
        Ok(perfetto::write(&of.profile, &switches(&of.run)?, &mut out)?)
    })
}

pub fn stacks(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    of_profile(request, ("folded stacks", "pids comms by"), out, |of, mut out| {
        Ok(folded::write(&of.profile, &request.args.select.filter(), of.weight, &mut out)?)
    })
}

pub fn profile(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    of_profile(request, ("a profile for pprof", "pids comms"), out, |of, mut out| {
        // One call of a run of durations is not taken out of it: its times are those of the profile.
        let times = of.of_durations.then(|| load_times(&of.run, &of.profile)).transpose()?;
        let (filter, command) = (request.args.select.filter(), of.manifest.command.join(" "));
        Ok(pprof::write(&of.profile, times.as_ref(), &filter, &command, &mut out)?)
    })
}

pub fn page(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    of_profile(request, ("a page of all views and tasks", ""), out, |of, out| {
        Ok(out.write_all(super::report::html(&of.run, &of.manifest, &of.profile)?.as_bytes())?)
    })
}

pub fn table_csv(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    let args = request.args;
    let honoured = match args.subject {
        Subject::Errors | Subject::Delta => "subject",
        _ => "subject pids comms",
    };
    of_profile(request, ("this table", honoured), out, |of, out| {
        let filter = args.select.filter();
        let table = match of.of_durations && args.subject != Subject::Tree {
            true => Some(durations::whole(&of.run, &of.manifest, &of.profile, &filter)?.0),
            false => table(args.subject, &of.profile, &filter),
        };
        let table = table.context("this subject is no table: a tree can be written as .json or .folded")?;
        Ok(out.write_all(table.to_csv().as_bytes())?)
    })
}

pub fn table_json(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    let args = request.args;
    let (view, honoured) = match args.subject {
        Subject::Errors | Subject::Delta => ("this table", "subject"),
        Subject::Tree => ("the tree", "subject pids comms by"),
        _ => ("this table", "subject pids comms"),
    };
    of_profile(request, (view, honoured), out, |of, out| {
        let filter = args.select.filter();
        let value = if of.of_durations && args.subject != Subject::Tree {
            let (table, header) = durations::whole(&of.run, &of.manifest, &of.profile, &filter)?;
            json!({"run": header, "rows": table.to_json()})
        } else {
            let header = Header::new(&of.manifest, &of.profile).to_json();
            match table(args.subject, &of.profile, &filter) {
                Some(table) => json!({"run": header, "rows": table.to_json()}),
                None => {
                    let tree = tree::by_comm(&of.profile, &filter);
                    let whole = Options { weight: of.weight, min_percent: 0.0, max_depth: usize::MAX };
                    json!({"run": header, "tree": calltree::to_json(&of.profile, &tree, &whole)})
                }
            }
        };
        serde_json::to_writer(&mut *out, &value)?;
        Ok(writeln!(out)?)
    })
}

pub fn for_perf(request: &Request<'_>, _: &mut dyn Write) -> Result<Outcome> {
    let Request { args, given, progress } = request;
    given.only("a .perf.data", &["input", "output"])?;
    perfdata::export(&args.input, &args.output, progress).map(|()| Outcome::Done)
}

pub fn misses_json(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    misses(request, true, out)
}

pub fn misses_csv(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    misses(request, false, out)
}

/// A view of TLB misses, all its rows.
fn misses(request: &Request<'_>, json: bool, out: &mut dyn Write) -> Result<Outcome> {
    let Request { args, progress, .. } = request;
    let view = tlb::View {
        name: Some(args.name.as_deref().unwrap_or("objects")),
        select: &args.select,
        counters: None,
    };
    let shown = Shown { json, csv: !json, ..Shown::default() };
    if request.is_stdout() {
        return tlb::show(&args.input, &view, &shown, progress, out);
    }
    let mut text = Vec::new();
    let outcome = tlb::show(&args.input, &view, &shown, progress, &mut text)?;
    std::fs::write(&args.output, text).with_context(|| args.output.display().to_string())?;
    progress.say(&format!("wrote {}", args.output.display()));
    Ok(outcome)
}

/// Context switches, for the timeline of CPUs; none where the run has no sideband.
fn switches(run: &Run) -> Result<Vec<perfetto::Switch>> {
    Ok(perfetto::read_switches(run.sideband_text()?.as_slice())?)
}
