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
    /// Ticks of its timestamps per second. All boards count the same ticks.
    pub hz: u64,
    /// Records carry values.
    pub values: bool,
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
        bytes.extend([0; 8]);
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
        let header = Header { board: u32_at(header, 8), hz, values: flags & VALUES != 0 };
        Ok(Reader { header, bytes, offset: HEADER })
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
        let length = if self.header.values { 24 } else { 16 };
        let rest = self.bytes.get(self.offset..).filter(|rest| !rest.is_empty())?;
        let offset = self.offset;
        let Some(record) = rest.get(..length) else {
            self.offset = self.bytes.len();
            return Some(Err(BusError::new(
                offset,
                format!("the file ends within a record of {length} bytes"),
            )));
        };
        self.offset += length;
        let word = u64_at(record, 8);
        if word >> 61 != 0 {
            self.offset = self.bytes.len();
            return Some(Err(BusError::new(
                offset + 14,
                "expected bits 61 to 63 of the second word to be 0",
            )));
        }
        let value = (length == 24 && word >> 52 & 1 == 1).then(|| u64_at(record, 16));
        Some(Ok(Access {
            time: u64_at(record, 0),
            address: word & ADDRESS,
            kind: if word >> 48 & 1 == 1 { Kind::Write } else { Kind::Read },
            bytes: 1 << (word >> 49 & 7),
            value,
            cpu: (word >> 53 & 0xff).checked_sub(1).map(|cpu| cpu as u8),
        }))
    }
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// Merges the accesses of several boards in order of time; of equal times the lower board's come first. If a board's
/// times run backwards, only that board is out of order: its late accesses come at once.
#[derive(Debug)]
pub struct Merge<'a> {
    boards: Vec<Board<'a>>,
    /// Boards whose file is damaged, with the error.
    pub damage: Vec<(u32, BusError)>,
    /// Number of accesses whose time is before that of an earlier one in their file.
    pub late: u64,
}

#[derive(Debug)]
struct Board<'a> {
    reader: Reader<'a>,
    next: Option<Access>,
}

impl<'a> Merge<'a> {
    /// Merges these files.
    ///
    /// # Errors
    /// Two boards have the same number, or count different ticks.
    pub fn new(mut readers: Vec<Reader<'a>>) -> Result<Self, BusError> {
        readers.sort_by_key(|r| r.header.board);
        for pair in readers.windows(2) {
            if pair[0].header.board == pair[1].header.board {
                return Err(BusError::new(8, format!("two files are of board {}", pair[0].header.board)));
            }
            if pair[0].header.hz != pair[1].header.hz {
                let (a, b) = (pair[0].header, pair[1].header);
                let what = format!("board {} counts {} Hz, board {} {} Hz", a.board, a.hz, b.board, b.hz);
                return Err(BusError::new(16, what));
            }
        }
        let mut merge = Merge { boards: Vec::new(), damage: Vec::new(), late: 0 };
        for reader in readers {
            merge.boards.push(Board { reader, next: None });
            merge.advance(merge.boards.len() - 1);
        }
        Ok(merge)
    }

    fn advance(&mut self, at: usize) {
        let board = &mut self.boards[at];
        let before = board.next.map_or(0, |a| a.time);
        board.next = match board.reader.next() {
            Some(Ok(access)) => {
                self.late += u64::from(access.time < before);
                Some(access)
            }
            Some(Err(e)) => {
                self.damage.push((board.reader.header.board, e));
                None
            }
            None => None,
        };
    }
}

impl Iterator for Merge<'_> {
    type Item = Access;

    #[inline]
    fn next(&mut self) -> Option<Access> {
        if let [one] = self.boards.as_mut_slice() {
            let access = one.next?;
            // The common case, without copying the access twice.
            match one.reader.next() {
                Some(Ok(next)) => {
                    self.late += u64::from(next.time < access.time);
                    one.next = Some(next);
                }
                other => {
                    one.next = None;
                    let board = one.reader.header.board;
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
