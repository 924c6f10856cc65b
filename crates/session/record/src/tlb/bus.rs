// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the bus to misses: what a recording in the guest (`super::ptat`) and an import of a capture have in common, and the
//! import.
//!
//! In: a trace of accesses and mappings with times, as files in a run. Out: the stream of misses, the sideband, counts.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use kprism_image::symbols::under_root;
use kprism_import::bus::{self, Capture};
use kprism_session::{Progress, date};
use kprism_store::{Instrument, Manifest, OptionKey, Run, RunKind};
use kprism_tlb::Access;
use kprism_tlb::bus::layout::Losses;
use kprism_tlb::bus::rpt::{self, Counts};
use kprism_tlb::bus::trace::{Merge, Rate};
use kprism_tlb::bus::words::Vma;
use kprism_tlb::stream::{Event, Miss, Writer};
use serde_json::{Value, json};

/// Bytes of misses that are written at once.
const CHUNK: usize = 1 << 20;

/// Makes misses of the two files. No model took part, so the stream names no geometry.
pub(super) fn misses(run: &Run, region: (u64, u64), trace: &Path, maps: &Path) -> Result<Counts> {
    let (header, mut first) = bus::accesses(trace)?;
    let rate = Rate::new(header.hz, header.start);
    let begin = first.next().and_then(Result::ok).map_or(0, |a| rate.nanos(a.time));
    drop(first);
    let merge = Merge::of(vec![bus::accesses(trace)?])?;
    let path = run.tlb_misses(0);
    let name = || path.display().to_string();
    let mut file = BufWriter::new(File::create(&path).with_context(name)?);
    let mut stream = Writer::new(&[]);
    let (mut task, mut failed) = (None, None);
    let counts = rpt::replay(region, bus::records(maps)?, merge, |miss| {
        let pid = miss.mapping.pid;
        if task != Some(pid) {
            task = Some(pid);
            stream.event(&Event::Task { pid, tgid: pid });
        }
        stream.event(&Event::Entry(miss.entry));
        stream.event(&Event::Miss(Miss {
            ns: miss.time - begin,
            va: miss.mapping.va,
            ip: 0,
            // The bus shows walks, not what they were for.
            access: Access::Load,
            size: miss.mapping.size,
            first: 1,
            last: 1,
        }));
        if stream.bytes.len() >= CHUNK {
            failed = failed.take().or(file.write_all(&stream.bytes).err());
            stream.bytes.clear();
        }
    });
    failed.map_or(Ok(()), Err).with_context(name)?;
    file.write_all(&stream.bytes).and_then(|()| file.flush()).with_context(name)?;
    Ok(counts)
}

/// Accesses by what they meant.
pub(super) fn of_meaning(c: &Counts) -> Value {
    json!({"all": c.all(), "misses": c.misses, "upper": c.upper, "absent": c.absent, "kernel": c.kernel,
        "census": c.census, "marked": c.marked, "mapped": c.mapped, "unmapped": c.unmapped, "clear": c.clear, "unsure": c.unsure,
        "unknown": c.unknown, "outside": c.outside})
}

/// Names of processes, and the mappings that each had at its end.
pub(super) fn sideband(run: &Run, names: &[(u32, String)], vmas: &[Vma]) -> Result<()> {
    let mut text = Vec::new();
    for (pid, comm) in names {
        writeln!(text, "{}", json!({"k": "comm", "t": 0, "cpu": 0, "pid": pid, "tgid": pid, "comm": comm}))?;
    }
    for vma in vmas {
        let path = String::from_utf8_lossy(&vma.path);
        let line = json!({"k": "mmap", "t": 0, "cpu": 0, "pid": vma.pid, "tgid": vma.pid, "asid": 0,
            "start": vma.start, "end": vma.end, "pgoff": vma.offset, "exec": vma.executable, "path": path});
        writeln!(text, "{line}")?;
    }
    Ok(fs::write(run.sideband(), text)?)
}

/// Makes a run of the capture that the file `description` describes. Files that processes mapped are looked for under
/// `root`, if there is one.
pub(crate) fn import(
    description: &Path,
    root: Option<&Path>,
    output: &Path,
    progress: &Progress,
) -> Result<Run> {
    let run = Run::create(output)?;
    fs::create_dir_all(run.tlb())?;
    let (trace, maps) = (run.tlb().join("bus0.trace"), run.tlb().join("mappings"));
    let capture = bus::copy(description, &trace, &maps)?;
    let counts = misses(&run, capture.region, &trace, &maps)?;
    sideband(&run, &capture.names, &capture.vmas)?;
    let damage: Vec<String> =
        capture.damage.iter().map(|at| format!("{at}; what came before is used")).collect();
    let text = json!({"vcpus": [{"cpu": 0, "instructions": null}], "clock": null, "stopped": null});
    fs::write(run.counts(), serde_json::to_vec_pretty(&text)?)?;
    fs::write(run.tlb_counts(), serde_json::to_vec_pretty(&told(&capture, &counts, &damage))?)?;
    let mut manifest = Manifest::new(RunKind::Import, 1);
    manifest.created = date::now();
    manifest.command.clone_from(&capture.command);
    manifest.clock.name = "bus".into();
    manifest.clock.tsc_hz = 1_000_000_000;
    manifest.instruments = vec![Instrument::Tlb];
    manifest.set(OptionKey::Method, "ptat");
    manifest.set(OptionKey::Source, description.display().to_string());
    run.write_manifest(&manifest)?;
    for note in losses(&capture).into_iter().chain(names(&run, &capture, root)?) {
        progress.note(&note);
    }
    Ok(run)
}

/// Everything that the capture tells of itself, as `counts.json` has it.
fn told(capture: &Capture, counts: &Counts, damage: &[String]) -> Value {
    let losses: Vec<Losses> = capture.boards.iter().filter_map(|board| board.losses).collect();
    let sum = |of: fn(&Losses) -> u64| losses.iter().map(of).sum::<u64>();
    // Of boards whose records have no numbers it is not known what they lost.
    let lost = (losses.len() == capture.boards.len()).then(|| sum(Losses::lost));
    let words = capture.words.as_ref();
    let steps = capture.steps.unwrap_or_default();
    let boards: Vec<_> = capture
        .boards
        .iter()
        .map(|board| {
            let file = board.path.file_name().unwrap_or_default().to_string_lossy();
            json!({"file": file, "losses": board.losses.map(|l| json!({"records": l.records, "only_time": l.only_time,
                "gaps": l.gaps, "missing": l.missing, "marks": l.marks, "marked": l.marked}))})
        })
        .collect();
    json!({"method": "ptat", "clock": {"name": "bus", "tsc_hz": 1_000_000_000}, "accesses": of_meaning(counts),
        "region": capture.region, "tables": words.map(|w| w.tables.0), "escaped_tables": words.map_or(0, |w| w.tables.1),
        "missed_brackets": words.map_or(0, |w| w.missed), "overlooked_spaces": words.map_or(0, |w| w.overlooked), "unwritten_accesses": 0,
        "mailbox_writes": words.map(|w| w.mailbox_writes), "before_the_module": words.map(|w| w.before),
        "unknown_records": words.map_or(0, |w| w.unknown),
        "boards": boards, "lost_records": lost, "late_accesses": capture.late, "tags": steps.tags,
        "out_of_step": steps.out_of_step, "without_entry": steps.without_entry, "never_mapped": steps.never_mapped,
        "notes": damage})
}

/// Remarks on what boards lost.
fn losses(capture: &Capture) -> Vec<String> {
    let of_board = |board: &bus::Board| {
        let l = board.losses.filter(|l| l.lost() > 0)?;
        Some(format!(
            "{}: at least {} records are missing, in {} places: misses among them are not seen, and times after them may be \
             early",
            board.path.display(),
            l.lost(),
            l.gaps.max(l.marks)
        ))
    };
    capture.boards.iter().filter_map(of_board).collect()
}

/// Copies the files that processes mapped, for the names of variables. Returns remarks on what has no name.
fn names(run: &Run, capture: &Capture, root: Option<&Path>) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    if capture.vmas.is_empty() {
        notes.push(
            "no process's mappings are known, so objects have no names: name copies of /proc/PID/maps in the description \
             (`processes`)"
                .into(),
        );
    }
    let paths: BTreeSet<_> = capture.vmas.iter().map(|vma| String::from_utf8_lossy(&vma.path)).collect();
    let paths: Vec<_> = paths.iter().filter(|path| path.starts_with('/')).collect();
    let Some(root) = root else {
        if !paths.is_empty() {
            notes.push(format!(
                "{} mapped files are not looked for, so their variables have no names: give the traced machine's root with \
                 --symfs",
                paths.len()
            ));
        }
        return Ok(notes);
    };
    let mut missing = Vec::new();
    for path in paths {
        let Some((from, to)) = under_root(root, path).zip(under_root(&run.root(), path)) else { continue };
        match fs::metadata(&from) {
            Ok(meta) if meta.is_file() => {
                fs::create_dir_all(to.parent().unwrap_or(&to))?;
                fs::copy(&from, &to).with_context(|| from.display().to_string())?;
            }
            // Devices that a program mapped.
            Ok(_) => {}
            Err(_) => missing.push(path),
        }
    }
    if let Some(first) = missing.first() {
        notes.push(format!("{} mapped files are not below --symfs: {first}", missing.len()));
    }
    Ok(notes)
}
