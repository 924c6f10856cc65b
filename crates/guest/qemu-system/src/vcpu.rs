// SPDX-License-Identifier: GPL-2.0-or-later
//! What runs on a vCPU's thread each time a block starts. The common case stores one word; everything rare
//! (first run of a block, interrupts, idle, user code at an unexpected address, tracing on or off) is told
//! by one flag and goes the slow way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use kprism_image::insn::{Far, Kind};

use crate::alloc::Calls;
use crate::block::{Block, HANDLER, TIMED, UNLISTED};
use crate::guest::{self, Reg};
use crate::idt;
use crate::options::{Keep, Start};
use crate::side::{Side, Task, What};
use crate::state::{STATE, State};
use crate::tape::{Entry, Tape};
use crate::tlb::Tlb;
use kprism_tlb::Geometry;

/// One vCPU, touched by its own thread only (`quick` excepted).
pub struct Vcpu {
    /// Tracing, and nothing special about the next block.
    pub quick: AtomicBool,
    /// Its number.
    pub cpu: u32,
    /// Tracing is on for this vCPU.
    pub on: bool,
    /// The last block may be followed by a jump in time.
    idle: bool,
    /// Another vCPU ran on this thread since the last block.
    turned: bool,
    /// Addresses at which user code goes on if the last block was user code and ended in a direct branch.
    fall: u64,
    target: u64,
    /// Address after the last system call made in this address space.
    resume: u64,
    /// Where user code may go on that was called from there or called the kernel there; [`NOWHERE`] otherwise.
    back: u64,
    /// Where calls made by user code return, newest at `depth`.
    calls: [u64; CALLS],
    depth: usize,
    /// What was found at such places in this address space: address and block.
    found: Box<[(u64, *const Block); FOUND]>,
    tape: Tape,
    /// Where the last block runs.
    pub va: u64,
    /// If TLBs are modelled.
    pub tlb: Option<Box<Tlb>>,
    /// Calls of functions that allocate.
    asked: Calls,
    /// A page fault is being handled.
    faulting: bool,
    /// Task that runs, as of the last switch.
    pub task: Task,
    /// Mark to record once tracing is on.
    pub mark: Option<u32>,
    /// How often the streams had been cut when this vCPU looked last.
    cuts: u64,
    full: SyncSender<Vec<u64>>,
    empty: Receiver<Vec<u64>>,
}

/// Calls whose return is expected.
const CALLS: usize = 64;
/// Places remembered to which calls returned.
const FOUND: usize = 256;
/// No user address.
const NOWHERE: u64 = u64::MAX;

impl Vcpu {
    /// vCPU number `cpu`, which sends its chunks to `full` and takes emptied ones from `empty`.
    pub fn new(cpu: u32, full: SyncSender<Vec<u64>>, empty: Receiver<Vec<u64>>, tlb: &[Geometry]) -> Self {
        Vcpu {
            quick: AtomicBool::new(false),
            cpu,
            on: false,
            idle: false,
            turned: false,
            fall: NOWHERE,
            target: NOWHERE,
            resume: NOWHERE,
            back: NOWHERE,
            calls: [NOWHERE; CALLS],
            depth: 0,
            found: Box::new([(NOWHERE, std::ptr::null()); FOUND]),
            tape: Tape::new(),
            va: 0,
            tlb: (!tlb.is_empty()).then(|| Box::new(Tlb::new(tlb))),
            asked: Calls::default(),
            faulting: false,
            task: Task::default(),
            mark: None,
            cuts: 0,
            full,
            empty,
        }
    }

    /// The next block comes after another vCPU's.
    pub fn take_turn(&mut self) {
        self.turned = true;
        self.quick.store(false, Ordering::Relaxed);
    }

    /// A kernel block starts, which is no gate of the IDT.
    #[inline(always)]
    pub fn kernel_block(&mut self, block: &'static Block) {
        if block.id() != UNLISTED && self.quick.load(Ordering::Relaxed) && !self.tape.is_due() {
            self.va = block.va;
            self.tape.block(block);
        } else {
            self.slow(block, false);
        }
    }

    /// A kernel block starts that is a gate of the IDT, or whose time matters.
    pub fn special_block(&mut self, block: &'static Block) {
        self.slow(block, false);
    }

    /// A block starts whose address must be checked: user code, or kernel code outside its own half.
    #[inline(always)]
    pub fn user_block(&mut self, block: &'static Block) {
        let va = self.expected(block);
        let known = va != NOWHERE && block.id() != UNLISTED;
        if known && self.quick.load(Ordering::Relaxed) && !self.tape.is_due() {
            if va != block.va {
                self.tape.push(Entry::At(va));
            }
            self.va = va;
            self.tape.block(block);
            self.expect(block, va.wrapping_sub(block.va));
        } else {
            self.slow(block, true);
        }
    }

    /// Where `block` runs, as far as that can be told without asking. A translation serves all mappings of its
    /// physical page, so it tells the place in the page; of the two ways on from a direct branch that decides,
    /// if they differ in it.
    #[inline(always)]
    fn expected(&self, block: &'static Block) -> u64 {
        let fits = |va: u64| (va ^ block.va).trailing_zeros() >= 12;
        match (fits(self.fall), fits(self.target)) {
            (true, false) => self.fall,
            (false, true) => self.target,
            // The same code in the same address space, behind the call or system call that was made there.
            (false, false) if self.found[slot(self.back)] == (self.back, block) => self.back,
            _ => NOWHERE,
        }
    }

    /// Where user code may go on after `block`, which ran `delta` beyond its translated address.
    #[inline]
    fn expect(&mut self, block: &Block, delta: u64) {
        let at = |va: u64| va.wrapping_add(delta);
        self.back = NOWHERE;
        (self.fall, self.target) = match block.kind {
            Kind::CondJump { target } => (at(block.va.wrapping_add(block.size())), at(target)),
            Kind::Jump { target } => (NOWHERE, at(target)),
            Kind::Call { target } => {
                self.called_from(at(block.va.wrapping_add(block.size())));
                (NOWHERE, at(target))
            }
            Kind::IndirectCall => {
                self.called_from(at(block.va.wrapping_add(block.size())));
                (NOWHERE, NOWHERE)
            }
            Kind::Ret => {
                self.back = self.calls[self.depth];
                self.depth = (self.depth + CALLS - 1) % CALLS;
                (NOWHERE, NOWHERE)
            }
            Kind::Far(Far::Syscall) => {
                self.resume = at(block.va.wrapping_add(block.size()));
                (NOWHERE, NOWHERE)
            }
            kind if kind.falls_through() => (at(block.va.wrapping_add(block.size())), NOWHERE),
            _ => (NOWHERE, NOWHERE),
        };
    }

    #[inline]
    fn called_from(&mut self, back: u64) {
        self.depth = (self.depth + 1) % CALLS;
        self.calls[self.depth] = back;
    }

    /// Kernel code may be about to return to user code, which can be anywhere, but mostly is behind a system call.
    pub fn leave_kernel(&mut self) {
        (self.fall, self.target) = (NOWHERE, NOWHERE);
        self.back = self.resume;
        if std::mem::take(&mut self.faulting) && self.on {
            self.tape.push(Entry::FaultEnd);
        }
    }

    /// CR3 was loaded.
    pub fn new_space(&mut self, cr3: u64) {
        self.resume = NOWHERE;
        self.calls = [NOWHERE; CALLS];
        self.found.fill((NOWHERE, std::ptr::null()));
        self.push(Entry::Cr3(cr3));
        if let Some(tlb) = &mut self.tlb {
            tlb.load_cr3(cr3);
        }
    }

    #[cold]
    #[inline(never)]
    fn slow(&mut self, block: &'static Block, check: bool) {
        let Some(state) = STATE.get() else { return };
        if state.closed.load(Ordering::Acquire) {
            return;
        }
        let tracing = state.tracing.load(Ordering::Relaxed);
        if !tracing && !self.on {
            return;
        }
        let va = if check { self.address(block) } else { block.va };
        if !tracing {
            self.note_event(block);
            self.note_cut(state);
            self.tape.push(Entry::Stop { va });
            self.on = false;
            self.quick.store(false, Ordering::Relaxed);
            self.hand_over();
            return;
        }
        if !self.on && state.options.start == Start::Boot && va >> 63 == 0 {
            return;
        }
        self.make_room(state, block);
        self.note_time(state, block);
        self.note_event(block);
        self.note_cut(state);
        if va != block.va {
            self.tape.push(Entry::At(va));
        }
        self.va = va;
        state.ensure_in_dict(block);
        self.tape.block(block);
        if check
            && self.asked.is_waiting()
            && let Some((freed, got)) = self.asked.returned(self.task.pid, va)
        {
            if let Some(old) = freed {
                self.tape.push(Entry::Free(old, 0));
            }
            self.tape.push(Entry::Alloc(got));
        }
        if let Some(pid) = self.mark.take() {
            self.side(0, What::Mark { begin: true, pid });
        }
        if check {
            self.expect(block, va.wrapping_sub(block.va));
        }
        self.idle = block.hlt;
        // Tracing may have been switched off or cut meanwhile; of the two orders one is seen by us, one by them.
        self.quick.store(!block.hlt && !self.asked.is_waiting(), Ordering::SeqCst);
        if !state.tracing.load(Ordering::SeqCst) || state.cuts.load(Ordering::SeqCst) != self.cuts {
            self.quick.store(false, Ordering::Relaxed);
        }
    }

    fn address(&mut self, block: &'static Block) -> u64 {
        let expected = self.expected(block);
        if expected != NOWHERE {
            return expected;
        }
        let va = guest::register(Reg::RIP);
        if va == self.back {
            self.found[slot(va)] = (va, block);
        }
        va
    }

    /// Tape entries for a start of tracing, a jump in time, another vCPU's turn. In real time the clock is asked
    /// often, and before whatever the order of events on several vCPUs hangs on: interrupts and task switches.
    fn note_time(&mut self, state: &State, block: &Block) {
        let turned = std::mem::take(&mut self.turned);
        let jump = turned || self.idle;
        if self.on && !jump {
            let timed = block.flags.load(Ordering::Relaxed) & (HANDLER | TIMED) != 0;
            if !state.options.icount
                && (timed || self.tape.is_due())
                && let Some(ns) = state.clock_before(block)
            {
                self.tape.push(Entry::Time { ns, jump: false });
                self.tape.clock_seen();
            }
            return;
        }
        let ns = state.clock_before(block);
        if !self.on {
            let cr3 = guest::register(Reg::CR3);
            self.tape.push(Entry::Start { ns: ns.unwrap_or(0), cr3 });
            if let Some(tlb) = &mut self.tlb {
                tlb.begin(cr3);
            }
            self.on = true;
        } else if let Some(ns) = ns {
            self.tape.push(Entry::Time { ns, jump: true });
        }
    }

    /// The streams were cut since this vCPU looked last.
    pub fn note_cut(&mut self, state: &State) {
        let cuts = state.cuts.load(Ordering::SeqCst);
        if cuts == self.cuts {
            return;
        }
        let (kept, keeps) = (state.keeps(self.cuts), state.keeps(cuts));
        self.cuts = cuts;
        // A window that opened and closed again while nothing ran here is none.
        if kept != keeps || matches!(state.options.keep, Keep::Last { .. }) {
            self.push(Entry::Cut { keep: kept });
        }
    }

    /// At a gate of the IDT, the processor has just pushed the interrupted address: SS, RSP, RFLAGS, CS, RIP and maybe a code.
    fn note_event(&mut self, block: &Block) {
        let Some(vector) = block.vector() else { return };
        let frame = guest::register(Reg::RSP) + if idt::has_error_code(vector) { 8 } else { 0 };
        let mut bytes = [0; 16];
        if guest::memory(frame, &mut bytes) {
            let rip = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            let cs = u16::from_le_bytes([bytes[8], bytes[9]]);
            self.tape.push(Entry::Event { vector, rip, cs });
        }
        if vector == idt::PAGE_FAULT && self.tlb.is_some() && self.on {
            self.tape.push(Entry::Fault(guest::register(Reg::CR2)));
            self.faulting = true;
        }
    }

    /// A function that allocates or frees begins.
    pub fn called(&mut self, function: u8) {
        if !self.on {
            return;
        }
        let last = |n: usize| self.calls[(self.depth + CALLS - n) % CALLS];
        let callers = [last(0), last(1), last(2)].map(|va| if va == NOWHERE { 0 } else { va });
        if let Some((va, bytes)) = self.asked.begin(self.task.pid, function, callers) {
            self.push(Entry::Free(va, bytes));
        }
        if self.asked.is_waiting() {
            self.quick.store(false, Ordering::Relaxed);
        }
    }

    /// Tracing ends while another vCPU runs on this thread.
    pub fn end(&mut self, state: &State) {
        self.note_cut(state);
        self.push(Entry::End);
        self.on = false;
        self.quick.store(false, Ordering::Relaxed);
    }

    /// Records what a hook saw, `insns` instructions into the current block.
    pub fn side(&mut self, insns: u64, what: What) {
        if self.on {
            self.tape.push(Entry::Side(Box::new(Side { insns, what })));
        }
    }

    /// Any other entry of the current block.
    pub fn push(&mut self, entry: Entry) {
        if self.on {
            self.tape.push(entry);
        }
    }

    /// Hands a full chunk over; the next one begins with a time check.
    fn make_room(&mut self, state: &State, block: &Block) {
        if self.tape.is_full() {
            self.hand_over();
            if let Some(ns) = state.clock_before(block).filter(|_| self.on) {
                self.tape.push(Entry::Time { ns, jump: false });
                if !state.options.icount {
                    self.tape.clock_seen();
                }
            }
        }
    }

    /// Gives the chunk to the encoder. Waits if the encoder is behind: memory stays bounded, and the guest
    /// doesn't notice.
    pub fn hand_over(&mut self) {
        if self.tape.is_empty() {
            return;
        }
        let next = self.empty.try_recv().map_or_else(|_| Tape::new(), Tape::reuse);
        let words = std::mem::replace(&mut self.tape, next).into_words();
        // An encoder that is gone has said why; there is nobody left to tell.
        let _ = self.full.send(words);
    }
}

fn slot(va: u64) -> usize {
    ((va >> 2) ^ (va >> 10)) as usize % FOUND
}

/// Whether user code may follow this kernel block.
pub fn may_leave_kernel(block: &Block) -> bool {
    matches!(block.kind, Kind::Far(Far::Iret | Far::Sysret | Far::Sysexit | Far::Segment))
}
