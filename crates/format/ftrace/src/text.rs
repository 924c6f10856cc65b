// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of `trace`, `trace_pipe` and the like: function graph under every option set, and events.
//!
//! In: the text. Out: events. Which columns there are is told by the header (`columns`) or, where there is none, as in
//! `trace_pipe`, by the lines themselves (`guess`); what a line says by its braces (`line`). What the text leaves out is made up for where that can be done without guessing:
//!
//! - without a column of tasks, the notes on task switches tell whose lines a CPU has;
//! - without a column of times, each task gets a clock of its own that runs while its functions do, so that durations
//!   and nesting are right; [`Text::timed`] is false, and times of different tasks do not compare.

mod columns;
mod guess;
mod line;

use std::collections::{BTreeMap, HashMap, VecDeque};

pub use columns::Columns;
use columns::Fields;
use line::Call;

use crate::decode::irq;
use crate::event::{Context, Data, Event, Exit, Func, UNKNOWN_PID};
use crate::fault::Faults;

/// How far into a text its header may begin.
const HEAD: usize = 4096;

/// Where the header begins.
fn header(bytes: &[u8]) -> Option<usize> {
    let head = &bytes[..bytes.len().min(HEAD)];
    let within = || memchr::memmem::find(head, b"\n# tracer:").map(|at| at + 1);
    head.starts_with(b"# tracer:").then_some(0).or_else(within)
}

/// Whether these bytes are a text of ftrace: it says what tracer it is of, or its lines are such.
#[must_use]
pub fn is_text(bytes: &[u8]) -> bool {
    header(bytes).is_some() || guess::columns(bytes).is_some()
}

/// The events of a text.
#[derive(Debug)]
pub struct Text<'a> {
    rest: &'a [u8],
    /// Lines so far.
    line: u64,
    columns: Columns,
    /// Thread that a CPU's lines belong to, as far as notes on switches tell.
    running: HashMap<u32, u32>,
    clocks: HashMap<(u32, u32), Clock>,
    ready: VecDeque<Event<'a>>,
    /// Names of threads; function graph cuts them to 7 characters.
    pub comms: BTreeMap<u32, String>,
    /// The tracer, as the header says.
    pub tracer: String,
    /// What was counted so far.
    pub counts: Counts,
    /// Where and when the last event was: the lines of a stack are behind it.
    last: Option<(u64, u32, u32, Context)>,
    /// There is no header: the columns were told by the lines.
    pub guessed: bool,
}

/// What a text held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events: a line of a whole call counts as two.
    pub events: u64,
    /// Events lost, as far as they were counted.
    pub lost: u64,
    /// Places where events were lost without being counted.
    pub lost_uncounted: u64,
    /// Calls that the tracer could not follow.
    pub overruns: u64,
    /// `entries-in-buffer` and `entries-written` of the header.
    pub entries: Option<(u64, u64)>,
    /// Lines that could not be read.
    pub faults: Faults,
}

/// A task's own time, in a text without any.
#[derive(Debug, Default)]
struct Clock {
    ns: u64,
    /// Ended calls whose caller has not ended: depth and duration.
    ended: Vec<(u32, u64)>,
}

impl Clock {
    /// A call of `depth` ended that took `duration`: when it began.
    fn end(&mut self, depth: u32, duration: u64) -> u64 {
        let mut inside = 0u64;
        while let Some((_, ns)) = self.ended.pop_if(|(d, _)| *d > depth) {
            inside = inside.saturating_add(ns);
        }
        self.ns = self.ns.saturating_add(duration.saturating_sub(inside));
        self.ended.push((depth, duration));
        if depth == 0 {
            self.ended.clear();
        }
        self.ns.saturating_sub(duration)
    }
}

impl<'a> Text<'a> {
    /// Reads a text.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Self {
        let columns = Columns::default();
        let mut this = Text {
            rest: text,
            line: 0,
            columns,
            running: HashMap::new(),
            clocks: HashMap::new(),
            ready: VecDeque::new(),
            comms: BTreeMap::new(),
            tracer: String::new(),
            counts: Counts::default(),
            last: None,
            guessed: false,
        };
        match header(text) {
            Some(at) => this.header(&text[at..]),
            None => this.columns = guess::columns(text).unwrap_or_default(),
        }
        this.guessed = header(text).is_none();
        this.first_tasks(text);
        this
    }

    /// Whether times are the trace's, not made up from durations.
    #[must_use]
    pub fn timed(&self) -> bool {
        self.columns.time || !self.columns.graph
    }

    /// The columns that there are.
    #[must_use]
    pub fn columns(&self) -> Columns {
        self.columns
    }

    /// The header tells the columns before the first line.
    fn header(&mut self, text: &[u8]) {
        for line in
            text.split(|&b| b == b'\n').take_while(|l| l.starts_with(b"#") || l.trim_ascii().is_empty())
        {
            let line = String::from_utf8_lossy(line);
            self.columns.learn(&line);
            if let Some(tracer) = line.strip_prefix("# tracer:") {
                self.tracer = tracer.trim().to_owned();
                self.columns.graph = self.tracer.starts_with("function_graph");
            }
            if let Some((_, counts)) = line.split_once("entries-in-buffer/entries-written:") {
                let counts = counts.split_whitespace().next().and_then(|c| c.split_once('/'));
                self.counts.entries = counts.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            }
        }
    }

    /// The first switch on a CPU tells whose the lines before it are.
    fn first_tasks(&mut self, text: &[u8]) {
        for at in memchr::memmem::find_iter(text, b"=>") {
            let begin = memchr::memrchr(b'\n', &text[..at]).map_or(0, |n| n + 1);
            let end = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |n| at + n);
            let line = std::str::from_utf8(&text[begin..end]).unwrap_or_default();
            if let Some(switch) = columns::switch(line, self.columns.cpu) {
                self.running.entry(switch.cpu).or_insert(switch.prev.0);
                self.comms.entry(switch.prev.0).or_insert_with(|| switch.prev.1.to_owned());
            }
        }
    }

    /// Reads a line.
    fn read(&mut self, line: &'a str) {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with('#') || bare.starts_with("----") {
            return;
        }
        if let Some((cpu, count)) = columns::lost(bare) {
            match count {
                Some(count) => self.counts.lost = self.counts.lost.saturating_add(count),
                None => self.counts.lost_uncounted += 1,
            }
            let ns = self.ready.back().map_or(0, |e| e.ns);
            return self.ready.push_back(Event {
                ns,
                cpu,
                pid: UNKNOWN_PID,
                context: Context::Task,
                data: Data::Lost { count },
            });
        }
        if let Some(count) = bare.strip_prefix("(Overruns: ").and_then(|r| r.strip_suffix(')')) {
            self.counts.overruns = self.counts.overruns.saturating_add(count.parse().unwrap_or(0));
            return;
        }
        if let Some(switch) = columns::switch(line, self.columns.cpu) {
            self.running.insert(switch.cpu, switch.next.0);
            self.comms.insert(switch.next.0, switch.next.1.to_owned());
            return;
        }
        let known = if self.columns.graph { self.graph(line) } else { self.event(line) };
        if known.is_none() {
            self.counts.faults.add(self.line, "a line of function graph, or TASK-PID [CPU] TIME: event");
        }
    }

    /// A line of function graph.
    fn graph(&mut self, line: &'a str) -> Option<()> {
        let Fields { ns, cpu, task, context, duration, call } = self.columns.split(line)?;
        let pid = match task {
            Some((pid, comm)) => {
                self.comms.entry(pid).or_insert_with(|| comm.to_owned());
                pid
            }
            None => self.running.get(&cpu).copied().unwrap_or(UNKNOWN_PID),
        };
        let timed = self.columns.time;
        let clock =
            self.clocks.entry((pid, if pid == 0 || pid == UNKNOWN_PID { cpu } else { 0 })).or_default();
        if timed {
            clock.ns = ns;
        }
        let mut push = |ns, data| self.ready.push_back(Event { ns, cpu, pid, context, data });
        match call {
            Call::Entry { name, depth } => {
                self.counts.events += 1;
                push(clock.ns, Data::Entry { func: Func::Name(name), depth });
            }
            Call::Leaf { name, depth } => {
                self.counts.events += 2;
                let (func, took) = (Func::Name(name), duration.unwrap_or(0));
                let begin = if timed { ns } else { clock.end(depth, took) };
                let end = begin.saturating_add(took);
                push(begin, Data::Entry { func, depth });
                let times = duration.map(|_| (begin, end));
                push(end, exit(Some(func), depth, times));
            }
            Call::Exit { name, depth } => {
                self.counts.events += 1;
                let times = match (timed, duration) {
                    (true, Some(took)) => Some((ns.saturating_sub(took), ns)),
                    (true, None) => None,
                    (false, took) => {
                        let begin = clock.end(depth, took.unwrap_or(0));
                        took.map(|took| (begin, begin.saturating_add(took)))
                    }
                };
                push(clock.ns, exit(name.map(Func::Name), depth, times));
            }
            Call::Event(text) => {
                self.counts.events += 1;
                push(clock.ns, event(text));
            }
            Call::IrqEnter => push(clock.ns, Data::IrqEnter),
            Call::IrqExit => push(clock.ns, Data::IrqExit),
        }
        Some(())
    }

    /// A line `TASK-PID [CPU] FLAGS TIME: event`.
    fn event(&mut self, line: &'a str) -> Option<()> {
        if let Some(call) = line.trim_start().strip_prefix("=> ")
            && let Some((ns, cpu, pid, context)) = self.last
        {
            self.ready.push_back(Event { ns, cpu, pid, context, data: Data::Stack(call.trim_end()) });
            return Some(());
        }
        let columns::Line { ns, cpu, task: (comm, pid), flags, text } = columns::event(line)?;
        self.comms.entry(pid).or_insert_with(|| comm.to_owned());
        self.counts.events += 1;
        let context = columns::context(flags.trim());
        self.last = Some((ns, cpu, pid, context));
        self.ready.push_back(Event { ns, cpu, pid, context, data: event(text) });
        Some(())
    }
}

fn exit<'a>(func: Option<Func<'a>>, depth: u32, times: Option<(u64, u64)>) -> Data<'a> {
    let (call_ns, ret_ns) = times.unzip();
    Data::Exit(Exit { func, depth, call_ns, ret_ns, overrun: 0 })
}

/// An event as text: task switches and interrupts are known, others stay text.
fn event(text: &str) -> Data<'_> {
    let text = text.trim();
    let (name, says) = text.split_once(": ").unwrap_or((text.trim_end_matches(':'), ""));
    if name == "sched_switch" {
        return line::switch(says).unwrap_or(Data::Text(text));
    }
    let of = ["irq", "irq_vectors"].iter().find_map(|system| {
        // Without its subsystem, an event is told by its name alone: only those of interrupt vectors.
        let vector = [
            "local_timer",
            "reschedule",
            "call_function",
            "call_function_single",
            "irq_work",
            "thermal_apic",
        ];
        let known = *system == "irq"
            || vector
                .iter()
                .any(|v| name.strip_prefix(v).is_some_and(|end| end == "_entry" || end == "_exit"));
        known.then(|| irq(system, name)).flatten()
    });
    match of {
        Some(true) => Data::IrqEnter,
        Some(false) => Data::IrqExit,
        None => Data::Text(text),
    }
}

impl<'a> Iterator for Text<'a> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.rest.is_empty() {
                return None;
            }
            let end = memchr::memchr(b'\n', self.rest).unwrap_or(self.rest.len());
            let line = &self.rest[..end];
            self.rest = self.rest.get(end + 1..).unwrap_or_default();
            self.line += 1;
            match std::str::from_utf8(line) {
                Ok(line) => self.read(line),
                Err(_) => self.counts.faults.add(self.line, "UTF-8"),
            }
        }
    }
}
