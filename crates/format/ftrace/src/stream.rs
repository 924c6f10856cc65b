// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of CPUs whose pages are read as they are needed, merged by time.
//!
//! Input: a reader of each CPU's pages. Output: the events of [`Cpu`](crate::raw::Cpu) and
//! [`Merged`](crate::merge::Merged), in the same order. Memory is one buffer for each CPU, whatever the length of the
//! trace, so an event lives only until the next one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Error, ErrorKind, Read};
use std::ops::Range;

use crate::decode::Decoder;
use crate::event::Event;
use crate::format::PageLayout;
use crate::raw::{Counts, Walk};

/// Bytes that are read at once.
const CHUNK: usize = 1 << 17;

/// The event at which a stream stands.
#[derive(Debug, Clone)]
enum Now {
    Lost(Option<u64>),
    /// Place of the record in the buffer.
    Record(Range<usize>),
}

/// The events of one CPU.
pub struct Stream<'a> {
    decoder: &'a Decoder,
    cpu: u32,
    pages: Box<dyn Read + 'a>,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were read.
    filled: usize,
    /// Place of the next page in the buffer.
    next_page: usize,
    /// Offset of the buffer among all pages of the CPU.
    base: u64,
    /// Place of the current page's events in the buffer.
    data: Range<usize>,
    now: Option<Now>,
    walk: Walk,
    /// Why the pages could not be read to their end.
    pub error: Option<Error>,
}

impl<'a> Stream<'a> {
    /// Creates a reader of the events of CPU number `cpu`.
    #[must_use]
    pub fn new(decoder: &'a Decoder, layout: PageLayout, cpu: u32, pages: Box<dyn Read + 'a>) -> Self {
        Stream {
            decoder,
            cpu,
            pages,
            buffer: Vec::new(),
            filled: 0,
            next_page: 0,
            base: 0,
            data: 0..0,
            now: None,
            walk: Walk::new(decoder.order, layout),
            error: None,
        }
    }

    /// Counters so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.walk.counts
    }

    /// Moves to the next event and returns its time; `None` at the end.
    #[inline]
    fn advance(&mut self) -> Option<u64> {
        loop {
            if let Some(count) = self.walk.lost.take() {
                self.now = Some(Now::Lost(count));
                return Some(self.walk.ns);
            }
            let data = self.buffer.get(self.data.clone()).unwrap_or_default();
            if let Some(record) = self.walk.record(data) {
                let begin = self.data.start;
                self.now = Some(Now::Record(begin + record.start..begin + record.end));
                return Some(self.walk.ns);
            }
            if !self.turn() {
                self.now = None;
                return None;
            }
        }
    }

    /// Moves to the next page. Returns `false` at the end.
    fn turn(&mut self) -> bool {
        let size = self.walk.layout.page_size();
        if self.filled - self.next_page < size {
            self.fill(size);
        }
        let end = self.filled.min(self.next_page + size);
        let page = &self.buffer[self.next_page..end];
        if page.is_empty() {
            return false;
        }
        let data = self.walk.turn(page, self.base + self.next_page as u64);
        self.data = self.next_page + data.start..self.next_page + data.end;
        self.next_page = end;
        true
    }

    /// Reads until a page of this size is there, or the end.
    fn fill(&mut self, size: usize) {
        self.buffer.copy_within(self.next_page..self.filled, 0);
        self.base += self.next_page as u64;
        self.filled -= self.next_page;
        self.next_page = 0;
        self.buffer.resize(size.max(CHUNK), 0);
        while self.filled < size && self.error.is_none() {
            match self.pages.read(&mut self.buffer[self.filled..]) {
                Ok(0) => break,
                Ok(more) => self.filled += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.error = Some(error),
            }
        }
    }

    /// The event at which the stream stands.
    #[inline]
    fn event(&mut self) -> Option<Event<'_>> {
        match self.now.take()? {
            Now::Lost(count) => Some(self.walk.lost_event(self.cpu, count)),
            Now::Record(record) => Some(self.walk.event(self.decoder, self.cpu, &self.buffer[record])),
        }
    }
}

/// Events of several CPUs by time, as [`Merged`](crate::merge::Merged) has them.
pub struct Streams<'a> {
    streams: Vec<Stream<'a>>,
    /// Times of the next events of all but the current stream.
    order: BinaryHeap<Reverse<(u64, usize)>>,
    /// The stream whose event was returned last; it has not moved on since.
    current: Option<usize>,
}

impl<'a> Streams<'a> {
    /// Reads up to the first event of each stream.
    #[must_use]
    pub fn new(mut streams: Vec<Stream<'a>>) -> Self {
        let times = streams.iter_mut().enumerate();
        let order = times.filter_map(|(i, stream)| Some(Reverse((stream.advance()?, i)))).collect();
        Streams { streams, order, current: None }
    }

    /// The next event.
    #[allow(clippy::should_implement_trait)] // The event borrows the stream's buffer, which no iterator allows.
    #[inline]
    pub fn next(&mut self) -> Option<Event<'_>> {
        let ahead = self.current.and_then(|i| Some(Reverse((self.streams[i].advance()?, i))));
        let first = match (ahead, self.order.peek_mut()) {
            (Some(ahead), Some(mut top)) if *top > ahead => std::mem::replace(&mut *top, ahead),
            (Some(ahead), _) => ahead,
            (None, Some(top)) => std::collections::binary_heap::PeekMut::pop(top),
            (None, None) => {
                self.current = None;
                return None;
            }
        };
        let i = first.0.1;
        self.current = Some(i);
        self.streams[i].event()
    }

    /// Returns the streams, with their counters and errors.
    #[must_use]
    pub fn into_streams(self) -> Vec<Stream<'a>> {
        self.streams
    }
}
