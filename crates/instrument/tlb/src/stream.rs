// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stream of misses that a recorder writes: compact, in order of time, read back one by one.
//!
//! | bytes | contents |
//! |---|---|
//! | 8 | `KPTLB001` |
//! | 4 | length of the header, little-endian |
//! | … | the header: JSON with `geometries`, in the order of the bits below |
//!
//! Then events. Numbers are LEB128; differences, from the last miss, are zigzag-coded (`n << 1 ^ n >> 63`).
//!
//! | first byte | then | meaning |
//! |---|---|---|
//! | `access \| size << 2 \| last << 4 \| more << 5`, access 0 load, 1 store, 2 fetch; size 0 4K, 1 2M, 2 1G | if `more`: a byte of geometries whose first level missed, a byte of those whose last did; time (ns), difference; address, difference; instruction, difference | without `more`: a miss of the first level of the first geometry, and of its last if `last`; with `more`: the misses in the two bytes |
//! | `access \| size << 2 \| 64` | address, difference | a hit that a replay with other page sizes needs (`recent`) |
//! | 3 | CR3 | the address space from here on |
//! | 11 | address | INVLPG |
//! | 15 | | all entries were dropped (CR4 was loaded, or observation began) |
//! | 19 | address | a page fault begins; its handling follows |
//! | 23 | | the page fault ends |
//! | 27 | function (see [`crate::allocs`]); time, difference; address, difference; bytes; three addresses, 0 if not known: the return address of the call, of its caller, and so on | memory was allocated |
//! | 31 | time, difference; address, difference; bytes, 0 for all of the allocation | memory was freed |
//! | 7 | thread id, process id | the task from here on |
//! | 39 | address, difference from the last such | address of the page table entry that answers the next miss |
//! | 35 | a number, not 0 | sampling: from here on, each miss stands for this many |

use serde::{Deserialize, Serialize};

use crate::geometry::{Access, Geometry, PageSize};

/// Magic number of a stream.
pub const MAGIC: &[u8; 8] = b"KPTLB001";

const SPACE: u8 = 3;
const TASK: u8 = 7;
const INVALIDATE: u8 = 11;
const FLUSH: u8 = 15;
const FAULT: u8 = 19;
const FAULT_END: u8 = 23;
const ALLOC: u8 = 27;
const FREE: u8 = 31;
const WEIGHT: u8 = 35;
const ENTRY: u8 = 39;
const LAST: u8 = 1 << 4;
const MORE: u8 = 1 << 5;
const TOUCH: u8 = 1 << 6;

/// The stream's header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The geometries modelled. Bit n of a miss belongs to the n-th.
    pub geometries: Vec<Geometry>,
}

/// A miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miss {
    /// Time, ns.
    pub ns: u64,
    /// Address accessed.
    pub va: u64,
    /// Address of the instruction.
    pub ip: u64,
    /// Kind of access.
    pub access: Access,
    /// The page's size.
    pub size: PageSize,
    /// Geometries whose first level missed.
    pub first: u8,
    /// Geometries whose every level missed.
    pub last: u8,
}

/// An allocation of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alloc {
    /// Time, ns.
    pub ns: u64,
    /// Index of the function in [`crate::allocs::FUNCTIONS`].
    pub function: u8,
    /// Address of the memory.
    pub va: u64,
    /// Number of bytes requested.
    pub bytes: u64,
    /// Return addresses of the call, of its caller, and so on; 0 where unknown.
    pub frames: [u64; 3],
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A miss.
    Miss(Miss),
    /// A hit that a replay needs.
    Touch {
        /// Address accessed.
        va: u64,
        /// Kind of access.
        access: Access,
        /// The page's size.
        size: PageSize,
    },
    /// CR3 has this value.
    Space(u64),
    /// INVLPG of this address.
    Invalidate(u64),
    /// All entries were dropped.
    Flush,
    /// A page fault at this address begins.
    Fault(u64),
    /// The page fault's handling ends.
    FaultEnd,
    /// Memory was allocated.
    Alloc(Alloc),
    /// Memory was freed.
    Free {
        /// Time, ns.
        ns: u64,
        /// Its address.
        va: u64,
        /// Number of bytes; 0 for the whole allocation.
        bytes: u64,
    },
    /// From here on, each miss stands for this many.
    Weight(u64),
    /// Physical address of the page table entry for the next miss.
    Entry(u64),
    /// This task runs.
    Task {
        /// Thread id.
        pid: u32,
        /// Process id.
        tgid: u32,
    },
}

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    ns: u64,
    va: u64,
    ip: u64,
}

/// Writes a stream in memory. `bytes` may be taken at any time.
#[derive(Debug)]
pub struct Writer {
    /// The bytes written and not taken yet.
    pub bytes: Vec<u8>,
    at: Place,
    entry: u64,
}

impl Writer {
    /// A stream with this header.
    pub fn new(geometries: &[Geometry]) -> Self {
        let header = Header { geometries: geometries.to_vec() };
        let json = serde_json::to_vec(&header).unwrap_or_default();
        let mut bytes = MAGIC.to_vec();
        bytes.extend((json.len() as u32).to_le_bytes());
        bytes.extend(json);
        Writer { bytes, at: Place::default(), entry: 0 }
    }

    /// Adds an event.
    #[inline]
    pub fn event(&mut self, event: &Event) {
        match *event {
            Event::Miss(m) => self.room_for::<SHORT>(|one| one.miss(&m)),
            Event::Touch { va, access, size } => self.room_for::<SHORT>(|one| one.touch(va, access, size)),
            Event::Space(cr3) => {
                self.bytes.push(SPACE);
                self.number(cr3);
            }
            Event::Invalidate(va) => {
                self.bytes.push(INVALIDATE);
                self.number(va);
            }
            Event::Flush => self.bytes.push(FLUSH),
            Event::Fault(va) => {
                self.bytes.push(FAULT);
                self.number(va);
            }
            Event::FaultEnd => self.bytes.push(FAULT_END),
            Event::Alloc(a) => {
                self.bytes.extend([ALLOC, a.function]);
                self.at(a.ns, a.va);
                self.number(a.bytes);
                a.frames.into_iter().for_each(|frame| self.number(frame));
            }
            Event::Free { ns, va, bytes } => {
                self.bytes.push(FREE);
                self.at(ns, va);
                self.number(bytes);
            }
            Event::Weight(weight) => {
                self.bytes.push(WEIGHT);
                self.number(weight);
            }
            Event::Entry(entry) => {
                self.bytes.push(ENTRY);
                let from = std::mem::replace(&mut self.entry, entry);
                self.difference(from, entry);
            }
            Event::Task { pid, tgid } => {
                self.bytes.push(TASK);
                self.number(pid.into());
                self.number(tgid.into());
            }
        }
    }

    /// Adds misses and touches in a row, the fastest way.
    #[inline(always)]
    pub fn many(&mut self, add: impl FnOnce(&mut Batch<MANY>)) {
        self.room_for(add);
    }

    #[inline(always)]
    fn room_for<const ROOM: usize>(&mut self, add: impl FnOnce(&mut Batch<ROOM>)) {
        let mut many = Batch { bytes: [0; ROOM], len: 0, at: self.at, full: &mut self.bytes };
        add(&mut many);
        many.full.extend_from_slice(&many.bytes[..many.len]);
        self.at = many.at;
    }

    fn at(&mut self, ns: u64, va: u64) {
        self.difference(self.at.ns, ns);
        self.difference(self.at.va, va);
        (self.at.ns, self.at.va) = (ns, va);
    }

    fn difference(&mut self, from: u64, to: u64) {
        let d = to.wrapping_sub(from) as i64;
        self.number((d << 1 ^ d >> 63) as u64);
    }

    fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.bytes.push(n as u8);
    }
}

/// Bytes reserved for one event: three bytes, three numbers of at most ten, and the excess that writing a number
/// touches.
const SHORT: usize = 48;
/// Bytes reserved for events that are not part of a stream yet.
pub const MANY: usize = 1024;

/// Adds events without a capacity check for each byte. See [`Writer::many`].
#[derive(Debug)]
pub struct Batch<'a, const ROOM: usize> {
    bytes: [u8; ROOM],
    len: usize,
    at: Place,
    full: &'a mut Vec<u8>,
}

impl<const ROOM: usize> Batch<'_, ROOM> {
    /// [`Event::Miss`].
    #[inline(always)]
    pub fn miss(&mut self, m: &Miss) {
        let more = m.first != 1 || m.last > 1;
        let last = if m.last & 1 != 0 { LAST } else { 0 };
        let more_bit = if more { MORE } else { 0 };
        self.begin(m.access as u8 | (m.size as u8) << 2 | last | more_bit);
        if more {
            self.byte(m.first);
            self.byte(m.last);
        }
        let at = std::mem::replace(&mut self.at, Place { ns: m.ns, va: m.va, ip: m.ip });
        self.difference(at.ns, m.ns);
        self.difference(at.va, m.va);
        self.difference(at.ip, m.ip);
    }

    /// [`Event::Touch`].
    #[inline(always)]
    pub fn touch(&mut self, va: u64, access: Access, size: PageSize) {
        self.begin(access as u8 | (size as u8) << 2 | TOUCH);
        let from = std::mem::replace(&mut self.at.va, va);
        self.difference(from, va);
    }

    #[inline(always)]
    fn begin(&mut self, head: u8) {
        if self.len > ROOM - SHORT {
            self.spill();
        }
        self.byte(head);
    }

    #[cold]
    #[inline(never)]
    fn spill(&mut self) {
        self.full.extend_from_slice(&self.bytes[..self.len]);
        self.len = 0;
    }

    #[inline(always)]
    fn byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    #[inline(always)]
    fn difference(&mut self, from: u64, to: u64) {
        let d = to.wrapping_sub(from) as i64;
        self.number((d << 1 ^ d >> 63) as u64);
    }

    /// Appends a number as LEB128. A number of at most eight bytes takes no branch for each byte: its groups of seven
    /// bits are spread by shifts.
    #[inline(always)]
    fn number(&mut self, mut n: u64) {
        if n >> 56 == 0 {
            let apart = |n: u64, bits: u32, mask: u64| (n & mask) | (n & !mask) << bits;
            let n28 = apart(n, 4, (1 << 28) - 1);
            let n14 = apart(n28, 2, 0x0000_3fff_0000_3fff);
            let n7 = apart(n14, 1, 0x007f_007f_007f_007f);
            let length = (n | 1).ilog2() as usize / 7 + 1;
            let more = 0x8080_8080_8080_8080 & ((1u64 << (8 * (length - 1))) - 1);
            if let Some(to) = self.bytes.get_mut(self.len..self.len + 8) {
                to.copy_from_slice(&(n7 | more).to_le_bytes());
            }
            self.len += length;
            return;
        }
        while n >= 0x80 {
            self.byte(n as u8 | 0x80);
            n >>= 7;
        }
        self.byte(n as u8);
    }
}

/// Error in a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {what}")]
pub struct StreamError {
    /// Byte offset.
    pub offset: usize,
    /// The expected contents, which are missing.
    pub what: String,
}

/// Reads a stream: an iterator over events. It ends at the end, or after the first error.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
    at: Place,
    entry: u64,
    header: Header,
}

impl<'a> Reader<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// It is not one.
    pub fn new(bytes: &'a [u8]) -> Result<Self, StreamError> {
        let fail = |offset, what: String| Err(StreamError { offset, what });
        if !bytes.starts_with(MAGIC) {
            return fail(0, "expected KPTLB001".into());
        }
        let length = bytes.get(8..12).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
        let Some(json) = length.and_then(|n| bytes[12..].get(..n as usize)) else {
            return fail(8, "expected a header of the length given".into());
        };
        let header: Header = match serde_json::from_slice(json) {
            Ok(header) => header,
            Err(e) => return fail(12, format!("header: {e}")),
        };
        if let Some(e) = header.geometries.iter().find_map(|g| g.check().err()) {
            return fail(12, format!("header: {e}"));
        }
        Ok(Reader { bytes, offset: 12 + json.len(), at: Place::default(), entry: 0, header })
    }

    /// Returns the stream's header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    fn byte(&mut self) -> Result<u8, StreamError> {
        let byte = self.bytes.get(self.offset).copied();
        let offset = self.offset;
        self.offset += 1;
        byte.ok_or_else(|| StreamError { offset, what: "the stream ends within an event".into() })
    }

    fn number(&mut self) -> Result<u64, StreamError> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(StreamError { offset: self.offset, what: "expected a number of at most ten bytes".into() })
    }

    fn difference(&mut self, from: u64) -> Result<u64, StreamError> {
        let n = self.number()?;
        Ok(from.wrapping_add(n >> 1 ^ (n & 1).wrapping_neg()))
    }

    fn moved(&mut self) -> Result<(u64, u64), StreamError> {
        self.at.ns = self.difference(self.at.ns)?;
        self.at.va = self.difference(self.at.va)?;
        Ok((self.at.ns, self.at.va))
    }

    fn narrow(&mut self) -> Result<u32, StreamError> {
        let offset = self.offset;
        let n = self.number()?;
        u32::try_from(n).map_err(|_| StreamError { offset, what: format!("expected a task id, not {n}") })
    }

    fn event(&mut self) -> Result<Event, StreamError> {
        let offset = self.offset;
        let head = self.byte()?;
        match head {
            SPACE => return Ok(Event::Space(self.number()?)),
            INVALIDATE => return Ok(Event::Invalidate(self.number()?)),
            FLUSH => return Ok(Event::Flush),
            FAULT => return Ok(Event::Fault(self.number()?)),
            FAULT_END => return Ok(Event::FaultEnd),
            ALLOC => {
                let function = self.byte()?;
                let (ns, va) = self.moved()?;
                let bytes = self.number()?;
                let frames = [self.number()?, self.number()?, self.number()?];
                return Ok(Event::Alloc(Alloc { ns, function, va, bytes, frames }));
            }
            FREE => {
                let (ns, va) = self.moved()?;
                return Ok(Event::Free { ns, va, bytes: self.number()? });
            }
            WEIGHT => {
                let weight = self.number()?;
                if weight == 0 {
                    return Err(StreamError {
                        offset,
                        what: "expected how many misses a sample stands for, not 0".into(),
                    });
                }
                return Ok(Event::Weight(weight));
            }
            ENTRY => {
                self.entry = self.difference(self.entry)?;
                return Ok(Event::Entry(self.entry));
            }
            TASK => return Ok(Event::Task { pid: self.narrow()?, tgid: self.narrow()? }),
            _ => {}
        }
        let (Some(access), Some(size), 0) =
            (Access::from_number(head & 3), PageSize::from_number(head >> 2 & 3), head >> 7)
        else {
            return Err(StreamError { offset, what: format!("expected an event, not {head:#04x}") });
        };
        if head & TOUCH != 0 {
            if head & (LAST | MORE) != 0 {
                return Err(StreamError { offset, what: format!("expected an event, not {head:#04x}") });
            }
            let va = self.difference(self.at.va)?;
            self.at.va = va;
            return Ok(Event::Touch { va, access, size });
        }
        let (first, last) = match head & MORE {
            0 => (1, u8::from(head & LAST != 0)),
            _ => (self.byte()?, self.byte()?),
        };
        let ns = self.difference(self.at.ns)?;
        let va = self.difference(self.at.va)?;
        let ip = self.difference(self.at.ip)?;
        self.at = Place { ns, va, ip };
        Ok(Event::Miss(Miss { ns, va, ip, access, size, first, last }))
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Event, StreamError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.bytes.len() {
            return None;
        }
        let event = self.event();
        if event.is_err() {
            self.offset = self.bytes.len();
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = Event> {
        let miss = (any::<(u64, u64, u64)>(), 0u8..3, 0u8..3, any::<(u8, u8)>());
        prop_oneof![
            miss.prop_map(|((ns, va, ip), a, s, (first, last))| Event::Miss(Miss {
                ns,
                va,
                ip,
                access: Access::from_number(a).unwrap(),
                size: PageSize::from_number(s).unwrap(),
                first,
                last
            })),
            (any::<u64>(), 0u8..3, 0u8..3).prop_map(|(va, a, s)| Event::Touch {
                va,
                access: Access::from_number(a).unwrap(),
                size: PageSize::from_number(s).unwrap(),
            }),
            any::<u64>().prop_map(Event::Fault),
            Just(Event::FaultEnd),
            (1..=u64::MAX).prop_map(Event::Weight),
            (any::<(u64, u64, u64)>(), any::<u8>(), any::<[u64; 3]>()).prop_map(
                |((ns, va, bytes), function, frames)| Event::Alloc(Alloc { ns, function, va, bytes, frames })
            ),
            any::<(u64, u64, u64)>().prop_map(|(ns, va, bytes)| Event::Free { ns, va, bytes }),
            any::<u64>().prop_map(Event::Space),
            any::<u64>().prop_map(Event::Invalidate),
            any::<u64>().prop_map(Event::Entry),
            Just(Event::Flush),
            any::<(u32, u32)>().prop_map(|(pid, tgid)| Event::Task { pid, tgid }),
        ]
    }

    proptest! {
        #[test]
        fn reads_what_was_written(events in prop::collection::vec(event(), 0..50)) {
            let mut w = Writer::new(&[crate::presets::preset("zen4").unwrap()]);
            let begin = w.bytes.len();
            events.iter().for_each(|e| w.event(e));
            let r = Reader::new(&w.bytes).unwrap();
            prop_assert_eq!(r.map(Result::unwrap).collect::<Vec<_>>(), events.clone());
            // Truncated anywhere, the stream gives its complete events and then at most one error.
            for cut in begin..w.bytes.len() {
                let got: Vec<_> = Reader::new(&w.bytes[..cut]).unwrap().collect();
                let good = got.iter().filter(|e| e.is_ok()).count();
                prop_assert!(got.len() - good <= 1);
                prop_assert!(got.iter().take(good).zip(&events).all(|(g, e)| g.as_ref() == Ok(e)));
            }
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut all = Writer::new(&[]).bytes;
            all.extend(&bytes);
            prop_assert!(Reader::new(&all).unwrap().count() <= bytes.len());
            let _ = Reader::new(&bytes);
        }
    }
}
