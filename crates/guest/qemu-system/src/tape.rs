// SPDX-License-Identifier: GPL-2.0-or-later
//! The tape between a vCPU's thread and its encoder: a sequence of 64-bit words. A word with bit 0 clear is the address
//! of the [`Block`] that starts. A word with bit 0 set starts an escape sequence of fixed length. So the common case
//! takes one word and one store.

use kprism_tlb::stream::Alloc;
use kprism_tlb::{Access, Missed, PageSize};

use crate::block::Block;
use crate::side::Side;

const AT: u64 = 1;
const START: u64 = 3;
const STOP: u64 = 5;
const TIME: u64 = 7;
const INTERRUPT: u64 = 9;
const CR3: u64 = 11;
const BLOCK_ENDED: u64 = 13;
const SIDE: u64 = 15;
const END: u64 = 17;
/// A split of the stream: the piece before is kept, or dropped.
const SPLIT_KEEP: u64 = 19;
const SPLIT_DROP: u64 = 35;
/// The same as SPLIT_KEEP, with a begin.
const SPLIT_SINCE: u64 = 37;
/// In the low byte. The other bits say what missed.
const MISS: u64 = 21;
/// A TLB entry, or all of them, was invalidated.
const INVALIDATED: u64 = 23;
const INVALIDATED_ALL: u64 = 25;
const FAULT: u64 = 27;
const FAULT_END: u64 = 29;
const ALLOC: u64 = 31;
const FREE: u64 = 33;

/// Reason why guest time passed between two blocks of a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// With its instructions.
    Running,
    /// It was idle, or gave its turn away at a `pause`: a real processor spins on.
    Idle,
    /// Others had their turn. It had work.
    Waiting,
}

/// One entry of the tape.
#[derive(Debug)]
pub enum Entry {
    /// A block starts.
    Block(&'static Block),
    /// The next block runs at this address, not at the one for which it was translated.
    At(u64),
    /// Tracing begins with the next block: guest time in ns, CR3.
    Start { ns: u64, cr3: u64 },
    /// Tracing ends; this is the address that would have run next.
    Stop { va: u64 },
    /// Tracing ended while another vCPU ran. The last block here may not have ended.
    End,
    /// Guest time at the start of the next block, ns, and how it passed since the block before.
    Time { ns: u64, passed: Passed },
    /// The next block was entered through IDT gate `vector`; `rip` and `cs` are what the processor saved.
    Interrupt { vector: u8, rip: u64, cs: u16 },
    /// The last block loaded CR3.
    Cr3(u64),
    /// The last block ran to its end (reported only if that is not evident otherwise).
    BlockEnded,
    /// The stream is split before the next block. The piece since the last split is kept or dropped. `since_ns`: begin of what
    /// triggered this on this vCPU, if it is kept and something that has a begin did.
    Split { keep: bool, since_ns: Option<u64> },
    /// Instruction `index` of the last block, or its fetch, missed a TLB at `va`, or had a hit that a replay needs.
    Miss { index: u32, va: u64, access: Access, missed: Missed },
    /// The last block dropped TLB entries: those of a page, or all (`None`).
    Invalidated(Option<u64>),
    /// A page fault at this address begins; the next block handles it.
    Fault(u64),
    /// The next block ends its handling.
    FaultEnd,
    /// A program got memory from the function from which the last block returned. The encoder sets its time.
    Alloc(Alloc),
    /// The last block frees memory: address, bytes (0: all).
    Free(u64, u64),
    /// A hooked kernel function was entered, `insns` instructions into the last block.
    Side(Box<Side>),
}

/// The earlier of two times that may be absent.
pub fn earliest(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Writes entries; the inverse of [`read`].
#[derive(Debug)]
pub struct Tape {
    words: Vec<u64>,
    /// Length at which the buffer is full or the clock must be read.
    limit: usize,
}

/// Words in a buffer: 512 KiB.
pub const BUFFER: usize = 64 * 1024;
/// Words reserved for the entries of one step.
const SLACK: usize = 64;
/// Words between two readings of the clock, where it must be read: some microseconds.
const CLOCK: usize = 256;

impl Tape {
    /// An empty buffer.
    pub fn new() -> Self {
        Tape { words: Vec::with_capacity(BUFFER), limit: BUFFER - SLACK }
    }

    /// Reuses a buffer that has been read.
    pub fn reuse(mut words: Vec<u64>) -> Self {
        words.clear();
        Tape { words, limit: BUFFER - SLACK }
    }

    /// Returns true if the buffer must be handed over, or the clock read.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.words.len() > self.limit
    }

    /// Returns true if the buffer must be handed over.
    pub fn is_full(&self) -> bool {
        self.words.len() + SLACK > BUFFER
    }

    /// The clock was read; sets when it must be read again.
    pub fn clock_seen(&mut self) {
        self.limit = (self.words.len() + CLOCK).min(BUFFER - SLACK);
    }

    /// Returns true if nothing is written yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the words, for [`read`].
    pub fn into_words(self) -> Vec<u64> {
        self.words
    }

    /// Reads the entries, and empties the buffer.
    pub fn drain(&mut self, each: impl FnMut(Entry)) {
        read(&self.words, each);
        self.words.clear();
    }

    /// A block starts at the address for which it was translated.
    #[inline]
    pub fn block(&mut self, block: &'static Block) {
        self.words.push(std::ptr::from_ref(block) as u64);
    }

    /// Writes any other entry.
    pub fn push(&mut self, entry: Entry) {
        match entry {
            Entry::Block(b) => self.block(b),
            Entry::At(va) => self.words.extend([AT, va]),
            Entry::Start { ns, cr3 } => self.words.extend([START, ns, cr3]),
            Entry::Stop { va } => self.words.extend([STOP, va]),
            Entry::Time { ns, passed } => self.words.extend([TIME, ns, passed as u64]),
            Entry::Interrupt { vector, rip, cs } => {
                self.words.extend([INTERRUPT, u64::from(vector) | u64::from(cs) << 8, rip]);
            }
            Entry::Cr3(v) => self.words.extend([CR3, v]),
            Entry::BlockEnded => self.words.push(BLOCK_ENDED),
            Entry::End => self.words.push(END),
            Entry::Split { keep: true, since_ns: Some(ns) } => self.words.extend([SPLIT_SINCE, ns]),
            Entry::Split { keep, .. } => self.words.push(if keep { SPLIT_KEEP } else { SPLIT_DROP }),
            Entry::Miss { index, va, access, missed } => {
                let how = (access as u64) << 8 | (missed.size as u64) << 10;
                let who = u64::from(missed.first) << 16 | u64::from(missed.last) << 24;
                self.words.extend([MISS | how | who | u64::from(index) << 32, va]);
            }
            Entry::Invalidated(Some(va)) => self.words.extend([INVALIDATED, va]),
            Entry::Invalidated(None) => self.words.push(INVALIDATED_ALL),
            Entry::Fault(va) => self.words.extend([FAULT, va]),
            Entry::FaultEnd => self.words.push(FAULT_END),
            Entry::Alloc(a) => {
                let [f, g, h] = a.frames;
                self.words.extend([ALLOC, a.function.into(), a.va, a.bytes, f, g, h]);
            }
            Entry::Free(va, bytes) => self.words.extend([FREE, va, bytes]),
            Entry::Side(s) => self.words.extend([SIDE, Box::into_raw(s) as u64]),
        }
    }
}

/// Reads a buffer's entries in order. Each buffer must be read exactly once, because it owns its `Side` records.
pub fn read(words: &[u64], mut each: impl FnMut(Entry)) {
    let mut words = words.iter().copied();
    let mut next = || words.next();
    while let Some(word) = next() {
        let mut arg = || next().expect("an escape is never split between buffers");
        each(match word {
            AT => Entry::At(arg()),
            START => Entry::Start { ns: arg(), cr3: arg() },
            STOP => Entry::Stop { va: arg() },
            TIME => {
                let ns = arg();
                let passed = [Passed::Running, Passed::Idle, Passed::Waiting][arg() as usize];
                Entry::Time { ns, passed }
            }
            INTERRUPT => {
                let gate = arg();
                Entry::Interrupt { vector: gate as u8, cs: (gate >> 8) as u16, rip: arg() }
            }
            CR3 => Entry::Cr3(arg()),
            BLOCK_ENDED => Entry::BlockEnded,
            END => Entry::End,
            SPLIT_KEEP => Entry::Split { keep: true, since_ns: None },
            SPLIT_DROP => Entry::Split { keep: false, since_ns: None },
            SPLIT_SINCE => Entry::Split { keep: true, since_ns: Some(arg()) },
            // SAFETY: written by `push` from `Box::into_raw`, read once.
            SIDE => Entry::Side(unsafe { Box::from_raw(arg() as *mut Side) }),
            FAULT => Entry::Fault(arg()),
            FAULT_END => Entry::FaultEnd,
            ALLOC => Entry::Alloc(Alloc {
                ns: 0,
                function: arg() as u8,
                va: arg(),
                bytes: arg(),
                frames: [arg(), arg(), arg()],
            }),
            FREE => Entry::Free(arg(), arg()),
            INVALIDATED => Entry::Invalidated(Some(arg())),
            INVALIDATED_ALL => Entry::Invalidated(None),
            miss if miss & 0xff == MISS => Entry::Miss {
                index: (miss >> 32) as u32,
                va: arg(),
                access: Access::from_number((miss >> 8) as u8 & 3).unwrap_or(Access::Load),
                missed: Missed {
                    size: PageSize::from_number((miss >> 10) as u8 & 3).unwrap_or(PageSize::K4),
                    first: (miss >> 16) as u8,
                    last: (miss >> 24) as u8,
                    touched: miss >> 16 & 0xff == 0,
                },
            },
            // SAFETY: every even word was written by `block` from a reference that lives forever.
            block => Entry::Block(unsafe { &*(block as *const Block) }),
        });
    }
}
