// SPDX-License-Identifier: MIT OR Apache-2.0
//! The description of a capture: `capture.json`, with what files cannot say of themselves. An unknown key is refused.

use std::io::Read;
use std::path::{Path, PathBuf};

use kprism_tlb::bus::layout::{HMTT, Layout, Order};
use kprism_tlb::bus::trace::{HEADER, Header, MAGIC};
use kprism_tlb::bus::words::Vma;
use serde::Deserialize;
use serde::de::Error as _;

use super::read::{Accesses, Shape};
use crate::ImportError;
use crate::error::{read_file, read_text};

/// Name of a description in a folder.
pub const FILE: &str = "capture.json";

/// A number: 4096 or "0x1000".
#[derive(Debug, Clone, Copy)]
pub(super) struct Number(pub u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(from)?;
        let number = match &value {
            serde_json::Value::String(text) => {
                text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok())
            }
            other => other.as_u64(),
        };
        number
            .map(Number)
            .ok_or_else(|| D::Error::custom(format!("expected 4096 or \"0x1000\", not {value}")))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Board {
    file: PathBuf,
    /// Layout of its records, or `hmtt`; none for a file that begins with its own header.
    record: Option<String>,
    order: Option<ByteOrder>,
    hz: Option<u64>,
    start: Option<i64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ByteOrder {
    Little,
    Big,
}

/// The kernel's records.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mappings {
    pub file: PathBuf,
    /// `narrow`, `wide` or `hmtt`.
    pub form: String,
    /// Ticks per second of its times; the first board's, if it has none.
    pub hz: Option<u64>,
    /// First address that is a tag.
    pub tags: Option<Number>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Process {
    pid: u32,
    comm: Option<String>,
    /// A copy of its /proc/PID/maps.
    maps: Option<PathBuf>,
}

/// Addresses that are not memory: what is said to be there, and beyond, lies above.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hole {
    start: u64,
    bytes: u64,
}

impl Hole {
    /// The processor's address for a memory's.
    pub fn beyond(self, address: u64) -> u64 {
        if address < self.start { address } else { address.saturating_add(self.bytes) & ((1 << 48) - 1) }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    boards: Vec<Board>,
    mappings: Option<Mappings>,
    region: Option<(Number, Number)>,
    hole: Option<(Number, Number)>,
    #[serde(default)]
    processes: Vec<Process>,
    #[serde(default)]
    command: Vec<String>,
}

/// A description, and the folder that its files are in.
pub(super) struct Description {
    path: PathBuf,
    json: Json,
    pub mappings: Option<Mappings>,
    pub command: Vec<String>,
}

/// Tells whether a file is a description, whatever its name.
pub(super) fn is_one(path: &Path) -> bool {
    let named = path.extension().is_some_and(|end| end == "json");
    named
        && read_file(path).is_ok_and(|text| {
            serde_json::from_slice::<serde_json::Value>(&text).is_ok_and(|json| {
                json["boards"].as_array().is_some_and(|all| all.iter().all(|b| b["file"].is_string()))
            })
        })
}

impl Description {
    pub fn read(path: &Path) -> Result<Self, ImportError> {
        let text = read_text(path)?;
        let mut json: Json = serde_json::from_str(&text).map_err(|error| {
            let place = format!("line {}, column {}", error.line(), error.column());
            ImportError::format(path, place, format!("the description of a capture: {error}"))
        })?;
        if json.boards.is_empty() {
            return Err(ImportError::format(path, "boards", "at least one"));
        }
        let (mappings, command) = (json.mappings.take(), std::mem::take(&mut json.command));
        Ok(Description { path: path.to_owned(), json, mappings, command })
    }

    /// A file that the description names.
    pub fn beside(&self, file: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(file)
    }

    fn wrong(&self, place: impl ToString, expected: impl ToString) -> ImportError {
        ImportError::format(&self.path, place, expected)
    }

    /// The boards, with their clocks, ready to be read.
    pub fn boards(&self) -> Result<Vec<(Header, Accesses)>, ImportError> {
        (0..).zip(&self.json.boards).map(|(number, board)| self.board(number, board)).collect()
    }

    fn board(&self, number: u32, board: &Board) -> Result<(Header, Accesses), ImportError> {
        let path = self.beside(&board.file);
        let place = |what: &str| format!("boards[{number}].{what}");
        let Some(text) = &board.record else {
            for (given, what) in [
                (board.order.is_some(), "order"),
                (board.hz.is_some(), "hz"),
                (board.start.is_some(), "start"),
            ] {
                if given {
                    let why = "nothing: without `record` the file has a header of its own, which says it";
                    return Err(self.wrong(place(what), why));
                }
            }
            let mut head = Vec::new();
            let file = std::fs::File::open(&path);
            file.and_then(|file| file.take(HEADER as u64).read_to_end(&mut head))
                .map_err(|source| ImportError::Io { path: path.clone(), source })?;
            if !head.starts_with(MAGIC) {
                return Err(ImportError::format(
                    &path,
                    "byte 0",
                    "KPBUS001; if its records are a capture device's, describe them with `record` (\"hmtt\", or fields)",
                ));
            }
            let header = Header::parse(&head)
                .map_err(|e| ImportError::format(&path, format!("byte {}", e.offset), e.what))?;
            // The description's order of boards holds, so that two files may have been made as board 0.
            let accesses = Accesses::open(&path, number, Shape::Own(header))?;
            return Ok((Header { board: number, ..header }, accesses));
        };
        let layout = Layout::parse(if text == "hmtt" { HMTT } else { text })
            .map_err(|error| self.wrong(place("record"), format!("a layout of records: {error}")))?;
        let Some(hz) = board.hz.filter(|hz| *hz > 0) else {
            return Err(self
                .wrong(place("hz"), "ticks of the board's clock per second, which its records do not tell"));
        };
        let order = match board.order {
            Some(ByteOrder::Big) => Order::Big,
            Some(ByteOrder::Little) | None => Order::Little,
        };
        let header =
            Header { board: number, hz, values: layout.has_values(), start: board.start.unwrap_or(0) };
        Ok((header, Accesses::open(&path, number, Shape::device(layout, order))?))
    }

    fn range(&self, name: &str, of: Option<(Number, Number)>) -> Result<Option<(u64, u64)>, ImportError> {
        match of {
            Some((first, end)) if first.0 >= end.0 || end.0 > 1 << 48 => {
                Err(self.wrong(name, "[first address, end], below 2^48"))
            }
            of => Ok(of.map(|(first, end)| (first.0, end.0))),
        }
    }

    pub fn region(&self) -> Result<Option<(u64, u64)>, ImportError> {
        self.range("region", self.json.region)
    }

    pub fn hole(&self) -> Result<Option<Hole>, ImportError> {
        let range = self.range("hole", self.json.hole)?;
        Ok(range.map(|(start, end)| Hole { start, bytes: end - start }))
    }

    pub fn names(&self) -> Vec<(u32, String)> {
        let named = |process: &Process| Some((process.pid, process.comm.clone()?));
        self.json.processes.iter().filter_map(named).collect()
    }

    /// Mappings of the described processes.
    pub fn vmas(&self) -> Result<Vec<Vma>, ImportError> {
        let mut all = Vec::new();
        for process in &self.json.processes {
            let Some(file) = &process.maps else { continue };
            let path = self.beside(file);
            for (number, line) in (1..).zip(read_text(&path)?.lines()) {
                let vma = maps_line(process.pid, line).ok_or_else(|| {
                    ImportError::format(&path, format!("line {number}"), "a line of /proc/PID/maps")
                })?;
                all.push(vma);
            }
        }
        Ok(all)
    }
}

/// `7f00-7f10 r-xp 00001000 08:01 42   /path`, as proc(5) has it.
fn maps_line(pid: u32, line: &str) -> Option<Vma> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let rights = words.next()?;
    let offset = hex(words.next()?)?;
    let (_device, _inode) = (words.next()?, words.next()?);
    // A path may have spaces in it.
    let path =
        words.next().map_or("", |first| line.find(first).map_or("", |at| line.get(at..).unwrap_or("")));
    let executable = rights.contains('x');
    (start < end).then(|| Vma {
        pid,
        start,
        end,
        offset,
        executable,
        path: path.trim_end().as_bytes().to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_maps() {
        let line = "7f0010000000-7f0010021000 r-xp 00003000 fe:01 12  /opt/my programs/a b\u{20}";
        let vma = maps_line(7, line).unwrap();
        assert_eq!(
            (vma.start, vma.end, vma.offset, vma.executable),
            (0x7f00_1000_0000, 0x7f00_1002_1000, 0x3000, true)
        );
        assert_eq!(vma.path, b"/opt/my programs/a b");
        assert_eq!(maps_line(7, "1000-2000 rw-p 0 00:00 0").unwrap().path, b"");
        for bad in ["", "1000 rw-p 0 00:00 0", "2000-1000 rw-p 0 00:00 0", "1000-2000 rw-p x 00:00 0"] {
            assert_eq!(maps_line(7, bad), None, "{bad}");
        }
    }
}
