// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a trace.dat: an error, or buffers no larger than bytes can unpack to, whose events make sound calls.
#![no_main]

use kprism_durations::Names;
use kprism_durations::ftrace::Collector;
use kprism_ftrace::dat::Dat;
use kprism_ftrace::merge::Merged;
use libfuzzer_sys::fuzz_target;

#[path = "../src/sound.rs"]
mod sound;

fuzz_target!(|bytes: &[u8]| {
    let Ok(dat) = Dat::parse(bytes) else { return };
    let decoder = dat.decoder();
    for buffer in dat.buffers.iter().take(4) {
        let mut collector = Collector::new(Names::default(), true);
        // The same pages may be named many times.
        let mut cpus = dat.cpus(buffer, &decoder);
        cpus.truncate(16);
        for event in Merged::new(cpus) {
            collector.event(&event);
        }
        sound::check(&collector.finish(|_| None));
    }
});
