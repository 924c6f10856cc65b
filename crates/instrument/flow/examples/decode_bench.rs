// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the decoder: `decode_bench DIR...`, each a recorded run or a folder with `*.pt` and `xpages.txt`.
//! Prints ns per branch, best of several: cold (no block built yet) and warm; counting only, and the whole
//! profile with time and call stacks. `RUNS=n` in the environment sets how many. One thread is measured in CPU
//! time, two in wall time.

mod support;

use std::path::Path;
use std::time::Instant;

use kprism_flow::event::Null;
use kprism_flow::{Decoder, Setup, Stats};
use kprism_flow::{Options, Stream, profile};

fn report(what: &str, best: f64, branches: u64, instructions: u64) {
    println!(
        "  {what:<16} {:9.3} ms  {:6.2} ns/branch  {:7.1} M insns/s",
        best * 1e3,
        best * 1e9 / branches as f64,
        instructions as f64 / best / 1e6
    );
}

/// CPU time of this thread in seconds, for machines that others use too.
fn now() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives through the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "no CPU clock");
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn best_of(runs: u32, mut work: impl FnMut() -> f64) -> f64 {
    (0..runs).map(|_| work()).fold(f64::MAX, f64::min)
}

fn main() -> std::io::Result<()> {
    let runs = std::env::var("RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    for dir in std::env::args().skip(1) {
        let input = support::load(Path::new(&dir))?;
        for (cpu, bytes, image) in &input.streams {
            let setup = Setup {
                image,
                resolver: &input.functions,
                clock: input.clock,
                watch: None,
                errata: Default::default(),
            };
            let mut warm = f64::MAX;
            let mut stats = Stats::default();
            let cold = best_of(runs, || {
                let mut decoder = Decoder::new(bytes, setup, false);
                let start = now();
                stats = decoder.run(0, bytes.len(), &mut Null);
                let between = now();
                decoder.run(0, bytes.len(), &mut Null);
                warm = warm.min(now() - between);
                between - start
            });
            println!(
                "{dir}, CPU {cpu}: {} bytes, {} instructions, {} branches, {} errors, {} bytes lost",
                bytes.len(),
                stats.instructions,
                stats.branches,
                stats.errors,
                stats.lost_bytes
            );
            for fault in stats.faults.iter().take(5) {
                println!("  offset {}: {}", fault.offset, fault.kind);
            }
            report("count, cold", cold, stats.branches, stats.instructions);
            report("count, warm", warm, stats.branches, stats.instructions);
        }
        let streams: Vec<Stream<'_>> =
            input.streams.iter().map(|(cpu, bytes, image)| Stream { cpu: *cpu, bytes, image }).collect();
        for threads in [1, 2] {
            let options = Options { threads, clock: input.clock, ..Options::default() };
            let mut counts = (0, 0);
            let best = best_of(runs, || {
                let (start, wall) = (now(), Instant::now());
                let profile = profile(&streams, &input.functions, &input.sideband, &options, &|_| ());
                let took = if threads == 1 { now() - start } else { wall.elapsed().as_secs_f64() };
                let branches: u64 = profile.totals.per_cpu.iter().map(|c| c.branches).sum();
                counts = (branches, profile.totals.instructions());
                took
            });
            report(if threads == 1 { "profile, cold" } else { "2 threads, cold" }, best, counts.0, counts.1);
        }
    }
    Ok(())
}
