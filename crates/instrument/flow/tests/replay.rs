// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs, traced and replayed: every instruction at its place, every call in its stack, in order of time.

mod machine;
mod replayed;

use kprism_flow::Stream;
use kprism_flow::replay::Inputs;
use kprism_image::resolve::Resolve as _;
use machine::program::Program;
use machine::{CLOCK, Machine, Rng, settings};
use replayed::{Contexts, Replayed};

/// The contexts that really ran. Calls of outermost functions are left out, as the trace does not always show their
/// kind.
fn real_contexts(truth: &machine::Truth, program: &Program) -> Contexts {
    let mut paths: Vec<Vec<String>> = Vec::new();
    let mut contexts = Contexts::new();
    for node in &truth.nodes {
        let mut path = node.parent.map_or_else(Vec::new, |p| paths[p].clone());
        let entry = program.funcs[node.func].entry;
        let func = program.function_at(if entry >> 63 == 1 { 0 } else { 0x1000 }, entry, 0);
        path.push(program.describe(func.id).name);
        paths.push(path.clone());
        let pid = if truth.sideband.is_empty() { 0 } else { node.task as u32 + 100 };
        let calls = if node.parent.is_some() { node.calls } else { 0 };
        contexts.insert((pid, path), (calls, node.insns));
    }
    contexts.retain(|_, sums| *sums != (0, 0));
    contexts
}

#[test]
fn everything_is_told_as_it_was() {
    let mut total = 0;
    for seed in 0..100 {
        let settings = settings(seed);
        let program = Program::random(&mut Rng(seed), settings.longjmps, settings.tasks > 1);
        let Some(truth) = Machine::run(&program, settings, seed) else { continue };
        let streams = [Stream { cpu: 0, bytes: &truth.pt, image: &program.image }];
        let want: Vec<u64> = truth.segments.iter().flatten().copied().collect();
        for stretch in [0, 1] {
            let inputs = Inputs {
                streams: &streams,
                resolver: &program,
                sideband: &truth.sideband,
                clock: CLOCK,
                errata: Default::default(),
                stretch,
            };
            let told = Replayed::of(&inputs);
            let ips: Vec<u64> = told.ran.iter().map(|r| r.2).collect();
            assert!(ips == want, "seed {seed} {settings:?}: other instructions");
            let mut found = told.contexts;
            found.iter_mut().filter(|(key, _)| key.1.len() == 1).for_each(|(_, sums)| sums.0 = 0);
            found.retain(|_, sums| *sums != (0, 0));
            let real = real_contexts(&truth, &program);
            for key in real.keys().chain(found.keys()) {
                assert_eq!(found.get(key), real.get(key), "seed {seed} {settings:?} {key:?}");
            }
            total += ips.len();
        }
    }
    assert!(total > 250_000, "only {total} instructions in all: programs end too soon");
}
