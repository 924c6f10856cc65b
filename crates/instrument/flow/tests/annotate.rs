// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of single instructions: branches, indirect targets, thunks, code that is patched while it is traced.

mod hand;

use hand::{CLOCK, Code, Pt};
use kprism_flow::Stream;
use kprism_flow::replay::count::{Counter, Counts};
use kprism_flow::replay::{Inputs, replay};

const POLL: u64 = 0xffff_ffff_8100_0000;
const CALLER: u64 = 0xffff_ffff_8100_1000;
const A: u64 = 0xffff_ffff_8100_2000;
const B: u64 = 0xffff_ffff_8100_3000;
const TIMER: u64 = 0xffff_ffff_8100_4000;
const THUNK: u64 = 0xffff_ffff_8100_5000;

/// `poll` calls its argument until that returns something else than 0. `caller` calls through a thunk, and then jumps
/// to `poll` with a return instruction. The third round of `poll` is interrupted right after its branch; in the fourth
/// its test is a different instruction.
fn counts(takes: bool) -> Counts {
    let mut code = Code::default();
    // poll: call *rax; test eax, eax; je poll; ret
    code.func("poll", POLL, &[0xff, 0xd0, 0x85, 0xc0, 0x74, 0xfa, 0xc3]);
    code.func("caller", CALLER, &[0xe8, 0xfb, 0x3f, 0, 0, 0xc3]);
    code.func("a", A, &[0xc3]);
    code.func("b", B, &[0xc3]);
    code.func("asm_sysvec_timer", TIMER, &[0x48, 0xcf]);
    // call 2f; 1: pause; jmp 1b; 2: mov [rsp], rax; ret
    let thunk = [0xe8, 4, 0, 0, 0, 0xf3, 0x90, 0xeb, 0xfc, 0x48, 0x89, 0x04, 0x24, 0xc3];
    code.func("__x86_indirect_thunk_rax", THUNK, &thunk);
    let mut pt = Pt::new();
    pt.psb_at(CALLER, 1000).cyc(1).tip(A).tip(CALLER + 5).tip(POLL);
    for target in [A, B, A] {
        pt.tip(target).tip(POLL + 2).tnt("t");
    }
    pt.fup(POLL).tip(TIMER).tip(POLL);
    code.image.replace(0, POLL + 2, &[0x31, 0xc0], pt.bytes.len() as u64);
    pt.cyc(9).tip(A).tip(POLL + 2).tnt("n").cyc(9).tip(B).tip(A);

    let streams = [Stream { cpu: 0, bytes: &pt.bytes, image: &code.image }];
    let inputs = Inputs {
        streams: &streams,
        resolver: &code,
        sideband: &[],
        clock: CLOCK,
        errata: Default::default(),
        stretch: 0,
    };
    let (takes, stop) = (|_, _: &_| takes, || false);
    let mut counter = Counter::new(1, &code, &[true, true], &takes, &stop);
    let stats = replay(&inputs, &mut counter).stats;
    assert_eq!(stats[0].errors, 0);
    counter.finish()
}

#[test]
fn instructions_branches_and_targets() {
    let counts = counts(true);
    let lines: Vec<String> = counts
        .sites
        .iter()
        .map(|s| {
            let targets: Vec<_> = s.targets.iter().map(|t| (t.ip, t.count)).collect();
            format!("{}+{} {:x?} {} {} {targets:x?}", s.func, s.offset, s.bytes, s.count, s.taken)
        })
        .collect();
    assert_eq!(
        lines,
        [
            format!("0+0 [ff, d0] 4 0 {:x?}", [(A, 3), (B, 1)]),
            "0+2 [85, c0] 3 0 []".to_owned(),
            "0+2 [31, c0] 1 0 []".to_owned(),
            "0+4 [74, fa] 4 3 []".to_owned(),
            // To another function's first instruction: a jump, though made with a return instruction.
            format!("0+6 [c3] 1 0 {:x?}", [(B, 1)]),
            format!("1+0 [e8, fb, 3f, 0, 0] 1 0 {:x?}", [(A, 1)]),
            format!("1+5 [c3] 1 0 {:x?}", [(POLL, 1)]),
        ]
    );
    // Returns: five from calls, one from a jump. Three instructions of the thunk, one of the interrupt.
    let own: u64 = counts.sites.iter().map(|s| s.count).sum();
    assert_eq!(counts.insns, own + 5 + 1 + 3 + 1);
    assert!(counts.sites.iter().map(|s| s.ns).sum::<u64>() <= counts.ns);
    let (old, new) = (&counts.sites[1], &counts.sites[2]);
    assert!(old.first_ns <= old.last_ns && old.last_ns <= new.first_ns);
}

#[test]
fn other_tasks_count_for_nothing() {
    let Counts { sites, insns, ns, elsewhere } = counts(false);
    assert_eq!((sites.len(), insns, ns), (0, 0, 0));
    assert!(elsewhere.iter().all(|&count| count == 0));
}
