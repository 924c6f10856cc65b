// SPDX-License-Identifier: GPL-2.0-or-later
use kprism_pt::PacketReader;

use super::*;

const KERNEL: u64 = 0xffff_ffff_8100_0000;

fn writer(words: &str) -> Writer {
    let words = format!("out=/x,mtc=off,{words}");
    Writer::new(&Options::parse(words.split(',')).unwrap())
}

/// Packets after the first PSB+.
fn packets(w: &Writer) -> Vec<Packet> {
    let all = PacketReader::new(&w.out).map(|p| p.unwrap().1);
    all.skip_while(|p| *p != Packet::PsbEnd).skip(1).collect()
}

/// Cycle counts of the CYC packets; 0 for every packet that may have one.
fn rhythm(words: &str) -> Vec<u64> {
    let mut w = writer(words);
    w.enable(0x1000, Mode::Bits64, 0, 100);
    for ns in [110, 120, 130, 170, 300] {
        w.tip(0x2000, Mode::Bits64, ns);
    }
    w.sync(0x3000, 310);
    w.tip(0x2000, Mode::Bits64, 350);
    let of = |p: Packet| match p {
        Packet::Cyc { cycles } => Some(cycles),
        Packet::Tip(_) => Some(0),
        _ => None,
    };
    packets(&w).into_iter().filter_map(of).collect()
}

#[test]
fn a_cyc_packet_waits_for_its_threshold() {
    assert_eq!(rhythm("cyc=on"), [10, 0, 10, 0, 10, 0, 40, 0, 130, 0, 10, 40, 0]);
    assert_eq!(rhythm("cyc=1"), rhythm("cyc=0"));
    assert_eq!(rhythm("cyc=16"), [0, 20, 0, 0, 50, 0, 130, 0, 50, 0], "a PSB does not reset the counter");
    assert_eq!(rhythm("cyc=128"), [0, 0, 0, 0, 200, 0, 0]);
    assert_eq!(rhythm("cyc=off"), [0; 6]);
}

#[test]
fn an_address_filter_leaves_out_the_kernel() {
    let mut w = writer("cyc=off,filter=user");
    w.enable(KERNEL, Mode::Bits64, 0, 0);
    w.branch(true, 1);
    w.call(KERNEL + 8);
    w.ret(KERNEL + 8, Mode::Bits64, 2);
    w.tip(KERNEL, Mode::Bits64, 3);
    assert_eq!(packets(&w), [], "nothing of the flow");
    w.tip(0x1000, Mode::Bits64, 4);
    w.branch(false, 5);
    w.interrupt(0x1010, KERNEL, Mode::Bits64, 6);
    w.pip(0x5000, 7);
    w.sync(KERNEL, 8);
    w.disable(KERNEL, 9);
    let got = packets(&w);
    let names: Vec<String> =
        got.iter().map(|p| format!("{p:?}").split([' ', '(']).next().unwrap().to_owned()).collect();
    let psb = ["Psb", "Tsc", "Cbr", "ModeExec", "Pip", "PsbEnd"];
    assert_eq!(names, [&["TipPge", "Tnt", "Fup", "TipPgd", "Pip"][..], &psb].concat());
}
