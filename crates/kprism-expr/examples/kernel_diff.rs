// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kernel_diff SEED FIRST COUNT [PACK [ROUNDS]]`: made-up programs FIRST to FIRST + COUNT in this machine's kernel and
//! in the interpreter; ends with a panic at a difference, which says what to give to see it again. It needs nothing but
//! itself and a C library, and runs in the guest.

use std::time::{Duration, Instant};

use support::machine::Kernel;
use support::pack::{Tried, compare};

#[path = "../tests/support/mod.rs"]
mod support;

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|n| n.parse().expect("a number")).collect();
    let [seed, first, count, ref more @ ..] = numbers[..] else {
        panic!("kernel_diff SEED FIRST COUNT [PACK [ROUNDS]]");
    };
    let pack = more.first().copied().unwrap_or(8);
    let rounds = more.get(1).copied().unwrap_or(2);
    let Some(kernel) = Kernel::new() else { std::process::exit(2) };
    let mut tried = Tried::default();
    let began = Instant::now();
    let mut said = began;
    let mut at = first;
    while at < first + count {
        compare(&kernel, seed, at, pack.min(first + count - at), rounds, &mut tried);
        at += pack;
        if said.elapsed() > Duration::from_secs(30) {
            said = Instant::now();
            println!("{} s: {tried:?}", began.elapsed().as_secs());
        }
    }
    println!("{:.1} s: no difference: {tried:?}", began.elapsed().as_secs_f64());
}
