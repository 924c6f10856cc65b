// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code that changes under the decoder while it keeps its blocks.

use kprism_flow::clock::ClockConfig;
use kprism_flow::event::Null;
use kprism_flow::{Decoder, Setup};
use kprism_image::Image;
use kprism_image::resolve::Regions;
use kprism_pt::{LastIp, Packet};

/// A branch leads to an instruction that spans two granules. Its second half is unknown until a record replaces that
/// granule, right after the packet that leads there. The block built before must then be invalid.
#[test]
fn an_instruction_across_granules_becomes_known() {
    let base = 0xffff_ffff_8100_0000;
    let mut pt = Vec::new();
    let mut last = LastIp::default();
    Packet::Psb.encode(&mut pt);
    Packet::ModeExec { cs_l: true, cs_d: false, if_flag: false }.encode(&mut pt);
    Packet::Fup(last.compress(base + 0xf9)).encode(&mut pt);
    Packet::PsbEnd.encode(&mut pt);
    Packet::Tnt { bits: 0, len: 1 }.encode(&mut pt);
    let change = pt.len() as u64;
    Packet::Tip(last.compress(base + 0xf9)).encode(&mut pt);

    let mut image = Image::new();
    image.add(0, base + 0xf9, &[0x4d, 0x85, 0xd2, 0x74, 0x06]); // test r10, r10; je
    image.add(0, base + 0x104, &[0x90]); // in the granule behind
    image.replace(0, base + 0xfe, &[0x48, 0x29, 0xef, 0x48, 0x89, 0xc8, 0xc3], change); // sub; mov; ret

    let resolver = Regions::default();
    let setup = Setup {
        image: &image,
        resolver: &resolver,
        clock: ClockConfig::default(),
        watch: None,
        errata: Default::default(),
    };
    let stats = Decoder::new(&pt, setup, false).run(0, pt.len(), &mut Null);
    assert_eq!(stats.faults, []);
    assert_eq!((stats.instructions, stats.branches), (5, 2));
}
