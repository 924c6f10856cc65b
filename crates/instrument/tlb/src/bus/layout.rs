// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of a capture device, as a line of text describes them: `seq:8,time:8,read:1,address:31*64`.
//!
//! In: a [`Layout`], and records of its length. Out: accesses with the times of the board's clock, and what was lost.
//! A layout is needed because each device has its own: the boards of HMTT write 6 bytes ([`HMTT`], as published with the
//! traces of SPEC 2017 by its authors), others more.

use std::fmt;

use super::BusError;
use super::trace::{Access, Kind, MOST_CPU};

/// The published records of HMTT: 48 bits, from the highest down.
pub const HMTT: &str = "seq:8,time:8,read:1,address:31*64";

/// Longest record, bytes.
const LONGEST: usize = 32;

/// Order of a record's bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// The lowest bits come first.
    #[default]
    Little,
    /// The highest bits come first.
    Big,
}

/// Bits of a record, counted from its highest bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    at: usize,
    bits: usize,
}

/// The fields of a record, by their places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    bytes: usize,
    seq: Option<Field>,
    time: Option<Field>,
    clock: Option<Field>,
    read: Option<Field>,
    write: Option<Field>,
    address: Option<Field>,
    /// Bytes of one count of the address.
    unit: u64,
    size: Option<Field>,
    cpu: Option<Field>,
    value: Option<Field>,
    valued: Option<Field>,
    lost: Option<Field>,
    zero: Vec<Field>,
}

/// A layout that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("record layout {0:?}: {1}")]
pub struct LayoutError(String, String);

impl Layout {
    /// Parses a description: fields from the highest bit down, `NAME:BITS`, separated by commas.
    ///
    /// # Errors
    /// A field is unknown, stands twice, has too many bits or none; there is no address, no direction or no time; the
    /// whole is not a number of bytes, or more than 32.
    pub fn parse(text: &str) -> Result<Self, LayoutError> {
        let fail = |why: String| LayoutError(text.to_owned(), why);
        let mut layout = Layout { unit: 1, ..Layout::default() };
        let mut at = 0;
        for part in text.split(',').map(str::trim) {
            let (name, number) =
                part.split_once(':').ok_or_else(|| fail(format!("{part:?} is not NAME:BITS")))?;
            const NAMES: [&str; 13] = [
                "seq", "time", "clock", "read", "write", "address", "size", "cpu", "value", "valued", "lost",
                "zero", "skip",
            ];
            if !NAMES.contains(&name) {
                return Err(fail(format!("no field {name:?}: there are {}", NAMES.join(", "))));
            }
            let (number, unit) = match number.split_once('*') {
                Some((number, unit)) if name == "address" => (number, Some(unit)),
                _ => (number, None),
            };
            let most = match name {
                "read" | "write" | "valued" => 1,
                "size" => 3,
                "cpu" => 8,
                "address" => 48,
                "lost" => 32,
                _ => 64,
            };
            let bits = number.parse::<usize>().ok().filter(|bits| (1..=most).contains(bits));
            let bits = bits.ok_or_else(|| fail(format!("{name} has 1 to {most} bits, not {number}")))?;
            if let Some(unit) = unit {
                let of = unit.parse::<u64>().ok().filter(|unit| unit.is_power_of_two() && *unit <= 128);
                layout.unit =
                    of.ok_or_else(|| fail(format!("an address counts 1, 2, 4 … 128 bytes, not {unit}")))?;
            }
            let field = Field { at, bits };
            at += bits;
            let place = match name {
                "seq" => &mut layout.seq,
                "time" => &mut layout.time,
                "clock" => &mut layout.clock,
                "read" => &mut layout.read,
                "write" => &mut layout.write,
                "address" => &mut layout.address,
                "size" => &mut layout.size,
                "cpu" => &mut layout.cpu,
                "value" => &mut layout.value,
                "valued" => &mut layout.valued,
                "lost" => &mut layout.lost,
                "zero" => {
                    layout.zero.push(field);
                    continue;
                }
                _ => continue, // skip
            };
            if place.replace(field).is_some() {
                return Err(fail(format!("two fields {name}")));
            }
        }
        layout.bytes = at / 8;
        let why = if at % 8 != 0 {
            format!("{at} bits are no number of bytes; fill them with zero:N or skip:N")
        } else if layout.bytes > LONGEST {
            format!("{} bytes; at most {LONGEST}", layout.bytes)
        } else if layout.address.is_none() {
            "no address".into()
        } else if layout.read.is_some() == layout.write.is_some() {
            "one of read:1 (1 is a read) and write:1 (1 is a write)".into()
        } else if layout.time.is_some() == layout.clock.is_some() {
            "one of time:N (ticks since the last record) and clock:N (the board's clock, which begins anew at 2^N)".into()
        } else if layout.address.is_some_and(|a| a.bits + layout.unit.trailing_zeros() as usize > 48) {
            "addresses have at most 48 bits".into()
        } else if layout.value.is_some_and(|v| v.bits != 64) {
            "a value has 64 bits".into()
        } else if layout.valued.is_some() && layout.value.is_none() {
            "valued:1 without value:64".into()
        } else {
            return Ok(layout);
        };
        Err(fail(why))
    }

    /// Bytes of a record.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records carry values.
    pub fn has_values(&self) -> bool {
        self.value.is_some()
    }
}

/// Counts of a board's records, and of losses that they show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records.
    pub records: u64,
    /// Of these, such as only tell that time goes by.
    pub only_time: u64,
    /// Places where sequence numbers do not follow.
    pub gaps: u64,
    /// Records that are missing there, at least: a whole round of sequence numbers does not show.
    pub missing: u64,
    /// Records that tell that ones before them were lost.
    pub marks: u64,
    /// Records that were lost as those tell.
    pub marked: u64,
}

impl Losses {
    /// Records that were lost, at least.
    pub fn lost(&self) -> u64 {
        // A mark where numbers are missing too tells of the same records.
        self.missing.max(self.marked)
    }
}

/// A board's state: its clock, and the number that the next record is to have.
#[derive(Clone)]
pub struct Decoder {
    layout: Layout,
    order: Order,
    clock: u64,
    begun: bool,
    next: u64,
    /// The losses so far.
    pub losses: Losses,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Decoder({} bytes, {:?}, {:?})", self.layout.bytes, self.order, self.losses)
    }
}

impl Decoder {
    /// A board that has written nothing yet.
    pub fn new(layout: Layout, order: Order) -> Self {
        Decoder { layout, order, clock: 0, begun: false, next: 0, losses: Losses::default() }
    }

    /// Bytes of a record.
    pub fn length(&self) -> usize {
        self.layout.bytes
    }

    /// Takes a record, of [`Decoder::length`] bytes, from `offset` of its file. Returns its access, or nothing if it only
    /// tells the time.
    ///
    /// # Errors
    /// A bit that is always 0 is not. Then the file has another layout, or bytes of it are missing.
    pub fn record(&mut self, record: &[u8], offset: usize) -> Result<Option<Access>, BusError> {
        let mut high_first = [0; LONGEST];
        let bytes = &mut high_first[..self.layout.bytes];
        let Some(record) = record.get(..bytes.len()) else {
            return Err(BusError::new(
                offset,
                format!("the file ends within a record of {} bytes", bytes.len()),
            ));
        };
        bytes.copy_from_slice(record);
        if self.order == Order::Little {
            bytes.reverse();
        }
        let bytes = &*bytes;
        let get = |field: Option<Field>| field.map_or(0, |f| bits(bytes, f));
        let layout = &self.layout;
        if let Some(field) = layout.zero.iter().find(|field| bits(bytes, **field) != 0) {
            let what = format!(
                "expected bits {} to {} of the record to be 0: another layout or byte order, or bytes are missing before it",
                layout.bytes * 8 - field.at - field.bits,
                layout.bytes * 8 - field.at - 1,
            );
            return Err(BusError::new(offset, what));
        }
        self.losses.records += 1;
        if let Some(field) = layout.seq {
            let mask = u64::MAX >> (64 - field.bits);
            let seq = bits(bytes, field);
            let missing = seq.wrapping_sub(self.next) & mask;
            if self.begun && missing != 0 {
                self.losses.gaps += 1;
                self.losses.missing += missing;
            }
            self.next = seq.wrapping_add(1) & mask;
        }
        let marked = get(layout.lost);
        self.losses.marks += u64::from(marked != 0);
        self.losses.marked += marked;
        let address = get(layout.address) * layout.unit;
        let read = match layout.read {
            Some(field) => bits(bytes, field) == 1,
            None => get(layout.write) == 0,
        };
        let passed = get(layout.time);
        if let Some(time) = layout.time
            && passed == 0
            && address == 0
            && !read
        {
            // As HMTT has it: the time since the last record did not fit.
            self.clock = self.clock.saturating_add(1u64.checked_shl(time.bits as u32).unwrap_or(u64::MAX));
            self.losses.only_time += 1;
            self.begun = true;
            return Ok(None);
        }
        match layout.clock {
            Some(field) => {
                let mask = u64::MAX >> (64 - field.bits);
                let now = bits(bytes, field);
                let passed = if self.begun { now.wrapping_sub(self.clock) & mask } else { now };
                self.clock = self.clock.wrapping_add(passed);
            }
            None => self.clock = self.clock.saturating_add(passed),
        }
        self.begun = true;
        let bytes_moved = match layout.size {
            Some(field) => 1 << bits(bytes, field),
            None => layout.unit.max(8) as u8,
        };
        let valued = layout.value.is_some() && layout.valued.is_none_or(|field| bits(bytes, field) == 1);
        Ok(Some(Access {
            time: self.clock,
            address,
            kind: if read { Kind::Read } else { Kind::Write },
            bytes: bytes_moved,
            value: valued.then(|| get(layout.value)),
            cpu: get(layout.cpu).checked_sub(1).map(|cpu| cpu as u8).filter(|cpu| *cpu <= MOST_CPU),
        }))
    }
}

/// The bits of a field, of bytes of which the highest come first.
fn bits(bytes: &[u8], field: Field) -> u64 {
    let mut value = 0u128;
    let (first, end) = (field.at / 8, (field.at + field.bits).div_ceil(8));
    for byte in bytes.get(first..end).unwrap_or_default() {
        value = value << 8 | u128::from(*byte);
    }
    let below = end * 8 - field.at - field.bits;
    (value >> below) as u64 & (u64::MAX >> (64 - field.bits))
}

/// Writes records: the other direction, for tools and tests.
#[derive(Debug, Clone)]
pub struct Encoder {
    layout: Layout,
    order: Order,
    seq: u64,
    clock: u64,
    /// The bytes written and not taken yet.
    pub bytes: Vec<u8>,
}

impl Encoder {
    /// A board that has written nothing yet.
    pub fn new(layout: Layout, order: Order) -> Self {
        Encoder { layout, order, seq: 0, clock: 0, bytes: Vec::new() }
    }

    /// Adds an access, and records before it that only tell the time, if it is long since the last one.
    pub fn access(&mut self, a: &Access) {
        let mut passed = a.time.saturating_sub(self.clock);
        self.clock = a.time;
        if let Some(field) = self.layout.time {
            let most = 1u64.checked_shl(field.bits as u32).unwrap_or(u64::MAX);
            while passed >= most {
                passed -= most;
                self.put(&[(self.layout.seq, self.seq)]);
            }
        }
        let l = &self.layout;
        let write = u64::from(a.kind == Kind::Write);
        let fields = [
            (l.seq, self.seq),
            (l.time, passed),
            (l.clock, a.time),
            (l.read, 1 - write),
            (l.write, write),
            (l.address, a.address / l.unit),
            (l.size, u64::from(a.bytes.trailing_zeros() & 7)),
            (l.cpu, a.cpu.map_or(0, |cpu| u64::from(cpu) + 1)),
            (l.value, a.value.unwrap_or(0)),
            (l.valued, a.value.is_some().into()),
        ];
        self.put(&fields);
    }

    fn put(&mut self, fields: &[(Option<Field>, u64)]) {
        let mut record = [0u8; LONGEST];
        for (field, value) in fields {
            let Some(field) = field else { continue };
            for bit in 0..field.bits {
                let at = field.at + field.bits - 1 - bit;
                record[at / 8] |= ((value >> bit & 1) as u8) << (7 - at % 8);
            }
        }
        let record = &mut record[..self.layout.bytes];
        if self.order == Order::Little {
            record.reverse();
        }
        self.bytes.extend_from_slice(record);
        self.seq = self.seq.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder(text: &str, order: Order) -> Decoder {
        Decoder::new(Layout::parse(text).unwrap(), order)
    }

    /// Bits 47 to 40 are the number, 39 to 32 the time, 31 is 1 for a read, the rest the address in lines of 64 bytes.
    #[test]
    fn hmtts_records_as_published() {
        let mut board = decoder(HMTT, Order::Little);
        assert_eq!(board.length(), 6);
        let record = |seq: u64, time: u64, read: u64, line: u64| {
            (seq << 40 | time << 32 | read << 31 | line).to_le_bytes()[..6].to_vec()
        };
        let read = board.record(&record(255, 3, 1, 0x123_4567), 0).unwrap().unwrap();
        assert_eq!((read.time, read.address, read.kind, read.bytes), (3, 0x123_4567 << 6, Kind::Read, 64));
        // 256 ticks, and 256 again; numbers go on.
        assert_eq!(board.record(&record(0, 0, 0, 0), 6), Ok(None));
        assert_eq!(board.record(&record(1, 0, 0, 0), 12), Ok(None));
        let write = board.record(&record(2, 1, 0, 0x7fff_ffff), 18).unwrap().unwrap();
        assert_eq!((write.time, write.address, write.kind), (3 + 512 + 1, 0x7fff_ffff << 6, Kind::Write));
        // Two records are missing, then 254.
        board.record(&record(5, 1, 0, 1), 24).unwrap();
        board.record(&record(4, 1, 0, 1), 30).unwrap();
        let losses = Losses { records: 6, only_time: 2, gaps: 2, missing: 2 + 254, marks: 0, marked: 0 };
        assert_eq!(board.losses, losses);
        assert_eq!(losses.lost(), 256);
    }

    #[test]
    fn wide_records_of_either_byte_order() {
        let text = "seq:16,lost:4,zero:4,clock:40,write:1,size:3,cpu:8,valued:1,skip:3,address:48,value:64";
        for order in [Order::Little, Order::Big] {
            let layout = Layout::parse(text).unwrap();
            let mut out = Encoder::new(layout.clone(), order);
            let access = |time, value| Access {
                time,
                address: 0x1234_5678_9abd,
                kind: Kind::Write,
                bytes: 4,
                value,
                cpu: Some(7),
            };
            // The clock begins anew between them.
            let all = [access(5, Some(u64::MAX)), access((1 << 40) + 3, None)];
            all.iter().for_each(|a| out.access(a));
            let mut board = Decoder::new(layout, order);
            let length = board.length();
            let got: Vec<_> =
                out.bytes.chunks(length).map(|r| board.record(r, 0).unwrap().unwrap()).collect();
            assert_eq!((got, length), (all.to_vec(), 24));
            // A mark of an overflow, and a bit where there is none.
            let at = if order == Order::Little { length - 3 } else { 2 };
            let mut marked = out.bytes[..length].to_vec();
            marked[at] |= 0x30;
            board.record(&marked, 48).unwrap();
            assert_eq!((board.losses.marks, board.losses.marked), (1, 3));
            marked[at] |= 1;
            let error = board.record(&marked, 72).unwrap_err();
            assert_eq!(error.offset, 72);
            assert!(error.what.contains("bits 168 to 171"), "{error}");
        }
    }

    #[test]
    fn layouts_that_cannot_be_are_refused() {
        for (text, why) in [
            ("", "is not NAME:BITS"),
            ("seq:8,time:8,read:1,adress:31*64", "no field \"adress\""),
            ("seq:8,time:8,read:1,address:30*64", "47 bits are no number of bytes"),
            ("seq:8,time:8,address:32*64", "one of read:1"),
            ("seq:8,read:1,address:31", "one of time:N"),
            ("time:8,read:1,seq:39", "no address"),
            ("time:8,time:8,read:1,address:31", "two fields time"),
            ("time:8,read:1,address:47*64", "at most 48 bits"),
            ("time:8,read:2,address:38", "read has 1 to 1 bits"),
            ("time:8,read:1,address:31*3", "1, 2, 4 … 128 bytes"),
            ("time:7,read:1,address:48,value:32", "a value has 64 bits"),
            ("time:7,read:1,address:48,skip:64,skip:64,skip:64,skip:64", "at most 32"),
        ] {
            let error = Layout::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
