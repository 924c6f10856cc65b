// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps offsets of a stream to times, from its timing packets alone.

use kprism_flow::clock::{Clock, ClockConfig};
use kprism_pt::{Packet, PacketReader};

/// Calls `each` with the offset of every packet, the packet, and the time according to the packets before it (0 before
/// the first TSC). After invalid bytes it continues at the next PSB.
pub(crate) fn walk(pt: &[u8], clock: ClockConfig, mut each: impl FnMut(usize, Packet, u64)) {
    let mut clock = Clock::new(clock);
    let mut reader = PacketReader::new(pt);
    let mut now = 0;
    while reader.resync().is_some() {
        for (offset, packet) in reader.by_ref().map_while(Result::ok) {
            if clock.on_packet(&packet) {
                now = now.max(clock.ns());
            }
            each(offset, packet, now);
        }
    }
}

/// The times at these sorted offsets. At a PSB it is the time in its PSB+.
pub(crate) fn times_at(pt: &[u8], clock: ClockConfig, offsets: &[u64]) -> Vec<u64> {
    let mut times = Vec::with_capacity(offsets.len());
    let mut in_psb = false;
    let mut last = 0;
    walk(pt, clock, |offset, packet, now| {
        last = now;
        in_psb = match packet {
            Packet::Psb => true,
            Packet::PsbEnd => false,
            _ => in_psb,
        };
        while !in_psb && offsets.get(times.len()).is_some_and(|&at| at <= offset as u64) {
            times.push(now);
        }
    });
    times.resize(offsets.len(), last);
    times
}

/// The value of the first TSC packet; 1 if there is none, because perf takes 0 for none.
pub(crate) fn first_tsc(pt: &[u8]) -> u64 {
    let mut reader = PacketReader::new(pt);
    while reader.resync().is_some() {
        let found = reader.by_ref().map_while(Result::ok).find_map(|(_, packet)| match packet {
            Packet::Tsc { tsc } => Some(tsc),
            _ => None,
        });
        if let Some(tsc) = found {
            return tsc.max(1);
        }
    }
    1
}
