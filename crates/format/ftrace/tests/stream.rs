// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages that are read as they are needed give the events, counts, faults and notes of pages in memory.

mod common;

use std::fs::File;
use std::io::{Read, Write as _};

use common::{FORMATS, Order};
use kprism_ftrace::dat::{Dat, Input};
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::merge::Merged;
use kprism_ftrace::raw::{Counts, Cpu};
use kprism_ftrace::stream::{Stream, Streams};
use proptest::prelude::*;

/// Events as text, and each CPU's counts.
type Found = (Vec<String>, Vec<Counts>);

fn in_memory(cpus: Vec<Cpu<'_>>) -> Found {
    let mut merged = Merged::new(cpus);
    let events = merged.by_ref().map(|event| format!("{event:?}")).collect();
    (events, merged.into_streams().iter().map(|cpu| cpu.counts().clone()).collect())
}

fn streamed(streams: Vec<Stream<'_>>) -> (Found, Vec<Option<std::io::Error>>) {
    let (mut merged, mut events) = (Streams::new(streams), Vec::new());
    while let Some(event) = merged.next() {
        events.push(format!("{event:?}"));
    }
    let streams = merged.into_streams();
    let counts = streams.iter().map(|stream| stream.counts().clone()).collect();
    ((events, counts), streams.into_iter().map(|stream| stream.error).collect())
}

/// All that is in a file: its parts, notes, and each buffer's events; or the error.
fn whole(bytes: &[u8]) -> Result<(String, Vec<Found>), String> {
    let dat = Dat::parse(bytes).map_err(|e| e.to_string())?;
    let decoder = dat.decoder();
    let found = dat.buffers.iter().map(|buffer| in_memory(dat.cpus(buffer, &decoder))).collect();
    Ok((parts(&dat, &dat.notes), found))
}

/// The same, read as it is needed.
fn piecewise(bytes: &[u8]) -> Result<(String, Vec<Found>), String> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let input = Input::File(&file, bytes.len() as u64);
    let dat = Dat::open(input).map_err(|e| e.to_string())?;
    let decoder = dat.decoder();
    let (mut found, mut ended) = (Vec::new(), Vec::new());
    for buffer in &dat.buffers {
        let (events, errors) = streamed(dat.streams(input, buffer, &decoder));
        found.push(events);
        let ends = buffer.places.iter().zip(errors);
        ended.extend(ends.map(|(&(cpu, place), error)| (cpu, place, error)));
    }
    let mut notes = dat.notes.clone();
    Dat::note_damage(ended.into_iter(), &mut notes).unwrap();
    Ok((parts(&dat, &notes), found))
}

fn parts(dat: &Dat<'_>, notes: &[String]) -> String {
    let names: Vec<_> = dat.buffers.iter().map(|b| (&b.name, &b.clock, b.page_size, &b.places)).collect();
    format!(
        "{} {} {} {:?} {:?} {:?} {:?} {:?} {names:?} {:?} {:?} {:?} {} {notes:?}",
        dat.version,
        dat.compression,
        dat.big,
        dat.layout,
        dat.formats,
        dat.kallsyms,
        dat.cmdlines,
        dat.printk,
        dat.stats,
        dat.uname,
        dat.tsc,
        dat.offset
    )
}

fn files() -> Vec<Vec<u8>> {
    let mut files = vec![common::v6(Order::Little), common::v6(Order::Big)];
    for method in ["none", "zlib", "zstd"] {
        files.push(common::v7(Order::Little, method));
    }
    files
}

#[test]
fn a_file_read_in_pieces_is_the_whole_one() {
    for file in files() {
        let found = whole(&file).unwrap();
        assert!(found.1.iter().all(|(events, _)| events.len() >= 2));
        assert_eq!(piecewise(&file).unwrap(), found);
        for end in (0..file.len()).step_by(7) {
            assert_eq!(piecewise(&file[..end]), whole(&file[..end]), "cut at {end}");
        }
    }
}

proptest! {
    #[test]
    fn a_damaged_file_read_in_pieces_is_the_whole_one(
        which in 0usize..5,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut file = files().swap_remove(which);
        for (at, byte) in flips {
            let at = at.index(file.len());
            file[at] ^= byte;
        }
        prop_assert_eq!(piecewise(&file), whole(&file));
    }
}

/// Gives a few bytes at once.
struct Slow<'a>(&'a [u8], usize);

impl Read for Slow<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let most = self.1.min(into.len());
        self.0.read(&mut into[..most])
    }
}

fn decoder() -> Decoder {
    let texts = FORMATS.split("name: ").skip(1);
    let format = |text| Format::parse("ftrace", format!("name: {text}").as_bytes()).unwrap();
    Decoder::new(&texts.map(format).collect::<Vec<_>>(), false)
}

#[test]
fn real_pages_of_several_cpus_are_merged_as_in_memory() {
    let decoder = decoder();
    let cpus: [&[u8]; 3] = [
        include_bytes!("data/raw/cpu0.raw"),
        include_bytes!("data/raw/cpu1.raw"),
        include_bytes!("data/raw/threshold.raw"),
    ];
    // Many pages; the last one of each CPU is cut short.
    let pages: Vec<Vec<u8>> =
        cpus.iter().map(|page| [&page.repeat(50)[..], &page[..1000]].concat()).collect();
    let layout = PageLayout::default();
    let numbered = || (0u32..).zip(&pages);
    let expected = in_memory(numbered().map(|(cpu, pages)| Cpu::new(&decoder, layout, cpu, pages)).collect());
    assert!(expected.0.len() > 10_000 && expected.1.iter().all(|counts| counts.faults.count >= 1));
    for size in [1, 4095, 4097, 1 << 20] {
        let stream =
            |(cpu, pages)| Stream::new(&decoder, layout, cpu, Box::new(Slow(pages, size)) as Box<dyn Read>);
        let (found, errors) =
            streamed(numbered().map(|(cpu, pages)| stream((cpu, pages.as_slice()))).collect());
        assert!(found == expected, "{size} bytes at once");
        assert!(errors.iter().all(Option::is_none));
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let decoder = decoder();
    let path = tempfile::NamedTempFile::new().unwrap();
    let pages = include_bytes!("data/raw/cpu0.raw").repeat(200);
    std::fs::write(path.path(), &pages).unwrap();
    let file = File::open(path.path()).unwrap();
    let size = pages.len() as u64;
    let reader = Input::File(&file, size).reader(0, size);
    let mut streams = Streams::new(vec![Stream::new(&decoder, PageLayout::default(), 0, reader)]);
    assert!(streams.next().is_some());
    File::options().write(true).open(path.path()).unwrap().set_len(size / 2).unwrap();
    let mut events = 1u64;
    while streams.next().is_some() {
        events += 1;
    }
    let stream = streams.into_streams().remove(0);
    let error = stream.error.as_ref().expect("an error").to_string();
    assert_eq!(error, format!("offset {}: the file was cut short while it was read", size / 2));
    // All whole pages that are left, each of which begins with an event for what was lost before it.
    let counts = stream.counts();
    assert_eq!((counts.pages, events), (100, counts.events + counts.pages), "{counts:?}");
}
