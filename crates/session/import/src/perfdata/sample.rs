// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fields of a sample, in the order in which the kernel writes them (`perf_output_sample` in kernel/events/core.c).

use super::trace::skip_to_raw;
use kprism_perfdata::attr::flag;
use kprism_perfdata::record::sample;
use kprism_perfdata::{Attr, Fields, Trailer};

/// The used parts of a sample.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parts<'a> {
    pub ip: u64,
    pub va: u64,
    pub period: u64,
    pub cycles: Option<u64>,
    pub source: u64,
    pub physical: Option<u64>,
    pub page: Option<u64>,
    /// A tracepoint's data, or those of IBS.
    pub raw: Option<&'a [u8]>,
    /// Data of an AUX buffer.
    pub aux: Option<&'a [u8]>,
}

/// Parses a sample. `None` if it is shorter than its event's attributes require.
pub(super) fn parse<'a>(attr: &Attr, body: &'a [u8]) -> Option<Parts<'a>> {
    let has = |bit| attr.sample_type & bit != 0;
    let mut parts = Parts::default();
    let mut f = Fields(body);
    // The same fields again, for the two that a trailer does not have.
    let mut head = f;
    Trailer::of_sample(attr.sample_type, &mut f)?;
    if has(sample::IDENTIFIER) {
        head.u64()?;
    }
    if has(sample::IP) {
        parts.ip = head.u64()?;
    }
    for bit in [sample::TID, sample::TIME] {
        if has(bit) {
            head.u64()?;
        }
    }
    if has(sample::ADDR) {
        parts.va = head.u64()?;
    }
    parts.period = match (has(sample::PERIOD), attr.flags & flag::FREQUENCY) {
        (true, _) => f.u64()?,
        (false, 0) => attr.period,
        // With a sampling frequency, the sample does not state the number of events for which it stands.
        _ => 1,
    };
    skip_to_raw(attr, &mut f)?;
    let words =
        |f: &mut Fields<'_>, count: u64| f.take(usize::try_from(count.checked_mul(8)?).ok()?).map(|_| ());
    if has(sample::RAW) {
        let size = f.u32()?;
        parts.raw = Some(f.take(size as usize)?);
    }
    if has(sample::BRANCH_STACK) {
        let count = f.u64()?;
        // PERF_SAMPLE_BRANCH_HW_INDEX
        words(&mut f, attr.branches >> 17 & 1)?;
        words(&mut f, count.checked_mul(3)?)?;
        // PERF_SAMPLE_BRANCH_COUNTERS
        words(&mut f, count.checked_mul(attr.branches >> 19 & 1)?)?;
    }
    let registers = |f: &mut Fields<'_>, mask: u64| match f.u64()? {
        0 => Some(()),
        _ => words(f, mask.count_ones().into()),
    };
    if has(sample::REGS_USER) {
        registers(&mut f, attr.registers[0])?;
    }
    if has(sample::STACK_USER) {
        let size = f.u64()?;
        if size != 0 {
            f.take(usize::try_from(size).ok()?)?;
            f.u64()?;
        }
    }
    if has(sample::WEIGHT) {
        parts.cycles = Some(f.u64()?);
    } else if has(sample::WEIGHT_STRUCT) {
        parts.cycles = Some(f.u64()? & 0xffff_ffff);
    }
    if has(sample::DATA_SRC) {
        parts.source = f.u64()?;
    }
    if has(sample::TRANSACTION) {
        f.u64()?;
    }
    if has(sample::REGS_INTR) {
        registers(&mut f, attr.registers[1])?;
    }
    if has(sample::PHYS_ADDR) {
        parts.physical = Some(f.u64()?).filter(|&at| at != 0);
    }
    if has(sample::CGROUP) {
        f.u64()?;
    }
    if has(sample::DATA_PAGE_SIZE) {
        parts.page = Some(f.u64()?).filter(|&bytes| bytes != 0);
    }
    if has(sample::CODE_PAGE_SIZE) {
        f.u64()?;
    }
    if has(sample::AUX) {
        let size = usize::try_from(f.u64()?).ok()?;
        parts.aux = Some(f.take(size)?);
    }
    Some(parts)
}
