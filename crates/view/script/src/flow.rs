// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings of the flow: every instruction, or every taken branch.

use std::io::Write as _;

use kprism_flow::event::{Event, EventKind};
use kprism_flow::replay::{Code, Listener, TracePosition};
use kprism_image::Image;
use kprism_image::insn::Far;
use kprism_image::is_kernel;
use kprism_image::resolve::Resolve;

use crate::calls::Inside;
use crate::code::{CodePlace, Codes, Ends, Insn, Maker, write_nowhere, write_place};
use crate::disasm::Syntax;
use crate::output::Output;
use crate::prefix::{Form, Prefix};
use crate::select::{Field, Fields, Select};

/// Kind of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// One line for each instruction.
    Insns,
    /// One line for each control transfer: taken branches, interrupts, starts and ends.
    Branches,
}

/// Options of a listing.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The selected part of the flow.
    pub select: Select,
    /// Fields of each line.
    pub fields: Fields,
    /// If true, one JSON object per line instead of text.
    pub json: bool,
    /// Syntax of disassembled instructions.
    pub syntax: Syntax,
}

/// The source or destination of a transfer.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Unknown: tracing was off.
    Nowhere,
    /// An instruction, by index.
    Insn(u32),
    /// An address at which an event came, before its instruction ran.
    Address(u64),
}

struct Lane {
    codes: Codes,
    prefix: Prefix,
    /// The predecessor of the next instruction.
    before: Place,
    /// The task whose last instruction here was inside the selected functions.
    inside: Option<usize>,
    /// Address space.
    space: u64,
    /// Number of instructions so far, listed or not.
    ran: u64,
}

/// Lists the flow while it is replayed.
pub struct Lister<'a, 'w, R> {
    subject: Subject,
    options: Options,
    maker: Maker<'a, R>,
    lanes: Vec<Lane>,
    inside: Option<Inside>,
    /// True once all lanes are past the end of the selected time.
    past: bool,
    out: Output<'w>,
}

impl<'a, 'w, R: Resolve> Lister<'a, 'w, R> {
    /// A lister for `lanes` streams.
    pub fn new(subject: Subject, options: Options, lanes: usize, resolver: &'a R, out: Output<'w>) -> Self {
        let form = if options.json { Form::Json } else { Form::Text };
        let lane = || Lane {
            codes: Codes::new(),
            prefix: Prefix::new(form, &options.fields),
            before: Place::Nowhere,
            inside: None,
            space: 0,
            ran: 0,
        };
        let lanes = (0..lanes).map(|_| lane()).collect();
        let maker = Maker::new(form, options.fields.clone(), options.syntax, resolver);
        let inside = (!options.select.funcs.is_empty()).then(|| Inside::new(options.select.own));
        Self { subject, options, maker, lanes, inside, past: false, out }
    }

    /// Writes the remaining lines.
    pub fn finish(self) -> Output<'w> {
        self.out
    }

    /// Writes a line for the transfer to the first instruction of `run`, if it needs one.
    fn arrival(&mut self, at: &TracePosition<'_>, id: u32) {
        let lane = &mut self.lanes[at.lane];
        let from = std::mem::replace(&mut lane.before, Place::Insn(id));
        let kind = match from {
            Place::Nowhere => "tr strt",
            Place::Address(_) => "hw int",
            Place::Insn(from) => match taken(lane.codes.insn(from), lane.codes.insn(id).ip) {
                None => return,
                Some(kind) => kind,
            },
        };
        self.branch(at, kind, from, Place::Insn(id));
    }

    fn branch(&mut self, at: &TracePosition<'_>, kind: &str, from: Place, to: Place) {
        let ns = at.ns();
        let select = &self.options.select;
        let lane = &mut self.lanes[at.lane];
        lane.prefix.follow(at, &self.options.fields, select);
        let side = |place| match place {
            Place::Nowhere => None,
            Place::Insn(id) => Some(lane.codes.insn(id).is_kernel()),
            Place::Address(ip) => Some(is_kernel(ip)),
        };
        let kernel = side(to).or(side(from)).unwrap_or(false);
        if !lane.prefix.taken || !select.takes_time(ns) || !select.takes_ring(kernel) || self.out.is_done() {
            return;
        }
        let Lane { codes, prefix, space, .. } = lane;
        let out = self.out.buffer();
        prefix.append(out, ns);
        let json = self.maker.form == Form::Json;
        if json {
            out.extend_from_slice(b"\"kind\":\"");
            out.extend_from_slice(kind.as_bytes());
            out.extend_from_slice(b"\",\"from\":{");
        } else {
            out.extend_from_slice(kind.as_bytes());
            out.extend_from_slice(&b"          "[..10 - kind.len()]);
        }
        write_end(out, from, codes, *space, ns, &mut self.maker);
        if json {
            trim_comma(out);
            out.extend_from_slice(b"},\"to\":{");
        } else {
            out.extend_from_slice(b" => ");
        }
        write_end(out, to, codes, *space, ns, &mut self.maker);
        if json {
            trim_comma(out);
            out.extend_from_slice(b"}}\n");
        } else {
            out.push(b'\n');
        }
        self.out.end_line();
    }

    #[inline]
    fn list_branches(&mut self, at: &TracePosition<'_>, block: u32, places: std::ops::Range<usize>) {
        let first = self.lanes[at.lane].codes.at(places.start);
        self.arrival(at, first);
        for turn in 0..self.lanes[at.lane].codes.turns(block, &places).len() {
            let lane = &mut self.lanes[at.lane];
            let place = lane.codes.turns(block, &places)[turn] as usize;
            lane.before = Place::Insn(lane.codes.at(place));
            let id = lane.codes.at(place + 1);
            self.arrival(&at.later((place + 1 - places.start) as u32), id);
        }
        let lane = &mut self.lanes[at.lane];
        lane.before = Place::Insn(lane.codes.at(places.end - 1));
    }

    #[inline]
    fn list_insns(&mut self, at: &TracePosition<'_>, places: std::ops::Range<usize>, before: u64) {
        let Lane { codes, prefix, .. } = &mut self.lanes[at.lane];
        let select = &self.options.select;
        prefix.follow(at, &self.options.fields, select);
        let kernel = codes.insn(codes.at(places.start)).is_kernel();
        if !prefix.taken || !select.takes_ring(kernel) {
            return;
        }
        let (numbered, json) = (self.options.fields.has(Field::Number), self.options.json);
        for (ran, place) in (0..).zip(places) {
            let ns = at.after(ran);
            if !select.takes_time(ns) || self.out.is_done() {
                continue;
            }
            let id = codes.at(place);
            let out = self.out.buffer();
            prefix.append(out, ns);
            if numbered {
                let number = before + u64::from(ran) + 1;
                // Writing to memory cannot fail.
                let _ = match json {
                    true => write!(out, "\"number\":{number},"),
                    false => write!(out, "{number:>12} "),
                };
            }
            let end = out.len();
            codes.append_line(out, id, &mut self.maker);
            // A line of JSON without members of its own: the comma before it goes.
            if json && out[end] == b'}' && out[..end].last() == Some(&b',') {
                out.remove(end - 1);
            }
            self.out.end_line();
        }
    }
}

impl<R: Resolve> Listener for Lister<'_, '_, R> {
    fn define(&mut self, at: &TracePosition<'_>, _block: u32, code: Code, image: &Image) {
        self.lanes[at.lane].codes.define(&code, image, self.maker.names.resolver, at.ns());
    }

    #[inline]
    fn run(&mut self, at: &TracePosition<'_>, block: u32, from: u32, to: u32) {
        // Calls come in order of time.
        self.past = self.options.select.to.is_some_and(|to| at.ns() >= to);
        let places = self.lanes[at.lane].codes.block(block, from, to);
        let before = self.lanes[at.lane].ran;
        self.lanes[at.lane].ran += u64::from(to - from);
        if let Some(inside) = &mut self.inside {
            inside.run(at, to - from);
            if !inside.is_inside(at.task) {
                if self.subject == Subject::Branches {
                    if self.lanes[at.lane].inside.take() == Some(at.task) {
                        // The transfer out of the functions.
                        let first = self.lanes[at.lane].codes.at(places.start);
                        self.arrival(at, first);
                    }
                    // Needed to report the transfer into the functions.
                    let last = self.lanes[at.lane].codes.at(places.end - 1);
                    self.lanes[at.lane].before = Place::Insn(last);
                }
                return;
            }
            self.lanes[at.lane].inside = Some(at.task);
        }
        match self.subject {
            Subject::Insns => self.list_insns(at, places, before),
            Subject::Branches => self.list_branches(at, block, places),
        }
    }

    fn event(&mut self, at: &TracePosition<'_>, event: &Event) {
        if let Some(inside) = &mut self.inside {
            inside.event(at, event, &self.options.select, &mut self.maker.names);
        }
        if self.subject != Subject::Branches {
            return;
        }
        let before = self.lanes[at.lane].before;
        match event.kind {
            EventKind::Async => {
                let last = match before {
                    Place::Insn(id) => Some(*self.lanes[at.lane].codes.insn(id)),
                    _ => None,
                };
                if !last.is_some_and(|insn| insn.ends == Ends::Far(Far::Int)) {
                    // The last instruction's transfer ends where the event came.
                    let inside = self.inside.as_ref().is_none_or(|i| i.is_inside(at.task));
                    if inside && let Some(kind) = last.and_then(|insn| taken(&insn, event.ip)) {
                        self.branch(at, kind, before, Place::Address(event.ip));
                    }
                    self.lanes[at.lane].before = Place::Address(event.ip);
                }
            }
            EventKind::Stop => {
                self.lanes[at.lane].before = Place::Nowhere;
                let inside = self.inside.as_ref().is_none_or(|i| i.is_inside(at.task));
                if inside && matches!(before, Place::Insn(_)) {
                    self.branch(at, "tr end", before, Place::Nowhere);
                }
            }
            EventKind::Space => self.lanes[at.lane].space = event.ip,
            EventKind::Start | EventKind::Resume => self.lanes[at.lane].before = Place::Nowhere,
            _ => {}
        }
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.out.is_done() || self.past
    }
}

/// The kind of an instruction's transfer to `ip`, if it did not just fall through.
fn taken(insn: &Insn, ip: u64) -> Option<&'static str> {
    match kind_of(insn.ends) {
        Some("jcc") if insn.next == ip => None,
        kind => kind,
    }
}

/// Writes a source or destination. In JSON each member is followed by a comma.
fn write_end<R: Resolve>(
    out: &mut Vec<u8>,
    place: Place,
    codes: &mut Codes,
    space: u64,
    ns: u64,
    maker: &mut Maker<'_, R>,
) {
    match place {
        Place::Nowhere => write_nowhere(out, maker.form, &maker.fields),
        Place::Insn(id) => out.extend_from_slice(codes.place(id, maker)),
        Place::Address(ip) => {
            let spot = CodePlace::find(ip, space, maker.names.resolver, ns);
            write_place(out, &spot, maker);
        }
    }
}

/// The kinds of branches, with perf's names.
fn kind_of(ends: Ends) -> Option<&'static str> {
    Some(match ends {
        Ends::Falls => return None,
        Ends::Cond => "jcc",
        Ends::Jump => "jmp",
        Ends::Call => "call",
        Ends::Ret => "return",
        Ends::Far(Far::Syscall | Far::Sysenter) => "syscall",
        Ends::Far(Far::Sysret | Far::Sysexit) => "sysret",
        Ends::Far(Far::Iret) => "iret",
        Ends::Far(Far::Int) => "int",
        Ends::Far(Far::Vm) => "vmentry",
        Ends::Far(Far::Segment | Far::Rsm) => "jmp",
    })
}

fn trim_comma(out: &mut Vec<u8>) {
    if out.last() == Some(&b',') {
        out.pop();
    }
}
