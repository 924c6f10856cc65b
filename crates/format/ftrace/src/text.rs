// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the text of `trace`, `trace_pipe` and similar files: function graph with any options, and events.
//!
//! Input: the text. Output: events. The header defines the columns (`columns`). Without a header, as in `trace_pipe`,
//! they are detected from the lines (`guess`). The braces of a line show whether it is an entry, an exit or both
//! (`line`). Missing data is reconstructed where that is possible without guessing:
//!
//! - Without a column of tasks, the messages about task switches identify the thread of a CPU's lines.
//! - Without a column of times, each task gets a clock of its own that advances by its functions' durations. Durations
//!   and nesting are then right, but times of different tasks cannot be compared; [`Text::timed`] is false.

mod columns;
mod guess;
mod line;

use std::collections::{BTreeMap, HashMap, VecDeque};

use columns::Fields;
pub use columns::{Columns, Legend};
use line::Call;

use crate::decode::irq;
use crate::event::{Context, Data, Event, Exit, Func, UNKNOWN_PID};
use crate::fault::Faults;

/// Limit of the header's offset in bytes.
const HEAD: usize = 4096;

/// Returns the offset of the header.
fn header(bytes: &[u8]) -> Option<usize> {
    let head = &bytes[..bytes.len().min(HEAD)];
    let within = || memchr::memmem::find(head, b"\n# tracer:").map(|at| at + 1);
    head.starts_with(b"# tracer:").then_some(0).or_else(within)
}

/// Returns true if the bytes are ftrace text: they have a header, or most lines match.
#[must_use]
pub fn is_text(bytes: &[u8]) -> bool {
    header(bytes).is_some() || guess::columns(bytes).is_some()
}

/// Iterator over the events of a text.
#[derive(Debug)]
pub struct Text<'a> {
    rest: &'a [u8],
    /// Number of lines read so far.
    line: u64,
    columns: Columns,
    /// Thread of each CPU's lines, from messages about switches.
    running: HashMap<u32, u32>,
    clocks: HashMap<(u32, u32), Clock>,
    ready: VecDeque<Event<'a>>,
    /// Names of threads. Function graph truncates them to 7 characters.
    pub comms: BTreeMap<u32, String>,
    /// Name of the tracer, from the header.
    pub tracer: String,
    /// Counters so far.
    pub counts: Counts,
    /// Time, CPU, thread and context of the last event. Lines of its stack trace follow it.
    last: Option<(u64, u32, u32, Context)>,
    /// Time of the last event that was taken, ns. A loss has none of its own, and stands where its line does.
    now_ns: Option<u64>,
    /// Losses before the first event: CPU and count. They have its time.
    early: Vec<(u32, Option<u64>)>,
    /// True if there is no header, so that the columns were detected from the lines.
    pub guessed: bool,
}

/// Counters of a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events. A line of a whole call counts as two.
    pub events: u64,
    /// Lost events, as far as they were counted.
    pub lost: u64,
    /// Number of places where events were lost without a count.
    pub lost_uncounted: u64,
    /// Calls that the tracer missed because its stack was full.
    pub overruns: u64,
    /// `entries-in-buffer` and `entries-written` from the header.
    pub entries: Option<(u64, u64)>,
    /// Lines that could not be read.
    pub faults: Faults,
}

/// Reconstructed time of a task, for a text without times.
#[derive(Debug, Default)]
struct Clock {
    ns: u64,
    /// Ended calls whose caller has not ended: depth, and duration in ns.
    ended: Vec<(u32, u64)>,
}

impl Clock {
    /// Advances the clock at the end of a call. Returns the time at which the call began.
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
    /// Creates a reader of a text.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Self {
        let mut this = Text::of_head(text);
        this.look(text);
        this.go_on(text)
    }

    /// Creates a reader of a text of which only the beginning is there. Then [`Text::look`] at all of it, piece by
    /// piece; then [`Text::go_on`] through it, piece by piece. Pieces consist of whole lines.
    #[must_use]
    pub fn of_head(head: &[u8]) -> Text<'static> {
        let mut this = Text {
            rest: &[],
            line: 0,
            columns: Columns::default(),
            running: HashMap::new(),
            clocks: HashMap::new(),
            ready: VecDeque::new(),
            comms: BTreeMap::new(),
            tracer: String::new(),
            counts: Counts::default(),
            last: None,
            now_ns: None,
            early: Vec::new(),
            guessed: false,
        };
        match header(head) {
            Some(at) => this.header(&head[at..]),
            None => this.columns = guess::columns(head).unwrap_or_default(),
        }
        this.guessed = header(head).is_none();
        this
    }

    /// Reads the next piece of the text. Events that were not taken from the previous one are dropped.
    #[must_use]
    pub fn go_on(self, piece: &[u8]) -> Text<'_> {
        // The rest of the reader borrows nothing from the previous piece.
        let Text {
            line, columns, running, clocks, comms, tracer, counts, last, now_ns, early, guessed, ..
        } = self;
        let (rest, ready) = (piece, VecDeque::new());
        Text {
            rest,
            line,
            columns,
            running,
            clocks,
            ready,
            comms,
            tracer,
            counts,
            last,
            now_ns,
            early,
            guessed,
        }
    }

    /// Returns true if times come from the trace and were not reconstructed from durations.
    #[must_use]
    pub fn timed(&self) -> bool {
        self.columns.time || !self.columns.graph
    }

    /// Returns the columns of the text.
    #[must_use]
    pub fn columns(&self) -> Columns {
        self.columns
    }

    /// Parses the header.
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

    /// Finds the thread of the lines before each CPU's first switch.
    pub fn look(&mut self, text: &[u8]) {
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

    /// Parses a line.
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
            match self.now_ns {
                Some(ns) => self.ready.push_back(loss(ns, cpu, count)),
                None => self.early.push((cpu, count)),
            }
            return;
        }
        if let Some(count) = bare.strip_prefix("(Overruns: ").and_then(|r| r.strip_suffix(')')) {
            match count.parse() {
                Ok(count) => self.counts.overruns = self.counts.overruns.saturating_add(count),
                Err(_) => self.counts.faults.add(self.line, "(Overruns: NUMBER)"),
            }
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

    /// Parses a line of function graph.
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

    /// Parses a line `TASK-PID [CPU] FLAGS TIME: event`.
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
        let context = self.columns.legend.context(flags.trim());
        self.last = Some((ns, cpu, pid, context));
        self.ready.push_back(Event { ns, cpu, pid, context, data: event(text) });
        Some(())
    }
}

/// A loss of events on a CPU.
fn loss<'a>(ns: u64, cpu: u32, count: Option<u64>) -> Event<'a> {
    Event { ns, cpu, pid: UNKNOWN_PID, context: Context::Task, data: Data::Lost { count } }
}

fn exit<'a>(func: Option<Func<'a>>, depth: u32, times: Option<(u64, u64)>) -> Data<'a> {
    let (call_ns, ret_ns) = times.unzip();
    Data::Exit(Exit { func, depth, call_ns, ret_ns, overrun: 0 })
}

/// Parses an event's text. Task switches and interrupts are recognised; others stay text.
fn event(text: &str) -> Data<'_> {
    let text = text.trim();
    let (name, says) = text.split_once(": ").unwrap_or((text.trim_end_matches(':'), ""));
    if name == "sched_switch" {
        return line::switch(says).unwrap_or(Data::Text(text));
    }
    let of = ["irq", "irq_vectors"].iter().find_map(|system| {
        // A text has no subsystem. Without it, only events of interrupt vectors are recognised by name.
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
            if let Some(first) = self.ready.front().filter(|_| !self.early.is_empty()) {
                let ns = first.ns;
                for (cpu, count) in self.early.drain(..).rev() {
                    self.ready.push_front(loss(ns, cpu, count));
                }
            }
            if let Some(event) = self.ready.pop_front() {
                self.now_ns = Some(event.ns);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_stands_at_its_place() {
        let head =
            "# tracer: function_graph\n#\n#     TIME        CPU  DURATION                  FUNCTION CALLS\n";
        let call = |time: &str, name: &str| format!("   {time} |   0)   1.000 us    |  {name}();\n");
        let lost = "CPU:0 [LOST 77 EVENTS]\n";
        let text = [
            head,
            lost,
            &call("20.000100", "a"),
            &call("20.000200", "b"),
            lost,
            &call("20.000900", "c"),
            lost,
        ]
        .concat();
        let all = |text: Text<'_>| -> Vec<u64> {
            text.filter(|event| matches!(event.data, Data::Lost { .. })).map(|event| event.ns).collect()
        };
        let right = [20_000_100_000, 20_000_201_000, 20_000_901_000];
        assert_eq!(all(Text::new(text.as_bytes())), right);
        // Piece by piece.
        let mut reader = Text::of_head(text.as_bytes());
        let mut found = Vec::new();
        for line in text.split_inclusive('\n') {
            let mut piece = reader.go_on(line.as_bytes());
            found.extend(
                piece.by_ref().filter(|event| matches!(event.data, Data::Lost { .. })).map(|event| event.ns),
            );
            reader = piece.go_on(b"");
        }
        assert_eq!(found, right);
        // Losses alone.
        assert_eq!(all(Text::new([head, lost, lost].concat().as_bytes())).len(), 0);
    }
}
