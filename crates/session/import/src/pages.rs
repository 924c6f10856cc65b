// SPDX-License-Identifier: MIT OR Apache-2.0
//! Folders with PT files and dumps of the executable pages, as written by tracers of single programs.
//!
//! `xpages.txt`: a line `tgid va_hex size file` for each dump. `maps.txt`, optional: the same columns with the
//! path of the mapped file, and `tgid 0 0 CMD command line`. Each PT file is named after its process, `TGID_*.pt`. A
//! file with another name sees all pages.

use std::path::Path;

use crate::error::{read_file, read_text};
use crate::{Capture, ImportError, Module, Stream, Task};

/// Reads such a folder.
pub(crate) fn read(dir: &Path) -> Result<Capture, ImportError> {
    let mut capture = Capture::default();
    let owners = read_pages(dir, &mut capture)?;
    if dir.join("maps.txt").is_file() {
        read_maps(&dir.join("maps.txt"), &mut capture)?;
    }
    let entries = std::fs::read_dir(dir)
        .map_err(|source| ImportError::Io { path: dir.to_owned(), source })?
        .filter_map(|entry| entry.ok().map(|e| e.path()));
    let mut files: Vec<_> = entries.filter(|p| p.extension().is_some_and(|e| e == "pt")).collect();
    files.sort();
    for file in &files {
        let stem = file.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        let tgid = stem.split('_').next().and_then(|t| t.parse::<u32>().ok());
        let own = |&(i, owner): &(usize, u32)| Some(owner).filter(|&o| tgid == Some(o)).map(|_| i);
        let all: Vec<_> = owners.iter().copied().enumerate().collect();
        let mut regions: Vec<usize> = all.iter().filter_map(own).collect();
        if regions.is_empty() {
            regions = (0..owners.len()).collect();
        }
        let regions = regions.into_iter().map(|index| capture.placed(index)).collect();
        capture.streams.push(Stream { label: stem, pt: read_file(file)?, regions, first: None });
    }
    if capture.streams.is_empty() {
        return Err(ImportError::format(dir, "folder", "at least one *.pt file beside xpages.txt"));
    }
    Ok(capture)
}

/// Reads the pages; returns the process of each region.
fn read_pages(dir: &Path, capture: &mut Capture) -> Result<Vec<u32>, ImportError> {
    let list = dir.join("xpages.txt");
    let mut owners = Vec::new();
    for line in rows(&list)? {
        // The name must stay inside the folder, because it comes from outside.
        let name = Path::new(&line.name).file_name();
        let file = dir.join(name.ok_or_else(|| line.wrong(&list, "a file name"))?);
        let bytes = read_file(&file)?;
        if bytes.len() as u64 != line.size {
            capture.notes.push(format!("{}: {} bytes, listed as {}", line.name, bytes.len(), line.size));
        }
        capture.add_region(line.va, bytes);
        owners.push(line.tgid);
    }
    Ok(owners)
}

fn read_maps(list: &Path, capture: &mut Capture) -> Result<(), ImportError> {
    for line in rows(list)? {
        if let Some(command) = line.name.strip_prefix("CMD ") {
            let program = command.split_whitespace().next().unwrap_or_default();
            let comm = program.rsplit('/').next().unwrap_or_default().to_owned();
            capture.tasks.push(Task { pid: line.tgid, tgid: line.tgid, comm, t: 0 });
        } else if line.size > 0 {
            let end = line.va.saturating_add(line.size);
            let (path, pid, start) = (line.name, line.tgid, line.va);
            capture.modules.push(Module { path, file: None, pid, start, end, pgoff: 0, asid: 0, t: 0 });
        }
    }
    Ok(())
}

/// A line of either list.
struct Row {
    number: usize,
    tgid: u32,
    va: u64,
    size: u64,
    name: String,
}

impl Row {
    fn wrong(&self, list: &Path, expected: &str) -> ImportError {
        ImportError::format(list, format!("line {}", self.number), expected)
    }
}

fn rows(list: &Path) -> Result<Vec<Row>, ImportError> {
    let mut rows = Vec::new();
    for (i, line) in read_text(list)?.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let row = parse_row(i + 1, line)
            .ok_or_else(|| ImportError::format(list, format!("line {}", i + 1), "`tgid va_hex size name`"))?;
        rows.push(row);
    }
    Ok(rows)
}

fn parse_row(number: usize, line: &str) -> Option<Row> {
    let mut parts = line.trim().splitn(4, ' ');
    let tgid = parts.next()?.parse().ok()?;
    let va = u64::from_str_radix(parts.next()?, 16).ok()?;
    let size = parts.next()?.parse().ok()?;
    Some(Row { number, tgid, va, size, name: parts.next()?.trim().to_owned() })
}
