// SPDX-License-Identifier: GPL-2.0-or-later
//! Work on a vCPU's thread each time a block starts. The common case stores one word. One flag marks everything rare
//! (first run of a block, interrupts, idle, user code at an unexpected address, tracing on or off), which takes the
//! slow path.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use kprism_image::insn::{Far, Kind};
use kprism_image::is_kernel;

use crate::alloc::Calls;
use crate::block::{Block, HANDLER, TIMED, UNLISTED};
use crate::encoder::Encoder;
use crate::goal;
use crate::guest::{self, Reg};
use crate::idt;
use crate::options::{Keep, Options, Start};
use crate::side::{Side, Task, What};
use crate::state::{QUICK, STATE, State};
use crate::tape::{Entry, Passed, Tape, earliest};
use crate::tlb::Tlb;
use crate::vcpus::VCPUS;
use kprism_tlb::Geometry;

/// Largest number of names and mappings that are kept while tracing is off.
const MEANWHILE: usize = 1 << 17;

/// A vCPU. Only its own thread uses it.
pub struct Vcpu {
    /// Tracing is on, and the next block needs no slow path.
    pub quick: &'static AtomicBool,
    /// Its number.
    pub cpu: u32,
    /// Tracing is on for this vCPU.
    pub on: bool,
    /// Guest time may jump after the last block.
    idle: bool,
    /// The last block, of the kernel, gave its turn away.
    yields: bool,
    /// Another vCPU ran on this thread since the last block.
    other_ran: bool,
    /// The vCPU that ran before it then.
    before: Option<usize>,
    /// Guest time at which its last turn ended, if it had work then; ns.
    stopped_ns: Option<u64>,
    /// Guest time in which others had their turn, though it had work; ns.
    still_ns: u64,
    /// Addresses at which user code continues if the last block was user code and ended in a direct branch.
    fall: u64,
    target: u64,
    /// Address after the last system call made in this address space.
    resume: u64,
    /// Address at which user code continues if the last block returned from a call, or from a system call; [`NOWHERE`] if
    /// it did neither.
    expected_return: u64,
    /// Return addresses of calls by user code, newest at `depth`.
    calls: [u64; CALLS],
    depth: usize,
    /// Cache: return address in this address space → the block that ran there.
    return_blocks: Box<[(u64, *const Block); FOUND]>,
    tape: Tape,
    /// Address at which the last block runs.
    pub va: u64,
    /// Guest time in ns at the start of the last block with an instruction that may begin or end an interval.
    pub block_ns: u64,
    /// The last block, in a replay to a goal.
    pub block: Option<&'static Block>,
    /// Counts the instructions in a replay to a goal.
    counter: Option<Box<Encoder>>,
    /// The TLB models, if requested.
    pub tlb: Option<Box<Tlb>>,
    /// Open calls of allocating functions.
    allocating: Calls,
    /// True while a page fault is handled.
    faulting: bool,
    /// The running task, as of the last switch.
    pub task: Task,
    /// Address of its `task_struct`, if it was seen to be switched to.
    pub task_at: Option<u64>,
    /// The task that ran when tracing was switched off.
    left: Option<Task>,
    /// Names and mappings since then, and that functions are gone, which hold when it goes on.
    meanwhile: Vec<What>,
    /// A mark to record once tracing is on.
    pub mark: Option<u32>,
    /// Number of splits when this vCPU last checked.
    splits: u64,
    /// Begin of what triggered a snapshot on this vCPU since then, ns.
    since_ns: Option<u64>,
    full: SyncSender<Vec<u64>>,
    empty: Receiver<Vec<u64>>,
}

/// Maximum of calls whose return is tracked.
const CALLS: usize = 64;
/// Number of return places in the cache.
const FOUND: usize = 256;
/// Not a user address.
const NOWHERE: u64 = u64::MAX;

impl Vcpu {
    /// vCPU number `cpu`, which sends its buffers to `full` and takes emptied ones from `empty`.
    pub fn new(cpu: u32, full: SyncSender<Vec<u64>>, empty: Receiver<Vec<u64>>, tlb: &[Geometry]) -> Self {
        Vcpu {
            quick: &QUICK[cpu as usize],
            cpu,
            on: false,
            idle: false,
            yields: false,
            other_ran: false,
            before: None,
            stopped_ns: None,
            still_ns: 0,
            fall: NOWHERE,
            target: NOWHERE,
            resume: NOWHERE,
            expected_return: NOWHERE,
            calls: [NOWHERE; CALLS],
            depth: 0,
            return_blocks: Box::new([(NOWHERE, std::ptr::null()); FOUND]),
            tape: Tape::new(),
            va: 0,
            block_ns: 0,
            block: None,
            counter: None,
            tlb: (!tlb.is_empty()).then(|| Box::new(Tlb::new(tlb))),
            allocating: Calls::default(),
            faulting: false,
            task: Task::default(),
            task_at: None,
            left: None,
            meanwhile: Vec::new(),
            mark: None,
            splits: 0,
            since_ns: None,
            full,
            empty,
        }
    }

    /// vCPU number `cpu` of a replay to a goal: it counts, and records nothing.
    pub fn counting(cpu: u32, options: &Options) -> Self {
        // Nothing is sent or received.
        let ((full, _), (_, empty)) = (sync_channel(1), channel());
        let counter = Some(Box::new(Encoder::new(cpu, options)));
        Vcpu { counter, ..Vcpu::new(cpu, full, empty, &[]) }
    }

    /// The next block follows another vCPU's, number `before`.
    pub fn scheduled(&mut self, before: Option<usize>) {
        (self.other_ran, self.before) = (true, before);
        self.quick.store(false, Ordering::Relaxed);
    }

    /// A kernel block starts that is not a gate of the IDT.
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

    /// The address at which `block` runs, as far as it can be derived without reading a register. A translation is
    /// shared by all mappings of its physical page, so `block.va` gives only the offset in the page. If the two targets of a
    /// direct branch differ in that offset, it tells which one runs.
    #[inline(always)]
    fn expected(&self, block: &'static Block) -> u64 {
        let fits = |va: u64| (va ^ block.va).trailing_zeros() >= 12;
        match (fits(self.fall), fits(self.target)) {
            (true, false) => self.fall,
            (false, true) => self.target,
            // The same code in the same address space, after the call or system call that was made there.
            (false, false)
                if self.return_blocks[slot(self.expected_return)] == (self.expected_return, block) =>
            {
                self.expected_return
            }
            _ => NOWHERE,
        }
    }

    /// Sets the addresses at which user code may continue after `block`, which ran `delta` beyond its translated
    /// address.
    #[inline]
    fn expect(&mut self, block: &Block, delta: u64) {
        let at = |va: u64| va.wrapping_add(delta);
        self.expected_return = NOWHERE;
        (self.fall, self.target) = match block.kind {
            Kind::CondJump { target } => (at(block.va.wrapping_add(block.size())), at(target)),
            Kind::Jump { target } => (NOWHERE, at(target)),
            Kind::Call { target } => {
                self.push_return(at(block.va.wrapping_add(block.size())));
                (NOWHERE, at(target))
            }
            Kind::IndirectCall => {
                self.push_return(at(block.va.wrapping_add(block.size())));
                (NOWHERE, NOWHERE)
            }
            Kind::Ret => {
                self.expected_return = self.calls[self.depth];
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

    /// A call by user code, which will return to `back`.
    #[inline]
    fn push_return(&mut self, back: u64) {
        self.depth = (self.depth + 1) % CALLS;
        self.calls[self.depth] = back;
    }

    /// The kernel may be about to return to user code, which can be at any address, but mostly follows a system call.
    pub fn leave_kernel(&mut self) {
        (self.fall, self.target) = (NOWHERE, NOWHERE);
        self.expected_return = self.resume;
        if std::mem::take(&mut self.faulting) && self.on {
            self.tape.push(Entry::FaultEnd);
        }
    }

    /// CR3 was loaded.
    pub fn new_space(&mut self, cr3: u64) {
        self.resume = NOWHERE;
        self.calls = [NOWHERE; CALLS];
        self.return_blocks.fill((NOWHERE, std::ptr::null()));
        self.push(Entry::Cr3(cr3));
        if let Some(tlb) = &mut self.tlb {
            tlb.load_cr3(cr3);
        }
    }

    #[cold]
    #[inline(never)]
    fn slow(&mut self, block: &'static Block, check: bool) {
        let Some(state) = STATE.get() else { return };
        if state.closed.load(Ordering::Acquire) || goal::is_done() {
            return;
        }
        let tracing = state.tracing.load(Ordering::Relaxed);
        if !tracing && !self.on {
            return;
        }
        let va = if check { self.address(block) } else { block.va };
        if !tracing {
            self.note_interrupt(block);
            self.note_splits(state);
            state.hold_at_windows(block);
            self.tape.push(Entry::Stop { va });
            self.on = false;
            self.left = Some(self.task.clone());
            self.quick.store(false, Ordering::Relaxed);
            self.hand_over();
            return;
        }
        if !self.on && state.options.start == Start::Boot && !is_kernel(va) {
            return;
        }
        self.make_room(state, block);
        self.note_time(state, block);
        self.note_interrupt(block);
        self.note_splits(state);
        state.hold_at_windows(block);
        if va != block.va {
            self.tape.push(Entry::At(va));
        }
        self.va = va;
        state.ensure_in_dict(block);
        self.tape.block(block);
        if self.counter.is_some() {
            self.count(state, block);
        }
        if check
            && self.allocating.is_waiting()
            && let Some((freed, got)) = self.allocating.returned(self.task.pid, va)
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
        (self.idle, self.yields) = (block.hlt, block.pause);
        // If the other thread switched tracing off, or split the streams, before this store, the check below sees it. If
        // after, that thread clears `quick` itself.
        self.quick.store(
            !block.hlt && !block.pause && self.counter.is_none() && !self.allocating.is_waiting(),
            Ordering::SeqCst,
        );
        if !state.tracing.load(Ordering::SeqCst) || state.splits.load(Ordering::SeqCst) != self.splits {
            self.quick.store(false, Ordering::Relaxed);
        }
    }

    /// Counts the instructions before `block`, which starts, and looks for the goal in it.
    fn count(&mut self, state: &State, block: &'static Block) {
        let (Some(counter), Some(goal)) = (&mut self.counter, state.options.goal) else { return };
        self.tape.drain(|entry| counter.entry(entry));
        counter.discard();
        self.block = Some(block);
        // Of the last packets before a condition, the first instruction is not known.
        let in_part = state.keeps(self.splits) && !matches!(state.options.keep, Keep::Last { .. });
        let before = (counter.kept(in_part), counter.ns());
        goal::block_starts(goal, self.cpu, block, self.va, before, in_part);
    }

    fn address(&mut self, block: &'static Block) -> u64 {
        let expected = self.expected(block);
        if expected != NOWHERE {
            return expected;
        }
        let va = guest::register(Reg::RIP).wrapping_add(guest::code_base(block.mode));
        if va == self.expected_return {
            self.return_blocks[slot(va)] = (va, block);
        }
        va
    }

    /// Writes tape entries for a start of tracing, a jump in time, another vCPU that ran. In real time the clock is read
    /// often, and before events that fix the order between vCPUs: interrupts and task switches.
    fn note_time(&mut self, state: &State, block: &Block) {
        let other_ran = std::mem::take(&mut self.other_ran);
        let passed = match (self.idle, other_ran) {
            (true, _) => Passed::Idle,
            (false, true) => Passed::Waiting,
            (false, false) => Passed::Running,
        };
        if self.on && passed == Passed::Running {
            let timed = block.flags.load(Ordering::Relaxed) & (HANDLER | TIMED) != 0;
            if !state.options.icount
                && (timed || self.tape.is_due())
                && let Some(ns) = state.clock_before(block)
            {
                self.tape.push(Entry::Time { ns, passed });
                self.tape.clock_seen();
            }
            return;
        }
        let ns = state.clock_before(block);
        if let Some(ns) = ns.filter(|_| other_ran) {
            self.note_turn(ns);
        }
        if !self.on {
            let cr3 = guest::register(Reg::CR3);
            self.tape.push(Entry::Start { ns: ns.unwrap_or(0), cr3 });
            for what in std::mem::take(&mut self.meanwhile) {
                self.tape.push(Entry::Side(Box::new(Side { insns: 0, what })));
            }
            if let Some(task) = state.hooks.current(self.cpu) {
                (self.task, self.task_at) = (task, None);
                if let Some(prev) = self.left.take().filter(|left| left.pid != self.task.pid) {
                    let what = What::Switch { ip: 0, prev, next: self.task.clone() };
                    self.tape.push(Entry::Side(Box::new(Side { insns: 0, what })));
                }
            }
            if let Some(tlb) = &mut self.tlb {
                tlb.begin(cr3);
            }
            self.on = true;
        } else if let Some(ns) = ns {
            self.tape.push(Entry::Time { ns, passed });
        }
    }

    /// A turn begins at `ns`: that of another vCPU ended.
    fn note_turn(&mut self, ns: u64) {
        if let Some(stopped_ns) = self.stopped_ns.take() {
            self.still_ns += ns.saturating_sub(stopped_ns);
        }
        let other = self.before.take().and_then(|slot| VCPUS.get(slot));
        let other = other.map_or(std::ptr::null_mut(), |slot| slot.load(Ordering::Relaxed));
        if !other.is_null() && !std::ptr::eq(other, self) {
            // SAFETY: leaked at init; both share this thread, so the other one is in no callback.
            let other = unsafe { &mut *other };
            other.stopped_ns = (!other.idle && !other.yields).then_some(ns);
        }
    }

    /// Guest time until `ns`, the start of a block, in which others had their turn, though this vCPU had work; ns.
    pub fn still_ns(&self, ns: u64) -> u64 {
        let now = self.stopped_ns.filter(|_| self.other_ran);
        self.still_ns + now.map_or(0, |stopped_ns| ns.saturating_sub(stopped_ns))
    }

    /// A call or an interval that began at `since_ns` triggered a snapshot here.
    pub fn snapshot_since(&mut self, since_ns: Option<u64>) {
        self.since_ns = earliest(self.since_ns, since_ns);
    }

    /// Handles splits of the streams since this vCPU last checked.
    pub fn note_splits(&mut self, state: &State) {
        let splits = state.splits.load(Ordering::SeqCst);
        if splits == self.splits {
            return;
        }
        let (kept, keeps) = (state.keeps(self.splits), state.keeps(splits));
        self.splits = splits;
        let since_ns = self.since_ns.take();
        // A window that opened and closed while nothing ran here is ignored.
        if kept != keeps || matches!(state.options.keep, Keep::Last { .. }) {
            self.push(Entry::Split { keep: kept, since_ns });
        }
    }

    /// At a gate of the IDT the processor has just pushed the interrupted state: SS, RSP, RFLAGS, CS, RIP and possibly
    /// an error code.
    fn note_interrupt(&mut self, block: &Block) {
        let Some(vector) = block.vector() else { return };
        let frame = guest::register(Reg::RSP) + if idt::has_error_code(vector) { 8 } else { 0 };
        let mut bytes = [0; 16];
        if guest::memory(frame, &mut bytes) {
            let rip = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            let cs = u16::from_le_bytes([bytes[8], bytes[9]]);
            self.tape.push(Entry::Interrupt { vector, rip, cs });
        }
        if vector == idt::PAGE_FAULT && self.tlb.is_some() && self.on {
            self.tape.push(Entry::Fault(guest::register(Reg::CR2)));
            self.faulting = true;
        }
    }

    /// A function that allocates or frees begins.
    pub fn allocator_entered(&mut self, function: u8) {
        if !self.on {
            return;
        }
        let last = |n: usize| self.calls[(self.depth + CALLS - n) % CALLS];
        let callers = [last(0), last(1), last(2)].map(|va| if va == NOWHERE { 0 } else { va });
        if let Some((va, bytes)) = self.allocating.begin(self.task.pid, function, callers) {
            self.push(Entry::Free(va, bytes));
        }
        if self.allocating.is_waiting() {
            self.quick.store(false, Ordering::Relaxed);
        }
    }

    /// Tracing ends while another vCPU runs on this thread.
    pub fn end(&mut self, state: &State) {
        self.note_splits(state);
        self.push(Entry::End);
        self.on = false;
        self.quick.store(false, Ordering::Relaxed);
    }

    /// True if names and mappings are of use: tracing is on, or was.
    pub fn follows_mappings(&self) -> bool {
        self.on || self.left.is_some()
    }

    /// Records an event of a hook, `insns` instructions into the current block.
    pub fn side(&mut self, insns: u64, what: What) {
        if self.on {
            self.tape.push(Entry::Side(Box::new(Side { insns, what })));
        } else if self.left.is_some()
            && self.meanwhile.len() < MEANWHILE
            && matches!(what, What::Comm(_) | What::Mmap { .. } | What::Functions { gone: true, .. })
        {
            self.meanwhile.push(what);
        }
    }

    /// Records any other entry of the current block.
    pub fn push(&mut self, entry: Entry) {
        if self.on {
            self.tape.push(entry);
        }
    }

    /// Hands over a full buffer. The next one begins with a reading of the clock.
    fn make_room(&mut self, state: &State, block: &Block) {
        if self.tape.is_full() {
            self.hand_over();
            if let Some(ns) = state.clock_before(block).filter(|_| self.on) {
                self.tape.push(Entry::Time { ns, passed: Passed::Running });
                if !state.options.icount {
                    self.tape.clock_seen();
                }
            }
        }
    }

    /// Sends the buffer to the encoder. Waits if the encoder is behind: memory stays bounded, and the guest does not
    /// notice.
    pub fn hand_over(&mut self) {
        if let Some(counter) = &mut self.counter {
            self.tape.drain(|entry| counter.entry(entry));
            return counter.discard();
        }
        if self.tape.is_empty() {
            return;
        }
        let next = self.empty.try_recv().map_or_else(|_| Tape::new(), Tape::reuse);
        let words = std::mem::replace(&mut self.tape, next).into_words();
        // An encoder that has ended has reported the reason. Nothing can receive the buffer.
        let _ = self.full.send(words);
    }
}

fn slot(va: u64) -> usize {
    ((va >> 2) ^ (va >> 10)) as usize % FOUND
}

/// Returns true if user code may follow this kernel block.
pub fn may_leave_kernel(block: &Block) -> bool {
    matches!(block.kind, Kind::Far(Far::Iret | Far::Sysret | Far::Sysexit | Far::Segment))
}
