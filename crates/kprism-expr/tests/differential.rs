// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of any bytes: the interpreter, the optimiser and the eBPF (in rbpf) must agree, faults included.

mod support;

use proptest::prelude::*;
use support::{Bytes, World, in_rbpf, interpret, program};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn all_agree(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = Bytes(&bytes);
        let world = World::new(&mut bytes);
        let func = program(&mut bytes, false);
        let expected = interpret(&func, &world);
        let mut better = func.clone();
        kprism_expr::opt::optimise(&mut better);
        prop_assert_eq!(interpret(&better, &world), expected, "optimised\n{}\n=>\n{}", &func, &better);
        prop_assert_eq!(in_rbpf(&func, &world), expected, "eBPF of\n{}{}", &func, listing(&func));
        prop_assert_eq!(in_rbpf(&better, &world), expected, "eBPF of\n{}{}", &better, listing(&better));
    }
}

fn listing(func: &kprism_expr::ir::Func) -> String {
    use kprism_expr::emit::{Cpu, Output, program};
    program(func, Cpu::V3, Output::State).map_or_else(|e| e.to_string(), |p| p.listing())
}
