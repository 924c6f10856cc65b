// SPDX-License-Identifier: GPL-2.0-or-later
//! The last part of a stream, held until a snapshot is requested. Also used for windows: the held part is then written
//! at once, or dropped.
//!
//! Packets are held by PSB segment. When there are more bytes than wanted, the oldest segments are dropped. The
//! [`Records`] of the code wait too. They refer to offsets in the whole stream, and the offsets in the written file are
//! known only when a snapshot is taken.

use std::collections::VecDeque;

use kprism_pt::{Packet, PacketReader, find_psb};

use crate::records::{RECORD, Records, holds_from};

/// A segment from one PSB to the next.
#[derive(Debug)]
struct Segment {
    /// Offset of its first byte in the whole stream.
    start: u64,
    bytes: Vec<u8>,
}

/// The held part of a stream.
#[derive(Debug)]
pub struct Ring {
    /// Number of bytes to hold.
    keep: usize,
    segments: VecDeque<Segment>,
    held: usize,
    /// Maximum of bytes held so far.
    most: usize,
    /// Offset of the next byte in the whole stream.
    next: u64,
    /// Map records not written yet.
    map: Records,
    /// Number of bytes written so far.
    written: u64,
}

/// The contents of a snapshot.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub pt: Vec<u8>,
    pub map: Vec<u8>,
}

impl Ring {
    pub fn new(keep: usize) -> Self {
        Ring { keep, segments: VecDeque::new(), held: 0, most: 0, next: 0, map: Records::new(), written: 0 }
    }

    /// Adds the stream's next bytes, which follow the last ones, and map records made when the stream was at most `end`
    /// bytes long.
    pub fn push(&mut self, bytes: &[u8], map: &[u8], end: u64) {
        let mut from = 0;
        while from < bytes.len() {
            let psb = find_psb(bytes, from + usize::from(from > 0));
            let (to, begins) = match psb {
                Some(0) if from == 0 => (find_psb(bytes, 1).unwrap_or(bytes.len()), true),
                Some(at) => (at, from > 0),
                None => (bytes.len(), from > 0),
            };
            self.append(&bytes[from..to], begins);
            from = to;
        }
        while self.held > self.keep && self.segments.len() > 1 {
            self.held -= self.segments.pop_front().map_or(0, |s| s.bytes.len());
        }
        let oldest = self.segments.front().map_or(self.next, |s| s.start);
        self.map.push(map, end, oldest);
    }

    fn append(&mut self, bytes: &[u8], begins: bool) {
        match self.segments.back_mut() {
            Some(last) if !begins => last.bytes.extend_from_slice(bytes),
            _ => self.segments.push_back(Segment { start: self.next, bytes: bytes.to_vec() }),
        }
        self.held += bytes.len();
        self.most = self.most.max(self.held);
        self.next += bytes.len() as u64;
    }

    /// Takes everything held, to be appended to the data written before.
    pub fn snapshot(&mut self) -> Snapshot {
        let mut out = Snapshot { pt: Vec::new(), map: self.map.take(self.next) };
        let places: Vec<(u64, u64)> = self
            .segments
            .iter()
            .scan(self.written, |at, segment| {
                let place = (segment.start, *at);
                *at += segment.bytes.len() as u64;
                Some(place)
            })
            .collect();
        for record in out.map.chunks_exact_mut(RECORD) {
            if let Some(at) = holds_from(record) {
                let place = places.partition_point(|&(start, _)| start <= at).checked_sub(1);
                let moved = match place {
                    Some(i) => places[i].1 + (at - places[i].0),
                    // The PSB from which it is valid is gone, so it is valid for everything left.
                    None => self.written,
                };
                record[..8].copy_from_slice(&moved.to_le_bytes());
            }
        }
        for segment in self.segments.drain(..) {
            out.pt.extend_from_slice(&segment.bytes);
        }
        self.held = 0;
        self.written += out.pt.len() as u64;
        out
    }

    /// Returns true if what is held reaches back to guest time `ns`. `None`: its first packets do not tell their time.
    pub fn reaches(&self, ns: u64) -> Option<bool> {
        let Some(first) = self.segments.front() else { return Some(false) };
        // The time stands in the PSB+.
        let packets = PacketReader::new(&first.bytes).map_while(Result::ok).map(|(_, packet)| packet);
        let mut packets = packets.take_while(|packet| *packet != Packet::PsbEnd);
        let from = packets.find_map(|packet| match packet {
            Packet::Tsc { tsc } => Some(tsc),
            _ => None,
        })?;
        Some(from <= ns)
    }

    /// Sets the number of bytes to hold.
    pub fn keep(&mut self, bytes: usize) {
        self.keep = bytes;
    }

    /// Drops everything held.
    pub fn clear(&mut self) {
        self.segments.clear();
        self.held = 0;
    }

    /// Maximum of memory used, bytes.
    pub fn footprint(&self) -> usize {
        self.most + self.map.footprint()
    }

    /// Number of map records dropped because no held byte needs them.
    pub fn dropped(&self) -> u64 {
        self.map.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(fill: u8, n: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        Packet::Psb.encode(&mut bytes);
        bytes.resize(bytes.len() + n, fill);
        bytes
    }

    fn record(at: u64, flags: u32) -> Vec<u8> {
        let words = [at, 0, 0x1000].map(u64::to_le_bytes);
        [words.as_flattened(), &7u32.to_le_bytes(), &flags.to_le_bytes()].concat()
    }

    #[test]
    fn the_begin_of_a_trigger_is_held_or_gone() {
        let mut ring = Ring::new(60);
        assert_eq!(ring.reaches(0), Some(false), "nothing is held");
        for tsc in [1000, 2000, 3000] {
            let mut bytes = Vec::new();
            for packet in [Packet::Psb, Packet::Tsc { tsc }, Packet::PsbEnd] {
                packet.encode(&mut bytes);
            }
            assert_eq!(bytes.len(), 26);
            ring.push(&bytes, &[], tsc);
        }
        // Two of the three have room.
        assert_eq!([1999, 2000, 9000].map(|ns| ring.reaches(ns)), [Some(false), Some(true), Some(true)]);
        ring.snapshot();
        ring.push(&segment(2, 10), &[], 4000);
        assert_eq!(ring.reaches(9000), None, "a PSB without a time");
    }

    #[test]
    fn the_last_segments_are_kept_and_records_move_with_them() {
        let mut ring = Ring::new(100);
        let stream: Vec<u8> = (0..10).flat_map(|i| segment(i * 2 + 4, 34)).collect(); // 50 bytes each
        // Records at segments 0, 8 and 9, and one that is always valid.
        let map = [record(50, 1), record(400, 1), record(460, 1), record(0, 0)].concat();
        for (i, part) in stream.chunks(70).enumerate() {
            ring.push(part, if i == 0 { &map } else { &[] }, 500);
        }
        let first = ring.snapshot();
        assert_eq!(first.pt, stream[400..]);
        let at = |map: &[u8]| -> Vec<u64> {
            map.chunks(RECORD).map(|r| u64::from_le_bytes(r[..8].try_into().unwrap())).collect()
        };
        assert_eq!(at(&first.map), [0, 0, 60, 0]);
        // The next snapshot is appended to it.
        ring.push(&segment(2, 10), &[record(500, 1), record(526, 1)].concat(), 526);
        let second = ring.snapshot();
        assert_eq!((second.pt.len(), at(&second.map)), (26, vec![100]));
        // A record of code that comes later waits for it.
        assert_eq!(ring.snapshot(), Snapshot::default());
        ring.push(&segment(2, 10), &[], 552);
        assert_eq!(at(&ring.snapshot().map), [126]);
    }
}
