// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layout of the memory that the programs at function entry and return share with this process.
//!
//! There are two arrays with one value each. This process maps them; programs access them without a lookup:
//!
//! - `cpus`: a region for each CPU. It begins with the state of the running task and the error counters, followed by a
//!   [row](ROW) for each function. Only its own CPU writes it, so no atomic instructions are needed.
//! - `stacks`: 1024 stacks of open calls, 4 KiB each. The first word of the CPU's region identifies the running task's
//!   stack; the program at the task switch (see `sched`) replaces it. So entry and return need no lookup.
//!
//! `top` identifies a stack. It is a byte offset into `stacks`: the next free frame is at `top + 64`, the last frame at
//! `top + 32`, its caller's at `top`. The first two slots are unused and have key 0, so a return without an entry finds
//! no frame. Bit [`FULL`] in `top` marks a full stack. `top` is [`OFF`] for tasks that are not traced.

/// Size of `stacks` in bytes: the limit of an array's value.
pub const STACKS_BYTES: u32 = 4 << 20;
/// Size of a stack in bytes. Frames use at most half of it: 64 frames.
pub const STACK_BYTES: u32 = 4096;
/// Limit of tasks with open calls at the same time; stack 0 means none.
pub const STACKS: u32 = STACKS_BYTES / STACK_BYTES;
/// Bit of `top`: there is no room for another frame.
pub const FULL: u32 = 0x800;
/// `top` of a task that is not traced.
pub const OFF: u32 = FULL;
/// `top` of a task if all stacks are in use.
pub const NONE_LEFT: u32 = FULL | 0x20;
/// Mask of the address bits of `top`. After masking, the verifier knows that the address is inside the array.
pub const TOP_MASK: u32 = (STACKS_BYTES - STACK_BYTES) | 0x7e0;

/// Size of a frame in bytes: key, time of entry, time of callees, time off the CPU.
pub const FRAME: i32 = 32;
/// Identity of the call: the address of the trampoline's frame, or the function's number + 1.
pub const KEY: i16 = 0;
/// Time of entry, in ns.
pub const ENTERED: i16 = 8;
/// Time of callees on a CPU, in ns.
pub const CHILD: i16 = 16;
/// Time off the CPU, in ns: in the call itself or in a callee that has returned.
pub const AWAY: i16 = 24;

/// Offset in a stack of the time at which its task left the CPU. It is in the half that frames do not use.
pub const SINCE: i16 = 0x900;

/// Offsets of the fields at the beginning of a CPU's region.
pub mod cpu {
    /// `top` of the running task's stack.
    pub const TOP: i16 = 0;
    /// An empty stack, reserved for the next task without one.
    pub const SPARE: i16 = 8;
    /// Calls not measured, because 64 were open, or because 1023 tasks had open calls.
    pub const OVERFLOWED: i16 = 16;
    /// Returns of calls that began before the recording, or whose entry was missed.
    pub const ORPHANS: i16 = 24;
    /// Frames whose return was missed.
    pub const ABANDONED: i16 = 32;
    /// Calls that were open when their task ended.
    pub const UNFINISHED: i16 = 40;
    /// Records lost because the ring was full.
    pub const LOST: i16 = 48;
    /// Calls that were not kept, because the condition did not hold.
    pub const FILTERED: i16 = 56;
    /// Size of these fields in bytes.
    pub const BYTES: u32 = 64;
}

/// Size of a function's row in bytes.
pub const ROW: u32 = 584;

/// Offsets of the fields of a row. The row keeps a current range of durations: all are in the same bucket, and none
/// changes the minimum or maximum. Most calls take as long as the previous one and only increment the range's counter.
pub mod row {
    /// Time of all calls, in ns.
    pub const TOTAL: i16 = 0;
    /// Time of their callees on a CPU, in ns.
    pub const CHILD: i16 = 8;
    /// Lowest duration of the current range.
    pub const LOW: i16 = 16;
    /// Highest duration of the current range, minus the lowest. Before the first call `LOW` is `u64::MAX`, so no
    /// duration is inside.
    pub const SPAN: i16 = 24;
    /// Number of calls in the current range, which are not yet in a bucket.
    pub const AT_HAND: i16 = 32;
    /// Bucket of the current range, as a byte offset from `BUCKETS`.
    pub const BUCKET: i16 = 40;
    /// Complement of the shortest duration, so that 0 means none.
    pub const NOT_MIN: i16 = 48;
    /// Longest duration.
    pub const MAX: i16 = 56;
    /// 64 counters. Bucket N counts durations from 2^N to 2^(N+1) - 1 ns, bucket 0 also 0.
    pub const BUCKETS: i16 = 64;
    /// Time off the CPU, in ns, in the calls and their callees.
    pub const AWAY: i16 = 576;
}

/// Size of a CPU's region for this many functions, in bytes.
pub fn region(functions: usize) -> u64 {
    u64::from(cpu::BYTES) + functions as u64 * u64::from(ROW)
}

/// Shift from a CPU number to the offset of its region.
pub fn shift(functions: usize) -> u32 {
    region(functions).next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_addressed_is_inside() {
        assert_eq!(TOP_MASK & FULL, 0);
        // The new frame is at `top + 64`.
        assert!(TOP_MASK + 64 + FRAME as u32 <= STACKS_BYTES);
        assert!(u64::from(ROW) >= row::BUCKETS as u64 + 64 * 8 + 8);
        assert_eq!(row::AWAY, row::BUCKETS + 64 * 8);
        assert!(SINCE as u32 >= FULL + 64 + FRAME as u32 && SINCE as u32 + 8 <= STACK_BYTES);
        assert_eq!(1 << shift(0), cpu::BYTES);
        assert!(1 << shift(7) >= region(7));
    }
}
