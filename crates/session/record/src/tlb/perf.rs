// SPDX-License-Identifier: MIT OR Apache-2.0
//! By perf: this processor's own TLB misses, sampled where it has an event for them.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};
use kprism_lab::Job;
use kprism_session::Progress;
use kprism_store::OptionKey;

use super::{Ended, Recorded, close, sampled};
use crate::flow::line::find_perf;
use crate::flow::perf;
use crate::here;

/// The kernel's list of performance monitoring units.
const SOURCES: &str = "/sys/bus/event_source/devices";

/// Intel's, and misses from one sample to the next: a prime, so that loops do not beat with it.
const INTEL: (&str, u64) = ("mem_inst_retired.stlb_miss_loads:P,mem_inst_retired.stlb_miss_stores:P", 1009);
/// AMD's: operations from one sample to the next.
const AMD: (&str, u64) = ("ibs_op//", 100_003);

/// The event to sample on this machine, and how many of them to one sample.
fn event() -> Result<(&'static str, u64)> {
    let has = |name: &str| Path::new(SOURCES).join(name).is_dir();
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if has("ibs_op") {
        return Ok(AMD);
    }
    // Hybrid processors have a PMU for each kind of core.
    if cpu.contains("GenuineIntel") && (has("cpu") || has("cpu_core")) {
        return Ok(INTEL);
    }
    let mut there: Vec<String> = std::fs::read_dir(SOURCES)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    there.sort();
    bail!(
        "this machine offers no event that samples TLB misses: {SOURCES} has {}, and neither ibs_op (AMD) nor cpu with an \
         Intel processor. In a virtual machine, its host has to pass the PMU on (QEMU: -cpu host,pmu=on). Without: --method \
         model, user or ptat; or record elsewhere with perf, and `kprism import` its perf.data",
        if there.is_empty() { "nothing".into() } else { there.join(", ") }
    )
}

/// Records the command of `job` on this machine into `output`. `events` and `period` are what perf samples and how often;
/// by default what this processor has.
///
/// # Errors
/// There is no such event here, no perf, or no such command; or perf left no recording.
pub fn record(
    job: &Job,
    events: Option<&str>,
    period: Option<u64>,
    output: &Path,
    progress: &Progress,
) -> Result<Recorded> {
    let command = &job.argv;
    let (name, every) = match events {
        Some(name) => (name, 1),
        None => event()?,
    };
    let Some(program) = find_perf() else { bail!("perf is not installed (Debian: linux-perf)") };
    here::find(&command[0], job)?;
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("perf.data");
    let mut words: Vec<OsString> = ["record", "-q", "-d", "-e", name, "-c"].map(Into::into).into();
    words.push(period.unwrap_or(every).max(1).to_string().into());
    if name.contains("ibs_op") {
        words.push("-R".into());
    }
    words.push("-o".into());
    words.push(data.clone().into());
    words.push("--".into());
    words.extend(command.iter().map(OsString::from));
    let mut line = Command::new(&program);
    here::place(line.args(&words), job)?;
    let limit = job.timeout;
    let started = Instant::now();
    let ended = perf::run_command(&mut line, limit, perf::TICK, &|_| {
        Ok(kprism_signals::end_requested().then_some(perf::Request::Stop))
    })?;
    let over = limit.is_some_and(|limit| ended.stopped && started.elapsed() >= limit);
    if !data.is_file() {
        bail!("perf left no recording: it {ended}");
    }
    let run = sampled::import(&data, Path::new("/"), Some(Path::new("/proc/kallsyms")), output)?;
    let mut manifest = run.own_manifest()?;
    manifest.command.clone_from(command);
    manifest.set(OptionKey::Source, format!("perf record -e {name}"));
    manifest.exit_code = ended.code;
    manifest.stopped = match over {
        true => Some("the command was ended after --timeout".into()),
        false => ended.stopped.then(|| "recording was interrupted".into()),
    };
    run.write_manifest(&manifest)?;
    close(&run, progress)?;
    let ended = if over { Ended::Timeout } else { Ended::Code(ended.code.unwrap_or(1)) };
    Ok(Recorded { run, ended })
}
