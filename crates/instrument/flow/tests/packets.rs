// SPDX-License-Identifier: MIT OR Apache-2.0
//! One packet sequence each, written out.

mod hand;

use hand::{Code, Pt};
use kprism_flow::error::FaultKind;
use kprism_pt::Packet;

const U: u64 = 0x40_0000;
const K: u64 = 0xffff_ffff_8100_0000;

/// nop; nop; je +1; nop; ret at [`U`].
fn small() -> Code {
    let mut code = Code::default();
    code.func("f", U, &[0x90, 0x90, 0x74, 0x01, 0x90, 0xc3]);
    code
}

/// A loop: nop; jne back; syscall; nop; jmp back. The kernel: nop; sysret. And an interrupt: nop; iret.
fn looping() -> Code {
    let mut code = Code::default();
    code.func("main", U, &[0x90, 0x75, 0xfd, 0x0f, 0x05, 0x90, 0xeb, 0xf8]);
    code.func("entry_SYSCALL_64", K, &[0x90, 0x48, 0x0f, 0x07]);
    code.func("asm_sysvec_timer", K + 0x100, &[0x90, 0x48, 0xcf]);
    code
}

fn check(code: &Code, pt: &Pt, want: &[u64]) {
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!(stats.faults, []);
    assert_eq!(ips, want);
    assert_eq!(stats.instructions, want.len() as u64);
    assert_eq!(stats.lost_bytes, 0);
}

#[test]
fn nothing_but_a_start() {
    let mut pt = Pt::new();
    pt.psb(U);
    check(&small(), &pt, &[]);
}

#[test]
fn branches_and_an_uncompressed_return() {
    let mut pt = Pt::new();
    pt.psb(U).tnt("n").tip(U).tnt("t").tip(U + 2).tnt("t");
    check(&small(), &pt, &[U, U + 1, U + 2, U + 4, U + 5, U, U + 1, U + 2, U + 5, U + 2]);
}

#[test]
fn off_and_on_again() {
    let mut pt = Pt::new();
    // Tracing goes off by a system call, with and without an address; then asynchronously.
    pt.psb_off().pge(U).tnt("n").pgd(None).pge(U + 5).tnt("n").pgd(Some(U + 0x5000)).pge(U + 5);
    pt.fup(U).pgd(None).pge(U).tnt("tn");
    let twice = [U, U + 1, U + 3];
    let want = [&twice[..], &[U + 5, U + 6], &twice, &[U + 5, U + 6], &[U, U + 1], &[U, U + 1]].concat();
    check(&looping(), &pt, &want);
}

#[test]
fn erratum_bdm70() {
    let mut pt = Pt::new();
    pt.psb(U + 3).pge(U).tnt("t");
    check(&looping(), &pt, &[U, U + 1]);
}

#[test]
fn system_call_and_interrupt() {
    let mut pt = Pt::new();
    pt.psb(U).tnt("n").tip(K).tip(U + 5).fup(U).tip(K + 0x100).tip(U).tnt("t");
    check(&looping(), &pt, &[U, U + 1, U + 3, K, K + 1, U + 5, U + 6, K + 0x100, K + 0x101, U, U + 1]);
}

#[test]
fn overflow_then_fup_or_pge() {
    let code = looping();
    let mut pt = Pt::new();
    pt.psb(U).tnt("tt").put(Packet::Ovf).fup(U + 5).tnt("t");
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!(ips, [U, U + 1, U, U + 1, U + 5, U + 6, U, U + 1]);
    assert_eq!((stats.errors, stats.overflows), (0, 1));
    assert_eq!(stats.faults[0].kind, FaultKind::Overflow);
    let mut pt = Pt::new();
    pt.psb(U).tnt("t").put(Packet::Ovf).pge(U + 5).tnt("t");
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!(ips, [U, U + 1, U + 5, U + 6, U, U + 1]);
    assert_eq!((stats.errors, stats.overflows), (0, 1));
}

#[test]
fn packets_that_own_a_fup() {
    let mut pt = Pt::new();
    pt.psb(U);
    pt.put(Packet::Ptw { payload: 1, size: 8, ip: true }).fup(U + 5);
    pt.tnt("t");
    pt.put(Packet::Ptw { payload: 1, size: 4, ip: false });
    pt.put(Packet::Exstop { ip: true }).fup(U + 0x999);
    pt.put(Packet::Mwait { hints: 1, ext: 0 }).put(Packet::Pwre { state: 1, sub_state: 0, hw: false });
    pt.put(Packet::Pwrx { last: 1, deepest: 1, reason: 1 });
    pt.put(Packet::Bbp { typ: 4, size4: false }).put(Packet::Bip { id: 3, payload: 0x1c, size: 8 });
    pt.put(Packet::Cyc { cycles: 3 });
    pt.put(Packet::Bep { ip: true }).fup(U + 0x999);
    pt.put(Packet::Trig { triggers: 1, instructions: None, multiple: false, ip: true }).fup(U + 0x999);
    pt.put(Packet::Mnt { payload: 7 }).put(Packet::Vmcs { base: 0x1000 });
    pt.put(Packet::Evd { typ: 0, payload: 0xdead });
    pt.tnt("t");
    // An interrupt, with an event packet of its own; IRET's event names the instruction only.
    pt.put(Packet::Cfe { typ: 1, vector: 0x20, ip: true }).fup(U).tip(K + 0x100);
    pt.put(Packet::Cfe { typ: 2, vector: 0, ip: true }).fup(K + 0x101).tip(U).tnt("t");
    check(&looping(), &pt, &[U, U + 1, U, U + 1, K + 0x100, K + 0x101, U, U + 1]);
}

#[test]
fn a_fup_behind_mode_exec_is_no_event() {
    // RFLAGS.IF changes twice; then comes the system call's own TIP, which does not lead to a handler.
    let mut pt = Pt::new();
    let flag = |if_flag| Packet::ModeExec { cs_l: true, cs_d: false, if_flag };
    pt.psb(U).put(flag(false)).fup(U).tnt("n").put(flag(true)).fup(U + 3).tip(K).tip(U).tnt("t");
    check(&looping(), &pt, &[U, U + 1, U + 3, K, K + 1, U, U + 1]);
    // Before a TIP it belongs to the TIP, and the FUP after it belongs to an event.
    let mut pt = Pt::new();
    pt.psb(U).tnt("n").put(flag(true)).tip(K).tip(U).fup(U).put(flag(false)).tip(K + 0x100);
    pt.put(flag(true)).tip(U).tnt("t");
    check(&looping(), &pt, &[U, U + 1, U + 3, K, K + 1, K + 0x100, K + 0x101, U, U + 1]);
}

/// main: call f; nop; call f; jmp back. f: syscall; ret. The kernel's code is not known.
fn without_kernel() -> Code {
    let mut code = Code::default();
    code.func("main", U, &[0xe8, 0x1b, 0, 0, 0, 0x90, 0xe8, 0x15, 0, 0, 0, 0xeb, 0xf3]);
    code.func("f", U + 0x20, &[0x0f, 0x05, 0xc3]);
    code
}

#[test]
fn compressed_returns_after_a_stay_in_unknown_code_of_the_kernel() {
    let code = without_kernel();
    let (f, back) = (U + 0x20, U + 0x22);
    // A system call, in which the kernel returns compressed and calls through pointers; then one with an interrupt at its end.
    let mut pt = Pt::new();
    pt.psb(U).tip(K).tnt("ttnt").tip(K + 0x500).tnt("t").tip(back).tnt("t");
    pt.tip(K).tip(back).fup(back).tip(K + 0x100).tnt("tt").tip(back).tnt("t").fup(U).tip(K + 0x100);
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!(ips, [U, f, back, U + 5, U + 6, f, back, U + 11]);
    assert!(
        stats.faults.iter().all(|fault| matches!(fault.kind, FaultKind::NoCode(at) if at >= K)),
        "{:?}",
        stats.faults
    );
    // The kernel went on with other code: a signal's handler, another thread. Those calls are not its own.
    let mut pt = Pt::new();
    pt.psb(U).tip(K).tip(f).tip(K).tip(back).tnt("t");
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!(ips, [U, f, f, back]);
    assert_eq!(stats.faults.last().map(|fault| &fault.kind), Some(&FaultKind::NoCall));
    // The handler comes back to where the program was: its calls are there again.
    let mut pt = Pt::new();
    pt.psb(U).tip(K).tip(U + 6).fup(f).tip(K + 0x100).tip(back).tnt("t").fup(U + 6).tip(K + 0x100);
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!(ips, [U, f, U + 6, back, U + 5]);
    assert!(
        stats.faults.iter().all(|fault| matches!(fault.kind, FaultKind::NoCode(at) if at >= K)),
        "{:?}",
        stats.faults
    );
    // Two threads wait at one address: whose calls it returns from is not known.
    let mut pt = Pt::new();
    pt.psb(U).tip(K).tip(U + 6).tip(K).tip(back).tnt("t");
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!(ips, [U, f, U + 6, f, back]);
    assert_eq!(stats.faults.last().map(|fault| &fault.kind), Some(&FaultKind::NoCall));
    // An overflow in the kernel: calls may have been lost.
    let mut pt = Pt::new();
    pt.psb(U).tip(K).put(Packet::Ovf).tip(back).tnt("t");
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!(ips, [U, f, back]);
    assert_eq!(stats.faults.last().map(|fault| &fault.kind), Some(&FaultKind::NoCall));
}

#[test]
fn any_fup_ends_a_loss() {
    let code = looping();
    let owners = [
        Packet::Ptw { payload: 1, size: 8, ip: true },
        Packet::Trig { triggers: 1, instructions: None, multiple: false, ip: true },
        Packet::ModeTsx { in_tx: true, abort: false },
    ];
    for owner in owners {
        let mut pt = Pt::new();
        pt.psb(U + 0x7000).tnt("t").put(owner).fup(U).tnt("n").tip(K).tip(U).tnt("t");
        let (ips, stats) = code.decode(&pt.bytes);
        assert_eq!((stats.errors, stats.lost_bytes > 0), (1, true), "{owner:?}: {:?}", stats.faults);
        assert_eq!(ips, [U, U + 1, U + 3, K, K + 1, U, U + 1], "{owner:?}");
    }
    // Erratum SKD010: an overflow's FUP is missing.
    let mut pt = Pt::new();
    pt.psb(U).put(Packet::Ovf).put(owners[2]).fup(U).tnt("n").tip(K).tip(U).tnt("t");
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!((stats.errors, stats.overflows), (0, 1), "{:?}", stats.faults);
    assert_eq!(ips, [U, U + 1, U + 3, K, K + 1, U, U + 1]);
}

#[test]
fn transactions() {
    let mut code = Code::default();
    // xbegin +1 (to the ret); nop; jne to the nop; ret
    code.func("f", U, &[0xc7, 0xf8, 3, 0, 0, 0, 0x90, 0x75, 0xfd, 0xc3]);
    let mut pt = Pt::new();
    pt.psb(U).put(Packet::ModeTsx { in_tx: true, abort: false }).fup(U).tnt("t");
    pt.put(Packet::ModeTsx { in_tx: false, abort: true }).fup(U + 7).tip(U + 9).tip(U + 6).tnt("t");
    check(&code, &pt, &[U, U + 6, U + 7, U + 6, U + 9, U + 6, U + 7]);
}

#[test]
fn deferred_tips() {
    let mut code = Code::default();
    // je +0; jmp *rax
    code.func("f", U, &[0x74, 0x00, 0xff, 0xe0]);
    let mut pt = Pt::new();
    pt.psb(U).tnt("ntn").tip(U).cyc(1).tip(U).tip(U + 2).tip(U);
    check(&code, &pt, &[U, U + 2, U, U + 2, U, U + 2, U + 2]);
}

#[test]
fn the_same_address_in_two_spaces() {
    let mut code = looping();
    // jne to itself
    code.func_in(0x2000, "other", U, &[0x75, 0xfe]);
    let mut pt = Pt::new();
    pt.psb(U).tnt("n").tip(K).pip(0x2000).tip(U).tnt("tt").fup(U).tip(K + 0x100);
    pt.pip(0x1000).tip(U).tnt("t");
    check(&code, &pt, &[U, U + 1, U + 3, K, K + 1, U, U, K + 0x100, K + 0x101, U, U + 1]);
}

#[test]
fn a_call_to_the_next_instruction_is_not_pushed() {
    let mut code = Code::default();
    // call g; jne .. | g: call +0; pop rax; ret
    code.func("f", U, &[0xe8, 0x0b, 0, 0, 0, 0x75, 0xf9]);
    code.func("g", U + 0x10, &[0xe8, 0, 0, 0, 0, 0x58, 0xc3]);
    let mut pt = Pt::new();
    pt.psb(U).tnt("tt").tnt("t");
    check(&code, &pt, &[U, U + 0x10, U + 0x15, U + 0x16, U + 5, U, U + 0x10, U + 0x15, U + 0x16]);
}

#[test]
fn legacy_modes() {
    let mut code = Code::default();
    // 32-bit: inc eax (a REX prefix in 64-bit mode); je +0
    code.func("f", U, &[0x40, 0x74, 0x00, 0xc3]);
    let mut pt = Pt::new();
    pt.psb_off()
        .put(Packet::ModeExec { cs_l: false, cs_d: true, if_flag: true })
        .pge(U)
        .tnt("n")
        .tip(U)
        .tnt("t");
    check(&code, &pt, &[U, U + 1, U + 3, U, U + 1]);
}

#[test]
fn time_by_every_packet() {
    let code = looping();
    let mut pt = Pt::new();
    pt.psb_at(U, 1_000_000);
    // CTC 0x1003: three ticks past the last multiple of 8, and 7 TSC ticks more.
    let tma = Packet::Tma { ctc: 0x1003, fast: 7 };
    let end = pt.bytes.len() - 2;
    let mut bytes = pt.bytes[..end].to_vec();
    tma.encode(&mut bytes);
    Packet::PsbEnd.encode(&mut bytes);
    let base = 1_000_000 - 7 - 3 * 40;
    let at = |more: &[Packet]| {
        let mut bytes = bytes.clone();
        more.iter().for_each(|p| p.encode(&mut bytes));
        code.decode(&bytes).1.last_ns
    };
    let tnt = Packet::Tnt { bits: 1, len: 1 };
    assert_eq!(at(&[]), 1_000_000);
    assert_eq!(at(&[Packet::Cyc { cycles: 5000 }, tnt]), 1_005_000);
    assert_eq!(at(&[Packet::Cbr { ratio: 20 }, Packet::Cyc { cycles: 5000 }, tnt]), 1_002_500);
    assert_eq!(at(&[Packet::Mtc { ctc: 1 }]), base + 8 * 40);
    assert_eq!(at(&[Packet::Mtc { ctc: 255 }, Packet::Mtc { ctc: 4 }]), base + 260 * 8 * 40);
    assert_eq!(at(&[Packet::Mtc { ctc: 1 }, Packet::Cyc { cycles: 9 }, tnt]), base + 8 * 40 + 9);
    // Time never goes back.
    assert_eq!(at(&[Packet::Cyc { cycles: 300 }, tnt, Packet::Mtc { ctc: 1 }]), 1_000_300);
    assert_eq!(at(&[Packet::Cyc { cycles: 300 }, tnt, Packet::Tsc { tsc: 1_000_100 }]), 1_000_300);
}

#[test]
fn time_when_the_crystal_ticks_slowly_or_cycles_seldom() {
    use kprism_flow::clock::{Clock, ClockConfig};
    // MTC shows CTC bits 19:12, of which TMA leaves the upper half open.
    let config = ClockConfig {
        tsc_hz: 0,
        perf: None,
        art_num: 2,
        art_den: 1,
        mtc_freq: 12,
        nom_ratio: 10,
        cyc_threshold: 0,
    };
    let mut clock = Clock::new(config);
    clock.on_tsc(1_000_000);
    clock.on_tma(0xe000, 0);
    for (mtc, ticks) in [(0xaf, 1), (0xb0, 2), (0xb2, 4)] {
        clock.on_mtc(mtc);
        assert_eq!(clock.ns(), 1_000_000 + ticks * 0x2000);
    }
    // Cycles at nominal speed, counted over several ticks.
    let mut clock = Clock::new(ClockConfig { mtc_freq: 3, ..config });
    clock.on_tsc(1_000_000);
    clock.on_tma(0, 0);
    clock.on_cbr(10);
    clock.on_mtc(1);
    clock.on_cyc(16);
    clock.on_mtc(2);
    assert_eq!(clock.ns(), 1_000_032);
    clock.on_mtc(3);
    clock.on_cyc(20);
    assert_eq!(clock.ns(), 1_000_052);
    clock.on_mtc(4);
    clock.on_cyc(5);
    assert_eq!(clock.ns(), 1_000_069);
    // The core slept: the crystal ticks on, cycles do not.
    clock.on_mtc(5);
    clock.on_mtc(9);
    clock.on_cyc(3);
    assert_eq!(clock.ns(), 1_000_144);
}

#[test]
fn cycles_of_unknown_length_are_measured_by_the_crystal() {
    use kprism_flow::clock::{Clock, ClockConfig};
    for (nom_ratio, cbr) in [(0, 0), (0, 8), (10, 0)] {
        let config = ClockConfig {
            tsc_hz: 0,
            perf: None,
            art_num: 4,
            art_den: 1,
            mtc_freq: 4,
            nom_ratio,
            cyc_threshold: 0,
        };
        let mut clock = Clock::new(config);
        clock.on_tsc(0x1000);
        clock.on_tma(0, 0);
        clock.on_cbr(cbr);
        clock.on_mtc(1);
        clock.on_cyc(0x100);
        assert_eq!(clock.ns(), 0x1040, "no period was measured yet");
        clock.on_mtc(2);
        clock.on_cyc(0x80);
        assert_eq!(clock.ns(), 0x10a0);
        // Two periods with fewer cycles: half of one for each tick.
        clock.on_mtc(3);
        clock.on_mtc(4);
        clock.on_cyc(0x100);
        clock.on_mtc(5);
        clock.on_cyc(0x10);
        assert_eq!(clock.ns(), 0x1140 + 0x10 * 0x80 / 0x100);
    }
}

#[test]
fn no_code_then_on_at_the_next_address() {
    let code = looping();
    let mut pt = Pt::new();
    pt.psb(U).tnt("t").tip(U + 0x7000);
    let at = pt.bytes.len() as u64;
    // The walk from U needs an outcome, not an address. The error is reported there, and decoding continues at the
    // TIP's address, where there is no code.
    pt.tnt("tt").tip(U).tnt("t");
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!(stats.errors, 2, "{:?}", stats.faults);
    assert!(matches!(stats.faults[0].kind, FaultKind::Mismatch(_)));
    assert_eq!(stats.faults[1].kind, FaultKind::NoCode(U + 0x7000));
    assert!(ips.ends_with(&[U, U + 1]), "{ips:x?}");
    assert!(stats.lost_bytes > 0 && stats.faults[0].offset < at);

    let mut pt = Pt::new();
    pt.psb(U).tip(U + 5).fup(U).tip(K + 0x100);
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!((ips, stats.errors), (vec![U, U + 1, U + 5, U + 6], 1));

    let mut pt = Pt::new();
    pt.psb(U + 0x7000).tnt("t").tnt("nn").tip(U).tnt("t");
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!(stats.faults[0].kind, FaultKind::NoCode(U + 0x7000));
    assert_eq!((stats.errors, &ips[..]), (1, &[U, U + 1][..]));
    assert_eq!(stats.lost_bytes, 2);
}

#[test]
fn code_that_is_known_and_no_instruction_is_told_apart_from_code_that_is_not_known() {
    let mut code = looping();
    code.func("bad", U + 0x100, &[0x90, 0x06, 0x90]); // no `push es` in 64-bit mode
    code.func("cut", U + 0x200, &[0x90, 0xe8, 0x00]); // two bytes of a call's five
    for (start, kind) in [
        (U + 0x100, FaultKind::BadCode(U + 0x101)),
        (U + 0x200, FaultKind::CutCode(U + 0x201, 2)),
        (U + 0x300, FaultKind::NoCode(U + 0x300)),
    ] {
        // By a branch's outcome, an indirect branch's target, an event's address.
        let mut outcome = Pt::new();
        outcome.psb(start).tnt("t");
        let mut target = Pt::new();
        target.psb(start).tip(U);
        let mut event = Pt::new();
        event.psb(start).fup(U + 0x400).tip(K + 0x100);
        for pt in [outcome, target, event] {
            let (_, stats) = code.decode(&pt.bytes);
            assert_eq!(stats.faults[0].kind, kind);
            assert_eq!(stats.errors, 1, "{:?}", stats.faults);
        }
    }
}

#[test]
fn what_was_walked_before_an_error_counts() {
    // The interrupt's address lies behind a system call that gave no packet, or behind a jump to unknown code.
    let mut code = looping();
    code.func("stray", U + 0x100, &[0x90, 0xeb, 0x7d]);
    for (start, met) in [(U + 5, vec![U + 5, U + 6, U, U + 1]), (U + 0x100, vec![U + 0x100, U + 0x101])] {
        let mut pt = Pt::new();
        pt.psb(start).fup(U + 3).tip(K + 0x100);
        let (ips, stats) = code.decode(&pt.bytes);
        assert_eq!((ips, stats.instructions, stats.errors), (met.clone(), met.len() as u64, 1));
    }
}

#[test]
fn a_long_straight_run() {
    let mut code = Code::default();
    code.func("f", U, &vec![0x90; 100_000]);
    let mut pt = Pt::new();
    pt.psb(U).fup(U + 100_000).pgd(None);
    let (ips, stats) = code.decode(&pt.bytes);
    assert_eq!((ips.len(), stats.faults), (100_000, vec![]));
}

#[test]
fn erratum_apl12() {
    let mut pt = Pt::new();
    pt.psb(U).put(Packet::Ovf).fup(U + 5).pge(U).tnt("t");
    let (ips, stats) = looping().decode(&pt.bytes);
    assert_eq!((ips, stats.errors), (vec![U, U + 1], 0));
    // If the flow has moved on from there, tracing was really on.
    let mut pt = Pt::new();
    pt.psb(U).put(Packet::Ovf).fup(U).tnt("t").pge(U).tnt("t");
    let (ips, stats) = looping().decode(&pt.bytes);
    assert_eq!((ips, stats.errors), (vec![U, U + 1, U, U + 1], 1));
}

#[test]
fn erratum_bdm64() {
    // The branch before the abort went the other way, so the abort's address is on neither path.
    let mut code = looping();
    code.func("handler", U + 0x100, &[0x90, 0xeb, 0xfd]);
    let mut pt = Pt::new();
    pt.psb(U).put(Packet::ModeTsx { in_tx: true, abort: false }).fup(U).tnt("n");
    pt.put(Packet::ModeTsx { in_tx: false, abort: true }).fup(U + 5).tip(U + 0x100).fup(U + 0x101).pgd(None);
    check(&code, &pt, &[U, U + 1, U + 0x100]);
}

#[test]
fn an_endless_loop_ends() {
    let mut code = Code::default();
    code.func("f", U, &[0xeb, 0xfe]);
    let mut pt = Pt::new();
    pt.psb(U).tnt("t").fup(U).fup(U + 1).tip(U).tnt("tttt").pgd(None);
    let (_, stats) = code.decode(&pt.bytes);
    assert!(stats.faults.iter().any(|f| f.kind == FaultKind::Endless));
    // A loop without branches is interrupted where it is.
    let mut pt = Pt::new();
    pt.psb(U).fup(U).tip(U);
    assert_eq!(code.decode(&pt.bytes).1.errors, 0);
}

#[test]
fn bytes_before_the_first_psb_are_skipped_not_misread() {
    let code = looping();
    let mut whole = Pt::new();
    whole.psb(U).tnt("tn").tip(U);
    let (expected, alone) = code.decode(&whole.bytes);
    // A ring of packets begins anywhere: here with the last two bytes of a TIP, and a TNT of unknown code.
    let mut pt = vec![0x00, 0x7f, 0x06];
    let skipped = pt.len() as u64;
    pt.extend_from_slice(&whole.bytes);
    let (ips, stats) = code.decode(&pt);
    assert_eq!((ips, stats.errors), (expected, alone.errors), "{:?}", stats.faults);
    assert_eq!(stats.lost_bytes, alone.lost_bytes + skipped);
}

#[test]
fn zeros_before_the_first_psb_are_no_loss() {
    let mut whole = Pt::new();
    whole.psb(U).tnt("tn").tip(U);
    for (before, lost) in [(vec![0; 100], 0), ([vec![0; 100], vec![0x06, 0, 0]].concat(), 3)] {
        let (_, stats) = looping().decode(&[before, whole.bytes.clone()].concat());
        let (_, alone) = looping().decode(&whole.bytes);
        assert_eq!(stats.lost_bytes, alone.lost_bytes + lost);
        assert_eq!(stats.instructions, alone.instructions);
    }
}
