// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intervals are measured where everything between beginning and end was seen, and only there. The streams are written
//! by hand, with signals, losses, and stretches without tracing.

mod hand;

use hand::{CLOCK, Code, Pt};
use kprism_flow::delta::{Plan, Spec};
use kprism_flow::{Options, Stream, profile};
use kprism_image::sideband::{Record, Switch};
use kprism_profile::{Delta, NO_PARENT, Profile};
use kprism_pt::Packet;

const MAIN: u64 = 0x40_0000;
const F: u64 = 0x40_1000;
const G: u64 = 0x40_2000;
const RESTORER: u64 = 0x40_3000;
const START: u64 = 0x50_0000;
const ENTRY: u64 = 0xffff_ffff_8100_0000;
const BODY: u64 = 0xffff_ffff_8100_1000;
const TIMER: u64 = 0xffff_ffff_8100_2000;
const SWITCH: u64 = 0xffff_ffff_8100_3000;
const HELPER: u64 = 0xffff_ffff_8100_4000;
const MASKS: u64 = 0xffff_ffff_8100_5000;
const UNDOES: u64 = 0xffff_ffff_8100_6000;

/// The code of the stack tests, plus `masks`: sti; cli; jmp *rax; sti; nop; ret, and `undoes`: cli; sti; popf; cli;
/// sti; cli; ret.
fn code() -> Code {
    let mut code = Code::default();
    code.func("main", MAIN, &[0xe8, 0xfb, 0x0f, 0, 0, 0x90, 0x0f, 0x05, 0x90, 0xff, 0xe0]);
    code.func("f", F, &[0x90, 0xff, 0xd0, 0x90, 0xc3]);
    code.func("g", G, &[0x90, 0xc3, 0x90, 0x0f, 0x05, 0xc3, 0xff, 0xe2]);
    code.func("restorer", RESTORER, &[0x90, 0x0f, 0x05]);
    code.func_in(0x2000, "_start", START, &[0x90, 0xff, 0xe0]);
    code.func("entry_SYSCALL_64", ENTRY, &[0x90, 0xff, 0xd0, 0x48, 0x0f, 0x07]);
    code.func("__x64_sys_execve", BODY, &[0x90, 0xff, 0xd0, 0xc3]);
    code.func("asm_sysvec_timer", TIMER, &[0x90, 0x48, 0xcf]);
    code.func("__switch_to", SWITCH, &[0x90, 0xc3]);
    code.func("helper", HELPER, &[0x90, 0xc3]);
    code.func("masks", MASKS, &[0xfb, 0xfa, 0xff, 0xe0, 0xfb, 0x90, 0xc3]);
    code.func("undoes", UNDOES, &[0xfa, 0xfb, 0x9d, 0xfa, 0xfb, 0xfa, 0xc3]);
    code
}

fn run(code: &Code, pts: &[&Pt], sideband: &[Record], from: &str, to: &str, chunk: usize) -> Profile {
    let spec = Spec { name: "x".into(), from: from.into(), to: to.into(), scope: None, nested: false };
    let plan = Plan::new(&[spec], &[], &|_| None).unwrap();
    let streams: Vec<Stream<'_>> =
        (0..).zip(pts).map(|(cpu, pt)| Stream { cpu, bytes: &pt.bytes, image: &code.image }).collect();
    let options = Options { threads: 1, chunk, clock: CLOCK, plan, ..Options::default() };
    profile(&streams, code, sideband, &options, &|_| ())
}

/// Measures one interval, and checks that the result does not depend on where the streams are cut.
fn delta(code: &Code, pts: &[&Pt], sideband: &[Record], from: &str, to: &str) -> Delta {
    let [one, other] =
        [usize::MAX, 1].map(|chunk| run(code, pts, sideband, from, to, chunk).deltas.remove(0));
    assert_eq!((&one.insns, one.unfinished), (&other.insns, other.unfinished), "cut anywhere");
    one
}

/// Number of times that a function began, and the instructions of those that ended.
fn began(code: &Code, pts: &[&Pt], sideband: &[Record], name: &str) -> (u64, Vec<u64>) {
    let delta = delta(code, pts, sideband, &format!("func:{name}"), &format!("ret:{name}"));
    let mut ended: Vec<_> = delta.longest.iter().map(|l| l.insns).collect();
    ended.sort_unstable();
    (delta.insns.count + delta.unfinished, ended)
}

/// Instructions of a task.
fn ran(profile: &Profile, pid: u32) -> u64 {
    let Some(task) = profile.tasks.iter().find(|t| t.pid == pid) else { return 0 };
    let mut of_task = vec![false; profile.nodes.len()];
    let mut sum = 0;
    for (i, node) in profile.nodes.iter().enumerate() {
        of_task[i] = match node.parent {
            NO_PARENT => i as u32 == task.root,
            parent => of_task[parent as usize],
        };
        sum += if of_task[i] { node.insns } else { 0 };
    }
    sum
}

fn switch(cpu: u32, t: u64, prev: u32, next: u32) -> Record {
    Record::Switch(Switch {
        t,
        cpu,
        ip: SWITCH,
        prev_pid: prev,
        prev_tgid: prev,
        pid: next,
        tgid: next,
        ..Switch::default()
    })
}

/// The kernel enters signal handlers, new programs and threads. That counts as a beginning too.
#[test]
fn functions_that_the_kernel_enters_begin() {
    let code = code();
    let mut pt = Pt::new();
    pt.psb(MAIN).fup(F).tip(TIMER).tip(G).tip(RESTORER).tip(ENTRY).tip(BODY).tip(HELPER).tnt("tt").tip(F);
    pt.tip(G).tnt("t").tip(MAIN + 5);
    // A handler ends with its frame, which belongs to the restorer by then.
    assert_eq!(began(&code, &[&pt], &[], "g"), (2, vec![2, 2 + 2 + 3 + 3 + 2]));
    let mut pt = Pt::new();
    pt.psb(MAIN + 6).tip(ENTRY).tip(BODY).tip(HELPER).pip(0x2000).tnt("tt").tip(START).tip(START);
    assert_eq!(began(&code, &[&pt], &[], "_start"), (1, vec![]));
}

/// The code that an interrupt strikes has not switched interrupts off.
#[test]
fn a_window_that_an_interrupt_begins_is_the_interrupts() {
    let code = code();
    let mut pt = Pt::new();
    // Since the first return to user code it is known that interrupts are on.
    pt.psb(MAIN).fup(F).tip(TIMER).tip(F).tip(G).fup(G + 1).tip(TIMER).tip(G + 1).tip(F + 3);
    pt.tip(MAIN + 5);
    let profile = run(&code, &[&pt], &[], "irqs-off", "irqs-on", 0);
    let delta = &profile.deltas[0];
    assert!(delta.insns.count > 0, "{delta:?}");
    let name = |node: u32| profile.funcs[profile.nodes[node as usize].func as usize].name.as_str();
    for interval in &delta.longest {
        assert_eq!([interval.from_node, interval.to_node].map(name), ["asm_sysvec_timer"; 2]);
    }
    assert!(delta.sites.iter().all(|site| name(site.node) == "asm_sysvec_timer"), "{:?}", delta.sites);
}

/// A task that ran while trace data was lost may have executed anything.
#[test]
fn what_ran_during_a_loss_is_not_known() {
    let code = code();
    // CPU 1: task 8 is in f when it goes to sleep; later it goes on and returns from f.
    let sleeper = |wakes: u64| {
        let mut pt = Pt::new();
        pt.psb_at(MAIN, 1000).cyc(1).tip(G + 2).cyc(1).tip(ENTRY).cyc(1).tip(BODY).cyc(1).tip(SWITCH);
        pt.cyc(wakes).tip(BODY).cyc(1).tip(SWITCH).cyc(1).tip(BODY + 3).cyc(1).tip(ENTRY + 3);
        pt.cyc(1).tip(G + 5).cyc(1).tip(F + 3).cyc(1).tip(MAIN + 5);
        pt
    };
    let slept = [switch(1, 1003, 8, 5), switch(1, 1800, 5, 8)];
    // CPU 0: what happens between 1050 and 1500 is lost.
    let mut lossy = Pt::new();
    lossy.psb_at(BODY, 1000).cyc(50).tip(HELPER).put(Packet::Ovf).cyc(450).fup(BODY).cyc(3).tip(HELPER);
    let one = sleeper(796);
    let unseen = [switch(0, 1100, 9, 8), switch(0, 1200, 8, 9)];
    assert_eq!(began(&code, &[&lossy, &one], &slept, "f"), (1, vec![15]));
    assert_eq!(began(&code, &[&lossy, &one], &[&slept[..], &unseen].concat(), "f"), (1, vec![]));
    // The task continues before CPU 0 is seen again.
    let two = sleeper(296);
    let slept = [switch(1, 1003, 8, 5), switch(1, 1300, 5, 8)];
    assert_eq!(began(&code, &[&lossy, &two], &slept, "f").1.len(), 1);
    assert_eq!(began(&code, &[&lossy, &two], &[&slept[..], &unseen].concat(), "f"), (1, vec![]));
}

/// If tracing goes off and on again in the same function, anything may have run in between.
#[test]
fn what_ran_without_tracing_is_not_known() {
    let code = code();
    let mut pt = Pt::new();
    pt.psb_at(MAIN, 1000).cyc(5).pgd(Some(G)).cyc(500).pge(F + 3).cyc(3).tip(MAIN + 5).cyc(9).tip(ENTRY);
    let whole = run(&code, &[&pt], &[], "halt", "wake", 0);
    let p = run(&code, &[&pt], &[switch(0, 1200, 7, 8)], "halt", "wake", 0);
    assert_eq!(
        (ran(&p, 7) + ran(&p, 8), ran(&p, 7)),
        (ran(&whole, 0), 3),
        "call, nop, call; the rest is 8's"
    );

    let mut pt = Pt::new();
    pt.psb_at(MASKS, 1000).cyc(5).tip(MASKS + 4).cyc(9).tip(MAIN);
    assert_eq!(delta(&code, &[&pt], &[], "irqs-off", "irqs-on").insns.count, 1);
    let mut pt = Pt::new();
    pt.psb_at(MASKS, 1000).cyc(5).pgd(Some(MASKS + 4)).cyc(500).pge(MASKS + 4).cyc(9).tip(MAIN);
    let delta = delta(&code, &[&pt], &[], "irqs-off", "irqs-on");
    assert_eq!((delta.insns.count, delta.unfinished), (0, 1));
}

/// A loss at the end of a chunk is still a loss when the next chunk begins.
#[test]
fn a_loss_up_to_the_next_psb() {
    let code = code();
    let mut pt = Pt::new();
    pt.psb_at(MASKS, 1000).cyc(5).put(Packet::Ovf).psb_at(MASKS + 4, 2000).cyc(9).tip(MAIN);
    let delta = delta(&code, &[&pt], &[], "irqs-off", "irqs-on");
    assert_eq!(delta.insns.count, 0);
}

/// A PSB states that tracing is on where it was off before: as between two snapshots, data is missing.
#[test]
fn a_gap_between_two_snapshots() {
    let code = code();
    let run = |second: fn(&mut Pt)| {
        let mut pt = Pt::new();
        pt.psb_at(MAIN, 1000).cyc(5).tip(G).pgd(None);
        second(&mut pt);
        pt.cyc(3).tip(F + 3).cyc(3).tip(MAIN + 5);
        began(&code, &[&pt], &[], "f")
    };
    let switched_on = run(|pt| _ = pt.psb_off().pge(G + 1));
    assert_eq!((switched_on.0, switched_on.1.len()), (1, 1));
    assert_eq!(run(|pt| _ = pt.psb_at(G + 1, 2000)), (1, vec![]));
}

#[test]
fn an_unknown_flag_ends_nothing() {
    let code = code();
    let mut pt = Pt::new();
    pt.psb_at(UNDOES, 1000).cyc(5).tip(MAIN);
    let delta = delta(&code, &[&pt], &[], "irqs-on", "irqs-off");
    // The flags that `popf` restores are unknown, so the first interval has no known end.
    assert_eq!((delta.insns.count, delta.insns.sum, delta.restarted, delta.unfinished), (1, 1, 0, 1));
}
