// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that programs share with this process: maps by index, and offsets in the state, the counters and the stack.

use kprism_bpf::cpu_ring;
use kprism_bpf::segment::Operand;

use crate::Error;
use crate::plan::Plan;

/// Indices of the maps, the same for every program: the processes whose hits count.
pub const TASKS: usize = 0;
/// Counters and rings, by CPU.
pub const RINGS: usize = 1;
/// Faults, trace state variables, the number of records.
pub const STATE: usize = 2;
/// The first map that not all programs have, in this order: that of the threads' variables, if there are any; the one that this
/// probe's entry program fills, if it has one; that of its counts by keys, if it has one.
pub const FIRST_OWN: usize = 3;

/// Bytes of counters per probe and CPU: one word for each [`Counter`].
pub const CELL: u32 = 64;

/// A word of a cell: its number.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum Counter {
    /// Hits by a selected process.
    Hits = 0,
    /// Hits whose condition was true, without those skipped.
    Passed = 1,
    /// Records for which the ring had no room.
    Lost = 2,
    /// Hits for whose keys the map had no room.
    KeysLost = 3,
    /// Hits whose keys could not be read.
    KeysFailed = 4,
    /// Calls of the function whose returns are hits.
    Calls = 5,
}

impl Counter {
    /// Offset in a cell, bytes.
    pub fn at(self) -> u32 {
        8 * self as u32
    }
}

/// Bytes of the state per probe: faults of its condition, then at [`VALUE_FAULTS`] those of its values.
pub const PROBE_STATE: u32 = 256;
/// Offset in a probe's state: faults of its values.
pub const VALUE_FAULTS: u32 = PROBE_STATE / 2;
/// Offset in a probe's state: hits whose condition was true, counted if some are to be skipped.
pub const CONDITION_HITS: u32 = 192;
/// Offset in a probe's state: faults of the values kept for GDB. Nobody reads them: each such value is a part of a collected one,
/// whose fault is counted.
pub(super) const HIDDEN_FAULTS: u32 = 64;

/// Maximum size of trace state variables, bytes.
pub const VARS_END: u32 = 8 * 1024;

/// Offset on the stack: address of the record under construction.
pub(super) const RECORD: i16 = -504;
/// Offset on the stack: address of this CPU's counters of the probe.
pub(super) const CELL_AT: i16 = -496;
/// Offset on the stack: process and thread of the hit.
pub(super) const PID_TGID: i16 = -488;
/// Stack offset of the address of a string that is read twice.
pub(super) const ADDRESS: i16 = -480;
/// Offset on the stack: address of the thread's variables.
pub(super) const OF_THREAD: i16 = -472;
/// Offset on the stack: address of the place, behind a jump.
pub(super) const PLACE_AT: i16 = OF_THREAD;

/// Settings and sizes common to all probes of a session.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Number of probes.
    pub probes: u32,
    /// Layout of the counters and rings.
    pub rings: cpu_ring::Layout,
    /// If given, everyone's hits count but this process's; else only those of the processes in the map.
    pub all_but: Option<u32>,
    /// Maximum of records; then recording ends.
    pub stop_after: Option<u32>,
    /// Number of trace state variables that all threads share. Those with greater numbers are of each thread.
    pub vars: u32,
    /// Number of trace state variables that each thread has for itself.
    pub thread_vars: u32,
    /// Bytes of counts per probe and CPU, without keys.
    pub tally: u32,
    /// Bytes of counts per combination of keys.
    pub keyed: u32,
    /// Words for the last values that a probe without keys keeps.
    pub lasts: u32,
    /// True if programs may sleep until memory is paged in.
    pub sleeps: bool,
    /// Offset of the kernel's addresses from those at which it is linked.
    pub slide: u64,
    /// For a program behind a jump: the address of the place, where the context has that of the trampoline. There are no
    /// variables of threads then.
    pub place: Option<u64>,
}

impl Layout {
    /// The layout for these probes, with everyone's hits.
    ///
    /// # Errors
    /// The counters and records are larger than a program can address.
    pub fn of(plans: &[Plan], cpus: u32, ring_bytes: u32) -> Result<Self, Error> {
        let cells = |keyed: bool| {
            let wanted = plans.iter().filter(|plan| plan.actions.keys.is_empty() != keyed);
            wanted.filter_map(|plan| Some(plan.probe.tally.as_ref()?.cell_bytes())).max().unwrap_or(0)
        };
        let lasts = plans.iter().filter_map(|plan| plan.probe.tally.as_ref());
        let lasts = lasts.filter(|tally| tally.keys.is_empty() && tally.keeps_latest());
        let lasts = lasts.map(|tally| tally.aggregates.len() as u32).max().unwrap_or(0);
        let (probes, tally) = (plans.len() as u32, cells(false));
        let all = plans.iter().flat_map(|plan| [Some(plan), plan.instead.as_deref()]).flatten();
        let longest = all.map(|plan| plan.probe.record_bytes).max().unwrap_or(0);
        let counters = probes.saturating_mul(CELL.saturating_add(tally));
        Ok(Self {
            probes,
            rings: cpu_ring::Layout::fitting(cpus, counters, ring_bytes, longest)?,
            all_but: None,
            stop_after: None,
            vars: 0,
            thread_vars: 0,
            tally,
            keyed: cells(true),
            lasts,
            sleeps: false,
            slide: 0,
            place: None,
        })
    }

    /// Index of the map that the probe's entry program fills, if it has one; then comes that of its counts by keys.
    pub(super) fn entries_map(&self) -> usize {
        FIRST_OWN + usize::from(self.thread_vars > 0)
    }

    /// Place of a trace state variable, by its number times 8.
    pub(super) fn var_at(&self, offset: u32) -> Operand {
        match offset.checked_sub(8 * self.vars) {
            None => Operand::Memory(STATE, self.vars_at() + offset),
            Some(offset) => Operand::Kept(OF_THREAD, offset),
        }
    }

    /// Size of the state, bytes.
    pub fn state_bytes(&self) -> u32 {
        self.lasts_at() + 8 * self.probes * self.lasts
    }

    fn lasts_at(&self) -> u32 {
        self.zeros_at() + self.keyed
    }

    /// Offset in the state of the last value of an aggregate of a probe without keys.
    pub fn last_at(&self, number: u32, aggregate: u32) -> u32 {
        self.lasts_at() + 8 * (number * self.lasts + aggregate)
    }

    /// Offset in the state: number of records.
    pub fn stop_at(&self) -> u32 {
        self.probes * PROBE_STATE
    }

    /// Offset in the state: whether the recording is on; [`PAUSED`], [`RUNNING`], [`ENDED`], or [`NOT_YET`].
    pub fn switch_at(&self) -> u32 {
        self.stop_at() + 8
    }

    /// Offset in the state of the trace state variables.
    pub fn vars_at(&self) -> u32 {
        self.stop_at() + 16
    }

    /// Offset in the state of zeros, the initial value of counts for new keys.
    pub fn zeros_at(&self) -> u32 {
        self.vars_at() + 8 * self.vars
    }

    /// Offset of a probe's counts without keys among one CPU's counters.
    pub fn tally_at(&self, number: u32) -> u32 {
        self.probes * CELL + number * self.tally
    }
}

/// The recording waits for a start.
pub const PAUSED: u64 = 0;
/// The recording is on.
pub const RUNNING: u64 = 1;
/// The recording is over.
pub const ENDED: u64 = 2;
/// Not all probes are attached yet. Hits do not count before they are.
pub const NOT_YET: u64 = 3;
