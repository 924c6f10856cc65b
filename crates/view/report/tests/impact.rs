// SPDX-License-Identifier: MIT OR Apache-2.0
//! Impacts of a tracer on made-up profiles with known results.

use kprism_profile::{FrameKind, Func, NO_PARENT, Node, Part, Parts, Profile, Syscall, Task};
use kprism_report::impact::{self, Impact, Page, Place, Side, SyscallImpact};
use kprism_report::{Style, shape};
use kprism_store::{Account, Fate};

const NAMES: [&str; 7] =
    ["main", "entry_SYSCALL_64", "__x64_sys_read", "__x64_sys_write", "trace", "asm_sysvec_tick", "wait"];
const PID: u32 = 100;

/// A program that makes `read` and `write` at one place. In each of them `trace` has the given cost at the entry, and
/// `read` is interrupted. Another task, older than the program, is the tracer.
fn profile(trace: [u64; 2]) -> Profile {
    let func = |name: &&str| Func { name: (*name).into(), module: "[kernel]".into(), start: 0, kernel: true };
    let mut funcs: Vec<Func> = NAMES.iter().map(func).collect();
    funcs[0].kernel = false;
    let node = |parent, func, calls, insns, kind| Node { parent, func, calls, insns, ns: insns, kind };
    let mut nodes = vec![
        node(NO_PARENT, 0, 1, 0, FrameKind::Root),
        node(0, 0, 1, 1000, FrameKind::Call),
        node(1, 1, 4, 40, FrameKind::Syscall),
        node(2, 2, 2, 200, FrameKind::Call),
        node(3, 5, 1, 77, FrameKind::Interrupt),
        node(2, 3, 2, 600, FrameKind::Call),
        node(NO_PARENT, 0, 1, 0, FrameKind::Root),
        node(6, 1, 9, 9000, FrameKind::Syscall),
    ];
    let all = trace[0] + trace[1];
    if all > 0 {
        nodes.push(node(2, 4, 4, 2 * all, FrameKind::Call));
    }
    let task = |pid, root| Task { pid, tgid: pid, comm: String::new(), root };
    let tick = Parts { interrupts: Part { ns: 77, insns: 77 }, ..Parts::default() };
    let call = |func: u32, insns, start_ns, parts| Syscall {
        func,
        node: 2,
        insns,
        on_cpu_ns: insns,
        wall_ns: 10 * insns,
        start_ns,
        parts,
        ..Syscall::default()
    };
    let syscalls = vec![
        call(2, 110 + 77 + trace[0], 1, tick),
        call(3, 310 + trace[1], 2, Parts::default()),
        call(2, 110 + trace[0], 3, Parts::default()),
        call(3, 310 + trace[1], 4, Parts::default()),
        Syscall { task: 1, ..call(2, 9000, 0, Parts::default()) },
    ];
    Profile { funcs, tasks: vec![task(PID, 0), task(7, 6)], nodes, syscalls, ..Profile::default() }
}

fn side(profile: &Profile) -> Side<'_> {
    Side { profile, pid: PID }
}

fn of<'a>(impact: &'a Impact, name: &str) -> &'a SyscallImpact {
    impact.syscalls.iter().find(|call| call.name == name).unwrap()
}

#[test]
fn the_same_twice_adds_nothing() {
    let profile = profile([0, 0]);
    let impact = Impact::new(side(&profile), side(&profile));
    assert_eq!(impact.syscalls.len(), 2);
    for call in &impact.syscalls {
        assert_eq!((call.added().insns, call.functions.len()), (0.0, 0));
    }
    let total = impact.total();
    assert_eq!((total.bare.insns, total.traced.insns), (1917.0, 1917.0));
}

#[test]
fn what_is_added_is_the_calls_own_without_interrupts_and_other_tasks() {
    let (bare, traced) = (profile([0, 0]), profile([30, 10]));
    let impact = Impact::new(side(&bare), side(&traced));
    let (read, write) = (of(&impact, "read"), of(&impact, "write"));
    assert_eq!((read.sums.bare.insns, read.sums.bare.calls), (220.0, 2.0));
    assert_eq!((read.added().insns, read.added().ns, write.added().insns), (30.0, 30.0, 10.0));
    let spread = read.spread.unwrap();
    assert_eq!((spread.least, spread.median, spread.most), (30, 30, 30));
    // Made at one place: the cost of `trace` is attributed in proportion to their instructions, and the sums are
    // unchanged.
    assert!(read.shared && write.shared);
    for call in [read, write] {
        let sum: f64 = call.functions.iter().map(|f| call.added_by(f).insns).sum();
        assert!((sum - call.added().insns).abs() < 1e-9, "{call:?}");
        assert_eq!(call.functions[0].name, "trace");
    }
    let interrupts = impact.places[&Place::Interrupts];
    assert_eq!((interrupts.bare.insns, interrupts.traced.insns), (77.0, 77.0));
    assert_eq!(impact.places[&Place::User].traced.insns, 1000.0);
}

#[test]
fn other_calls_are_compared_by_their_means_only() {
    let (bare, mut traced) = (profile([0, 0]), profile([0, 0]));
    traced.syscalls.swap_remove(0);
    let impact = Impact::new(side(&bare), side(&traced));
    assert!(impact.syscalls.iter().all(|call| call.spread.is_none()));
    assert_eq!(of(&impact, "read").added().insns, 0.0);
}

#[test]
fn an_isolated_call_is_a_profile_of_nothing_else() {
    let traced = profile([30, 10]);
    let alone = impact::isolate(side(&traced), "read").unwrap();
    let names: Vec<&str> =
        alone.nodes[1..].iter().map(|n| alone.funcs[n.func as usize].name.as_str()).collect();
    assert_eq!(names, ["entry_SYSCALL_64", "__x64_sys_read", "trace"]);
    assert_eq!(alone.nodes[1].calls, 2);
    let sum: u64 = alone.nodes.iter().map(|n| n.insns).sum();
    assert_eq!(sum, 2 * (110 + 30));
    assert_eq!(impact::isolate(side(&traced), "mmap"), None);
}

#[test]
fn the_account_is_where_all_reports_have_it() {
    let profile = profile([0, 0]);
    let lost = Account::new().with(Fate::Lost, "instructions", 3);
    let page = Page {
        command: "ls".into(),
        kernel: "6.12".into(),
        same: true,
        account: shape::account_of_all([("baseline", Some(&lost))]),
        floor: Impact::new(side(&profile), side(&profile)),
        tracers: Vec::new(),
        by_syscall: false,
        functions: 0,
    };
    let entry = &impact::to_json(&page)["run"]["account"][0];
    assert_eq!((&entry["fate"], &entry["count"]), (&"lost".into(), &3.into()));
    assert!(impact::to_text(&page, Style::default()).contains("not whole"));
    assert!(impact::render(&page).unwrap().contains("not whole: lost 3 instructions"));
}
