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

/// The lower half of a 64-bit value, extended twice: nobody has cleared the upper half in between.
#[test]
fn the_upper_half_is_cleared_after_extensions_that_emit_nothing() {
    use kprism_expr::ir::{Builder, Input, Op, Width};
    let mut world = World::new(&mut Bytes(&[]));
    world.args[0] = 0xffff_ffff_8000_0001;
    for constant in [None, Some(0x1_0000_0000), Some(u64::MAX)] {
        for signed in [false, true] {
            let mut b = Builder::new();
            let wide = match constant {
                Some(n) => b.constant(n, Width::W64),
                None => b.push(Op::Input(Input::Arg(0)), Width::W64),
            };
            let low = b.ext(wide, 32, signed, Width::W32);
            let same = b.ext(low, 32, signed, Width::W32);
            let extended = b.ext(same, 32, false, Width::W64);
            b.end(kprism_expr::ir::Term::Return(extended));
            let func = b.finish();
            let expected = constant.unwrap_or(world.args[0]) & 0xffff_ffff;
            assert_eq!(interpret(&func, &world).0, Ok(expected), "{func}");
            assert_eq!(in_rbpf(&func, &world).0, Ok(expected), "eBPF of\n{func}{}", listing(&func));
        }
    }
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
