// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fuzzer's seeds and the inputs it once stumbled over, on a stable toolchain.

#[path = "../../../fuzz/src/input.rs"]
#[allow(dead_code)]
mod input;

use std::path::Path;

use kprism_flow::clock::ClockConfig;
use kprism_flow::decode::{Decoder, Setup};
use kprism_flow::event::Null;
use kprism_flow::{Options, Stream, profile};
use kprism_image::resolve::{FuncInfo, FuncRef, Resolve};

const CLOCK: ClockConfig =
    ClockConfig { tsc_hz: 3_000_000_000, art_num: 40, art_den: 1, mtc_freq: 3, nom_ratio: 10 };

/// Eight bytes make a function, where code lies.
struct Cells;

impl Resolve for Cells {
    fn function_at(&self, _asid: u64, va: u64, _at_ns: u64) -> FuncRef {
        let place = input::BASES.iter().position(|&(_, base)| va.wrapping_sub(base) < 0x1000);
        let Some(place) = place else {
            return FuncRef { id: 0, entry: va, known: false, start: va, end: va.saturating_add(1) };
        };
        let id = 1 + ((place as u32) << 9 | (va as u32 & 0xfff) >> 3);
        FuncRef { id, entry: va & !7, known: true, start: va & !7, end: (va & !7).saturating_add(8) }
    }

    fn describe(&self, id: u32) -> FuncInfo {
        FuncInfo { name: "cell".into(), module: String::new(), start: u64::from(id) << 3, kernel: false }
    }
}

/// Work that a byte of a stream may make: an endless loop that it leads to must be noticed early.
const MOST_PER_BYTE: u64 = 256;

#[test]
fn every_seed_decodes_with_little_work() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/flow");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let (image, pt) = input::read(&bytes).expect("seeds are whole");
        let most = MOST_PER_BYTE * pt.len() as u64;
        let setup = Setup { image: &image, resolver: &Cells, clock: CLOCK, watch: None };
        let alone = Decoder::new(pt, setup, false).run(0, pt.len(), &mut Null);
        assert!(alone.instructions <= most, "{}: {} instructions", path.display(), alone.instructions);
        for chunk in [0, 1] {
            let streams = [Stream { cpu: 0, bytes: pt, image: &image }];
            let options = Options { threads: 1, slice_ns: 10, clock: CLOCK, chunk };
            let profile = profile(&streams, &Cells, &[], &options, &|_| {});
            assert!(profile.nodes.len() as u64 <= most, "{}: {} nodes", path.display(), profile.nodes.len());
            assert!(chunk == 1 || profile.totals.per_cpu[0].instructions == alone.instructions);
        }
        seen += 1;
    }
    assert!(seen > 8, "the corpus is where it was");
}
