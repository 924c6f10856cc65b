// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes (.gcno): the functions of one compilation, their blocks, arcs and lines.
//!
//! In: the file's bytes. Out: [`Notes`], with names borrowed from them. Records of unknown kinds are passed over.

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

/// One compilation.
#[derive(Debug, Clone)]
pub struct Notes<'a> {
    /// Version, stamp and checksum.
    pub header: Header,
    /// The folder the compiler ran in (GCC 9 and later).
    pub cwd: Option<Cow<'a, str>>,
    /// Paths of source files, canonical.
    pub sources: Vec<Cow<'a, str>>,
    /// The functions.
    pub functions: Vec<Function<'a>>,
    /// Arcs of all functions.
    arcs: Vec<Arc>,
    /// Stretches of lines of all functions.
    locations: Vec<Location>,
    /// Lines of all functions.
    lines: Vec<u32>,
}

impl Notes<'_> {
    /// All arcs of a function; those that leave one block lie together.
    pub fn arcs(&self, function: &Function<'_>) -> &[Arc] {
        slice(&self.arcs, &function.arcs)
    }

    /// Which lines a function's blocks have, in the order written.
    pub fn locations(&self, function: &Function<'_>) -> &[Location] {
        slice(&self.locations, &function.locations)
    }

    /// The lines of a stretch.
    pub fn lines(&self, location: &Location) -> &[u32] {
        slice(&self.lines, &location.lines)
    }
}

fn slice<'n, T>(all: &'n [T], range: &Range<u32>) -> &'n [T] {
    &all[range.start as usize..range.end as usize]
}

/// A function and its flow graph.
#[derive(Debug, Clone, Default)]
pub struct Function<'a> {
    /// Its number, which the data names it by.
    pub ident: u32,
    /// Of its place in the source.
    pub lineno_checksum: u32,
    /// Of its flow graph.
    pub cfg_checksum: u32,
    /// Its name, as the linker knows it.
    pub name: Cow<'a, str>,
    /// Made by the compiler.
    pub artificial: bool,
    /// Where it is: an index of [`Notes::sources`].
    pub source: u32,
    /// First line.
    pub start_line: u32,
    /// First column (GCC 8 and later).
    pub start_column: u32,
    /// Last line; the first before GCC 8.
    pub end_line: u32,
    /// Last column (GCC 9 and later).
    pub end_column: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Number of counters the data must have: of arcs not [`Arc::ON_TREE`].
    pub counters: u32,
    /// Its part of the arcs of all.
    arcs: Range<u32>,
    /// Its part of the stretches of all.
    locations: Range<u32>,
    /// Conditions of decisions: the block that ends in one, and its number of conditions (GCC 14 and later).
    pub conditions: Vec<(Block, u32)>,
    /// Number of prime paths (GCC 15 and later).
    pub paths: u32,
}

/// An edge of the flow graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arc {
    /// The block it leaves.
    pub from: Block,
    /// The block it enters.
    pub to: Block,
    /// `ON_TREE`, `FAKE`, `FALLTHROUGH` and others.
    pub flags: u32,
}

impl Arc {
    /// Not counted: its count follows from the others.
    pub const ON_TREE: u32 = 1;
    /// Not in the code: a call that does not return, or a return to where `setjmp` was.
    pub const FAKE: u32 = 2;
    /// Taken when nothing jumps.
    pub const FALLTHROUGH: u32 = 4;

    /// Whether all of `flags` are set.
    pub fn is(self, flags: u32) -> bool {
        self.flags & flags == flags
    }
}

/// A stretch of lines of one source file within a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The block.
    pub block: Block,
    /// An index of [`Notes::sources`].
    pub source: u32,
    /// Its part of the lines of all.
    lines: Range<u32>,
}

/// Reads notes.
///
/// # Errors
/// With the place at which the bytes stop being notes.
pub fn read(bytes: &[u8]) -> Result<Notes<'_>> {
    let (header, mut words) = Words::open(bytes, "gcno")?;
    // So that there are less than 2^32 of anything; a compiler's notes have some megabytes.
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
            // A record that is no part of a function ends it.
            (tag, _) if !is_part_of_function(tag) => in_function = false,
            _ => {}
        }
    }
    let Reader { sources, arcs, locations, lines, .. } = reader;
    Ok(Notes { header, cwd, sources, functions, arcs, locations, lines })
}

/// Tags say by their zero bytes what they are part of.
fn is_part_of_function(tag: u32) -> bool {
    tag >> 24 == FUNCTION >> 24
}

struct Reader<'a> {
    size: usize,
    header: Header,
    // Of all functions together: a list for each of them would be most of the time that reading takes.
    arcs: Vec<Arc>,
    locations: Vec<Location>,
    lines: Vec<u32>,
    sources: Vec<Cow<'a, str>>,
    known: HashMap<Cow<'a, str>, u32, RandomState>,
    /// The same by the names as they are written: most come again and again.
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
        // Up to GCC 7 there is a word of flags for each block.
        let count = if self.header.version.has_ranges() {
            words.word("the number of blocks")?
        } else {
            record.words() as u32
        };
        // No block but the exit is without an arc, so a number beyond this is no number of blocks.
        if count as usize > self.size {
            return Err(Error::Value {
                offset,
                what: "the number of blocks",
                found: count.into(),
                expected: format!("less than the file's size, {}", self.size),
            });
        }
        // gcov, too, goes by the first of several such records: arcs were checked against it.
        if function.blocks == 0 {
            function.blocks = count;
        }
        Ok(())
    }

    fn arcs(&mut self, function: &mut Function<'a>, record: Record<'_>) -> Result<()> {
        let mut words = record.contents;
        let offset = words.at;
        let from = block(function, &mut words, "a block with arcs")?;
        // The writer goes through the blocks in order, and through each once.
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
