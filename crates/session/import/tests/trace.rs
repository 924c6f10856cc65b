// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracepoints in perf.data. `data/sched.perf.data` is the output of
//! `perf record -e sched:sched_switch,sched:sched_wakeup -o -` (6.1, on a 6.18 kernel) for two short sleeps, without
//! the data about the machine.

use kprism_ftrace::{Data, Event};
use kprism_import::perfdata::trace::{self, Unpacked};

const SMALL: &[u8] = include_bytes!("data/sched.perf.data");

/// Reads all events, as far as possible.
fn read(bytes: &[u8]) -> Option<Vec<(u64, u32, u32, bool)>> {
    let unpacked = trace::unpack(bytes);
    let trace = trace::read(bytes, &unpacked).ok()?;
    let decoder = trace.dat.decoder();
    let seen = |event: Event<'_>| (event.ns, event.cpu, event.pid, matches!(event.data, Data::Switch { .. }));
    let events: Vec<_> = trace.events(&decoder).map(seen).collect();
    assert_eq!(events.len(), trace.len());
    Some(events)
}

/// `perf script -F tid,cpu,time,event --ns` of the same file.
#[test]
fn events_are_those_of_perf_script() {
    let events = read(SMALL).unwrap();
    let expected = [
        (27_529_692_518_142, 0, 3165, true),
        (27_529_695_225_720, 0, 3172, false),
        (27_529_695_364_676, 0, 3172, true),
        (27_529_695_406_187, 0, 3165, true),
        (27_529_696_095_668, 0, 3172, true),
        (27_529_711_113_450, 0, 3172, false),
        (27_529_711_128_623, 0, 3172, true),
        (27_529_711_356_650, 0, 3172, true),
        (27_529_723_604_692, 0, 3165, true),
        (27_529_731_293_194, 1, 3176, false),
        (27_529_732_204_092, 1, 3176, true),
        (27_529_735_215_711, 0, 3165, true),
    ];
    assert_eq!(events, expected);
    let none = Unpacked::default();
    let trace = trace::read(SMALL, &none).unwrap();
    assert_eq!((trace.clock.as_str(), trace.others, trace.notes.len()), ("perf", 0, 0));
    let names: Vec<&str> = trace.names.iter().map(|(_, _, _, name)| name.as_str()).collect();
    assert_eq!(names, ["perf-exec", "sh", "sleep", "sleep"]);
}

#[test]
fn losses_stand_where_they_were_noted() {
    // PERF_RECORD_LOST with the trailer of the samples' layout, between the first samples.
    let whole = read(SMALL).unwrap();
    let mut bytes = SMALL.to_vec();
    let words = |parts: &[u64]| parts.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let time = whole[3].0 + 1;
    // id, lost; pid and tid, time, id, CPU, as the file's sample type (TID, TIME, ID, CPU, PERIOD, RAW) has them.
    let body = words(&[1, 77, 3172 << 32 | 3172, time, 1, 0]);
    bytes.extend(words(&[2 | (8 + body.len() as u64) << 48]));
    bytes.extend(body);
    let none = Unpacked::default();
    let trace = trace::read(&bytes, &none).unwrap();
    let decoder = trace.dat.decoder();
    let events: Vec<Event<'_>> = trace.events(&decoder).collect();
    assert_eq!(events.len(), whole.len() + 1);
    assert_eq!((events[4].ns, &events[4].data), (time, &Data::Lost { count: Some(77) }));
}

/// The same file as `perf record -z` writes it: all records after the formats in one compressed stream.
fn compressed(cut: usize) -> Vec<u8> {
    let mut at = 16;
    let word = |at: usize| u32::from_le_bytes(SMALL[at..at + 4].try_into().unwrap());
    let size = |at: usize| usize::from(u16::from_le_bytes(SMALL[at + 6..at + 8].try_into().unwrap()));
    // HEADER_TRACING_DATA: the formats' size, and behind the record the formats.
    while word(at) != 66 {
        at += size(at);
    }
    at += size(at) + (word(at + 8) as usize).next_multiple_of(8);
    let level = ruzstd::encoding::CompressionLevel::Uncompressed;
    let packed = ruzstd::encoding::compress_to_vec(&SMALL[at..], level);
    let mut bytes = SMALL[..at].to_vec();
    for piece in packed[..packed.len() - cut].chunks(60_000) {
        bytes.extend((81u64 | (8 + piece.len() as u64) << 48).to_le_bytes());
        bytes.extend(piece);
    }
    bytes
}

#[test]
fn compressed_records_that_break_off_are_told() {
    let whole = compressed(0);
    assert_eq!(read(&whole), read(SMALL));
    let bytes = compressed(200);
    let unpacked = trace::unpack(&bytes);
    let trace = trace::read(&bytes, &unpacked).unwrap();
    assert!(trace.len() < read(SMALL).unwrap().len());
    assert!(
        trace.notes.iter().any(|note| note.contains("compressed records break off")),
        "{:?}",
        trace.notes
    );
}

#[test]
fn cut_and_changed_files_are_read_or_refused() {
    let whole = read(SMALL).unwrap();
    let mut partial = 0;
    for len in 0..SMALL.len() {
        if let Some(events) = read(&SMALL[..len]) {
            assert!(events.len() <= whole.len());
            partial += 1;
        }
    }
    assert!(partial > 500, "{partial}");
    for at in 0..SMALL.len() {
        for flip in [0xff, 0x80, 1] {
            let mut bytes = SMALL.to_vec();
            bytes[at] ^= flip;
            read(&bytes);
        }
    }
}
