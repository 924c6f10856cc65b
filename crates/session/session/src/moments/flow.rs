// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moments of the flow: calls, system calls, events of packets, the recorded windows. In: a replay of the flow. Out: moments, to
//! the merge, which gives those of other sources on before them.

use kprism_flow::Guessed;
use kprism_flow::event::{Event, EventKind, flag};
use kprism_flow::packet_event::{PacketEvent, PacketEventKind};
use kprism_flow::replay::calls::{Begin, Calls, End, Ending, Stacks};
use kprism_flow::replay::{Code, Listener, TracePosition};
use kprism_image::Image;
use kprism_image::resolve::Resolve;
use kprism_profile::units::{is_without_body, syscall_name};
use kprism_profile::{FrameKind, Unended};
use kprism_store::Account;
use serde_json::Value;

use super::{Kind, Merge, Moment, Phase, Wanted};
use crate::flow::{Loaded, follow};
use crate::progress::Progress;

/// True if the flow must be replayed for these kinds.
pub(super) fn is_needed(wanted: &Wanted) -> bool {
    [Kind::Window, Kind::Syscall, Kind::Call, Kind::Packet].iter().any(|&kind| wanted.kind(kind))
}

/// Replays the flow into the merge. Returns the account of the streams.
pub(super) fn replay(loaded: &Loaded, merge: &mut Merge<'_, '_>, progress: &Progress) -> Account {
    let calls = merge.wanted.kind(Kind::Call);
    let lines = Lines { merge, loaded, names: Vec::new(), calls };
    let mut hears = Hears { stacks: Stacks::default(), lines, past: false, on: Vec::new() };
    follow(loaded, &mut hears, progress)
}

struct Hears<'m, 'a, 'v> {
    stacks: Stacks,
    lines: Lines<'m, 'a, 'v>,
    /// True once the selected time is over.
    past: bool,
    /// By lane: whether the flow is known.
    on: Vec<bool>,
}

struct Lines<'m, 'a, 'v> {
    merge: &'m mut Merge<'a, 'v>,
    loaded: &'m Loaded,
    /// Names of functions, by id.
    names: Vec<Option<(String, String)>>,
    calls: bool,
}

impl Lines<'_, '_, '_> {
    /// Name and module of a function.
    fn name(&mut self, func: u32) -> (String, String) {
        let place = func as usize;
        // Ids count up from 0, but for those that stand for no function.
        if place >= 1 << 24 {
            return ("[unknown]".to_owned(), String::new());
        }
        if place >= self.names.len() {
            self.names.resize(place + 1, None);
        }
        let of = self.names[place].get_or_insert_with(|| {
            let info = self.loaded.symbols.describe(func);
            (info.name, info.module)
        });
        of.clone()
    }

    fn give(
        &mut self,
        at: &TracePosition<'_>,
        kind: Kind,
        phase: Phase,
        name: String,
        args: Vec<(String, Value)>,
    ) {
        let task = &at.tasks[at.task];
        let comm = task.comm.clone();
        self.merge.flow(&Moment {
            ns: at.ns(),
            cpu: Some(at.cpu),
            pid: Some(task.pid),
            comm,
            kind,
            phase,
            name,
            args,
        });
    }
}

impl Listener for Hears<'_, '_, '_> {
    fn define(&mut self, _: &TracePosition<'_>, _: u32, _: Code, _: &Image) {}

    #[inline]
    fn run(&mut self, at: &TracePosition<'_>, _: u32, from: u32, to: u32) {
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
        // A call that is under way at the end of the selected time ends after it: it is not waited for.
        self.past = self.lines.merge.wanted.to.is_some_and(|to| at.ns() >= to);
        if at.lane >= self.on.len() {
            self.on.resize(at.lane + 1, false);
        }
        let starts = matches!(event.kind, EventKind::Start | EventKind::Resume);
        if starts && !std::mem::replace(&mut self.on[at.lane], true) {
            self.lines.give(at, Kind::Window, Phase::Begin, "flow".to_owned(), Vec::new());
        }
        if event.kind == EventKind::Stop && std::mem::replace(&mut self.on[at.lane], false) {
            let lost = event.func != Event::OFF;
            self.lines.give(
                at,
                Kind::Window,
                Phase::Point,
                "flow ends".to_owned(),
                vec![("lost".to_owned(), lost.into())],
            );
        }
        self.stacks.event(at, event, &mut self.lines);
        let enters =
            matches!(event.kind, EventKind::Call | EventKind::Tail) && event.flags & flag::SYSCALL_BODY != 0;
        // Of a jump, only one to the first instruction begins the function.
        if enters
            && (event.kind == EventKind::Call || event.flags & flag::ENTRY != 0)
            && self.lines.merge.wanted.kind(Kind::Syscall)
        {
            let name = syscall_name(&self.lines.name(event.func).0);
            self.lines.give(at, Kind::Syscall, Phase::Begin, name, Vec::new());
        }
    }

    fn packet_event(&mut self, at: &TracePosition<'_>, event: &PacketEvent) {
        let Some(kind) = PacketEventKind::of(&event.packet) else { return };
        let mut args = vec![("says".to_owned(), event.packet.payload().into())];
        args.extend(event.ip.map(|ip| ("ip".to_owned(), Value::from(format!("{ip:#x}")))));
        self.lines.give(at, Kind::Packet, Phase::Point, kind.name().to_owned(), args);
    }

    fn is_done(&self) -> bool {
        self.lines.merge.over || self.past
    }
}

impl Calls for Lines<'_, '_, '_> {
    fn begin(&mut self, at: &TracePosition<'_>, call: Begin) {
        if self.calls && call.kind != FrameKind::Syscall {
            let (name, module) = self.name(call.func);
            let mut args: Vec<(String, Value)> =
                vec![("module".to_owned(), module.into()), ("depth".to_owned(), call.depth.into())];
            // It is not another call: the program comes back to it.
            args.extend(call.again.then(|| ("again".to_owned(), true.into())));
            self.give(at, Kind::Call, Phase::Begin, name, args);
        }
    }

    fn end(&mut self, at: &TracePosition<'_>, call: End) {
        let ns = at.ns().saturating_sub(call.start_ns);
        let length = match call.ending {
            Ending::Seen => Phase::End(ns),
            ending => Phase::Unended { ns, ending },
        };
        let mut args: Vec<(String, Value)> = vec![
            ("instructions".to_owned(), call.insns.into()),
            ("on_cpu_ns".to_owned(), call.on_cpu_ns.into()),
        ];
        if call.kind == FrameKind::Syscall {
            if self.merge.wanted.kind(Kind::Syscall) {
                let symbol = self.name(call.body.unwrap_or(call.func)).0;
                let name = syscall_name(&symbol);
                args.extend(is_without_body(&symbol).then(|| ("without_body".to_owned(), true.into())));
                self.give(at, Kind::Syscall, length, name, args);
            }
        } else if self.calls {
            let (name, module) = self.name(call.func);
            args.extend([("module".to_owned(), module.into()), ("depth".to_owned(), call.depth.into())]);
            self.give(at, Kind::Call, length, name, args);
        }
    }
}
