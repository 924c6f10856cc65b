// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detects the kind of capture at a path.

use std::path::{Path, PathBuf};

use crate::perfdata::{self, Search, is_perf_data};
use crate::{Capture, CodeFile, ImportError, lldb, pages, perf, raw, simplept};

/// A kind of capture, with its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A folder with `*.pt` and `xpages.txt`.
    Pages(PathBuf),
    /// One PT file.
    Raw(PathBuf),
    /// A drpt2trace folder.
    Drpt2trace(PathBuf),
    /// An LLDB bundle's description file.
    Lldb(PathBuf),
    /// A perf.data file or folder.
    PerfData(PathBuf),
    /// simple-pt's `.sideband` file, beside the streams.
    SimplePt(PathBuf),
}

/// Detects the capture at a path. A folder is identified by its files; a `.json` file is an LLDB bundle, a `.sideband`
/// file is simple-pt's, a file that begins like perf.data is one, any other file is PT.
///
/// # Errors
/// [`ImportError::Unknown`] when nothing fits.
pub fn detect(path: &Path) -> Result<Source, ImportError> {
    if path.is_dir() {
        let has = |name: &str| path.join(name).is_file();
        if has("xpages.txt") {
            return Ok(Source::Pages(path.to_owned()));
        } else if has("pt.bin") {
            return Ok(Source::Drpt2trace(path.to_owned()));
        } else if has("trace.json") {
            return Ok(Source::Lldb(path.join("trace.json")));
        } else if is_perf_data(&path.join("data")) {
            return Ok(Source::PerfData(path.to_owned()));
        } else if let Some(first) = simplept::sidebands(path).into_iter().next() {
            return Ok(Source::SimplePt(first));
        }
    } else if is_perf_data(path) {
        return Ok(Source::PerfData(path.to_owned()));
    } else if path.is_file() {
        let source = match path.extension() {
            Some(e) if e == "json" => Source::Lldb,
            Some(e) if e == simplept::EXTENSION => Source::SimplePt,
            _ => Source::Raw,
        };
        return Ok(source(path.to_owned()));
    }
    Err(ImportError::Unknown { path: path.to_owned() })
}

/// Reads a capture. `code` names further code: all code for [`Source::Raw`], and code missing in the capture (a
/// library, for example) for the others. `search` lists the places of files that perf does not copy.
///
/// # Errors
/// [`ImportError`], with the file and the place in it.
pub fn read(source: &Source, code: &[CodeFile], search: &Search) -> Result<Capture, ImportError> {
    let mut capture = match source {
        Source::Pages(dir) => pages::read(dir)?,
        Source::Raw(file) => raw::read(file)?,
        Source::Drpt2trace(dir) => perf::read(dir)?,
        Source::Lldb(json) => lldb::read(json)?,
        Source::PerfData(path) => perfdata::read(path, search)?,
        Source::SimplePt(sideband) => simplept::read(sideband, search)?,
    };
    if let Some(hz) = search.tsc_hz {
        if let Some(perf) = capture.clock.perf {
            return Err(ImportError::ClockIsTold { hz: perf.hz() });
        }
        capture.clock.tsc_hz = hz;
    }
    raw::add_code(&mut capture, code)?;
    capture.look_for_time();
    Ok(capture)
}
