// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any text as an expression: it is refused with a place in it, or compiles to eBPF of both versions, and the optimised
//! program answers as the plain one.
#![no_main]

use kprism_expr::emit::{self, Cpu, Output};
use kprism_expr::ir::Space;
use kprism_expr::lower::{self, Env};
use kprism_expr::scope::Bare;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let vars = ["hits".to_owned()];
    let env = Env { scope: &Bare(Space::User), vars: &vars };
    for compile in [lower::condition, lower::value] {
        match compile(text, env) {
            Ok(lowered) => {
                let mut func = lowered.func;
                kprism_expr::opt::optimise(&mut func);
                for cpu in [Cpu::V3, Cpu::V4] {
                    let _ = emit::program(&func, cpu, Output::Verdict).map(|p| p.listing());
                }
            }
            Err(error) => {
                assert!(error.span.start <= text.len());
                let _ = error.render(text);
            }
        }
    }
});
