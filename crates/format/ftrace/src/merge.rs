// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges the events of several CPUs by time.
//!
//! The order of each CPU's events stays, even if its clock jumps back. At equal times, the CPU that was passed first
//! comes first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::event::Event;

/// Iterator over the merged events.
#[derive(Debug)]
pub struct Merged<'a, I> {
    streams: Vec<I>,
    /// The next event of each stream.
    heads: Vec<Option<Event<'a>>>,
    order: BinaryHeap<Reverse<(u64, usize)>>,
}

impl<'a, I: Iterator<Item = Event<'a>>> Merged<'a, I> {
    /// Reads the first event of each stream.
    pub fn new(mut streams: Vec<I>) -> Self {
        let heads: Vec<_> = streams.iter_mut().map(Iterator::next).collect();
        let ahead = heads.iter().enumerate().filter_map(|(i, head)| Some(Reverse((head.as_ref()?.ns, i))));
        let order = ahead.collect();
        Merged { streams, heads, order }
    }

    /// Returns the streams, with their counters.
    pub fn into_streams(self) -> Vec<I> {
        self.streams
    }
}

impl<'a, I: Iterator<Item = Event<'a>>> Iterator for Merged<'a, I> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        let mut first = self.order.peek_mut()?;
        let Reverse((_, i)) = *first;
        let event = self.heads[i].take();
        self.heads[i] = self.streams[i].next();
        match &self.heads[i] {
            Some(head) => *first = Reverse((head.ns, i)),
            None => {
                std::collections::binary_heap::PeekMut::pop(first);
            }
        }
        event
    }
}
