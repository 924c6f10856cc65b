// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes ranges of one CPU's stream; the state of one decode is in [`super::flow`].

use kprism_image::Image;
use kprism_image::resolve::Resolve;
use kprism_pt::find_psb;

use crate::decode::build::Cache;
use crate::decode::clock::ClockConfig;
use crate::decode::errata::Errata;
use crate::decode::event::Sink;
use crate::decode::flow::{Flow, Phase, Stats};
use crate::decode::marks::Markers;

static NO_MARKERS: Markers = Markers::NONE;

/// The longest payload of a packet, in bytes.
const PAYLOAD: usize = 8;

/// The inputs of a decode besides the packets.
pub struct Setup<'a, R> {
    /// Code that this CPU ran.
    pub image: &'a Image,
    /// Function symbols.
    pub resolver: &'a R,
    /// Clock parameters of the recording.
    pub clock: ClockConfig,
    /// Address whose entry is reported as [`EventKind::Switch`](crate::event::EventKind::Switch): the kernel's `__switch_to`.
    pub watch: Option<u64>,
    /// Errata of the processor.
    pub errata: Errata,
}

impl<R> Clone for Setup<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Setup<'_, R> {}

/// Decodes ranges of one CPU's stream, in increasing order. Keeps its blocks between ranges.
pub struct Decoder<'a, R> {
    pub(crate) cache: Cache<'a, R>,
    bytes: &'a [u8],
    clock: ClockConfig,
    errata: Errata,
}

impl<'a, R: Resolve> Decoder<'a, R> {
    /// Creates a decoder of the stream `bytes`. `keep_ips` must be true if the sink wants the address of every
    /// instruction.
    pub fn new(bytes: &'a [u8], setup: Setup<'a, R>, keep_ips: bool) -> Self {
        Self::marking(bytes, setup, keep_ips, &NO_MARKERS)
    }

    /// Like [`Decoder::new`], and reports the given marks too.
    pub fn marking(bytes: &'a [u8], setup: Setup<'a, R>, keep_ips: bool, markers: &'a Markers) -> Self {
        let cache = Cache::new(setup.image, setup.resolver, setup.watch, keep_ips, markers);
        Self { cache, bytes, clock: setup.clock, errata: setup.errata }
    }

    /// Decodes from `from`, a PSB or the stream's start, up to `to`, the offset of another PSB or the
    /// stream's length.
    ///
    /// At `to` the code is followed up to the address that the PSB there states. So adjacent ranges neither miss an
    /// instruction nor count one twice.
    pub fn run<S: Sink>(&mut self, from: usize, to: usize, sink: &mut S) -> Stats {
        debug_assert!(self.cache.keep_ips() || !(S::IPS || S::BLOCKS));
        let to = to.min(self.bytes.len());
        // A stream may begin in the middle of a packet or of a PSB period. Bytes before the first PSB cannot be
        // decoded.
        let begin = if from == 0 { find_psb(self.bytes, 0).unwrap_or(0).min(to) } else { from };
        // A ring buffer that was not filled begins with the zeros of a new buffer. They read as PADs, and nothing is
        // lost. A few zeros may also be the end of a packet.
        let zeros = self.bytes[from..begin].iter().take_while(|&&byte| byte == 0).count();
        let padding = if zeros > PAYLOAD { zeros } else { 0 };
        let skipped = (begin - from - padding) as u64;
        let from = begin;
        let at_psb = find_psb(&self.bytes[..to.min(from + 16)], from) == Some(from);
        let phase = if at_psb { Phase::Off } else { Phase::Lost(from as u64) };
        let config = (self.clock, self.errata);
        let mut flow = Flow::new(&mut self.cache, sink, self.bytes, from..to, phase, config);
        flow.stats.lost_bytes = skipped;
        flow.run(to);
        flow.finish(to);
        flow.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::event::{Event, EventKind};
    use crate::machine::program::Program;
    use crate::machine::{CLOCK, Machine, Rng, settings};
    use kprism_image::code::TaskSwitch;
    use kprism_pt::{Packet, PacketReader};

    #[derive(Debug, Default, PartialEq)]
    struct All {
        ips: Vec<u64>,
        events: Vec<Event>,
    }

    impl Sink for All {
        const IPS: bool = true;
        fn event(&mut self, event: Event) {
            // A link is the number of a block.
            let link = if event.link == Event::AT_PSB { event.link } else { 0 };
            self.events.push(Event { link, ..event });
        }
        fn time(&mut self, _: u32, _: u64) {}
        fn ips(&mut self, ips: &[u64]) {
            self.ips.extend(ips);
        }
    }

    /// A task may change at any packet, the last one before a PSB too, at which one range ends and the next begins.
    #[test]
    fn no_task_switch_is_lost_between_ranges() {
        let mut between = 0;
        for seed in 0..20 {
            let settings = settings(seed);
            let mut program = Program::random(&mut Rng(seed), settings.longjmps, settings.tasks > 1);
            let Some(truth) = Machine::run(&program, settings, seed) else { continue };
            // An MTC packet right before each PSB, at which the task changes.
            let (mut pt, mut psbs, mut switches, mut copied) = (Vec::new(), Vec::new(), Vec::new(), 0);
            let packets = PacketReader::new(&truth.pt).map_while(Result::ok);
            for (at, _) in packets.filter(|(at, packet)| *at > 0 && *packet == Packet::Psb) {
                pt.extend(&truth.pt[copied..at]);
                switches.push(TaskSwitch { offset: pt.len() as u64, asid: None });
                pt.extend([0x59, 7]);
                psbs.push(pt.len());
                copied = at;
            }
            pt.extend(&truth.pt[copied..]);
            between += switches.len();
            program.image.set_task_switches(switches.clone());
            let setup = Setup {
                image: &program.image,
                resolver: &program,
                clock: CLOCK,
                watch: None,
                errata: Errata::default(),
            };
            let (mut decoder, mut all, mut from) = (Decoder::new(&pt, setup, true), All::default(), 0);
            for to in psbs.into_iter().chain([pt.len()]) {
                let _ = decoder.run(from, to, &mut all);
                from = to;
            }
            let told = all.events.iter().filter(|event| event.kind == EventKind::Switch).count();
            assert_eq!(told, switches.len(), "seed {seed}");
        }
        assert!(between > 10, "{between}");
    }

    /// More blocks than are kept: all are dropped and built again, at any place of the flow, which stays the same.
    #[test]
    fn dropped_blocks_change_nothing() {
        let mut dropped = 0;
        for seed in 0..60 {
            let settings = settings(seed);
            let program = Program::random(&mut Rng(seed), settings.longjmps, settings.tasks > 1);
            let Some(truth) = Machine::run(&program, settings, seed) else { continue };
            let setup = Setup {
                image: &program.image,
                resolver: &program,
                clock: CLOCK,
                watch: None,
                errata: Errata::default(),
            };
            let decode = |most: Option<usize>| {
                let mut decoder = Decoder::new(&truth.pt, setup, true);
                decoder.cache.blocks.most = most.unwrap_or(decoder.cache.blocks.most);
                let mut all = All::default();
                let stats = decoder.run(0, truth.pt.len(), &mut all);
                (all, stats, decoder.cache.epoch)
            };
            let (want, stats, epoch) = decode(None);
            assert_eq!((epoch, stats.errors), (0, 0), "seed {seed}");
            for most in [1, 3, 16] {
                let (found, with_drops, epoch) = decode(Some(most));
                assert_eq!(with_drops, stats, "seed {seed}, {most} blocks");
                assert!(found.ips == want.ips, "seed {seed}, {most} blocks: other instructions");
                assert!(found.events == want.events, "seed {seed}, {most} blocks: other events");
                dropped += epoch;
            }
        }
        assert!(dropped > 10_000, "{dropped}");
    }
}
