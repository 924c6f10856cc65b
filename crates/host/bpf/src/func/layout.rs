// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that the programs at functions' entries and returns share with this process.
//!
//! Two arrays of one value each, mapped here, addressed there without a lookup:
//!
//! - `cpus`: a region for each CPU. It begins with what concerns the task that runs there and the counts of what
//!   went wrong, and goes on with a [row](ROW) for each function. No other CPU writes it, so nothing is atomic.
//! - `stacks`: 1024 stacks of open calls, 4 KiB each. The one of the running task is named by the first word of
//!   the CPU's region; whoever switches tasks (see `sched`) exchanges it. So neither entry nor return looks anything up.
//!
//! A stack is named by `top`, a byte offset into `stacks`: the next free frame lies at `top + 64`, the last frame at
//! `top + 32`, its caller's at `top`. The first two places belong to nobody: their key is 0, so that a return
//! without an entry finds no frame. A full stack has bit [`FULL`] set in `top`; tasks that are not traced have
//! [`OFF`].

/// Bytes of `stacks`: the most that an array's value may have.
pub const STACKS_BYTES: u32 = 4 << 20;
/// Bytes of one stack, half of which is never reached: 64 frames.
pub const STACK_BYTES: u32 = 4096;
/// How many tasks can have open calls at once; number 0 stands for none.
pub const STACKS: u32 = STACKS_BYTES / STACK_BYTES;
/// In `top`: there is no place for another frame.
pub const FULL: u32 = 0x800;
/// `top` of a task that is not to be traced.
pub const OFF: u32 = FULL;
/// `top` of a task for which no stack was left.
pub const NONE_LEFT: u32 = FULL | 0x20;
/// What is left of `top` for addresses, which the verifier then knows to be inside.
pub const TOP_MASK: u32 = (STACKS_BYTES - STACK_BYTES) | 0x7e0;

/// Bytes of a frame: key, time of entry, nanoseconds of calls from here, and off the CPU.
pub const FRAME: i32 = 32;
/// Who entered: the address of the trampoline's frame, or the function's number + 1.
pub const KEY: i16 = 0;
/// When.
pub const ENTERED: i16 = 8;
/// What callees took, on a CPU.
pub const CHILD: i16 = 16;
/// How long its task was off the CPU meanwhile, in it or in a callee that has returned.
pub const AWAY: i16 = 24;

/// Where a stack whose task is off the CPU says since when: in the half that frames never reach.
pub const SINCE: i16 = 0x900;

/// Fields at the beginning of a CPU's region.
pub mod cpu {
    /// `top` of the running task's stack.
    pub const TOP: i16 = 0;
    /// An empty stack kept for the next task that has none.
    pub const SPARE: i16 = 8;
    /// Calls not measured because 64 were open, or 1023 tasks had some.
    pub const OVERFLOWED: i16 = 16;
    /// Returns of calls that began before recording, or whose entry was missed.
    pub const ORPHANS: i16 = 24;
    /// Frames whose return never came.
    pub const ABANDONED: i16 = 32;
    /// Open calls of tasks that ended in them.
    pub const UNFINISHED: i16 = 40;
    /// Records for which the ring had no room.
    pub const LOST: i16 = 48;
    /// Bytes of them all.
    pub const BYTES: u32 = 64;
}

/// Bytes of a function's row.
pub const ROW: u32 = 584;

/// Fields of a row. One bucket and the range of durations that are known to be in it, and to change neither minimum
/// nor maximum, are kept at hand: most calls take as long as the one before.
pub mod row {
    /// Nanoseconds of all calls.
    pub const TOTAL: i16 = 0;
    /// Nanoseconds of what they called, on a CPU.
    pub const CHILD: i16 = 8;
    /// The lowest duration of the range at hand.
    pub const LOW: i16 = 16;
    /// How much longer the longest is; with `LOW` of `u64::MAX`, before the first call, nothing is inside.
    pub const SPAN: i16 = 24;
    /// Calls in the range, not yet in a bucket.
    pub const AT_HAND: i16 = 32;
    /// The bucket of the range, as a byte offset from `BUCKETS`.
    pub const BUCKET: i16 = 40;
    /// The shortest, as its complement, so that 0 is none.
    pub const NOT_MIN: i16 = 48;
    /// The longest.
    pub const MAX: i16 = 56;
    /// 64 counts: bucket N has the durations from 2^N to 2^(N+1) - 1 nanoseconds, bucket 0 also 0.
    pub const BUCKETS: i16 = 64;
    /// Nanoseconds off the CPU, in them and in what they called.
    pub const AWAY: i16 = 576;
}

/// Bytes of one CPU's region that holds so many functions.
pub fn region(functions: usize) -> u64 {
    u64::from(cpu::BYTES) + functions as u64 * u64::from(ROW)
}

/// The shift that leads from a CPU's number to its region.
pub fn shift(functions: usize) -> u32 {
    region(functions).next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_addressed_is_inside() {
        assert_eq!(TOP_MASK & FULL, 0);
        // The new frame at `top + 64`.
        assert!(TOP_MASK + 64 + FRAME as u32 <= STACKS_BYTES);
        assert!(u64::from(ROW) >= row::BUCKETS as u64 + 64 * 8 + 8);
        assert_eq!(row::AWAY, row::BUCKETS + 64 * 8);
        assert!(SINCE as u32 >= FULL + 64 + FRAME as u32 && SINCE as u32 + 8 <= STACK_BYTES);
        assert_eq!(1 << shift(0), cpu::BYTES);
        assert!(1 << shift(7) >= region(7));
    }
}
