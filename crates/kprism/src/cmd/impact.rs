// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism impact`: a command recorded by itself, then with each software tracer, and what the tracers added.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_profile::parse;
use kprism_profile::units::quoted;
use kprism_record::guest::is_interrupt;
use kprism_record::impact::{self as recorder, Recording, Settings, WITHOUT};
use kprism_record::notes::of_many;
use kprism_report::header::Header;
use kprism_report::impact::{self, Impact, Page, Side};
use kprism_report::{Style, shape};
use kprism_session::Progress;
use kprism_signals::Second;
use kprism_store::{Account, Instrument};

use super::guest_args::{GuestArgs, PlaceArgs};
use super::output::{style, write_file};
use crate::exit::{self, Outcome};

const HELP: &str = "\
Tracers: function, function_graph, events, kprobes, perf, bpftrace, and with
--lttng also lttng; all of them unless some are named. Each recording stays in
DIR as a run of its own: `kprism report -i DIR/function`.

Instructions and time are the command's own on a CPU: what waits is no part of
a call. In this guest an instruction takes a nanosecond.

Exit codes: 0 done, 1 no tracer could be switched on, 2 error.";

/// Options of `kprism impact`.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Command to run in the guest
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
    /// Only this tracer (can be repeated)
    #[arg(long, value_name = "NAME")]
    tracer: Vec<String>,
    /// A tracer of your own: a shell command in the guest that switches it on (can be repeated)
    #[arg(long, value_name = "NAME=COMMAND", value_parser = parse::assignment)]
    with: Vec<(String, String)>,
    /// LTTng too, with its kernel modules built for the guest's kernel in this folder
    #[arg(long, value_name = "FOLDER")]
    lttng: Option<PathBuf>,
    /// Only this system call, with its functions (can be repeated)
    #[arg(long, value_name = "NAME")]
    syscall: Vec<String>,
    /// Folder for the recordings, one each
    #[arg(short, long, value_name = "DIR", default_value = "kprism.impact")]
    output: PathBuf,
    /// Write one HTML page too, and beside it one for each tracer and --syscall: sunbursts side by side
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show no more than this many functions of each; 0 shows all
    #[arg(long, value_name = "ROWS", default_value_t = 12)]
    limit: usize,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    guest: GuestArgs,
}

/// Records and shows.
pub fn run(
    args: &Args,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    kprism_signals::catch(Second::EndsProcess)?;
    match measure(args, progress) {
        Err(error) if is_interrupt(&error) => Ok(Outcome::Code(exit::INTERRUPTED)),
        Err(error) => Err(error),
        Ok(page) => show(args, &page, style(color, progress), progress, out),
    }
}

fn show(args: &Args, page: &Page, style: Style, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    if let Some(file) = &args.html {
        let page = impact::render(page).context("HTML page")?;
        write_file(file, page, progress)?;
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &impact::to_json(page))?;
        writeln!(out)?;
    } else {
        write!(out, "{}", impact::to_text(page, style))?;
    }
    let measured = page.tracers.iter().any(|t| t.impact.is_ok());
    Ok(if measured { Outcome::Done } else { Outcome::NothingMatched })
}

/// As comparisons want it.
fn side(recording: &Recording) -> Side<'_> {
    Side { profile: &recording.profile, pid: recording.pid }
}

/// Records everything and compares.
fn measure(args: &Args, progress: &Progress) -> Result<Page> {
    let settings = Settings {
        output: args.output.clone(),
        job: args.place.job(&args.command),
        guest: args.guest.options(),
        tracers: recorder::choose(&args.tracer, &args.with, args.lttng.is_some())?,
        lttng: args.lttng.clone(),
    };
    let series = recorder::begin(&settings, progress)?;
    let bare = &series.bare;
    let compare = |recording: &Recording| {
        let mut impact = Impact::new(side(bare), side(recording));
        if !args.syscall.is_empty() {
            impact.retain(&args.syscall);
        }
        impact
    };
    let mut notes: Vec<(&str, Vec<String>)> = WITHOUT
        .into_iter()
        .zip([bare, &series.again, &series.otherwise])
        .map(|(name, recording)| (name, recording.notes.clone()))
        .collect();
    let account = |recording: &Recording| recording.manifest.account(Instrument::Flow);
    let mut accounts: Vec<(&str, Option<Account>)> = WITHOUT
        .into_iter()
        .zip([bare, &series.again, &series.otherwise])
        .map(|(name, recording)| (name, account(recording)))
        .collect();
    let mut results = Vec::new();
    for (tracer, unavailable) in &series.tracers {
        let recorded = match unavailable {
            Some(reason) => Err(reason.clone()),
            None => series.record(tracer, progress)?,
        };
        if let Ok(Recording { exit_code, .. }) = &recorded
            && *exit_code != bare.exit_code
        {
            progress.say(&format!(
                "kprism: with {} the command's exit code is {exit_code:?} instead of {:?}",
                tracer.name, bare.exit_code
            ));
        }
        if let (Some(file), Ok(traced)) = (&args.html, &recorded) {
            for syscall in &args.syscall {
                sunbursts(file, syscall, &tracer.name, [bare, traced], progress)?;
            }
        }
        if let Ok(recording) = &recorded {
            accounts.push((&tracer.name, account(recording)));
            notes.push((&tracer.name, recording.notes.clone()));
        }
        results.push(impact::Tracer {
            name: tracer.name.clone(),
            about: tracer.about.clone(),
            events: recorded.as_ref().ok().and_then(|r| r.events.clone()),
            impact: recorded.as_ref().map(compare).map_err(Clone::clone),
        });
    }
    for note in of_many(notes.iter().map(|(name, notes)| (*name, notes.as_slice()))) {
        progress.say(&format!("note: {note}"));
    }
    let floor = compare(&series.otherwise);
    if !args.syscall.is_empty() && floor.syscalls.is_empty() {
        let all = Impact::new(side(bare), side(bare));
        let known: Vec<&str> = all.syscalls.iter().map(|c| c.name.as_str()).collect();
        bail!("the command makes no such system call; it makes: {}", known.join(", "));
    }
    Ok(Page {
        command: quoted(&args.command),
        kernel: Header::new(&bare.manifest, &bare.profile).kernel,
        same: series.again.profile == bare.profile,
        account: shape::account_of_all(accounts.iter().map(|(name, account)| (*name, account.as_ref()))),
        floor,
        tracers: results,
        by_syscall: !args.syscall.is_empty(),
        functions: args.limit,
    })
}

/// Writes the page of a system call by itself and with a tracer.
fn sunbursts(
    file: &Path,
    syscall: &str,
    tracer: &str,
    sides: [&Recording; 2],
    progress: &Progress,
) -> Result<()> {
    let headers = sides.map(|r| Header::new(&r.manifest, &r.profile));
    let page = impact::render_syscall(syscall, tracer, sides.map(side), headers.each_ref());
    let Some(page) = page.context("HTML page")? else { return Ok(()) };
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    write_file(&file.with_file_name(format!("{stem}-{tracer}-{syscall}.html")), page, progress)
}
