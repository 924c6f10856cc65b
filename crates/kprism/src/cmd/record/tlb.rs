// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record tlb`: every TLB miss of a command in the guest, of the kernel and all programs, by models.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use kprism_lab::Outcome as Ran;
use kprism_store::Run;
use kprism_tlb::allocs::{self, Signature};
use kprism_tlb::{Geometry, bank, presets};

use super::{ptat, tlb_perf, tlb_user};
use crate::cmd::lab::{self, GuestArgs, PacketArgs, PlaceArgs, RunArgs};
use crate::exit::Outcome;
use crate::given::Given;
use kprism_session::Progress;
use kprism_session::tlb;

pub const HELP: &str = "\
Geometries: ivybridge-ep, skylake-sp, sapphire-rapids, zen4, zen5, or a JSON file
(docs/tlb.md). The first is the one that reports are about; the others are counted
beside it, in the same pass. Exit codes are those of `kprism lab run`.";

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

/// Options of every method.
const ANY: [&str; 7] = ["command", "output", "method", "env", "cwd", "stdin", "timeout"];
/// Options of a guest.
const GUEST: [&str; 14] = [
    "share",
    "before",
    "gdb",
    "kernel",
    "initrd",
    "module",
    "with_module",
    "package",
    "smp",
    "mem",
    "append",
    "fast",
    "refresh",
    "boot_timeout",
];

/// Refuses options that the method would ignore.
fn honoured(method: Method, given: &Given) -> Result<()> {
    let (view, more): (&str, &[&[&str]]) = match method {
        Method::Model => ("--method model", &[&GUEST, &["geometry"]]),
        Method::User => ("--method user, which runs the command on this machine", &[&["geometry"]]),
        Method::Perf => ("--method perf, which runs the command on this machine", &[&["event", "period"]]),
        Method::Ptat => ("--method ptat", &[&GUEST, &["ptat", "pmd", "room"]]),
    };
    given.only(view, &[ANY.as_slice(), &more.concat()].concat())
}

/// A preset, or what a file describes.
pub fn geometry(name: &str) -> Result<Geometry> {
    if let Some(geometry) = presets::preset(name) {
        return Ok(geometry);
    }
    let text = std::fs::read_to_string(name).with_context(|| {
        format!("{name}: neither a file nor one of the geometries {}", presets::NAMES.join(", "))
    })?;
    Geometry::parse(&text).with_context(|| name.to_owned())
}

/// Records.
pub fn run(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    honoured(args.method, given)?;
    kprism_lab::interrupt::catch_signals();
    if args.geometry.len() > bank::MAX_GEOMETRIES {
        bail!("at most {} geometries", bank::MAX_GEOMETRIES);
    }
    let mut words = Vec::new();
    for name in &args.geometry {
        geometry(name)?;
        if presets::preset(name).is_some() {
            words.push(name.clone());
            continue;
        }
        let path = std::path::absolute(name)?.display().to_string();
        if path.contains(['+', ',']) {
            bail!("{path}: no `+` or `,` may be in a description's path");
        }
        words.push(path);
    }
    if matches!(args.method, Method::User | Method::Perf) {
        let (run, code) = match args.method {
            Method::User => tlb_user::record(&args.command, &words, &args.place, &args.output, progress)?,
            _ => {
                let event = args.event.as_deref();
                tlb_perf::record(&args.command, event, args.period, &args.place, &args.output)?
            }
        };
        progress.step("writing the table of misses");
        let text = tlb::save(&run)?;
        progress.clear();
        progress.say(&text);
        return Ok(Outcome::Code(code));
    }
    let packets = PacketArgs::default();
    if let Some(module) = args.ptat.as_ref().filter(|_| args.method == Method::Ptat) {
        let mut guest = args.guest.clone();
        guest.module.extend(ptat::MODULES.map(str::to_owned));
        guest.with_module.push(std::path::absolute(module)?.display().to_string());
        let run = RunArgs::recording(&args.command, args.output.clone(), (&args.place, &guest), packets);
        let placed = ptat::Placed { pmd: args.pmd, room: args.room };
        return finish(ptat::record(&run, placed, progress, out), progress);
    }
    let run = RunArgs::recording(&args.command, args.output.clone(), (&args.place, &args.guest), packets);
    let folder = tempfile::tempdir()?;
    let allocs = folder.path().join("allocs");
    std::fs::write(&allocs, allocs::to_text(&allocators(&run, progress)?))?;
    let more = [("tlb".to_owned(), words.join("+")), ("allocs".to_owned(), allocs.display().to_string())];
    finish(lab::record_command(&run, &more, progress, out), progress)
}

/// Libraries whose functions allocate.
const LIBRARIES: [&str; 6] = [
    "libc.so.6",
    "libstdc++.so.6",
    "libjemalloc.so.2",
    "libtcmalloc.so.4",
    "libtcmalloc_minimal.so.4",
    "libmimalloc.so.2",
];
/// Larger files are not looked into.
const MAX_ELF: u64 = 256 << 20;

/// How the functions that allocate begin: those of the guest's libraries, and of programs that were linked statically
/// or bring their own.
fn allocators(run: &RunArgs, progress: &Progress) -> Result<Vec<Signature>> {
    let prepared = lab::prepared(&run.guest, progress)?;
    let mut files = Vec::new();
    if let Some(root) = prepared.root() {
        files.extend(LIBRARIES.map(|name| root.join("usr/lib/x86_64-linux-gnu").join(name)));
    }
    let mut folders: Vec<PathBuf> = run.job().shares.into_iter().map(|share| share.host).collect();
    while let Some(path) = folders.pop() {
        if path.is_symlink() {
            continue;
        } else if path.is_dir() {
            folders.extend(std::fs::read_dir(&path)?.map_while(Result::ok).map(|entry| entry.path()));
        } else {
            files.push(path);
        }
    }
    let mut all = Vec::new();
    for file in files {
        if std::fs::metadata(&file).is_ok_and(|m| m.is_file() && m.len() <= MAX_ELF) {
            all.extend(allocs::signatures(&std::fs::read(&file).unwrap_or_default()));
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}

fn finish(recorded: Result<(Run, Ran)>, progress: &Progress) -> Result<Outcome> {
    let (run, ran) = match recorded {
        Ok(recorded) => recorded,
        Err(error) => return lab::interrupted(error),
    };
    progress.step("writing the table of misses");
    let text = tlb::save(&run)?;
    progress.clear();
    progress.say(&text);
    Ok(Outcome::Code(lab::code(&ran)))
}
