// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings of calls: the nested graph of calls, and system calls. Also tracks whether a chosen function runs.
//!
//! A line that is written when a call ends is written at the end for a call without an end: `open.rs`.

use std::io::Write as _;

use kprism_flow::Guessed;
use kprism_flow::event::{Event, EventKind, flag};
use kprism_flow::replay::calls::{Begin, Calls, End, Ending, Stacks};
use kprism_flow::replay::{Code, Listener, TracePosition};
use kprism_image::Image;
use kprism_image::resolve::Resolve;
use kprism_profile::units::{is_without_body, syscall_name};
use kprism_profile::{FrameKind, Unended};

use crate::flow::Options;
use crate::indent::write_indent;
use crate::json;
use crate::names::{Name, Names};
use crate::open::{Open, OpenCalls, Seen};
use crate::output::Output;
use crate::prefix::{Form, Prefix};
use crate::select::Select;

/// Kind of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Functions as they begin and end, indented by depth. As JSON, one object for each call, when it ends; those without an end last.
    Graph,
    /// System calls, when they end; those without an end last.
    Syscalls,
}

/// Lists calls while the flow is replayed.
pub struct Lister<'a, 'w, R> {
    stacks: Stacks,
    lines: Lines<'a, 'w, R>,
}

/// Tracks whether a chosen function or one of its callees runs.
pub(crate) struct Inside {
    stacks: Stacks,
    own: bool,
    matching: Matching,
    /// For each task, true while it is inside a chosen function.
    inside: Vec<bool>,
}

/// Caches which functions the selection names.
#[derive(Default)]
struct Matching(Vec<Option<bool>>);

impl Matching {
    fn takes<R: Resolve>(&mut self, func: u32, select: &Select, names: &mut Names<'_, R>) -> bool {
        let place = func as usize;
        if place >= self.0.len() {
            self.0.resize(place + 1, None);
        }
        *self.0[place].get_or_insert_with(|| select.takes_func(&names.get(func).symbol))
    }
}

struct Nobody;

impl Calls for Nobody {
    fn begin(&mut self, _at: &TracePosition<'_>, _call: Begin) {}
    fn end(&mut self, _at: &TracePosition<'_>, _call: End) {}
}

impl Inside {
    pub fn new(own: bool) -> Self {
        Self { stacks: Stacks::default(), own, matching: Matching::default(), inside: Vec::new() }
    }

    #[inline]
    pub fn run(&mut self, at: &TracePosition<'_>, insns: u32) {
        self.stacks.run(at, insns);
    }

    #[inline]
    pub fn is_inside(&self, task: usize) -> bool {
        self.inside.get(task).copied().unwrap_or(false)
    }

    pub fn event<R: Resolve>(
        &mut self,
        at: &TracePosition<'_>,
        event: &Event,
        select: &Select,
        names: &mut Names<'_, R>,
    ) {
        self.stacks.event(at, event, &mut Nobody);
        let matching = &mut self.matching;
        let mut functions = self.stacks.functions(at.task);
        let inside = match self.own {
            true => functions.last().is_some_and(|f| matching.takes(f, select, names)),
            false => functions.any(|f| matching.takes(f, select, names)),
        };
        if at.task >= self.inside.len() {
            self.inside.resize(at.task + 1, false);
        }
        self.inside[at.task] = inside;
    }
}

/// A function that was entered. Its line waits until it is known whether the function calls another.
struct Waiting {
    task: usize,
    depth: usize,
    indent: usize,
    /// The start of its line.
    prefix: Vec<u8>,
    name: Name,
    kind: FrameKind,
}

struct Lines<'a, 'w, R> {
    subject: Subject,
    options: Options,
    /// Maximum level shown.
    levels: usize,
    form: Form,
    names: Names<'a, R>,
    matching: Matching,
    prefixes: Vec<Prefix>,
    /// By task: depth of the outermost call that the selection names.
    roots: Vec<Option<usize>>,
    waiting: Option<Waiting>,
    /// Calls without an end so far, where lines are written at ends only.
    open: Option<OpenCalls>,
    /// Time of the last event, ns.
    end_ns: u64,
    out: Output<'w>,
}

impl<'a, 'w, R: Resolve> Lister<'a, 'w, R> {
    /// A lister for `lanes` streams, which shows at most `levels` of the graph.
    pub fn new(
        subject: Subject,
        options: Options,
        levels: usize,
        lanes: usize,
        resolver: &'a R,
        out: Output<'w>,
    ) -> Self {
        let form = if options.json { Form::Json } else { Form::Text };
        let at_ends = subject == Subject::Syscalls || form == Form::Json;
        let lines = Lines {
            subject,
            levels,
            form,
            names: Names::new(resolver),
            matching: Matching::default(),
            prefixes: (0..lanes).map(|_| Prefix::new(form, &options.fields)).collect(),
            roots: Vec::new(),
            waiting: None,
            open: at_ends.then(OpenCalls::default),
            end_ns: 0,
            out,
            options,
        };
        Self { stacks: Stacks::default(), lines }
    }

    /// Writes the remaining lines.
    pub fn finish(mut self) -> Output<'w> {
        self.lines.settle();
        self.lines.unended();
        self.lines.out
    }
}

impl<R: Resolve> Listener for Lister<'_, '_, R> {
    fn define(&mut self, _at: &TracePosition<'_>, _block: u32, _code: Code, _image: &Image) {}

    #[inline]
    fn run(&mut self, at: &TracePosition<'_>, _block: u32, from: u32, to: u32) {
        self.stacks.run(at, to - from);
    }

    fn rest(&mut self, at: &TracePosition<'_>, ns: u64) {
        self.stacks.rest(at, ns);
    }

    fn guessed(&self) -> Guessed {
        self.stacks.guessed()
    }

    fn unended(&self) -> Unended {
        self.stacks.unended()
    }

    fn event(&mut self, at: &TracePosition<'_>, event: &Event) {
        self.lines.end_ns = self.lines.end_ns.max(at.ns());
        if let Some(open) = &mut self.lines.open {
            open.runs(at.task, &at.tasks[at.task], at.names, at.lane, at.cpu);
        }
        self.stacks.event(at, event, &mut self.lines);
        if let Some(open) = &mut self.lines.open
            && enters_body(event)
        {
            open.body(at.task, event.func);
        }
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.lines.out.is_done()
    }
}

/// True if a function that does the work of a system call is entered.
fn enters_body(event: &Event) -> bool {
    // Of a jump, only one to the first instruction begins the function.
    let enters = match event.kind {
        EventKind::Call => true,
        EventKind::Tail => event.flags & flag::ENTRY != 0,
        _ => false,
    };
    enters && event.flags & flag::SYSCALL_BODY != 0
}

/// The values of a call in its line.
struct Row {
    func: u32,
    /// For a system call, the function that is its body, if one was seen.
    body: Option<u32>,
    kind: FrameKind,
    start_ns: u64,
    /// Duration, ns; `None` if its end was not seen.
    wall_ns: Option<u64>,
    /// Time that its task spent on a CPU, ns; `None` of a call that goes on.
    on_cpu_ns: Option<u64>,
    /// Instructions; `None` of a call that goes on.
    insns: Option<u64>,
    ending: Ending,
}

impl Row {
    /// The row of a call that went off its stack at this time.
    fn of(end_ns: u64, call: &End) -> Self {
        let End { func, body, kind, start_ns, on_cpu_ns, insns, ending, .. } = *call;
        let wall_ns = (ending == Ending::Seen).then(|| end_ns.saturating_sub(start_ns));
        Row { func, body, kind, start_ns, wall_ns, on_cpu_ns: Some(on_cpu_ns), insns: Some(insns), ending }
    }

    /// The row of a call that has no end.
    fn unended(call: &Open, ending: Ending) -> Self {
        let Open { func, body, kind, start_ns, .. } = *call;
        Row { func, body, kind, start_ns, wall_ns: None, on_cpu_ns: None, insns: None, ending }
    }
}

impl<R: Resolve> Lines<'_, '_, R> {
    /// Returns the indentation of a call if it is shown.
    fn shown(&mut self, task: usize, func: u32, depth: usize) -> Option<usize> {
        let select = &self.options.select;
        let indent = if select.funcs.is_empty() {
            depth
        } else {
            let named = self.matching.takes(func, select, &mut self.names);
            if task >= self.roots.len() {
                self.roots.resize(task + 1, None);
            }
            let root = &mut self.roots[task];
            // A root that is not on the stack any more ended while the flow was unknown.
            if root.is_none_or(|root| root > depth) {
                *root = named.then_some(depth);
            }
            if select.own && !named {
                return None;
            }
            depth - (*root)?
        };
        (indent < self.levels).then_some(indent)
    }

    /// Forgets the outermost call that the selection names, if it is the one at this depth, which is over.
    fn ended(&mut self, task: usize, depth: usize) {
        if let Some(root) = self.roots.get_mut(task)
            && *root == Some(depth)
        {
            *root = None;
        }
    }

    /// Writes the waiting line: its function calls another, or something else comes first.
    fn settle(&mut self) {
        let Some(waiting) = self.waiting.take() else { return };
        if self.out.is_done() {
            return;
        }
        let out = self.out.buffer();
        out.extend_from_slice(&waiting.prefix);
        let _ = write!(out, "{:27}", "");
        write_name(out, waiting.indent, &waiting.name, waiting.kind);
        out.extend_from_slice(b" {\n");
        self.out.end_line();
    }

    fn graph_end(&mut self, at: &TracePosition<'_>, call: &End, indent: usize) {
        let (wall, name) = (at.ns().saturating_sub(call.start_ns), self.names.get(call.func));
        let leaf = matches!(&self.waiting, Some(w) if w.task == at.task && w.depth == call.depth);
        if leaf && let Some(waiting) = self.waiting.take() {
            let out = self.out.buffer();
            out.extend_from_slice(&waiting.prefix);
            write_amounts_of(out, wall, call);
            write_name(out, waiting.indent, &waiting.name, waiting.kind);
            let _ = writeln!(out, ";{}", remark(call.ending));
            return self.out.end_line();
        }
        let name = name.symbol.clone();
        self.settle();
        if self.out.is_done() {
            return;
        }
        let out = self.out.buffer();
        self.prefixes[at.lane].append(out, at.ns());
        write_amounts_of(out, wall, call);
        write_indent(out, indent);
        let _ = writeln!(out, "}} /* {name} */{}", remark(call.ending));
        self.out.end_line();
    }

    fn syscall_end(&mut self, lane: usize, call: &Row) {
        let func = call.body.unwrap_or(call.func);
        let symbol = &self.names.get(func).symbol;
        let (name, is_refused) = (syscall_name(symbol), is_without_body(symbol));
        let select = &self.options.select;
        if !select.funcs.is_empty() && !select.takes_func(&name) && !select.takes_func(symbol) {
            return;
        }
        // A call that goes on may reach its body yet.
        let is_refused = is_refused && call.ending != Ending::Open;
        let out = self.out.buffer();
        self.prefixes[lane].append(out, call.start_ns);
        let _ = match self.form {
            Form::Text => {
                write_known_amounts(out, call.wall_ns.zip(call.insns));
                match call.on_cpu_ns {
                    Some(ns) => drop(write!(out, "{:>9}.{:03} us on CPU  ", ns / 1000, ns % 1000)),
                    None => drop(write!(out, "{:25}", "")),
                }
                let refused = if is_refused { " /* refused, or its function was not traced */" } else { "" };
                writeln!(out, "{name}{}{refused}", remark(call.ending))
            }
            Form::Json => {
                out.extend_from_slice(b"\"syscall\":");
                json::string(out, &name);
                let (wall, cpu, insns) = (Known(call.wall_ns), Known(call.on_cpu_ns), Known(call.insns));
                let refused = if is_refused { ",\"without_body\":true" } else { "" };
                let ending = Reason(call.ending);
                writeln!(out, ",\"wall_ns\":{wall},\"on_cpu_ns\":{cpu},\"insns\":{insns}{refused}{ending}}}")
            }
        };
        self.out.end_line();
    }

    fn json_end(&mut self, lane: usize, call: &Row, depth: usize) {
        let name = self.names.get(call.func);
        let out = self.out.buffer();
        self.prefixes[lane].append(out, call.start_ns);
        out.extend_from_slice(b"\"symbol\":");
        json::string(out, &name.symbol);
        out.extend_from_slice(b",\"module\":");
        json::string(out, &name.module);
        let kind = word(call.kind);
        let (wall, cpu, insns) = (Known(call.wall_ns), Known(call.on_cpu_ns), Known(call.insns));
        let ending = Reason(call.ending);
        let _ = writeln!(
            out,
            ",\"kind\":\"{kind}\",\"depth\":{depth},\"wall_ns\":{wall},\"on_cpu_ns\":{cpu},\"insns\":{insns}{ending}}}"
        );
        self.out.end_line();
    }

    /// Writes the lines of calls without an end, task by task, inner calls first, as they would end.
    fn unended(&mut self) {
        let Some(open) = self.open.take() else { return };
        let (mut tasks, left) = open.into_parts();
        for (index, seen) in tasks.iter_mut().enumerate() {
            for call in std::mem::take(&mut seen.calls).into_iter().rev() {
                let wanted = self.wanted_unended(seen, &call);
                match self.subject {
                    Subject::Syscalls if call.kind != FrameKind::Syscall => {}
                    Subject::Syscalls if wanted => {
                        self.syscall_end(seen.lane, &Row::unended(&call, Ending::Open));
                    }
                    Subject::Graph => {
                        if let (Some(indent), true) = (self.shown(index, call.func, call.depth), wanted) {
                            self.json_end(seen.lane, &Row::unended(&call, Ending::Open), indent);
                        }
                        self.ended(index, call.depth);
                    }
                    Subject::Syscalls => {}
                }
            }
        }
        for (index, call) in left {
            if let Some(seen) = tasks.get(index)
                && self.wanted_unended(seen, &call)
            {
                self.json_end(seen.lane, &Row::unended(&call, Ending::Left), call.depth);
            }
        }
    }

    /// Returns true if a call without an end is selected, and prepares the prefix. It lasts to the end.
    fn wanted_unended(&mut self, seen: &Seen, call: &Open) -> bool {
        let Options { fields, select, .. } = &self.options;
        self.prefixes[seen.lane].set(seen.cpu, &seen.task, fields, select);
        self.chosen(seen.lane, self.end_ns, call.func, call.start_ns)
    }

    /// Returns true if this moment and function are selected, and prepares the prefix.
    fn wanted(&mut self, at: &TracePosition<'_>, func: u32, from: u64) -> bool {
        let select = &self.options.select;
        self.prefixes[at.lane].follow(at, &self.options.fields, select);
        self.chosen(at.lane, at.ns(), func, from)
    }

    /// Returns true if the task of the prefix, a time and a function are selected.
    fn chosen(&mut self, lane: usize, ns: u64, func: u32, from: u64) -> bool {
        let (select, taken) = (&self.options.select, self.prefixes[lane].taken);
        // A line is selected by its time, a whole call if a part of it is in the range.
        let in_time = match (self.subject, self.form) {
            (Subject::Graph, Form::Text) => select.takes_time(ns),
            _ => ns >= select.from && select.to.is_none_or(|to| from < to),
        };
        taken && in_time && !self.out.is_done() && {
            // A system call is the kernel's work, whatever code made it.
            self.subject == Subject::Syscalls || select.takes_ring(self.names.get(func).kernel)
        }
    }
}

impl<R: Resolve> Calls for Lines<'_, '_, R> {
    fn begin(&mut self, at: &TracePosition<'_>, call: Begin) {
        if let Some(open) = &mut self.open {
            open.begin(at.task, at.ns(), &call);
        }
        if self.subject != Subject::Graph {
            return;
        }
        let shown = self.shown(at.task, call.func, call.depth);
        let wanted = self.wanted(at, call.func, at.ns());
        let (Some(indent), true, Form::Text) = (shown, wanted, self.form) else { return };
        self.settle();
        let mut prefix = Vec::with_capacity(64);
        self.prefixes[at.lane].append(&mut prefix, at.ns());
        let name = self.names.get(call.func).clone();
        // The line of a call that began before is not another call.
        let kind = if call.again { FrameKind::Resumed } else { call.kind };
        self.waiting = Some(Waiting { task: at.task, depth: call.depth, indent, prefix, name, kind });
    }

    fn end(&mut self, at: &TracePosition<'_>, call: End) {
        if let Some(open) = &mut self.open {
            open.end(at.task, &call);
        }
        let wanted = self.wanted(at, call.func, call.start_ns);
        if self.subject == Subject::Syscalls {
            if wanted && call.kind == FrameKind::Syscall {
                self.syscall_end(at.lane, &Row::of(at.ns(), &call));
            }
            return;
        }
        let shown = self.shown(at.task, call.func, call.depth);
        if let (Some(indent), true) = (shown, wanted) {
            match self.form {
                Form::Text => self.graph_end(at, &call, indent),
                // One object for each call, when it is over.
                Form::Json if call.ending == Ending::Left => {
                    if let Some(open) = &mut self.open {
                        open.leave(at.task, &call, indent);
                    }
                }
                Form::Json => self.json_end(at.lane, &Row::of(at.ns(), &call), indent),
            }
        }
        self.ended(at.task, call.depth);
    }
}

/// A number in JSON: null if it is not known.
struct Known(Option<u64>);

impl std::fmt::Display for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(number) => number.fmt(f),
            None => f.write_str("null"),
        }
    }
}

/// The reason in JSON why a call has no duration; nothing of a call that ended.
struct Reason(Ending);

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Ending::Seen => Ok(()),
            ending => write!(f, ",\"ending\":\"{}\"", ending.name()),
        }
    }
}

/// Said behind a call that did not end where its line is.
fn remark(ending: Ending) -> String {
    ending.remark().map(|remark| format!(" /* {remark} */")).unwrap_or_default()
}

/// Writes duration and instructions of a call in columns, or blanks if its end was not seen.
fn write_amounts_of(out: &mut Vec<u8>, ns: u64, call: &End) {
    write_known_amounts(out, (call.ending == Ending::Seen).then_some((ns, call.insns)));
}

/// Writes duration and instructions in columns, or blanks.
fn write_known_amounts(out: &mut Vec<u8>, amounts: Option<(u64, u64)>) {
    match amounts {
        Some((ns, insns)) => write_amounts(out, ns, insns),
        None => out.extend_from_slice(&[b' '; 27]),
    }
}

/// Writes duration and instructions in columns: 27 characters.
fn write_amounts(out: &mut Vec<u8>, ns: u64, insns: u64) {
    let _ = write!(out, "{:>8}.{:03} us {insns:>9}  ", ns / 1000, ns % 1000);
}

fn write_name(out: &mut Vec<u8>, indent: usize, name: &Name, kind: FrameKind) {
    write_indent(out, indent);
    out.extend_from_slice(name.symbol.as_bytes());
    out.extend_from_slice(b"()");
    if !name.kernel && !name.module.is_empty() {
        let file = name.module.rsplit('/').next().unwrap_or_default();
        let _ = write!(out, " [{file}]");
    }
    if kind != FrameKind::Call {
        let _ = write!(out, " ({})", word(kind));
    }
}

fn word(kind: FrameKind) -> &'static str {
    match kind {
        FrameKind::Root => "root",
        FrameKind::Call => "call",
        FrameKind::Tail => "tail",
        FrameKind::Syscall => "syscall",
        FrameKind::Interrupt => "interrupt",
        FrameKind::Exception => "exception",
        FrameKind::Signal => "signal",
        FrameKind::Resumed => "resumed",
    }
}
