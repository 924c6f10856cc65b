// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generated programs: the interpreter, the optimiser and the eBPF (in rbpf) must agree, also on faults.

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

/// Cases in which GDB differs from C: both sides of `?:` must have one type.
#[test]
fn as_c_has_it_and_gdb_does_not() {
    use kprism_expr::ir::Space;
    use kprism_expr::lower::{Env, value};
    use kprism_expr::scope::Bare;
    let mut world = World::new(&mut Bytes(&[]));
    for (text, expected) in
        [("1 ? -1 : 1u", 0xffff_ffff), ("0 ? 1UL : -1", u64::MAX), ("-1 < 1u", 0), ("'\\xff' == -1", 1)]
    {
        let lowered = value(text, Env { scope: &Bare(Space::User), vars: &[] }).expect(text);
        assert_eq!(kprism_expr::interp::run(&lowered.func, &mut world), Ok(expected), "{text}");
    }
}
