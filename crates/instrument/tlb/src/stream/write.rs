// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a stream of misses in memory. Input: events. Output: bytes.

use crate::model::geometry::{Access, Geometry, PageSize};

use super::{
    ALLOC, ENTRY, Event, FAULT, FAULT_END, FLUSH, FREE, Header, INVALIDATE, LAST, MAGIC, MORE, Miss, Place,
    SPACE, TASK, TOUCH, WEIGHT,
};

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
