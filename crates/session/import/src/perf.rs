// SPDX-License-Identifier: MIT OR Apache-2.0
//! DynamoRIO's drpt2trace folders: `pt.bin`, and perf records in `*.sideband.pevent`.
//!
//! The sideband is a bare sequence of perf records ([`crate::perfdata`]), without the attributes that define their
//! trailers. Used here: the mappings of files, the program's name, and the conversion of TSC to time.

use std::path::{Path, PathBuf};

use crate::elf::{is_elf, parse};
use crate::error::read_file;
use crate::{Capture, ImportError, Module, Placed, Stream, Task};
use kprism_flow::clock::PerfTime;
use kprism_perfdata::{Contents, Record, records};

/// Reads such a folder.
pub(crate) fn read(dir: &Path) -> Result<Capture, ImportError> {
    let mut capture = Capture::default();
    let pt = read_file(&dir.join("pt.bin"))?;
    // The traced CPU's own records come last, because the last name of a process is kept.
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
    capture.streams.push(Stream { label: "pt.bin".to_owned(), pt, regions, first: None });
    Ok(capture)
}

/// Loads the mapped part of a file, if the capture has the file.
fn load(dir: &Path, capture: &mut Capture, index: usize) -> Result<Option<Placed>, ImportError> {
    let module = &capture.modules[index];
    let Some(file) = find_file(dir, &module.path) else { return Ok(None) };
    let bytes = read_file(&file)?;
    let start = usize::try_from(module.pgoff).unwrap_or(usize::MAX).min(bytes.len());
    let len = usize::try_from(module.end.saturating_sub(module.start)).unwrap_or(usize::MAX);
    let shown = bytes.slice(start..start.saturating_add(len));
    let va = module.start;
    capture.modules[index].file = Some(file);
    Ok(Some(capture.add_region(va, shown)))
}

/// Without a sideband: every program in the folder at its own addresses.
fn lone_programs(dir: &Path, capture: &mut Capture) -> Result<Vec<Placed>, ImportError> {
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

/// A file of the traced machine, in the folder: by its whole path, or by its name alone.
pub(crate) fn find_file(dir: &Path, path: &str) -> Option<PathBuf> {
    let inside: PathBuf =
        Path::new(path).components().filter(|c| matches!(c, std::path::Component::Normal(_))).collect();
    let whole = dir.join(&inside);
    let alone = dir.join(inside.file_name()?);
    [whole, alone].into_iter().find(|p| p.is_file())
}

/// Reads the records of a sideband file.
fn read_sideband(path: &Path, capture: &mut Capture) -> Result<(), ImportError> {
    let bytes = read_file(path)?;
    let mut contents = Contents::default();
    records(&bytes, 0..bytes.len(), &mut contents);
    if let Some(note) = contents.notes.first() {
        let (place, what) = note.split_once(": ").unwrap_or(("records", note));
        return Err(ImportError::format(path, place, format!("a whole perf record ({what})")));
    }
    for event in contents.events {
        match event.record {
            Record::Mmap(m) => capture.modules.push(Module {
                path: m.path,
                file: None,
                pid: m.pid,
                start: m.start,
                end: m.start.saturating_add(m.len),
                pgoff: m.pgoff,
                asid: 0,
                t: 0,
            }),
            Record::Comm { pid, tid, comm, .. } => {
                capture.tasks.retain(|task| task.pid != tid);
                capture.tasks.push(Task { pid: tid, tgid: pid, comm, t: 0 });
            }
            Record::TimeConv(conv) => {
                capture.clock.perf = PerfTime::new(conv.mult, conv.shift, conv.zero);
                capture.clock.tsc_hz = capture.clock.perf.map_or(0, |perf| perf.hz());
            }
            _ => {}
        }
    }
    Ok(())
}
