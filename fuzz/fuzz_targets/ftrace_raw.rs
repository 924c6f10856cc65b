// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as pages of the ring buffer of two CPUs, of either order of bytes and two layouts: events come out, and
//! calls whose parts fit into them. The first bytes choose.
#![no_main]

use kprism_durations::Names;
use kprism_durations::ftrace::Collector;
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::merge::Merged;
use kprism_ftrace::raw::Cpu;
use libfuzzer_sys::fuzz_target;

#[path = "../src/sound.rs"]
mod sound;

const FORMATS: &str = include_str!("../../crates/format/ftrace/tests/data/formats.txt");

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, pages)) = bytes.split_first() else { return };
    let formats = FORMATS.split("name: ").skip(1);
    let formats: Vec<Format> =
        formats.map(|text| Format::parse("ftrace", format!("name: {text}").as_bytes()).unwrap()).collect();
    let decoder = Decoder::new(&formats, choice & 1 != 0);
    let small = PageLayout { commit_at: 8, commit_size: 4, data_at: 12, data_size: 500 };
    let layout = if choice & 2 != 0 { small } else { PageLayout::default() };
    // Told by the pages, whatever they are.
    let _ = layout.is_big_endian(pages);
    let (first, second) = pages.split_at(if choice & 4 != 0 { pages.len() / 2 } else { pages.len() });
    let cpus = vec![Cpu::new(&decoder, layout, 0, first), Cpu::new(&decoder, layout, 1, second)];
    let mut collector = Collector::new(Names::default(), true);
    let mut merged = Merged::new(cpus);
    for event in merged.by_ref() {
        collector.event(&event);
    }
    // An event is 4 bytes at least.
    let events: u64 = merged.into_streams().iter().map(|cpu| cpu.counts().events).sum();
    assert!(events <= pages.len() as u64 / 4);
    sound::check(&collector.finish(|_| None));
});
