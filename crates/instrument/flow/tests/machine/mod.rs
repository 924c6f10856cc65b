// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulated machine: random programs in real x86 bytes, run by random choice, traced as a processor would.
//!
//! It records the truth that the decoder must find: every instruction's address, each task's call stack, the time of
//! every system call. One instruction takes one nanosecond, a repeated one as many as it has turns.

pub mod encoder;
pub mod program;

use std::collections::{HashMap, HashSet};

use encoder::Encoder;
use kprism_flow::clock::ClockConfig;
use kprism_image::sideband::{Record, Switch};
use program::{Program, Term};

/// The machine's clock.
pub const CLOCK: ClockConfig = ClockConfig {
    tsc_hz: 1_000_000_000,
    perf: None,
    art_num: 40,
    art_den: 1,
    mtc_freq: 3,
    nom_ratio: 10,
    cyc_threshold: 0,
};

/// The settings of a machine with this seed.
pub fn settings(seed: u64) -> Settings {
    let mut rng = Rng(seed ^ 0x5e77);
    Settings {
        ret_compression: rng.chance(70),
        defer_tips: rng.chance(30),
        long_tnt: rng.chance(30),
        timing: rng.chance(70),
        interrupts: [0, 5, 30][rng.below(3)],
        psb: [100, 1000, 10_000][rng.below(3)],
        tasks: 1 + rng.below(3),
        longjmps: rng.chance(50),
        insns: 20_000,
    }
}

/// A small random generator, so that a seed identifies a failing case.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// Settings that vary from case to case.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub ret_compression: bool,
    pub defer_tips: bool,
    pub long_tnt: bool,
    pub timing: bool,
    /// Per mille of instructions that are interrupted.
    pub interrupts: u64,
    /// Instructions between PSBs, about.
    pub psb: u64,
    pub tasks: usize,
    pub longjmps: bool,
    pub insns: u64,
}

/// Kind of a frame's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Call,
    Syscall,
    Interrupt,
}

#[derive(Debug, Clone)]
pub struct Frame {
    pub func: usize,
    pub ret: u64,
    pub how: How,
    node: usize,
    /// Time at the start; instructions of the task, and its time on the CPU, then.
    start: (u64, u64, u64),
    body: Option<usize>,
    /// It jumped to another function, or its task began in it.
    tailed: bool,
}

#[derive(Debug, Clone, Default)]
struct Task {
    stack: Vec<Frame>,
    insns: u64,
    ns: u64,
    started: bool,
}

/// A calling context, of a task or below another node.
#[derive(Debug)]
pub struct Node {
    pub task: usize,
    pub parent: Option<usize>,
    pub func: usize,
    pub calls: u64,
    pub insns: u64,
    pub ns: u64,
}

/// The execution as it really was.
#[derive(Debug, Default)]
pub struct Truth {
    /// Addresses of executed instructions, per PSB segment.
    pub segments: Vec<Vec<u64>>,
    /// The tree of calling contexts.
    pub nodes: Vec<Node>,
    children: HashMap<(usize, Option<usize>, usize), usize>,
    /// (task, body, start ns, wall ns, ns on the CPU, instructions) of finished system calls.
    pub syscalls: Vec<(usize, usize, u64, u64, u64, u64)>,
    /// (task, function, start ns, end ns) of calls that returned to their callers.
    pub calls: Vec<(usize, usize, u64, u64)>,
    pub sideband: Vec<Record>,
    pub switches: usize,
    pub pt: Vec<u8>,
}

pub const FIRST_NS: u64 = 1_000_000;

pub struct Machine<'p> {
    program: &'p Program,
    settings: Settings,
    rng: Rng,
    enc: Encoder,
    truth: Truth,
    tasks: Vec<Task>,
    current: usize,
    ip: u64,
    insns: u64,
    ns: u64,
    since_psb: u64,
    /// A repeated instruction ran since the last branch that gave a packet. No decoder could tell the time of a second one from its.
    has_repeated: bool,
    /// Addresses executed since the last branch that gave a packet. An event at one of them could as well have come on
    /// an earlier pass, which no decoder can distinguish.
    passed: HashSet<u64>,
}

impl<'p> Machine<'p> {
    pub fn run(program: &'p Program, settings: Settings, seed: u64) -> Option<Truth> {
        let main = program.users()[0];
        let mut machine = Machine {
            program,
            settings,
            rng: Rng(seed),
            enc: Encoder::new(settings),
            truth: Truth::default(),
            tasks: vec![Task::default(); settings.tasks.max(1)],
            current: 0,
            ip: program.funcs[main].entry,
            insns: 0,
            ns: FIRST_NS,
            since_psb: 0,
            has_repeated: false,
            passed: HashSet::new(),
        };
        machine.tasks[0].started = true;
        machine.psb();
        machine.push(main, 0, How::Call);
        while machine.insns < settings.insns && machine.step() {}
        machine.enc.flush();
        // A last PSB, so that the path after the last packet is known too.
        for _ in 0..1000 {
            if !machine.passed.contains(&machine.ip) || !machine.step() {
                break;
            }
        }
        if machine.passed.contains(&machine.ip) {
            // Recursion without a branch that ever gives a packet.
            return None;
        }
        machine.psb();
        machine.truth.pt = machine.enc.out;
        Some(machine.truth)
    }

    fn now(&self) -> u64 {
        self.ns
    }

    fn psb(&mut self) {
        self.since_psb = 0;
        self.truth.segments.push(Vec::new());
        self.enc.psb(self.ip, self.ns);
    }

    /// The context of `func` called from `parent`.
    fn node(&mut self, parent: Option<usize>, func: usize) -> usize {
        let task = self.current;
        let nodes = &mut self.truth.nodes;
        let node = *self.truth.children.entry((task, parent, func)).or_insert_with(|| {
            nodes.push(Node { task, parent, func, calls: 0, insns: 0, ns: 0 });
            nodes.len() - 1
        });
        nodes[node].calls += 1;
        node
    }

    fn push(&mut self, func: usize, ret: u64, how: How) {
        let Task { insns, ns, .. } = self.tasks[self.current];
        let start = (self.now(), insns, ns);
        let parent = self.tasks[self.current].stack.last().map(|f| f.node);
        let node = self.node(parent, func);
        self.tasks[self.current].stack.push(Frame { func, ret, how, node, start, body: None, tailed: false });
    }

    fn pop(&mut self) -> Option<Frame> {
        let frame = self.tasks[self.current].stack.pop()?;
        let (start, insns, ns) = frame.start;
        let Task { insns: now_insns, ns: now_ns, .. } = self.tasks[self.current];
        let (wall, on_cpu) = (self.now() - start, now_ns - ns);
        if frame.how == How::Syscall {
            let body = frame.body.unwrap_or(frame.func);
            self.truth.syscalls.push((self.current, body, start, wall, on_cpu, now_insns - insns));
        }
        Some(frame)
    }

    /// Replaces the running function: a tail call.
    fn tail(&mut self, func: usize) {
        let top = self.tasks[self.current].stack.last().expect("a running function").node;
        let node = self.node(self.truth.nodes[top].parent, func);
        let top = self.tasks[self.current].stack.last_mut().expect("a running function");
        (top.func, top.node, top.tailed) = (func, node, true);
    }

    /// One instruction retires.
    fn retire(&mut self) {
        self.truth.segments.last_mut().expect("a segment").push(self.ip);
        let top = self.tasks[self.current].stack.last().expect("a running function").node;
        self.truth.nodes[top].insns += 1;
        self.insns += 1;
        self.since_psb += 1;
        self.tasks[self.current].insns += 1;
        self.pass(1);
    }

    /// Time passes in the running function.
    fn pass(&mut self, ns: u64) {
        let top = self.tasks[self.current].stack.last().expect("a running function").node;
        self.truth.nodes[top].ns += ns;
        self.tasks[self.current].ns += ns;
        self.ns += ns;
    }

    /// Some turns of a repeated instruction beyond its first one.
    fn turn(&mut self) {
        self.enc.repeated();
        if !std::mem::replace(&mut self.has_repeated, true) {
            let turns = [0, 1, 7, 500][self.rng.below(4)];
            self.pass(turns);
        }
    }

    /// Runs the instruction at `ip`; false when the program is over.
    fn step(&mut self) -> bool {
        let kernel = self.ip >> 63 == 1;
        let ambiguous = self.passed.contains(&self.ip);
        if self.since_psb > self.settings.psb && self.rng.chance(20) && !ambiguous {
            self.psb();
        }
        // Interrupts come before the instruction, in user and kernel code, but not while one is handled.
        let handling = self.tasks[self.current].stack.iter().any(|f| f.how == How::Interrupt);
        if !ambiguous
            && !handling
            && self.rng.next() % 1000 < self.settings.interrupts
            && !self.program.is_entry_code(self.ip)
        {
            if self.program.insn(self.ip).repeats {
                // Its first turns ran. It goes on behind the interrupt, and counts once then.
                self.turn();
            }
            let handler = self.program.handlers()[self.rng.below(self.program.handlers().len())];
            let from = self.ip;
            self.passed.clear();
            self.has_repeated = false;
            self.ip = self.program.funcs[handler].entry;
            self.enc.fup(from, self.now());
            self.enc.tip(self.ip, self.now());
            self.push(handler, from, How::Interrupt);
            return true;
        }
        let insn = self.program.insn(self.ip);
        let top = self.tasks[self.current].stack.last();
        if matches!(insn.term, Some(Term::Ret)) && top.is_none_or(|f| f.ret == 0) {
            return false;
        }
        if insn.repeats {
            self.turn();
        }
        self.retire();
        let next = self.ip + u64::from(insn.len);
        let now = self.now();
        match insn.term {
            None | Some(Term::Jmp(_) | Term::Call(_)) => _ = self.passed.insert(self.ip),
            _ => {
                self.passed.clear();
                self.has_repeated = false;
            }
        }
        match insn.term.clone() {
            None => self.ip = next,
            Some(Term::Jcc(target)) => {
                let taken = self.rng.chance(50);
                self.enc.tnt(taken, now);
                self.ip = if taken { target } else { next };
            }
            Some(Term::Jmp(target)) => self.jump(target),
            Some(Term::Call(target)) => {
                self.enc.call(next);
                self.call(target, next);
            }
            Some(Term::CallIndirect(targets)) => {
                let target = targets[self.rng.below(targets.len())];
                self.enc.call(next);
                self.enc.tip(target, now);
                self.call(target, next);
            }
            Some(Term::JmpIndirect(targets)) => {
                let target = targets[self.rng.below(targets.len())];
                self.enc.tip(target, now);
                self.jump(target);
            }
            Some(Term::Longjmp) => self.longjmp(),
            Some(Term::Ret) => {
                let Some(frame) = self.pop() else { return false };
                if !frame.tailed && frame.how == How::Call {
                    self.truth.calls.push((self.current, frame.func, frame.start.0, now));
                }
                self.enc.ret(frame.ret, now);
                self.ip = frame.ret;
                // A task's first return leads to a function without a caller.
                if self.tasks[self.current].stack.is_empty() {
                    let func = self.program.func_at(self.ip);
                    self.push(func, 0, How::Call);
                }
            }
            Some(Term::Syscall) => {
                let entry = self.program.syscall_entry();
                self.ip = self.program.funcs[entry].entry;
                self.enc.tip(self.ip, now);
                self.push(entry, next, How::Syscall);
            }
            Some(Term::Iret) => {
                let frame = self.pop();
                let to = match frame {
                    Some(Frame { how: How::Call, .. }) | None => {
                        // A new task enters user mode for the first time.
                        let user = self.program.users()[1];
                        self.tasks[self.current].stack.clear();
                        self.push(user, 0, How::Call);
                        self.program.funcs[user].entry
                    }
                    Some(frame) => frame.ret,
                };
                self.enc.tip(to, now);
                self.ip = to;
            }
        }
        debug_assert!(kernel || self.ip != 0);
        true
    }

    fn jump(&mut self, target: u64) {
        let func = self.program.func_at(target);
        let here = self.program.func_at(self.ip);
        self.ip = target;
        if func != here {
            self.tail(func);
        }
    }

    fn call(&mut self, target: u64, next: u64) {
        let func = self.program.func_at(target);
        self.ip = target;
        self.push(func, next, How::Call);
        if self.program.funcs[func].name.starts_with("__x64_sys_")
            && let Some(entry) = self.tasks[self.current].stack.iter_mut().rev().find(|f| f.how != How::Call)
            && entry.how == How::Syscall
            && entry.body.is_none()
        {
            entry.body = Some(func);
        }
        if Some(func) == self.program.switch_to() {
            self.switch();
        }
    }

    /// Jumps out of several user frames at once, into the middle of one of them.
    fn longjmp(&mut self) {
        let stack = &self.tasks[self.current].stack;
        let base = stack.iter().rposition(|f| f.how != How::Call).map_or(0, |i| i + 1);
        // A jump to a function refers to its innermost frame.
        let depth = base + self.rng.below(stack.len() - base);
        let func = stack[depth].func;
        let depth = stack.iter().rposition(|f| f.func == func).unwrap_or(depth);
        let blocks = &self.program.funcs[func].blocks;
        if blocks.len() < 2 || depth + 1 == stack.len() {
            let target = self.program.funcs[self.program.func_at(self.ip)].blocks.last().copied();
            let target = target.expect("a last block");
            self.enc.tip(target, self.now());
            self.ip = target;
            return;
        }
        let target = blocks[1 + self.rng.below(blocks.len() - 1)];
        while self.tasks[self.current].stack.len() > depth + 1 {
            self.pop();
        }
        self.enc.tip(target, self.now());
        self.ip = target;
    }

    /// The flow is at the switch function's entry. Another task continues there.
    fn switch(&mut self) {
        let prev = self.current;
        let next = self.rng.below(self.tasks.len());
        self.truth.sideband.push(Record::Switch(Switch {
            t: self.now(),
            cpu: 0,
            ip: self.ip,
            prev_pid: 100 + prev as u32,
            prev_tgid: 100 + prev as u32,
            prev_comm: format!("task{prev}"),
            pid: 100 + next as u32,
            tgid: 100 + next as u32,
            comm: format!("task{next}"),
            ..Switch::default()
        }));
        self.truth.switches += 1;
        self.current = next;
        if !self.tasks[next].started {
            self.tasks[next].started = true;
            let switch = self.program.switch_to().expect("a switch");
            let ret = self.program.funcs[self.program.fork_return()].entry;
            self.push(switch, ret, How::Call);
            self.tasks[next].stack[0].tailed = true;
        }
    }
}
