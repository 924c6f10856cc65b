// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes files (.gcno): the functions of a compilation unit, with blocks, arcs and lines.
//!
//! Input: the file's bytes. Output: [`Notes`], with names borrowed from the bytes. Unknown records are counted and
//! skipped.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::RandomState;

use crate::error::{Error, Result};
use crate::path::canonical;
use crate::words::{FUNCTION, Header, Record, Words};

const BLOCKS: u32 = 0x0141_0000;
const ARCS: u32 = 0x0143_0000;
const LINES: u32 = 0x0145_0000;
const CONDITIONS: u32 = 0x0147_0000;
const PATHS: u32 = 0x0149_0000;

/// A block's number within its function. 0 is the entry, 1 the exit.
pub type Block = u32;

/// Contents of a notes file.
#[derive(Debug, Clone)]
pub struct Notes<'a> {
    /// Version, stamp and checksum.
    pub header: Header,
    /// Working directory of the compiler (GCC 9 and later).
    pub cwd: Option<Cow<'a, str>>,
    /// Paths of source files, canonical.
    pub sources: Vec<Cow<'a, str>>,
    /// Functions, in the order of the file.
    pub functions: Vec<Function<'a>>,
    /// Number of records of an unknown kind, or without a function.
    pub unknown: u32,
    /// Arcs of all functions.
    arcs: Vec<Arc>,
    /// Line ranges of all functions.
    locations: Vec<Location>,
    /// Lines of all functions.
    lines: Vec<u32>,
}

impl Notes<'_> {
    /// Returns a function's arcs; those from the same block are adjacent.
    pub fn arcs(&self, function: &Function<'_>) -> &[Arc] {
        slice(&self.arcs, &function.arcs)
    }

    /// Returns the locations of a function's blocks, in file order.
    pub fn locations(&self, function: &Function<'_>) -> &[Location] {
        slice(&self.locations, &function.locations)
    }

    /// Returns the line numbers of a location.
    pub fn lines(&self, location: &Location) -> &[u32] {
        slice(&self.lines, &location.lines)
    }
}

fn slice<'n, T>(all: &'n [T], range: &Range<u32>) -> &'n [T] {
    &all[range.start as usize..range.end as usize]
}

/// A function and its control-flow graph.
#[derive(Debug, Clone, Default)]
pub struct Function<'a> {
    /// Function number, as in the data.
    pub ident: u32,
    /// Checksum of its location in the source.
    pub lineno_checksum: u32,
    /// Checksum of its control-flow graph.
    pub cfg_checksum: u32,
    /// Symbol name.
    pub name: Cow<'a, str>,
    /// True if the compiler generated the function.
    pub artificial: bool,
    /// Source file, as an index into [`Notes::sources`].
    pub source: u32,
    /// First line.
    pub start_line: u32,
    /// First column (GCC 8 and later).
    pub start_column: u32,
    /// Last line; equal to the first before GCC 8.
    pub end_line: u32,
    /// Last column (GCC 9 and later).
    pub end_column: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Number of counters that the data must have: one for each arc that is not [`Arc::ON_TREE`].
    pub counters: u32,
    /// Range of the function's arcs in [`Notes`].
    arcs: Range<u32>,
    /// Range of the function's locations in [`Notes`].
    locations: Range<u32>,
    /// Decisions: the block that ends in one, and the number of its conditions (GCC 14 and later).
    pub conditions: Vec<(Block, u32)>,
    /// Number of prime paths (GCC 15 and later).
    pub paths: u32,
}

/// An arc of the control-flow graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arc {
    /// Source block.
    pub from: Block,
    /// Destination block.
    pub to: Block,
    /// Flags: `ON_TREE`, `FAKE`, `FALLTHROUGH` and others.
    pub flags: u32,
}

impl Arc {
    /// The arc has no counter: its count follows from the others.
    pub const ON_TREE: u32 = 1;
    /// The arc is not in the code: a call that does not return, or a return to `setjmp`.
    pub const FAKE: u32 = 2;
    /// The arc is taken without a jump.
    pub const FALLTHROUGH: u32 = 4;

    /// Returns true if all of `flags` are set.
    pub fn is(self, flags: u32) -> bool {
        self.flags & flags == flags
    }
}

/// Lines of one source file that belong to a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The block that contains the lines.
    pub block: Block,
    /// Source file, as an index into [`Notes::sources`].
    pub source: u32,
    /// Range of the line numbers in [`Notes`].
    lines: Range<u32>,
}

/// Parses a notes file.
///
/// # Errors
/// If the bytes are not valid, with the offset.
pub fn read(bytes: &[u8]) -> Result<Notes<'_>> {
    let (header, mut words) = Words::open(bytes, "gcno")?;
    // This guarantees less than 2^32 items of any kind. Real notes have a few megabytes.
    if u32::try_from(bytes.len()).is_err() {
        let expected = format!("at most {} bytes", u32::MAX);
        return Err(Error::Value { offset: 0, what: "the file's size", found: bytes.len() as u64, expected });
    }
    let version = header.version;
    let cwd = if version.has_cwd() { words.string("the working directory")? } else { None };
    if version.has_ranges() {
        words.word("whether blocks not executed are told")?;
    }
    let mut reader = Reader {
        size: bytes.len(),
        header,
        arcs: Vec::new(),
        locations: Vec::new(),
        lines: Vec::new(),
        sources: Vec::new(),
        known: HashMap::default(),
        raw: HashMap::default(),
        last: (&[], u32::MAX),
    };
    let mut functions: Vec<Function<'_>> = Vec::new();
    let mut in_function = false;
    let mut unknown = 0;
    while let Some(record) = words.record()? {
        match (record.tag, functions.last_mut().filter(|_| in_function)) {
            (FUNCTION, _) => {
                functions.push(reader.function(record.contents)?);
                in_function = true;
            }
            (BLOCKS, Some(function)) => reader.blocks(function, record)?,
            (ARCS, Some(function)) => reader.arcs(function, record)?,
            (LINES, Some(function)) => reader.lines(function, record.contents)?,
            (CONDITIONS, Some(function)) => conditions(function, record)?,
            (PATHS, Some(function)) => {
                function.paths = record.contents.clone().word("the number of paths")?
            }
            // A record that does not belong to a function ends it.
            (tag, _) => {
                in_function &= is_part_of_function(tag);
                unknown += 1;
            }
        }
    }
    let Reader { sources, arcs, locations, lines, .. } = reader;
    // Only the last function can be cut where one record ends and the next begins. clang ends its records with a zero
    // tag, and writes no arcs for a block that never ends.
    if let Some(what) = functions.last().and_then(|last| lacks(last, &arcs)).filter(|_| !words.ended) {
        return Err(Error::Truncated { offset: bytes.len(), what });
    }
    Ok(Notes { header, cwd, sources, functions, unknown, arcs, locations, lines })
}

/// Names the records that a function lacks. The compiler writes the number of blocks, then the arcs of each block but
/// the exit, then at least the line of the function's name. How many records of lines follow is not in the file.
fn lacks(function: &Function<'_>, arcs: &[Arc]) -> Option<&'static str> {
    let arcs = slice(arcs, &function.arcs);
    let with_arcs = arcs.chunk_by(|a, b| a.from == b.from).count();
    if function.blocks == 0 {
        Some("the last function: its blocks are missing")
    } else if with_arcs + 1 < function.blocks as usize {
        Some("the last function: arcs of its blocks are missing")
    } else if function.locations.is_empty() {
        Some("the last function: its lines are missing")
    } else {
        None
    }
}

/// Returns true if the record belongs to a function: the zero bytes of a tag define its level.
fn is_part_of_function(tag: u32) -> bool {
    tag >> 24 == FUNCTION >> 24
}

struct Reader<'a> {
    size: usize,
    header: Header,
    // Shared lists of all functions. A list for each function would take most of the parsing time.
    arcs: Vec<Arc>,
    locations: Vec<Location>,
    lines: Vec<u32>,
    sources: Vec<Cow<'a, str>>,
    known: HashMap<Cow<'a, str>, u32, RandomState>,
    /// Index by the name as written; most names are repeated.
    raw: HashMap<&'a [u8], u32, RandomState>,
    last: (&'a [u8], u32),
}

impl<'a> Reader<'a> {
    fn source(&mut self, raw: &'a [u8]) -> u32 {
        if self.last.0 == raw && self.last.1 != u32::MAX {
            return self.last.1;
        }
        let index = match self.raw.get(raw) {
            Some(&index) => index,
            None => {
                let index = self.canonical(String::from_utf8_lossy(raw));
                self.raw.insert(raw, index);
                index
            }
        };
        self.last = (raw, index);
        index
    }

    fn canonical(&mut self, name: Cow<'a, str>) -> u32 {
        let name = canonical(name);
        if let Some(&index) = self.known.get(&name) {
            return index;
        }
        let index = self.sources.len() as u32;
        self.known.insert(name.clone(), index);
        self.sources.push(name);
        index
    }

    fn function(&mut self, mut words: Words<'a>) -> Result<Function<'a>> {
        let version = self.header.version;
        let end = |all: usize| all as u32..all as u32;
        let mut function = Function {
            arcs: end(self.arcs.len()),
            locations: end(self.locations.len()),
            ident: words.word("a function's ident")?,
            lineno_checksum: words.word("a function's checksum")?,
            cfg_checksum: words.word("a function's checksum")?,
            name: words.string("a function's name")?.unwrap_or_default(),
            ..Function::default()
        };
        if version.has_ranges() {
            function.artificial = words.word("a function's flag")? != 0;
        }
        let source = words.raw_string("a function's file")?.unwrap_or(b"<unknown>");
        function.source = self.source(source);
        function.start_line = words.word("a function's line")?;
        function.end_line = function.start_line;
        if version.has_ranges() {
            function.start_column = words.word("a function's column")?;
            function.end_line = words.word("a function's last line")?;
        }
        if version.has_cwd() {
            function.end_column = words.word("a function's last column")?;
        }
        Ok(function)
    }

    fn blocks(&self, function: &mut Function<'a>, record: Record<'_>) -> Result<()> {
        let mut words = record.contents;
        let offset = words.at;
        // Up to GCC 7, the record has a word of flags for each block.
        let count = if self.header.version.has_ranges() {
            words.word("the number of blocks")?
        } else {
            record.words() as u32
        };
        // Each block except the exit has an arc, so a larger number is invalid.
        if count as usize > self.size {
            return Err(Error::Value {
                offset,
                what: "the number of blocks",
                found: count.into(),
                expected: format!("less than the file's size, {}", self.size),
            });
        }
        // gcov also uses the first of several such records; arcs were checked against it.
        if function.blocks == 0 {
            function.blocks = count;
        }
        Ok(())
    }

    fn arcs(&mut self, function: &mut Function<'a>, record: Record<'_>) -> Result<()> {
        let mut words = record.contents;
        let offset = words.at;
        let from = block(function, &mut words, "a block with arcs")?;
        // The compiler writes the blocks in order, each once.
        let known = &self.arcs[function.arcs.start as usize..];
        if known.last().is_some_and(|last| last.from >= from) {
            return Err(Error::Value {
                offset,
                what: "a block with arcs",
                found: from.into(),
                expected: "a block after those that had arcs".into(),
            });
        }
        while words.left() >= 8 {
            let to = block(function, &mut words, "an arc's destination")?;
            let flags = words.word("an arc's flags")?;
            let arc = Arc { from, to, flags };
            function.counters += u32::from(!arc.is(Arc::ON_TREE));
            self.arcs.push(arc);
        }
        function.arcs.end = self.arcs.len() as u32;
        Ok(())
    }

    fn lines(&mut self, function: &mut Function<'a>, mut words: Words<'a>) -> Result<()> {
        let block = block(function, &mut words, "a block with lines")?;
        let mut location: Option<Location> = None;
        loop {
            let offset = words.at;
            let line = words.word("a line number")?;
            if line != 0 {
                if location.is_none() {
                    return Err(Error::Value {
                        offset,
                        what: "a line number before any file's name",
                        found: line.into(),
                        expected: "0 and a name".into(),
                    });
                }
                self.lines.push(line);
                continue;
            }
            let name = words.raw_string("a source file's name")?;
            let next = self.lines.len() as u32;
            if let Some(mut location) = location.take() {
                location.lines.end = next;
                self.locations.push(location);
                function.locations.end = self.locations.len() as u32;
            }
            let Some(name) = name else { return Ok(()) };
            location = Some(Location { block, source: self.source(name), lines: next..next });
        }
    }
}

fn conditions(function: &mut Function<'_>, record: Record<'_>) -> Result<()> {
    let mut words = record.contents;
    while words.left() >= 8 {
        let block = block(function, &mut words, "a block with conditions")?;
        let terms = words.word("a number of conditions")?;
        function.conditions.push((block, terms));
    }
    Ok(())
}

fn block(function: &Function<'_>, words: &mut Words<'_>, what: &'static str) -> Result<Block> {
    let offset = words.at;
    let found = words.word(what)?;
    if found < function.blocks {
        return Ok(found);
    }
    let expected = format!("a block of {}, less than {}", function.name, function.blocks);
    Err(Error::Value { offset, what, found: found.into(), expected })
}
