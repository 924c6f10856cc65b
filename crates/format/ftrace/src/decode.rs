// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes records of the ring buffer.
//!
//! Input: formats, once; then records. Output: [`Data`]. The constructor looks up each event's fields by name, so that
//! a record costs only a few loads.

use crate::bytes::{Order, until_nul};
use crate::event::{Context, Data, Exit, Func};
use crate::format::Format;

/// Offset and size of a number in a record.
#[derive(Debug, Clone, Copy)]
struct Slot {
    at: usize,
    size: usize,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Entry { func: Slot, depth: Slot },
    Exit { func: Slot, depth: Slot, overrun: Option<Slot>, call: Option<Slot>, ret: Option<Slot> },
    Switch { prev_comm: Option<Slot>, prev_pid: Slot, next_comm: Option<Slot>, next_pid: Slot },
    IrqEnter,
    IrqExit,
}

/// Decoder for the events of one machine.
#[derive(Debug, Clone)]
pub struct Decoder {
    pub(crate) order: Order,
    /// By event number. `None`: records of the event stay raw.
    kinds: Vec<Option<Kind>>,
    names: Vec<Option<(String, String)>>,
    flags: usize,
    pid: Slot,
}

/// Limit of a call's depth: more than a task's shadow stack can hold, with pages of 64 KiB (kernel/trace/fgraph.c,
/// `SHADOW_STACK_SIZE`).
pub const DEEPEST: u32 = 8192;

/// Bits of `common_flags` (include/linux/trace_events.h, `TRACE_FLAG_*`).
const HARDIRQ: u8 = 0x08;
const SOFTIRQ: u8 = 0x10;
const NMI: u8 = 0x40;

impl Decoder {
    /// Returns a decoder for these formats. `big` is true for a big-endian machine.
    #[must_use]
    pub fn new(formats: &[Format], big: bool) -> Self {
        let size = formats.iter().map(|f| usize::from(f.id) + 1).max().unwrap_or(0);
        let (mut kinds, mut names) = (vec![None; size], vec![None; size]);
        for format in formats {
            kinds[usize::from(format.id)] = kind(format);
            names[usize::from(format.id)] = Some((format.system.clone(), format.name.clone()));
        }
        let common = |name: &str| formats.iter().find_map(|f| slot(f, name));
        Decoder {
            order: if big { Order::Big } else { Order::Little },
            kinds,
            names,
            flags: common("common_flags").map_or(2, |slot| slot.at),
            pid: common("common_pid").unwrap_or(Slot { at: 4, size: 4 }),
        }
    }

    /// Returns the subsystem and name of an event.
    #[must_use]
    pub fn name(&self, id: u16) -> Option<(&str, &str)> {
        let (system, name) = self.names.get(usize::from(id))?.as_ref()?;
        Some((system, name))
    }

    /// Returns true if records of this number are function entries or exits.
    pub(crate) fn is_call(&self, id: u16) -> bool {
        let kind = self.kinds.get(usize::from(id)).copied().flatten();
        matches!(kind, Some(Kind::Entry { .. } | Kind::Exit { .. }))
    }

    /// Decodes the thread, context and contents of a record. A record too short for its event stays raw.
    #[inline]
    pub fn record<'a>(&self, record: &'a [u8]) -> (u32, Context, Data<'a>) {
        let id = self.order.u16(record, 0).unwrap_or(0);
        let pid = self.number(record, self.pid).unwrap_or(0) as u32;
        let flags = record.get(self.flags).copied().unwrap_or(0);
        let context = if flags & (HARDIRQ | NMI) != 0 {
            Context::Hardirq
        } else if flags & SOFTIRQ != 0 {
            Context::Softirq
        } else {
            Context::Task
        };
        let kind = self.kinds.get(usize::from(id)).copied().flatten();
        let known = kind.and_then(|kind| self.known(kind, record));
        (pid, context, known.unwrap_or(Data::Raw { id, bytes: record }))
    }

    #[inline]
    fn known<'a>(&self, kind: Kind, record: &'a [u8]) -> Option<Data<'a>> {
        let number = |slot| self.number(record, slot);
        // The upper half of a long depth has another meaning in later kernels. In earlier ones, the depth of the
        // outermost call is -1.
        let depth_of = |slot| {
            let depth = number(slot).map(|n| (n as u32 as i32).max(0) as u32);
            depth.filter(|depth| *depth <= DEEPEST)
        };
        Some(match kind {
            Kind::Entry { func, depth } => {
                Data::Entry { func: Func::Address(number(func)?), depth: depth_of(depth)? }
            }
            Kind::Exit { func, depth, overrun, call, ret } => Data::Exit(Exit {
                func: Some(Func::Address(number(func)?)),
                depth: depth_of(depth)?,
                call_ns: call.and_then(number),
                ret_ns: ret.and_then(number),
                overrun: overrun.and_then(number).unwrap_or(0),
            }),
            Kind::Switch { prev_comm, prev_pid, next_comm, next_pid } => Data::Switch {
                prev_pid: number(prev_pid)? as u32,
                prev_comm: name(record, prev_comm),
                next_pid: number(next_pid)? as u32,
                next_comm: name(record, next_comm),
            },
            Kind::IrqEnter => Data::IrqEnter,
            Kind::IrqExit => Data::IrqExit,
        })
    }

    #[inline]
    fn number(&self, record: &[u8], slot: Slot) -> Option<u64> {
        self.order.number(record, slot.at, slot.size)
    }
}

fn name(record: &[u8], slot: Option<Slot>) -> &[u8] {
    let bytes = slot.and_then(|slot| record.get(slot.at..)?.get(..slot.size));
    until_nul(bytes.unwrap_or_default())
}

fn slot(format: &Format, name: &str) -> Option<Slot> {
    let field = format.field(name)?;
    Some(Slot { at: field.offset, size: field.size })
}

fn kind(format: &Format) -> Option<Kind> {
    let slot = |name| slot(format, name);
    match (format.system.as_str(), format.name.as_str()) {
        // `fgraph_retaddr_entry` (since Linux 6.13) is an entry that also contains the caller.
        (_, "funcgraph_entry" | "fgraph_retaddr_entry") => {
            Some(Kind::Entry { func: slot("func")?, depth: slot("depth")? })
        }
        (_, "funcgraph_exit") => Some(Kind::Exit {
            func: slot("func")?,
            depth: slot("depth")?,
            overrun: slot("overrun"),
            call: slot("calltime"),
            ret: slot("rettime"),
        }),
        (_, "sched_switch") => Some(Kind::Switch {
            prev_comm: slot("prev_comm"),
            prev_pid: slot("prev_pid")?,
            next_comm: slot("next_comm"),
            next_pid: slot("next_pid")?,
        }),
        (system, name) => match irq(system, name)? {
            true => Some(Kind::IrqEnter),
            false => Some(Kind::IrqExit),
        },
    }
}

/// Returns true if an event is the beginning of an interrupt handler, false if it is the end; `None` for other events.
pub(crate) fn irq(system: &str, name: &str) -> Option<bool> {
    let of_irq = match system {
        "irq" => matches!(name, "irq_handler_entry" | "irq_handler_exit" | "softirq_entry" | "softirq_exit"),
        "irq_vectors" | "nmi" => name.ends_with("_entry") || name.ends_with("_exit"),
        _ => false,
    };
    of_irq.then(|| name.ends_with("_entry"))
}
