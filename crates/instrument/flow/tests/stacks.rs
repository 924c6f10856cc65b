// SPDX-License-Identifier: MIT OR Apache-2.0
//! Call stacks in cases that a random program does not reach: signals, exec, fork, unwinding, retpolines, tasks that
//! move between CPUs.

mod hand;
mod replayed;

use hand::{CLOCK, Code, Pt};
use kprism_flow::replay::calls::{Begin, Calls, End, Ending, Stacks};
use kprism_flow::replay::{self, Inputs, Listener, TracePosition, replay};
use kprism_flow::{Options, Stream, profile};
use kprism_image::Image;
use kprism_image::code::TaskSwitch;
use kprism_image::sideband::{Record, Switch};
use kprism_profile::{FrameKind, NO_PARENT, Part, Parts, Profile, Unended};
use kprism_pt::Packet;

const MAIN: u64 = 0x40_0000;
const F: u64 = 0x40_1000;
const G: u64 = 0x40_2000;
const ENTRY: u64 = 0xffff_ffff_8100_0000;
const BODY: u64 = 0xffff_ffff_8100_1000;
const TIMER: u64 = 0xffff_ffff_8100_2000;
const SWITCH: u64 = 0xffff_ffff_8100_3000;
const FORKED: u64 = 0xffff_ffff_8100_4000;
const HELPER: u64 = 0xffff_ffff_8100_5000;
const RESTORER: u64 = 0x40_3000;

/// A program and a kernel whose path the trace alone decides:
/// main: call f; nop; syscall; nop; jmp *rax. f: nop; call *rax; nop; ret. g: nop; ret; nop; syscall; ret; jmp *rdx.
/// restorer: nop; syscall. The system call's entry calls its body, which calls a helper.
fn code(body: &'static str) -> Code {
    let mut code = Code::default();
    for asid in [0x1000, 0x2000] {
        code.func_in(asid, "main", MAIN, &[0xe8, 0xfb, 0x0f, 0, 0, 0x90, 0x0f, 0x05, 0x90, 0xff, 0xe0]);
        code.func_in(asid, "f", F, &[0x90, 0xff, 0xd0, 0x90, 0xc3]);
        code.func_in(asid, "g", G, &[0x90, 0xc3, 0x90, 0x0f, 0x05, 0xc3, 0xff, 0xe2]);
    }
    code.func("restorer", RESTORER, &[0x90, 0x0f, 0x05]);
    code.func("entry_SYSCALL_64", ENTRY, &[0x90, 0xff, 0xd0, 0x48, 0x0f, 0x07]);
    code.func(body, BODY, &[0x90, 0xff, 0xd0, 0xc3]);
    code.func("asm_sysvec_timer", TIMER, &[0x90, 0x48, 0xcf]);
    code.func("__switch_to", SWITCH, &[0x90, 0xc3]);
    code.func("ret_from_fork", FORKED, &[0x90, 0x48, 0xcf]);
    code.func("helper", HELPER, &[0x90, 0xc3]);
    code
}

fn run_once<'a>(code: &'a Code, pts: &'a [&Pt], sideband: &[Record]) -> (Profile, Vec<Stream<'a>>) {
    run_in_chunks(code, pts, sideband, 0)
}

/// Decodes in chunks of at least `chunk` bytes; 0 for the usual size, which is more than any test has.
fn run_in_chunks<'a>(
    code: &'a Code,
    pts: &'a [&Pt],
    sideband: &[Record],
    chunk: usize,
) -> (Profile, Vec<Stream<'a>>) {
    let streams: Vec<Stream<'_>> = pts
        .iter()
        .enumerate()
        .map(|(cpu, pt)| Stream { cpu: cpu as u16, bytes: &pt.bytes, image: &code.image })
        .collect();
    let options = Options { threads: 1, slice_ns: 0, clock: CLOCK, chunk, ..Options::default() };
    let profile = profile(&streams, code, sideband, &options, &|_| ());
    assert_eq!(profile.errors, []);
    (profile, streams)
}

/// Decodes, and checks the result against a replay, which keeps complete stacks and no chunks.
fn run_with(code: &Code, pts: &[&Pt], sideband: &[Record]) -> Profile {
    let (profile, streams) = run_once(code, pts, sideband);
    let mut known = replayed::Contexts::new();
    let mut paths: Vec<(u32, Vec<String>)> = Vec::new();
    for (i, node) in profile.nodes.iter().enumerate() {
        if node.parent == NO_PARENT {
            let task = profile.tasks.iter().find(|t| t.root == i as u32).unwrap();
            paths.push((task.pid, Vec::new()));
            continue;
        }
        let (pid, mut path) = paths[node.parent as usize].clone();
        path.push(profile.funcs[node.func as usize].name.clone());
        paths.push((pid, path.clone()));
        let sum = known.entry((pid, path)).or_default();
        *sum = (sum.0 + node.calls, sum.1 + node.insns);
    }
    // The profile counts a jump into the middle of a function as a call only if the function that it leaves was called
    // before the trace began. A replay never counts it.
    known.retain(|_, sums| sums.1 > 0);
    for stretch in [1, 0] {
        let inputs = Inputs {
            streams: &streams,
            resolver: code,
            sideband,
            clock: CLOCK,
            errata: Default::default(),
            stretch,
        };
        let mut told = replayed::Replayed::of(&inputs).contexts;
        told.retain(|_, sums| sums.1 > 0);
        assert_eq!(told, known, "stretch {stretch}");
    }
    profile
}

/// `task path kind calls instructions` of every node that ran, by path.
fn tree(profile: &Profile) -> Vec<String> {
    let mut lines = Vec::new();
    for (i, node) in profile.nodes.iter().enumerate() {
        let (mut path, mut at) = (Vec::new(), i);
        while profile.nodes[at].parent != NO_PARENT {
            path.push(profile.funcs[profile.nodes[at].func as usize].name.as_str());
            at = profile.nodes[at].parent as usize;
        }
        if path.is_empty() {
            continue;
        }
        path.reverse();
        let task = profile.tasks.iter().find(|t| t.root == at as u32).unwrap();
        let kind = format!("{:?}", node.kind);
        lines.push(format!("{} {} {kind} {} {}", task.pid, path.join("/"), node.calls, node.insns));
    }
    lines.sort();
    lines
}

/// Entry, an interrupt in the middle of the body, and exit are counted separately, in instructions and in time.
#[test]
fn parts_of_a_system_call() {
    let code = code("__x64_sys_read");
    let mut pt = Pt::new();
    pt.psb_at(MAIN, 1000).cyc(3).tip(G).cyc(4).tnt("tt").cyc(2).tip(ENTRY);
    pt.cyc(5).tip(BODY).cyc(7).tip(HELPER).cyc(6).fup(HELPER).cyc(1).tip(TIMER).cyc(20).tip(HELPER);
    pt.cyc(8).tnt("tt").cyc(11).tip(MAIN + 8).cyc(1).tip(G);
    let profile = run_with(&code, &[&pt], &[]);
    let [call] = &profile.syscalls[..] else { panic!("{:?}", profile.syscalls) };
    let insns = |part: Part| part.insns;
    let Parts { entry, interrupts, exit } = call.parts;
    // nop, call; nop, iret; sysret.
    assert_eq!((insns(entry), insns(interrupts), insns(exit)), (2, 2, 1));
    assert_eq!(call.insns, 2 + 2 + 2 + 2 + 1 + 1);
    assert_eq!((entry.ns, interrupts.ns), (5, 20));
    assert!(entry.ns + interrupts.ns + exit.ns < call.on_cpu_ns, "{call:?}");
    assert!((9..=12).contains(&exit.ns), "{exit:?}");
}

/// An interrupt before the body or behind it is in no other part.
#[test]
fn interrupts_around_the_body_of_a_system_call() {
    let code = code("__x64_sys_read");
    let mut pt = Pt::new();
    pt.psb_at(MAIN, 1000).tip(G).tnt("tt").tip(ENTRY);
    pt.cyc(5).fup(ENTRY + 1).cyc(1).tip(TIMER).cyc(20).tip(ENTRY + 1);
    pt.cyc(3).tip(BODY).cyc(7).tip(HELPER).cyc(8).tnt("tt");
    pt.cyc(2).fup(ENTRY + 3).cyc(1).tip(TIMER).cyc(30).tip(ENTRY + 3).cyc(4).tip(MAIN + 8).cyc(1).tip(G);
    let profile = run_with(&code, &[&pt], &[]);
    let [call] = &profile.syscalls[..] else { panic!("{:?}", profile.syscalls) };
    let Parts { entry, interrupts, exit } = call.parts;
    // nop, call; nop, iret twice; sysret.
    assert_eq!((entry.insns, interrupts.insns, exit.insns), (2, 4, 1));
    assert_eq!(call.insns, 2 + 4 + 2 + 2 + 1 + 1);
    // Packets have times, and instructions between them share what passed.
    assert!((3..=9).contains(&entry.ns) && (45..=52).contains(&interrupts.ns), "{call:?}");
    assert!(entry.ns + interrupts.ns + exit.ns + 15 <= call.on_cpu_ns, "{call:?}");
}

/// The time of a standstill is no task's and in no part of a system call, but it passes.
#[test]
fn a_processor_that_stands_still() {
    let code = code("__x64_sys_read");
    let write = |cycles: Option<u64>| {
        let mut pt = Pt::new();
        // An instruction takes a cycle.
        pt.psb_at(MAIN, 1000).cyc(3).tip(G).cyc(4).tnt("tt").cyc(2).tip(ENTRY);
        pt.cyc(2).tip(BODY).cyc(2).tip(HELPER).cyc(1);
        if let Some(cycles) = cycles {
            pt.still(HELPER + 1, cycles);
        }
        pt.cyc(2).tnt("tt").cyc(1).tip(MAIN + 8).cyc(2).tip(G);
        run_with(&code, &[&pt], &[])
    };
    let (through, stands) = (write(None), write(Some(500)));
    let ([call], [longer]) = (&through.syscalls[..], &stands.syscalls[..]) else { panic!("{stands:?}") };
    assert_eq!(
        (call.wall_ns + 500, call.on_cpu_ns, call.insns),
        (longer.wall_ns, longer.on_cpu_ns, longer.insns)
    );
    assert_eq!(call.parts, longer.parts);
    let times = |profile: &Profile| profile.nodes.iter().map(|node| node.ns).sum::<u64>();
    assert_eq!(times(&through), times(&stands));
    // A processor in a C-state has no work: its time is that of the task that waits.
    let mut pt = Pt::new();
    pt.psb_at(MAIN, 1000).tip(G).tnt("tt").cyc(1).put(Packet::Pwre { state: 1, sub_state: 0, hw: false });
    pt.still(MAIN + 7, 500).cyc(6).tip(ENTRY).cyc(1).tip(BODY);
    let asleep = run_with(&code, &[&pt], &[]);
    assert!(times(&asleep) > 500, "{}", times(&asleep));
}

/// Tracing that is switched on at a function's first instruction begins with a call of it, whose call instruction was
/// not traced: a window or a filter begins there.
#[test]
fn a_function_at_which_tracing_is_switched_on_is_called() {
    let code = code("body");
    let mut pt = Pt::new();
    for _ in 0..3 {
        pt.psb_off().pge(F).tip(G).fup(G + 1).pgd(None);
    }
    assert_eq!(tree(&run_with(&code, &[&pt], &[])), ["0 f Call 3 6", "0 f/g Call 3 3"]);
    // Tracing is switched on again in the middle of the function, which continues.
    pt.psb_off().pge(F + 3).tip(MAIN + 5);
    assert_eq!(tree(&run_with(&code, &[&pt], &[])), ["0 f Call 3 8", "0 f/g Call 3 3", "0 main Resumed 0 0"]);
}

/// A fault at a function's first instruction, with an untraced handler: one call, seen before the fault.
#[test]
fn a_call_interrupted_before_its_first_instruction_is_one() {
    let code = code("body");
    let mut pt = Pt::new();
    pt.psb(MAIN).fup(F).pgd(None).pge(F).tip(G).tnt("tt").fup(MAIN + 5).pgd(None);
    let other = Record::Switch(Switch { t: 1 << 40, ..Switch::default() });
    for sideband in [&[][..], &[other]] {
        let tree = tree(&run_with(&code, &[&pt], sideband));
        assert_eq!(tree, ["0 main Resumed 0 1", "0 main/f Call 1 4", "0 main/f/g Call 1 2"]);
    }
}

#[test]
fn a_system_call_with_its_body() {
    let code = code("__x64_sys_read");
    let mut pt = Pt::new();
    pt.psb_at(MAIN, 1000).cyc(3).tip(G).cyc(4).tnt("tt").cyc(2).tip(ENTRY);
    pt.cyc(2).tip(BODY).cyc(2).tip(HELPER).cyc(3).tnt("tt").cyc(11).tip(MAIN + 8);
    let p = run_with(&code, &[&pt], &[]);
    assert_eq!(
        tree(&p),
        [
            "0 main Resumed 0 3",
            "0 main/entry_SYSCALL_64 Syscall 1 3",
            "0 main/entry_SYSCALL_64/__x64_sys_read Call 1 3",
            "0 main/entry_SYSCALL_64/__x64_sys_read/helper Call 1 2",
            "0 main/f Call 1 4",
            "0 main/f/g Call 1 2",
        ]
    );
    let call = &p.syscalls[0];
    assert_eq!(p.funcs[call.func as usize].name, "__x64_sys_read");
    assert_eq!((call.start_ns, call.wall_ns, call.on_cpu_ns, call.insns), (1009, 18, 18, 8));
    // Every call is a slice, as the threshold is 0.
    assert_eq!(p.slices.len(), 5);
    let depths: Vec<u16> = p.slices.iter().map(|s| s.depth).collect();
    assert_eq!(depths, [1, 2, 1, 2, 3]);
    assert!(p.slices.iter().all(|s| s.start_ns <= s.end_ns));
}

/// Work that the body leaves to another function by a tail call counts as the body's, not as the exit's.
#[test]
fn the_parts_of_a_system_call_whose_body_ends_in_a_tail_call() {
    const TAIL: u64 = 0xffff_ffff_8100_6000;
    let mut code = code("__x64_sys_read");
    code.func("__x64_sys_mmap", TAIL, &[0x90, 0xff, 0xe0]);
    let mut pt = Pt::new();
    pt.psb_at(MAIN, 1000).cyc(3).tip(G).cyc(4).tnt("tt").cyc(2).tip(ENTRY);
    pt.cyc(2).tip(TAIL).cyc(3).tip(HELPER).cyc(5).tnt("t").cyc(11).tip(MAIN + 8);
    let p = run_with(&code, &[&pt], &[]);
    let call = &p.syscalls[0];
    assert_eq!(p.funcs[call.func as usize].name, "__x64_sys_mmap");
    // nop, call; then nop, jmp, nop, ret; then sysret.
    assert_eq!((call.parts.entry.insns, call.insns, call.parts.exit.insns), (2, 7, 1));
}

#[test]
fn a_signal_and_its_return() {
    let code = code("__x64_sys_rt_sigreturn");
    let mut pt = Pt::new();
    // f is interrupted; the kernel goes to the handler g, which returns to the restorer; that calls sigreturn,
    // and the kernel goes back to where the signal hit.
    pt.psb(MAIN).fup(F).tip(TIMER).tip(G).tip(RESTORER).tip(ENTRY).tip(BODY).tip(HELPER).tnt("tt").tip(F);
    // f calls g as if there had been no signal, and returns.
    pt.tip(G).tnt("t").tip(MAIN + 5);
    let p = run_with(&code, &[&pt], &[]);
    assert_eq!(
        tree(&p),
        [
            "0 main Resumed 0 1",
            "0 main/f Call 1 4",
            "0 main/f/asm_sysvec_timer Interrupt 1 2",
            "0 main/f/g Call 1 2",
            "0 main/f/g Signal 1 2",
            "0 main/f/restorer Tail 1 2",
            "0 main/f/restorer/entry_SYSCALL_64 Syscall 1 3",
            "0 main/f/restorer/entry_SYSCALL_64/__x64_sys_rt_sigreturn Call 1 3",
            "0 main/f/restorer/entry_SYSCALL_64/__x64_sys_rt_sigreturn/helper Call 1 2",
        ]
    );
}

#[test]
fn a_signal_in_a_system_call() {
    let code = code("__x64_sys_read");
    let mut pt = Pt::new();
    // The system call leads to the handler. The handler's return restarts the call, at the call's own address.
    pt.psb(MAIN + 6).tip(ENTRY).tip(BODY).tip(HELPER).tnt("tt").tip(G).tip(RESTORER).tip(ENTRY).tip(BODY);
    pt.tip(HELPER).tnt("tt").tip(MAIN + 6).tip(ENTRY).tip(BODY).tip(HELPER).tnt("tt").tip(MAIN + 8);
    pt.tip(MAIN + 8);
    let p = run_with(&code, &[&pt], &[]);
    let lines = tree(&p);
    assert!(lines.contains(&"0 main Resumed 0 4".to_owned()), "{lines:#?}");
    assert!(lines.contains(&"0 main/g Signal 1 2".to_owned()), "{lines:#?}");
    assert!(lines.contains(&"0 main/entry_SYSCALL_64 Syscall 2 6".to_owned()), "{lines:#?}");
}

#[test]
fn exec_starts_afresh() {
    let mut code = code("__x64_sys_execve");
    code.func_in(0x2000, "_start", 0x50_0000, &[0x90, 0xff, 0xe0]);
    let mut pt = Pt::new();
    pt.psb(MAIN + 6).tip(ENTRY).tip(BODY).tip(HELPER).pip(0x2000).tnt("tt").tip(0x50_0000).tip(0x50_0000);
    let p = run_with(&code, &[&pt], &[]);
    let lines = tree(&p);
    assert!(lines.contains(&"0 _start Call 1 2".to_owned()), "{lines:#?}");
    assert_eq!(p.syscalls.len(), 1);
    assert_eq!(p.funcs[p.syscalls[0].func as usize].name, "__x64_sys_execve");
}

fn switch(cpu: u32, t: u64, prev: u32, next: u32) -> Record {
    Record::Switch(Switch {
        t,
        cpu,
        ip: SWITCH,
        prev_pid: prev,
        prev_tgid: prev,
        prev_comm: format!("t{prev}"),
        pid: next,
        tgid: next,
        comm: format!("t{next}"),
        ..Switch::default()
    })
}

#[test]
fn a_child_goes_on_in_its_parents_stack() {
    let code = code("__x64_sys_clone");
    let mut pt = Pt::new();
    // main calls f; f calls g, which forks. The parent is switched out inside the system call.
    pt.psb_at(MAIN, 1000).cyc(3).tip(G + 2).cyc(2).tip(ENTRY).cyc(2).tip(BODY).cyc(2).tip(SWITCH);
    // The child starts in ret_from_fork, enters user mode where the system call returns, and returns to f.
    pt.cyc(2).tip(FORKED).pip(0x2000).cyc(2).tip(G + 5).cyc(1).tip(F + 3).cyc(2).tip(MAIN + 5);
    let p = run_with(&code, &[&pt], &[switch(0, 1009, 7, 8)]);
    assert_eq!(
        tree(&p),
        [
            "7 main Resumed 0 1",
            "7 main/f Call 1 2",
            "7 main/f/g Call 1 2",
            "7 main/f/g/entry_SYSCALL_64 Syscall 1 2",
            "7 main/f/g/entry_SYSCALL_64/__x64_sys_clone Call 1 2",
            "7 main/f/g/entry_SYSCALL_64/__x64_sys_clone/__switch_to Call 1 0",
            "8 __switch_to Resumed 0 2",
            "8 main Resumed 0 0",
            "8 main/f Resumed 0 2",
            "8 main/f/g Resumed 0 1",
            "8 ret_from_fork Tail 1 2",
        ]
    );
}

#[test]
fn a_task_moves_to_another_cpu() {
    let code = code("__x64_sys_nanosleep");
    // CPU 0: task 7 goes to sleep in a system call, task 8 comes.
    let mut zero = Pt::new();
    zero.psb_at(MAIN + 6, 1000).cyc(1).tip(ENTRY).cyc(2).tip(BODY).cyc(2).tip(SWITCH).cyc(50).tip(FORKED);
    // CPU 1: task 9 runs, then 7 goes on from its sleep and returns to user mode.
    let mut one = Pt::new();
    one.psb_at(BODY, 1000)
        .cyc(500)
        .tip(SWITCH)
        .cyc(2)
        .tip(BODY + 3)
        .cyc(1)
        .tip(ENTRY + 3)
        .cyc(1)
        .tip(MAIN + 8);
    let p = run_with(&code, &[&zero, &one], &[switch(0, 1005, 7, 8), switch(1, 1500, 9, 7)]);
    let lines = tree(&p);
    assert!(lines.contains(&"7 main/entry_SYSCALL_64 Syscall 1 3".to_owned()), "{lines:#?}");
    assert_eq!(p.syscalls.len(), 1, "{lines:#?}");
    let call = &p.syscalls[0];
    assert_eq!((call.start_ns, call.wall_ns), (1001, 503));
    // 4 ns on CPU 0, 4 on CPU 1.
    assert_eq!((call.on_cpu_ns, call.insns), (8, 8));
    assert_eq!(p.tasks[call.task as usize].pid, 7);
}

/// A task that dies is followed to when it leaves its CPU for good. If the recording ends before, its open calls end with the
/// recording, and not when the task slept last.
#[test]
fn a_task_that_the_recording_leaves_dying_runs_to_its_end() {
    let code = code("do_task_dead");
    let mut pt = Pt::new();
    // Task 7 sleeps in a system call; task 8 comes, and sleeps too.
    pt.psb_at(MAIN + 6, 1000).cyc(1).tip(ENTRY).cyc(2).tip(SWITCH).cyc(50).tip(FORKED).cyc(1).tip(MAIN + 6);
    pt.cyc(1).tip(ENTRY).cyc(1).tip(SWITCH).cyc(3).tip(ENTRY + 3).cyc(1).tip(MAIN + 8);
    // Task 7 returns, and its next system call is its last.
    pt.cyc(1).tip(F).cyc(1).tip(G + 2).cyc(1).tip(ENTRY).cyc(1).tip(BODY).cyc(20).tip(HELPER);
    let p = run_with(&code, &[&pt], &[switch(0, 1003, 7, 8), switch(0, 1056, 8, 7)]);
    let task = p.tasks.iter().position(|task| task.pid == 7).unwrap() as u32;
    let calls: Vec<_> =
        p.slices.iter().filter(|slice| slice.task == task && slice.kind == FrameKind::Syscall).collect();
    assert_eq!(calls.len(), 2, "{calls:?}");
    let last = calls.iter().max_by_key(|slice| slice.start_ns).unwrap();
    assert_eq!(last.end_ns, p.totals.per_cpu[0].last_ns, "{calls:?}");
    assert_eq!(last.end_ns - last.start_ns, 20, "{last:?}");
}

/// Tracing goes off in a system call, and on again in the program: nothing tells when the call ended.
#[test]
fn a_system_call_that_ended_in_a_gap_is_a_guess() {
    let code = code("__x64_sys_read");
    let mut pt = Pt::new();
    pt.psb_at(MAIN + 6, 1000).cyc(1).tip(ENTRY).cyc(2).tip(BODY).fup(BODY).pgd(None).cyc(500).pge(MAIN + 8);
    let (p, _) = run_once(&code, &[&pt], &[]);
    assert_eq!(p.syscalls.len(), 1);
    assert_eq!(guessed(&p), [("system calls whose end was not traced", 1)]);
    assert_eq!(p.totals.unended, Unended { untraced: 2, left: 0 });
    let call = p.slices.iter().find(|slice| slice.kind == FrameKind::Syscall).unwrap();
    assert_eq!(call.ending, Some(Ending::Untraced));
}

/// Records with approximate times: one too many before the first entry, none for the second.
#[test]
fn switches_near_a_time_go_with_the_entry_nearest() {
    let code = code("__x64_sys_nanosleep");
    let mut pt = Pt::new();
    pt.psb_at(BODY, 1000).cyc(500).tip(SWITCH).cyc(2).tip(BODY + 3).cyc(1).tip(BODY);
    pt.cyc(100).tip(SWITCH).cyc(2).tip(BODY + 3).cyc(1).tip(BODY);
    pt.cyc(400).tip(SWITCH).cyc(2).tip(BODY + 3);
    let near = |t, prev, next| match switch(0, t, prev, next) {
        Record::Switch(record) => Record::Switch(Switch { near: true, ..record }),
        other => other,
    };
    // The body returns into itself, which a replay does not count as a call. So only instructions are compared.
    let records = [near(1200, 5, 9), near(1499, 9, 7), near(2004, 7, 8)];
    let pts = [&pt];
    let (p, streams) = run_once(&code, &pts, &records);
    assert_eq!(guessed(&p), [(UNSEEN, 1), (UNTOLD, 1)]);
    assert_eq!(guessed_by_replay(&code, &streams, &records), [(UNSEEN, 1), (UNTOLD, 1)]);
    let of = |pid: u32| {
        let task = p.tasks.iter().position(|t| t.pid == pid)?;
        let mut nodes: Vec<u32> = vec![p.tasks[task].root];
        let mut insns = 0;
        for (i, node) in p.nodes.iter().enumerate() {
            if nodes.contains(&node.parent) {
                nodes.push(i as u32);
                insns += node.insns;
            }
        }
        Some(insns)
    };
    // From the first entry on: __switch_to twice (2 instructions), the code it returns to (1), and the call (2) that
    // enters it again. From the last entry on: only the switch.
    assert_eq!((of(5), of(9), of(7), of(8)), (Some(2), Some(0), Some(10), Some(2)));
}

/// The file ends before the flow: behind the last record, the task that a switch enters is not known, and not the one that left.
/// In the middle it is the one that the next record says to leave.
#[test]
fn a_task_without_a_record_is_the_next_to_leave_or_not_known() {
    let code = code("__x64_sys_nanosleep");
    let mut pt = Pt::new();
    pt.psb_at(BODY, 1000).cyc(500).tip(SWITCH).cyc(2).tip(BODY + 3).cyc(1).tip(BODY);
    pt.cyc(9000).tip(SWITCH).cyc(2).tip(BODY + 3).cyc(1).tip(BODY);
    pt.cyc(9000).tip(SWITCH).cyc(2).tip(BODY + 3).cyc(1).tip(BODY);
    pt.cyc(9000).tip(SWITCH).cyc(2).tip(BODY + 3);
    let near = |t, prev, next| match switch(0, t, prev, next) {
        Record::Switch(record) => Record::Switch(Switch { near: true, ..record }),
        other => other,
    };
    // Those of the second and the fourth entry are lost.
    let records = [near(1499, 5, 7), near(19_500, 9, 8)];
    let pts = [&pt];
    let (p, streams) = run_once(&code, &pts, &records);
    assert_eq!(guessed(&p), [(UNTOLD, 2)]);
    assert_eq!(guessed_by_replay(&code, &streams, &records), [(UNTOLD, 2)]);
    let tasks: Vec<(u32, &str)> = p.tasks.iter().map(|task| (task.pid, task.comm.as_str())).collect();
    assert_eq!(tasks.iter().map(|task| task.0).collect::<Vec<_>>(), [5, 7, 9, 8, u32::MAX]);
    assert_eq!(tasks[4].1, "unknown");
}

/// Records whose time is in the flow, but whose entry is not: before a gap in it, and before its end. One in the gap has its
/// place there.
#[test]
fn records_without_an_entry_are_counted() {
    let code = code("__x64_sys_read");
    let mut pt = Pt::new();
    pt.psb_at(MAIN, 1000).cyc(9000).tip(G).fup(G + 1).pgd(None);
    pt.cyc(5000).pge(G + 1).cyc(10).tip(F + 3).cyc(9000).tip(MAIN + 5).fup(MAIN + 6).pgd(None);
    let near = |t, prev, next| match switch(0, t, prev, next) {
        Record::Switch(record) => Record::Switch(Switch { near: true, ..record }),
        other => other,
    };
    for (times, unseen) in [(vec![12_000], 0), (vec![3000, 12_000, 18_000], 2)] {
        let records: Vec<Record> = times.iter().zip(5..).map(|(&t, prev)| near(t, prev, prev + 1)).collect();
        let pts = [&pt];
        let (p, streams) = run_once(&code, &pts, &records);
        let wanted: Vec<(&str, u64)> = [(UNSEEN, unseen)].into_iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(guessed(&p), wanted);
        assert_eq!(guessed_by_replay(&code, &streams, &records), wanted);
    }
}

const UNSEEN: &str = "records of task switches without a place in the flow";
const UNTOLD: &str = "task switches in the flow without a record";

fn guessed(profile: &Profile) -> Vec<(&str, u64)> {
    profile.totals.guessed.iter().map(|(unit, n)| (unit.as_str(), *n)).collect()
}

/// What a listener that keeps no stacks is told.
fn guessed_by_replay<'a>(code: &Code, streams: &[Stream<'_>], sideband: &[Record]) -> Vec<(&'a str, u64)> {
    struct Nothing;
    impl Listener for Nothing {
        fn define(&mut self, _: &TracePosition<'_>, _: u32, _: replay::Code, _: &Image) {}
        fn run(&mut self, _: &TracePosition<'_>, _: u32, _: u32, _: u32) {}
        fn event(&mut self, _: &TracePosition<'_>, _: &kprism_flow::event::Event) {}
    }
    let inputs = inputs(code, streams, sideband);
    let mut all: Vec<_> = replay(&inputs, &mut Nothing).guessed.units().collect();
    all.sort_unstable();
    all
}

fn inputs<'a>(code: &'a Code, streams: &'a [Stream<'a>], sideband: &'a [Record]) -> Inputs<'a, Code> {
    Inputs { streams, resolver: code, sideband, clock: CLOCK, errata: Default::default(), stretch: 0 }
}

/// Where programs alone are traced, another task goes on between two instructions of the flow: in the function that is there.
#[test]
fn a_switch_in_the_middle_of_a_program_goes_on_in_its_function() {
    let mut code = code("__x64_sys_read");
    let mut pt = Pt::new();
    let mut switches = Vec::new();
    let mut records = Vec::new();
    let mut to = |pt: &Pt, prev, next| {
        let offset = pt.bytes.len() as u64;
        switches.push(TaskSwitch { offset, asid: None });
        let Record::Switch(record) = switch(0, 1000, prev, next) else { return };
        records.push(Record::Switch(Switch { ip: 0, offset: Some(offset), ..record }));
    };
    pt.psb_at(MAIN, 1000).cyc(3).tip(G);
    to(&pt, 7, 8);
    pt.cyc(3).tnt("t");
    to(&pt, 8, 7);
    pt.cyc(3).tnt("t").fup(MAIN + 6).pgd(None);
    code.image.set_task_switches(switches);
    let p = run_with(&code, &[&pt], &records);
    assert_eq!(
        tree(&p),
        [
            "7 main Resumed 0 2",
            "7 main/f Call 1 4",
            "7 main/f/g Call 1 0",
            "8 f Resumed 0 0",
            "8 g Resumed 0 2",
        ]
    );
    assert_eq!(guessed(&p), []);
    let in_functions: u64 = p.self_instructions().iter().sum();
    assert_eq!((in_functions, p.insns_in_no_function()), (p.totals.instructions(), 0));
}

/// Calls by function, as a listing of a replay has them: those that begin, and those that end, each once.
#[derive(Default)]
struct Listed {
    begun: std::collections::BTreeMap<u32, u64>,
    ended: std::collections::BTreeMap<u32, (u64, u64)>,
}

impl Calls for Listed {
    fn begin(&mut self, _: &TracePosition<'_>, call: Begin) {
        assert!(!(call.again && call.counts));
        *self.begun.entry(call.func).or_default() += u64::from(call.counts);
    }
    fn end(&mut self, _: &TracePosition<'_>, call: End) {
        if call.ending != Ending::Left {
            let ended = self.ended.entry(call.func).or_default();
            *ended = (ended.0 + 1, ended.1 + call.insns);
        }
    }
}

#[derive(Default)]
struct Listing {
    stacks: Stacks,
    listed: Listed,
}

impl Listener for Listing {
    fn define(&mut self, _: &TracePosition<'_>, _: u32, _: replay::Code, _: &Image) {}
    fn run(&mut self, at: &TracePosition<'_>, _: u32, from: u32, to: u32) {
        self.stacks.run(at, to - from);
    }
    fn event(&mut self, at: &TracePosition<'_>, event: &kprism_flow::event::Event) {
        self.stacks.event(at, event, &mut self.listed);
    }
}

/// Two stacks that a program switches between: a call that is left and goes on is one call, in reports and in listings.
#[test]
fn a_call_that_its_stack_was_left_in_is_one_call() {
    const HOST: u64 = 0x41_0000;
    const YIELD: u64 = 0x41_1000;
    const FIBER: u64 = 0x41_2000;
    let mut code = Code::default();
    // host: call yield (three times); nop; jmp *rax. fiber: the same. yield: mov rsp, [rdi]; ret
    let three = |at: u64| {
        let mut bytes = Vec::new();
        for n in 0..3 {
            bytes.push(0xe8);
            bytes.extend_from_slice(&((YIELD.wrapping_sub(at + n * 5 + 5)) as u32).to_le_bytes());
        }
        bytes.extend_from_slice(&[0x90, 0xff, 0xe0]);
        bytes
    };
    code.func("host", HOST, &three(HOST));
    code.func("fiber", FIBER, &three(FIBER));
    code.func("yield", YIELD, &[0x48, 0x8b, 0x27, 0xc3]);
    let mut pt = Pt::new();
    pt.psb(HOST).tip(FIBER);
    for n in 1..3 {
        pt.tip(HOST + 5 * n).tip(FIBER + 5 * n);
    }
    pt.tip(HOST + 15).tip(HOST);
    let pts = [&pt];
    let (p, streams) = run_once(&code, &pts, &[]);
    let mut listing = Listing::default();
    let _ = replay(&inputs(&code, &streams, &[]), &mut listing);
    // Six times a stack with two calls was left.
    let unended = Unended { untraced: 0, left: 12 };
    assert_eq!((listing.stacks.unended(), p.totals.unended), (unended, unended));
    let id = |name: &str| p.funcs.iter().position(|func| func.name == name).unwrap();
    let counted = |name: &str| {
        let own = p.nodes.iter().filter(|n| n.parent != NO_PARENT && n.func as usize == id(name));
        own.map(|n| n.calls).sum::<u64>()
    };
    // The resolver's numbers are in the order of `func`.
    for (number, name) in (0u32..).zip(["host", "fiber", "yield"]) {
        assert_eq!(listing.listed.begun.get(&number).copied().unwrap_or(0), counted(name), "{name}");
    }
    assert_eq!((counted("fiber"), counted("yield")), (1, 6));
    // All calls of `yield` but one ended, after their two instructions; the last one is left for good.
    assert_eq!(listing.listed.ended.get(&2), Some(&(5, 10)), "{:?}", listing.listed.ended);
    assert_eq!(listing.listed.ended.get(&1), None, "the fiber is under way");
    // On the timeline, a call has a part for each time that its stack ran. Only the last part may end with the call.
    let parts = |ending| {
        let own = p.slices.iter().filter(|s| s.func as usize == id("yield") && s.ending == Some(ending));
        own.map(|s| s.kind).collect::<Vec<_>>()
    };
    assert_eq!(parts(Ending::Left), [FrameKind::Call; 6]);
    assert_eq!(parts(Ending::Seen), [FrameKind::Resumed; 5]);
    assert_eq!(guessed(&p), []);
}

#[test]
fn unwinding_and_jumps_into_frames() {
    let code = code("__x64_sys_read");
    let mut pt = Pt::new();
    // main calls f, f calls g, which jumps into the middle of main; main jumps into f's middle: a tail call.
    pt.psb(MAIN).tip(G + 6).tip(MAIN + 8).tip(F + 3);
    let p = run_with(&code, &[&pt], &[]);
    assert_eq!(tree(&p), ["0 f Tail 1 0", "0 main Resumed 0 3", "0 main/f Call 1 2", "0 main/f/g Call 1 1"]);
}

/// A jump back into the function that jumped away continues its call, even if another chunk begins in between.
#[test]
fn a_jump_back_is_no_call_in_any_chunk() {
    const A: u64 = 0x41_0000;
    const B: u64 = 0x41_1000;
    let mut code = code("__x64_sys_read");
    for (name, at) in [("a", A), ("b", B)] {
        // nop; jmp *rax
        code.func(name, at, &[0x90, 0xff, 0xe0]);
    }
    let mut pt = Pt::new();
    pt.psb(F).tip(A).tip(B).psb(B).tip(A + 1).tip(G);
    for chunk in [0, 1] {
        let (profile, _) = run_in_chunks(&code, &[&pt], &[], chunk);
        let wanted = ["0 f Resumed 0 2", "0 f/a Call 1 3", "0 f/b Tail 1 2", "0 f/g Tail 1 0"];
        assert_eq!(tree(&profile), wanted, "chunk {chunk}");
    }
}

/// A jump to a bad address, and a signal's handler that has the thread go on in the function that jumped.
#[test]
fn a_handler_leads_back_from_a_jump_to_a_bad_address() {
    const A: u64 = 0x41_0000;
    const BAD: u64 = 0x1_0000;
    let mut code = code("__x64_sys_rt_sigreturn");
    // nop; jmp *rax; nop; jmp *rax
    code.func("a", A, &[0x90, 0xff, 0xe0, 0x90, 0xff, 0xe0]);
    let mut pt = Pt::new();
    pt.psb(F).tip(A);
    for _ in 0..3 {
        // The handler g returns to the restorer, whose system call leads back.
        pt.tip(BAD).fup(BAD).tip(TIMER).tip(G).tip(RESTORER);
        pt.tip(ENTRY).tip(BODY).tip(HELPER).tnt("tt").tip(A + 3);
    }
    pt.tip(F + 3);
    let lines = tree(&run_with(&code, &[&pt], &[]));
    let of = |name: &str| lines.iter().filter(|line| line.contains(name)).collect::<Vec<_>>();
    assert_eq!(of("/a "), ["0 f/a Call 1 8"], "{lines:#?}");
    assert_eq!(of("/g "), ["0 f/?/g Signal 3 6"], "{lines:#?}");
}

/// Without symbols and without the kernel's code: what runs behind a system call is the program's again.
#[test]
fn behind_a_kernel_that_is_not_known_the_program_goes_on() {
    const A: u64 = 0x41_0000;
    let mut code = Code::default();
    // nop; syscall; nop; jmp *rax
    code.image.add(0x1000, A, &[0x90, 0x0f, 0x05, 0x90, 0xff, 0xe0]);
    let mut pt = Pt::new();
    pt.psb(A).tip(ENTRY).tip(A + 3).tip(A);
    let stream = Stream { cpu: 0, bytes: &pt.bytes, image: &code.image };
    let options = Options { threads: 1, clock: CLOCK, ..Options::default() };
    let profile = profile(&[stream], &code, &[], &options, &|_| ());
    assert_eq!(tree(&profile), ["0 ? Resumed 0 4", "0 ?/? Syscall 1 0"]);
}

#[test]
fn retpolines_are_calls_of_their_target() {
    let mut code = code("__x64_sys_read");
    // main2: call thunk; nop; jmp *rax. The thunk: call 2f; 1: pause; jmp 1b; 2: mov [rsp], rax; ret
    code.func("main2", 0x41_0000, &[0xe8, 0xfb, 0x0f, 0, 0, 0x90, 0xff, 0xe0]);
    code.func(
        "__x86_indirect_thunk_rax",
        0x41_1000,
        &[0xe8, 4, 0, 0, 0, 0xf3, 0x90, 0xeb, 0xfc, 0x48, 0x89, 0x04, 0x24, 0xc3],
    );
    code.func("target", 0x41_2000, &[0x90, 0xc3]);
    let mut pt = Pt::new();
    pt.psb(0x41_0000).tip(0x41_2000).tip(0x41_0005).tip(0x41_0005);
    let p = run_with(&code, &[&pt], &[]);
    assert_eq!(
        tree(&p),
        ["0 main2 Resumed 0 3", "0 main2/__x86_indirect_thunk_rax Call 1 3", "0 main2/target Tail 1 2",]
    );
    assert_eq!(p.nodes.iter().filter(|n| n.kind == FrameKind::Tail).count(), 1);
}
