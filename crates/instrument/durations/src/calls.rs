// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds calls from entries and exits, task by task.
//!
//! Input: entries, exits, task switches, interrupts and losses, in order of time. Output: calls, passed to a [`Tree`]
//! as they end. Each task has its own stack, so calls stay right when tasks migrate or take turns.
//!
//! A call is passed on when it ends if all its callers are known, that is, if the stack begins at depth 0. Otherwise
//! (the buffer was overwritten and begins inside calls, or only long calls were kept, by their exits) it waits for the
//! exits of its callers. An exit that states its call's start adopts the calls that ended within.
//!
//! If `sched_switch` was traced, it alone determines when a task left its CPU. Later events of the task on its way out
//! do not bring it back. It is back with the switch that names it. If that was lost, it is back with its first event on
//! another CPU, or after another task's event.
//!
//! Impossible records are counted and skipped: an exit without a start, an entry at a depth that is in use (its exit
//! was lost), an end before its start (the clock jumped).

use foldhash::{HashMap, HashMapExt as _};
use kprism_ftrace::{Context, Exit};
use kprism_profile::Counts;

use crate::names::Names;
use crate::per_cpu::PerCpu;
use crate::tree::{Ended, Tree};

/// Identifies a task. All idle tasks have pid 0, so the CPU distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskKey {
    /// Thread id.
    pub pid: u32,
    /// CPU number, for idle tasks and unknown ones; otherwise 0.
    pub cpu: u32,
}

impl TaskKey {
    /// The key of the task that runs as `pid` on `cpu`.
    #[must_use]
    pub fn new(pid: u32, cpu: u32) -> Self {
        let one_per_cpu = pid == 0 || pid == kprism_ftrace::UNKNOWN_PID;
        TaskKey { pid, cpu: if one_per_cpu { cpu } else { 0 } }
    }
}

/// News of a call, reported as soon as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallEvent {
    /// The call was entered.
    Entered {
        /// Its task.
        key: TaskKey,
        /// Number of the function.
        func: u32,
        /// Number of functions below it on the stack.
        depth: u32,
        /// True if it begins an interrupt.
        interrupt: bool,
    },
    /// The call ended, and its entry was seen. Its callees were reported before.
    Ended(TaskKey, Ended),
    /// Its end is not known.
    Unfinished {
        /// Its task.
        key: TaskKey,
        /// Number of functions below it on the stack.
        depth: u32,
    },
}

/// Maximum of calls per task that wait for their callers.
const WAITING: usize = 1 << 16;

/// Maximum of ns between an entry's event and the time of entry that the exit states.
const SLACK_NS: u64 = 10_000;

#[derive(Debug)]
struct Frame {
    /// `None` for an interrupt known from an event.
    func: Option<u32>,
    depth: u32,
    start_ns: u64,
    interrupt: bool,
    /// True if it runs within an interrupt.
    in_irq: bool,
    context: Context,
    /// Total duration of its callees.
    called_ns: u64,
    off_ns: u64,
    irq_ns: u64,
    /// Its context, if all callers are known.
    node: Option<u32>,
    /// Ended callees that wait, if not all callers are known.
    waiting: Vec<Ended>,
    /// Number of losses of events before it began.
    losses_before: usize,
}

#[derive(Debug)]
struct Task {
    key: TaskKey,
    number: u32,
    root: u32,
    stack: Vec<Frame>,
    waiting: Vec<Waiting>,
    /// Waits for which there was no room: from the first one's begin to the last one's end, ns.
    missed: Option<(u64, u64)>,
    /// Time since which it is off the CPU, ns.
    out_ns: Option<u64>,
}

/// A task of which only switches were seen. If only long calls are kept, the first one's exit comes after the task
/// slept.
#[derive(Debug, Default)]
struct UnseenTask {
    out_ns: Option<u64>,
    offs: Vec<(u64, u64)>,
    /// As in [`Task`].
    missed: Option<(u64, u64)>,
}

impl UnseenTask {
    fn came(&mut self, ns: u64) {
        let Some(start_ns) = self.out_ns.take() else { return };
        if self.offs.len() >= WAITING {
            // The later ones are more likely to lie in the first call that is seen.
            self.offs.drain(..WAITING / 2).for_each(|wait| miss(&mut self.missed, wait));
        }
        self.offs.push((start_ns, ns));
    }
}

/// Notes a wait that is not kept.
fn miss(missed: &mut Option<(u64, u64)>, (start_ns, end_ns): (u64, u64)) {
    let (from, to) = missed.unwrap_or((start_ns, end_ns));
    *missed = Some((from.min(start_ns), to.max(end_ns)));
}

/// An entry that ended while no caller was open.
#[derive(Debug)]
enum Waiting {
    Call(Ended),
    Off { start_ns: u64, end_ns: u64 },
}

#[derive(Debug, Default, Clone, Copy)]
struct Cpu {
    current: Option<TaskKey>,
    last_ns: u64,
    going: Option<Going>,
}

/// A switch whose event came while the leaving task still runs. `sched_switch` comes some functions before `__schedule`
/// changes to the other stack. With every function traced, those functions are events too.
#[derive(Debug, Clone, Copy)]
struct Going {
    prev: TaskKey,
    /// Time of the switch's event, ns.
    told_ns: u64,
    /// Time of the last event of the leaving task on that CPU, ns.
    ns: u64,
}

/// The state of all tasks.
#[derive(Debug)]
pub struct Calls {
    /// Tasks in order of appearance.
    tasks: Vec<Task>,
    numbers: HashMap<TaskKey, usize>,
    /// The task looked up last: events of a task come in sequence.
    last: Option<(TaskKey, usize)>,
    strangers: HashMap<TaskKey, UnseenTask>,
    cpus: PerCpu<Cpu>,
    /// Sums by calling context.
    pub tree: Tree,
    /// Counters of calls, losses and skipped records.
    pub counts: Counts,
    /// If enabled: the news of calls whose entries were seen, since it was last taken.
    pub log: Option<Vec<CallEvent>>,
    /// Times after which events were lost, ns, in order of the losses. Frames look them up when they end: with many open calls, each
    /// loss would have to mark all of them.
    losses: Vec<u64>,
    /// True if times of different tasks are comparable.
    timed: bool,
    /// True if switches are known from events.
    told: bool,
}

impl Calls {
    /// Starts without tasks. `timed` is true if times of different tasks are comparable.
    #[must_use]
    pub fn new(timed: bool) -> Self {
        Calls {
            tasks: Vec::new(),
            numbers: HashMap::new(),
            last: None,
            strangers: HashMap::new(),
            cpus: PerCpu::default(),
            tree: Tree::default(),
            counts: Counts::default(),
            log: None,
            losses: Vec::new(),
            timed,
            told: false,
        }
    }

    /// Keys of the tasks, in order of their numbers, with the roots of their trees.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskKey, u32)> + '_ {
        self.tasks.iter().map(|task| (task.key, task.root))
    }

    /// The number of a task. A new task gets a new number.
    fn task(&mut self, key: TaskKey) -> usize {
        if let Some(number) = self.known(key) {
            return number;
        }
        let number = self.tasks.len();
        self.numbers.insert(key, number);
        let UnseenTask { out_ns, offs, missed } = self.strangers.remove(&key).unwrap_or_default();
        let waiting = offs.into_iter().map(|(start_ns, end_ns)| Waiting::Off { start_ns, end_ns }).collect();
        let root = self.tree.root();
        self.tasks.push(Task {
            key,
            number: number as u32,
            root,
            stack: Vec::new(),
            waiting,
            missed,
            out_ns,
        });
        number
    }

    fn known(&mut self, key: TaskKey) -> Option<usize> {
        if let Some((last, number)) = self.last
            && last == key
        {
            return Some(number);
        }
        let number = *self.numbers.get(&key)?;
        self.last = Some((key, number));
        Some(number)
    }

    /// The task runs on this CPU at this time. If another task ran there last, there was a switch in between.
    ///
    /// `began` is the start of the call that ends now, if one does.
    fn runs(&mut self, key: TaskKey, cpu: u32, ns: u64, began: Option<u64>) {
        let state = self.cpus.entry(cpu, Cpu::default);
        state.last_ns = ns;
        if let Some(going) = &mut state.going {
            // Calls that were open when the task left can end only when it is back.
            let back = began.is_some_and(|began| began < going.told_ns);
            if going.prev == key && !back {
                going.ns = ns;
                return self.leave(key, ns);
            }
            self.gone(cpu);
        }
        let state = self.cpus.entry(cpu, Cpu::default);
        match state.current {
            Some(current) if current == key => {}
            other => {
                state.current = Some(key);
                if let Some(other) = other
                    && !self.told
                {
                    self.leave(other, ns);
                }
                self.come(key, ns);
            }
        }
    }

    /// The task that left a CPU does nothing more there. The next task has run there since.
    fn gone(&mut self, cpu: u32) {
        let Some(state) = self.cpus.get_mut(cpu) else { return };
        if let (Some(going), Some(next)) = (state.going.take(), state.current) {
            self.come(next, going.ns);
        }
    }

    fn leave(&mut self, key: TaskKey, ns: u64) {
        if !self.timed {
            return;
        }
        match self.known(key) {
            Some(number) => self.tasks[number].out_ns = Some(ns),
            None if self.told => self.strangers.entry(key).or_default().out_ns = Some(ns),
            None => {}
        }
    }

    fn come(&mut self, key: TaskKey, ns: u64) {
        let Some(number) = self.known(key) else {
            if let Some(stranger) = self.strangers.get_mut(&key) {
                stranger.came(ns);
            }
            return;
        };
        let task = &mut self.tasks[number];
        let Some(start_ns) = task.out_ns.take() else { return };
        match task.stack.last_mut() {
            Some(top) => top.off_ns = top.off_ns.saturating_add(ns.saturating_sub(start_ns)),
            // If only long calls are kept, a task's next event comes long after it is back.
            None if self.told && task.waiting.len() < WAITING => {
                task.waiting.push(Waiting::Off { start_ns, end_ns: ns })
            }
            None if self.told => miss(&mut task.missed, (start_ns, ns)),
            None => {}
        }
    }

    /// Handles the event of a task switch.
    pub fn switch(&mut self, cpu: u32, ns: u64, prev: TaskKey, next: TaskKey) {
        self.told = true;
        self.gone(cpu);
        *self.cpus.entry(cpu, Cpu::default) =
            Cpu { current: Some(next), last_ns: ns, going: Some(Going { prev, told_ns: ns, ns }) };
        self.leave(prev, ns);
    }

    /// Handles the entry of a function.
    pub fn entry(&mut self, at: At, func: u32, depth: u32, names: &Names<'_>) {
        let At { key, cpu, ns, context } = at;
        self.runs(key, cpu, ns, None);
        let number = self.task(key);
        while self.tasks[number].stack.last().is_some_and(|top| top.func.is_some() && top.depth >= depth) {
            self.give_up(number);
        }
        let Calls { tasks, tree, counts, log, losses, .. } = self;
        let task = &mut tasks[number];
        if depth == 0 && !task.waiting.is_empty() {
            counts.uprooted += settle(task, tree);
        }
        let parent = task.stack.last();
        let outer = parent.map_or(Context::Task, |p| p.context);
        let in_irq = parent.is_some_and(|p| p.in_irq);
        let interrupt = rank(context) > rank(outer)
            || parent.is_some_and(|p| p.func.is_none() && p.interrupt)
            || (!in_irq && names.role(func).interrupt);
        let caller = match parent {
            None if depth == 0 => Some(task.root),
            None => None,
            Some(parent) => parent.node,
        };
        let node = caller.map(|caller| tree.child(caller, func, interrupt));
        if let Some(log) = log {
            log.push(CallEvent::Entered { key, func, depth, interrupt });
        }
        task.stack.push(Frame {
            func: Some(func),
            depth,
            start_ns: ns,
            interrupt,
            in_irq: in_irq || interrupt,
            context,
            called_ns: 0,
            off_ns: 0,
            irq_ns: 0,
            node,
            waiting: Vec::new(),
            losses_before: losses.len(),
        });
    }

    /// Removes the top frame, whose end is unknown. Its callees go to its caller.
    fn give_up(&mut self, number: usize) {
        let Calls { tasks, tree, counts, log, .. } = self;
        let task = &mut tasks[number];
        let Some(frame) = task.stack.pop() else { return };
        if let Some(func) = frame.func {
            counts.unfinished += 1;
            tree.unfinished(func);
            if let Some(log) = log {
                log.push(CallEvent::Unfinished { key: task.key, depth: frame.depth });
            }
        }
        match task.stack.last_mut() {
            Some(parent) => {
                parent.called_ns = parent.called_ns.saturating_add(frame.called_ns);
                parent.off_ns = parent.off_ns.saturating_add(frame.off_ns);
                parent.irq_ns = parent.irq_ns.saturating_add(frame.irq_ns);
                parent.waiting.extend(frame.waiting);
            }
            None => task.waiting.extend(frame.waiting.into_iter().map(Waiting::Call)),
        }
    }

    /// The start of the call that an exit ends, as far as it shows which task runs. The function that passes a
    /// tracepoint to its listeners is open at each event.
    fn began(&mut self, key: TaskKey, exit: &Exit<'_>, func: Option<u32>, names: &Names<'_>) -> Option<u64> {
        let number = self.known(key);
        let frames = number.map_or(&[][..], |number| &self.tasks[number].stack);
        let frame = frames.iter().rfind(|f| f.func.is_some() && f.depth <= exit.depth);
        let frame = frame.filter(|f| f.depth == exit.depth);
        let func = func.or(frame.and_then(|f| f.func));
        let tells = func.is_some_and(|func| !names.role(func).tracepoint);
        frame.map(|f| f.start_ns).or(exit.call_ns).filter(|_| tells)
    }

    /// Handles the exit of a function. `func` is given unless the source does not name it.
    pub fn exit(
        &mut self,
        at: At,
        exit: &Exit<'_>,
        func: Option<u32>,
        inside: Option<Inside>,
        names: &Names<'_>,
    ) {
        let At { key, cpu, ns, context } = at;
        let began = self.began(key, exit, func, names);
        self.runs(key, cpu, ns, began);
        let number = self.task(key);
        let end_ns = exit.ret_ns.unwrap_or(ns);
        while let Some(top) = self.tasks[number].stack.last() {
            let is_event = top.func.is_none();
            if !is_event && top.depth < exit.depth {
                break;
            }
            let same = !is_event && top.depth == exit.depth && (func.is_none() || func == top.func);
            // It is another call of the same function if it began after events were lost.
            let later = |gap: u64, call: u64| call > gap.max(top.start_ns.saturating_add(SLACK_NS));
            let gap = self.losses.get(top.losses_before).copied();
            let other = gap.zip(exit.call_ns).is_some_and(|(gap, call)| later(gap, call));
            if same && !other {
                let start_ns = exit.call_ns.unwrap_or(top.start_ns);
                return self.close(number, cpu, start_ns, end_ns, names);
            }
            self.give_up(number);
        }
        let (Some(func), Some(start_ns)) = (func, exit.call_ns) else {
            self.counts.orphans += 1;
            return;
        };
        self.rebuild(number, cpu, (start_ns, end_ns), (func, exit.depth, context), inside, names);
    }

    /// Ends the top frame.
    fn close(&mut self, number: usize, cpu: u32, start_ns: u64, end_ns: u64, names: &Names<'_>) {
        let Calls { tasks, tree, counts, timed, log, losses, .. } = self;
        let task = &mut tasks[number];
        let Some(frame) = task.stack.pop() else { return };
        let Some(func) = frame.func else { return };
        let end_ns = if end_ns < start_ns {
            counts.clock_jumps += 1;
            start_ns
        } else {
            end_ns
        };
        let mut call = Ended {
            func,
            interrupt: frame.interrupt,
            cpu,
            depth: frame.depth,
            start_ns,
            end_ns,
            self_ns: 0,
            off_ns: frame.off_ns,
            off_below_ns: 0,
            irq_ns: frame.irq_ns,
            gapped: losses.len() > frame.losses_before,
            rebuilt: false,
            inner: frame.waiting,
        };
        split(&mut call, frame.called_ns, !*timed && names.role(func).schedules, counts);
        counts.calls += 1;
        let ns = call.ns();
        if let Some(log) = log {
            log.push(CallEvent::Ended(task.key, Ended { inner: Vec::new(), ..call }));
        }
        match frame.node {
            Some(node) => {
                let inner = std::mem::take(&mut call.inner);
                tree.end(node, task.number, &call);
                tree.end_all(node, task.number, inner);
            }
            None => match task.stack.last_mut() {
                Some(parent) => parent.waiting.push(call),
                None => task.waiting.push(Waiting::Call(call)),
            },
        }
        if let Some(parent) = task.stack.last_mut() {
            parent.called_ns = parent.called_ns.saturating_add(ns);
        }
        bound(task, tree, counts);
    }

    /// Builds a call of which only the exit was seen. Its callees are the calls that ended since it began.
    fn rebuild(
        &mut self,
        number: usize,
        cpu: u32,
        (start_ns, end_ns): (u64, u64),
        (func, depth, context): (u32, u32, Context),
        inside: Option<Inside>,
        names: &Names<'_>,
    ) {
        let Calls { tasks, tree, counts, told, .. } = self;
        let task = &mut tasks[number];
        counts.calls += 1;
        counts.rebuilt += 1;
        let end_ns = if end_ns < start_ns {
            counts.clock_jumps += 1;
            start_ns
        } else {
            end_ns
        };
        let mut call = Ended { func, cpu, depth, start_ns, end_ns, rebuilt: true, ..Ended::default() };
        let mut called = 0u64;
        let mut adopt = |call: &mut Ended, child: Ended| {
            called = called.saturating_add(child.ns());
            let off_ns = child.off_ns.saturating_add(child.off_below_ns);
            call.off_below_ns = call.off_below_ns.saturating_add(off_ns);
            call.inner.push(child);
        };
        // The middle is compared: times of a text are rounded down to microseconds, so a call may seem to begin before
        // its caller.
        let middle = |from: u64, to: u64| from + to.saturating_sub(from) / 2;
        let within = |child: &Ended| child.depth > depth && middle(child.start_ns, child.end_ns) >= start_ns;
        match task.stack.last_mut() {
            Some(parent) => {
                while let Some(child) = parent.waiting.pop_if(|child| within(child)) {
                    parent.called_ns = parent.called_ns.saturating_sub(child.ns());
                    adopt(&mut call, child);
                }
            }
            None => {
                // The innermost call that was seen holds them.
                let missed = task.missed.take_if(|(from, to)| *from < end_ns && *to > start_ns);
                counts.waits_forgotten += u64::from(missed.is_some());
                let is_within = |w: &mut Waiting| match w {
                    Waiting::Call(child) => within(child),
                    Waiting::Off { start_ns: from, end_ns: to } => middle(*from, *to) >= start_ns,
                };
                while let Some(waiting) = task.waiting.pop_if(is_within) {
                    match waiting {
                        Waiting::Call(child) => adopt(&mut call, child),
                        Waiting::Off { start_ns, end_ns } => {
                            call.off_ns = call.off_ns.saturating_add(end_ns.saturating_sub(start_ns));
                        }
                    }
                }
            }
        }
        call.inner.reverse();
        let role = names.role(func);
        // Callees in an interrupt are known by their context. The outermost of them began the interrupt.
        if context == Context::Task {
            call.inner.iter_mut().for_each(|child| child.interrupt |= names.role(child.func).interrupt);
        }
        // There is no event for a switch before the first event of the trace.
        let waits = inside.is_none() && role.schedules && (!*told || call.off_ns == 0);
        if let Some(inside) = inside {
            // Callees that were not kept: their time on a CPU is in `inside`, and their time off it in the call's own.
            call.off_ns = inside.off_ns.saturating_sub(call.off_below_ns);
            called = called.max(inside.called_ns.saturating_add(call.off_below_ns));
        }
        split(&mut call, called, waits, counts);
        let ns = call.ns();
        match task.stack.last_mut() {
            None if depth == 0 => {
                // The waiting calls began before this one, so their callers will not come.
                counts.uprooted += settle(task, tree);
                call.interrupt = context != Context::Task || role.interrupt;
                tree.end_all(task.root, task.number, vec![call]);
            }
            None => task.waiting.push(Waiting::Call(call)),
            Some(parent) => {
                parent.called_ns = parent.called_ns.saturating_add(ns);
                match parent.node {
                    Some(node) => {
                        // Its callees were already reported as its caller's.
                        call.gapped = true;
                        tree.end_all(node, task.number, vec![call]);
                    }
                    None => parent.waiting.push(call),
                }
            }
        }
        bound(task, tree, counts);
    }

    /// Handles the event that an interrupt's handler begins.
    pub fn irq_enter(&mut self, at: At) {
        let At { key, cpu, ns, context } = at;
        self.runs(key, cpu, ns, None);
        let Some(number) = self.known(key) else { return };
        let task = &mut self.tasks[number];
        let Some(top) = task.stack.last() else { return };
        task.stack.push(Frame {
            func: None,
            depth: top.depth,
            start_ns: ns,
            // If the functions already show the interrupt, the event adds nothing.
            interrupt: !top.in_irq,
            in_irq: true,
            context: if rank(context) > rank(top.context) { context } else { top.context },
            called_ns: 0,
            off_ns: 0,
            irq_ns: 0,
            node: top.node,
            waiting: Vec::new(),
            losses_before: self.losses.len(),
        });
    }

    /// Handles the event that an interrupt's handler ends.
    pub fn irq_exit(&mut self, at: At) {
        let At { key, cpu, ns, .. } = at;
        self.runs(key, cpu, ns, None);
        let Some(number) = self.known(key) else { return };
        let Some(place) = self.tasks[number].stack.iter().rposition(|f| f.func.is_none()) else { return };
        while self.tasks[number].stack.len() > place + 1 {
            self.give_up(number);
        }
        let task = &mut self.tasks[number];
        let (Some(frame), Some(parent)) = (task.stack.pop(), task.stack.last_mut()) else { return };
        if frame.interrupt {
            let own = ns.saturating_sub(frame.start_ns).saturating_sub(frame.called_ns);
            parent.irq_ns = parent.irq_ns.saturating_add(own);
        }
        parent.called_ns = parent.called_ns.saturating_add(frame.called_ns);
        parent.off_ns = parent.off_ns.saturating_add(frame.off_ns);
        parent.irq_ns = parent.irq_ns.saturating_add(frame.irq_ns);
        parent.waiting.extend(frame.waiting);
    }

    /// Handles the loss of a CPU's events before this time.
    pub fn lost(&mut self, cpu: u32, count: Option<u64>) {
        match count {
            Some(count) => self.counts.lost = self.counts.lost.saturating_add(count),
            None => self.counts.lost_uncounted += 1,
        }
        self.gone(cpu);
        let state = self.cpus.entry(cpu, Cpu::default);
        state.current = None;
        self.losses.push(state.last_ns);
    }

    /// Ends the trace. Calls that are still open are unfinished.
    pub fn finish(&mut self) {
        let cpus: Vec<u32> = self.cpus.cpus().collect();
        cpus.into_iter().for_each(|cpu| self.gone(cpu));
        for number in 0..self.tasks.len() {
            while !self.tasks[number].stack.is_empty() {
                self.give_up(number);
            }
            let Calls { tasks, tree, counts, .. } = self;
            counts.uprooted += settle(&mut tasks[number], tree);
        }
    }
}

/// A recorder's totals over all callees of a call, kept or not.
#[derive(Debug, Clone, Copy)]
pub struct Inside {
    /// Time on a CPU, ns.
    pub called_ns: u64,
    /// Time off the CPU, ns, including the call's own.
    pub off_ns: u64,
}

/// Position of an event: task, CPU, time and context.
#[derive(Debug, Clone, Copy)]
pub struct At {
    /// The task.
    pub key: TaskKey,
    /// CPU number.
    pub cpu: u32,
    /// Time, ns.
    pub ns: u64,
    /// The context that interrupted the task, if any.
    pub context: Context,
}

fn rank(context: Context) -> u8 {
    match context {
        Context::Task => 0,
        Context::Softirq => 1,
        Context::Hardirq => 2,
    }
}

/// Splits a call's time: the rest after its callees is its own. If the function only waits, its own time was off the
/// CPU.
fn split(call: &mut Ended, called_ns: u64, waits: bool, counts: &mut Counts) {
    let ns = call.ns();
    let called = called_ns.min(ns);
    call.irq_ns = call.irq_ns.min(ns - called);
    call.off_ns = call.off_ns.min(ns - called - call.irq_ns);
    counts.overfull += u64::from(called_ns > ns);
    call.self_ns = ns - called - call.irq_ns - call.off_ns;
    if waits {
        call.off_ns += std::mem::take(&mut call.self_ns);
    }
}

/// Reports all waiting calls as outermost ones, because their callers will not come.
fn settle(task: &mut Task, tree: &mut Tree) -> u64 {
    let calls: Vec<Ended> = task
        .waiting
        .drain(..)
        .filter_map(|w| match w {
            Waiting::Call(call) => Some(call),
            Waiting::Off { .. } => None,
        })
        .collect();
    let count = calls.len() as u64;
    tree.end_all(task.root, task.number, calls);
    count
}

/// Limits the number of waiting calls.
fn bound(task: &mut Task, tree: &mut Tree, counts: &mut Counts) {
    if task.waiting.len() > WAITING || task.stack.last().is_some_and(|f| f.waiting.len() > WAITING) {
        // Their call may be yet to come.
        for wait in &task.waiting {
            if let Waiting::Off { start_ns, end_ns } = wait {
                miss(&mut task.missed, (*start_ns, *end_ns));
            }
        }
        counts.uprooted += settle(task, tree);
        let mut caller = task.root;
        for frame in &mut task.stack {
            let node = match (frame.node, frame.func) {
                (Some(node), _) => node,
                (None, Some(func)) => tree.child(caller, func, frame.interrupt),
                (None, None) => caller,
            };
            frame.node = Some(node);
            tree.end_all(node, task.number, std::mem::take(&mut frame.waiting));
            caller = node;
        }
    }
}
