// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real captures that libipt decoded too: the instruction and error counts must be the same. `tar` unpacks the archives
//! into a scratch folder. Without the archives the tests are ignored.

use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_flow::clock::ClockConfig;
use kprism_flow::digest::segment_digests;
use kprism_flow::errata::Errata;
use kprism_flow::event::{Event, Null, Sink};
use kprism_flow::packet_event::PacketEvent;
use kprism_flow::{Decoder, Setup, Stats};
use kprism_flow::{Options, Stream, profile};
use kprism_image::Image;
use kprism_image::resolve::Regions;
use kprism_pt::Packet;
use kprism_test::{captures, ptoracle, test};

fn unpack(archive: &Path, name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).expect("a scratch folder");
    let status = Command::new("tar").arg("xf").arg(archive).arg("-C").arg(&dir).status();
    assert!(status.expect("tar").success(), "cannot unpack {archive:?}");
    dir
}

fn load(dir: &Path) -> Image {
    let mut image = Image::flat();
    for line in std::fs::read_to_string(dir.join("xpages.txt")).expect("xpages.txt").lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let va = u64::from_str_radix(fields[1], 16).expect("an address");
        image.add(0, va, &std::fs::read(dir.join(fields[3])).expect("a code page"));
    }
    image
}

fn decode(pt: &[u8], image: &Image) -> Stats {
    let resolver = Regions::default();
    let setup = Setup {
        image,
        resolver: &resolver,
        clock: ClockConfig::default(),
        watch: None,
        errata: Default::default(),
    };
    Decoder::new(pt, setup, false).run(0, pt.len(), &mut Null)
}

#[test]
fn counts_are_libipts() {
    let data = captures("pt");
    let dir = unpack(&data.join("arcus-user-traces.tar.xz"), "arcus");
    let table = std::fs::read_to_string(data.join("oracle.tsv")).expect("oracle.tsv");
    let mut seen = 0;
    for line in table.lines().skip(1).filter(|l| !l.is_empty()) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [trace_dir, trace, bytes, insns, errors, ..] = fields[..] else { panic!("{line}") };
        let pt = std::fs::read(dir.join(trace_dir).join(trace)).expect("a capture");
        assert_eq!(pt.len().to_string(), bytes);
        let image = load(&dir.join(trace_dir));
        let stats = decode(&pt, &image);
        assert_eq!(stats.instructions.to_string(), insns, "{trace_dir}");
        assert_eq!(stats.errors.to_string(), errors, "{trace_dir}: {:?}", stats.faults);
        assert_eq!((stats.lost_bytes, stats.overflows), (0, 0), "{trace_dir}");

        // Decoded segment by segment, the sum is the same, and so is the profile.
        let resolver = Regions::default();
        let sum: u64 = segment_digests(&pt, &image).iter().map(|d| d.instructions).sum();
        assert_eq!(sum, stats.instructions);
        let streams = [Stream { cpu: 0, bytes: &pt, image: &image }];
        let profile = profile(&streams, &resolver, &[], &Options::default(), &|_| ());
        assert_eq!(profile.totals.instructions(), stats.instructions);
        assert_eq!(profile.nodes.iter().map(|n| n.insns).sum::<u64>(), stats.instructions);
        seen += 1;
    }
    assert!(seen >= 6);
}

/// Adds the only text segment of a non-relocatable 64-bit ELF file. The program headers are read by hand: type LOAD
/// with the execute flag.
fn add_elf(image: &mut Image, elf: &[u8], bias: u64) {
    let word = |at: usize, n: usize| elf[at..at + n].iter().rev().fold(0u64, |w, &b| w << 8 | u64::from(b));
    let (headers, size, count) = (word(0x20, 8) as usize, word(0x36, 2) as usize, word(0x38, 2) as usize);
    for at in (0..count).map(|i| headers + i * size) {
        if word(at, 4) == 1 && word(at + 4, 4) & 1 == 1 {
            let (offset, va, len) = (word(at + 8, 8) as usize, word(at + 16, 8), word(at + 32, 8) as usize);
            image.add(0, bias + va, &elf[offset..offset + len]);
        }
    }
}

#[test]
fn small_captures_of_other_tools() {
    let data = captures("pt");
    let dir = unpack(&data.join("lldb-traces.tar.xz"), "lldb").join("lldb/intelpt-trace");
    let mut image = Image::flat();
    add_elf(&mut image, &std::fs::read(dir.join("a.out")).expect("a.out"), 0);
    let stats = decode(&std::fs::read(dir.join("3842849.trace")).expect("a capture"), &image);
    // LLDB's own test of this capture names the same number.
    assert_eq!((stats.instructions, stats.errors), (21, 0), "{:?}", stats.faults);

    let dir = unpack(&data.join("dynamorio-test-simple.tar.xz"), "dynamorio");
    let dir = dir.join("dynamorio/test_simple.raw");
    let mut image = Image::flat();
    add_elf(&mut image, &std::fs::read(dir.join("hello")).expect("hello"), 0);
    let stats = decode(&std::fs::read(dir.join("pt.bin")).expect("a capture"), &image);
    assert_eq!((stats.instructions, stats.errors), (8, 0), "{:?}", stats.faults);
}

/// Ratios of the core's clock, with the number of instructions before each.
#[derive(Default)]
struct Ratios {
    insns: u64,
    told: Vec<(u8, u64)>,
}

impl Sink for Ratios {
    const IPS: bool = true;
    const PACKET_EVENTS: bool = true;

    fn event(&mut self, _: Event) {}

    fn time(&mut self, _: u32, _: u64) {}

    fn ips(&mut self, ips: &[u64]) {
        self.insns += ips.len() as u64;
    }

    fn packet_event(&mut self, _: u32, event: PacketEvent) {
        if let (Packet::Cbr { ratio }, false) = (event.packet, event.restated) {
            self.told.push((ratio, self.insns));
        }
    }
}

/// The changes of the core's clock in captures that libipt's instruction decoder reads to their end.
#[test]
fn clock_changes_are_libipts() {
    let data = captures("pt");
    let oracle = ptoracle();
    let dir = unpack(&data.join("arcus-user-traces.tar.xz"), "arcus-events");
    let mut seen = 0;
    for trace in std::fs::read_dir(dir.join("arcus-x")).expect("traces") {
        let trace = trace.expect("a trace").path();
        let files = std::fs::read_dir(&trace).expect("a trace").map(|file| file.expect("a file").path());
        let Some(file) = files.into_iter().find(|file| file.extension().is_some_and(|ext| ext == "pt"))
        else {
            continue;
        };
        let mut command = Command::new(&oracle);
        command.args(["--events", "--cpu", "6/94/3", "--raw"]).arg(&file);
        let output = command.arg("--pages").arg(trace.join("xpages.txt")).output().expect("ptoracle");
        if !output.status.success() {
            continue;
        }
        let theirs: Vec<(u8, u64)> = String::from_utf8(output.stdout)
            .expect("text")
            .lines()
            .filter_map(|line| {
                let (ratio, insns) = line.strip_prefix("cbr ")?.split_once(" at - after ")?;
                Some((ratio.parse().ok()?, insns.parse().ok()?))
            })
            .collect();
        let image = load(&trace);
        let pt = std::fs::read(&file).expect("a capture");
        let resolver = Regions::default();
        let clock = ClockConfig::default();
        let setup = Setup { image: &image, resolver: &resolver, clock, watch: None, errata: Errata::NONE };
        let mut ours = Ratios::default();
        let stats = Decoder::new(&pt, setup, true).run(0, pt.len(), &mut ours);
        assert_eq!(ours.told, theirs, "{}", file.display());
        assert_eq!(stats.packet_events.iter().map(|(_, n)| n).sum::<u64>(), theirs.len() as u64);
        seen += theirs.len();
    }
    assert!(seen > 100, "{seen} changes");
}

kprism_test::main!();
