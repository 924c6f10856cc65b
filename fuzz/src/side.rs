// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a file of the `sideband` corpus means: pieces with a NUL between them. The first is `sideband.jsonl`, the others
//! are what the recorder of each CPU left, `cpuN.side.jsonl`. Every line must be a record or counted as none, whichever
//! way they come together; and whatever they say of tasks, mappings and places in the stream, a decode with it accounts
//! for the same instructions.

use std::fs;

use kprism_flow::{Options, Stream, profile};
use kprism_image::Image;
use kprism_image::code::TaskSwitch;
use kprism_image::sideband::{Record, read};
use kprism_image::symbols::Symbols;
use kprism_store::Run;

use crate::cells::CLOCK;
use crate::input::BASES;
use crate::programs;

/// CPUs with a file of their own.
const CPUS: u32 = 3;

/// Reads an input as the sideband of a run, whose files it replaces.
pub fn check(run: &Run, bytes: &[u8]) {
    let mut pieces = bytes.split(|&byte| byte == 0);
    let whole = pieces.next().unwrap_or_default();
    fs::write(run.sideband(), whole).expect("a folder to write to");
    let mut lines = 0;
    for (cpu, piece) in (0..CPUS).map(|cpu| (cpu, pieces.next())) {
        let path = run.streams().join(format!("cpu{cpu}.side.jsonl"));
        let Some(piece) = piece else {
            let _ = fs::remove_file(path);
            continue;
        };
        fs::write(path, piece).expect("a folder to write to");
        lines += count(piece);
    }
    let own = bytes.contains(&0);
    if !own {
        lines = count(whole);
    }
    let text = run.sideband_text().expect("the files are there");
    let (records, faults) = read(&text);
    // The last line of a file may have been cut, which is the end of a recorder and no fault.
    let cut = lines - records.len() as u64 - faults.lines;
    assert!(cut <= u64::from(CPUS), "{cut} of {lines} lines are neither records nor counted");
    run.merge_sideband().expect("a folder to write to");
    if own {
        assert!(read(&run.sideband_text().expect("it was written")).0 == records);
    }
    decode(&records);
}

/// Lines that say something.
fn count(text: &[u8]) -> u64 {
    let says = |line: &&[u8]| !String::from_utf8_lossy(line).trim().is_empty();
    text.split(|&byte| byte == b'\n').filter(says).count() as u64
}

/// Two CPUs that run a program each, one with interrupts, one with system calls.
fn decode(records: &[Record]) {
    let symbols = Symbols::load(b"", records, None).expect("no symbols are no bad ones");
    let all: Vec<_> =
        programs::all().into_iter().filter(|p| matches!(p.0, "interrupt" | "syscall")).collect();
    let made: Vec<(Image, Vec<u8>)> = (0u32..)
        .zip(&all)
        .map(|(cpu, (_, fragments, packets))| {
            let mut image = Image::new();
            for fragment in fragments {
                let (asid, base) = BASES[usize::from(fragment.place) % 4];
                image.add(asid, base, &fragment.code);
            }
            let own = records.iter().filter_map(|record| match record {
                Record::Switch(s) if s.cpu == cpu => Some(TaskSwitch { offset: s.offset?, asid: s.asid }),
                _ => None,
            });
            image.set_task_switches(own.collect());
            let mut pt = Vec::new();
            packets.iter().for_each(|packet| packet.encode(&mut pt));
            (image, pt)
        })
        .collect();
    let streams: Vec<Stream<'_>> =
        (0..).zip(&made).map(|(cpu, (image, bytes))| Stream { cpu, bytes, image }).collect();
    for chunk in [0, 1] {
        let options = Options { threads: 1, slice_ns: 10, clock: CLOCK, chunk, ..Options::default() };
        let profile = profile(&streams, &symbols, records, &options, &|_| {});
        let instructions = profile.totals.instructions();
        assert_eq!(profile.nodes.iter().map(|n| n.insns).sum::<u64>(), instructions);
        assert!(profile.slices.iter().all(|s| s.start_ns <= s.end_ns));
        assert!(
            profile.nodes.iter().enumerate().all(|(i, n)| n.parent == u32::MAX || (n.parent as usize) < i)
        );
    }
}
