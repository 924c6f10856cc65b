// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the decoder tells its listener: events of the call structure, times, and if wanted every
//! instruction's address.
//!
//! Events carry the number of instructions executed since the event (or time) before them, so that a
//! listener knows exactly how many instructions ran in which frame without hearing of each.

use kprism_image::insn::Mode;

/// What happened. The meaning of [`Event::ip`] and [`Event::func`] depends on it.
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
    /// An interrupt, exception or trap instruction: `ip` is where it resumes, `func` the handler.
    Async,
    /// Return from kernel entry (`sysret`, `sysexit`, `iret`) to `ip`, which lies in `func`.
    Exit,
    /// The watched address was entered: the kernel switches tasks.
    Switch,
    /// CR3 changed; `ip` is the new address space.
    Space,
    /// The flow starts at `ip` in `func`, after it was off.
    Start,
    /// The flow starts at `ip` in `func` after data was lost.
    Resume,
    /// The flow is known up to here: tracing goes off (filter, disable; `func` is 0), or data is lost (1).
    Stop,
    /// Only the instruction count: nothing else happened.
    Count,
    /// A marked instruction at `ip` ran; `func` says what it is.
    Mark,
    /// For the decoder's own use in blocks: a call that only the RET compression stack sees.
    Push,
}

/// Facts about [`Event::func`] and [`Event::ip`], as bits of [`Event::flags`].
pub mod flag {
    /// `ip` (of a jump, return or start) is the first instruction of `func`.
    pub const ENTRY: u8 = 1;
    /// `func` is the body of a system call (`__x64_sys_*` and the like).
    pub const SYSCALL_BODY: u8 = 2;
    /// `func` is the entry of an exception handler (`asm_exc_*`).
    pub const EXCEPTION: u8 = 4;
    /// `ip` lies inside `func` but is not its first instruction. Neither this nor [`ENTRY`]: no symbols.
    pub const INNER: u8 = 8;
    /// `func` is the body of a system call that makes a task (`fork`, `clone` and the like).
    pub const FORK: u8 = 16;
    /// The jump is written in the code, not worked out at run time: it cannot leave the frame it is in.
    pub const DIRECT: u8 = 32;
    /// Beginning and end of `func` are marks.
    pub const MARKED: u8 = 64;

    /// Whether an arrival is the beginning of a function that is a mark, and if so whether of a system call's body.
    pub(crate) fn begins(flags: u8) -> Option<bool> {
        let body = flags & SYSCALL_BODY != 0;
        (flags & ENTRY != 0 && (body || flags & MARKED != 0)).then_some(body)
    }
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Instructions since the last event or time, those of this event's own instruction included.
    pub insns: u32,
    /// A function, by the resolver's id.
    pub func: u32,
    /// For the decoder's own use: the block at the return address. Of a start [`Event::AT_PSB`], if a PSB names it.
    pub(crate) link: u32,
    /// An address; see [`EventKind`].
    pub ip: u64,
}

impl Event {
    /// The flow stands there when a PSB is sent, which does not switch tracing on.
    pub(crate) const AT_PSB: u32 = 0;

    pub(crate) fn new(kind: EventKind, func: u32, ip: u64) -> Self {
        Self { kind, flags: 0, insns: 0, func, link: u32::MAX, ip }
    }
}

/// Instructions that ran one after the other, along the packets' way or up to an address that one of them names.
#[derive(Debug, Clone, Copy)]
pub struct Walked<'b> {
    /// Their addresses.
    pub ips: &'b [u64],
    /// A number for this way; [`Walked::NO_NUMBER`] where the decoder does not keep it.
    pub number: u32,
    /// Numbers of one epoch stay what they are. They begin anew with the next.
    pub epoch: u32,
    /// Counts the changes of code and symbols so far.
    pub version: u32,
    /// Address space.
    pub asid: u64,
    /// Mode of the code.
    pub mode: Mode,
    /// Stream offset of the packet that led along it.
    pub offset: u64,
}

impl Walked<'_> {
    /// Instead of a number.
    pub const NO_NUMBER: u32 = u32::MAX;
}

/// Listens to the decoder. Monomorphised: what a listener does not want costs nothing.
pub trait Sink {
    /// Whether [`Sink::ips`] is wanted.
    const IPS: bool = false;

    /// Whether [`Sink::walked`] is wanted.
    const BLOCKS: bool = false;

    /// Something happened to the call structure.
    fn event(&mut self, event: Event);

    /// It is `ns` now, `insns` instructions after the last event or time. Never decreases.
    fn time(&mut self, insns: u32, ns: u64);

    /// Instructions were executed, in this order. Comes before the event they lead to.
    fn ips(&mut self, _ips: &[u64]) {}

    /// The same by blocks, most of which have run before and are known by their number.
    fn walked(&mut self, _walked: Walked<'_>) {}
}

/// A listener that wants nothing: for counting, which the decoder does itself.
#[derive(Debug, Default, Clone, Copy)]
pub struct Null;

impl Sink for Null {
    fn event(&mut self, _event: Event) {}
    fn time(&mut self, _insns: u32, _ns: u64) {}
}
