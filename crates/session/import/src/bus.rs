// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures of a memory bus: the files of one board or several, and the kernel's account of its page tables.
//!
//! In: `capture.json`, which says what each file is (`docs/tlb-format.md`), and the files. Out: one trace of all boards in
//! order of time, and mappings with times, in the forms that `record tlb --method ptat` leaves; and a [`Capture`], what was
//! found out on the way.
//!
//! Files are read and written piece by piece: memory grows with the mappings of processes, not with the traces.

mod describe;
mod read;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use kprism_tlb::bus::mappings::{self, Form};
use kprism_tlb::bus::tags::{Steps, Tags};
use kprism_tlb::bus::trace::{self, Access, Merge, Rate};
use kprism_tlb::bus::words::{Heard, Vma, Words};

use crate::ImportError;
use describe::{Description, Mappings};
use read::{Accesses, Pieces, Records};

pub use describe::FILE;
pub use read::{Board, records, trace as accesses};

/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;

/// A capture that was read.
#[derive(Debug, Default)]
pub struct Capture {
    /// The region of page tables: first address and end.
    pub region: (u64, u64),
    /// The command that ran, if the description has it.
    pub command: Vec<String>,
    /// Process ids and names.
    pub names: Vec<(u32, String)>,
    /// Mappings of processes: at the end of each, or as described.
    pub vmas: Vec<Vma>,
    /// Each board's file, and what it lost.
    pub boards: Vec<Board>,
    /// Accesses of all boards.
    pub accesses: u64,
    /// Accesses whose time is before that of an earlier one of their board.
    pub late: u64,
    /// The module's words on the bus, if there are any.
    pub words: Option<Words>,
    /// The kernel's records in step with the bus, if they were.
    pub steps: Option<Steps>,
    /// Files that are damaged, and where; they are used up to there.
    pub damage: Vec<String>,
}

/// The description that `path`, a file or the folder with it, names.
pub fn detect(path: &Path) -> Option<PathBuf> {
    let file = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
    let is = file.file_name().is_some_and(|name| name == FILE) || describe::is_one(&file);
    (is && file.is_file()).then_some(file)
}

/// The source of mappings while accesses go by.
enum Source {
    /// Records of a file, with times of their own.
    File,
    Words(Box<Words>),
    Tags(Box<Tags<Pieces>>),
}

/// Reads the capture that the file `description` describes; writes its accesses to `trace_to` and its mappings to
/// `maps_to`.
///
/// # Errors
/// The description is wrong, a file cannot be read or is not what it is said to be, or what is needed is missing.
pub fn copy(description: &Path, trace_to: &Path, maps_to: &Path) -> Result<Capture, ImportError> {
    let described = Description::read(description)?;
    let mut out = Capture {
        command: described.command.clone(),
        names: described.names(),
        vmas: described.vmas()?,
        ..Capture::default()
    };
    let boards = described.boards()?;
    let hole = described.hole()?;
    let first_rate = boards.first().map(|(header, _)| Rate::new(header.hz, header.start));
    let first_rate = first_rate.unwrap_or(Rate::new(1_000_000_000, 0));
    let mut merge =
        Merge::of(boards).map_err(|e| ImportError::format(description, "boards", format!("others: {e}")))?;
    let mut accesses = Output::new(trace_to)?;
    let header = trace::Header { board: 0, hz: 1_000_000_000, values: true, start: 0 };
    let mut lines = trace::Writer::new(header);
    let mut maps = Output::new(maps_to)?;
    let mut written = mappings::Writer::new(Form::Wide);
    let mut source = match &described.mappings {
        None => Source::Words(Box::default()),
        Some(Mappings { file, form, hz, tags }) => {
            let path = described.beside(file);
            match (form.as_str(), tags) {
                ("hmtt", Some(first)) => {
                    let mut tags = Tags::new(Pieces::open(&path)?, first.0);
                    tags.dumped(|record| {
                        written.record(&record);
                    });
                    Source::Tags(Box::new(tags))
                }
                ("narrow" | "wide", None) => {
                    let rate = hz.map_or(first_rate, |hz| Rate::new(hz, 0));
                    let mut records = Records::open(&path, form)?;
                    for record in records.by_ref() {
                        let time = if form == "narrow" { 0 } else { rate.nanos(record.time()) };
                        written.record(&record.at(time));
                        maps.put(&mut written.bytes, false)?;
                    }
                    out.damage.extend(records.damage);
                    Source::File
                }
                _ => {
                    return Err(ImportError::format(
                        description,
                        "mappings",
                        "form narrow, wide, or hmtt with the first address of its tags (`tags`)",
                    ));
                }
            }
        }
    };
    let mut last = 0;
    for access in merge.by_ref() {
        out.accesses += 1;
        // At least one later than the last, to keep their order.
        let time = access.time.max(last + u64::from(last != 0));
        last = time;
        let access = Access {
            time,
            address: hole.map_or(access.address, |hole| hole.beyond(access.address)),
            ..access
        };
        let heard = match &mut source {
            Source::File => Heard::Access,
            Source::Words(words) => words.hear(&access),
            Source::Tags(tags) => tags.hear(&access),
        };
        match heard {
            Heard::Access => lines.access(&access),
            Heard::Record(record) => {
                written.record(&record);
            }
            Heard::Nothing => {}
        }
        accesses.put(&mut lines.bytes, false)?;
        maps.put(&mut written.bytes, false)?;
    }
    accesses.put(&mut lines.bytes, true)?;
    maps.put(&mut written.bytes, true)?;
    out.late = merge.late;
    let damaged = std::mem::take(&mut merge.damage);
    out.boards = merge.boards().map(Accesses::board).collect();
    for (number, error) in damaged {
        let name =
            usize::try_from(number).ok().and_then(|n| out.boards.iter().find(|b| b.number as usize == n));
        out.damage.push(match name {
            Some(board) => format!("{}: {error}", board.path.display()),
            None => format!("board {number}: {error}"),
        });
    }
    let mut region = described.region()?;
    match source {
        Source::File => {}
        Source::Words(words) => {
            if words.region.is_none() {
                return Err(ImportError::format(
                    description,
                    "mappings",
                    "a file of mappings, or the words of the module ptat on the bus, with their values, which announce a region \
                     (there are none)",
                ));
            }
            region = region.or(words.region);
            out.names.extend(words.names.iter().cloned());
            out.vmas.extend(words.vmas.iter().cloned());
            out.words = Some(*words);
        }
        Source::Tags(tags) => {
            out.damage.extend(tags.damage.map(|error| {
                let file = described.mappings.as_ref().map(|m| described.beside(&m.file)).unwrap_or_default();
                format!("{}: {error}", file.display())
            }));
            out.steps = Some(tags.steps);
        }
    }
    let Some(region) = region else {
        return Err(ImportError::format(
            description,
            "region",
            "the region of page tables, [first address, end], as no word of the module tells it",
        ));
    };
    out.region = region;
    Ok(out)
}

/// A file that is written in large pieces.
struct Output {
    file: BufWriter<File>,
    path: PathBuf,
}

impl Output {
    fn new(path: &Path) -> Result<Self, ImportError> {
        let file = File::create(path).map_err(|source| ImportError::Io { path: path.to_owned(), source })?;
        Ok(Output { file: BufWriter::new(file), path: path.to_owned() })
    }

    /// Writes the bytes once there are many, or at the end.
    fn put(&mut self, bytes: &mut Vec<u8>, end: bool) -> Result<(), ImportError> {
        if bytes.len() < CHUNK && !end {
            return Ok(());
        }
        let result = self.file.write_all(bytes).and_then(|()| if end { self.file.flush() } else { Ok(()) });
        bytes.clear();
        result.map_err(|source| ImportError::Io { path: self.path.clone(), source })
    }
}
