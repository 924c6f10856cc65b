// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures how fast a trace.dat becomes calls: symbols are read, pages decoded, calls built and summed up. Prints the
//! best of several passes, because the machine may be busy.
//!
//! `cargo bench -p kprism-durations -- trace.dat…`

use std::hint::black_box;
use std::time::{Duration, Instant};

use kprism_durations::Names;
use kprism_durations::ftrace::Collector;
use kprism_ftrace::dat::Dat;
use kprism_ftrace::merge::Merged;
use kprism_image::symbols::Symbols;

fn main() {
    for path in std::env::args().skip(1).filter(|a| !a.starts_with("--")) {
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                eprintln!("{path}: {error}");
                continue;
            }
        };
        let unpack = || Dat::parse(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
        let dat = unpack();
        let symbols = || Symbols::load(&dat.kallsyms, &[], None).unwrap_or_default();
        let known = symbols();
        let (events, calls) = collect(&dat, &known);
        println!("{path}: {events} events, {calls} calls");
        let each = |name: &str, ns: Duration| {
            println!(
                "  {name:28} {:9.3} ms  {:6.1} ns an event",
                ns.as_secs_f64() * 1e3,
                ns.as_nanos() as f64 / events as f64
            );
        };
        each("file unpacked", best(unpack));
        each("symbols", best(symbols));
        each("events read", best(|| read(&dat)));
        each("events read, calls made", best(|| collect(&dat, &known)));
    }
}

fn best<T>(pass: impl Fn() -> T) -> Duration {
    let once = || {
        let start = Instant::now();
        black_box(pass());
        start.elapsed()
    };
    (0..9).map(|_| once()).min().unwrap_or_default()
}

fn read(dat: &Dat<'_>) -> usize {
    let decoder = dat.decoder();
    Merged::new(dat.buffers.iter().flat_map(|buffer| dat.cpus(buffer, &decoder)).collect()).count()
}

fn collect(dat: &Dat<'_>, symbols: &Symbols) -> (usize, u64) {
    let decoder = dat.decoder();
    let name = |address| {
        let func = symbols.function(symbols.locate(0, address, 0)?.func);
        Some(func.name.as_str())
    };
    let mut collector = Collector::new(Names::new(name), true);
    let mut events = 0;
    for event in Merged::new(dat.buffers.iter().flat_map(|buffer| dat.cpus(buffer, &decoder)).collect()) {
        events += 1;
        collector.event(&event);
    }
    (events, collector.finish(|_| None).times.counts.calls)
}
