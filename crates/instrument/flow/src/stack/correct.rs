// SPDX-License-Identifier: MIT OR Apache-2.0
//! Corrects estimates of time that a report shows to have been wrong.
//!
//! **In:** a chunk, its open frames, and a [`Correction`] of the interval before the report. **Out:** the same with corrected times.
//! [`Excess`]: estimates ran ahead, and all times of the interval are shortened in proportion, so that they sum to the time that
//! passed. [`Delay`]: an instruction took longer than was estimated, and what came after it is later.

use crate::stack::chunk::{Cause, Chunk};
use crate::stack::frames::{Done, Frame, Now};

/// How the points of an interval change.
pub(crate) trait Correction {
    /// True for a point that changes. Those before it in their list do not, if it does not.
    fn concerns(&self, point: &Now) -> bool;

    /// Corrects such a point's times.
    fn correct(&self, point: &mut Now);

    /// Corrects the time at which the flow last stopped, ns.
    fn correct_stop(&self, ns: &mut u64);
}

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

    /// Shortens the times `added` to nodes, in their order.
    pub fn shorten(&self, out: &mut Chunk, added: &[(u32, u64)]) {
        let (mut estimated, mut passed) = (0, 0);
        for &(node, ns) in added {
            estimated += ns;
            // By differences of the sum, which is exact at the end.
            let before = std::mem::replace(&mut passed, self.length(estimated));
            let sum = &mut out.tree.nodes[node as usize].ns;
            *sum = (*sum - ns) + (passed - before);
        }
    }
}

impl Correction for Excess {
    fn concerns(&self, point: &Now) -> bool {
        point.ns > self.ns
    }

    fn correct(&self, point: &mut Now) {
        self.correct_stop(&mut point.ns);
        point.cpu = point.cpu.checked_sub(self.cpu).map_or(point.cpu, |part| self.cpu + self.length(part));
    }

    fn correct_stop(&self, ns: &mut u64) {
        *ns = ns.checked_sub(self.ns).map_or(*ns, |part| self.ns + self.length(part));
    }
}

/// An instruction that took longer than was estimated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delay {
    /// The chunk's instructions with it.
    pub insns: u64,
    /// By how much, ns.
    pub ns: u64,
}

impl Correction for Delay {
    fn concerns(&self, point: &Now) -> bool {
        point.insns >= self.insns
    }

    fn correct(&self, point: &mut Now) {
        if self.concerns(point) {
            point.ns += self.ns;
            point.cpu += self.ns;
        }
    }

    /// Where the flow stops, no instruction before it takes the time after it.
    fn correct_stop(&self, _ns: &mut u64) {}
}

/// Corrects a chunk, and its `open` frames.
pub(crate) fn correct(out: &mut Chunk, open: &mut [Frame], by: &impl Correction) {
    frames(open, by);
    for span in out.spans.iter_mut().rev() {
        let mut start = Now { ns: span.start_ns, insns: span.insns, cpu: span.cpu };
        let is_inside = by.concerns(&start);
        frames(&mut span.frames, by);
        by.correct(&mut start);
        (span.start_ns, span.cpu) = (start.ns, start.cpu);
        span.off.iter_mut().for_each(|off| by.correct_stop(&mut off.ns));
        if let Cause::Exit { entry: Some(entry), .. } = &mut span.cause {
            frame(entry, by);
        }
        if !is_inside {
            break;
        }
    }
    calls(&mut out.syscalls, by);
    calls(&mut out.slices, by);
    for mark in out.marks.iter_mut().rev() {
        let mut point = Now { ns: mark.ns, insns: mark.insns, cpu: 0 };
        if !by.concerns(&point) {
            break;
        }
        by.correct(&mut point);
        mark.ns = point.ns;
    }
    let mut end = Now { ns: 0, insns: out.insns, cpu: out.cpu };
    by.correct(&mut end);
    out.cpu = end.cpu;
    out.off.iter_mut().for_each(|off| by.correct_stop(&mut off.ns));
}

/// Returns false for a frame that began before; those below it are older.
fn frame(frame: &mut Frame, by: &impl Correction) -> bool {
    let mut start = Now { ns: frame.start_ns, insns: frame.start_insns, cpu: frame.start_cpu };
    let is_inside = by.concerns(&start);
    by.correct(&mut start);
    (frame.start_ns, frame.start_cpu) = (start.ns, start.cpu);
    is_inside
}

fn frames(frames: &mut [Frame], by: &impl Correction) {
    let _ = frames.iter_mut().rev().all(|one| frame(one, by));
}

/// Returns false for a call that ended before; so did those in the list before it.
fn call(done: &mut Done, by: &impl Correction) -> bool {
    let cpu = done.frame.start_cpu + done.cpu;
    let mut end = Now { ns: done.end_ns, insns: done.frame.start_insns + done.insns, cpu };
    if !by.concerns(&end) {
        return false;
    }
    by.correct(&mut end);
    frame(&mut done.frame, by);
    (done.end_ns, done.cpu) = (end.ns, end.cpu - done.frame.start_cpu);
    true
}

fn calls(calls: &mut [Done], by: &impl Correction) {
    let _ = calls.iter_mut().rev().all(|done| call(done, by));
}
