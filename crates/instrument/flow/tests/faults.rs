// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bad input: the decoder counts and locates errors and continues; it never panics and never hangs.

#[allow(dead_code)]
mod machine;

use kprism_flow::clock::ClockConfig;
use kprism_flow::digest::{segment_digests, segments};
use kprism_flow::error::FaultKind;
use kprism_flow::event::Null;
use kprism_flow::{Decoder, Setup, Stats};
use kprism_flow::{Options, Stream, profile};
use kprism_image::Image;
use kprism_image::resolve::Regions;
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
    let setup = Setup {
        image: &program.image,
        resolver: &program,
        clock: ClockConfig::default(),
        watch: None,
        errata: Default::default(),
    };
    let good = segment_digests(&truth.pt, setup);
    let starts = segments(&truth.pt);
    let mut pt = truth.pt.clone();
    let (from, to) = (starts[2] + 40, starts[3]);
    pt[from..to].fill(0x05); // no packet
    let bad = segment_digests(&pt, setup);
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
    }
}
