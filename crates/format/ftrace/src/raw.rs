// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads pages of the ring buffer (kernel/trace/ring_buffer.c), from `trace_pipe_raw` or trace.dat.
//!
//! Input: the pages of one CPU. Output: its events in order. A page consists of a time stamp, a commit word (number of
//! bytes used, and two bits about lost events) and events. An event is a word with 5 bits of length and 27 bits of
//! time, then the record.

use crate::decode::Decoder;
use crate::event::{Context, Data, Event};
use crate::fault::Faults;
use crate::format::PageLayout;

/// Bits of the commit word. MISSED_EVENTS: events were lost before this page. MISSED_STORED: their number is stored
/// after the last event.
const MISSED_EVENTS: u64 = 1 << 31;
const MISSED_STORED: u64 = 1 << 30;

/// Special values of `type_len`.
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// An absolute time stamp has 59 bits. The higher bits come from the previous time.
const STAMP_BITS: u32 = 59;

/// Iterator over the events of one CPU.
#[derive(Debug, Clone)]
pub struct Cpu<'a> {
    decoder: &'a Decoder,
    layout: PageLayout,
    cpu: u32,
    pages: &'a [u8],
    /// Offset of the next page.
    next_page: usize,
    /// Events of the current page up to its commit, and the offset of the next one.
    data: &'a [u8],
    at: usize,
    ns: u64,
    /// Set if events were lost before the next one; the inner value is their number, if known.
    lost: Option<Option<u64>>,
    /// Counters so far.
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

impl<'a> Cpu<'a> {
    /// Creates a reader for the pages of CPU number `cpu`.
    #[must_use]
    pub fn new(decoder: &'a Decoder, layout: PageLayout, cpu: u32, pages: &'a [u8]) -> Self {
        let counts = Counts::default();
        Cpu { decoder, layout, cpu, pages, next_page: 0, data: &[], at: 0, ns: 0, lost: None, counts }
    }

    /// Moves to the next page. Returns `false` at the end.
    fn turn(&mut self) -> bool {
        let begin = self.next_page;
        let Some(rest) = self.pages.get(begin..).filter(|rest| !rest.is_empty()) else { return false };
        let layout = self.layout;
        let page = &rest[..rest.len().min(layout.page_size())];
        self.next_page += page.len();
        (self.data, self.at) = (&[], 0);
        let order = self.decoder.order;
        let (Some(ns), Some(commit)) =
            (order.u64(page, 0), order.number(page, layout.commit_at, layout.commit_size))
        else {
            self.counts.faults.add(begin as u64, "a page of the ring buffer");
            return true;
        };
        self.counts.pages += 1;
        self.ns = ns;
        let used = (commit & (MISSED_STORED - 1)) as usize;
        let data = page.get(layout.data_at..).unwrap_or_default();
        if used > data.len() {
            self.counts.faults.add(begin as u64, "as many bytes of events as the page's commit word says");
        }
        self.data = &data[..used.min(data.len())];
        if commit & MISSED_EVENTS != 0 {
            let stored = commit & MISSED_STORED != 0;
            let count = stored.then(|| order.number(data, used, layout.commit_size)).flatten();
            self.lose(count);
        }
        true
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
        let into_page = self.data.as_ptr() as usize - self.pages.as_ptr() as usize;
        self.counts.faults.add((into_page + self.at) as u64, expected);
    }

    /// Records a fault and skips the rest of the page.
    fn give_up(&mut self, expected: &'static str) {
        self.fault(expected);
        self.at = self.data.len();
    }

    /// Returns the next event's record and updates the time. `None` at the end of the page.
    #[inline]
    fn record(&mut self) -> Option<&'a [u8]> {
        let order = self.decoder.order;
        loop {
            if self.at >= self.data.len() {
                return None;
            }
            let Some(word) = order.u32(self.data, self.at) else {
                self.give_up("the 4 bytes that begin an event");
                return None;
            };
            // Bit fields start at the least significant bit of a little-endian word, at the most significant of a
            // big-endian one.
            let (type_len, delta) = match order {
                crate::bytes::Order::Little => (word & 31, u64::from(word >> 5)),
                crate::bytes::Order::Big => (word >> 27, u64::from(word & 0x07ff_ffff)),
            };
            let body = self.at + 4;
            if (1..PADDING).contains(&type_len) {
                let record = self.data.get(body..body + type_len as usize * 4);
                if record.is_none() {
                    self.give_up("an event that ends within its page");
                    return None;
                }
                self.ns = self.ns.wrapping_add(delta);
                self.at = body + type_len as usize * 4;
                return record;
            }
            let Some(word) = order.u32(self.data, body) else {
                // Only padding can fill the last word of a page.
                if type_len != PADDING || delta != 0 {
                    self.give_up("the length or time of an event");
                }
                self.at = self.data.len();
                return None;
            };
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
                    self.at = self.data.len();
                    return None;
                }
                PADDING => {
                    self.counts.discarded += 1;
                    self.ns = self.ns.wrapping_add(delta);
                    // The length includes the word that contains it.
                    match (word as usize)
                        .checked_next_multiple_of(4)
                        .filter(|&n| n >= 4 && n <= self.data.len() - body)
                    {
                        Some(length) => self.at = body + length,
                        None => {
                            self.give_up("a discarded event that ends within its page");
                            return None;
                        }
                    }
                }
                _ => {
                    let end = (word as usize)
                        .checked_next_multiple_of(4)
                        .filter(|&n| n >= 4 && n <= self.data.len() - body);
                    let Some(length) = end else {
                        self.give_up("an event that ends within its page");
                        return None;
                    };
                    self.ns = self.ns.wrapping_add(delta);
                    self.at = body + length;
                    return self.data.get(body + 4..body + length);
                }
            }
        }
    }
}

impl<'a> Iterator for Cpu<'a> {
    type Item = Event<'a>;

    #[inline]
    fn next(&mut self) -> Option<Event<'a>> {
        loop {
            if let Some(count) = self.lost.take() {
                let data = Data::Lost { count };
                let (ns, cpu) = (self.ns, self.cpu);
                return Some(Event { ns, cpu, pid: crate::UNKNOWN_PID, context: Context::Task, data });
            }
            if let Some(record) = self.record() {
                self.counts.events += 1;
                let (pid, context, data) = self.decoder.decode(record);
                if let Data::Raw { id, .. } = data
                    && self.decoder.is_call(id)
                {
                    self.fault(
                        "before here: an entry or exit of a function, at a depth that a stack can have",
                    );
                }
                return Some(Event { ns: self.ns, cpu: self.cpu, pid, context, data });
            }
            if !self.turn() {
                return None;
            }
        }
    }
}
