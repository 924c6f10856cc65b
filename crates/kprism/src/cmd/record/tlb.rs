// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record tlb`: every TLB miss of a command in the guest, of the kernel and all programs, by models.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use kprism_record::guest;
use kprism_record::tlb::{Ended, Recorded, geometries, model, perf, ptat, user};
use kprism_session::Progress;
use kprism_signals::Second;
use kprism_tlb::presets;

use crate::cmd::ended;
use crate::cmd::guest_args::{GUEST, GUEST_PLACE, GuestArgs, PLACE, PlaceArgs};
use crate::cmd::pass::Output;
use crate::exit::{self, Outcome};
use crate::given::Given;

/// The end of the help.
pub fn help() -> String {
    let presets = presets::NAMES.join(", ");
    format!(
        "\
Geometries: {presets}, or a JSON file
(docs/tlb.md). The first is the one that reports are about; the others are counted
beside it, in the same pass. Exit codes are those of `kprism lab run`."
    )
}

/// Options of `kprism record tlb`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Command to run in the guest; with --method user or perf, on this machine
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    output: PathBuf,
    /// A processor's TLBs: a preset or a JSON file (can be repeated, up to 8)
    #[arg(short, long, value_name = "NAME|FILE", default_value = presets::DEFAULT)]
    geometry: Vec<String>,
    /// Keep only misses for which this holds; names: va, ip, page_bytes, access (load, store, fetch), $pid, $tid, $comm, $cpu, $ts
    #[arg(long = "if", value_name = "EXPR")]
    condition: Option<String>,
    /// How misses are found
    #[arg(long, value_enum, value_name = "METHOD", default_value = "model")]
    method: Method,
    /// The module for --method ptat, built for the guest's kernel by kmod/ptat/build.sh
    #[arg(long, value_name = "FILE", required_if_eq("method", "ptat"))]
    ptat: Option<PathBuf>,
    /// With --method ptat: page directories too, so that walks for 2 MB pages are seen
    #[arg(long)]
    pmd: bool,
    /// With --method ptat: leave page tables only so many pages of the region; 0: all
    #[arg(long, value_name = "PAGES", default_value_t = 0)]
    room: u32,
    /// With --method perf: sample this event instead, as perf names it
    #[arg(long, value_name = "EVENT")]
    event: Option<String>,
    /// With --method perf: events from one sample to the next
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    period: Option<u64>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    guest: GuestArgs,
}

/// Ways to find misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Method {
    /// The observer feeds every access to models of processors' TLBs
    Model,
    /// One program of this machine under QEMU's user mode: its own accesses, 4K pages, no kernel
    User,
    /// This processor's own misses, sampled by perf: where it has an event for them
    Perf,
    /// The command's page tables lie where a bus monitor sees each walk: misses of QEMU's own TLB
    Ptat,
}

/// Options of every method, beside those of the command's place on this machine.
const ANY: [&str; 3] = ["command", "output", "method"];

/// Refuses options that the method would ignore.
fn honoured(method: Method, given: &Given) -> Result<()> {
    let (view, more): (&str, &[&[&str]]) = match method {
        Method::Model => ("--method model", &[&GUEST, &GUEST_PLACE, &["geometry", "condition"]]),
        Method::User => {
            ("--method user, which runs the command on this machine", &[&["geometry", "condition"]])
        }
        Method::Perf => ("--method perf, which runs the command on this machine", &[&["event", "period"]]),
        Method::Ptat => ("--method ptat", &[&GUEST, &GUEST_PLACE, &["ptat", "pmd", "room"]]),
    };
    if method == Method::Ptat
        && let Some(option) = given.first(&["warm"])
    {
        bail!(
            "{option} does not go with {view}: the memory bus is watched from the boot on, and would see each turn"
        );
    }
    given.only(view, &[&ANY[..], &PLACE, &more.concat()].concat())
}

/// Records.
pub fn run(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    honoured(args.method, given)?;
    kprism_signals::catch(Second::EndsProcess)?;
    record(args, progress, out).or_else(ended::interrupted)
}

fn record(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let geometries = geometries(&args.geometry)?;
    let job = args.place.job(&args.command);
    let condition = args.condition.as_deref();
    let mut output = Output::new(out, progress);
    let mut report = |p: kprism_lab::Progress<'_>| output.pass(p);
    let code = match args.method {
        Method::Model => {
            let settings = guest::Settings::new(args.output.clone(), args.guest.options(), job);
            let (_, ran) = model::record(&settings, &geometries, condition, progress, &mut report)?;
            ended::code(&ran)
        }
        Method::Ptat => {
            let module = args.ptat.as_deref().context("--ptat FILE")?;
            let placed = ptat::Placed { pmd: args.pmd, room: args.room };
            let guest = args.guest.guest(job)?;
            let (_, ran) = ptat::record(&guest, module, placed, &args.output, progress, &mut report)?;
            ended::code(&ran)
        }
        Method::User => code_of(&user::record(&job, &geometries, condition, &args.output, progress)?),
        Method::Perf => {
            code_of(&perf::record(&job, args.event.as_deref(), args.period, &args.output, progress)?)
        }
    };
    Ok(Outcome::Code(code))
}

/// The exit code of a command on this machine.
fn code_of(recorded: &Recorded) -> u8 {
    match recorded.ended {
        Ended::Code(code) => u8::try_from(code).unwrap_or(1),
        Ended::Timeout => exit::LIMIT,
        Ended::Interrupted => exit::INTERRUPTED,
        Ended::Unwritten => exit::LAB_FAILED,
    }
}
