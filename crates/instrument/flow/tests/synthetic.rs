// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs, traced and decoded: the decoder must find exactly the instructions that ran.

mod machine;

use std::collections::{BTreeMap, BTreeSet};

use kprism_flow::digest::segments;
use kprism_flow::event::{Event, Sink};
use kprism_flow::window::Window;
use kprism_flow::{Decoder, Setup};
use kprism_flow::{Options, Stream, profile};
use kprism_profile::{FrameKind, NO_PARENT, Profile, Task};
use machine::program::Program;
use machine::{CLOCK, Machine, Rng, Settings, Truth, settings};

fn make(seed: u64, settings: Settings) -> Option<(Program, Truth)> {
    let program = Program::random(&mut Rng(seed), settings.longjmps, settings.tasks > 1);
    let truth = Machine::run(&program, settings, seed)?;
    Some((program, truth))
}

#[derive(Default)]
struct Ips(Vec<u64>);

impl Sink for Ips {
    const IPS: bool = true;
    fn event(&mut self, _: Event) {}
    fn time(&mut self, _: u32, _: u64) {}
    fn ips(&mut self, ips: &[u64]) {
        self.0.extend(ips);
    }
}

#[test]
fn every_segment_decodes_to_what_ran() {
    let mut total = 0;
    for seed in 0..400 {
        let settings = settings(seed);
        let Some((program, truth)) = make(seed, settings) else { continue };
        let setup = Setup {
            image: &program.image,
            resolver: &program,
            clock: CLOCK,
            watch: None,
            errata: Default::default(),
        };
        let starts = segments(&truth.pt);
        assert_eq!(starts.len(), truth.segments.len(), "seed {seed}");
        // Once with blocks kept from segment to segment, once from the last segment to the first with new blocks.
        let mut decoder = Decoder::new(&truth.pt, setup, true);
        for (i, &from) in starts.iter().enumerate() {
            let to = starts.get(i + 1).copied().unwrap_or(truth.pt.len());
            for fresh in [false, true] {
                let mut ips = Ips::default();
                let stats = if fresh {
                    Decoder::new(&truth.pt, setup, true).run(from, to, &mut ips)
                } else {
                    decoder.run(from, to, &mut ips)
                };
                assert_eq!(stats.faults, [], "seed {seed} {settings:?}");
                let want = &truth.segments[i];
                let differs = ips.0.iter().zip(want).position(|(a, b)| a != b);
                if let Some(at) = differs {
                    let around = at.saturating_sub(3)..at + 2;
                    panic!(
                        "seed {seed} segment {i} {settings:?}: instruction {at}: {:x?}, not {:x?}",
                        ips.0.get(around.clone()),
                        want.get(around)
                    );
                }
                assert_eq!(ips.0.len(), want.len(), "seed {seed} segment {i} {settings:?}");
                assert_eq!(stats.instructions, want.len() as u64);
            }
        }
        // All at once.
        let stats =
            Decoder::new(&truth.pt, setup, false).run(0, truth.pt.len(), &mut kprism_flow::event::Null);
        assert_eq!(stats.instructions, truth.segments.iter().map(|s| s.len() as u64).sum::<u64>());
        total += stats.instructions;
    }
    assert!(total > 500_000, "only {total} instructions in all: programs end too soon");
}

/// A context by name: its task, and the hash of its path of function addresses.
type Context = (usize, u64);

/// (calls, own instructions, own time in ns, the function's address) by context.
type Contexts = BTreeMap<Context, (u64, u64, u64, u64)>;

fn below(parent: u64, func: u64) -> u64 {
    (parent.rotate_left(9) ^ func).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn real_contexts(truth: &Truth, program: &Program) -> Contexts {
    let mut hashes = Vec::new();
    let mut contexts = Contexts::new();
    for node in &truth.nodes {
        let entry = program.funcs[node.func].entry;
        let hash = below(node.parent.map_or(1, |p| hashes[p]), entry);
        hashes.push(hash);
        // The trace does not always show how outermost functions were entered.
        let calls = if node.parent.is_some() { node.calls } else { 0 };
        contexts.insert((node.task, hash), (calls, node.insns, node.ns, entry));
    }
    contexts
}

/// The contexts of a profile. The kind of a frame does not matter here.
fn found_contexts(profile: &Profile) -> Contexts {
    let mut named: Vec<Context> = Vec::new();
    let mut contexts = Contexts::new();
    for (i, node) in profile.nodes.iter().enumerate() {
        if node.parent == NO_PARENT {
            assert_eq!(node.insns, 0, "instructions outside of any function");
            let task = profile.tasks.iter().find(|t| t.root == i as u32).expect("a task for each root");
            named.push((task.pid.saturating_sub(100) as usize, 1));
            continue;
        }
        let func = profile.funcs[node.func as usize].start;
        let (task, parent) = named[node.parent as usize];
        named.push((task, below(parent, func)));
        let sum = contexts.entry((task, below(parent, func))).or_insert((0, 0, 0, func));
        sum.0 += if parent == 1 { 0 } else { node.calls };
        sum.1 += node.insns;
        sum.2 += node.ns;
    }
    contexts.retain(|_, n| *n != (0, 0, 0, n.3));
    contexts
}

/// The shortest call that a profile lists.
const LONG_NS: u64 = 200;

#[test]
fn call_stacks_are_what_they_were() {
    let mut long_calls = 0;
    for seed in 0..400 {
        let settings = settings(seed);
        let Some((program, truth)) = make(seed, settings) else { continue };
        let streams = [Stream { cpu: 0, bytes: &truth.pt, image: &program.image }];
        // With deferred TIPs a packet's time is not the time of its branch.
        let is_timed = settings.timing && !settings.defer_tips;
        let mut want = real_contexts(&truth, &program);
        let run = |threads, chunk| {
            let options = Options { threads, chunk, clock: CLOCK, slice_ns: LONG_NS, ..Options::default() };
            profile(&streams, &program, &truth.sideband, &options, &|_| ())
        };
        let whole = run(1, usize::MAX);
        assert_eq!(whole.errors, [], "seed {seed}");
        let mut found = found_contexts(&whole);
        if !is_timed {
            want.values_mut().chain(found.values_mut()).for_each(|sums| sums.2 = 0);
        }
        for key in want.keys().chain(found.keys()) {
            assert_eq!(found.get(key), want.get(key), "seed {seed} {settings:x?} {key:x?}");
        }
        // The stack is found again after every PSB, with any number of threads.
        for chunk in [1, 3000] {
            let one = run(1, chunk);
            let mut other = found_contexts(&one);
            if !is_timed {
                other.values_mut().for_each(|sums| sums.2 = 0);
            }
            for key in found.keys().chain(other.keys()) {
                assert_eq!(other.get(key), found.get(key), "seed {seed} chunk {chunk} {settings:?} {key:x?}");
            }
            assert!(one == run(3, chunk), "seed {seed} chunk {chunk}: differs with threads");
        }
        if is_timed {
            let mut calls: Vec<_> = whole
                .syscalls
                .iter()
                .map(|s| {
                    let task = whole.tasks[s.task as usize].pid.saturating_sub(100) as usize;
                    let func = whole.funcs[s.func as usize].start as usize;
                    (s.start_ns, s.wall_ns, s.on_cpu_ns, s.insns, task, func)
                })
                .collect();
            let mut real: Vec<_> = truth
                .syscalls
                .iter()
                .map(|&(task, body, start, wall, on_cpu, insns)| {
                    (start, wall, on_cpu, insns, task, program.funcs[body].entry as usize)
                })
                .collect();
            calls.sort();
            real.sort();
            assert_eq!(calls, real, "seed {seed} {settings:?}");
            // A window of one call has its instructions and its time, wherever the packets with a time are.
            for call in whole.syscalls.iter().step_by(whole.syscalls.len() / 2 + 1) {
                let Task { pid, tgid, .. } = whole.tasks[call.task as usize];
                let (from_ns, to_ns) = (call.start_ns, call.start_ns + call.wall_ns);
                let window = Some(Window { pid, tgid, from_ns, to_ns });
                for chunk in [1, usize::MAX] {
                    let options = Options { threads: 1, chunk, clock: CLOCK, window, ..Options::default() };
                    let part = profile(&streams, &program, &truth.sideband, &options, &|_| ());
                    let sums = part.nodes.iter().fold((0, 0), |sum, n| (sum.0 + n.insns, sum.1 + n.ns));
                    assert_eq!(sums, (call.insns, call.on_cpu_ns), "seed {seed} chunk {chunk} {settings:?}");
                }
            }
            let is_long = |&(_, _, start, end): &(usize, usize, u64, u64)| end - start >= LONG_NS;
            let long: BTreeSet<_> = whole
                .slices
                .iter()
                .filter(|slice| slice.kind == FrameKind::Call)
                .map(|slice| {
                    let task = whole.tasks[slice.task as usize].pid.saturating_sub(100) as usize;
                    let entry = whole.funcs[slice.func as usize].start;
                    (task, program.func_at(entry), slice.start_ns, slice.end_ns)
                })
                .collect();
            assert!(long.iter().all(is_long), "seed {seed}: shorter calls than are asked for");
            for call in truth.calls.iter().filter(|call| is_long(call)) {
                assert!(long.contains(call), "seed {seed} {settings:?}: {call:x?}");
                long_calls += 1;
            }
        }
    }
    assert!(long_calls > 1000, "only {long_calls} calls are long");
}
