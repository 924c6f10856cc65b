// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracepoints in perf.data. `data/sched.perf.data` is the output of
//! `perf record -e sched:sched_switch,sched:sched_wakeup -o -` (6.1, on a 6.18 kernel) for two short sleeps, without
//! the data about the machine.

use kprism_ftrace::{Data, Event};
use kprism_import::perfdata::{Files, trace};

const SMALL: &[u8] = include_bytes!("data/sched.perf.data");

fn files(data: &[&[u8]]) -> Files {
    Files::new(data.iter().map(|&bytes| bytes.into()).collect())
}

/// Reads all events, as far as possible.
fn read(bytes: &[u8]) -> Option<Vec<(u64, u32, u32, bool)>> {
    let files = files(&[bytes]);
    let trace = trace::read(&files).ok()?;
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
    let files = files(&[SMALL]);
    let trace = trace::read(&files).unwrap();
    assert_eq!((trace.clock.as_str(), trace.others, trace.notes.len()), ("perf", 0, 0));
    let names: Vec<&str> = trace.names.iter().map(|(_, _, _, name)| name.as_str()).collect();
    assert_eq!(names, ["perf-exec", "sh", "sleep", "sleep"]);
}

#[test]
fn losses_stand_where_they_were_noted() {
    // PERF_RECORD_LOST with the trailer of the samples' layout, between the first samples.
    let whole = read(SMALL).unwrap();
    let mut bytes = SMALL.to_vec();
    let time = whole[3].0 + 1;
    add(&mut bytes, 2, &[1, 77], (3172, time));
    let files = files(&[&bytes]);
    let trace = trace::read(&files).unwrap();
    let decoder = trace.dat.decoder();
    let events: Vec<Event<'_>> = trace.events(&decoder).collect();
    assert_eq!(events.len(), whole.len() + 1);
    assert_eq!((events[4].ns, &events[4].data), (time, &Data::Lost { count: Some(77) }));
}

fn words(parts: &[u64]) -> Vec<u8> {
    parts.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Adds a record with a trailer as the file's sample type (TID, TIME, ID, CPU, PERIOD, RAW) has them.
fn add(bytes: &mut Vec<u8>, kind: u64, body: &[u64], (tid, time): (u64, u64)) {
    let body = words(&[body, &[tid << 32 | tid, time, 1, 0]].concat());
    bytes.extend(words(&[kind | (8 + body.len() as u64) << 48]));
    bytes.extend(body);
}

/// Offsets of the records of a type.
fn places(kind: u32) -> Vec<usize> {
    let (mut at, mut places) = (16, Vec::new());
    while at + 8 <= SMALL.len() {
        let word = |at: usize| u32::from_le_bytes(SMALL[at..at + 4].try_into().unwrap());
        if word(at) == kind {
            places.push(at);
        }
        let size = usize::from(u16::from_le_bytes(SMALL[at + 6..at + 8].try_into().unwrap()));
        // HEADER_TRACING_DATA: the formats' size, and behind the record the formats.
        let formats = if word(at) == 66 { (word(at + 8) as usize).next_multiple_of(8) } else { 0 };
        at += size + formats;
    }
    places
}

/// Where the records behind the formats begin.
fn behind_formats() -> usize {
    let at = places(66)[0];
    let word = u32::from_le_bytes(SMALL[at + 8..at + 12].try_into().unwrap());
    let size = usize::from(u16::from_le_bytes(SMALL[at + 6..at + 8].try_into().unwrap()));
    at + size + (word as usize).next_multiple_of(8)
}

/// The same file as `perf record -z` writes it: all records after the formats in one compressed stream.
fn compressed(cut: usize) -> Vec<u8> {
    let at = behind_formats();
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
    let files = files(&[&bytes]);
    let trace = trace::read(&files).unwrap();
    assert!(trace.len() < read(SMALL).unwrap().len());
    assert!(
        trace.notes.iter().any(|note| note.contains("compressed records break off")),
        "{:?}",
        trace.notes
    );
}

/// Both files of `perf record --threads` are read, and each has a compressed stream of its own.
#[test]
fn files_of_further_threads_are_read() {
    let samples = places(9);
    let half = samples[samples.len() / 2];
    let level = ruzstd::encoding::CompressionLevel::Uncompressed;
    let packed = ruzstd::encoding::compress_to_vec(&SMALL[half..], level);
    let mut second = words(&[81 | (8 + packed.len() as u64) << 48]);
    second.extend(packed);
    for second in [&SMALL[half..], &second] {
        let files = files(&[&SMALL[..half], second]);
        let trace = trace::read(&files).unwrap();
        let decoder = trace.dat.decoder();
        let events: Vec<_> = trace.events(&decoder).map(|event| (event.ns, event.cpu, event.pid)).collect();
        let whole: Vec<_> = read(SMALL).unwrap().iter().map(|e| (e.0, e.1, e.2)).collect();
        assert_eq!((events, trace.notes.len()), (whole, 0));
    }
}

/// With a frequency, or a period that samples do not state, perf leaves out events.
#[test]
fn events_between_samples_are_told() {
    let sampled = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = SMALL.to_vec();
        for at in places(64) {
            change(&mut bytes[at + 8..]);
        }
        let files = files(&[&bytes]);
        let trace = trace::read(&files).unwrap();
        assert_eq!((trace.others, trace.broken), (0, 0));
        trace.sampled.len()
    };
    // struct perf_event_attr: the period at 16, the sample type at 24, the flags at 40.
    assert_eq!(sampled(&|_| ()), 0);
    assert_eq!(sampled(&|attr| attr[41] |= 1 << 2), 2, "freq");
    assert_eq!(sampled(&|attr| attr[16] = 100), 0, "each sample states its period: a weight");
}

/// A sample without a CPU is no event of the first one.
#[test]
fn samples_that_do_not_tell_their_cpu_are_counted() {
    let mut bytes = SMALL.to_vec();
    for at in places(64) {
        // struct perf_event_attr: the sample type at 24. PERF_SAMPLE_STREAM_ID (9) for CPU (7), which is as wide and at the same place.
        bytes[at + 8 + 24] &= !(1 << 7);
        bytes[at + 8 + 25] |= 1 << 1;
    }
    let files = files(&[&bytes]);
    let trace = trace::read(&files).unwrap();
    assert_eq!((trace.len(), trace.broken), (0, read(SMALL).unwrap().len() as u64));
}

/// As perf: a thread has the name of the thread that made it until it has its own. A dead task's number is -1, and the
/// record's own field has it.
#[test]
fn new_threads_have_their_parents_names_and_dead_ones_their_numbers() {
    let whole = read(SMALL).unwrap();
    let mut bytes = SMALL.to_vec();
    let last = whole.last().unwrap().0;
    // pid, ppid, tid, ptid, time
    add(&mut bytes, 7, &[3172 << 32 | 3172, 3172 << 32 | 9000, last + 1], (3172, last + 1));
    // In every sample of that thread.
    let own = words(&[3165 << 32 | 3165]);
    for sample in places(9) {
        if let Some(at) = SMALL[sample..sample + 48].windows(8).position(|word| word == own) {
            bytes[sample + at..sample + at + 8].fill(0xff);
        }
    }
    let files = files(&[&bytes]);
    let trace = trace::read(&files).unwrap();
    assert_eq!(trace.names.last(), Some(&(last + 1, 9000, 3172, "sleep".to_owned())));
    let decoder = trace.dat.decoder();
    let threads: Vec<u32> = trace.events(&decoder).map(|event| event.pid).collect();
    assert_eq!(threads, whole.iter().map(|event| event.2).collect::<Vec<_>>());
    assert!(trace.groups().all(|(tid, _)| tid != u32::MAX && tid != 3165));
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
