// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intervals of functions are the same wherever a stream is cut, and the same as those of a replay, which keeps
//! complete stacks and no chunks.

#[allow(dead_code)]
mod machine;

use std::collections::BTreeMap;

use kprism_flow::delta::{Plan, Spec};
use kprism_flow::event::Event;
use kprism_flow::replay::calls::{Begin, Calls, End, Stacks};
use kprism_flow::replay::{Code, Inputs, Listener, TracePosition, replay};
use kprism_flow::{Options, Stream, profile};
use kprism_image::Image;
use kprism_image::resolve::Resolve;
use kprism_profile::{FrameKind, Profile, Syscall};
use machine::program::Program;
use machine::{CLOCK, Machine, Rng, Settings, Truth, settings};

/// One kind of interval for each function: its calls, including nested ones.
fn plan(program: &Program) -> Plan {
    let of = |name: &String| Spec {
        name: name.clone(),
        from: format!("func:{name}"),
        to: format!("ret:{name}"),
        scope: None,
        nested: true,
    };
    let specs: Vec<Spec> = program.funcs.iter().map(|f| of(&f.name)).collect();
    Plan::new(&specs, &[], &|_| None).expect("markers")
}

fn decode(program: &Program, truth: &Truth, plan: &Plan, chunk: usize) -> Profile {
    let streams = [Stream { cpu: 0, bytes: &truth.pt, image: &program.image }];
    let options =
        Options { threads: 1, chunk, clock: CLOCK, slice_ns: 200, plan: plan.clone(), ..Options::default() };
    profile(&streams, program, &truth.sideband, &options, &|_| ())
}

/// By function: how often it began, how often it ended, and the instructions in between.
type Sums = BTreeMap<String, (u64, u64, u64)>;

fn sums(profile: &Profile) -> Sums {
    let of = |d: &kprism_profile::Delta| (d.insns.count + d.unfinished, d.insns.count, d.insns.sum);
    profile.deltas.iter().map(|d| (d.name.clone(), of(d))).filter(|(_, s)| s.0 > 0).collect()
}

/// Open calls of one task. Each lists the functions whose work it does: its own, and those that tail-called it.
#[derive(Default)]
struct Under {
    frames: Vec<Vec<u32>>,
    /// Instructions of the task at which functions began.
    begun: BTreeMap<u32, Vec<u64>>,
    insns: u64,
}

struct Told<'a> {
    program: &'a Program,
    stacks: Stacks,
    tasks: Vec<Under>,
    sums: BTreeMap<u32, (u64, u64, u64)>,
}

#[derive(Default)]
struct Heard(Vec<Result<Begin, End>>);

impl Calls for Heard {
    fn begin(&mut self, _: &TracePosition<'_>, call: Begin) {
        self.0.push(Ok(call));
    }

    fn end(&mut self, _: &TracePosition<'_>, call: End) {
        self.0.push(Err(call));
    }
}

impl Told<'_> {
    fn task(&mut self, task: usize) -> &mut Under {
        if task >= self.tasks.len() {
            self.tasks.resize_with(task + 1, Under::default);
        }
        &mut self.tasks[task]
    }

    fn ends(&mut self, task: usize, func: u32) {
        let under = &mut self.tasks[task];
        if let Some(from) = under.begun.get_mut(&func).and_then(Vec::pop) {
            let sum = self.sums.entry(func).or_default();
            *sum = (sum.0, sum.1 + 1, sum.2 + under.insns - from);
        }
    }
}

impl Listener for Told<'_> {
    fn define(&mut self, _: &TracePosition<'_>, _: u32, _: Code, _: &Image) {}

    fn run(&mut self, at: &TracePosition<'_>, _: u32, from: u32, to: u32) {
        self.stacks.run(at, to - from);
        self.task(at.task).insns += u64::from(to - from);
    }

    fn event(&mut self, at: &TracePosition<'_>, event: &Event) {
        let mut heard = Heard::default();
        self.stacks.event(at, event, &mut heard);
        let mut left: Option<(usize, Vec<u32>)> = None;
        for told in heard.0 {
            match told {
                Err(end) => {
                    if let Some((_, funcs)) = left.take() {
                        funcs.into_iter().rev().for_each(|func| self.ends(at.task, func));
                    }
                    let funcs = self.task(at.task).frames.pop().expect("a call under way");
                    left = Some((end.depth, funcs));
                }
                Ok(begin) => {
                    let mut funcs = match left.take() {
                        Some((depth, funcs)) if depth == begin.depth && begin.kind != FrameKind::Call => {
                            funcs
                        }
                        Some((_, funcs)) => {
                            funcs.into_iter().rev().for_each(|func| self.ends(at.task, func));
                            Vec::new()
                        }
                        None => Vec::new(),
                    };
                    let first = event.ip == self.program.describe(begin.func).start;
                    let entered = begin.kind == FrameKind::Tail && begin.counts && first;
                    if begin.kind == FrameKind::Call && begin.counts || entered {
                        if funcs.len() == 2 {
                            let over = funcs.pop().expect("two");
                            self.ends(at.task, over);
                        }
                        funcs.push(begin.func);
                        self.sums.entry(begin.func).or_default().0 += 1;
                        let under = self.task(at.task);
                        let insns = under.insns;
                        under.begun.entry(begin.func).or_default().push(insns);
                    }
                    self.task(at.task).frames.push(funcs);
                }
            }
        }
        if let Some((_, funcs)) = left {
            funcs.into_iter().rev().for_each(|func| self.ends(at.task, func));
        }
    }
}

fn told(program: &Program, truth: &Truth) -> Sums {
    let streams = [Stream { cpu: 0, bytes: &truth.pt, image: &program.image }];
    let mut told = Told { program, stacks: Stacks::default(), tasks: Vec::new(), sums: BTreeMap::new() };
    let sideband = &truth.sideband;
    let _ = replay(
        &Inputs {
            streams: &streams,
            resolver: program,
            sideband,
            clock: CLOCK,
            errata: Default::default(),
            stretch: 0,
        },
        &mut told,
    );
    told.sums.into_iter().map(|(func, sums)| (program.describe(func).name, sums)).collect()
}

#[test]
fn functions_begin_and_end_wherever_the_stream_is_cut() {
    let (mut all, mut cut) = (0, 0);
    for seed in 0..400 {
        let settings: Settings = settings(seed);
        let program = Program::random(&mut Rng(seed), settings.longjmps, settings.tasks > 1);
        let Some(truth) = Machine::run(&program, settings, seed) else { continue };
        let plan = plan(&program);
        let want = told(&program, &truth);
        let parts = |p: &Profile| -> Vec<[u64; 3]> {
            let of = |s: &Syscall| [s.parts.entry, s.parts.interrupts, s.parts.exit].map(|part| part.insns);
            p.syscalls.iter().map(of).collect()
        };
        let whole = decode(&program, &truth, &plan, usize::MAX);
        for chunk in [usize::MAX, 3000, 1] {
            let other = decode(&program, &truth, &plan, chunk);
            let found = sums(&other);
            for name in want.keys().chain(found.keys()) {
                assert_eq!(found.get(name), want.get(name), "seed {seed} chunk {chunk} {settings:?} {name}");
            }
            assert_eq!(parts(&other), parts(&whole), "seed {seed} chunk {chunk} {settings:?}");
            for (one, other) in whole.deltas.iter().zip(&other.deltas) {
                // With deferred TIPs a packet's time is not the time of its branch.
                if settings.timing && !settings.defer_tips {
                    assert!(one.ns == other.ns, "seed {seed} chunk {chunk} {settings:?} {}", one.name);
                }
            }
        }
        all += want.values().map(|s| s.0).sum::<u64>();
        cut += truth.segments.len();
    }
    assert!(all > 50_000 && cut > 2000, "only {all} calls, {cut} segments");
}
