// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as GDB's agent bytecode: listed to the last byte; refused with an offset in them, or it becomes a program that ends, optimised as
//! well as not, and eBPF.
#![no_main]

use kprism_expr::emit::{self, Cpu, Output};
use kprism_expr::interp::{self, Machine};
use kprism_expr::ir::{Input, Space};
use libfuzzer_sys::fuzz_target;

struct Anything([u64; 4]);

impl Machine for Anything {
    fn input(&mut self, _: Input) -> u64 {
        3
    }

    fn read(&mut self, _: Space, addr: u64, into: &mut [u8]) -> bool {
        into.fill(addr as u8);
        addr < 1 << 47
    }

    fn var(&mut self, number: u16) -> &mut u64 {
        &mut self.0[usize::from(number)]
    }
}

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() > 512 {
        return;
    }
    let steps = kprism_expr::agent::listing::list(bytes);
    assert!(steps.iter().all(|step| step.at < bytes.len()));
    match kprism_expr::agent::translate(bytes, Space::User, 4) {
        Ok(func) => {
            let (mut a, mut b) = (Anything([0; 4]), Anything([0; 4]));
            let plain = interp::run(&func, &mut a);
            let mut better = func.clone();
            kprism_expr::opt::optimise(&mut better);
            assert_eq!(plain, interp::run(&better, &mut b));
            assert_eq!(a.0, b.0);
            let _ = emit::program(&better, Cpu::V3, Output::Verdict).map(|p| p.listing());
        }
        Err(error) => assert!(error.at <= bytes.len() + 8),
    }
});
