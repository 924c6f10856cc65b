// SPDX-License-Identifier: MIT OR Apache-2.0
//! The decoder's output to its [`Sink`]: events of the call structure, times, and on request every instruction's
//! address.
//!
//! An event carries the number of instructions executed since the event (or time) before it. So a sink knows exactly
//! how many instructions ran in which frame without receiving each.

use kprism_image::insn::Mode;

use crate::decode::packet_event::PacketEvent;

/// In place of a function's id: no function is known.
pub(crate) const NO_FUNC: u32 = u32::MAX;

/// Kind of an event. It determines the meaning of [`Event::ip`] and [`Event::func`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// A call: `ip` is the return address, `func` the callee.
    Call,
    /// A jump, or falling through, into another function: `func`.
    Tail,
    /// A return to `ip`, which lies in `func`.
    Ret,
    /// A system call instruction (`syscall`, `sysenter`, `int 0x80`): `ip` is the address after it, `func`
    /// the kernel's entry.
    Syscall,
    /// An interrupt, exception or trap instruction: `ip` is where the interrupted code resumes, `func` the handler.
    Async,
    /// Return from kernel entry (`sysret`, `sysexit`, `iret`) to `ip`, which lies in `func`.
    Exit,
    /// The kernel switches tasks: the watched address was entered, or the image places a switch here. `ip` is where the flow
    /// is, in `func`, if that is known.
    Switch,
    /// CR3 changed; `ip` is the new address space.
    Space,
    /// The flow starts at `ip` in `func`, after tracing was off.
    Start,
    /// The flow starts at `ip` in `func` after data was lost.
    Resume,
    /// The flow is known up to here. `func` is the reason: [`Event::OFF`] and the like.
    Stop,
    /// Carries an instruction count only.
    Count,
    /// A marked instruction at `ip` ran; `func` encodes the mark.
    Mark,
    /// Used by the decoder in blocks: a call that only the RET compression stack sees.
    Push,
}

/// Properties of [`Event::func`] and [`Event::ip`], as bits of [`Event::flags`].
pub mod flag {
    /// `ip` (of a jump, return or start) is the first instruction of `func`.
    pub const ENTRY: u8 = 1;
    /// `func` is the body of a system call (`__x64_sys_*` and the like).
    pub const SYSCALL_BODY: u8 = 2;
    /// `func` is the entry of an exception handler (`asm_exc_*`).
    pub const EXCEPTION: u8 = 4;
    /// `ip` lies inside `func` but is not its first instruction. Without symbols neither this nor [`ENTRY`] is set.
    pub const INNER: u8 = 8;
    /// `func` is the body of a system call that creates a task (`fork`, `clone` and the like).
    pub const FORK: u8 = 16;
    /// The target of the jump is in the code, not computed at run time. Such a jump cannot leave its frame.
    pub const DIRECT: u8 = 32;
    /// The beginning and end of `func` are marks.
    pub const MARKED: u8 = 64;

    /// The code that made the jump or return loaded the stack pointer before it: it may have switched to another stack.
    pub const STACK: u8 = 128;

    /// Returns `None` unless the event begins a function that is a mark; else true if that is a system call's body.
    pub(crate) fn begins(flags: u8) -> Option<bool> {
        let body = flags & SYSCALL_BODY != 0;
        (flags & ENTRY != 0 && (body || flags & MARKED != 0)).then_some(body)
    }
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Kind of the event.
    pub kind: EventKind,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Instructions since the last event or time, including this event's own.
    pub insns: u32,
    /// A function, by the resolver's id. For [`EventKind::Stop`] the reason, for [`EventKind::Mark`] the mark.
    pub func: u32,
    /// Used by the decoder: the block at the return address. For a start, [`Event::AT_PSB`] if a PSB states it.
    pub(crate) link: u32,
    /// An address; for [`EventKind::Space`] the address space.
    pub ip: u64,
}

impl Event {
    /// Reason of a stop: tracing goes off (filter, disable).
    pub const OFF: u32 = 0;
    /// Reason of a stop: data is lost, or cannot be decoded.
    pub const LOST: u32 = 1;
    /// Reason of a stop: the code that runs now is not known.
    pub const NO_CODE: u32 = 2;
    /// Reason of a stop: tracing goes off, after a stop for code that is not known.
    pub const OFF_UNSEEN: u32 = 3;

    /// The start is the address in a PSB+, which does not switch tracing on.
    pub(crate) const AT_PSB: u32 = 0;

    pub(crate) fn new(kind: EventKind, func: u32, ip: u64) -> Self {
        Self { kind, flags: 0, insns: 0, func, link: u32::MAX, ip }
    }
}

/// Instructions that ran in sequence, up to a branch or to an address that a packet states.
#[derive(Debug, Clone, Copy)]
pub struct Walked<'b> {
    /// Their addresses.
    pub ips: &'b [u64],
    /// Number of this path; [`Walked::NO_NUMBER`] if the decoder does not keep it.
    pub number: u32,
    /// Numbers are valid within one epoch. The next epoch numbers its paths anew.
    pub epoch: u32,
    /// Number of changes of code and symbols so far.
    pub version: u32,
    /// Address space.
    pub asid: u64,
    /// Mode of the code.
    pub mode: Mode,
    /// Stream offset of the packet that decided this path.
    pub offset: u64,
}

impl Walked<'_> {
    /// In place of a number.
    pub const NO_NUMBER: u32 = u32::MAX;
}

/// Receives the decoder's output. It is monomorphised: outputs that a sink does not want cost nothing.
pub trait Sink {
    /// True if [`Sink::ips`] is wanted.
    const IPS: bool = false;

    /// True if [`Sink::walked`] is wanted.
    const BLOCKS: bool = false;

    /// True if [`Sink::packet_event`] is wanted. Else packets that tell events are only counted.
    const PACKET_EVENTS: bool = false;

    /// An event of the call structure.
    fn event(&mut self, event: Event);

    /// The time is now `ns`, `insns` instructions after the last event or time. It never decreases.
    fn time(&mut self, insns: u32, ns: u64);

    /// Instructions were executed, in this order. Called before the event to which they lead.
    fn ips(&mut self, _ips: &[u64]) {}

    /// The processor stands still, though it has work, until this is called with `false`: `insns` instructions after the last event or
    /// time.
    fn stands_still(&mut self, _insns: u32, _is_still: bool) {}

    /// An event that a packet states beside the flow, `insns` instructions after the last event or time.
    fn packet_event(&mut self, _insns: u32, _event: PacketEvent) {}

    /// Like [`Sink::ips`], block by block. Most blocks have run before and are identified by number.
    fn walked(&mut self, _walked: Walked<'_>) {}
}

/// A sink that ignores everything, for counting, which the decoder does itself.
#[derive(Debug, Default, Clone, Copy)]
pub struct Null;

impl Sink for Null {
    fn event(&mut self, _event: Event) {}
    fn time(&mut self, _insns: u32, _ns: u64) {}
}
