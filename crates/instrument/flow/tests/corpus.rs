// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes the fuzzer's seeds and its past findings on a stable toolchain.

#[path = "../../../../fuzz/src/input.rs"]
#[allow(dead_code)]
mod input;

#[path = "../../../../fuzz/src/cells.rs"]
mod cells;

use std::path::Path;

use cells::{CLOCK, Cells};
use kprism_flow::error::FaultKind;
use kprism_flow::event::Null;
use kprism_flow::{Decoder, Setup};
use kprism_flow::{Options, Stream, profile};

/// Limit on the work per byte of a stream: a byte that leads into an endless loop must be noticed early.
const MOST_PER_BYTE: u64 = 256;

#[test]
fn every_seed_decodes_with_little_work() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/flow");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let (image, pt) = input::read(&bytes).expect("seeds are whole");
        let most = MOST_PER_BYTE * pt.len() as u64;
        let setup =
            Setup { image: &image, resolver: &Cells, clock: CLOCK, watch: None, errata: Default::default() };
        let alone = Decoder::new(pt, setup, false).run(0, pt.len(), &mut Null);
        assert!(alone.instructions <= most, "{}: {} instructions", path.display(), alone.instructions);
        for chunk in [0, 1] {
            let streams = [Stream { cpu: 0, bytes: pt, image: &image }];
            let options = Options { threads: 1, slice_ns: 10, clock: CLOCK, chunk, ..Options::default() };
            let profile = profile(&streams, &Cells, &[], &options, &|_| {});
            assert!(profile.nodes.len() as u64 <= most, "{}: {} nodes", path.display(), profile.nodes.len());
            // How often an endless loop runs before it is noticed depends on where blocks are cut.
            let endless = alone.faults.iter().any(|fault| fault.kind == FaultKind::Endless);
            let same = profile.totals.per_cpu[0].instructions == alone.instructions;
            assert!(chunk == 1 || same || endless, "{}", path.display());
        }
        seen += 1;
    }
    assert!(seen > 8, "the corpus is where it was");
}
