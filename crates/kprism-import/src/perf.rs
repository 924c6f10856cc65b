// SPDX-License-Identifier: MIT OR Apache-2.0
//! DynamoRIO's drpt2trace folders: `pt.bin`, and perf records in `*.sideband.pevent`.
//!
//! The sideband is a bare sequence of perf records (kernel: `enum perf_event_type` in
//! `include/uapi/linux/perf_event.h`; from 64 on perf's own, `tools/lib/perf/include/perf/event.h`). Needed
//! here: which file was mapped where, the program's name, and the conversion of TSC to time.

use std::path::{Path, PathBuf};

use crate::elf::{is_elf, parse};
use crate::error::read_file;
use crate::{Capture, Clock, ImportError, Module, Stream, Task};

const MMAP: u32 = 1;
const COMM: u32 = 3;
const MMAP2: u32 = 10;
const TIME_CONV: u32 = 79;

/// Reads such a folder.
pub(crate) fn read(dir: &Path) -> Result<Capture, ImportError> {
    let mut capture = Capture::default();
    let pt = read_file(&dir.join("pt.bin"))?;
    // The traced CPU's own records last, as the later name of a process holds.
    for name in ["secondary.sideband.pevent", "primary.sideband.pevent"] {
        let path = dir.join(name);
        if path.is_file() {
            read_sideband(&path, &mut capture)?;
        }
    }
    let mut regions = Vec::new();
    for i in 0..capture.modules.len() {
        match load(dir, &mut capture, i)? {
            Some(region) => regions.push(region),
            None => capture.notes.push(format!("{}: not in the capture", capture.modules[i].path)),
        }
    }
    if capture.modules.is_empty() {
        regions = lone_programs(dir, &mut capture)?;
    }
    capture.streams.push(Stream { label: "pt.bin".to_owned(), pt, regions });
    Ok(capture)
}

/// Loads what a mapping shows of its file, if the capture has the file.
fn load(dir: &Path, capture: &mut Capture, index: usize) -> Result<Option<usize>, ImportError> {
    let module = &capture.modules[index];
    let Some(file) = find_file(dir, &module.path) else { return Ok(None) };
    let bytes = read_file(&file)?;
    let start = usize::try_from(module.pgoff).unwrap_or(usize::MAX).min(bytes.len());
    let len = usize::try_from(module.end.saturating_sub(module.start)).unwrap_or(usize::MAX);
    let shown = bytes[start..].iter().take(len).copied().collect();
    let va = module.start;
    capture.modules[index].file = Some(file);
    Ok(Some(capture.add_region(va, shown)))
}

/// Without a sideband: every program in the folder at the addresses it asks for.
fn lone_programs(dir: &Path, capture: &mut Capture) -> Result<Vec<usize>, ImportError> {
    let entries =
        std::fs::read_dir(dir).map_err(|source| ImportError::Io { path: dir.to_owned(), source })?;
    let mut files: Vec<PathBuf> =
        entries.filter_map(|e| e.ok().map(|e| e.path())).filter(|p| p.is_file()).collect();
    files.sort();
    let mut regions = Vec::new();
    for file in files {
        let bytes = read_file(&file)?;
        if is_elf(&bytes) {
            for segment in parse(&file, &bytes)?.code {
                regions.push(capture.add_region(segment.va, segment.bytes));
            }
        }
    }
    Ok(regions)
}

/// A file of the traced machine: under its whole path in the folder, or by its name alone.
pub(crate) fn find_file(dir: &Path, path: &str) -> Option<PathBuf> {
    let inside: PathBuf =
        Path::new(path).components().filter(|c| matches!(c, std::path::Component::Normal(_))).collect();
    let whole = dir.join(&inside);
    let alone = dir.join(inside.file_name()?);
    [whole, alone].into_iter().find(|p| p.is_file())
}

fn read_sideband(path: &Path, capture: &mut Capture) -> Result<(), ImportError> {
    let bytes = read_file(path)?;
    let mut pos = 0;
    while pos < bytes.len() {
        let rest = &bytes[pos..];
        let size = u16_at(rest, 6).map_or(0, usize::from);
        let Some(record) = rest.get(..size).filter(|r| r.len() >= 8) else {
            return Err(ImportError::format(path, format!("offset {pos}"), "a whole perf record"));
        };
        let kind = u32_at(record, 0).unwrap_or(0);
        if take_record(kind, &record[8..], capture).is_none() {
            return Err(ImportError::format(
                path,
                format!("offset {pos}"),
                format!("a longer record of type {kind}"),
            ));
        }
        pos += size;
    }
    Ok(())
}

/// Uses a record's body (without header). `None` when it is too short for its type.
fn take_record(kind: u32, body: &[u8], capture: &mut Capture) -> Option<()> {
    match kind {
        MMAP | MMAP2 => {
            let name_at = if kind == MMAP { 32 } else { 64 };
            let start = u64_at(body, 8)?;
            let module = Module {
                path: c_string(body.get(name_at..)?),
                file: None,
                pid: u32_at(body, 0)?,
                start,
                end: start.saturating_add(u64_at(body, 16)?),
                pgoff: u64_at(body, 24)?,
            };
            // MMAP2 also carries data mappings; PROT_EXEC is 4.
            if kind == MMAP || u32_at(body, 56)? & 4 != 0 {
                capture.modules.push(module);
            }
        }
        COMM => {
            let (tgid, pid) = (u32_at(body, 0)?, u32_at(body, 4)?);
            capture.tasks.retain(|task| task.pid != pid);
            capture.tasks.push(Task { pid, tgid, comm: c_string(body.get(8..)?) });
        }
        TIME_CONV => capture.clock.tsc_hz = Clock::hz_from_perf(u64_at(body, 8)?, u64_at(body, 0)?),
        _ => {}
    }
    Some(())
}

fn c_string(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_le_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}
