// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages of the ring buffer (kernel/trace/ring_buffer.c): what `trace_pipe_raw` gives, and what trace.dat holds.
//!
//! In: the pages of one CPU. Out: its events in order. A page is a time stamp, a commit word (bytes used, and two bits
//! on events lost before it) and events; an event is a word of 5 bits of length and 27 bits of time, then its record.

use crate::decode::Decoder;
use crate::event::{Context, Data, Event};
use crate::fault::Faults;
use crate::format::PageLayout;

/// Bits of the commit word: events were lost before this page, and their number follows the last event.
const MISSED_EVENTS: u64 = 1 << 31;
const MISSED_STORED: u64 = 1 << 30;

/// `type_len` beyond data.
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// An absolute time stamp has 59 bits; those above come from the time before it.
const STAMP_BITS: u32 = 59;

/// The events of one CPU.
#[derive(Debug, Clone)]
pub struct Cpu<'a> {
    decoder: &'a Decoder,
    layout: PageLayout,
    cpu: u32,
    pages: &'a [u8],
    /// Where the next page begins.
    next_page: usize,
    /// Events of the page at hand, up to its commit, and where the next one begins.
    data: &'a [u8],
    at: usize,
    ns: u64,
    /// Events lost before the next one.
    lost: Option<Option<u64>>,
    /// What was counted so far.
    pub counts: Counts,
}

/// What a CPU's pages held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events, lost ones not among them.
    pub events: u64,
    /// Pages.
    pub pages: u64,
    /// Events lost, as far as they were counted.
    pub lost: u64,
    /// Places where events were lost without being counted.
    pub lost_uncounted: u64,
    /// Records that the kernel discarded.
    pub discarded: u64,
    /// Places that could not be read.
    pub faults: Faults,
}

impl<'a> Cpu<'a> {
    /// Reads pages of CPU number `cpu`.
    #[must_use]
    pub fn new(decoder: &'a Decoder, layout: PageLayout, cpu: u32, pages: &'a [u8]) -> Self {
        let counts = Counts::default();
        Cpu { decoder, layout, cpu, pages, next_page: 0, data: &[], at: 0, ns: 0, lost: None, counts }
    }

    /// Goes to the next page; `false` at the end.
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

    /// Something here is not what it should be.
    fn fault(&mut self, expected: &'static str) {
        let into_page = self.data.as_ptr() as usize - self.pages.as_ptr() as usize;
        self.counts.faults.add((into_page + self.at) as u64, expected);
    }

    /// The rest of the page is of no use.
    fn give_up(&mut self, expected: &'static str) {
        self.fault(expected);
        self.at = self.data.len();
    }

    /// The record of the next event, after its time was added up; `None` if the page is at its end.
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
            // Bit fields begin at the least significant bit of a little-endian word, at the most of a big-endian one.
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
                // Nothing but padding fills a page's last word.
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
                    // The upper bits moved on since.
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
                    // Its length counts the word that holds it.
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
