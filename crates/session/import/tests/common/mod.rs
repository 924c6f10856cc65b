// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real captures, if the machine has them, and their decoding by the flow decoder.

use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_flow::clock::ClockConfig;
use kprism_flow::event::{Event, Sink};
use kprism_flow::{Decoder, Setup, Stats};
use kprism_image::Image;
use kprism_image::resolve::Regions;
use kprism_import::perfdata::Search;
use kprism_import::{Capture, Stream, detect, read};
use kprism_pt::find_psb;
use kprism_test::captures;

/// The folder of captures; the test is ignored without one.
pub fn data() -> PathBuf {
    captures("pt")
}

/// Unpacks one of the archives.
pub fn unpack(data: &Path, archive: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let status = Command::new("tar").arg("-xf").arg(data.join(archive)).arg("-C").arg(dir.path()).status();
    assert!(status.expect("tar").success(), "unpacking {archive}");
    dir
}

pub fn capture(path: &Path) -> Capture {
    read(&detect(path).expect("a capture"), &[], &Search::default()).expect("a readable capture")
}

/// The code a stream may run.
pub fn image(capture: &Capture, stream: &Stream) -> Image {
    let mut image = Image::flat();
    for region in stream.regions.iter().map(|placed| &capture.regions[placed.region]) {
        image.add(0, region.va, &region.bytes);
    }
    image
}

/// Counts and hashes addresses: 64-bit FNV-1a over their little-endian bytes.
pub struct Hash {
    pub count: u64,
    pub fnv: u64,
}

impl Sink for Hash {
    const IPS: bool = true;
    fn event(&mut self, _event: Event) {}
    fn time(&mut self, _insns: u32, _ns: u64) {}
    fn ips(&mut self, ips: &[u64]) {
        self.count += ips.len() as u64;
        for byte in ips.iter().flat_map(|ip| ip.to_le_bytes()) {
            self.fnv = (self.fnv ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

/// One PSB segment as decoded.
pub struct Segment {
    pub offset: usize,
    pub hash: Hash,
    pub stats: Stats,
}

/// Decodes each PSB segment by itself.
pub fn segments(capture: &Capture, stream: &Stream) -> Vec<Segment> {
    let image = image(capture, stream);
    let resolver = Regions::default();
    let setup = Setup {
        image: &image,
        resolver: &resolver,
        clock: ClockConfig::default(),
        watch: None,
        errata: Default::default(),
    };
    let mut segments = Vec::new();
    let mut next = find_psb(&stream.pt, 0);
    while let Some(offset) = next {
        next = find_psb(&stream.pt, offset + 16);
        let mut hash = Hash { count: 0, fnv: 0xcbf2_9ce4_8422_2325 };
        let end = next.unwrap_or(stream.pt.len());
        let stats = Decoder::new(&stream.pt, setup, true).run(offset, end, &mut hash);
        segments.push(Segment { offset, hash, stats });
    }
    segments
}
