// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a text of ftrace: events come out, as many as counted, and calls whose parts fit into them.
#![no_main]

use kprism_durations::Names;
use kprism_durations::ftrace::Collector;
use kprism_ftrace::text::Text;
use libfuzzer_sys::fuzz_target;

#[path = "../src/sound.rs"]
mod sound;

fuzz_target!(|bytes: &[u8]| {
    let mut reader = Text::new(bytes);
    let mut collector = Collector::new(Names::default(), reader.timed());
    for event in reader.by_ref() {
        collector.event(&event);
    }
    let lines = bytes.iter().filter(|&&b| b == b'\n').count() as u64 + 1;
    assert!(reader.counts.events <= 2 * lines);
    sound::check(&collector.finish(|_| None));
});
