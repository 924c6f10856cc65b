// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joins trace data: perf writes each CPU's (or thread's) AUX buffer piece by piece.
//!
//! Missing data (the buffer was full, a snapshot begins, a piece is not in the file) is replaced by an OVF packet, by
//! which a processor reports data that it lost. The piece after it counts from its first PSB.

use std::collections::BTreeMap;

use kprism_pt::{Packet, find_psb};

use super::tasks::History;
use kprism_perfdata::Auxtrace;
use kprism_perfdata::record::aux;

/// A CPU's or a thread's packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    pub cpu: Option<u32>,
    /// Thread id, if threads were traced individually.
    pub tid: Option<u32>,
    pub pt: Vec<u8>,
    /// Number of places with missing data.
    pub losses: usize,
}

const NONE: u32 = u32::MAX;

/// Joins the pieces, CPUs first, then threads, in order of their numbers.
pub(crate) fn assemble(mut pieces: Vec<(Auxtrace, &[u8])>, history: &History<'_>) -> Vec<Trace> {
    // Pieces of a buffer come in order; the offsets show any other order.
    pieces.sort_by_key(|(a, _)| (a.cpu, if a.cpu == NONE { a.tid } else { 0 }, a.offset));
    let mut traces: BTreeMap<(u32, u32), (Trace, u64)> = BTreeMap::new();
    for (head, bytes) in pieces {
        let (cpu, tid) = (head.cpu, if head.cpu == NONE { head.tid } else { NONE });
        let some = |number: u32| (number != NONE).then_some(number);
        let (trace, end) = traces.entry((cpu, tid)).or_insert_with(|| {
            (Trace { cpu: some(cpu), tid: some(tid), pt: Vec::new(), losses: 0 }, head.offset)
        });
        let lost = |gap: &(Option<u32>, Option<u32>, u64, u64)| {
            let (of_cpu, of_tid, at, flags) = *gap;
            let own = if cpu == NONE { of_tid == Some(tid) } else { of_cpu == Some(cpu) };
            own && at == head.offset && flags & (aux::TRUNCATED | aux::OVERWRITE) != 0
        };
        let joined = head.offset == *end && !history.gaps.iter().any(lost);
        if joined || trace.pt.is_empty() {
            trace.pt.extend_from_slice(bytes);
        } else {
            trace.losses += 1;
            Packet::Ovf.encode(&mut trace.pt);
            let skip = end.saturating_sub(head.offset).min(bytes.len() as u64) as usize;
            let from = find_psb(bytes, skip).unwrap_or(bytes.len());
            trace.pt.extend_from_slice(&bytes[from..]);
        }
        *end = (*end).max(head.offset.saturating_add(head.size));
    }
    traces.into_values().map(|(trace, _)| trace).collect()
}
