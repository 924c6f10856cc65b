// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses to memory as a bus monitor saw them: one file a board, records of 16 or 24 bytes.

use super::BusError;

/// Magic number of a file.
pub const MAGIC: &[u8; 8] = b"KPBUS001";
/// Size of the header, bytes.
pub const HEADER: usize = 32;

/// Set in a header's flags: records carry the value read or written.
const VALUES: u32 = 1;

/// The header of one board's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the board. Of two accesses at the same time the lower board's comes first.
    pub board: u32,
    /// Ticks of its timestamps per second.
    pub hz: u64,
    /// Records carry values.
    pub values: bool,
    /// Ticks to add to its times: its clock against the other boards'.
    pub start: i64,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// The bytes do not begin with a valid one.
    pub fn parse(bytes: &[u8]) -> Result<Self, BusError> {
        if !bytes.starts_with(MAGIC) {
            return Err(BusError::new(0, "expected KPBUS001"));
        }
        let Some(header) = bytes.get(..HEADER) else {
            return Err(BusError::new(bytes.len(), "the file ends within its header of 32 bytes"));
        };
        let flags = u32_at(header, 12);
        if flags & !VALUES != 0 {
            return Err(BusError::new(12, format!("expected flags 0 or 1, not {flags:#x}")));
        }
        let hz = u64_at(header, 16);
        if hz == 0 {
            return Err(BusError::new(16, "expected ticks per second, not 0"));
        }
        let start = u64_at(header, 24) as i64;
        Ok(Header { board: u32_at(header, 8), hz, values: flags & VALUES != 0, start })
    }

    /// Bytes of a record.
    pub fn record_length(&self) -> usize {
        if self.values { 24 } else { 16 }
    }

    /// Reads a record, which begins at `offset` of its file.
    ///
    /// # Errors
    /// It is cut short, or bits are set that have no meaning.
    #[inline]
    pub fn record(&self, bytes: &[u8], offset: usize) -> Result<Access, BusError> {
        let length = self.record_length();
        let Some(record) = bytes.get(..length) else {
            return Err(BusError::new(offset, format!("the file ends within a record of {length} bytes")));
        };
        let word = u64_at(record, 8);
        if word >> 61 != 0 {
            return Err(BusError::new(offset + 14, "expected bits 61 to 63 of the second word to be 0"));
        }
        let value = (length == 24 && word >> 52 & 1 == 1).then(|| u64_at(record, 16));
        Ok(Access {
            time: u64_at(record, 0),
            address: word & ADDRESS,
            kind: if word >> 48 & 1 == 1 { Kind::Write } else { Kind::Read },
            bytes: 1 << (word >> 49 & 7),
            value,
            cpu: (word >> 53 & 0xff).checked_sub(1).map(|cpu| cpu as u8),
        })
    }
}

/// Direction of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A read.
    Read,
    /// A write.
    Write,
}

/// One access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Time in ticks.
    pub time: u64,
    /// Physical address, 48 bits.
    pub address: u64,
    /// Read or write.
    pub kind: Kind,
    /// Bytes moved: 1 to 128, a power of two. 64 or 32 where a monitor sees bursts alone.
    pub bytes: u8,
    /// The value read or written, if the monitor records it and it fits.
    pub value: Option<u64>,
    /// The CPU, if the monitor knows it; at most [`MOST_CPU`].
    pub cpu: Option<u8>,
}

/// The largest CPU number that a record can hold.
pub const MOST_CPU: u8 = 254;

const ADDRESS: u64 = (1 << 48) - 1;

/// Writes a file in memory.
#[derive(Debug)]
pub struct Writer {
    /// The bytes written.
    pub bytes: Vec<u8>,
    values: bool,
}

impl Writer {
    /// A file with this header.
    pub fn new(header: Header) -> Self {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(header.board.to_le_bytes());
        bytes.extend(if header.values { VALUES } else { 0 }.to_le_bytes());
        bytes.extend(header.hz.to_le_bytes());
        bytes.extend(header.start.to_le_bytes());
        Writer { bytes, values: header.values }
    }

    /// Adds an access. Its address is cut to 48 bits.
    #[inline]
    pub fn access(&mut self, a: &Access) {
        let write = u64::from(a.kind == Kind::Write) << 48;
        let size = u64::from(a.bytes.trailing_zeros() & 7) << 49;
        let valued = u64::from(self.values && a.value.is_some()) << 52;
        let cpu = a.cpu.filter(|cpu| *cpu <= MOST_CPU).map_or(0, |cpu| u64::from(cpu) + 1) << 53;
        self.bytes.extend(a.time.to_le_bytes());
        self.bytes.extend((a.address & ADDRESS | write | size | valued | cpu).to_le_bytes());
        if self.values {
            self.bytes.extend(a.value.unwrap_or(0).to_le_bytes());
        }
    }
}

/// Reads a file's accesses.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    header: Header,
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// The file does not begin with a valid header.
    pub fn new(bytes: &'a [u8]) -> Result<Self, BusError> {
        Ok(Reader { header: Header::parse(bytes)?, bytes, offset: HEADER })
    }

    /// Returns the file's header.
    pub fn header(&self) -> Header {
        self.header
    }

    /// Offset of the next record.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Access, BusError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.offset..).filter(|rest| !rest.is_empty())?;
        let record = self.header.record(rest, self.offset);
        self.offset =
            if record.is_ok() { self.offset + self.header.record_length() } else { self.bytes.len() };
        Some(record)
    }
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// A clock's times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    start: i64,
    hz: u64,
}

/// Nanoseconds a second.
const NANOS: u64 = 1_000_000_000;

impl Rate {
    /// Of a clock of `hz` ticks per second, to whose times `start` is added.
    pub fn new(hz: u64, start: i64) -> Self {
        Rate { start, hz: hz.max(1) }
    }

    /// The time in nanoseconds, at most the largest. Up to 1 GHz no two times become the same.
    #[inline]
    pub fn nanos(&self, time: u64) -> u64 {
        let time = time.saturating_add_signed(self.start);
        if self.hz == NANOS {
            return time;
        }
        u64::try_from(u128::from(time) * u128::from(NANOS) / u128::from(self.hz)).unwrap_or(u64::MAX)
    }
}

/// Merges the accesses of several boards in order of time; of equal times the lower board's come first. If a board's
/// times run backwards, only that board is out of order: its late accesses come at once. Times are nanoseconds.
#[derive(Debug)]
pub struct Merge<I> {
    boards: Vec<Board<I>>,
    /// Boards whose file is damaged, with the error.
    pub damage: Vec<(u32, BusError)>,
    /// Number of accesses whose time is before that of an earlier one in their file.
    pub late: u64,
}

#[derive(Debug)]
struct Board<I> {
    number: u32,
    rate: Rate,
    accesses: I,
    next: Option<Access>,
}

impl<'a> Merge<Reader<'a>> {
    /// Merges these files.
    ///
    /// # Errors
    /// As [`Merge::of`].
    pub fn new(readers: Vec<Reader<'a>>) -> Result<Self, BusError> {
        Merge::of(readers.into_iter().map(|reader| (reader.header, reader)).collect())
    }
}

impl<I: Iterator<Item = Result<Access, BusError>>> Merge<I> {
    /// Merges the accesses of these boards.
    ///
    /// # Errors
    /// Two boards have the same number.
    pub fn of(mut boards: Vec<(Header, I)>) -> Result<Self, BusError> {
        boards.sort_by_key(|(header, _)| header.board);
        for pair in boards.windows(2) {
            if pair[0].0.board == pair[1].0.board {
                return Err(BusError::new(8, format!("two files are of board {}", pair[0].0.board)));
            }
        }
        let mut merge = Merge { boards: Vec::new(), damage: Vec::new(), late: 0 };
        for (header, accesses) in boards {
            let rate = Rate::new(header.hz, header.start);
            merge.boards.push(Board { number: header.board, rate, accesses, next: None });
            merge.advance(merge.boards.len() - 1);
        }
        Ok(merge)
    }

    fn advance(&mut self, at: usize) {
        let board = &mut self.boards[at];
        let before = board.next.map_or(0, |a| a.time);
        board.next = match board.accesses.next() {
            Some(Ok(access)) => {
                let access = Access { time: board.rate.nanos(access.time), ..access };
                self.late += u64::from(access.time < before);
                Some(access)
            }
            Some(Err(e)) => {
                self.damage.push((board.number, e));
                None
            }
            None => None,
        };
    }

    /// The boards' accesses, as far as they are read.
    pub fn boards(&self) -> impl Iterator<Item = &I> {
        self.boards.iter().map(|board| &board.accesses)
    }
}

impl<I: Iterator<Item = Result<Access, BusError>>> Iterator for Merge<I> {
    type Item = Access;

    #[inline]
    fn next(&mut self) -> Option<Access> {
        if let [one] = self.boards.as_mut_slice() {
            let access = one.next?;
            // The common case, without copying the access twice.
            match one.accesses.next() {
                Some(Ok(next)) => {
                    let next = Access { time: one.rate.nanos(next.time), ..next };
                    self.late += u64::from(next.time < access.time);
                    one.next = Some(next);
                }
                other => {
                    one.next = None;
                    let board = one.number;
                    self.damage.extend(other.and_then(Result::err).map(|e| (board, e)));
                }
            }
            return Some(access);
        }
        let times = self.boards.iter().enumerate().filter_map(|(i, b)| Some((b.next?.time, i)));
        let (_, at) = times.min()?;
        let access = self.boards[at].next;
        self.advance(at);
        access
    }
}
