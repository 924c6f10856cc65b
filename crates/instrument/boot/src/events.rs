// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the trace: initcalls by their events, and the exits of traced functions. Pages of the ring buffer give
//! functions by address, a text gives them by name.

use std::collections::BTreeMap;

use kprism_ftrace::format::Format;
use kprism_ftrace::{Data, Event, Exit, Func};

use crate::log::symbol_of;

/// In place of an address, for functions of a text that are known by name alone.
pub const BY_NAME: u64 = u64::MAX;

/// An initcall from the events. Its address is not resolved yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Started {
    /// Address of the function; [`BY_NAME`] if the trace names it instead.
    pub address: u64,
    /// The function at its address when a text was made, and its module.
    pub name: Option<(String, Option<String>)>,
    /// The level at the time, for the kernel's own tasks only.
    pub level: Option<String>,
    /// Id of the task.
    pub pid: u32,
    /// Start time, ns.
    pub start_ns: u64,
    /// Duration in ns and result, if it ended.
    pub end: Option<(u64, i64)>,
}

/// A call of a traced function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Called {
    /// Address of the function; 0 if the trace names it instead.
    pub address: u64,
    /// Its name, if the trace is a text.
    pub name: Option<String>,
    /// Id of the task.
    pub pid: u32,
    /// Number of calls around it.
    pub depth: u32,
    /// Start time, ns.
    pub start_ns: u64,
    /// Duration, ns.
    pub ns: u64,
}

/// The events of a boot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Read {
    /// Initcalls in order of their start.
    pub initcalls: Vec<Started>,
    /// Calls in order of their end.
    pub calls: Vec<Called>,
    /// Time of the last event, ns.
    pub last_ns: u64,
    /// Number of events lost, if counted.
    pub lost: u64,
    /// Number of function exits without an entry that do not state the start time or the task.
    pub orphans: u64,
}

/// Places of the fields in the events of initcalls: offset and size, bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Formats {
    start: Option<(u16, Slot)>,
    finish: Option<(u16, Slot, Slot)>,
    level: Option<(u16, Slot)>,
}

/// Place of a number in a record.
#[derive(Debug, Clone, Copy)]
struct Slot {
    at: usize,
    size: usize,
    big: bool,
}

impl Slot {
    /// The number, without its sign; `None` if the record is too short, or if it is no number.
    fn of(self, bytes: &[u8]) -> Option<u64> {
        let bytes = bytes.get(self.at..self.at.checked_add(self.size)?)?;
        let put = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        match (self.size, self.big) {
            (1..=8, true) => Some(bytes.iter().fold(0, put)),
            (1..=8, false) => Some(bytes.iter().rev().fold(0, put)),
            _ => None,
        }
    }
}

impl Formats {
    /// Looks up the fields among all formats. `big`: the machine is big-endian.
    pub fn new(formats: &[Format], big: bool) -> Self {
        // A file with several formats in a row does not state their systems. These names belong to one system.
        let of = |f: &Format| f.system == "initcall" || f.system == "other";
        let find = |name: &str| formats.iter().find(|f| of(f) && f.name == name);
        let at = |format: &Format, field: &str| {
            format.field(field).map(|field| Slot { at: field.offset, size: field.size, big })
        };
        Self {
            start: find("initcall_start").and_then(|f| Some((f.id, at(f, "func")?))),
            finish: find("initcall_finish").and_then(|f| Some((f.id, at(f, "func")?, at(f, "ret")?))),
            level: find("initcall_level").and_then(|f| Some((f.id, at(f, "level")?))),
        }
    }
}

/// Reads events, which are in order of time.
pub fn read<'a>(events: impl Iterator<Item = Event<'a>>, formats: &Formats) -> Read {
    let mut reader = Reader::default();
    for event in events {
        reader.take(&event, formats);
    }
    reader.read
}

#[derive(Default)]
struct Reader<'a> {
    read: Read,
    level: Option<String>,
    /// Indices of initcalls that have not ended, newest last.
    open: Vec<usize>,
    /// Functions that were entered, by task: depth, name, time. In a text an exit may not name its function.
    entered: BTreeMap<u32, Vec<(u32, &'a str, u64)>>,
}

impl<'a> Reader<'a> {
    fn take(&mut self, event: &Event<'a>, formats: &Formats) {
        self.read.last_ns = self.read.last_ns.max(event.ns);
        match &event.data {
            Data::Raw { id, bytes } => self.record(event, *id, bytes, formats),
            Data::Text(text) => self.text(event, text),
            Data::Entry { func: Func::Name(name), depth } => {
                let stack = self.entered.entry(event.pid).or_default();
                while stack.pop_if(|(open, ..)| *open >= *depth).is_some() {}
                stack.push((*depth, name, event.ns));
            }
            Data::Exit(exit) => self.exit(event, exit),
            Data::Lost { count } => self.read.lost = self.read.lost.saturating_add(count.unwrap_or(0)),
            _ => {}
        }
    }

    /// Handles an event of the ring buffer.
    fn record(&mut self, event: &Event<'_>, id: u16, bytes: &[u8], formats: &Formats) {
        if let Some((_, at)) = formats.level.filter(|(level, _)| *level == id) {
            self.level = string(bytes, at);
        } else if let Some((_, at)) = formats.start.filter(|(start, _)| *start == id) {
            if let Some(address) = at.of(bytes) {
                self.starts(event, address, None);
            }
        } else if let Some((_, at, ret)) = formats.finish.filter(|(finish, ..)| *finish == id)
            && let (Some(address), Some(result)) = (at.of(bytes), ret.of(bytes))
        {
            self.finishes(event, address, None, i64::from(result as u32 as i32));
        }
    }

    /// Handles an event of a text: `initcall_start: func=ext4_init_fs+0x0/0x230 [ext4]`.
    fn text(&mut self, event: &Event<'_>, text: &str) {
        if let Some(level) = text.strip_prefix("initcall_level: level=") {
            self.level = Some(level.trim().to_owned());
        } else if let Some(symbol) = text.strip_prefix("initcall_start: func=") {
            self.starts(event, BY_NAME, symbol_of(symbol));
        } else if let Some((symbol, result)) =
            text.strip_prefix("initcall_finish: func=").and_then(|rest| rest.rsplit_once(" ret="))
            && let Ok(result) = result.trim().parse()
        {
            self.finishes(event, BY_NAME, symbol_of(symbol), result);
        }
    }

    fn starts(&mut self, event: &Event<'_>, address: u64, name: Option<(String, Option<String>)>) {
        self.open.push(self.read.initcalls.len());
        // The kernel's own initcalls run in the first two tasks, one level after the other.
        let level = self.level.clone().filter(|_| event.pid <= 1);
        let (pid, start_ns) = (event.pid, event.ns);
        self.read.initcalls.push(Started { address, name, level, pid, start_ns, end: None });
    }

    fn finishes(
        &mut self,
        event: &Event<'_>,
        address: u64,
        name: Option<(String, Option<String>)>,
        result: i64,
    ) {
        let initcalls = &mut self.read.initcalls;
        let same = |&at: &usize| {
            let call = &initcalls[at];
            call.address == address && call.name == name && call.pid == event.pid
        };
        if let Some(at) = self.open.iter().rposition(same) {
            let call = &mut initcalls[self.open.remove(at)];
            call.end = Some((event.ns.saturating_sub(call.start_ns), result));
        }
    }

    /// Handles the exit of a function.
    fn exit(&mut self, event: &Event<'_>, exit: &Exit<'_>) {
        let &Exit { func, depth, call_ns, ret_ns, .. } = exit;
        let (pid, end_ns) = (event.pid, ret_ns.unwrap_or(event.ns));
        if let Some(Func::Address(address)) = func {
            if let Some(start_ns) = call_ns {
                let ns = end_ns.saturating_sub(start_ns);
                self.read.calls.push(Called { address, name: None, pid, depth, start_ns, ns });
            }
            return;
        }
        let stack = self.entered.entry(pid).or_default();
        while stack.pop_if(|(open, ..)| *open > depth).is_some() {}
        let entered = stack.pop_if(|(open, ..)| *open == depth);
        let own = match func {
            Some(Func::Name(name)) => Some(name),
            _ => None,
        };
        let name = own.or(entered.map(|(_, name, _)| name));
        let start_ns = call_ns.or(entered.map(|(.., ns)| ns));
        match (name, start_ns) {
            (Some(name), Some(start_ns)) => {
                let ns = end_ns.saturating_sub(start_ns);
                let name = name.split_once(" [").map_or(name, |(function, _)| function).to_owned();
                self.read.calls.push(Called { address: 0, name: Some(name), pid, depth, start_ns, ns });
            }
            _ => self.read.orphans += 1,
        }
    }
}

/// Reads a `__data_loc` string: 16 bits of offset and 16 of length, relative to the start of the record.
fn string(bytes: &[u8], at: Slot) -> Option<String> {
    let word = at.of(bytes)? as u32;
    let (place, length) = ((word & 0xffff) as usize, (word >> 16) as usize);
    let text = bytes.get(place..place.checked_add(length)?)?;
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    Some(String::from_utf8_lossy(&text[..end]).into_owned())
}
