// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a capture device's records in any layout, and as HMTT's kernel trace: reading ends, at most one access comes
//! of a record, and what a layout can hold reads back as itself.
//!
//! An input is a line with a layout, a byte (bit 0: byte order), the length of the kernel's file in two bytes, that file, and
//! the records.
#![no_main]

use kprism_tlb::bus::layout::{Decoder, Encoder, Layout, Order};
use kprism_tlb::bus::tags::{Piece, Tags};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else { return };
    let Ok(layout) = Layout::parse(&String::from_utf8_lossy(&bytes[..end])) else { return };
    let [flags, low, high, rest @ ..] = &bytes[end + 1..] else { return };
    let order = if flags & 1 == 0 { Order::Little } else { Order::Big };
    let (kernel, records) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
    let mut board = Decoder::new(layout.clone(), order);
    let mut accesses = Vec::new();
    let mut offset = 0;
    for record in records.chunks(board.length()) {
        match board.record(record, offset) {
            Ok(access) => accesses.extend(access),
            Err(error) => {
                assert_eq!(error.offset, offset);
                break;
            }
        }
        offset += record.len();
    }
    let losses = board.losses;
    assert_eq!(losses.records - losses.only_time, accesses.len() as u64);
    assert!(losses.lost() >= losses.missing && losses.gaps <= losses.records);
    // Written again, but for times that would take too many records, they are the same.
    let near = accesses.windows(2).all(|pair| pair[1].time.wrapping_sub(pair[0].time) < 1 << 12);
    if near && accesses.first().is_none_or(|a| a.time < 1 << 12) {
        let mut out = Encoder::new(layout.clone(), order);
        accesses.iter().for_each(|a| out.access(a));
        let mut board = Decoder::new(layout, order);
        let length = board.length();
        let again: Vec<_> =
            out.bytes.chunks(length).filter_map(|record| board.record(record, 0).unwrap()).collect();
        assert_eq!(again, accesses);
        assert_eq!(board.losses.missing, 0);
    }
    let mut at = 0;
    let pieces = std::iter::from_fn(move || {
        let rest = kernel.get(at..).filter(|rest| !rest.is_empty())?;
        let piece = Piece::read(rest, at);
        at = piece.as_ref().map_or(kernel.len(), |(_, length)| at + length);
        Some(piece.map(|(piece, _)| piece))
    });
    let mut tags = Tags::new(pieces, accesses.first().map_or(0, |a| a.address & !0xfff));
    tags.dumped(|_| {});
    accesses.iter().for_each(|a| {
        tags.hear(a);
    });
    assert!(tags.steps.out_of_step <= tags.steps.tags);
});
