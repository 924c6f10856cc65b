// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads pages of the ring buffer (kernel/trace/ring_buffer.c), from `trace_pipe_raw` or trace.dat.
//!
//! Input: the pages of one CPU. Output: its events in order. A page consists of a time stamp, a commit word (number of
//! bytes used, and two bits about lost events) and events. An event is a word with 5 bits of length and 27 bits of
//! time, then the record.

use std::ops::Range;

use crate::bytes::Order;
use crate::decode::Decoder;
use crate::event::{Context, Data, Event};
use crate::fault::Faults;
use crate::format::PageLayout;

/// Bits of the commit word. MISSED_EVENTS: events were lost before this page. MISSED_STORED: their number is stored
/// after the last event.
pub(crate) const MISSED_EVENTS: u64 = 1 << 31;
pub(crate) const MISSED_STORED: u64 = 1 << 30;

/// Special values of `type_len`.
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// An absolute time stamp has 59 bits. The higher bits come from the previous time.
const STAMP_BITS: u32 = 59;

/// Iterator over the events of one CPU, whose pages are in memory. [`crate::stream::Stream`] reads them as it goes.
#[derive(Debug, Clone)]
pub struct Cpu<'a> {
    decoder: &'a Decoder,
    cpu: u32,
    pages: &'a [u8],
    /// Offset of the next page.
    next_page: usize,
    /// Events of the current page up to its commit.
    data: &'a [u8],
    walk: Walk,
}

/// The way through a page's events, and what was counted on it.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    pub layout: PageLayout,
    order: Order,
    /// Offset of the current page's events among all pages of the CPU.
    base: u64,
    /// Offset of the next event among the page's events.
    at: usize,
    pub ns: u64,
    /// Set if events were lost before the next one; the inner value is their number, if known.
    pub lost: Option<Option<u64>>,
    pub counts: Counts,
}

/// Counters of a CPU's pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events, without lost ones.
    pub events: u64,
    /// Pages that were read.
    pub pages: u64,
    /// Lost events, as far as the kernel counted them.
    pub lost: u64,
    /// Number of places where events were lost without a count.
    pub lost_uncounted: u64,
    /// Records that the kernel discarded.
    pub discarded: u64,
    /// Places that could not be read.
    pub faults: Faults,
}

impl Walk {
    pub fn new(order: Order, layout: PageLayout) -> Self {
        Walk { layout, order, base: 0, at: 0, ns: 0, lost: None, counts: Counts::default() }
    }

    /// Begins the page at offset `begin`. Returns the place of its events in it.
    pub fn turn(&mut self, page: &[u8], begin: u64) -> Range<usize> {
        let layout = self.layout;
        self.at = 0;
        self.base = begin + layout.data_at as u64;
        let order = self.order;
        let (Some(ns), Some(commit)) =
            (order.u64(page, 0), order.number(page, layout.commit_at, layout.commit_size))
        else {
            self.counts.faults.add(begin, "a page of the ring buffer");
            return 0..0;
        };
        self.counts.pages += 1;
        self.ns = ns;
        let used = (commit & (MISSED_STORED - 1)) as usize;
        let data = page.get(layout.data_at..).unwrap_or_default();
        if used > data.len() {
            self.counts.faults.add(begin, "as many bytes of events as the page's commit word says");
        }
        if commit & MISSED_EVENTS != 0 {
            let stored = commit & MISSED_STORED != 0;
            let count = stored.then(|| order.number(data, used, layout.commit_size)).flatten();
            self.lose(count);
        }
        match used.min(data.len()) {
            0 => 0..0,
            used => layout.data_at..layout.data_at + used,
        }
    }

    fn lose(&mut self, count: Option<u64>) {
        match count {
            Some(count) => self.counts.lost = self.counts.lost.saturating_add(count),
            None => self.counts.lost_uncounted += 1,
        }
        self.lost = Some(count);
    }

    /// Records a fault at the current position.
    fn fault(&mut self, expected: &'static str) {
        self.counts.faults.add(self.base + self.at as u64, expected);
    }

    /// Records a fault and skips the rest of the page.
    fn give_up(&mut self, data: &[u8], expected: &'static str) {
        self.fault(expected);
        self.at = data.len();
    }

    /// The place of the next event's record in the page's events, and updates the time. `None` at the end of the page.
    #[inline]
    pub fn record(&mut self, data: &[u8]) -> Option<Range<usize>> {
        let order = self.order;
        loop {
            if self.at >= data.len() {
                return None;
            }
            let Some(word) = order.u32(data, self.at) else {
                self.give_up(data, "the 4 bytes that begin an event");
                return None;
            };
            // Bit fields start at the least significant bit of a little-endian word, at the most significant of a
            // big-endian one.
            let (type_len, delta) = match order {
                Order::Little => (word & 31, u64::from(word >> 5)),
                Order::Big => (word >> 27, u64::from(word & 0x07ff_ffff)),
            };
            let body = self.at + 4;
            if (1..PADDING).contains(&type_len) {
                let end = body + type_len as usize * 4;
                if end > data.len() {
                    self.give_up(data, "an event that ends within its page");
                    return None;
                }
                self.ns = self.ns.wrapping_add(delta);
                self.at = end;
                return Some(body..end);
            }
            match self.special(data, type_len, delta, body) {
                Special::Record(record) => return Some(record),
                Special::Passed => {}
                Special::End => return None,
            }
        }
    }

    /// Passes a word that is no short event: time, padding, a long event.
    fn special(&mut self, data: &[u8], type_len: u32, delta: u64, body: usize) -> Special {
        let Some(word) = self.order.u32(data, body) else {
            // Only padding can fill the last word of a page.
            if type_len != PADDING || delta != 0 {
                self.give_up(data, "the length or time of an event");
            }
            self.at = data.len();
            return Special::End;
        };
        // The length includes the word that contains it.
        let length =
            (word as usize).checked_next_multiple_of(4).filter(|&n| n >= 4 && n <= data.len() - body);
        match type_len {
            TIME_EXTEND => {
                self.ns = self.ns.wrapping_add(delta).wrapping_add(u64::from(word) << 27);
                self.at = body + 4;
            }
            TIME_STAMP => {
                let low = delta | u64::from(word) << 27;
                let mut ns = self.ns >> STAMP_BITS << STAMP_BITS | low;
                // The higher bits have changed since the previous time.
                if ns < self.ns && self.ns - ns > 1 << (STAMP_BITS - 1) {
                    ns = ns.wrapping_add(1 << STAMP_BITS);
                }
                self.ns = ns;
                self.at = body + 4;
            }
            PADDING if delta == 0 => {
                self.at = data.len();
                return Special::End;
            }
            PADDING => {
                self.counts.discarded += 1;
                self.ns = self.ns.wrapping_add(delta);
                let Some(length) = length else {
                    self.give_up(data, "a discarded event that ends within its page");
                    return Special::End;
                };
                self.at = body + length;
            }
            _ => {
                let Some(length) = length else {
                    self.give_up(data, "an event that ends within its page");
                    return Special::End;
                };
                self.ns = self.ns.wrapping_add(delta);
                self.at = body + length;
                return Special::Record(body + 4..body + length);
            }
        }
        Special::Passed
    }

    /// Decodes a record that [`Walk::record`] returned last.
    #[inline]
    pub fn event<'r>(&mut self, decoder: &Decoder, cpu: u32, record: &'r [u8]) -> Event<'r> {
        self.counts.events += 1;
        let (pid, context, data) = decoder.record(record);
        if let Data::Raw { id, .. } = data
            && decoder.is_call(id)
        {
            self.fault("before here: an entry or exit of a function, at a depth that a stack can have");
        }
        Event { ns: self.ns, cpu, pid, context, data }
    }

    /// The message that events were lost.
    pub fn lost_event(&self, cpu: u32, count: Option<u64>) -> Event<'static> {
        let data = Data::Lost { count };
        Event { ns: self.ns, cpu, pid: crate::UNKNOWN_PID, context: Context::Task, data }
    }
}

/// Kind of a word that does not begin a short event.
enum Special {
    Record(Range<usize>),
    Passed,
    /// The last one of the page.
    End,
}

impl<'a> Cpu<'a> {
    /// Creates a reader for the pages of CPU number `cpu`.
    #[must_use]
    pub fn new(decoder: &'a Decoder, layout: PageLayout, cpu: u32, pages: &'a [u8]) -> Self {
        let walk = Walk::new(decoder.order, layout);
        Cpu { decoder, cpu, pages, next_page: 0, data: &[], walk }
    }

    /// Counters so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.walk.counts
    }

    /// Moves to the next page. Returns `false` at the end.
    fn turn(&mut self) -> bool {
        let begin = self.next_page;
        let Some(rest) = self.pages.get(begin..).filter(|rest| !rest.is_empty()) else { return false };
        let page = &rest[..rest.len().min(self.walk.layout.page_size())];
        self.next_page += page.len();
        self.data = page.get(self.walk.turn(page, begin as u64)).unwrap_or_default();
        true
    }
}

impl<'a> Iterator for Cpu<'a> {
    type Item = Event<'a>;

    #[inline]
    fn next(&mut self) -> Option<Event<'a>> {
        loop {
            if let Some(count) = self.walk.lost.take() {
                return Some(self.walk.lost_event(self.cpu, count));
            }
            if let Some(record) = self.walk.record(self.data) {
                return Some(self.walk.event(self.decoder, self.cpu, &self.data[record]));
            }
            if !self.turn() {
                return None;
            }
        }
    }
}
