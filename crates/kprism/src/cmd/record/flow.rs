// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record flow`: perf records Intel PT, kprism imports it.
//!
//! Everything that would make perf fail, or give a recording that cannot be decoded, is looked for first, so that
//! the answer names the remedy.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kprism_store::Run;

use super::driver::{self, Request};
use super::line::{self, Filter};
use super::pmu::Pmu;
use super::rights::Rights;
use crate::cmd::import;
use crate::exit::Outcome;
use crate::given::Given;
use kprism_session::Progress;

pub const HELP: &str = "\
Examples:
  kprism record flow --user -- ls             one program, no rights needed
  kprism record flow --cyc -- ls              with the kernel, as root
  kprism record flow --filter vfs_read -- ls  only inside one kernel function
  kprism record flow -p 1234 --duration 2     a process that runs already
  kprism record flow -a --snapshot=1M         the last MiB of each CPU at Ctrl-C,
                                              and at each SIGUSR2

Without the PMU intel_pt (other processors, most virtual machines), `kprism lab run`
makes the same packets in a guest.";

/// Options of `kprism record flow`.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// Command to record
    #[arg(trailing_var_arg = true, value_name = "CMD", required_unless_present_any = ["all_cpus", "pid"])]
    pub command: Vec<String>,
    /// Record everything that runs, on all CPUs; until Ctrl-C, or while CMD runs
    #[arg(short, long, conflicts_with = "pid")]
    pub all_cpus: bool,
    /// Record this process and its threads; until it ends, or Ctrl-C
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pub pid: Option<u32>,
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub output: PathBuf,
    /// Stop after this time
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Keep what perf wrote, as RUN.perf.data
    #[arg(long)]
    pub keep_perf_data: bool,
    /// Trace the kernel only
    #[arg(long, conflicts_with = "user")]
    pub kernel: bool,
    /// Trace programs only; without either, both
    #[arg(long)]
    pub user: bool,
    /// Trace only while inside this function: of the kernel, or with @FILE of a program (can be repeated)
    #[arg(long, value_name = "FUNC[@FILE]", value_parser = Filter::parse)]
    pub filter: Vec<Filter>,
    /// Keep only the last SIZE bytes of each CPU: saved at the end, and at SIGUSR2
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, value_parser = size)]
    pub snapshot: Option<Option<u64>>,
    /// Cycle counts between packets, for fine times; with N at most each 2^(N-1) cycles
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true,
        value_parser = clap::value_parser!(u8).range(0..=15), help_heading = "Packets")]
    pub cyc: Option<Option<u8>>,
    /// A time packet each 2^N ticks of the crystal clock
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15), help_heading = "Packets")]
    pub mtc_period: Option<u8>,
    /// A place to begin decoding each 2^(N+11) bytes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15), help_heading = "Packets")]
    pub psb_period: Option<u8>,
    /// perf's buffer for packets, for each CPU; larger ones lose less
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Packets")]
    pub buffer: Option<u64>,
}

impl Args {
    /// Whether kernel code is traced.
    pub fn in_kernel(&self) -> bool {
        !self.user
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds, such as 10 or 0.5".to_owned())?;
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|d| !d.is_zero());
    duration.ok_or_else(|| "expected more than no time".to_owned())
}

/// A number of bytes, with suffix K, M or G.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift)).filter(|&n| n > 0);
    number.ok_or_else(|| "expected bytes, such as 65536, 512K or 4M".to_owned())
}

/// Checks, records, imports.
pub fn run(args: &Args, progress: &Progress) -> Result<Outcome> {
    let perf = ready(args)?;
    let mut path = args.output.clone().into_os_string();
    path.push(".perf.data");
    let data = PathBuf::from(path);
    if data.symlink_metadata().is_ok() {
        bail!("{}: is there already; remove it, or choose another RUN with -o", data.display());
    }
    let kcore = kcore(args, progress);
    let line = line::perf(args, kcore, &data);
    let words: Vec<_> = line.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    progress.step(&format!("perf {}", words.join(" ")));
    // perf and the command use the terminal from here on.
    progress.clear();
    if args.command.is_empty() && args.duration.is_none() {
        progress.say("recording; Ctrl-C ends it");
    }
    kprism_lab::interrupt::catch_signals();
    if args.snapshot.is_some() {
        driver::catch_snapshot_signal();
    }
    let asked = || match kprism_lab::interrupt::requested() {
        true => Some(Request::Stop),
        false => driver::snapshot_requested().then_some(Request::Snapshot),
    };
    let ended = driver::run(&perf, &line, args.duration, &asked)?;
    let imported = import_and_note(args, &data, &words, &ended, progress);
    match &imported {
        Ok(Outcome::Done) if !args.keep_perf_data => remove(&data),
        _ if data.exists() => progress.say(&format!("what perf wrote is in {}", data.display())),
        _ => {}
    }
    imported.with_context(|| format!("perf record {ended}; what it said is above"))
}

/// Finds perf, or says why nothing can be recorded.
fn ready(args: &Args) -> Result<PathBuf> {
    let Some(pmu) = Pmu::of_this_machine() else {
        bail!(
            "no Intel PT here: {} is missing (another processor, a virtual machine, or a kernel without it)\n\
             kprism lab run -- CMD makes the same packets in a guest, on any x86-64 machine;\n\
             kprism import reads what perf recorded on another one",
            super::pmu::PLACE
        );
    };
    let Some(perf) = line::find_perf() else {
        bail!("perf is not installed: install linux-perf (Debian), linux-tools (Ubuntu) or perf (Fedora)");
    };
    if let Some(why) = pmu.refusal(args) {
        bail!("{why}");
    }
    if let Some(why) = Rights::here(&perf).refusal(args.all_cpus, args.in_kernel()) {
        bail!("{why}");
    }
    for file in args.filter.iter().filter_map(|filter| filter.file.as_ref()) {
        File::open(file).with_context(|| format!("--filter: {}", file.display()))?;
    }
    if let Some(pid) = args.pid.filter(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
        bail!("no process {pid}");
    }
    Ok(perf)
}

/// Whether perf is to copy the kernel's code; without it, what ran in the kernel cannot be decoded.
fn kcore(args: &Args, progress: &Progress) -> bool {
    if !args.in_kernel() {
        return false;
    }
    match File::open("/proc/kcore") {
        Ok(_) => true,
        Err(error) => {
            progress.say(&format!(
                "note: /proc/kcore: {error}: the kernel's code cannot be copied, and not be decoded; run as root, \
                 or use --keep-perf-data and kprism import --vmlinux"
            ));
            false
        }
    }
}

/// What `kprism import` does, and who made the run.
fn import_and_note(
    args: &Args,
    data: &Path,
    words: &[String],
    ended: &driver::Ended,
    progress: &Progress,
) -> Result<Outcome> {
    // What was typed was for the recording.
    let outcome = import::run(&import::Args::of_perf_data(data, &args.output), &Given::default(), progress)?;
    let run = Run::open(&args.output)?;
    let mut manifest = run.manifest()?;
    manifest.command.clone_from(&args.command);
    manifest.exit_code = ended.code.filter(|_| !args.command.is_empty());
    manifest.options.insert("perf".into(), words.into());
    run.write_manifest(&manifest)?;
    if let Some(code) = manifest.exit_code.filter(|&code| code != 0) {
        progress.say(&format!("note: the command ended with {code}"));
    }
    Ok(outcome)
}

fn remove(data: &Path) {
    let removed = if data.is_dir() { std::fs::remove_dir_all(data) } else { std::fs::remove_file(data) };
    if let Err(error) = removed {
        eprintln!("kprism: {}: {error}", data.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times() {
        assert_eq!(size("65536"), Ok(65536));
        assert_eq!(size("512K"), Ok(512 << 10));
        assert_eq!(size("4M"), Ok(4 << 20));
        assert_eq!(size("1g"), Ok(1 << 30));
        for wrong in ["", "M", "0", "-1", "1.5M", "17179869184G", "é"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "x", "0", "-1", "inf", "nan", "1e300"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
