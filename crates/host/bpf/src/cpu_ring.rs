// SPDX-License-Identifier: MIT OR Apache-2.0
//! A ring of records and some counters for each CPU, in one array that programs and this process share.
//!
//! The kernel's own ring costs a program two calls and a lock. Here a record is room taken by one atomic instruction,
//! filled in, and given by the store of its size; there is no call, no lookup, and nothing waits: what interrupts a program
//! between the two takes the room behind.
//!
//! ```text
//! a CPU's region   HEAD │ TAIL │ counters │ ring                        │ slack
//! HEAD, TAIL       bytes ever taken by programs, and ever given back by the reader
//! a record         u32 size, not 0 once all of it is there; then what its maker likes. A multiple of 8 bytes.
//! ```
//!
//! A record that begins before the ring's end goes on in the slack behind it, so that none is split. The reader fills what
//! it has read with zeros before it gives it back: a size that is not 0 is then one of this round. Stores become visible in
//! their order (x86), so that a size comes after what it is the size of.

use crate::asm::{Asm, Label};
use crate::error::Error;
use crate::insn::{self, Alu, Cond, Helper, Reg, Width};
use crate::map::Map;
use crate::mapping::Mapping;

use Reg::{R0, R1, R2, R3, R4};
use Width::{B4, B8};

const HEAD: u32 = 0;
const TAIL: u32 = 64;
/// Where a region's counters begin.
pub const COUNTERS: u32 = 128;
/// All regions together: what the verifier knows of addresses ends there (`BPF_MAX_VAR_OFF`).
const MOST: u64 = 1 << 29;
/// How often a program tries to take room, of which another that interrupts it at one instruction takes it: each such try
/// is one more interrupt within a few instructions.
const TRIES: usize = 4;

/// How the array is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// CPUs that there may be.
    pub cpus: u32,
    /// Bytes of each one's counters.
    pub counters: u32,
    /// Bytes of each one's ring: a power of two.
    pub ring: u32,
    /// Bytes of the longest record.
    pub longest: u32,
}

impl Layout {
    /// One with rings of this size, or of the half of it, and so on, if that is as much as there can be.
    pub fn fitting(cpus: u32, counters: u32, ring: u32, longest: u32) -> Result<Self, Error> {
        let mut layout = Self { cpus, counters, ring, longest };
        if longest > MOST as u32 || counters > MOST as u32 || !ring.is_power_of_two() || cpus == 0 {
            let what = format!("rings of {ring} bytes for {cpus} CPUs, records of {longest} bytes");
            return Err(Error::refused(what, "no program could address them"));
        }
        while layout.bytes() > MOST && layout.ring / 2 > longest {
            layout.ring /= 2;
        }
        if layout.bytes() > MOST || layout.ring < longest {
            let what = format!("rings for {cpus} CPUs");
            return Err(Error::refused(what, format!("they have room in {MOST} bytes only; fewer probes")));
        }
        Ok(layout)
    }

    fn data(&self) -> u32 {
        (COUNTERS + self.counters).next_multiple_of(64)
    }

    /// Bytes of a CPU's region: whole pages.
    pub fn stride(&self) -> u64 {
        (u64::from(self.data()) + u64::from(self.ring) + u64::from(self.longest)).next_multiple_of(4096)
    }

    fn bytes(&self) -> u64 {
        u64::from(self.cpus) * self.stride()
    }

    /// The array.
    pub fn map(&self, name: &str) -> Result<Map, Error> {
        Map::memory(name, self.bytes() as u32)
    }

    /// Where in the array a counter of a CPU is.
    pub fn counter(&self, cpu: usize, at: u32) -> usize {
        cpu * self.stride() as usize + (COUNTERS + at) as usize
    }
}

/// `R1 =` the address of the counter `at` of this CPU. Spoils what calls spoil; ends at `out` if there is no such CPU.
pub fn counter(asm: &mut Asm, layout: &Layout, map: usize, at: u32, out: Label) {
    asm.call(Helper::SmpProcessorId);
    // Kernels before 6.9 do not tell their verifier that there is always one.
    if layout.cpus.is_power_of_two() {
        asm.alu_imm(Alu::And, R0, layout.cpus.cast_signed() - 1);
    } else {
        asm.branch_imm(Cond::Ge, R0, layout.cpus.cast_signed(), out);
    }
    asm.alu_imm(Alu::Mul, R0, layout.stride() as i32);
    asm.map_value(R1, map, COUNTERS + at).alu(Alu::Add, R1, R0);
}

/// Room being taken: what is rare comes after the program's end.
#[derive(Debug)]
#[must_use = "the other tries have to be written too"]
pub struct Reserve {
    layout: Layout,
    size: u32,
    back: i32,
    again: Label,
    taken: Label,
    full: Label,
}

/// `R1 =` a new record of this size, from `R1`, the address of the counter `at`; at `full` if there is no room. Spoils `R0`
/// to `R4`.
pub fn reserve(asm: &mut Asm, layout: &Layout, at: u32, size: u32, full: Label) -> Reserve {
    debug_assert!(size <= layout.longest && size.is_multiple_of(8));
    let mut back = (COUNTERS + at).cast_signed();
    if back > i32::from(i16::MAX) {
        asm.alu_imm(Alu::Sub, R1, back);
        back = 0;
    }
    let reserve = Reserve { layout: *layout, size, back, again: asm.label(), taken: asm.label(), full };
    asm.note("room in this CPU's ring").load(B8, R2, R1, (HEAD as i32 - back) as i16);
    reserve.attempt(asm, reserve.again);
    asm.bind(reserve.taken).alu_imm(Alu::And, R2, layout.ring.cast_signed() - 1);
    asm.alu(Alu::Add, R1, R2).alu_imm(Alu::Add, R1, layout.data().cast_signed() - back);
    reserve
}

impl Reserve {
    /// From `R2`, what `HEAD` was.
    fn attempt(&self, asm: &mut Asm, again: Label) {
        let (head, tail) = ((HEAD as i32 - self.back) as i16, (TAIL as i32 - self.back) as i16);
        asm.mov(R3, R2).load(B8, R4, R1, tail).alu(Alu::Sub, R3, R4);
        asm.branch_imm(Cond::Gt, R3, (self.layout.ring - self.size).cast_signed(), self.full);
        asm.mov(R3, R2).alu_imm(Alu::Add, R3, self.size.cast_signed()).mov(R0, R2);
        asm.put(insn::compare_exchange(R1, head, R3)).branch(Cond::Ne, R0, R2, again);
    }

    /// The other tries: to be written where the program does not come by by itself.
    pub fn retries(self, asm: &mut Asm) {
        let mut again = self.again;
        for number in 1..TRIES {
            asm.bind(again).note("interrupted there").mov(R2, R0);
            again = if number + 1 == TRIES { self.full } else { asm.label() };
            self.attempt(asm, again);
            asm.goto(self.taken);
        }
    }
}

/// Gives the record at `R1` to the reader.
pub fn submit(asm: &mut Asm, size: u32) {
    asm.store_imm(B4, R1, 0, size.cast_signed());
}

/// The reading end of one CPU's ring.
#[derive(Debug)]
pub struct CpuRing<'a> {
    memory: &'a Mapping,
    /// The CPU.
    pub cpu: usize,
    head: usize,
    tail: usize,
    data: usize,
    mask: u64,
    position: u64,
}

impl<'a> CpuRing<'a> {
    /// That of this CPU, in the mapped array. There can be one at a time.
    pub fn new(memory: &'a Mapping, layout: &Layout, cpu: usize) -> Self {
        let base = cpu * layout.stride() as usize;
        let [head, tail, data] = [HEAD, TAIL, layout.data()].map(|at| base + at as usize);
        Self { memory, cpu, head, tail, data, mask: u64::from(layout.ring) - 1, position: memory.read(tail) }
    }

    /// Gives `take` every record there is now; how many there were.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8])) -> usize {
        // Room is given back in pieces that are worth the cache line that goes to another CPU and back.
        const PIECE: usize = 16 << 10;
        let head = self.memory.read_acquire(self.head);
        let mut records = 0;
        while self.position < head {
            let from = self.data + (self.position & self.mask) as usize;
            let until = (head - self.position).min(self.mask + 1 - (self.position & self.mask)) as usize;
            let mut done = 0;
            while done < until.min(PIECE) {
                let size = self.memory.read_acquire(from + done) as u32 as usize;
                if size == 0 || !size.is_multiple_of(8) {
                    break;
                }
                // SAFETY: a record that has its size has no writer any more, and gets no other before it is given back.
                take(unsafe { self.memory.bytes(from + done, size) });
                done += size;
                records += 1;
            }
            if done == 0 {
                break;
            }
            // SAFETY: as above.
            unsafe { self.memory.clear(from, done) };
            self.position += done as u64;
            self.memory.write(self.tail, self.position);
        }
        records
    }

    /// Whether there is something that is not finished: a record being written, or one that came since.
    pub fn is_busy(&self) -> bool {
        self.position < self.memory.read_acquire(self.head)
    }
}
