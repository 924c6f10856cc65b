// SPDX-License-Identifier: MIT OR Apache-2.0
//! The analyses over marks: intervals between markers, the parts of system calls, executions of instruction patterns.
//!
//! Input: marks with the counters of their CPU and task, from the stitcher, in the order in which that CPU or task met
//! them. Output: [`Delta`]s, [`Count`]s, and the [`Parts`] of each system call that ended.

use std::collections::{HashMap, VecDeque};

use crate::decode::entries::is_nmi;
use crate::decode::marks::Op;
use crate::measure::delta::{Occasion, Plan, Triggers};
use crate::measure::intervals::{Intervals, Point};
use crate::measure::irqs::{Cpu, Saved};
use crate::measure::mark::What;
use kprism_profile::{Delta, FrameKind, Part, Parts, Scope};

/// Position of a mark: CPU, task, time and counters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct At {
    /// Index of the CPU's stream, and the CPU number.
    pub lane: usize,
    pub cpu: u16,
    pub task: usize,
    pub ns: u64,
    /// Instructions that the CPU and the task executed so far.
    pub cpu_insns: u64,
    pub task_insns: u64,
    pub ip: u64,
    pub node: u32,
}

/// State of a system call that a task is executing.
#[derive(Debug, Clone, Copy, Default)]
struct Call {
    parts: Parts,
    /// Start of the entry, start of the current interrupt.
    start: Stamp,
    body: Option<u32>,
    interrupted: Option<Stamp>,
    /// End of the body if seen, and the interrupts until then.
    body_end: Option<(Stamp, Part)>,
    /// Kernel entries nested inside, and the depth of the one that is the interrupt.
    depth: u32,
    interrupt_depth: u32,
}

/// A task's clocks: ns on a CPU, and instructions.
#[derive(Debug, Clone, Copy, Default)]
struct Stamp {
    ns: u64,
    insns: u64,
}

impl Stamp {
    fn until(self, end: Stamp) -> Part {
        Part { ns: end.ns.saturating_sub(self.ns), insns: end.insns.saturating_sub(self.insns) }
    }
}

#[derive(Debug, Default)]
struct Task {
    saved: Saved,
    /// Time off the CPU so far, and the time at which the task left it; ns.
    off_ns: u64,
    off_since: Option<u64>,
    call: Option<Call>,
}

impl Task {
    fn stamp(&self, at: &At) -> Stamp {
        Stamp { ns: at.ns.saturating_sub(self.off_ns), insns: at.task_insns }
    }
}

/// Intervals that a function begins and ends.
#[derive(Debug, Clone, Copy, Default)]
struct FuncPlan {
    begin: Triggers,
    end: Triggers,
    is_nmi: bool,
}

/// Pairs of node and number of executions, sorted by node.
pub(crate) type NodeCounts = Vec<(u32, u64)>;

/// The analyses of one profile.
pub(crate) struct Analyses<'a> {
    plan: &'a Plan,
    cpus: Vec<Cpu>,
    /// The CPU halted. The next mark on it is its wake-up.
    halted: Vec<bool>,
    /// Intervals that the halt ended, one bit for each: with the wake-up others begin.
    cut: Vec<u64>,
    tasks: Vec<Task>,
    intervals: Vec<Intervals>,
    funcs: HashMap<u32, FuncPlan>,
    /// Executions by pattern and node.
    counts: HashMap<(u32, u32), u64>,
    /// Patterns that are counted and also begin or end an interval.
    counted: Vec<bool>,
    /// Parts of system calls that ended before their records arrived.
    done: VecDeque<Parts>,
}

impl<'a> Analyses<'a> {
    pub fn new(plan: &'a Plan, lanes: usize) -> Self {
        let mut counted = vec![false; plan.wanted.len()];
        plan.counts.iter().for_each(|&(_, n)| counted[n as usize] = true);
        Self {
            plan,
            cpus: vec![Cpu::default(); lanes],
            halted: vec![false; lanes],
            cut: vec![0; lanes],
            tasks: Vec::new(),
            intervals: plan
                .deltas
                .iter()
                .map(|d| {
                    Intervals::new(d.nested).leaving_idle_out(d.leaves_idle_out()).keeping(plan.kept.clone())
                })
                .collect(),
            funcs: HashMap::new(),
            counts: HashMap::new(),
            counted,
            done: VecDeque::new(),
        }
    }

    /// Handles a mark. `name_of` returns a function's name.
    pub fn mark(&mut self, at: &At, what: What, name_of: &dyn Fn(u32) -> String) {
        if at.task >= self.tasks.len() {
            self.tasks.resize_with(at.task + 1, Task::default);
        }
        match what {
            What::Off => return self.off(at),
            What::Still { ns } => return self.still(at, ns),
            _ => {}
        }
        if std::mem::take(&mut self.halted[at.lane]) {
            self.occasion(at, Occasion::Wake);
            let from = std::mem::take(&mut self.cut[at.lane]);
            self.fire(at, Triggers { from, to: 0 });
        }
        match what {
            What::Insn(op) => self.insn(at, op),
            What::Enter { kind, func } => self.enter(at, kind, func, name_of),
            What::Leave { user } => self.leave(at, user),
            What::SyscallDone => self.syscall_done(at),
            What::Begin { func, body } | What::Tail { func, body } => {
                if body {
                    self.body_begins(at, func);
                }
                let triggers = self.func(func, name_of).begin;
                self.fire(at, triggers);
            }
            What::End { func } => {
                self.body_ends(at, func);
                let triggers = self.func(func, name_of).end;
                self.fire(at, triggers);
            }
            // Handled above.
            What::Off | What::Still { .. } => {}
        }
    }

    /// Adds executions of a pattern in a node.
    pub fn count(&mut self, pattern: u32, node: u32, times: u64) {
        *self.counts.entry((pattern, node)).or_default() += times;
    }

    fn insn(&mut self, at: &At, op: Op) {
        let (cpu, saved) = (self.cpus[at.lane], &mut self.tasks[at.task].saved);
        let now = &mut self.cpus[at.lane];
        match op {
            Op::Cli => now.cli(saved),
            Op::Sti => now.sti(),
            Op::Pushf => now.pushf(saved),
            Op::Popf => now.popf(saved),
            Op::Preempt(amount) => now.count(amount),
            Op::PreemptCall(amount) => now.call(amount),
            Op::PreemptBy => now.count_argument(),
            Op::Halt => {
                self.halted[at.lane] = true;
                self.halt(at);
                self.occasion(at, Occasion::Halt);
            }
            Op::Wanted(n) => {
                if self.counted.get(n as usize) == Some(&true) {
                    self.count(n, at.node, 1);
                }
                let triggers = self.plan.wanted.get(n as usize).copied().unwrap_or_default();
                self.fire(at, triggers);
            }
            Op::Counted(n) => self.count(n, at.node, 1),
            // Of use where time is kept, and no mark.
            Op::Repeat => {}
        }
        self.changed(at, cpu);
    }

    /// Fires the triggers for what changed on the CPU since `before`.
    fn changed(&mut self, at: &At, before: Cpu) {
        let now = self.cpus[at.lane];
        if now == before {
            return;
        }
        match (before.irqs, now.irqs) {
            (Some(true), Some(false)) => self.occasion(at, Occasion::IrqsOff),
            (Some(false), Some(true)) => self.occasion(at, Occasion::IrqsOn),
            // The state was or is unknown, so the order of these events is unknown.
            (Some(_), None) | (None, Some(_)) => self.forget(at, &[Occasion::IrqsOff, Occasion::IrqsOn]),
            _ => {}
        }
        match (before.preempt, now.preempt) {
            (Some(0), Some(n)) if n != 0 => self.occasion(at, Occasion::PreemptOff),
            (Some(n), Some(0)) if n != 0 => self.occasion(at, Occasion::PreemptOn),
            (Some(_), None) | (None, Some(_)) => {
                self.forget(at, &[Occasion::PreemptOff, Occasion::PreemptOn]);
            }
            _ => {}
        }
    }

    fn enter(&mut self, at: &At, kind: FrameKind, func: u32, name_of: &dyn Fn(u32) -> String) {
        let proves_on = kind == FrameKind::Interrupt && !self.func(func, name_of).is_nmi;
        let before = self.cpus[at.lane];
        let task = &mut self.tasks[at.task];
        self.cpus[at.lane].enter(&mut task.saved, proves_on);
        let stamp = task.stamp(at);
        match (kind, &mut task.call) {
            (FrameKind::Syscall, call) => *call = Some(Call { start: stamp, ..Call::default() }),
            (_, Some(call)) => {
                call.depth += 1;
                if kind == FrameKind::Interrupt && call.interrupted.is_none() {
                    (call.interrupted, call.interrupt_depth) = (Some(stamp), call.depth);
                }
            }
            _ => {}
        }
        self.occasion(
            at,
            match kind {
                FrameKind::Syscall => Occasion::Syscall,
                FrameKind::Exception => Occasion::Exception,
                _ => Occasion::Interrupt,
            },
        );
        self.changed(at, before);
    }

    fn leave(&mut self, at: &At, user: bool) {
        let before = self.cpus[at.lane];
        let task = &mut self.tasks[at.task];
        let stamp = task.stamp(at);
        if let Some(call) = &mut task.call {
            if user || call.depth == call.interrupt_depth {
                if let Some(start) = call.interrupted.take() {
                    add(&mut call.parts.interrupts, start.until(stamp));
                }
                call.interrupt_depth = 0;
            }
            call.depth = call.depth.saturating_sub(1);
        }
        if user {
            self.cpus[at.lane].user(&mut task.saved);
        } else {
            self.cpus[at.lane].leave(&mut task.saved);
        }
        self.changed(at, before);
        if user {
            self.occasion(at, Occasion::User);
        }
    }

    fn body_begins(&mut self, at: &At, func: u32) {
        let task = &mut self.tasks[at.task];
        let stamp = task.stamp(at);
        if let Some(call) = &mut task.call
            && call.body.is_none()
        {
            call.body = Some(func);
            call.parts.entry = without(call.start.until(stamp), call.parts.interrupts);
        }
    }

    fn body_ends(&mut self, at: &At, func: u32) {
        let task = &mut self.tasks[at.task];
        let stamp = task.stamp(at);
        if let Some(call) = &mut task.call
            && call.body == Some(func)
        {
            call.body_end = Some((stamp, call.parts.interrupts));
        }
    }

    fn syscall_done(&mut self, at: &At) {
        let task = &mut self.tasks[at.task];
        let stamp = task.stamp(at);
        let parts = task.call.take().map_or_else(Parts::default, |mut call| {
            if let Some((end, until_then)) = call.body_end {
                let interrupts = without(call.parts.interrupts, until_then);
                call.parts.exit = without(end.until(stamp), interrupts);
            }
            call.parts
        });
        self.done.push_back(parts);
    }

    /// Returns the parts of the system call whose record comes next.
    pub fn parts(&mut self) -> Parts {
        self.done.pop_front().unwrap_or_default()
    }

    /// The CPU switches from one task to another.
    pub fn switch(&mut self, at: &At, to: usize) {
        let most = at.task.max(to);
        if most >= self.tasks.len() {
            self.tasks.resize_with(most + 1, Task::default);
        }
        self.tasks[at.task].off_since = Some(at.ns);
        let task = &mut self.tasks[to];
        if let Some(since) = task.off_since.take() {
            task.off_ns += at.ns.saturating_sub(since);
        }
        self.occasion(at, Occasion::Switch);
    }

    /// The CPU stood still until now, though it had work. That is no time of the task's, and in none of the intervals that are open
    /// in it or on the CPU.
    fn still(&mut self, at: &At, ns: u64) {
        self.tasks[at.task].off_ns += ns;
        for intervals in &mut self.intervals {
            for owner in [Scope::Cpu, Scope::Task] {
                intervals.pass_over(key(owner, at), ns);
            }
        }
    }

    /// The CPU executed code that is not traced. The state of interrupts and preemption is now unknown.
    pub fn off(&mut self, at: &At) {
        let before = std::mem::take(&mut self.cpus[at.lane]);
        self.cut[at.lane] = 0;
        if std::mem::take(&mut self.halted[at.lane]) {
            self.forget(at, &[Occasion::Halt, Occasion::Wake]);
        }
        if let Some(task) = self.tasks.get_mut(at.task) {
            task.saved = Saved::default();
        }
        self.changed(at, before);
    }

    /// Trace data of this CPU was lost while a task ran.
    pub fn lost(&mut self, at: &At) {
        self.cpus[at.lane] = Cpu::default();
        (self.halted[at.lane], self.cut[at.lane]) = (false, 0);
        if let Some(task) = self.tasks.get_mut(at.task) {
            task.saved = Saved::default();
            task.call = None;
        }
        (0..self.intervals.len()).for_each(|n| self.forget_one(at, n));
    }

    fn func(&mut self, func: u32, name_of: &dyn Fn(u32) -> String) -> FuncPlan {
        let plan = self.plan;
        *self.funcs.entry(func).or_insert_with(|| {
            let name = name_of(func);
            let mut found = FuncPlan { is_nmi: is_nmi(&name), ..FuncPlan::default() };
            for f in plan.funcs.iter().filter(|f| kprism_image::glob::glob(&f.glob, &name)) {
                let side = if f.at_begin { &mut found.begin } else { &mut found.end };
                side.from |= f.triggers.from;
                side.to |= f.triggers.to;
            }
            found
        })
    }

    fn occasion(&mut self, at: &At, occasion: Occasion) {
        self.fire(at, self.plan.occasions[occasion as usize]);
    }

    /// Ends, then begins, the intervals that a mark triggers.
    #[inline]
    fn fire(&mut self, at: &At, triggers: Triggers) {
        if triggers.is_empty() {
            return;
        }
        for n in numbers(triggers.from | triggers.to) {
            let owner = self.owner(n, at);
            if triggers.to >> n & 1 == 1 {
                // What an interrupt began may end in a task, and the other way round.
                let other = (self.plan.by_context >> n & 1 == 1).then_some(match owner {
                    Scope::Cpu => Scope::Task,
                    Scope::Task => Scope::Cpu,
                });
                let mut owners = [Some(owner), other].into_iter().flatten();
                if let Some(owner) = owners.find(|&owner| self.intervals[n].is_open(key(owner, at))) {
                    self.intervals[n].end(key(owner, at), &point(owner, at), at.task as u32, at.cpu);
                }
            }
            if triggers.from >> n & 1 == 1 {
                self.intervals[n].begin(key(owner, at), point(owner, at));
            }
        }
    }

    /// The CPU halts: what it waits is in none of the intervals that leave that out.
    fn halt(&mut self, at: &At) {
        let mut cut = 0;
        for n in 0..self.intervals.len() {
            let owner = self.owner(n, at);
            let was_open = self.intervals[n].halt(key(owner, at), &point(owner, at), at.task as u32, at.cpu);
            cut |= u64::from(was_open) << n;
        }
        self.cut[at.lane] = cut;
    }

    /// Owner of an interval that begins at the mark: the CPU or the task.
    #[inline]
    fn owner(&self, interval: usize, at: &At) -> Scope {
        let scope = self.plan.deltas[interval].scope.unwrap_or_default();
        let is_by_context = self.plan.by_context >> interval & 1 == 1;
        if is_by_context && self.cpus[at.lane].is_in_interrupt() { Scope::Cpu } else { scope }
    }

    /// Drops the open intervals that begin or end at one of these occasions.
    fn forget(&mut self, at: &At, occasions: &[Occasion]) {
        let triggers = occasions.iter().map(|&occasion| self.plan.occasions[occasion as usize]);
        for n in numbers(triggers.fold(0, |all, triggers| all | triggers.from | triggers.to)) {
            self.forget_one(at, n);
        }
    }

    /// Drops what is open of an interval on the CPU, or in its task.
    fn forget_one(&mut self, at: &At, n: usize) {
        let scope = self.plan.deltas[n].scope.unwrap_or_default();
        self.intervals[n].forget(key(scope, at));
        if self.plan.by_context >> n & 1 == 1 {
            self.intervals[n].forget(key(Scope::Cpu, at));
        }
    }

    /// Returns the intervals, and the executions of each counted pattern by node.
    pub fn finish(self) -> (Vec<Delta>, Vec<(&'a str, NodeCounts)>) {
        let measured = |(n, _): &(usize, _)| !self.plan.is_unmeasured(*n);
        let intervals = self.plan.deltas.iter().zip(self.intervals).enumerate().filter(measured);
        let deltas = intervals.map(|(_, (spec, intervals))| intervals.finish(spec)).collect();
        let mut by_pattern: HashMap<u32, NodeCounts> = HashMap::new();
        for ((pattern, node), count) in self.counts {
            by_pattern.entry(pattern).or_default().push((node, count));
        }
        by_pattern.values_mut().for_each(|counts| counts.sort_unstable());
        let of =
            |(text, n): &'a (String, u32)| (text.as_str(), by_pattern.get(n).cloned().unwrap_or_default());
        (deltas, self.plan.counts.iter().map(of).collect())
    }
}

/// The number of the CPU or the task among both.
#[inline]
fn key(owner: Scope, at: &At) -> usize {
    match owner {
        Scope::Cpu => 2 * at.lane,
        Scope::Task => 2 * at.task + 1,
    }
}

/// The mark, with the counters of the CPU or the task.
#[inline]
fn point(owner: Scope, at: &At) -> Point {
    let insns = match owner {
        Scope::Cpu => at.cpu_insns,
        Scope::Task => at.task_insns,
    };
    Point { ns: at.ns, still_ns: 0, insns, ip: at.ip, node: at.node }
}

/// The intervals of a set, one bit for each.
#[inline]
fn numbers(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let n = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(n)
    })
}

fn without(part: Part, less: Part) -> Part {
    Part { ns: part.ns.saturating_sub(less.ns), insns: part.insns.saturating_sub(less.insns) }
}

fn add(part: &mut Part, more: Part) {
    part.ns += more.ns;
    part.insns += more.insns;
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_image::symbols::kallsyms::Preemption;

    /// A CPU waits with preemption off. What it waits is idle, and not in an interval that holds others up.
    #[test]
    fn waiting_is_idle_and_nothing_else() {
        let known = Preemption { count: Some(0x3_2d08), ..Preemption::default() };
        let plan = Plan::default().with_preemption(known);
        let mut analyses = Analyses::new(&plan, 1);
        let interrupt = What::Enter { kind: FrameKind::Interrupt, func: 7 };
        for (ns, what) in [
            (0, What::Leave { user: true }),
            (10, What::Enter { kind: FrameKind::Syscall, func: 1 }),
            (100, What::Insn(Op::Preempt(1))),
            (200, What::Insn(Op::Halt)),
            (5000, interrupt),
            (5100, What::Leave { user: false }),
            (5150, What::Insn(Op::Halt)),
            (7150, interrupt),
            (7200, What::Leave { user: false }),
            (7250, What::Insn(Op::Preempt(-1))),
        ] {
            let at = At { ns, cpu_insns: ns / 10, task_insns: ns / 10, ..At::default() };
            analyses.mark(&at, what, &|_| "asm_sysvec_apic_timer_interrupt".into());
        }
        let (deltas, _) = analyses.finish();
        let of = |name: &str| {
            let delta = deltas.iter().find(|delta| delta.name == name).unwrap();
            let mut times: Vec<_> = delta.longest.iter().map(|i| (i.start_ns, i.ns)).collect();
            times.sort_unstable();
            (times, delta.halts)
        };
        assert_eq!(of("preempt"), (vec![(100, 100), (5000, 150), (7150, 100)], Some(2)));
        assert_eq!(of("idle"), (vec![(200, 4800), (5150, 2000)], None));
    }

    /// Two interrupts, of which each interrupts another task, and the end in a task that they wake.
    #[test]
    fn an_interval_that_an_interrupt_begins_is_the_cpus() {
        const HARDIRQ: i32 = 1 << 16;
        let names = |func: u32| ["", "first", "second", "entry"][func as usize].to_owned();
        let measured = |to: &str, scope: Option<Scope>| {
            let (from, to) = ("func:first".to_owned(), to.to_owned());
            let spec = crate::measure::delta::Spec { name: "x".into(), from, to, scope, nested: false };
            let plan = Plan::new(&[spec], &[], &|_| None).unwrap().with_preemption(Preemption::default());
            let mut analyses = Analyses::new(&plan, 1);
            let mut interrupt = |ns: u64, task: usize, func: u32| {
                let at = |ns: u64| At { ns, task, cpu_insns: ns, task_insns: 1, ..At::default() };
                for (more, what) in [
                    (0, What::Leave { user: true }),
                    (1, What::Enter { kind: FrameKind::Interrupt, func: 3 }),
                    (2, What::Insn(Op::Preempt(HARDIRQ))),
                    (3, What::Begin { func, body: false }),
                    (4, What::End { func }),
                    (5, What::Insn(Op::Preempt(-HARDIRQ))),
                    (6, What::Leave { user: true }),
                ] {
                    analyses.mark(&at(ns + more), what, &names);
                }
            };
            interrupt(100, 1, 1);
            interrupt(200, 2, 2);
            let woken = At { ns: 300, task: 4, cpu_insns: 300, ..At::default() };
            analyses.mark(&woken, What::Enter { kind: FrameKind::Syscall, func: 0 }, &names);
            let delta = analyses.finish().0.remove(0);
            (delta.ns.count, delta.ns.max, delta.insns.max)
        };
        assert_eq!(measured("func:second", None), (1, 100, 100));
        assert_eq!(measured("syscall", None), (1, 197, 197));
        assert_eq!(measured("func:second", Some(Scope::Task)), (0, 0, 0), "the user's word counts");
    }

    /// An interval of the user's that ends elsewhere has the time that passed.
    #[test]
    fn other_intervals_have_what_was_waited() {
        let spec = crate::measure::delta::Spec {
            name: "x".into(),
            from: "syscall".into(),
            to: "interrupt".into(),
            scope: Some(Scope::Cpu),
            nested: false,
        };
        let plan = Plan::new(&[spec], &[], &|_| None).unwrap();
        let mut analyses = Analyses::new(&plan, 1);
        for (ns, what) in [
            (10, What::Enter { kind: FrameKind::Syscall, func: 1 }),
            (200, What::Insn(Op::Halt)),
            (5000, What::Enter { kind: FrameKind::Interrupt, func: 7 }),
        ] {
            analyses.mark(&At { ns, ..At::default() }, what, &|_| String::new());
        }
        assert_eq!(analyses.finish().0[0].ns.max, 4990);
    }
}
