// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a program, of IR or of C, and what it runs on: the interpreter, the optimiser, and the eBPF in rbpf must
//! agree.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/code/expr/tests/support/mod.rs"]
mod support;

use support::text::compiled;
use support::{Bytes, World, in_rbpf, interpret, program};

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let world = World::new(&mut bytes);
    let of_text = bytes.byte() & 1 == 1;
    let text = of_text.then(|| compiled(&mut bytes, false)).flatten();
    let func = text.map_or_else(|| program(&mut bytes, false), |(_, func)| func);
    let expected = interpret(&func, &world);
    let mut better = func.clone();
    kprism_expr::opt::optimise(&mut better);
    assert_eq!(interpret(&better, &world), expected);
    assert_eq!(in_rbpf(&func, &world), expected);
    assert_eq!(in_rbpf(&better, &world), expected);
});
