// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies a recording of ftrace into a run: `streams/ftrace`, `symbols/kallsyms`.
//!
//! Input: a text of `trace`, a kernel's log or both ([`logs`]), a trace.dat, or a folder with pages of the ring buffer
//! and the files needed to decode them. The folder may be copied from tracefs (`per_cpu/cpuN/trace_pipe_raw`,
//! `events/…/format`) or made by hand (`cpuN.raw`, `header_page`, `*formats.txt`). Output: files with the names that a
//! recording has, whatever their names were:
//!
//! `trace.dat`, or `trace.txt`, or `cpuN.raw`, `stats/cpuN`, `header_page`, `events/SYSTEM/NAME/format`, `dmesg` and
//! `cmdline` of a boot, `saved_cmdlines`, `saved_tgids`, `trace_clock`, `tracer`, `tracing_thresh`, `version`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use kprism_ftrace::{dat, text};

use crate::ImportError;
use crate::error::read_file;
use crate::logs::{self, Pair, Stamp};

/// Kind of a recording, with its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ftrace {
    /// trace-cmd's file.
    Dat(PathBuf),
    /// The text of `trace`, the kernel's log of the same time, or both.
    Text(Pair),
    /// A folder with pages of the ring buffer.
    Raw(PathBuf),
}

/// Detects the recording at a path; `None` if there is no ftrace.
///
/// # Errors
/// There are several recordings, or a log without data of a boot.
pub fn detect(path: &Path) -> Result<Option<Ftrace>, ImportError> {
    if path.is_dir() {
        if cpus(path).into_iter().any(|cpu| pages(path, cpu).is_some()) {
            return Ok(Some(Ftrace::Raw(path.to_owned())));
        }
        let pair = Pair::within(path)?;
        // A log alone may accompany a recording of another kind.
        let alone = |pair: &Pair| pair.trace.is_none() && crate::detect(path).is_ok();
        return pair.filter(|pair| !alone(pair)).map(checked).transpose();
    }
    let mut head = Vec::new();
    let file = fs::File::open(path).map_err(|source| ImportError::Io { path: path.to_owned(), source })?;
    if file.take(HEAD).read_to_end(&mut head).is_err() {
        return Ok(None);
    }
    if head.starts_with(dat::MAGIC) {
        return Ok(Some(Ftrace::Dat(path.to_owned())));
    }
    if let Some(pair) = Pair::beside(path) {
        return checked(pair).map(Some);
    }
    let head = unpacked(&head);
    if text::is_text(&head) {
        let pair = Pair { trace: Some(path.to_owned()), log: None };
        return Ok(Some(Ftrace::Text(pair)));
    }
    // A log may have any name. Initcalls come after pages of memory maps.
    let is_text = !head.contains(&0) && fs::metadata(path).is_ok_and(|file| file.len() < MOST_LOG);
    let is_log = is_text && logs::tells_initcalls(&unpacked(&read_file(path)?));
    Ok(is_log.then(|| Ftrace::Text(Pair { trace: None, log: Some(path.to_owned()) })))
}

/// Checks a pair's contents. The name alone does not make a file a trace.
fn checked(pair: Pair) -> Result<Ftrace, ImportError> {
    if let Some(trace) = &pair.trace {
        let mut head = Vec::new();
        let file = fs::File::open(trace).and_then(|file| file.take(HEAD).read_to_end(&mut head));
        file.map_err(|source| ImportError::Io { path: trace.clone(), source })?;
        if !text::is_text(&unpacked(&head)) {
            return Err(ImportError::format(trace, "its first lines", "the text of ftrace's trace"));
        }
    } else if let Some(log) = &pair.log
        && !logs::tells_initcalls(&unpacked(&read_file(log)?))
    {
        let expected = "initcalls, in a log of a boot with initcall_debug; of a suspend, import the trace \
                        (HOST_MODE_ftrace.txt): the log alone is not read";
        return Err(ImportError::format(log, "this log", expected));
    }
    Ok(Ftrace::Text(pair))
}

/// The description of the machine in the first lines of a text or log.
#[must_use]
pub fn stamp(found: &Ftrace) -> Option<Stamp> {
    let Ftrace::Text(pair) = found else { return None };
    let of = |path: &PathBuf| {
        let mut head = Vec::new();
        fs::File::open(path).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
        Stamp::read(&unpacked(&head))
    };
    pair.trace.iter().chain(&pair.log).find_map(of)
}

/// Maximum size of a file that is searched for a kernel's log, bytes.
const MOST_LOG: u64 = 1 << 28;

/// Number of bytes that determine a file's kind.
const HEAD: u64 = 1 << 16;

/// Maximum number of CPUs: NR_CPUS with MAXSMP (arch/x86/Kconfig), the most of any architecture.
const MOST_CPUS: u32 = 8192;

/// The CPUs that names in the folder mention, in order. To list it is cheaper than to ask for each CPU's names.
fn cpus(dir: &Path) -> BTreeSet<u32> {
    let number = |path: PathBuf| {
        let (_, rest) = path.file_name()?.to_str()?.rsplit_once("cpu")?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok().filter(|&cpu| cpu < MOST_CPUS)
    };
    let places = [dir.to_owned(), dir.join("per_cpu"), dir.join("stats")];
    places.iter().flat_map(|place| files(place)).filter_map(number).collect()
}

/// The file with a CPU's pages, under any of its names.
fn pages(dir: &Path, cpu: u32) -> Option<PathBuf> {
    let names = [
        format!("cpu{cpu}.raw"),
        format!("per_cpu/cpu{cpu}/trace_pipe_raw"),
        format!("trace_pipe_raw.cpu{cpu}"),
    ];
    names.iter().map(|name| dir.join(name)).find(|path| path.is_file())
}

/// First bytes of gzip data.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Unpacks gzip data as far as possible. Other data is returned unchanged.
fn unpacked(bytes: &[u8]) -> Vec<u8> {
    if !bytes.starts_with(&GZIP) {
        return bytes.to_vec();
    }
    let mut out = Vec::new();
    // A truncated file is one after the readable part.
    let _ = unpack(bytes, &mut out);
    out
}

/// Unpacks gzip data as far as possible. Returns why it ended early.
fn unpack(packed: impl Read, out: &mut impl Write) -> std::io::Result<Option<String>> {
    let mut decoder = flate2::read::MultiGzDecoder::new(packed).take(MOST_TEXT);
    let mut piece = vec![0; 1 << 16];
    loop {
        match decoder.read(&mut piece) {
            Ok(0) if decoder.limit() == 0 => return Ok(Some("more than 4 GiB of text".to_owned())),
            Ok(0) => return Ok(None),
            Ok(size) => out.write_all(&piece[..size])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Ok(Some(error.to_string())),
        }
    }
}

/// Copies a text, unpacked as far as possible. A file that is not whole is noted.
fn put_unpacked(from: &Path, to: &Path, notes: &mut Vec<String>) -> Result<(), ImportError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| ImportError::Io { path, source }
    };
    let mut head = Vec::new();
    let mut file = fs::File::open(from).map_err(at(from))?;
    Read::by_ref(&mut file).take(GZIP.len() as u64).read_to_end(&mut head).map_err(at(from))?;
    file.rewind().map_err(at(from))?;
    to.parent().map_or(Ok(()), fs::create_dir_all).map_err(at(to))?;
    let mut copy = fs::File::create(to).map_err(at(to))?;
    if head != GZIP {
        // The kernel copies.
        return std::io::copy(&mut file, &mut copy).map(drop).map_err(at(from));
    }
    let mut out = BufWriter::new(copy);
    let fault = unpack(BufReader::new(file), &mut out).map_err(at(to))?;
    out.flush().map_err(at(to))?;
    notes.extend(fault.map(|fault| format!("{}: {fault}; what comes before is imported", from.display())));
    Ok(())
}

/// Maximum size of text unpacked from one file, bytes.
const MOST_TEXT: u64 = 1 << 32;

/// Copies the recording into a run. `kallsyms` are the kernel's symbols, if they are not beside it. Missing parts are
/// reported.
///
/// # Errors
/// A file cannot be read or written, or the formats of the pages' records are missing.
pub fn copy(
    from: &Ftrace,
    kallsyms: Option<&Path>,
    streams: &Path,
    symbols: &Path,
) -> Result<Vec<String>, ImportError> {
    let to = streams.join("ftrace");
    let mut notes = Vec::new();
    let mut names = kallsyms.map(Path::to_owned);
    match from {
        Ftrace::Dat(path) => copy_file(path, &to.join("trace.dat"))?,
        Ftrace::Text(pair) => {
            for (path, name) in [(&pair.trace, "trace.txt"), (&pair.log, "dmesg")] {
                if let Some(path) = path {
                    put_unpacked(path, &to.join(name), &mut notes)?;
                }
            }
            if let Some(Stamp { kernel_command_line, .. }) = stamp(from)
                && !kernel_command_line.is_empty()
            {
                put(&to.join("cmdline"), kernel_command_line.as_bytes())?;
            }
        }
        Ftrace::Raw(dir) => {
            folder(dir, &to, &mut notes)?;
            let beside =
                ["kallsyms", "kallsyms.txt", "kallsyms.txt.gz", "kallsyms.gz"].map(|name| dir.join(name));
            names = names.or_else(|| beside.into_iter().find(|path| path.is_file()));
            if names.is_none() {
                notes.push(
                    "no kallsyms: functions have no names; give a copy of /proc/kallsyms with --kallsyms"
                        .into(),
                );
            }
        }
    }
    if let Some(path) = names {
        put_unpacked(&path, &symbols.join("kallsyms"), &mut notes)?;
    }
    Ok(notes)
}

fn folder(dir: &Path, to: &Path, notes: &mut Vec<String>) -> Result<(), ImportError> {
    for cpu in cpus(dir) {
        if let Some(path) = pages(dir, cpu) {
            copy_file(&path, &to.join(format!("cpu{cpu}.raw")))?;
        }
        let names = [format!("stats/cpu{cpu}"), format!("cpu{cpu}.stats"), format!("per_cpu/cpu{cpu}/stats")];
        if let Some(path) = names.iter().map(|name| dir.join(name)).find(|path| path.is_file()) {
            put(&to.join(format!("stats/cpu{cpu}")), &read_file(&path)?)?;
        }
    }
    let single = [
        ("header_page", &["header_page", "events/header_page"][..]),
        ("dmesg", &["dmesg", "dmesg.txt", "dmesg.txt.gz"]),
        ("cmdline", &["cmdline", "cmdline.txt", "proc_cmdline"]),
        ("saved_cmdlines", &["saved_cmdlines"]),
        ("saved_tgids", &["saved_tgids"]),
        ("trace_clock", &["trace_clock"]),
        ("tracer", &["tracer", "current_tracer"]),
        ("version", &["version", "uname"]),
        ("tracing_thresh", &["tracing_thresh"]),
    ];
    for (name, places) in single {
        match places.iter().map(|place| dir.join(place)).find(|path| path.is_file()) {
            Some(path) => put_unpacked(&path, &to.join(name), notes)?,
            None if name == "header_page" => {
                notes.push("no header_page: taken for pages of 4 KiB of a 64-bit kernel".into());
            }
            None => {}
        }
    }
    let mut formats = 0u32;
    for system in folders(&dir.join("events")) {
        for event in folders(&system) {
            let format = event.join("format");
            if let (true, Some(system), Some(event)) =
                (format.is_file(), system.file_name(), event.file_name())
            {
                put(&to.join("events").join(system).join(event).join("format"), &read_file(&format)?)?;
                formats += 1;
            }
        }
    }
    // Several formats in one file, in a row.
    for path in files(dir).into_iter().filter(|p| p.to_string_lossy().ends_with("formats.txt")) {
        let bytes = read_file(&path)?;
        let text = String::from_utf8_lossy(&bytes);
        for format in text.split("name: ").skip(1) {
            let name: String = format
                .lines()
                .next()
                .unwrap_or_default()
                .chars()
                .filter(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            put(&to.join("events/other").join(name).join("format"), format!("name: {format}").as_bytes())?;
            formats += 1;
        }
    }
    if formats == 0 {
        let expected = "events/SYSTEM/NAME/format beside the pages: copy them from /sys/kernel/tracing";
        return Err(ImportError::format(dir, "events", expected));
    }
    Ok(())
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    paths.sort();
    paths
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    files(dir).into_iter().filter(|path| path.is_dir()).collect()
}

/// Copies a file unchanged. The kernel copies, or shares extents if the file system can.
fn copy_file(from: &Path, to: &Path) -> Result<(), ImportError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| ImportError::Io { path, source }
    };
    to.parent().map_or(Ok(()), fs::create_dir_all).map_err(at(to))?;
    fs::copy(from, to).map(drop).map_err(at(from))
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), ImportError> {
    let at = |source| ImportError::Io { path: path.to_owned(), source };
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(at)?;
    fs::write(path, bytes).map_err(at)
}
