// SPDX-License-Identifier: MIT OR Apache-2.0
//! Corrects estimates of time that a report shows to have run ahead.
//!
//! **In:** a chunk, its open frames, the times added to nodes since the report before, and the [`Excess`]. **Out:** the same with
//! all times of the interval between the two reports shortened in proportion, so that they sum to the time that passed. Without
//! it, the sum of times would exceed the elapsed time wherever code runs faster than in the interval before.

use crate::stack::chunk::{Cause, Chunk};
use crate::stack::frames::{Done, Frame};

/// An interval in which more time was estimated than passed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Excess {
    /// Time of the report at its start, and the chunk's time on a CPU then; ns.
    pub ns: u64,
    pub cpu: u64,
    /// The estimate of its length, and the length by the next report, which is smaller; ns.
    pub estimated: u64,
    pub passed: u64,
}

impl Excess {
    /// The corrected length of a part of the interval that begins with it.
    fn length(&self, part: u64) -> u64 {
        let product = u128::from(part) * u128::from(self.passed);
        (product / u128::from(self.estimated.max(1))) as u64
    }

    fn correct_ns(&self, ns: &mut u64) {
        *ns = ns.checked_sub(self.ns).map_or(*ns, |part| self.ns + self.length(part));
    }

    fn correct_cpu(&self, cpu: &mut u64) {
        *cpu = cpu.checked_sub(self.cpu).map_or(*cpu, |part| self.cpu + self.length(part));
    }

    /// Times before the interval stay. Returns false for such a frame; those below it are older.
    fn correct_frame(&self, frame: &mut Frame) -> bool {
        let inside = frame.start_ns > self.ns;
        self.correct_ns(&mut frame.start_ns);
        self.correct_cpu(&mut frame.start_cpu);
        inside
    }

    fn correct_frames(&self, frames: &mut [Frame]) {
        let _ = frames.iter_mut().rev().all(|frame| self.correct_frame(frame));
    }

    /// Returns false for a call that ended before the interval; so did those in the list before it.
    fn correct_call(&self, done: &mut Done) -> bool {
        if done.end_ns <= self.ns {
            return false;
        }
        let mut end = done.frame.start_cpu + done.cpu;
        self.correct_ns(&mut done.end_ns);
        self.correct_cpu(&mut end);
        self.correct_frame(&mut done.frame);
        done.cpu = end - done.frame.start_cpu;
        true
    }

    fn correct_calls(&self, calls: &mut [Done]) {
        let _ = calls.iter_mut().rev().all(|done| self.correct_call(done));
    }
}

/// Shortens the interval. `added` are the estimated times of its nodes, in order.
pub(crate) fn correct(out: &mut Chunk, open: &mut [Frame], added: &[(u32, u64)], excess: &Excess) {
    let (mut estimated, mut passed) = (0, 0);
    for &(node, ns) in added {
        estimated += ns;
        // By differences of the sum, which is exact at the end.
        let before = std::mem::replace(&mut passed, excess.length(estimated));
        let sum = &mut out.tree.nodes[node as usize].ns;
        *sum = (*sum - ns) + (passed - before);
    }
    excess.correct_frames(open);
    for span in out.spans.iter_mut().rev() {
        let before = span.start_ns <= excess.ns;
        excess.correct_frames(&mut span.frames);
        excess.correct_ns(&mut span.start_ns);
        excess.correct_cpu(&mut span.cpu);
        span.off.iter_mut().for_each(|off| excess.correct_ns(&mut off.ns));
        if let Cause::Exit { entry: Some(frame), .. } = &mut span.cause {
            excess.correct_frame(frame);
        }
        if before {
            break;
        }
    }
    excess.correct_calls(&mut out.syscalls);
    excess.correct_calls(&mut out.slices);
    for mark in out.marks.iter_mut().rev().take_while(|mark| mark.ns > excess.ns) {
        excess.correct_ns(&mut mark.ns);
    }
    out.off.iter_mut().for_each(|off| excess.correct_ns(&mut off.ns));
    excess.correct_cpu(&mut out.cpu);
}
