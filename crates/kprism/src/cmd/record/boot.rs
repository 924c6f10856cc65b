// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record boot`: the kernel command line for a traced boot, and what such a boot left; `kprism lab boot`: both,
//! in a guest.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use kprism_profile::parse;
use kprism_record::boot::{self as recorder, Plan, Recorded, collect, was_traced};
use kprism_report::header::{account_text, head};
use kprism_report::{Style, boot as view};
use kprism_session::Progress;
use kprism_signals::Second;
use kprism_store::{Instrument, Run};

use crate::cmd::ended;
use crate::cmd::guest_args::{GuestArgs, PlaceArgs};
use crate::cmd::on;
use crate::cmd::output::style;
use crate::exit::{self, Outcome};

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
    pub output: PathBuf,
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
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
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
    guest: GuestArgs,
}

impl Args {
    /// The same in the words of `kprism-recorder`.
    pub fn for_recorder(&self) -> on::Words {
        match self.words {
            true => Err("`record boot --words` prints the same words here, without --on".into()),
            false => Ok(["boot", on::RUN].map(Into::into).to_vec()),
        }
    }
}

/// Shows a boot that `kprism-recorder` collected on another machine.
pub fn brought(
    run: Run,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    show(&recorder::brought(run)?, 12, style(color, progress), progress, out)
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
    let recorded = collect(&kprism_placed::output(&args.output))?;
    show(&recorded, 12, style(color, progress), progress, out)
}

/// Boots a guest and shows what came of it.
pub fn in_guest(
    args: &LabArgs,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    kprism_signals::catch(Second::EndsProcess)?;
    let job = PlaceArgs { timeout: args.timeout, ..PlaceArgs::default() }.job(&[]);
    let guest = args.guest.guest(job)?;
    match recorder::in_guest(&args.plan.plan(), &guest, &args.output, progress) {
        Ok(Some(recorded)) => show(&recorded, args.limit, style(color, progress), progress, out),
        Ok(None) => Ok(Outcome::Code(exit::INTERRUPTED)),
        Err(error) => ended::interrupted(error),
    }
}

fn show(
    recorded: &Recorded,
    limit: usize,
    style: Style,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let Recorded { run, manifest, boot } = recorded;
    let account = manifest.account(Instrument::Boot);
    write!(out, "{}{}", head(account.as_ref(), style), view::to_text(boot, limit, style))?;
    write!(out, "{}", account_text(account.as_ref(), style))?;
    let dir = run.dir().display();
    progress.say(&format!("\nrecorded in {dir}; see: kprism report boot -i {dir} --html boot.html"));
    Ok(Outcome::Done)
}
