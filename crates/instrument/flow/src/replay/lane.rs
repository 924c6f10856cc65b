// SPDX-License-Identifier: MIT OR Apache-2.0
//! The decoding side of a replay: turns decoder events into batches of records. Blocks get numbers that are valid for
//! the whole stream, and are described when they first run.

use std::collections::HashMap;
use std::sync::mpsc::SyncSender;

use kprism_image::resolve::Resolve;
use kprism_pt::Packet;

use super::Code;
use crate::decode::event::{Event, EventKind, Sink, Walked};
use crate::decode::marks::Markers;
use crate::decode::packet_event::PacketEvent;
use crate::decode::{Decoder, Setup, Stats};
use crate::stream::chunks;

/// Records per batch.
const BATCH: usize = 4096;

/// Maximum of remembered paths without a number.
const MAX_WALKS: usize = 1 << 16;

const UNKNOWN: u32 = u32::MAX;

static LONG: Markers = Markers::LONG;

/// The decoder's output, in order.
#[derive(Debug, Clone, Copy)]
pub(super) enum Record {
    /// The next code of the batch gets this number.
    Define(u32),
    /// A block ran: its number, and the instructions executed.
    Block(u32, u32),
    /// It is `ns` now, `insns` instructions after the last event or time.
    Time {
        insns: u32,
        ns: u64,
    },
    Event(Event),
    /// The next packet event of the batch came, that many instructions after the last event or time.
    Packet(u32),
    /// So many instructions after the last event or time, the processor stands still, though it has work, or goes on.
    Still(u32, bool),
}

/// Records sent to the receiving side.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub records: Vec<Record>,
    pub codes: Vec<Code>,
    pub packets: Vec<PacketEvent>,
}

/// The sink of one decoder.
pub(super) struct Lane {
    give: SyncSender<Batch>,
    batch: Batch,
    /// The receiving side has gone.
    dropped: bool,
    /// Numbers assigned so far.
    blocks: u32,
    /// Own numbers by the decoder's, in this epoch.
    numbers: Vec<u32>,
    epoch: u32,
    /// Numbers of paths that the decoder does not number, by version, address space, start and length.
    walks: HashMap<(u32, u64, u64, usize), u32>,
    /// The core's clock as told last: each range that is decoded begins with it.
    ratio: Option<u8>,
}

impl Lane {
    pub fn new(give: SyncSender<Batch>) -> Self {
        let batch = Batch { records: Vec::with_capacity(BATCH), ..Batch::default() };
        let (numbers, walks) = (Vec::new(), HashMap::new());
        Self { give, batch, dropped: false, blocks: 0, numbers, epoch: 0, walks, ratio: None }
    }

    /// Decodes the stream to its end, or until the receiving side has gone.
    pub fn decode<R: Resolve>(mut self, bytes: &[u8], setup: Setup<'_, R>, stretch: usize) -> Stats {
        let mut decoder = Decoder::marking(bytes, setup, true, &LONG);
        let mut sum = Stats::default();
        for (from, to) in chunks(bytes, stretch) {
            let mut stats = decoder.run(from, to, &mut self);
            stats.enter_missing(&mut sum.missing);
            sum.instructions += stats.instructions;
            sum.branches += stats.branches;
            sum.errors += stats.errors;
            sum.overflows += stats.overflows;
            sum.lost_bytes += stats.lost_bytes;
            sum.packet_events.add(&stats.packet_events);
            if self.dropped {
                break;
            }
        }
        self.send();
        // As in the sum of errors: each page once.
        sum.missing.values_mut().for_each(|times| *times = 1);
        sum
    }

    #[inline(always)]
    fn push(&mut self, record: Record) {
        self.batch.records.push(record);
        if self.batch.records.len() >= BATCH {
            self.send();
        }
    }

    #[inline(never)]
    fn send(&mut self) {
        let next = Batch { records: Vec::with_capacity(BATCH), ..Batch::default() };
        let batch = std::mem::replace(&mut self.batch, next);
        self.dropped = self.dropped || self.give.send(batch).is_err();
    }

    #[inline(never)]
    fn define(&mut self, walked: &Walked<'_>) -> u32 {
        if walked.number == Walked::NO_NUMBER {
            // Without packets the path is determined by its start, and the code is constant within a version.
            let Some(&start) = walked.ips.first() else { return self.describe(walked) };
            let key = (walked.version, walked.asid, start, walked.ips.len());
            if let Some(&known) = self.walks.get(&key) {
                return known;
            }
            if self.walks.len() >= MAX_WALKS {
                self.walks.clear();
            }
            let number = self.describe(walked);
            self.walks.insert(key, number);
            return number;
        }
        if walked.epoch != self.epoch {
            self.epoch = walked.epoch;
            self.numbers.clear();
        }
        let place = walked.number as usize;
        if place >= self.numbers.len() {
            self.numbers.resize(place + 1, UNKNOWN);
        }
        let number = self.describe(walked);
        self.numbers[place] = number;
        number
    }

    fn describe(&mut self, walked: &Walked<'_>) -> u32 {
        let Walked { ips, asid, mode, offset, .. } = *walked;
        self.batch.codes.push(Code { ips: ips.to_vec(), asid, mode, offset });
        let number = self.blocks;
        self.blocks += 1;
        self.push(Record::Define(number));
        number
    }
}

impl Sink for Lane {
    const BLOCKS: bool = true;
    const PACKET_EVENTS: bool = true;

    #[inline]
    fn event(&mut self, event: Event) {
        self.push(Record::Event(event));
    }

    #[inline]
    fn time(&mut self, insns: u32, ns: u64) {
        self.push(Record::Time { insns, ns });
    }

    fn stands_still(&mut self, insns: u32, is_still: bool) {
        self.push(Record::Still(insns, is_still));
    }

    fn packet_event(&mut self, insns: u32, event: PacketEvent) {
        if let Packet::Cbr { ratio } = event.packet
            && self.ratio.replace(ratio) == Some(ratio)
            && event.restated
        {
            return self.push(Record::Event(Event { insns, ..Event::new(EventKind::Count, 0, 0) }));
        }
        self.batch.packets.push(event);
        self.push(Record::Packet(insns));
    }

    #[inline]
    fn walked(&mut self, walked: Walked<'_>) {
        if walked.ips.is_empty() {
            return;
        }
        let known = match self.numbers.get(walked.number as usize) {
            Some(&known) if walked.epoch == self.epoch && known != UNKNOWN => known,
            _ => self.define(&walked),
        };
        self.push(Record::Block(known, walked.ips.len() as u32));
    }
}

#[cfg(test)]
mod tests {
    use kprism_image::insn::Mode;

    use super::*;

    /// More paths without a number than are remembered: each is described again, as it was.
    #[test]
    fn forgotten_paths_are_described_again() {
        let (give, take) = std::sync::mpsc::sync_channel(1000);
        let mut lane = Lane::new(give);
        let all = || (0..MAX_WALKS as u64 + 10).chain(0..10);
        for ip in all() {
            let ips = [ip];
            lane.walked(Walked {
                ips: &ips,
                number: Walked::NO_NUMBER,
                epoch: 0,
                version: 0,
                asid: 0,
                mode: Mode::Bits64,
                offset: 0,
            });
        }
        lane.send();
        assert!(lane.walks.len() < 100);
        let (mut codes, mut ran) = (Vec::new(), Vec::new());
        for batch in take.try_iter() {
            let mut described = batch.codes.iter();
            for record in &batch.records {
                match record {
                    Record::Define(number) => {
                        assert_eq!(*number as usize, codes.len());
                        codes.push(described.next().expect("a code for each number").ips[0]);
                    }
                    Record::Block(number, 1) => ran.push(codes[*number as usize]),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(ran.into_iter().eq(all()));
    }
}
