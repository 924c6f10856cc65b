// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a stream of misses, as bus traces and as mapping records: reading ends, what was read can be written
//! and reads back as itself, and every access that goes through the reverse page table is told exactly once.
//!
//! An input is up to four files: a byte of what each is, its length in two bytes, its bytes.
#![no_main]

use kprism_tlb::bus::mappings::{self, Form, Record};
use kprism_tlb::bus::rpt::replay;
use kprism_tlb::bus::trace::{self, Merge};
use kprism_tlb::stream;
use libfuzzer_sys::fuzz_target;

const REGION: (u64, u64) = (0x1_0000_0000, 0x1_1000_0000);

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    let (mut boards, mut records) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let [kind, low, high, more @ ..] = rest else { break };
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (file, after) = more.split_at(length);
        rest = after;
        match kind % 4 {
            0 => boards.extend(trace::Reader::new(file)),
            1 => records.extend(mappings::Reader::new(file).into_iter().flatten().map_while(Result::ok)),
            2 => records.extend(mappings::Reader::bare(file).map_while(Result::ok)),
            _ => misses(file),
        }
    }
    for board in &boards {
        let accesses: Vec<_> = board.clone().map_while(Result::ok).collect();
        let mut w = trace::Writer::new(board.header());
        accesses.iter().for_each(|a| w.access(a));
        let again: Vec<_> = trace::Reader::new(&w.bytes).unwrap().map(Result::unwrap).collect();
        assert_eq!(again, accesses);
    }
    let mut w = mappings::Writer::new(Form::Wide);
    records.iter().for_each(|r: &Record| assert!(w.record(r)));
    let again: Vec<_> = mappings::Reader::new(&w.bytes).unwrap().map(Result::unwrap).collect();
    assert_eq!(again, records);
    let Ok(merge) = Merge::new(boards) else { return };
    let mut accesses = 0;
    let mut misses = 0;
    let counts = replay(REGION, records.into_iter(), merge.inspect(|_| accesses += 1), |m| {
        assert!((REGION.0..REGION.1).contains(&m.entry));
        misses += 1;
    });
    assert_eq!((counts.misses, counts.all()), (misses, accesses));
});

fn misses(file: &[u8]) {
    let Ok(reader) = stream::Reader::new(file) else { return };
    let events: Vec<_> = reader.clone().map_while(Result::ok).collect();
    let mut w = stream::Writer::new(&reader.header().geometries);
    events.iter().for_each(|e| w.event(e));
    let again: Vec<_> = stream::Reader::new(&w.bytes).unwrap().map(Result::unwrap).collect();
    assert_eq!(again, events);
}
