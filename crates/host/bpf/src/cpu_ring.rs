// SPDX-License-Identifier: MIT OR Apache-2.0
//! A ring of records and some counters for each CPU, in one array that programs and this process share.
//!
//! The kernel's own ring buffer costs a program two calls and a lock. Here a program reserves a record with one atomic
//! instruction, fills it in, and publishes it by storing its size. There is no call, no lookup and no waiting: a
//! program that interrupts another one in between reserves the next record.
//!
//! ```text
//! a CPU's region   HEAD │ TAIL │ counters │ ring                        │ slack
//! HEAD, TAIL       total bytes ever reserved by programs, and ever released by the reader
//! a record         u32 size, not 0 once it is complete; then the writer's data. A multiple of 8 bytes.
//! ```
//!
//! A record that begins before the end of the ring continues in the slack after it, so no record is split. The reader
//! clears records before it releases them, so a size other than 0 always belongs to the current round. Stores become
//! visible in program order (x86), so the size becomes visible after the data.

use crate::error::Error;
use crate::map::Map;
use crate::mapping::Mapping;
use kprism_ebpf::asm::{Asm, Label};
use kprism_ebpf::insn::{self, Alu, Cond, Helper, Reg, Width};

use Reg::{R0, R1, R2, R3, R4};
use Width::{B4, B8};

const HEAD: u32 = 0;
const TAIL: u32 = 64;
/// Offset of a region's counters.
pub const COUNTERS: u32 = 128;
/// Limit of the array's size in bytes: the verifier does not track larger offsets (`BPF_MAX_VAR_OFF`).
const MOST: u64 = 1 << 29;
/// Limit of attempts to reserve a record. An attempt fails only if another program interrupts it at one certain
/// instruction and reserves a record; each further failure takes one more interrupt within a few instructions.
const TRIES: usize = 4;

/// Layout of the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number of possible CPUs.
    pub cpus: u32,
    /// Size of each CPU's counters in bytes.
    pub counters: u32,
    /// Size of each CPU's ring in bytes: a power of two.
    pub ring: u32,
    /// Size of the longest record in bytes.
    pub longest: u32,
}

impl Layout {
    /// Returns a layout with rings of this size. The size is halved as often as needed to fit the limit.
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

    /// Size of a CPU's region in bytes: whole pages.
    pub fn stride(&self) -> u64 {
        (u64::from(self.data()) + u64::from(self.ring) + u64::from(self.longest)).next_multiple_of(4096)
    }

    fn bytes(&self) -> u64 {
        u64::from(self.cpus) * self.stride()
    }

    /// Creates the array.
    pub fn map(&self, name: &str) -> Result<Map, Error> {
        Map::memory(name, self.bytes() as u32)
    }

    /// Returns the offset of a CPU's counter in the array.
    pub fn counter(&self, cpu: usize, at: u32) -> usize {
        cpu * self.stride() as usize + (COUNTERS + at) as usize
    }
}

/// `R1 =` the address of the counter `at` of this CPU. Clobbers the registers that calls clobber. Jumps to `out` if the
/// CPU number is out of range.
pub fn counter(asm: &mut Asm, layout: &Layout, map: usize, at: u32, out: Label) {
    asm.call(Helper::SmpProcessorId);
    // Before Linux 6.9 the verifier does not know that the CPU number is in range.
    if layout.cpus.is_power_of_two() {
        asm.alu_imm(Alu::And, R0, layout.cpus.cast_signed() - 1);
    } else {
        asm.branch_imm(Cond::Ge, R0, layout.cpus.cast_signed(), out);
    }
    asm.alu_imm(Alu::Mul, R0, layout.stride() as i32);
    asm.map_value(R1, map, COUNTERS + at).alu(Alu::Add, R1, R0);
}

/// A reservation in progress. Its rare paths are to be emitted after the program's end.
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

/// `R1 =` a new record of this size. On entry `R1` is the address of the counter `at`. Jumps to `full` if there is no
/// room. Clobbers `R0` to `R4`.
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
    /// Emits an attempt. `R2` is the value of `HEAD`.
    fn attempt(&self, asm: &mut Asm, again: Label) {
        let (head, tail) = ((HEAD as i32 - self.back) as i16, (TAIL as i32 - self.back) as i16);
        asm.mov(R3, R2).load(B8, R4, R1, tail).alu(Alu::Sub, R3, R4);
        asm.branch_imm(Cond::Gt, R3, (self.layout.ring - self.size).cast_signed(), self.full);
        asm.mov(R3, R2).alu_imm(Alu::Add, R3, self.size.cast_signed()).mov(R0, R2);
        asm.put(insn::compare_exchange(R1, head, R3)).branch(Cond::Ne, R0, R2, again);
    }

    /// Emits the further attempts. To be placed where execution does not fall through.
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

/// Publishes the record at `R1` to the reader.
pub fn submit(asm: &mut Asm, size: u32) {
    asm.store_imm(B4, R1, 0, size.cast_signed());
}

/// Reader of one CPU's ring.
#[derive(Debug)]
pub struct CpuRing<'a> {
    memory: &'a Mapping,
    /// CPU number.
    pub cpu: usize,
    head: usize,
    tail: usize,
    data: usize,
    mask: u64,
    position: u64,
}

impl<'a> CpuRing<'a> {
    /// Opens the ring of this CPU in the mapped array. Only one reader may exist at a time.
    pub fn new(memory: &'a Mapping, layout: &Layout, cpu: usize) -> Self {
        let base = cpu * layout.stride() as usize;
        let [head, tail, data] = [HEAD, TAIL, layout.data()].map(|at| base + at as usize);
        Self { memory, cpu, head, tail, data, mask: u64::from(layout.ring) - 1, position: memory.read(tail) }
    }

    /// Passes all complete records to `take`. Returns their number.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8])) -> usize {
        // Room is released in large pieces, because each release moves a cache line to another CPU and back.
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
                // SAFETY: a record with a size is complete, and no program writes there again before the record is
                // released.
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

    /// Returns true if the ring is not empty: a record is being written, or was written since the last read.
    pub fn is_busy(&self) -> bool {
        self.position < self.memory.read_acquire(self.head)
    }
}
