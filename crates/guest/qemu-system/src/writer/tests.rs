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

/// Number of PSBs, and of branches in each TNT packet, for a function with a repeated instruction that then does `between`, and another
/// repeated instruction.
fn between_repeats(words: &str, between: impl Fn(&mut Writer)) -> (usize, Vec<u8>) {
    let mut w = writer(words);
    w.enable(0x1000, Mode::Bits64, 0, 100);
    w.branch(true, 110);
    w.before_repeat(0x1010, 115);
    w.repeated();
    between(&mut w);
    w.before_repeat(0x2000, 150);
    w.repeated();
    w.branch(true, 160);
    w.disable(0x2010, 170);
    let packets = packets(&w);
    let psbs = packets.iter().filter(|p| matches!(p, Packet::Psb)).count();
    let branches = packets.iter().filter_map(|p| match p {
        Packet::Tnt { len, .. } => Some(*len),
        _ => None,
    });
    (psbs, branches.collect())
}

#[test]
fn the_time_is_told_between_two_repeated_instructions() {
    assert_eq!(between_repeats("cyc=on", |_| ()), (0, vec![2]), "in one run of code");
    assert_eq!(between_repeats("cyc=on", |w| w.branch(true, 120)), (0, vec![2, 1]));
    assert_eq!(between_repeats("cyc=on", |w| w.call(0x1018)), (1, vec![1, 1]), "no branch is between");
    assert_eq!(between_repeats("cyc=on", Writer::jump), (1, vec![1, 1]));
    let branch_and_call = |w: &mut Writer| {
        w.branch(true, 120);
        w.call(0x1018);
    };
    assert_eq!(between_repeats("cyc=on", branch_and_call), (0, vec![2, 1]));
    // A crystal's tick sends the branch before the first one, which tells nothing of it.
    let tick_and_call = |w: &mut Writer| {
        w.flush(120);
        w.call(0x1018);
    };
    assert_eq!(between_repeats("cyc=on", tick_and_call), (1, vec![1, 1]));
    assert_eq!(between_repeats("cyc=off", |w| w.call(0x1018)), (0, vec![2]), "no time is told");
}

#[test]
fn a_wait_for_a_turn_is_an_execution_stop() {
    let waited = |words: &str| {
        let mut w = writer(words);
        w.enable(0x1000, Mode::Bits64, 0, 100);
        w.branch(true, 110);
        w.wait(0x1010, 115, 5115);
        w.branch(false, 5120);
        w.disable(0x1020, 5130);
        packets(&w)
    };
    let found = waited("cyc=on");
    let stop = found.iter().position(|p| matches!(p, Packet::Exstop { ip: true })).expect("a stop");
    assert!(matches!(found[stop - 1], Packet::Cyc { cycles: 5 }), "{found:?}");
    assert!(matches!(found[stop + 1], Packet::Fup(_)), "{found:?}");
    assert!(
        matches!(found[stop + 2..stop + 4], [Packet::Cyc { cycles: 5000 }, Packet::Cbr { .. }]),
        "{found:?}"
    );
    // Whatever the threshold.
    assert_eq!(waited("cyc=16384").iter().filter(|p| matches!(p, Packet::Cyc { .. })).count(), 2);
    assert!(!waited("cyc=off").iter().any(|p| matches!(p, Packet::Exstop { .. })));
}
