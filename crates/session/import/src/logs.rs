// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds texts that belong together: ftrace's `trace` and the kernel's log of the same boot or suspend, as pm-graph's
//! bootgraph and sleepgraph write them (`HOST_MODE_ftrace.txt` and `HOST_MODE_dmesg.txt`, with `-gzip` `.txt.gz`).
//!
//! Input: one of the two files, or a folder with one or both. Output: [`Pair`]. Both files begin with lines about the
//! machine:
//!
//! ```text
//! # boot-112226-093000 myhost boot 6.12.0
//! # sysinfo | man:… | plat:… | numcpu:8
//! # command | bootgraph -f
//! # kparams | BOOT_IMAGE=/vmlinuz root=… initcall_debug log_buf_len=32M
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use crate::ImportError;

/// A trace, a log, or both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pair {
    /// The text of `trace`.
    pub trace: Option<PathBuf>,
    /// The kernel's log.
    pub log: Option<PathBuf>,
}

const TRACE: &str = "ftrace";
const LOG: &str = "dmesg";

impl Pair {
    /// The file and its counterpart beside it. `None` if the file's name is not that of such a pair.
    #[must_use]
    pub fn beside(file: &Path) -> Option<Self> {
        let name = file.file_name()?.to_str()?;
        let (stem, kind) = split(name)?;
        let other = |kind: &str| {
            let names = [format!("{stem}{kind}.txt"), format!("{stem}{kind}.txt.gz")];
            names.iter().map(|name| file.with_file_name(name)).find(|path| path.is_file())
        };
        Some(match kind {
            TRACE => Pair { trace: Some(file.to_owned()), log: other(LOG) },
            _ => Pair { trace: other(TRACE), log: Some(file.to_owned()) },
        })
    }

    /// The pair in a folder; `None` if there is none.
    ///
    /// # Errors
    /// The folder has more than one.
    pub fn within(folder: &Path) -> Result<Option<Self>, ImportError> {
        let mut found = Pair::default();
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        files.sort();
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(kind) = kind(&name) else { continue };
            let place = if kind == TRACE { &mut found.trace } else { &mut found.log };
            if let Some(first) = place.replace(file) {
                let first = first.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let one = format!("one recording, but there are {first} and {name}: name one of them");
                return Err(ImportError::format(folder, "its files", one));
            }
        }
        Ok((found != Pair::default()).then_some(found))
    }
}

/// The kind of a file in a folder, by its name.
fn kind(name: &str) -> Option<&'static str> {
    match name {
        "trace" | "trace.txt" | "trace.txt.gz" => Some(TRACE),
        "dmesg" => Some(LOG),
        _ => split(name).map(|(_, kind)| kind),
    }
}

/// The part of a file's name before the kind, and the kind.
fn split(name: &str) -> Option<(&str, &'static str)> {
    let name = name.strip_suffix(".gz").unwrap_or(name).strip_suffix(".txt")?;
    [TRACE, LOG].into_iter().find_map(|kind| {
        let stem = name.strip_suffix(kind)?;
        (stem.is_empty() || stem.ends_with('_')).then_some((stem, kind))
    })
}

/// Returns true if the bytes are a kernel's log with initcalls. A suspend's log has such lines for devices.
#[must_use]
pub fn tells_initcalls(log: &[u8]) -> bool {
    log.split(|&byte| byte == b'\n').any(|line| {
        let line = String::from_utf8_lossy(line);
        let call = line.split_once("calling  ").map(|(_, call)| call);
        call.is_some_and(|call| call.split_once(" @ ").is_some_and(|(symbol, _)| symbol.contains("+0x")))
    })
}

/// The description of the machine in a file's first lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stamp {
    /// `boot`, `mem`, `freeze`, …
    pub mode: String,
    /// The kernel's release.
    pub release: String,
    /// The command of the tool that recorded it.
    pub command: String,
    /// The kernel's command line.
    pub kernel_command_line: String,
}

impl Stamp {
    /// Parses the first lines; `None` if they are missing.
    #[must_use]
    pub fn read(text: &[u8]) -> Option<Self> {
        let mut found: Option<Stamp> = None;
        for line in text.split(|&byte| byte == b'\n').take_while(|line| line.starts_with(b"#")) {
            let line = String::from_utf8_lossy(line);
            let Some(says) = line.strip_prefix("# ") else { continue };
            if let (Some(command), Some(found)) = (says.strip_prefix("command | "), &mut found) {
                found.command = command.trim().to_owned();
            } else if let (Some(words), Some(found)) = (says.strip_prefix("kparams | "), &mut found) {
                found.kernel_command_line = words.trim().to_owned();
            } else if let (Some((mode, release)), None) = (stamp(says), &found) {
                found = Some(Stamp { mode, release, ..Stamp::default() });
            }
        }
        found
    }
}

/// `boot-MMDDYY-HHMMSS HOST MODE RELEASE`.
fn stamp(line: &str) -> Option<(String, String)> {
    let mut words = line.split_whitespace();
    let mut parts = words.next()?.rsplitn(3, '-');
    let six =
        |part: Option<&str>| part.is_some_and(|p| p.len() == 6 && p.bytes().all(|b| b.is_ascii_digit()));
    if !six(parts.next()) || !six(parts.next()) {
        return None;
    }
    let (_, mode, release) = (words.next()?, words.next()?, words.next()?);
    Some((mode.to_owned(), release.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_pair() {
        assert_eq!(split("host_boot_ftrace.txt"), Some(("host_boot_", TRACE)));
        assert_eq!(split("host_mem_dmesg.txt.gz"), Some(("host_mem_", LOG)));
        assert_eq!((split("dmesg.txt"), split("ftrace.txt")), (Some(("", LOG)), Some(("", TRACE))));
        for other in ["host_boot.html", "xdmesg.txt", "dmesg", "trace.txt", "host_dmesg.txt.xz", ""] {
            assert_eq!(split(other), None, "{other}");
        }
    }

    #[test]
    fn initcalls_are_no_devices() {
        let devices = "[ 1.0] calling  usb1+ @ 4, parent: 0000:00:14.0\n[ 1.1] calling  nothing\n";
        assert!(!tells_initcalls(devices.as_bytes()) && !tells_initcalls(b"\xff calling  x"));
        assert!(tells_initcalls(
            format!("{devices}<7>[    3.4] calling  ext4_init_fs+0x0/0x230 [ext4] @ 132\n").as_bytes()
        ));
    }

    #[test]
    fn lines_on_the_machine() {
        let text = "# boot-112226-093000 my-host boot 6.12.0-x\n# sysinfo | man:a | plat:b\n\
            # command | bootgraph -f\n# kparams | root=/dev/sda1 quiet\n# tracer: function_graph\n 0) x\n# command | no\n";
        let found = Stamp::read(text.as_bytes()).unwrap();
        assert_eq!((found.mode.as_str(), found.release.as_str()), ("boot", "6.12.0-x"));
        assert_eq!(found.kernel_command_line, "root=/dev/sda1 quiet");
        assert_eq!(found.command, "bootgraph -f");
        for other in [
            "# tracer: nop\n",
            "",
            "# command | x\n",
            "# boot-1-2 h boot 6\n",
            "[ 0.0] # boot-112226-093000 h b 6\n",
        ] {
            assert_eq!(Stamp::read(other.as_bytes()), None, "{other}");
        }
    }
}
