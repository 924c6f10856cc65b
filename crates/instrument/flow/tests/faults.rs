// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bad input: the decoder counts and locates errors and continues; it never panics and never hangs.

#[allow(dead_code)]
mod machine;

use kprism_flow::clock::ClockConfig;
use kprism_flow::digest::{segment_digests, segments};
use kprism_flow::errata::{Errata, Erratum, Filter};
use kprism_flow::error::FaultKind;
use kprism_flow::event::{Event, Null, Sink};
use kprism_flow::packet_event::PacketEvent;
use kprism_flow::{Decoder, Setup, Stats};
use kprism_flow::{Options, Stream, profile};
use kprism_image::Image;
use kprism_image::resolve::Regions;
use kprism_pt::{Packet, PacketReader};
use machine::program::Program;
use machine::{Machine, Rng, Settings, Truth};
use proptest::prelude::*;

fn sample(seed: u64) -> (Program, Truth) {
    let settings = Settings {
        ret_compression: true,
        defer_tips: false,
        long_tnt: false,
        timing: true,
        interrupts: 5,
        psb: 300,
        tasks: 2,
        longjmps: true,
        insns: 5000,
    };
    (seed..)
        .find_map(|seed| {
            let program = Program::random(&mut Rng(seed), true, true);
            let truth = Machine::run(&program, settings, seed)?;
            (truth.segments.len() > 6).then_some((program, truth))
        })
        .expect("a long run")
}

fn decode(pt: &[u8], image: &Image, program: &Program) -> Stats {
    let setup = Setup {
        image,
        resolver: program,
        clock: ClockConfig::default(),
        watch: None,
        errata: Default::default(),
    };
    Decoder::new(pt, setup, false).run(0, pt.len(), &mut Null)
}

#[test]
fn cut_anywhere() {
    let (program, truth) = sample(1);
    let whole = decode(&truth.pt, &program.image, &program);
    let mut before = 0;
    for len in 0..truth.pt.len() {
        let stats = decode(&truth.pt[..len], &program.image, &program);
        assert!(stats.instructions <= whole.instructions);
        // Instructions decoded from a shorter piece are also decoded from a longer one, except for the walk to a last
        // PSB.
        assert!(stats.instructions + 64 >= before, "{len}");
        assert!(stats.errors <= 1, "{len}: {:?}", stats.faults);
        before = stats.instructions;
    }
}

#[test]
fn garbage_in_one_segment_costs_that_segment() {
    let (program, truth) = sample(2);
    let good = segment_digests(&truth.pt, &program.image);
    let starts = segments(&truth.pt);
    let mut pt = truth.pt.clone();
    let (from, to) = (starts[2] + 40, starts[3]);
    pt[from..to].fill(0x05); // no packet
    let bad = segment_digests(&pt, &program.image);
    for (i, (good, bad)) in good.iter().zip(&bad).enumerate() {
        if i == 2 {
            assert!(bad.errors > 0 && bad.instructions < good.instructions);
        } else {
            assert_eq!(good, bad, "segment {i}");
        }
    }
    let stats = decode(&pt, &program.image, &program);
    assert!(matches!(stats.faults[0].kind, FaultKind::Packet(_)));
    assert!((starts[2]..to).contains(&(stats.faults[0].offset as usize)));
    assert!(stats.lost_bytes > 0 && stats.lost_bytes <= (to - starts[2]) as u64);
    assert_eq!(
        stats.instructions,
        bad.iter().map(|d| d.instructions).sum::<u64>(),
        "the rest of the stream is as alone"
    );
}

#[test]
fn missing_code_is_named_and_passed_over() {
    let (program, truth) = sample(3);
    // Only the first user function's and the kernel's code are known.
    let mut image = Image::new();
    for func in [0, 4, 5, 6, 7, 8, 9] {
        let f = &program.funcs[func];
        let mut code = vec![0; (f.end - f.entry) as usize];
        for (at, byte) in code.iter_mut().enumerate() {
            program.image.fetch(0, f.entry + at as u64, 0, std::slice::from_mut(byte));
        }
        image.add(0, f.entry, &code);
    }
    let stats = decode(&truth.pt, &image, &program);
    assert!(stats.errors > 0);
    assert!(stats.faults.iter().any(|f| matches!(f.kind, FaultKind::NoCode(_))));
    assert!(stats.instructions > 0);
    let none = decode(&truth.pt, &Image::new(), &program);
    assert_eq!(none.instructions, 0);
    assert!(none.errors >= truth.segments.len() as u64 - 1);
}

#[test]
fn an_image_that_does_not_match() {
    let (program, truth) = sample(4);
    let (other, _) = sample(50);
    let stats = decode(&truth.pt, &other.image, &program);
    assert!(stats.errors > 0);
    // Shifted by one byte.
    let mut shifted = Image::new();
    for f in &program.funcs {
        let mut byte = [0];
        for va in f.entry..f.end {
            if program.image.fetch(0, va, 0, &mut byte) == 1 {
                shifted.add(0, va + 1, &byte);
            }
        }
    }
    assert!(decode(&truth.pt, &shifted, &program).errors > 0);
}

/// Adds up what it is told, events of packets included.
#[derive(Default)]
struct Tally {
    insns: u64,
    ips: Vec<u64>,
    ns: u64,
    events: u64,
}

impl Sink for Tally {
    const IPS: bool = true;
    const PACKET_EVENTS: bool = true;

    fn event(&mut self, event: Event) {
        self.insns += u64::from(event.insns);
    }

    fn time(&mut self, insns: u32, ns: u64) {
        self.insns += u64::from(insns);
        assert!(ns >= self.ns);
        self.ns = ns;
    }

    fn ips(&mut self, ips: &[u64]) {
        self.ips.extend(ips);
    }

    fn packet_event(&mut self, insns: u32, event: PacketEvent) {
        self.insns += u64::from(insns);
        self.events += u64::from(!event.restated);
    }
}

/// Decodes with the work-arounds of all errata, and with events.
fn tally(pt: &[u8], program: &Program) -> (Tally, Stats) {
    let all: Vec<Erratum> = Erratum::ALL.iter().map(|named| named.0).collect();
    let setup = Setup {
        image: &program.image,
        resolver: program,
        clock: ClockConfig::default(),
        watch: None,
        errata: Errata::of(&all, Filter { ranges: [(0, 1 << 40), (0, 0), (0, 0), (0, 0)] }),
    };
    let mut tally = Tally::default();
    let stats = Decoder::new(pt, setup, true).run(0, pt.len(), &mut tally);
    (tally, stats)
}

/// Events between the packets of a flow: the flow is the same, and each event is told once.
#[test]
fn events_change_no_flow() {
    for seed in 5..9 {
        let (program, truth) = sample(seed);
        let mut rng = Rng(seed);
        let (mut pt, mut put) = (Vec::new(), 0);
        let mut reader = PacketReader::new(&truth.pt);
        while let Some(Ok((offset, packet))) = reader.next() {
            pt.extend(&truth.pt[offset..reader.offset()]);
            let is_flow = matches!(packet, Packet::Tnt { .. } | Packet::Tip(_));
            if !is_flow || !rng.chance(20) {
                continue;
            }
            let more: &[Packet] = match rng.below(6) {
                0 => &[Packet::Cbr { ratio: 7 }],
                1 => &[Packet::Mnt { payload: 1 }],
                2 => &[Packet::Pwre { state: 1, sub_state: 0, hw: true }],
                3 => &[Packet::Mwait { hints: 1, ext: 0 }, Packet::Exstop { ip: false }],
                4 => &[Packet::Evd { typ: 0, payload: 1 }],
                _ => &[Packet::Ptw { payload: 1, size: 8, ip: false }],
            };
            more.iter().for_each(|packet| packet.encode(&mut pt));
            put += more.len() as u64;
        }
        let (plain, _) = tally(&truth.pt, &program);
        let (told, stats) = tally(&pt, &program);
        assert_eq!(stats.faults, [], "seed {seed}");
        assert!(told.ips == plain.ips, "seed {seed}");
        assert_eq!((told.insns, told.ips.len() as u64), (stats.instructions, stats.instructions));
        let counted: u64 = stats.packet_events.iter().map(|(_, n)| n).sum();
        assert_eq!((told.events, counted), (put, put));
        assert!(put > 20, "seed {seed}: {put} events");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes(pt in proptest::collection::vec(any::<u8>(), 0..400), seed in 0u64..4) {
        let (program, _) = sample(seed);
        let mut stream = kprism_pt::PSB.to_vec();
        stream.extend(pt);
        let stats = decode(&stream, &program.image, &program);
        prop_assert!(stats.lost_bytes <= stream.len() as u64);
        let streams = [Stream { cpu: 0, bytes: &stream, image: &program.image }];
        let profile = profile(&streams, &Regions::default(), &[], &Options::default(), &|_| ());
        prop_assert_eq!(profile.nodes.iter().map(|n| n.insns).sum::<u64>(), profile.totals.instructions());
        let (told, stats) = tally(&stream, &program);
        prop_assert_eq!((told.insns, told.ips.len() as u64), (stats.instructions, stats.instructions));
        prop_assert_eq!(told.events, stats.packet_events.iter().map(|(_, n)| n).sum::<u64>());
    }

    #[test]
    fn flipped_bytes(at in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), seed in 0u64..4) {
        let (program, truth) = sample(seed);
        let mut pt = truth.pt.clone();
        for (index, byte) in at {
            let len = pt.len();
            pt[index.index(len)] = byte;
        }
        let streams = [Stream { cpu: 0, bytes: &pt, image: &program.image }];
        let run = |threads| {
            let options = Options { threads, chunk: 700, ..Options::default() };
            profile(&streams, &program, &truth.sideband, &options, &|_| ())
        };
        let one = run(1);
        prop_assert_eq!(one.nodes.iter().map(|n| n.insns).sum::<u64>(), one.totals.instructions());
        prop_assert!(one == run(2));
        let (told, stats) = tally(&pt, &program);
        prop_assert_eq!((told.insns, told.ips.len() as u64), (stats.instructions, stats.instructions));
        prop_assert_eq!(told.events, stats.packet_events.iter().map(|(_, n)| n).sum::<u64>());
    }
}
