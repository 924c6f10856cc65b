// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of an event: the used part of `struct perf_event_attr`, and Intel PT's settings in it (the bits of
//! IA32_RTIT_CTL, under /sys/bus/event_source/devices/intel_pt/format).

use crate::bytes::{Fields, Put};

/// Event types.
pub mod kind {
    /// Events of the kernel, such as page faults.
    pub const SOFTWARE: u32 = 1;
    /// Tracepoints; the configuration is the id of one.
    pub const TRACEPOINT: u32 = 2;
    /// Events of the processor by number.
    pub const RAW: u32 = 4;
}

/// `PERF_COUNT_SW_DUMMY`: counts nothing, carries the records about tasks and mappings.
pub const DUMMY: u64 = 9;

/// Intel PT's bits of [`Attr::config`].
pub mod pt {
    /// TraceEn.
    pub const ENABLE: u64 = 1;
    /// CYC packets.
    pub const CYC: u64 = 1 << 1;
    /// MTC packets.
    pub const MTC: u64 = 1 << 9;
    /// TSC packets.
    pub const TSC: u64 = 1 << 10;
    /// Returns are never compressed (DisRETC).
    pub const NO_RET_COMPRESSION: u64 = 1 << 11;
    /// Branches are traced (BranchEn).
    pub const BRANCH: u64 = 1 << 13;
    /// Outcomes of conditional branches are left out (DisTNT).
    pub const NO_TNT: u64 = 1 << 55;
    /// MTCFreq.
    pub const MTC_PERIOD: u64 = 0xf << 14;
    /// CycThresh.
    pub const CYC_THRESH: u64 = 0xf << 19;

    /// Returns true if branches are traced: perf's own rule (`intel_pt_branch_enable` in tools/perf/util/intel-pt.c), as kernels
    /// before the setting existed always traced them.
    pub fn branches(config: u64) -> bool {
        config & ENABLE == 0 || config & BRANCH != 0
    }

    /// Minimum of cycles between two CYC packets for a CycThresh field: each power of two, 1 for a field of 1.
    pub fn cycles(config: u64) -> u64 {
        match (config & CYC_THRESH) >> CYC_THRESH.trailing_zeros() {
            0 => 0,
            field => 1 << (field - 1),
        }
    }

    /// The CycThresh field for the largest threshold that is at most `cycles`.
    pub fn cyc_thresh(cycles: u64) -> u64 {
        let field = cycles.checked_ilog2().map_or(0, |log| u64::from(log + 1).min(15));
        field << CYC_THRESH.trailing_zeros()
    }
}

/// Bits of [`Attr::flags`].
pub mod flag {
    /// Counting begins off.
    pub const DISABLED: u64 = 1;
    /// New tasks are counted too.
    pub const INHERIT: u64 = 1 << 1;
    /// Not in the kernel.
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    /// Not in a hypervisor.
    pub const EXCLUDE_HV: u64 = 1 << 6;
    /// MMAP records of code.
    pub const MMAP: u64 = 1 << 8;
    /// The period is a frequency.
    pub const FREQUENCY: u64 = 1 << 10;
    /// COMM records.
    pub const COMM: u64 = 1 << 9;
    /// FORK and EXIT records.
    pub const TASK: u64 = 1 << 13;
    /// All records have a trailer.
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    /// MMAP2 records in place of MMAP.
    pub const MMAP2: u64 = 1 << 23;
    /// COMM records say whether they are of exec.
    pub const COMM_EXEC: u64 = 1 << 24;
    /// The times are of the clock `clockid`.
    pub const USE_CLOCKID: u64 = 1 << 25;
    /// SWITCH records.
    pub const CONTEXT_SWITCH: u64 = 1 << 26;
    /// KSYMBOL records.
    pub const KSYMBOL: u64 = 1 << 29;
    /// TEXT_POKE records.
    pub const TEXT_POKE: u64 = 1 << 33;
}

/// Name of the clock of an event's times (include/uapi/linux/time.h).
pub fn clock_name(attr: &Attr) -> &'static str {
    match attr.clockid {
        _ if attr.flags & flag::USE_CLOCKID == 0 => "perf",
        0 => "realtime",
        1 => "monotonic",
        4 => "monotonic_raw",
        7 => "boottime",
        11 => "tai",
        _ => "of its own",
    }
}

/// One event's attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attr {
    /// Event type, one of [`kind`].
    pub kind: u32,
    /// The event of its type; of Intel PT, the bits of [`pt`].
    pub config: u64,
    /// Fields of samples and trailers: bits of [`crate::record::sample`].
    pub sample_type: u64,
    /// The counters in a sample.
    pub read_format: u64,
    /// Bits of [`flag`].
    pub flags: u64,
    /// Events from one sample to the next; with [`flag::FREQUENCY`], samples per second.
    pub period: u64,
    /// `branch_sample_type`: the data of a sample's branches.
    pub branches: u64,
    /// Registers in a sample: of the program, and of the interrupted code.
    pub registers: [u64; 2],
    /// The clock of its times, if [`flag::USE_CLOCKID`] is set.
    pub clockid: u32,
    /// Its ids in records, one for each CPU or thread.
    pub ids: Vec<u64>,
}

impl Attr {
    /// `PERF_ATTR_SIZE_VER7`.
    pub const LEN: usize = 128;

    /// Reads the fixed part of any version, without ids. `None` when it is too short for the first version.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut f = Fields(bytes);
        let (kind, _size, config, period) = (f.u32()?, f.u32()?, f.u64()?, f.u64()?);
        let (sample_type, read_format, flags) = (f.u64()?, f.u64()?, f.u64()?);
        // wakeup, breakpoint type and its two words; later versions have more fields.
        f.take(4 + 4 + 8 + 8);
        let (branches, program) = (f.u64().unwrap_or(0), f.u64().unwrap_or(0));
        // Size of the stack copy.
        f.u32();
        let clockid = f.u32().unwrap_or(0);
        let registers = [program, f.u64().unwrap_or(0)];
        Some(Self {
            kind,
            config,
            sample_type,
            read_format,
            flags,
            period,
            branches,
            registers,
            clockid,
            ids: Vec::new(),
        })
    }

    /// Length of the fixed part, from its own field. The first version had no such field.
    pub fn len_of(bytes: &[u8]) -> Option<usize> {
        let size = Fields(bytes.get(4..)?).u32()?;
        Some(if size == 0 { 64 } else { size as usize })
    }

    /// Appends the fixed part, of [`Self::LEN`] bytes. Written are type, configuration, `sample_type` and flags, with a
    /// period of 1; other fields are 0.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        out.u32(self.kind);
        out.u32(Self::LEN as u32);
        // A period of 1: each event.
        [self.config, 1, self.sample_type, 0, self.flags].iter().for_each(|word| out.u64(*word));
        out.resize(begin + Self::LEN, 0);
    }

    /// The layout of the trailer of records other than samples; 0 for no trailer.
    pub fn trailer(&self) -> u64 {
        if self.flags & flag::SAMPLE_ID_ALL != 0 { self.sample_type } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::pt;

    #[test]
    fn thresholds_of_cycle_counts() {
        assert_eq!(pt::cycles(pt::ENABLE | pt::CYC), 0);
        assert_eq!(pt::cycles(1 << 19), 1);
        assert_eq!(pt::cycles(!0), 1 << 14);
        for field in 0..16 {
            assert_eq!(pt::cyc_thresh(pt::cycles(field << 19)), field << 19);
        }
        assert_eq!(pt::cyc_thresh(u64::MAX), 15 << 19);
    }
}
