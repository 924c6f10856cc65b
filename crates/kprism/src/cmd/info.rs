// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism info`: what a run is, what was lost, whether it was decoded.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_profile::units::grouped;
use kprism_store::{Instrument, Manifest, Run, RunKind};

use super::strict::StrictArgs;
use crate::exit::Outcome;
use kprism_profile::units::quoted;

/// Options of `kprism info`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run folder
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub input: PathBuf,
    #[command(flatten)]
    pub strict: StrictArgs,
    /// Print the manifest as JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints it.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Outcome> {
    let run = Run::open(&args.input)?;
    let manifest = run.manifest()?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &manifest)?;
        writeln!(out)?;
    } else {
        table(&run, &manifest, out)?;
    }
    Ok(Outcome::Done)
}

fn table(run: &Run, m: &Manifest, out: &mut dyn Write) -> Result<()> {
    let mut line = |name: &str, value: String| writeln!(out, "{name:<14}{value}");
    line("run", run.dir().display().to_string())?;
    line("kind", kind(run, m).to_owned())?;
    if !m.command.is_empty() {
        line("command", quoted(&m.command))?;
    }
    if let Some(kernel) = &m.kernel {
        let id = if kernel.build_id.is_empty() {
            String::new()
        } else {
            format!(" (build id {})", kernel.build_id)
        };
        line("kernel", kernel.release.clone() + &id)?;
    }
    if !m.created.is_empty() {
        line("created", m.created.clone())?;
    }
    line("tool", m.tool.clone())?;
    line("clock", format!("{}, {} Hz", m.clock.name, grouped(m.clock.tsc_hz)))?;
    // There is a stream for each thread at a time, where a machine has one for each CPU.
    line(if is_user_mode(m) { "streams" } else { "vcpus" }, m.vcpus.to_string())?;
    if let Some(code) = m.exit_code {
        line("exit code", code.to_string())?;
    }
    if let Some(counts) = m.options.get("durations") {
        let number = |key: &str| grouped(counts[key].as_u64().unwrap_or(0));
        line("calls", number("calls"))?;
        line("  without end", number("unfinished"))?;
        line("lost events", number("lost"))?;
        return ending(m, out);
    }
    if !run.holds(Instrument::Flow) {
        // Nobody watched instructions: "not decoded yet" would promise some.
        return ending(m, out);
    }
    line("instructions", m.instructions.map_or_else(|| "not decoded yet".into(), grouped))?;
    if let Some(recorded) = m.instructions_recorded {
        let same = if m.instructions == Some(recorded) { " (the same)" } else { "" };
        line("  recorder's", grouped(recorded) + same)?;
    }
    line("decode errors", m.decode_errors.map_or_else(|| "not decoded yet".into(), grouped))?;
    line("lost bytes", grouped(m.lost_bytes))?;
    ending(m, out)
}

/// Why recording ended early, and the accounts.
fn ending(m: &Manifest, out: &mut dyn Write) -> Result<()> {
    if let Some(why) = &m.stopped {
        writeln!(out, "{:<14}{why}", "stopped")?;
    }
    for (instrument, account) in &m.accounts {
        writeln!(out, "account of {instrument}\n{}", account.to_text().trim_end())?;
    }
    Ok(())
}

fn kind(run: &Run, m: &Manifest) -> &'static str {
    let observed = run.holds(Instrument::Flow);
    match m.kind {
        RunKind::Lab if observed => "lab (guest seen by the observer)",
        RunKind::Lab if run.holds(Instrument::Durations) || run.holds(Instrument::Probe) => {
            "lab (guest not observed: its own kernel recorded)"
        }
        RunKind::Lab if m.options.get("method").is_some_and(|how| how == "ptat") => {
            "lab (guest not observed: its memory bus recorded)"
        }
        RunKind::Lab => "lab (guest not observed)",
        RunKind::Import => "import (recorded elsewhere)",
        RunKind::Host if is_user_mode(m) => "host (a program of this machine under QEMU's user mode)",
        RunKind::Host => "host (this machine, by its kernel's tracer)",
    }
}

/// Recorded by `record tlb --method user`.
fn is_user_mode(m: &Manifest) -> bool {
    m.kind == RunKind::Host && m.options.get("method").is_some_and(|how| how == "user")
}
