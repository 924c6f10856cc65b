// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joins the chunks of all CPUs: applies their spans, in order of time, to the stacks of their tasks.
//!
//! A span states what happens to the stack below it ([`Cause`]). The sideband states which task each switch entered.
//! The counts of a span's own nodes are added below the node at which the span starts. Frames that the span left open
//! go onto the task's stack, and the task's next span, on any CPU, continues from there.

use std::collections::{BTreeMap, HashMap};

use kprism_image::resolve::Resolve;

use crate::decode::event::{NO_FUNC, flag};
use crate::measure::analyses::{Analyses, At, NodeCounts};
use crate::measure::delta::Plan;
use crate::measure::mark::What;
use crate::measure::window::Window;
use crate::stack::chunk::{Cause, Chunk, Span, Tracing};
use crate::stack::frames::{Done, Frame, NO_RETURN, Now, Tree};
use crate::stack::guessed::Guessed;
use crate::stack::lane::Lane;
use crate::stack::parked::{Parked, Stack};
use crate::stack::rules::{Arrival, Forks};
use crate::stack::switches::{When, has_no_place, untold_task, used};
use kprism_profile::{Count, Delta, Ending, FrameKind, Func, Slice, Syscall, Task, Unended};

/// Numbers of functions that are looked up in a flat array. The resolver's are dense; others take a map.
const MAX_FUNCS: usize = 1 << 26;

/// State of one task.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    pub pid: u32,
    pub tgid: u32,
    pub comm: String,
    pub root: u32,
    pub stack: Vec<Frame>,
    pub insns: u64,
    pub cpu: u64,
    /// Time at which it last left a CPU, ns; 0 if it never did.
    pub left_ns: u64,
}

impl Thread {
    /// Its counters at time `ns`.
    fn now(&self, ns: u64) -> Now {
        Now { ns, insns: self.insns, cpu: self.cpu }
    }
}

/// The gap before a span that begins with the flow known again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gap {
    pub tracing: Tracing,
    /// True if the CPU was followed before.
    pub is_between: bool,
    /// Time until which the flow was known, ns.
    pub since: u64,
}

/// Result of stitching. The rest of the profile is counted elsewhere.
pub(crate) struct Stitched {
    pub funcs: Vec<Func>,
    pub tasks: Vec<Task>,
    pub tree: Tree,
    pub syscalls: Vec<Syscall>,
    pub slices: Vec<Slice>,
    pub deltas: Vec<Delta>,
    pub counts: Vec<Count>,
    /// What was guessed of tasks and stacks, by unit: [`kprism_profile::Totals::guessed`].
    pub guessed: BTreeMap<String, u64>,
    pub unended: Unended,
}

/// The input that a [`Stitcher`] needs next.
pub(crate) enum Need {
    /// The next chunk of this lane, or the information that there is none.
    Chunk(usize),
    /// None: all lanes are finished.
    Nothing,
}

/// Stitches chunks as they arrive.
pub(crate) struct Stitcher<'a, R> {
    resolver: &'a R,
    lanes: Vec<Lane<'a>>,
    /// A stitched chunk whose memory is reused. One is enough for one thread; chunks with many marks are large.
    spare: Option<Chunk>,
    end_ns: u64,
    /// Maps the resolver's ids to the profile's, which count up in order of appearance.
    func_ids: Vec<u32>,
    /// The same of numbers from [`MAX_FUNCS`] on.
    far_ids: HashMap<u32, u32>,
    funcs: Vec<Func>,
    pub(crate) threads: Vec<Thread>,
    /// Tasks by (pid, tgid, CPU for idle tasks).
    by_id: HashMap<(u32, u32, u16), usize>,
    tree: Tree,
    syscalls: Vec<Syscall>,
    slices: Vec<Slice>,
    slice_ns: u64,
    window: Option<Window>,
    analyses: Analyses<'a>,
    /// Position at which the current span begins.
    here: At,
    pub(crate) forks: Forks,
    pub(crate) parked: Parked,
    /// See [`Guessed`].
    untold: u64,
    unseen: u64,
    untimed: u64,
    shared: u64,
    unended: Unended,
    /// Scratch: the global node of each local one.
    map: Vec<u32>,
    /// Scratch: true for the local nodes whose global node is new.
    made: Vec<bool>,
}

impl<'a, R: Resolve> Stitcher<'a, R> {
    pub fn new(
        lanes: Vec<Lane<'a>>,
        resolver: &'a R,
        plan: &'a Plan,
        slice_ns: u64,
        window: Option<Window>,
    ) -> Self {
        let mut st = Self {
            resolver,
            lanes: Vec::new(),
            spare: None,
            end_ns: 0,
            func_ids: Vec::new(),
            far_ids: HashMap::new(),
            funcs: Vec::new(),
            threads: Vec::new(),
            by_id: HashMap::new(),
            tree: Tree::default(),
            syscalls: Vec::new(),
            slices: Vec::new(),
            slice_ns,
            window,
            analyses: Analyses::new(plan, lanes.len()),
            here: At::default(),
            forks: Forks::default(),
            parked: Parked::default(),
            untold: 0,
            unseen: 0,
            untimed: 0,
            shared: 0,
            unended: Unended::default(),
            map: Vec::new(),
            made: Vec::new(),
        };
        for mut lane in lanes {
            let (pid, tgid, comm) = lane.first.clone().unwrap_or_default();
            lane.task = st.thread(pid, tgid, &comm, lane.cpu);
            st.lanes.push(lane);
        }
        st
    }

    /// Supplies the chunk that [`Stitcher::advance`] asked for; `None` if the lane has no more.
    pub fn feed(&mut self, lane: usize, chunk: Option<Chunk>) {
        let lane = &mut self.lanes[lane];
        lane.over = chunk.is_none();
        lane.chunk = chunk;
        lane.span = 0;
    }

    /// Returns a chunk whose memory can be reused.
    pub fn spare(&mut self) -> Chunk {
        self.spare.take().unwrap_or_default()
    }

    /// Stitches span by span, the earliest of all lanes first; of equal times, the first lane's.
    pub fn advance(&mut self) -> Need {
        loop {
            let mut next: Option<(u64, usize)> = None;
            for i in 0..self.lanes.len() {
                let lane = &mut self.lanes[i];
                match lane.due() {
                    Some(due) if next.is_none_or(|(ns, _)| due < ns) => next = Some((due, i)),
                    Some(_) => {}
                    None if lane.over => {}
                    None => {
                        if let Some(chunk) = lane.chunk.take() {
                            self.end_ns = self.end_ns.max(chunk.end_ns);
                            self.shared += chunk.shared;
                            lane.pass(&chunk);
                            self.spare = Some(chunk);
                        }
                        return Need::Chunk(i);
                    }
                }
            }
            let Some((_, i)) = next else { return Need::Nothing };
            if let Some(chunk) = self.lanes[i].chunk.take() {
                let index = self.lanes[i].span;
                self.seek(i, &chunk.spans[index]);
                if let Some(switch) = self.lanes[i].unseen(&chunk.spans[index]) {
                    self.here.ns = switch.t;
                    let off = chunk.spans[index].off.unwrap_or(self.lanes[i].off);
                    self.unseen += u64::from(has_no_place(switch, off.reported));
                    let is_lost = chunk.spans[index].tracing.after(self.lanes[i].tracing) == Tracing::Lost;
                    // Both tasks ran while nothing was recorded: one until now, the other from now on.
                    let (left, at) = (self.lanes[i].task, switch.t);
                    self.unseen_switch(i);
                    if is_lost {
                        let Lane { cpu, task, .. } = self.lanes[i];
                        self.forget(left, off.ns, cpu);
                        self.forget(task, at, cpu);
                    }
                } else {
                    self.lanes[i].span += 1;
                    self.span(i, &chunk, index);
                }
                self.lanes[i].chunk = Some(chunk);
            }
        }
    }

    /// Ends the stitching and returns the result.
    pub fn finish(mut self) -> Stitched {
        self.close();
        let (deltas, by_node) = self.analyses.finish();
        let counts = counts(&by_node, &self.tree, &mut self.funcs);
        let guessed = Guessed {
            orphans: self.forks.orphans,
            borrowed: self.parked.borrowed,
            unsure: self.parked.unsure,
            untold: self.untold,
            untimed: self.untimed,
            shared: self.shared,
            unseen: self.unseen + self.lanes.iter().map(Lane::without_place).sum::<u64>(),
        };
        let task = |t: Thread| Task { pid: t.pid, tgid: t.tgid, comm: t.comm, root: t.root };
        Stitched {
            tasks: self.threads.into_iter().map(task).collect(),
            funcs: self.funcs,
            tree: self.tree,
            syscalls: self.syscalls,
            slices: self.slices,
            deltas,
            counts,
            guessed: guessed.units().map(|(unit, n)| (unit.to_owned(), n)).collect(),
            unended: self.unended,
        }
    }

    fn thread(&mut self, pid: u32, tgid: u32, comm: &str, cpu: u16) -> usize {
        // Every CPU has its own idle task, and all have pid 0.
        let key = (pid, tgid, if pid == 0 { cpu } else { 0 });
        let index = match self.by_id.get(&key) {
            Some(&index) => index,
            None => {
                let root = self.tree.add_root();
                self.threads.push(Thread { pid, tgid, root, ..Thread::default() });
                self.by_id.insert(key, self.threads.len() - 1);
                self.threads.len() - 1
            }
        };
        if !comm.is_empty() {
            self.threads[index].comm = comm.to_owned();
        }
        index
    }

    fn func(&mut self, id: u32) -> u32 {
        let next = self.funcs.len() as u32;
        let place = id as usize;
        let known = if place < MAX_FUNCS {
            if place >= self.func_ids.len() {
                self.func_ids.resize(place + 1, NO_FUNC);
            }
            &mut self.func_ids[place]
        } else {
            self.far_ids.entry(id).or_insert(NO_FUNC)
        };
        let mut own = *known;
        if own == NO_FUNC {
            own = next;
            *known = own;
            let info = self.resolver.describe(id);
            self.funcs.push(Func {
                name: info.name,
                module: info.module,
                start: info.start,
                kernel: info.kernel,
            });
        }
        own
    }

    /// Makes `span` the current span of a lane.
    fn seek(&mut self, lane: usize, span: &Span) {
        let Lane { cpu, task, insns: before, .. } = self.lanes[lane];
        self.here = At {
            lane,
            cpu,
            task,
            ns: span.start_ns,
            cpu_insns: before + span.insns,
            task_insns: self.threads[task].insns,
            ip: 0,
            node: self.threads[task].root,
        };
    }

    fn span(&mut self, lane: usize, chunk: &Chunk, index: usize) {
        let span = &chunk.spans[index];
        let next = chunk.spans.get(index + 1);
        let Lane { cpu, insns: before, tracing, off, .. } = self.lanes[lane];
        // Every chunk begins like a new trace. That is a gap only if tracing was off at the end of the chunk before.
        let tracing = span.tracing.after(tracing);
        match span.cause {
            Cause::Switch { after, before, .. } => {
                self.switch_at(lane, When { after, about: span.start_ns, before }, tracing);
            }
            Cause::Resume { .. } => match tracing {
                Tracing::Lost => {
                    self.analyses.lost(&self.here);
                    self.forget(self.lanes[lane].task, span.off.unwrap_or(off).ns.min(span.start_ns), cpu);
                }
                Tracing::NoCode => self.analyses.lost(&self.here),
                Tracing::Off => self.analyses.off(&self.here),
                Tracing::AsBefore | Tracing::AtPsb | Tracing::On => {}
            },
            _ => {}
        }
        let task = self.lanes[lane].task;
        self.here = At { task, task_insns: self.threads[task].insns, ..self.here };
        if span.func != NO_FUNC {
            let is_between = before + span.insns > 0;
            let gap = Gap { tracing, is_between, since: span.off.unwrap_or(off).ns };
            self.apply(task, span, gap, cpu);
        }
        let end = next.map_or(chunk.tree.nodes.len(), |n| n.root as usize);
        self.graft(task, span, chunk, end);
        let to = next.map_or((chunk.insns, chunk.cpu), |n| (n.insns, n.cpu));
        let base = self.threads[task].stack.len();
        // A chunk's counters and the task's differ by a constant.
        let (insns, cpu_ns) = (self.threads[task].insns, self.threads[task].cpu);
        let lists = (
            span.syscalls..next.map_or(chunk.syscalls.len(), |n| n.syscalls),
            span.slices..next.map_or(chunk.slices.len(), |n| n.slices),
        );
        let marks = span.marks..next.map_or(chunk.marks.len(), |n| n.marks);
        for mark in &chunk.marks[marks] {
            let at = At {
                ns: mark.ns,
                cpu_insns: before + mark.insns,
                task_insns: insns + (mark.insns - span.insns),
                ip: mark.ip,
                node: self.map[(mark.node - span.root) as usize],
                ..self.here
            };
            match mark.what {
                What::Tail { func, body } => self.begin(task, &at, func, body),
                what => self.mark_at(&at, what),
            }
        }
        let first = chunk.counts.partition_point(|&(node, ..)| node < span.root);
        for &(node, pattern, times) in chunk.counts[first..].iter().take_while(|c| (c.0 as usize) < end) {
            self.analyses.count(pattern, self.map[(node - span.root) as usize], times);
        }
        for done in &chunk.syscalls[lists.0] {
            let node = self.map[(done.frame.node - span.root) as usize];
            self.syscall(task, cpu, done, node);
        }
        for done in &chunk.slices[lists.1] {
            // What ends within a span was followed to its end.
            self.slice(task, cpu, done, base + done.depth, Ending::Seen);
        }
        for frame in &span.frames {
            let mut frame = *frame;
            frame.node = self.map[(frame.node - span.root) as usize];
            frame.home = self.map[(frame.home - span.root) as usize];
            frame.start_insns = insns + (frame.start_insns - span.insns);
            frame.start_cpu = cpu_ns + (frame.start_cpu - span.cpu);
            self.threads[task].stack.push(frame);
        }
        let thread = &mut self.threads[task];
        thread.insns += to.0 - span.insns;
        thread.cpu += to.1 - span.cpu;
    }

    /// The flow entered the task switch.
    fn switch_at(&mut self, lane: usize, when: When, tracing: Tracing) {
        let ns = when.about;
        let Lane { switches, next_switch, .. } = &self.lanes[lane];
        let all = &switches[(*next_switch).min(switches.len())..];
        let all = &all[..used(switches, *next_switch, when).min(all.len())];
        if let [unseen @ .., _] = all {
            self.unseen += unseen.len() as u64;
            for t in unseen.iter().map(|s| s.t).collect::<Vec<_>>() {
                self.here.ns = t.min(ns);
                self.unseen_switch(lane);
            }
            self.here.ns = ns;
            if matches!(tracing, Tracing::Lost | Tracing::NoCode) {
                self.unseen_switch(lane);
            } else {
                self.switch(lane);
            }
        } else {
            self.untold += 1;
            self.untold_switch(lane);
        }
    }

    /// Switches to the task that runs after an entry without a record.
    fn untold_switch(&mut self, lane: usize) {
        let Lane { cpu, task, next_switch, .. } = self.lanes[lane];
        let Some((pid, tgid, comm)) = untold_task(&self.lanes[lane].switches, next_switch) else { return };
        let next = self.thread(pid, tgid, comm, cpu);
        if next != task {
            self.threads[task].left_ns = self.here.ns;
            self.run_task(lane, next);
        }
    }

    /// The task runs on the lane's CPU from here on.
    fn run_task(&mut self, lane: usize, task: usize) {
        self.analyses.switch(&self.here, task);
        self.here = At { task, task_insns: self.threads[task].insns, ..self.here };
        self.lanes[lane].task = task;
    }

    /// The next switch happened while the flow was unknown. The state of the tasks and of the CPU is therefore unknown.
    fn unseen_switch(&mut self, lane: usize) {
        self.analyses.lost(&self.here);
        self.switch(lane);
        self.analyses.lost(&self.here);
    }

    /// Switches to the next task of the sideband.
    fn switch(&mut self, lane: usize) {
        let Lane { cpu, task, next_switch, .. } = self.lanes[lane];
        let Some(&record) = self.lanes[lane].switches.get(next_switch) else { return };
        self.threads[task].left_ns = self.here.ns;
        if !record.prev_comm.is_empty() {
            self.threads[task].comm = record.prev_comm.clone();
        }
        let task = self.thread(record.pid, record.tgid, &record.comm, cpu);
        self.lanes[lane].next_switch += 1;
        self.run_task(lane, task);
    }

    /// Adds a span's own nodes below the task's top frame.
    fn graft(&mut self, task: usize, span: &Span, chunk: &Chunk, end: usize) {
        let nodes = &chunk.tree.nodes[span.root as usize..end];
        if self.threads[task].stack.is_empty() && nodes.iter().any(|n| n.insns > 0 || n.calls > 0) {
            let func = span.func;
            if func != NO_FUNC {
                self.push(task, func, FrameKind::Resumed, NO_RETURN, span.start_ns, false);
            }
        }
        let thread = &self.threads[task];
        let top = thread.stack.last();
        let node = top.map_or(thread.root, |f| f.node);
        // If the base frame jumps, the new node is its sibling. Below a kernel entry it is a child, because the entry stays.
        let above = match top {
            Some(frame) if !frame.is_entry() => self.tree.nodes[node as usize].parent,
            _ => node,
        };
        self.map.clear();
        self.made.clear();
        self.made.extend([false, false]);
        for (i, node_in) in nodes.iter().enumerate() {
            let into = match i {
                0 => node,
                1 => above,
                _ => {
                    let parent = self.map[(node_in.parent - span.root) as usize];
                    let func = self.func(node_in.func);
                    // Children of a new node are new.
                    let (into, made) = if self.made[(node_in.parent - span.root) as usize] {
                        (self.tree.add_child(parent, func, node_in.kind), true)
                    } else {
                        self.tree.child_slow(parent, func, node_in.kind)
                    };
                    self.made.push(made);
                    into
                }
            };
            self.map.push(into);
            let sum = &mut self.tree.nodes[into as usize];
            sum.calls += node_in.calls;
            sum.insns += node_in.insns;
            sum.ns += node_in.ns;
        }
        if let Some((node, func)) = span.base {
            self.rebase(task, self.map[(node - span.root) as usize], func, span.start_ns);
        }
    }

    /// The frame at a span's base jumped to another function.
    fn rebase(&mut self, task: usize, node: u32, func: u32, now: u64) {
        match self.threads[task].stack.last_mut() {
            Some(top) if !top.is_entry() => (top.node, top.func) = (node, func),
            _ => {
                self.push(task, func, FrameKind::Tail, NO_RETURN, now, false);
                if let Some(top) = self.threads[task].stack.last_mut() {
                    top.node = node;
                }
            }
        }
    }

    /// Begins a call, which is counted if `counts`: it was not under way before the trace began, or in the parent of a
    /// fork.
    pub(crate) fn push(
        &mut self,
        task: usize,
        func: u32,
        kind: FrameKind,
        ret_ip: u64,
        now: u64,
        counts: bool,
    ) {
        let own = self.func(func);
        let kernel = self.funcs[own as usize].kernel;
        let thread = &mut self.threads[task];
        let parent = thread.stack.last().map_or(thread.root, |f| f.node);
        let node = self.tree.child(parent, own, kind);
        let counts = counts && self.window.is_none_or(|window| window.holds(now));
        self.tree.nodes[node as usize].calls += u64::from(counts);
        thread.stack.push(Frame::begin(node, func, kind, ret_ip, kernel, thread.now(now)));
    }

    /// The program leaves the task's stack. Its calls may go on later: the timeline has the part until here.
    pub(crate) fn leave(&mut self, task: usize, now: u64, cpu: u16) -> Stack {
        let thread = &mut self.threads[task];
        let frames = std::mem::take(&mut thread.stack);
        let (insns, cpu_ns, until) = (thread.insns, thread.cpu, thread.now(now));
        for (depth, frame) in frames.iter().enumerate().rev() {
            self.unended.add(Ending::Left);
            if now.saturating_sub(frame.start_ns) >= self.slice_ns {
                self.slice(task, cpu, &frame.end(depth, until), depth, Ending::Left);
            }
        }
        Stack { task, insns, cpu: cpu_ns, frames, at: None }
    }

    /// The task goes on with a stack that the program left, on which it or another task of the process ran. What ran since
    /// then is not of these calls: their times begin anew, for the next part on the timeline.
    pub(crate) fn enter(&mut self, task: usize, stack: Stack, now: u64) {
        let now = self.threads[task].now(now);
        for mut frame in stack.frames {
            if stack.task != task {
                let own = self.func(frame.func);
                let top = self.threads[task].stack.last();
                let parent = top.map_or(self.threads[task].root, |f| f.node);
                frame.node = self.tree.child(parent, own, frame.kind);
                (frame.home, frame.home_func) = (frame.node, frame.func);
            }
            (frame.start_ns, frame.start_insns, frame.start_cpu) = (now.ns, now.insns, now.cpu);
            frame.again = true;
            self.threads[task].stack.push(frame);
        }
    }

    /// The task ran while nothing was recorded, from `since` on: which of its calls ended then is not known, nor when. They are
    /// on the timeline until then, and nothing is measured of them.
    pub(crate) fn forget(&mut self, task: usize, since: u64, cpu: u16) {
        while let Some(frame) = self.threads[task].stack.pop() {
            self.unended.add(Ending::Untraced);
            let thread = &self.threads[task];
            let done = frame.end(thread.stack.len(), thread.now(since));
            if frame.is_entry() || since.saturating_sub(frame.start_ns) >= self.slice_ns {
                self.slice(task, cpu, &done, done.depth, Ending::Untraced);
            }
        }
        let tgid = self.threads[task].tgid;
        self.parked.forget(tgid);
    }

    pub(crate) fn pop(&mut self, task: usize, now: u64, cpu: u16, ending: Ending) {
        let thread = &mut self.threads[task];
        let Some(frame) = thread.stack.pop() else { return };
        let done = frame.end(thread.stack.len(), thread.now(now));
        self.unended.add(ending);
        for func in frame.ends.into_iter().rev().filter(|&f| f != NO_FUNC) {
            self.mark(What::End { func }, &frame);
        }
        if frame.kind == FrameKind::Syscall {
            self.untimed += u64::from(ending == Ending::Untraced);
            self.mark(What::SyscallDone, &frame);
            self.syscall(task, cpu, &done, frame.node);
        }
        if frame.is_entry() || now.saturating_sub(frame.start_ns) >= self.slice_ns {
            self.slice(task, cpu, &done, done.depth, ending);
        }
    }

    /// Passes on a mark at the start of the current span.
    fn mark(&mut self, what: What, frame: &Frame) {
        let at = At { ip: frame.ret_ip, node: frame.node, ..self.here };
        self.mark_at(&at, what);
    }

    fn mark_at(&mut self, at: &At, what: What) {
        let resolver = self.resolver;
        self.analyses.mark(at, what, &|id| resolver.describe(id).name);
    }

    /// Begins a function whose beginning and end are marks. It ends with the task's top frame.
    fn begin(&mut self, task: usize, at: &At, func: u32, body: bool) {
        let top = self.threads[task].stack.last_mut();
        if let Some(func) = top.and_then(|top| top.add_end(func)) {
            self.mark_at(at, What::End { func });
        }
        self.mark_at(at, What::Begin { func, body });
    }

    /// Handles the function just pushed: its beginning may be a mark.
    pub(crate) fn entered(&mut self, task: usize, arrival: &Arrival) {
        if let (Some(body), Some(top)) = (flag::begins(arrival.flags), self.threads[task].stack.last()) {
            let at = At { ip: arrival.ip, node: top.node, ..self.here };
            self.begin(task, &at, arrival.func, body);
        }
    }

    fn syscall(&mut self, task: usize, cpu: u16, done: &Done, node: u32) {
        let frame = &done.frame;
        let func = self.func(if frame.body == NO_FUNC { frame.func } else { frame.body });
        self.syscalls.push(Syscall {
            task: task as u32,
            cpu,
            func,
            start_ns: frame.start_ns,
            wall_ns: done.end_ns.saturating_sub(frame.start_ns),
            on_cpu_ns: done.cpu,
            insns: done.insns,
            node,
            // Of the call whose end was marked last (`What::SyscallDone`), which is this one.
            parts: self.analyses.parts(),
        });
    }

    fn slice(&mut self, task: usize, cpu: u16, done: &Done, depth: usize, ending: Ending) {
        let func = self.func(done.frame.func);
        self.slices.push(Slice {
            task: task as u32,
            cpu,
            func,
            depth: depth.min(usize::from(u16::MAX)) as u16,
            start_ns: done.frame.start_ns,
            // Across chunks time may step back: a TSC packet corrects an estimate made before it.
            end_ns: done.end_ns.max(done.frame.start_ns),
            insns: done.insns,
            kind: if done.frame.again { FrameKind::Resumed } else { done.frame.kind },
            ending: Some(ending),
        });
    }

    /// Time at which the task's open calls end, ns: the end of the recording, or when the task left the CPU for good
    /// (kernel/sched/core.c, `do_task_dead`). If the recording ends before that, the task left last before it began to die.
    fn last_ns(&self, task: usize) -> u64 {
        let thread = &self.threads[task];
        let own = |func: u32| {
            let own = self.func_ids.get(func as usize).or_else(|| self.far_ids.get(&func))?;
            self.funcs.get(*own as usize)
        };
        let is_last = |frame: &&Frame| own(frame.func).is_some_and(|f| f.name == "do_task_dead");
        match thread.stack.iter().find(is_last) {
            Some(frame) if thread.left_ns >= frame.start_ns => thread.left_ns,
            _ => self.end_ns,
        }
    }

    /// Ends the trace: long calls still open get slices that end with it. Open system calls get no record, because
    /// their end was not seen.
    fn close(&mut self) {
        for task in 0..self.threads.len() {
            let end = self.last_ns(task);
            while let Some(frame) = self.threads[task].stack.pop() {
                let thread = &self.threads[task];
                let done = frame.end(thread.stack.len(), thread.now(end));
                if end.saturating_sub(frame.start_ns) >= self.slice_ns && frame.kind != FrameKind::Resumed {
                    self.slice(task, 0, &done, done.depth, Ending::Open);
                }
            }
        }
        self.syscalls.sort_by_key(|s| (s.start_ns, s.cpu));
        self.slices.sort_by_key(|s| (s.start_ns, s.cpu, s.depth));
    }
}

/// Sums executions by function instead of by calling context. Without a context the function is unknown.
fn counts(by_node: &[(&str, NodeCounts)], tree: &Tree, funcs: &mut Vec<Func>) -> Vec<Count> {
    let mut counts: Vec<Count> = Vec::new();
    let mut unknown = None;
    for (pattern, by_node) in by_node {
        // Indices into `counts`.
        let mut known: HashMap<u32, usize> = HashMap::new();
        for &(node, count) in by_node {
            let node = &tree.nodes[node as usize];
            let func = match node.kind {
                FrameKind::Root => *unknown.get_or_insert_with(|| {
                    funcs.push(Func { name: "[unknown]".to_owned(), ..Func::default() });
                    funcs.len() as u32 - 1
                }),
                _ => node.func,
            };
            let place = *known.entry(func).or_insert_with(|| {
                counts.push(Count { pattern: (*pattern).to_owned(), func, count: 0 });
                counts.len() - 1
            });
            counts[place].count += count;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use kprism_image::resolve::{FuncInfo, FuncRef};

    use super::*;

    struct Numbered;

    impl Resolve for Numbered {
        fn function_at(&self, _: u64, ip: u64, _: u64) -> FuncRef {
            FuncRef { id: 0, entry: ip, known: true, start: ip, end: ip + 1 }
        }

        fn describe(&self, id: u32) -> FuncInfo {
            FuncInfo { name: format!("f{id}"), module: String::new(), start: 0, kernel: false }
        }
    }

    /// Numbers beyond the array have a function each, and take no memory in proportion to the number.
    #[test]
    fn functions_of_large_numbers_are_told_apart() {
        let plan = Plan::nothing();
        let mut stitcher = Stitcher::new(Vec::new(), &Numbered, &plan, 0, None);
        let far = MAX_FUNCS as u32;
        let ids = [3, far, far + 1, NO_FUNC - 1, far, 3];
        assert_eq!(ids.map(|id| stitcher.func(id)), [0, 1, 2, 3, 1, 0]);
        let names: Vec<&str> = stitcher.funcs.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["f3", "f67108864", "f67108865", "f4294967294"]);
        assert_eq!(stitcher.func_ids.len(), 4);
    }

    #[test]
    fn guesses_are_in_the_result() {
        let plan = Plan::nothing();
        let mut stitcher = Stitcher::new(Vec::new(), &Numbered, &plan, 0, None);
        (stitcher.forks.orphans, stitcher.parked.borrowed) = (2, 3);
        let guessed = stitcher.finish().guessed;
        assert_eq!(guessed["tasks whose callers are not known"], 2);
        assert_eq!(guessed["stacks whose times are another's"], 3);
    }
}
