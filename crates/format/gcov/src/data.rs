// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data files (.gcda): reads, writes, adds and subtracts the counters of an object.

use crate::error::{Error, Result};
use crate::version::Version;
use crate::words::{FUNCTION, Header, Words};

const OBJECT_SUMMARY: u32 = 0xa100_0000;
/// Written by GCC before 9, and by clang.
const PROGRAM_SUMMARY: u32 = 0xa300_0000;
const COUNTERS: u32 = 0x01a1_0000;
/// Distance between the tags of two kinds of counters.
const NEXT_KIND: u32 = 0x0002_0000;
/// Limit of the kinds of counters in the tag format.
const KINDS: u32 = 32;

/// Kinds of counters that this crate uses. The others belong to `-fprofile-generate`.
pub mod kind {
    /// Executions of arcs.
    pub const ARCS: u8 = 0;
    /// Bit sets of conditions that independently were true or false (GCC 14).
    pub const CONDITIONS: u8 = 8;
    /// Bit sets of prime paths that were taken (GCC 15).
    pub const PATHS: u8 = 9;
}

/// The counters of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data {
    /// Version, stamp and checksum.
    pub header: Header,
    /// Summary of the program's runs; the kernel writes none.
    pub summary: Option<Summary>,
    /// Counters by function, in the order of the file.
    pub functions: Vec<Counters>,
    /// Contents that are not counters of a function.
    pub rest: Rest,
}

/// Contents of a data file that are not counters of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rest {
    /// Empty records of functions whose counters are in another object: the linker kept one copy of each.
    pub elsewhere: u32,
    /// Records of an unknown kind, and counters that follow one instead of a function.
    pub unknown: u32,
    /// Bytes after the end of the file's contents, unless all are zero.
    pub after_end: u64,
}

/// Summary of a program's runs, written by libgcov.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Number of runs.
    pub runs: u32,
    /// Sum of the highest counter of each run.
    pub sum_max: u32,
}

/// The counters of one function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// Function number, as in the notes.
    pub ident: u32,
    /// Checksum of its location in the source.
    pub lineno_checksum: u32,
    /// Checksum of its control-flow graph.
    pub cfg_checksum: u32,
    /// Kind and values.
    pub values: Vec<(u8, Values)>,
}

/// Counters of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Values {
    /// This many counters, all zero. Like the file, it stores only the number.
    Zeros(usize),
    /// The value of each counter.
    All(Vec<i64>),
}

impl Values {
    /// Number of counters.
    pub fn len(&self) -> usize {
        match self {
            Values::Zeros(count) => *count,
            Values::All(values) => values.len(),
        }
    }

    /// Returns true if there are no counters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a counter; 0 if the index is out of range.
    pub fn get(&self, index: usize) -> i64 {
        match self {
            Values::Zeros(_) => 0,
            Values::All(values) => values.get(index).copied().unwrap_or(0),
        }
    }

    fn combine(&mut self, other: &Values, kind: u8, way: Way) {
        let Values::All(theirs) = other else { return };
        if let Values::Zeros(count) = *self {
            // The length comes from the other operand, which is in memory, so that a number in a file cannot cause a
            // large allocation.
            if count != theirs.len() {
                return;
            }
            *self = Values::All(vec![0; count]);
        }
        let Values::All(ours) = self else { return };
        for (a, b) in ours.iter_mut().zip(theirs) {
            *a = match (way, kind) {
                (Way::Add, kind::CONDITIONS | kind::PATHS) => *a | b,
                (Way::Subtract, kind::CONDITIONS | kind::PATHS) => *a & !b,
                (Way::Add, _) => a.saturating_add(*b),
                (Way::Subtract, _) => a.saturating_sub(*b),
            };
        }
    }
}

#[derive(Clone, Copy)]
enum Way {
    Add,
    Subtract,
}

impl Counters {
    /// Returns the counters of a kind, if there are any.
    pub fn of(&self, kind: u8) -> Option<&Values> {
        self.values.iter().find(|(found, _)| *found == kind).map(|(_, values)| values)
    }

    fn is_same_function(&self, other: &Counters) -> bool {
        (self.ident, self.lineno_checksum, self.cfg_checksum)
            == (other.ident, other.lineno_checksum, other.cfg_checksum)
    }
}

/// Size of the largest header in bytes.
pub const HEADER: usize = 16;

/// Parses the header of a data file. Only its first [`HEADER`] bytes are needed.
///
/// # Errors
/// If they are not those of a data file.
pub fn header(bytes: &[u8]) -> Result<Header> {
    Ok(Words::open(bytes, "gcda")?.0)
}

/// Parses a data file.
///
/// # Errors
/// If the bytes are not valid, with the offset. libgcov of GCC 9 and later begins a file with a summary and ends it with
/// a zero word: a file that has the one and lacks the other is truncated. The kernel writes neither.
pub fn read(bytes: &[u8]) -> Result<Data> {
    let (header, mut words) = Words::open(bytes, "gcda")?;
    let mut data = Data { header, summary: None, functions: Vec::new(), rest: Rest::default() };
    let mut in_function = false;
    while let Some(record) = words.record()? {
        let mut contents = record.contents;
        match record.tag {
            OBJECT_SUMMARY if header.version.has_object_summary() => {
                let runs = contents.word("the number of runs")?;
                let sum_max = contents.word("the highest counter")?;
                data.summary = Some(Summary { runs, sum_max });
            }
            // A function that is not in the program; its record is empty.
            FUNCTION if record.length == 0 => {
                data.rest.elsewhere += 1;
                in_function = false;
            }
            FUNCTION => {
                data.functions.push(Counters {
                    ident: contents.word("a function's ident")?,
                    lineno_checksum: contents.word("a function's checksum")?,
                    cfg_checksum: contents.word("a function's checksum")?,
                    values: Vec::new(),
                });
                in_function = true;
            }
            tag => {
                let Some(kind) = kind_of(tag) else {
                    // Counters after it are not those of the function before it.
                    in_function &= matches!(tag, OBJECT_SUMMARY | PROGRAM_SUMMARY);
                    data.rest.unknown += u32::from(!matches!(tag, OBJECT_SUMMARY | PROGRAM_SUMMARY));
                    continue;
                };
                let Some(function) = data.functions.last_mut().filter(|_| in_function) else {
                    data.rest.unknown += 1;
                    continue;
                };
                let count = record.words() / 2;
                let values = if record.length < 0 && count > 0 {
                    if !header.version.leaves_out_zeros() {
                        return Err(length(contents.at, record.length, header.version));
                    }
                    Values::Zeros(count)
                } else {
                    Values::All(contents.counters(count)?)
                };
                function.values.push((kind, values));
            }
        }
    }
    if data.summary.is_some() && !words.ended {
        return Err(Error::Truncated {
            offset: bytes.len(),
            what: "its records: the zero word after them is missing",
        });
    }
    // clang pads the file with zeros.
    let left = &bytes[words.at..];
    data.rest.after_end = if left.iter().any(|&byte| byte != 0) { left.len() as u64 } else { 0 };
    Ok(data)
}

fn length(offset: usize, found: i32, version: Version) -> Error {
    Error::Value {
        offset: offset - 4,
        what: "the length of counters",
        found: u64::from(found as u32),
        expected: format!("a positive number, as GCC {version} writes it"),
    }
}

fn kind_of(tag: u32) -> Option<u8> {
    let above = tag.checked_sub(COUNTERS)?;
    (above % NEXT_KIND == 0 && above / NEXT_KIND < KINDS).then_some((above / NEXT_KIND) as u8)
}

impl Data {
    /// Adds the counters of another run of the same build. Functions that only the other has are copied.
    ///
    /// # Errors
    /// If the other is from a different build.
    pub fn add(&mut self, other: &Data) -> Result<()> {
        self.combine(other, Way::Add)
    }

    /// Subtracts the counters of an earlier state of the same run. The rest was counted in between.
    ///
    /// # Errors
    /// If the other is from a different build.
    pub fn subtract(&mut self, earlier: &Data) -> Result<()> {
        self.combine(earlier, Way::Subtract)
    }

    fn combine(&mut self, other: &Data, way: Way) -> Result<()> {
        if self.header.stamp != other.header.stamp {
            return Err(Error::Stamp { data: other.header.stamp, notes: self.header.stamp });
        }
        if matches!(way, Way::Add) {
            self.rest.elsewhere = self.rest.elsewhere.max(other.rest.elsewhere);
            self.rest.unknown = self.rest.unknown.saturating_add(other.rest.unknown);
            self.rest.after_end = self.rest.after_end.saturating_add(other.rest.after_end);
        }
        for (index, theirs) in other.functions.iter().enumerate() {
            // The index is almost always the same.
            let place = self.functions.get(index).filter(|ours| ours.is_same_function(theirs)).map(|_| index);
            let place =
                place.or_else(|| self.functions.iter().position(|ours| ours.is_same_function(theirs)));
            match (place, way) {
                (Some(place), _) => {
                    for (kind, values) in &theirs.values {
                        let ours = &mut self.functions[place].values;
                        match ours.iter_mut().find(|(found, _)| found == kind) {
                            Some((_, ours)) => ours.combine(values, *kind, way),
                            None if matches!(way, Way::Add) => ours.push((*kind, values.clone())),
                            None => {}
                        }
                    }
                }
                (None, Way::Add) => self.functions.push(theirs.clone()),
                (None, Way::Subtract) => {}
            }
        }
        Ok(())
    }

    /// Returns true if any counter `is` so.
    pub fn is_any(&self, is: impl Fn(i64) -> bool) -> bool {
        self.functions.iter().flat_map(|function| &function.values).any(|(_, values)| match values {
            Values::All(values) => values.iter().any(|value| is(*value)),
            Values::Zeros(count) => *count > 0 && is(0),
        })
    }

    /// Sets all counters to 0.
    pub fn clear(&mut self) {
        for (_, values) in self.functions.iter_mut().flat_map(|function| &mut function.values) {
            if let Values::All(values) = values {
                values.fill(0);
            }
        }
    }

    /// Encodes the file. gcov reads it in any case; gcc reads it with `-fprofile-use` only if there is a [`Summary`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer { bytes: Vec::new(), header: self.header };
        out.word(u32::from_be_bytes(*b"gcda"));
        out.word(self.header.version.0);
        out.word(self.header.stamp);
        if self.header.version.in_bytes() {
            out.word(self.header.checksum);
        }
        if let Some(summary) = self.summary {
            out.record(OBJECT_SUMMARY, 2);
            out.word(summary.runs);
            out.word(summary.sum_max);
        }
        for function in &self.functions {
            out.record(FUNCTION, 3);
            for word in [function.ident, function.lineno_checksum, function.cfg_checksum] {
                out.word(word);
            }
            for (kind, values) in &function.values {
                let tag = COUNTERS + u32::from(*kind) * NEXT_KIND;
                let words = values.len() as i64 * 2;
                match values {
                    Values::Zeros(_) => out.record(tag, -words),
                    Values::All(values) => {
                        out.record(tag, words);
                        for value in values {
                            out.word(*value as u32);
                            out.word((value >> 32) as u32);
                        }
                    }
                }
            }
        }
        for _ in 0..self.rest.elsewhere {
            out.record(FUNCTION, 0);
        }
        out.word(0);
        out.bytes
    }

    /// Returns the highest count of an arc, for a [`Summary`].
    pub fn highest(&self) -> i64 {
        let arcs = self.functions.iter().filter_map(|function| function.of(kind::ARCS));
        let all = arcs.filter_map(|values| match values {
            Values::All(values) => values.iter().copied().max(),
            Values::Zeros(_) => None,
        });
        all.max().unwrap_or(0)
    }
}

struct Writer {
    bytes: Vec<u8>,
    header: Header,
}

impl Writer {
    fn word(&mut self, word: u32) {
        self.bytes.extend(if self.header.big_endian { word.to_be_bytes() } else { word.to_le_bytes() });
    }

    fn record(&mut self, tag: u32, words: i64) {
        self.word(tag);
        let unit = if self.header.version.in_bytes() { 4 } else { 1 };
        self.word((words * unit) as i32 as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stay_at_the_highest_count() {
        let mut sum = Values::All(vec![i64::MAX, 1]);
        sum.combine(&Values::All(vec![1, 1]), kind::ARCS, Way::Add);
        assert_eq!(sum, Values::All(vec![i64::MAX, 2]), "a full counter is not a negative one");
    }
}
