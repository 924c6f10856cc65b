// SPDX-License-Identifier: MIT OR Apache-2.0
//! The graph of calls of a trace of durations, in order of time, in the form of function graph's own text.
//!
//! Input: ftrace's events as they come, the results of [`Collector`], and the calls whose entries are missing (all
//! calls of a trace that kept long calls only). Output as text: a line where a call begins and one where it ends, or
//! one for both if it called nothing. Output as JSON: one object for each call, when it ends. Task switches, interrupts
//! and losses appear where they occurred.
//!
//! A call's first line waits until it is known whether the call has callees. Later lines, also of other CPUs, wait
//! behind it. The number of waiting lines is bounded.

use std::collections::{HashMap, VecDeque};
use std::io::Write as _;

use kprism_durations::ftrace::Collector;
use kprism_durations::{CallEvent, Ended, TaskKey};
use kprism_flow::replay::Task;
use kprism_ftrace::show::Describe;
use kprism_ftrace::{Data, Event, UNKNOWN_PID};
use kprism_profile::Func;
use kprism_profile::units::printable;

use crate::flow::Options;
use crate::indent::write_indent;
use crate::json;
use crate::output::Output;
use crate::prefix::{Form, Prefix};

/// Maximum of lines that wait for a call to end.
const WINDOW: usize = 1 << 12;

/// Begin or end of a rebuilt call.
struct Mark {
    ns: u64,
    call: u32,
    begin: bool,
}

/// A line not written yet.
struct Line {
    text: Vec<u8>,
    rest: Rest,
}

/// The part after the first part of a line.
enum Rest {
    /// A call began and may end on this line. Its duration is then written at `at`, over blanks.
    Open { at: usize },
    /// None: the line is complete.
    Complete,
}

/// An open call.
struct Frame {
    depth: u32,
    /// Number of its line, if it is shown.
    line: Option<u64>,
}

/// Output state of a task.
#[derive(Default)]
struct Thread {
    stack: Vec<Frame>,
    /// Depth of the outermost call that the selection names.
    root: Option<u32>,
}

/// One CPU's prefix, and the task to which it belongs.
struct Lane {
    prefix: Prefix,
    /// The task of the prefix, and the collector's number of renamed threads at that time.
    key: Option<(TaskKey, u64)>,
}

/// Lists calls while events are received.
pub struct Lister<'w> {
    options: Options,
    levels: usize,
    form: Form,
    /// Functions by the collector's numbers; true if the selection names them.
    funcs: Vec<(Func, bool)>,
    /// Tasks with their names at the end of the run.
    tasks: HashMap<u32, (u32, String)>,
    rebuilt: Vec<(TaskKey, Ended)>,
    marks: std::vec::IntoIter<Mark>,
    threads: HashMap<TaskKey, Thread>,
    lanes: Vec<Lane>,
    log: Vec<CallEvent>,
    waiting: VecDeque<Line>,
    /// Number of the first waiting line.
    first: u64,
    spare: Vec<Vec<u8>>,
    duration: Vec<u8>,
    out: Output<'w>,
}

impl<'w> Lister<'w> {
    /// A lister for calls of these functions, numbered as in the collector, with at most `levels` of nesting. `tasks`
    /// are (thread, process, name); `rebuilt` are the calls whose entries are missing.
    pub fn new(
        options: Options,
        levels: usize,
        funcs: Vec<Func>,
        tasks: impl IntoIterator<Item = (u32, u32, String)>,
        rebuilt: Vec<(TaskKey, Ended)>,
        out: Output<'w>,
    ) -> Self {
        let safe = |func: Func| {
            let named = options.select.takes_func(&func.name);
            let (name, module) = (printable(&func.name).to_string(), printable(&func.module).to_string());
            (Func { name, module, ..func }, named)
        };
        Lister {
            form: if options.json { Form::Json } else { Form::Text },
            levels,
            funcs: funcs.into_iter().map(safe).collect(),
            tasks: tasks.into_iter().map(|(pid, tgid, comm)| (pid, (tgid, comm))).collect(),
            marks: marks(&rebuilt).into_iter(),
            rebuilt,
            threads: HashMap::new(),
            lanes: Vec::new(),
            log: Vec::new(),
            waiting: VecDeque::new(),
            first: 0,
            spare: Vec::new(),
            duration: Vec::new(),
            out,
            options,
        }
    }

    /// Handles an event after the collector did; the collector must keep its log. `describe` writes the text of events that
    /// are not functions'. Returns false once no more events are needed.
    pub fn event(
        &mut self,
        collector: &mut Collector<'_>,
        event: &Event<'_>,
        describe: Describe<'_>,
    ) -> bool {
        self.catch_up(event.ns, Some(collector));
        let mut log = std::mem::take(&mut self.log);
        collector.take_log(&mut log);
        for told in log.drain(..) {
            match told {
                CallEvent::Entered { key, func, depth, interrupt } => {
                    self.begin(Some(collector), (key, event.cpu, event.ns), func, depth, interrupt);
                }
                CallEvent::Ended(key, call) => self.end(Some(collector), (key, event.cpu, event.ns), &call),
                CallEvent::Unfinished { key, depth } => self.forget(key, depth),
            }
        }
        self.log = log;
        self.other(collector, event, describe);
        !self.out.is_done()
    }

    /// Writes the remaining lines.
    pub fn finish(mut self) -> Output<'w> {
        self.catch_up(u64::MAX, None);
        while !self.waiting.is_empty() {
            self.flush();
        }
        self.out
    }

    /// Adds rebuilt calls up to a time.
    fn catch_up(&mut self, ns: u64, collector: Option<&Collector<'_>>) {
        while self.marks.as_slice().first().is_some_and(|mark| mark.ns <= ns) && !self.out.is_done() {
            let Some(mark) = self.marks.next() else { return };
            let (key, call) = &self.rebuilt[mark.call as usize];
            let (key, call) = (*key, Ended { inner: Vec::new(), ..*call });
            let at = (key, call.cpu, mark.ns);
            match mark.begin {
                true => self.begin(collector, at, call.func, call.depth, call.interrupt),
                false => self.end(collector, at, &call),
            }
        }
    }

    /// Prepares a CPU's prefix for a task.
    fn lane(&mut self, collector: Option<&Collector<'_>>, key: TaskKey, cpu: u32) -> &mut Prefix {
        let index = (cpu as usize).min(usize::from(u16::MAX));
        let fields = &self.options.fields;
        while self.lanes.len() <= index {
            self.lanes.push(Lane { prefix: Prefix::new(self.form, fields), key: None });
        }
        let own = Some((key, collector.map_or(0, Collector::renamed)));
        if self.lanes[index].key != own {
            let pid = key.pid;
            let last = self.tasks.get(&pid);
            let known = collector.and_then(|c| c.comm(pid)).or(last.map(|(_, comm)| comm.as_str()));
            let comm = match pid {
                0 => format!("swapper/{cpu}"),
                UNKNOWN_PID => String::new(),
                _ => known.map_or_else(|| format!("<{pid}>"), str::to_owned),
            };
            let tgid = collector.map(|c| c.tgid(pid)).filter(|tgid| *tgid != pid);
            let tgid = tgid.or(last.map(|(tgid, _)| *tgid)).unwrap_or(pid);
            let pid = if pid == UNKNOWN_PID { 0 } else { pid };
            let task = Task { pid, tgid: if pid == 0 { 0 } else { tgid }, comm };
            let lane = &mut self.lanes[index];
            lane.prefix.set(index as u16, &task, fields, &self.options.select);
            lane.key = own;
        }
        &mut self.lanes[index].prefix
    }

    /// Returns the indentation of a task's call, if it is shown.
    fn indent(&mut self, key: TaskKey, func: u32, depth: u32) -> Option<usize> {
        let select = &self.options.select;
        let indent = if select.funcs.is_empty() {
            depth
        } else {
            let named = self.funcs.get(func as usize).is_some_and(|f| f.1);
            let root = &mut self.threads.entry(key).or_default().root;
            if root.is_none_or(|root| root > depth) {
                *root = named.then_some(depth);
            }
            if select.own && !named {
                return None;
            }
            depth - (*root)?
        };
        ((indent as usize) < self.levels).then_some(indent as usize)
    }

    fn begin(
        &mut self,
        collector: Option<&Collector<'_>>,
        (key, cpu, ns): (TaskKey, u32, u64),
        func: u32,
        depth: u32,
        interrupt: bool,
    ) {
        self.forget(key, depth);
        let indent = self.indent(key, func, depth);
        let taken = self.lane(collector, key, cpu).taken && self.options.select.takes_time(ns);
        let mut line = None;
        if let (Some(indent), true, Form::Text) = (indent, taken, self.form) {
            self.settle_parent(key);
            let mut text = self.spare.pop().unwrap_or_default();
            self.lane(collector, key, cpu).append(&mut text, ns);
            let at = text.len();
            text.extend_from_slice(BLANK.as_bytes());
            self.write_name(&mut text, indent, func, interrupt);
            line = Some(self.first + self.waiting.len() as u64);
            self.push(Line { text, rest: Rest::Open { at } });
        }
        self.threads.entry(key).or_default().stack.push(Frame { depth, line });
    }

    /// Removes open calls of this depth and deeper.
    fn forget(&mut self, key: TaskKey, depth: u32) {
        let Some(thread) = self.threads.get_mut(&key) else { return };
        let mut lines = Vec::new();
        while let Some(frame) = thread.stack.pop_if(|frame| frame.depth >= depth) {
            lines.extend(frame.line);
        }
        if thread.root.is_some_and(|root| root >= depth) {
            thread.root = None;
        }
        lines.into_iter().for_each(|line| self.settle(line));
    }

    /// The innermost open call of a task needs more than one line.
    fn settle_parent(&mut self, key: TaskKey) {
        let top = self.threads.get(&key).and_then(|thread| thread.stack.last()?.line);
        if let Some(line) = top {
            self.settle(line);
        }
    }

    /// Completes a line that waits for its call to end.
    fn settle(&mut self, number: u64) {
        let Some(index) = number.checked_sub(self.first) else { return };
        let Some(line) = self.waiting.get_mut(index as usize) else { return };
        if let Rest::Open { .. } = std::mem::replace(&mut line.rest, Rest::Complete) {
            line.text.extend_from_slice(b" {\n");
        }
    }

    fn end(&mut self, collector: Option<&Collector<'_>>, (key, cpu, ns): (TaskKey, u32, u64), call: &Ended) {
        self.forget(key, call.depth.saturating_add(1));
        let indent = self.indent(key, call.func, call.depth);
        let frame = self.threads.get_mut(&key).and_then(|thread| {
            let frame = thread.stack.pop_if(|frame| frame.depth == call.depth);
            if thread.root == Some(call.depth) {
                thread.root = None;
            }
            frame
        });
        let select = &self.options.select;
        let in_time = match self.form {
            Form::Text => select.takes_time(ns),
            // A whole call is selected if a part of it is in the range.
            Form::Json => call.end_ns >= select.from && select.to.is_none_or(|to| call.start_ns < to),
        };
        let taken = self.lane(collector, key, cpu).taken && in_time;
        let Some(indent) = indent.filter(|_| taken) else { return };
        if self.form == Form::Json {
            return self.json_end(collector, (key, cpu), call);
        }
        let waits = frame.and_then(|frame| frame.line?.checked_sub(self.first));
        let line = waits.and_then(|index| self.waiting.get_mut(index as usize));
        if let Some(line) = line
            && let Rest::Open { at } = line.rest
        {
            self.duration.clear();
            write_duration(&mut self.duration, call.ns());
            line.text.splice(at..at + BLANK.len(), self.duration.iter().copied());
            line.text.push(b';');
            write_remark(&mut line.text, call);
            line.rest = Rest::Complete;
        } else {
            let mut text = self.spare.pop().unwrap_or_default();
            self.lane(collector, key, cpu).append(&mut text, ns);
            write_duration(&mut text, call.ns());
            write_indent(&mut text, indent);
            let name = self.funcs.get(call.func as usize).map_or("", |f| f.0.name.as_str());
            let _ = write!(text, "}} /* {name} */");
            write_remark(&mut text, call);
            self.push(Line { text, rest: Rest::Complete });
        }
        self.flush_complete();
    }

    fn json_end(&mut self, collector: Option<&Collector<'_>>, (key, cpu): (TaskKey, u32), call: &Ended) {
        if self.out.is_done() {
            return;
        }
        let mut text = self.spare.pop().unwrap_or_default();
        self.lane(collector, key, cpu).append(&mut text, call.start_ns);
        text.extend_from_slice(b"\"symbol\":");
        if let Some((func, _)) = self.funcs.get(call.func as usize) {
            json::string(&mut text, &func.name);
            text.extend_from_slice(b",\"module\":");
            json::string(&mut text, &func.module);
        } else {
            text.extend_from_slice(b"null");
        }
        let kind = if call.interrupt { "interrupt" } else { "call" };
        let Ended { depth, self_ns, off_ns, irq_ns, gapped, .. } = call;
        let _ = writeln!(
            text,
            ",\"kind\":\"{kind}\",\"depth\":{depth},\"wall_ns\":{},\"self_ns\":{self_ns},\"off_cpu_ns\":{off_ns},\"interrupts_ns\":{irq_ns},\"gapped\":{gapped}}}",
            call.ns()
        );
        self.push(Line { text, rest: Rest::Complete });
        self.flush_complete();
    }

    /// Handles events that are not functions'.
    fn other(&mut self, collector: &Collector<'_>, event: &Event<'_>, describe: Describe<'_>) {
        let (kind, key) = match &event.data {
            Data::Entry { .. } | Data::Exit(_) => return,
            Data::Lost { .. } => ("lost", TaskKey::new(UNKNOWN_PID, event.cpu)),
            Data::Switch { prev_pid, .. } => ("switch", TaskKey::new(*prev_pid, event.cpu)),
            Data::IrqEnter => ("interrupt", TaskKey::new(event.pid, event.cpu)),
            Data::IrqExit => ("interrupt end", TaskKey::new(event.pid, event.cpu)),
            Data::Raw { .. } | Data::Text(_) | Data::Stack(_) => {
                ("event", TaskKey::new(event.pid, event.cpu))
            }
        };
        let select = &self.options.select;
        let inside = |pid| {
            let thread = self.threads.get(&TaskKey::new(pid, event.cpu));
            select.funcs.is_empty() || thread.is_some_and(|t| t.root.is_some())
        };
        let (inside, taken) = match &event.data {
            // The task to which they belonged is unknown.
            Data::Lost { .. } => (true, select.cpus.is_empty() || select.cpus.contains(&(event.cpu as u16))),
            Data::Switch { prev_pid, next_pid, .. } => {
                let inside = inside(*prev_pid) || inside(*next_pid);
                let next = self.lane(Some(collector), TaskKey::new(*next_pid, event.cpu), event.cpu).taken;
                (inside, self.lane(Some(collector), key, event.cpu).taken || next)
            }
            _ => (inside(key.pid), self.lane(Some(collector), key, event.cpu).taken),
        };
        if inside && taken && self.options.select.takes_time(event.ns) && !self.out.is_done() {
            let mut text = self.spare.pop().unwrap_or_default();
            self.lane(Some(collector), key, event.cpu).append(&mut text, event.ns);
            if self.write_event(&mut text, kind, event, describe) {
                self.settle_parent(key);
                self.push(Line { text, rest: Rest::Complete });
                self.flush_complete();
            }
        }
    }

    /// Writes an event's text. Returns false if there is none.
    fn write_event(&self, text: &mut Vec<u8>, kind: &str, event: &Event<'_>, describe: Describe<'_>) -> bool {
        let comm = |comm: &[u8]| String::from_utf8_lossy(comm).into_owned();
        if self.form == Form::Json {
            let _ = write!(text, "\"event\":\"{kind}\"");
            match &event.data {
                Data::Lost { count: Some(count) } => {
                    let _ = write!(text, ",\"count\":{count}");
                }
                Data::Switch { next_pid, next_comm, .. } => {
                    let _ = write!(text, ",\"next_pid\":{next_pid},\"next_comm\":");
                    json::string(text, &comm(next_comm));
                }
                Data::Raw { .. } | Data::Text(_) | Data::Stack(_) => {
                    let mut said = Vec::new();
                    if !describe(event, &mut said) {
                        return false;
                    }
                    text.extend_from_slice(b",\"text\":");
                    json::string(text, &String::from_utf8_lossy(&said));
                }
                _ => {}
            }
            text.extend_from_slice(b"}\n");
            return true;
        }
        text.extend_from_slice(BLANK.as_bytes());
        match &event.data {
            Data::Lost { count: Some(count) } => {
                let _ = write!(text, "--- {count} events lost ---");
            }
            Data::Lost { count: None } => text.extend_from_slice(b"--- events lost ---"),
            Data::Switch { prev_pid, prev_comm, next_pid, next_comm } => {
                let name = |pid: u32, name: &[u8]| match pid {
                    0 => format!("swapper/{}", event.cpu),
                    _ => printable(&comm(name)).to_string(),
                };
                let (prev, next) = (name(*prev_pid, prev_comm), name(*next_pid, next_comm));
                let _ = write!(text, "--- {prev}-{prev_pid} => {next}-{next_pid} ---");
            }
            Data::IrqEnter => text.extend_from_slice(b"==========> |"),
            Data::IrqExit => text.extend_from_slice(b"<========== |"),
            _ => {
                text.extend_from_slice(b"/* ");
                let mut said = Vec::new();
                if !describe(event, &mut said) {
                    return false;
                }
                let _ = write!(text, "{} */", printable(&String::from_utf8_lossy(&said)));
            }
        }
        text.push(b'\n');
        true
    }

    fn write_name(&self, text: &mut Vec<u8>, indent: usize, func: u32, interrupt: bool) {
        write_indent(text, indent);
        if let Some((func, _)) = self.funcs.get(func as usize) {
            text.extend_from_slice(func.name.as_bytes());
            text.extend_from_slice(b"()");
            if func.module != "[kernel]" {
                let _ = write!(text, " {}", func.module);
            }
        }
        if interrupt {
            text.extend_from_slice(b" (interrupt)");
        }
    }

    fn push(&mut self, line: Line) {
        self.waiting.push_back(line);
        if self.waiting.len() > WINDOW {
            self.flush();
        }
    }

    /// Writes the lines at the front that are complete.
    fn flush_complete(&mut self) {
        while self.waiting.front().is_some_and(|line| matches!(line.rest, Rest::Complete)) {
            self.flush();
        }
    }

    /// Writes the first waiting line.
    fn flush(&mut self) {
        self.settle(self.first);
        let Some(mut line) = self.waiting.pop_front() else { return };
        self.first += 1;
        if !self.out.is_done() {
            self.out.buffer().extend_from_slice(&line.text);
            self.out.end_line();
        }
        line.text.clear();
        self.spare.push(line.text);
    }
}

/// Replaces a duration, with the same width.
const BLANK: &str = "                   ";

/// Writes a duration with function graph's marks for those above 10 µs, 100 µs, 1 ms, 10 ms, 100 ms and 1 s.
fn write_duration(out: &mut Vec<u8>, ns: u64) {
    let mark = match ns {
        1_000_000_001.. => '$',
        100_000_001.. => '@',
        10_000_001.. => '*',
        1_000_001.. => '#',
        100_001.. => '!',
        10_001.. => '+',
        _ => ' ',
    };
    let _ = write!(out, "{mark} {:>8}.{:03} us  ", ns / 1000, ns % 1000);
}

/// Writes remarks on a call, and the line's end.
fn write_remark(out: &mut Vec<u8>, call: &Ended) {
    if call.gapped {
        out.extend_from_slice(b" /* events lost inside */");
    }
    out.push(b'\n');
}

/// Begins and ends of calls in order of time, correctly nested within each task.
fn marks(calls: &[(TaskKey, Ended)]) -> Vec<Mark> {
    let mut by_task: HashMap<TaskKey, Vec<u32>> = HashMap::new();
    let mut order = Vec::new();
    for (number, (key, _)) in (0u32..).zip(calls) {
        by_task.entry(*key).or_insert_with(|| {
            order.push(*key);
            Vec::new()
        });
        if let Some(own) = by_task.get_mut(key) {
            own.push(number);
        }
    }
    let mut marks = Vec::with_capacity(2 * calls.len());
    for key in order {
        let own = by_task.remove(&key).unwrap_or_default();
        // Callers come before callees. If times are rounded to microseconds, this order is more exact than they are.
        let mut callers: Vec<(&Ended, u64)> = Vec::new();
        let begin = |number: u32| {
            let call = &calls[number as usize].1;
            while callers.pop_if(|(top, _)| over(top, call)).is_some() {}
            let start_ns = call.start_ns.max(callers.last().map_or(0, |(_, ns)| *ns));
            callers.push((call, start_ns));
            (start_ns, number)
        };
        let mut own: Vec<(u64, u32)> = own.into_iter().map(begin).collect();
        own.sort_by_key(|(start_ns, _)| *start_ns);
        let (mut open, mut last): (Vec<u32>, u64) = (Vec::new(), 0);
        let mut mark = |ns: u64, call: u32, begin: bool| {
            last = last.max(ns);
            marks.push(Mark { ns: last, call, begin });
        };
        for (start_ns, number) in own {
            let call = &calls[number as usize].1;
            while let Some(top) = open.pop_if(|top| over(&calls[*top as usize].1, call)) {
                mark(calls[top as usize].1.end_ns.min(start_ns), top, false);
            }
            mark(start_ns, number, true);
            open.push(number);
        }
        while let Some(top) = open.pop() {
            mark(calls[top as usize].1.end_ns, top, false);
        }
    }
    marks.sort_by_key(|mark| mark.ns);
    marks
}

/// Returns true if a call has ended when another one begins.
fn over(call: &Ended, next: &Ended) -> bool {
    call.depth >= next.depth || call.end_ns < next.start_ns
}
