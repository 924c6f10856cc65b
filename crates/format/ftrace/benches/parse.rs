// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the speed of reading traces: GB/s and events/s. Prints the best of many passes, because the machine may be
//! busy.
//!
//! `cargo bench -p kprism-ftrace -- trace.dat… text…`

use std::hint::black_box;
use std::time::{Duration, Instant};

use kprism_ftrace::dat::{Dat, MAGIC};
use kprism_ftrace::merge::Merged;
use kprism_ftrace::text::Text;

fn main() {
    for path in std::env::args().skip(1).filter(|a| !a.starts_with("--")) {
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                eprintln!("{path}: {error}");
                continue;
            }
        };
        if !bytes.starts_with(MAGIC) {
            report(&path, "text", bytes.len(), || Text::new(&bytes).count());
            continue;
        }
        let whole = || Dat::parse(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
        report(&path, "whole file, unpacked and read", bytes.len(), || events(&whole()));
        let dat = whole();
        let size = dat.buffers.iter().flat_map(|b| &b.cpus).map(|(_, pages)| pages.len()).sum();
        report(&path, "pages of the ring buffer", size, || events(&dat));
    }
}

fn events(dat: &Dat<'_>) -> usize {
    let decoder = dat.decoder();
    let all = dat.buffers.iter().flat_map(|buffer| dat.cpus(buffer, &decoder)).collect();
    Merged::new(all).map(black_box).count()
}

fn report(path: &str, what: &str, size: usize, mut pass: impl FnMut() -> usize) {
    let (mut best, mut events) = (Duration::MAX, 0);
    let deadline = Instant::now() + Duration::from_secs(2);
    while Instant::now() < deadline {
        let start = Instant::now();
        events = pass();
        best = best.min(start.elapsed());
    }
    let seconds = best.as_secs_f64();
    println!(
        "{path}: {what}: {events} events, {size} bytes in {:.3} ms: {:.3} GB/s, {:.1} M events/s",
        seconds * 1e3,
        size as f64 / seconds / 1e9,
        events as f64 / seconds / 1e6
    );
}
