// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record boot`: the kernel command line for a traced boot, and what such a boot left; `kprism lab boot`: both,
//! in a guest; `kprism report boot`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kprism_lab::{Ended, Share, Span};
use kprism_report::header::account_text;
use kprism_report::{Style, boot as view};
use kprism_store::{Instrument, Kernel, Manifest, Run, RunKind};
use kprism_tracefs::boot::{Collected, Plan, collect, was_traced};

use super::func::{GUEST_RECORDER, GUEST_RUN};
use super::func_args::time;
use crate::cmd::lab::{self, PacketArgs, PlaceArgs, RunArgs};
use crate::cmd::report::wants_color;
use crate::exit::{self, Outcome};
use kprism_session::Progress;
use kprism_session::flow;
use kprism_session::held;
use kprism_session::record::this_kernel;

pub const HELP: &str = "\
Before the boot it prints the words for the kernel's command line; with GRUB,
put them into GRUB_CMDLINE_LINUX in /etc/default/grub and run update-grub. After
such a boot (as root) it collects what was traced, and ends the tracing.

  kprism record boot --longer-than 1ms     # prints the words
  reboot
  kprism record boot -o mine
  kprism report boot -i mine --html boot.html";

pub const GUEST_HELP: &str = "\
  kprism lab boot --longer-than 1ms -o boot
  kprism lab boot --append 'quiet' -o other && kprism diff boot other
  kprism report boot -i boot --html boot.html

In this guest an instruction takes a nanosecond, so two boots differ only where
the kernels, or what they are told, do.";

/// Options of `kprism record boot`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    output: PathBuf,
    #[command(flatten)]
    plan: PlanArgs,
    /// Print the command line even if this boot was traced
    #[arg(long)]
    words: bool,
}

/// What to trace.
#[derive(Debug, clap::Args)]
struct PlanArgs {
    /// Every call of at least this long too, such as 1ms, from core_initcall on
    #[arg(long, value_name = "TIME", value_parser = time)]
    longer_than: Option<Duration>,
    /// Ring buffer of each CPU, MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=4096))]
    buffer_mib: Option<u64>,
}

impl PlanArgs {
    fn plan(&self) -> Plan {
        Plan { longer_than: self.longer_than, buffer_mib: self.buffer_mib }
    }
}

/// Options of `kprism lab boot`.
#[derive(Debug, clap::Args)]
pub struct LabArgs {
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    output: PathBuf,
    #[command(flatten)]
    plan: PlanArgs,
    /// Show no more than this many rows of each table; 0 shows all
    #[arg(long, value_name = "ROWS", default_value_t = 12)]
    limit: usize,
    /// End the boot after this time
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    #[command(flatten)]
    guest: lab::GuestArgs,
}

/// Prints or collects.
pub fn run(
    args: &Args,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if args.words || !was_traced() {
        progress.say("boot with these words on the kernel's command line, then run this again as root:");
        writeln!(out, "{}", args.plan.plan().command_line())?;
        return Ok(Outcome::Done);
    }
    kprism_tracefs::Tracefs::find()?;
    let run = Run::create(&args.output)?;
    let mut manifest = Manifest::new(RunKind::Host, 0);
    manifest.created = flow::now();
    manifest.kernel = Some(this_kernel());
    run.write_manifest(&manifest)?;
    let collected = collect(run.dir(), true)?;
    finish(&run, manifest, &collected, 12, Style { color: wants_color(color) }, progress, out)
}

/// Boots a guest and shows what came of it.
pub fn in_guest(
    args: &LabArgs,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    kprism_lab::interrupt::catch_signals();
    boot_guest(args, Style { color: wants_color(color) }, progress, out).or_else(lab::interrupted)
}

fn boot_guest(args: &LabArgs, style: Style, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let recorder = kprism_lab::find_recorder()?;
    let mut prepared = lab::prepared(&args.guest, progress)?;
    prepared.boot_with(&args.plan.plan().command_line());
    let place = PlaceArgs { timeout: args.timeout, ..PlaceArgs::default() };
    let run_args = RunArgs::recording(&[], args.output.clone(), (&place, &args.guest), PacketArgs::default());
    let mut job = run_args.job();
    job.span = Span::Boot;
    job.argv = [GUEST_RECORDER, "boot", GUEST_RUN].map(str::to_owned).to_vec();
    job.shares.push(Share { host: recorder, guest: GUEST_RECORDER.into() });
    job.collect = Some(GUEST_RUN.into());
    progress.long_step("booting the guest");
    let (run, ran) = lab::record(&run_args, &job, None, &prepared, &mut |p| lab::show(progress, p))?;
    progress.clear();
    lab::complain(&ran, progress);
    match (&ran.ended, Collected::load(run.dir())) {
        (Ended::Interrupted, _) => Ok(Outcome::Code(exit::INTERRUPTED)),
        (_, Ok(collected)) => finish(&run, run.manifest()?, &collected, args.limit, style, progress, out),
        (_, Err(_)) => {
            let said = std::fs::read(run.stderr()).unwrap_or_default();
            bail!("nothing was collected in the guest: {}", String::from_utf8_lossy(&said).trim())
        }
    }
}

fn finish(
    run: &Run,
    mut manifest: Manifest,
    collected: &Collected,
    limit: usize,
    style: Style,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    manifest.vcpus = u32::try_from(collected.cpus.len()).unwrap_or(u32::MAX);
    manifest.clock.name = "ftrace local".into();
    manifest.instruments = vec![Instrument::Boot, Instrument::Durations];
    manifest.options.insert("record".into(), "boot".into());
    manifest.options.insert("kernel_command_line".into(), collected.command_line.clone().into());
    manifest.other.insert("events".into(), collected.events().into());
    manifest.other.insert("lost_events".into(), collected.lost().into());
    run.write_manifest(&manifest)?;
    let boot = kprism_session::boot::load(run.dir())?;
    kprism_session::boot::enter(&boot, collected, &mut manifest);
    run.write_manifest(&manifest)?;
    write!(out, "{}", view::to_text(&boot, limit, style))?;
    write!(out, "\n{}", account_text(manifest.accounts.get(&Instrument::Boot), style))?;
    let dir = run.dir().display();
    progress.say(&format!("\nrecorded in {dir}; see: kprism report boot -i {dir} --html boot.html"));
    Ok(Outcome::Done)
}

/// What `kprism report boot` shows.
pub struct Shown<'a> {
    pub input: &'a Path,
    pub html: Option<&'a Path>,
    pub json: bool,
    pub limit: usize,
    pub style: Style,
}

/// Shows a boot that was recorded before.
pub fn report(shown: &Shown<'_>, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let run = Run::open(shown.input)?;
    if !kprism_session::boot::is_boot(shown.input) {
        return Err(held::lacks(&run, Instrument::Boot));
    }
    let boot = kprism_session::boot::load(shown.input)?;
    let account = kprism_session::boot::account(&boot, &Collected::load(shown.input)?);
    if let Some(file) = shown.html {
        let release = run
            .manifest()?
            .kernel
            .map_or_else(String::new, |Kernel { release, .. }| format!(" of {release}"));
        let page = view::render(&boot, &format!("Boot{release}")).context("HTML page")?;
        std::fs::write(file, page).with_context(|| file.display().to_string())?;
        progress.say(&format!("wrote {}", file.display()));
    } else if shown.json {
        let mut value = view::to_json(&boot);
        value["account"] = serde_json::to_value(&account).context("account")?;
        serde_json::to_writer_pretty(&mut *out, &value)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", view::to_text(&boot, shown.limit, shown.style))?;
        write!(out, "\n{}", account_text(Some(&account), shown.style))?;
    }
    Ok(if boot.initcalls.is_empty() && boot.calls.is_empty() {
        Outcome::NothingMatched
    } else {
        Outcome::Done
    })
}
