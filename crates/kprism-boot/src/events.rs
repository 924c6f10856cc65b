// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the trace says: initcalls by their events, and the exits of traced functions.

use kprism_ftrace::format::Format;
use kprism_ftrace::{Data, Event, Exit, Func};

/// An initcall as the events tell it; addresses are not named yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Started {
    /// The function.
    pub address: u64,
    /// The level at the time; of the kernel's own tasks only.
    pub level: Option<String>,
    /// The task.
    pub pid: u32,
    /// When.
    pub start_ns: u64,
    /// How long, and what it returned.
    pub end: Option<(u64, i64)>,
}

/// A traced function's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Called {
    /// The function.
    pub address: u64,
    /// The task.
    pub pid: u32,
    /// Calls around it.
    pub depth: u32,
    /// When it began.
    pub start_ns: u64,
    /// How long it took.
    pub ns: u64,
}

/// All that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Read {
    /// In order of their beginning.
    pub initcalls: Vec<Started>,
    /// As they ended.
    pub calls: Vec<Called>,
    /// Time of the last event.
    pub last_ns: u64,
    /// Events lost, where it was counted.
    pub lost: u64,
}

/// Where the fields of the events of initcalls are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Formats {
    start: Option<(u16, usize)>,
    finish: Option<(u16, usize, usize)>,
    level: Option<(u16, usize)>,
}

impl Formats {
    /// Looks them up among all formats.
    pub fn new(formats: &[Format]) -> Self {
        // In a file of several formats, one after the other, their systems are not told; these names are one system's.
        let of = |f: &Format| f.system == "initcall" || f.system == "other";
        let find = |name: &str| formats.iter().find(|f| of(f) && f.name == name);
        let at = |format: &Format, field: &str| format.field(field).map(|field| field.offset);
        Self {
            start: find("initcall_start").and_then(|f| Some((f.id, at(f, "func")?))),
            finish: find("initcall_finish").and_then(|f| Some((f.id, at(f, "func")?, at(f, "ret")?))),
            level: find("initcall_level").and_then(|f| Some((f.id, at(f, "level")?))),
        }
    }
}

/// Reads events in order of time.
pub fn read<'a>(events: impl Iterator<Item = Event<'a>>, formats: &Formats) -> Read {
    let mut read = Read::default();
    let mut level = None;
    // Not ended yet, newest last.
    let mut open: Vec<usize> = Vec::new();
    for event in events {
        read.last_ns = read.last_ns.max(event.ns);
        match event.data {
            Data::Raw { id, bytes } => {
                if let Some((_, at)) = formats.level.filter(|(level, _)| *level == id) {
                    level = string(bytes, at);
                } else if let Some((_, at)) = formats.start.filter(|(start, _)| *start == id) {
                    let Some(address) = u64_at(bytes, at) else { continue };
                    open.push(read.initcalls.len());
                    // The kernel's own run in the first two tasks, one level after the other.
                    let level = level.clone().filter(|_| event.pid <= 1);
                    read.initcalls.push(Started {
                        address,
                        level,
                        pid: event.pid,
                        start_ns: event.ns,
                        end: None,
                    });
                } else if let Some((_, at, ret)) = formats.finish.filter(|(finish, ..)| *finish == id) {
                    let (Some(address), Some(result)) = (u64_at(bytes, at), i32_at(bytes, ret)) else {
                        continue;
                    };
                    let same = |&at: &usize| {
                        let call: &Started = &read.initcalls[at];
                        call.address == address && call.pid == event.pid
                    };
                    if let Some(at) = open.iter().rposition(same) {
                        let call = &mut read.initcalls[open.remove(at)];
                        call.end = Some((event.ns.saturating_sub(call.start_ns), result.into()));
                    }
                }
            }
            Data::Exit(Exit {
                func: Some(Func::Address(address)),
                depth,
                call_ns: Some(start_ns),
                ret_ns,
                ..
            }) => {
                let ns = ret_ns.unwrap_or(event.ns).saturating_sub(start_ns);
                read.calls.push(Called { address, pid: event.pid, depth, start_ns, ns });
            }
            Data::Lost { count } => read.lost = read.lost.saturating_add(count.unwrap_or(0)),
            _ => {}
        }
    }
    read
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// A `__data_loc` string: 16 bits of place, 16 of length, from the record's beginning.
fn string(bytes: &[u8], at: usize) -> Option<String> {
    let word = i32_at(bytes, at)? as u32;
    let (place, length) = ((word & 0xffff) as usize, (word >> 16) as usize);
    let text = bytes.get(place..place.checked_add(length)?)?;
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    Some(String::from_utf8_lossy(&text[..end]).into_owned())
}
