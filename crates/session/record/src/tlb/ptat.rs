// SPDX-License-Identifier: MIT OR Apache-2.0
//! Off the bus: the walks of QEMU's own TLB (docs/tlb.md).
//!
//! The guest boots with memory behind a CXL window and the module `kmod/ptat`, which puts the command's page tables there.
//! QEMU writes each access to the window as a line to a pipe; what the lines say goes to `streams/tlb/`, as a monitor's
//! files: `bus0.trace` and `mappings`. Misses are made of those two alone.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_lab::{Ended, Outcome, Report, Span};
use kprism_session::Progress;
use kprism_store::{Instrument, OptionKey, Run};
use kprism_tlb::bus::mappings::{self, Form};
use kprism_tlb::bus::qemu::{Line, Monitor};
use kprism_tlb::bus::rpt::Counts;
use kprism_tlb::bus::trace;
use serde_json::json;

use super::bus::{misses, of_meaning, sideband};
use super::close;
use crate::guest::{self, Guest};

/// Modules of the kernel's that take CXL memory into use.
const MODULES: [&str; 6] = ["cxl_acpi", "cxl_pci", "cxl_mem", "device_dax", "kmem", "dax_cxl"];

/// Makes a region of the memory device, waits for it to be a node, loads the module for that node.
/// Documentation/ABI/testing/sysfs-bus-cxl.
const SET_UP: &str = include_str!("ptat.sh");

/// The control program of the paper's 4.1.1: tells who it is, then becomes the command.
const CONTROL: &str = r#"echo $$ > /sys/module/ptat/parameters/pid && exec "$@""#;

/// Counts of the trace of the bus.
struct Bus {
    monitor: Monitor,
    unwritten: Unwritten,
}

/// The part of the trace that a full disk did not take.
#[derive(Debug, Default)]
struct Unwritten {
    accesses: u64,
    why: Option<std::io::Error>,
}

impl Unwritten {
    /// The reason why the recording is not whole, for people; `None` if everything was written.
    fn told(&self, run: &Run) -> Option<String> {
        let error = self.why.as_ref()?;
        Some(format!(
            "{}: the accesses on the bus could not all be written ({error}): {} of them, and the misses among them, are \
             lost; free some space, or choose a folder on a larger disk with -o",
            run.dir().display(),
            self.accesses
        ))
    }
}

/// The page tables that the module places in the region of the bus monitor.
#[derive(Debug, Clone, Copy)]
pub struct Placed {
    /// Page directories too.
    pub pmd: bool,
    /// No more pages than this; 0: all that fit.
    pub room: u32,
}

/// Records the job of `guest` into `output`, with the module `ptat` from the file `module`.
///
/// # Errors
/// The guest cannot be booted, the module does not tell of itself on the bus, or the run cannot be written. A full disk is
/// no error: the command runs on and what was written is kept. What was lost is in the account, and the run has failed
/// ([`Ended::Failed`]).
pub fn record(
    guest: &Guest,
    module: &Path,
    placed: Placed,
    output: &Path,
    progress: &Progress,
    report: Report<'_>,
) -> Result<(Run, Outcome)> {
    let mut guest = guest.clone();
    guest.options.modules.extend(MODULES.map(str::to_owned));
    guest.options.with_modules.push(std::path::absolute(module)?.display().to_string());
    let mut prepared = guest::prepare(&guest.options, progress)?;
    // On the run's disk, so that what is recorded is moved there, and a full disk is that one.
    let beside = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(beside).with_context(|| beside.display().to_string())?;
    let folder = tempfile::Builder::new().prefix(".bus.").tempdir_in(beside)?;
    let pipe = std::path::absolute(folder.path().join("bus"))?;
    let name = std::ffi::CString::new(pipe.as_os_str().as_bytes())?;
    // SAFETY: a system call with a string that ends.
    if unsafe { libc::mkfifo(name.as_ptr(), 0o600) } != 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| pipe.display().to_string());
    }
    // Held open until QEMU has ended, or was never started: who reads it waits for nobody then.
    let held =
        File::options().read(true).write(true).open(&pipe).with_context(|| pipe.display().to_string())?;
    let lines = File::open(&pipe).with_context(|| pipe.display().to_string())?;
    prepared.monitor_bus(&pipe);
    let mut job = guest.job.clone();
    job.span = Span::Boot;
    job.before.push(format!("PMD={}\nROOM={}\n{SET_UP}", u8::from(placed.pmd), placed.room));
    let mut argv: Vec<String> = ["/bin/sh", "-c", CONTROL, "sh"].map(str::to_owned).to_vec();
    argv.append(&mut job.argv);
    job.argv = argv;
    job.after.push("echo 0 > /sys/module/ptat/parameters/pid && rmmod ptat && echo unloaded".into());
    let (trace, maps) = (folder.path().join("trace"), folder.path().join("mappings"));
    let settings = guest.settings(output.to_owned());
    progress.step("booting with the bus monitor");
    let (recorded, bus) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| listen(lines, &trace, &maps));
        let recorded = guest::record_only(&settings, &job, &prepared, report);
        drop(held);
        (recorded, reader.join())
    });
    progress.clear();
    let (run, mut ran) = recorded?;
    let unwritten = bus.as_ref().ok().and_then(|(bus, _)| bus.unwritten.told(&run));
    let came_to_its_end = ran.ended == Ended::Normal;
    if let Some(why) = &unwritten {
        guest::fail_run(&run, &mut ran, why);
        if !came_to_its_end {
            // The reason why the guest ended is told below.
            progress.error(&format!("kprism: {why}"));
        }
    }
    guest::check_room(&run, &mut ran);
    guest::complain(&ran, progress);
    let Ok((bus, read)) = bus else { bail!("the reader of the bus trace failed") };
    read.context("reading the bus trace")?;
    let streams = run.tlb();
    fs::create_dir_all(&streams)?;
    let keep = |from: &Path, to: &str| -> Result<PathBuf> {
        let to = streams.join(to);
        fs::rename(from, &to).with_context(|| to.display().to_string())?;
        Ok(to)
    };
    let (trace, maps) = (keep(&trace, "bus0.trace")?, keep(&maps, "mappings")?);
    if came_to_its_end && !ran.after.iter().any(|text| text.trim() == "unloaded") {
        progress.note("the guest's module ptat could not be unloaded");
    }
    let Some(region) = bus.monitor.words.region else {
        bail!(
            "the guest's module ptat wrote no start record to the bus trace; see {}",
            run.console_log().display()
        );
    };
    let (tables, escaped) = bus.monitor.words.tables;
    if escaped > 0 {
        progress.note(&format!(
            "the region was full: {escaped} of {} page tables are elsewhere, and what they map is not seen",
            tables + escaped
        ));
    }
    let counts = misses(&run, region, &trace, &maps)?;
    let words = &bus.monitor.words;
    if words.overlooked > 0 {
        progress.note(&format!(
            "{} address spaces of processes that the command forked are not followed, as too many were at once",
            words.overlooked
        ));
    }
    match words.names.as_slice() {
        [] => {
            let pid = words.vmas.last().map_or(0, |vma| vma.pid);
            sideband(&run, &[(pid, comm(&guest.job.argv))], &words.vmas)?;
        }
        names => sideband(&run, names, &words.vmas)?,
    }
    account(&run, &bus, &counts)?;
    close(&run, progress)?;
    Ok((run, ran))
}

/// Reads QEMU's lines to their end.
fn listen(lines: File, trace: &Path, maps: &Path) -> (Bus, Result<()>) {
    let (mut monitor, mut unwritten) = (Monitor::default(), Unwritten::default());
    let result = listen_into(&mut monitor, &mut unwritten, lines, (trace, maps));
    (Bus { monitor, unwritten }, result)
}

fn listen_into(
    monitor: &mut Monitor,
    unwritten: &mut Unwritten,
    lines: File,
    (trace, maps): (&Path, &Path),
) -> Result<()> {
    let mut lines = BufReader::with_capacity(1 << 20, lines);
    let name = || trace.display().to_string();
    let mut file = File::create(trace).with_context(name)?;
    let mut accesses =
        trace::Writer::new(trace::Header { board: 0, hz: 1_000_000_000, values: true, start: 0 });
    let mut records = mappings::Writer::new(Form::Wide);
    let (mut line, mut written) = (Vec::new(), 0);
    loop {
        line.clear();
        let more = lines.read_until(b'\n', &mut line)? > 0;
        match if more { monitor.line(&line) } else { Line::Nothing } {
            // With the disk full, the lines are still taken: QEMU would stand still otherwise.
            Line::Access(_) if unwritten.why.is_some() => unwritten.accesses += 1,
            Line::Access(access) => accesses.access(&access),
            Line::Record(record) => {
                records.record(&record);
            }
            Line::Nothing => {}
        }
        if accesses.bytes.len() >= 1 << 20 || !more && !accesses.bytes.is_empty() {
            let all = written + accesses.bytes.len() as u64;
            match file.write_all(&accesses.bytes) {
                Ok(()) => written = all,
                Err(error) if written == 0 => return Err(error).with_context(name),
                Err(error) => {
                    (written, *unwritten) = make_room(&file, written, all, error).with_context(name)?;
                }
            }
            accesses.bytes.clear();
        }
        if !more {
            let result = match fs::write(maps, &records.bytes) {
                // The trace has left no room for them.
                Err(error) if written > 0 => {
                    let cut = make_room(&file, written, written, error).with_context(name)?.1;
                    *unwritten = Unwritten { accesses: unwritten.accesses + cut.accesses, ..cut };
                    fs::write(maps, &records.bytes)
                }
                result => result,
            };
            return result.with_context(|| maps.display().to_string());
        }
    }
}

/// Cuts a quarter off a trace that has filled its disk: room for the misses that are made of the rest. Of `all` its bytes
/// those up to `written` are in the file. Returns those that stay.
fn make_room(
    file: &File,
    written: u64,
    all: u64,
    error: std::io::Error,
) -> std::io::Result<(u64, Unwritten)> {
    let records = |bytes: u64| bytes.saturating_sub(trace::HEADER as u64) / RECORD;
    let kept = records(written / 4 * 3);
    let length = trace::HEADER as u64 + kept * RECORD;
    file.set_len(length)?;
    Ok((length, Unwritten { accesses: records(all) - kept, why: Some(error) }))
}

/// Bytes of an access with its value in a trace.
const RECORD: u64 = 24;

/// The kernel's name of a command's process: at most 15 bytes of its file's name.
fn comm(command: &[String]) -> String {
    command.first().map_or("", |c| c.rsplit('/').next().unwrap_or(c)).chars().take(15).collect()
}

/// Every access on the bus, by what it meant.
fn account(run: &Run, bus: &Bus, c: &Counts) -> Result<()> {
    let monitor = &bus.monitor;
    let clock = json!({"name": "host", "tsc_hz": 1_000_000_000});
    let mut manifest = run.own_manifest()?;
    let text =
        json!({"vcpus": [{"cpu": 0, "instructions": null}], "clock": null, "stopped": manifest.stopped});
    fs::write(run.counts(), serde_json::to_vec_pretty(&text)?)?;
    let words = &monitor.words;
    let text = json!({"method": "ptat", "clock": clock, "accesses": of_meaning(c),
        "region": words.region, "tables": words.tables.0, "escaped_tables": words.tables.1, "missed_brackets": words.missed,
        "overlooked_spaces": words.overlooked,
        "unwritten_accesses": bus.unwritten.accesses, "mailbox_writes": words.mailbox_writes, "before_the_module": words.before,
        "other_lines": monitor.others, "unknown_records": words.unknown});
    fs::write(run.tlb_counts(), serde_json::to_vec_pretty(&text)?)?;
    manifest.instruments = vec![Instrument::Tlb];
    manifest.set(OptionKey::Method, "ptat");
    manifest.clock.name = "host".into();
    Ok(run.write_manifest(&manifest)?)
}
