// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism export`: a run for other tools; the file's suffix picks the format.
//!
//! [`FORMATS`] lists the formats. A new one is one entry there: its suffixes, what it is written from, what it is for,
//! and the function that writes it. The help, the choice of a format and the errors follow from the list.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use kprism_profile::Profile;
use kprism_report::calltree::{self, Options, Weight};
use kprism_report::header::Header;
use kprism_report::{folded, perfetto, pprof, tree};
use kprism_store::{Instrument, Manifest, Run, load_times};
use serde_json::json;

use super::cover_args::CallArgs;
use super::report::{By, Select, Subject, table};
use super::shown::Shown;
use super::strict::StrictArgs;
use super::{cover_export, probe, tlb};
use crate::exit::Outcome;
use crate::given::Given;
use kprism_session::Progress;
use kprism_session::flow;
use kprism_session::held;
use kprism_session::perfdata;

/// What a format is written from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// The profile of a flow, or of durations.
    Profile,
    /// TLB misses.
    Misses,
    /// Records of probes.
    Probes,
    /// Coverage: counters of gcov, or a flow.
    Coverage,
    /// The same, for a compiler that optimises by it.
    Compiler,
}

/// What an export was asked for.
pub struct Request<'a> {
    /// The options.
    pub args: &'a Args,
    /// Those that were typed.
    pub given: &'a Given,
    /// Listener of the steps.
    pub progress: &'a Progress,
}

/// A format.
pub struct Format {
    /// Suffixes of the file, without the dot, the first ones in the help; a name for each, where errors tell it.
    suffixes: &'static [(&'static str, &'static str)],
    /// Suffixes that are not told.
    also: &'static [&'static str],
    of: Of,
    /// The suffix alone picks the format, whatever the subject is.
    any_subject: bool,
    /// The line of the help; empty if it has none.
    what: &'static str,
    write: fn(&Request<'_>, &mut dyn Write) -> Result<Outcome>,
}

impl Format {
    /// A format for whose subject other formats have the same suffix.
    const fn new(
        suffixes: &'static [(&'static str, &'static str)],
        of: Of,
        what: &'static str,
        write: fn(&Request<'_>, &mut dyn Write) -> Result<Outcome>,
    ) -> Self {
        Format { suffixes, also: &[], of, any_subject: false, what, write }
    }

    const fn whatever_the_subject(self) -> Self {
        Format { any_subject: true, ..self }
    }

    fn is_named(&self, path: &Path) -> bool {
        self.suffixes.iter().map(|(suffix, _)| suffix).chain(self.also).any(|suffix| has_suffix(path, suffix))
    }
}

/// All formats, in the order of the help.
const FORMATS: &[Format] = &[
    Format::new(
        &[("perfetto-trace", ""), ("pftrace", "")],
        Of::Profile,
        "timeline for ui.perfetto.dev",
        timeline,
    ),
    Format::new(&[("folded", "")], Of::Profile, "call stacks for flame graph tools", stacks),
    Format::new(
        &[("pprof", ""), ("pb.gz", "")],
        Of::Profile,
        "pprof's profile: calls, time on a CPU; of durations, time off it and in interrupts",
        profile,
    ),
    Format::new(&[("json", "")], Of::Profile, "the table of SUBJECT, or the tree", table_json),
    Format::new(&[("csv", "")], Of::Profile, "the table of SUBJECT", table_csv),
    Format::new(&[("json", "")], Of::Misses, "a view of `tlb`", misses_json),
    Format::new(&[("csv", "")], Of::Misses, "a view of `tlb`", misses_csv),
    Format::new(&[("parquet", "")], Of::Probes, "what probes collected", probe::parquet),
    Format::new(&[("csv", "")], Of::Probes, "what probes collected", probe::csv_file),
    Format::new(&[("json", "")], Of::Probes, "what probes collected", probe::json_file),
    Format::new(
        &[("ctf", "")],
        Of::Probes,
        "what probes collected: folder for babeltrace2, Trace Compass",
        probe::ctf,
    ),
    Format {
        also: &["tfile"],
        ..Format::new(
            &[("tf", "")],
            Of::Probes,
            "what probes collected with --for-gdb: target tfile FILE",
            probe::gdb,
        )
    },
    Format::new(&[("html", "")], Of::Profile, "the report of `kprism report --html`", page),
    Format::new(
        &[("info", "lcov"), ("xml", "Cobertura")],
        Of::Coverage,
        "coverage for lcov and genhtml, Cobertura; `cover` with .json is gcov's",
        cover_export::lcov_or_cobertura,
    )
    .whatever_the_subject(),
    Format::new(&[("json", "gcov")], Of::Coverage, "", cover_export::json),
    Format::new(&[("llvm.json", "")], Of::Coverage, "coverage as llvm-cov exports it", cover_export::llvm)
        .whatever_the_subject(),
    Format::new(&[("csv", "")], Of::Coverage, "", cover_export::csv),
    Format::new(
        &[("gcda", "")],
        Of::Compiler,
        "folder of counters for gcc -fprofile-use=FILE",
        cover_export::counters,
    )
    .whatever_the_subject(),
    Format::new(
        &[("afdo", ""), ("prof", "")],
        Of::Compiler,
        "of a flow, samples for gcc -fauto-profile=FILE, clang -fprofile-sample-use=FILE",
        cover_export::samples,
    )
    .whatever_the_subject(),
    Format::new(
        &[("perf.data", "")],
        Of::Profile,
        "folder for perf: perf script -i FILE --symfs FILE/symfs --itrace=...",
        for_perf,
    )
    .whatever_the_subject(),
];

/// The list of formats: a line for the same suffixes of different subjects.
fn after_help() -> String {
    let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
    for format in FORMATS.iter().filter(|format| !format.what.is_empty()) {
        let head: Vec<String> = format.suffixes.iter().map(|(suffix, _)| format!(".{suffix}")).collect();
        let head = head.join(" ");
        match lines.iter_mut().find(|(known, _)| *known == head) {
            Some((_, whats)) => whats.push(format.what),
            None => lines.push((head, vec![format.what])),
        }
    }
    let lines = lines.iter().map(|(head, whats)| format!("  {head:<24}  {}\n", whats.join("; ")));
    format!(
        "Formats by suffix of FILE:\n{}\nThe tables of the run itself are Parquet files: RUN/tables/*.parquet",
        lines.collect::<String>()
    )
}

/// Options of `kprism export`.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
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

/// Returns true if the name of a file ends in a dot and this suffix, in letters of any case.
fn has_suffix(path: &Path, suffix: &str) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let is_whole = name == "perf.data" && suffix == name;
    is_whole || path.extension().is_some() && name.ends_with(&format!(".{suffix}"))
}

/// Suffixes of formats as errors list them.
fn suffixes(of: Of) -> Vec<String> {
    let formats = FORMATS.iter().filter(|format| format.of == of);
    let all = formats.flat_map(|format| format.suffixes);
    all.map(|(suffix, name)| match *name {
        "" => format!(".{suffix}"),
        name => format!(".{suffix} ({name})"),
    })
    .collect()
}

/// The error of a file whose suffix is none of these formats.
pub fn no_format(of: Of, output: &Path) -> anyhow::Error {
    let (output, all) = (output.display(), suffixes(of));
    let either = || {
        let (last, others) = all.split_last().map_or(("", &[][..]), |(last, others)| (last.as_str(), others));
        format!("{} or {last}", others.join(", "))
    };
    match of {
        Of::Profile | Of::Compiler => {
            anyhow!("{output}: the suffix picks the format: one of {}", all.join(" "))
        }
        Of::Misses => anyhow!(
            "{output}: TLB misses are written as {}; each miss is a row of RUN/tables/tlb_misses.parquet",
            either()
        ),
        Of::Probes => anyhow!("{output}: what probes collected is written as {}", either()),
        Of::Coverage => anyhow!("{output}: the suffix picks the format of coverage: {}", all.join(", ")),
    }
}

/// Writes it.
pub fn run(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    if kprism_session::cover::is_alone(&args.input) && args.subject != Subject::Cover {
        cover_export::check_format(&args.input, &args.output)?;
    }
    let request = Request { args, given, progress };
    let named = |format: &&Format| format.is_named(&args.output);
    let fixed = FORMATS.iter().find(|format| format.any_subject && named(format));
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
    let format = fixed.or_else(|| FORMATS.iter().find(|format| format.of == of && named(format)));
    let format = format.ok_or_else(|| no_format(of, &args.output))?;
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
    let has_it_too = matches!(args.subject, Subject::Functions | Subject::Func | Subject::Tree);
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

fn timeline(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    of_profile(request, ("a timeline of all tasks", ""), out, |of, mut out| {
        Ok(perfetto::write(&of.profile, &switches(&of.run)?, &mut out)?)
    })
}

fn stacks(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    of_profile(request, ("folded stacks", "pids comms by"), out, |of, mut out| {
        Ok(folded::write(&of.profile, &request.args.select.filter(), of.weight, &mut out)?)
    })
}

fn profile(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    of_profile(request, ("a profile for pprof", "pids comms"), out, |of, mut out| {
        // One call of a run of durations is not taken out of it: its times are those of the profile.
        let times = of.of_durations.then(|| load_times(&of.run, &of.profile)).transpose()?;
        let (filter, command) = (request.args.select.filter(), of.manifest.command.join(" "));
        Ok(pprof::write(&of.profile, times.as_ref(), &filter, &command, &mut out)?)
    })
}

fn page(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    of_profile(request, ("a page of all views and tasks", ""), out, |of, out| {
        Ok(out.write_all(super::report::html(&of.run, &of.manifest, &of.profile)?.as_bytes())?)
    })
}

fn table_csv(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    let args = request.args;
    let honoured = match args.subject {
        Subject::Errors | Subject::Delta => "subject",
        _ => "subject pids comms",
    };
    of_profile(request, ("this table", honoured), out, |of, out| {
        let filter = args.select.filter();
        let table = match of.of_durations && args.subject != Subject::Tree {
            true => Some(super::func::whole(&of.run, &of.manifest, &of.profile, &filter)?.0),
            false => table(args.subject, &of.profile, &filter),
        };
        let table = table.context("this subject is no table: a tree can be written as .json or .folded")?;
        Ok(out.write_all(table.to_csv().as_bytes())?)
    })
}

fn table_json(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    let args = request.args;
    let (view, honoured) = match args.subject {
        Subject::Errors | Subject::Delta => ("this table", "subject"),
        Subject::Tree => ("the tree", "subject pids comms by"),
        _ => ("this table", "subject pids comms"),
    };
    of_profile(request, (view, honoured), out, |of, out| {
        let filter = args.select.filter();
        let value = if of.of_durations && args.subject != Subject::Tree {
            let (table, header) = super::func::whole(&of.run, &of.manifest, &of.profile, &filter)?;
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

fn for_perf(request: &Request<'_>, _: &mut dyn Write) -> Result<Outcome> {
    let Request { args, given, progress } = request;
    given.only("a .perf.data", &["input", "output"])?;
    perfdata::export(&args.input, &args.output, progress).map(|()| Outcome::Done)
}

fn misses_json(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    misses(request, true, out)
}

fn misses_csv(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
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
        return tlb::run(&args.input, &view, &shown, progress, out);
    }
    let mut text = Vec::new();
    let outcome = tlb::run(&args.input, &view, &shown, progress, &mut text)?;
    std::fs::write(&args.output, text).with_context(|| args.output.display().to_string())?;
    progress.say(&format!("wrote {}", args.output.display()));
    Ok(outcome)
}

/// Context switches, for the timeline of CPUs; none where the run has no sideband.
fn switches(run: &Run) -> Result<Vec<perfetto::Switch>> {
    Ok(perfetto::read_switches(run.sideband_text()?.as_slice())?)
}
