// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares two runs whose difference is known.

mod sample;

use kprism_profile::Filter;
use kprism_profile::{FrameKind, Profile, Syscall};
use kprism_report::calltree::Weight;
use kprism_report::diff::{self, Diff, Scale, Side, Within};
use kprism_report::table::Cell;
use kprism_report::{Style, rows, tree};
use sample::{Builder, TRACED};

fn compare(old: &Profile, new: &Profile, within: Within<'_>) -> Diff {
    Diff::new(old, new, within, &Filter::default()).expect("something to compare")
}

fn whole(diff: &Diff, side: Side) -> u64 {
    diff.totals()[side as usize][0].insns
}

#[test]
fn a_run_is_like_itself() {
    let profile = sample::profile();
    let diff = compare(&profile, &profile, Within::Everything);
    assert_eq!(diff.functions().len(), profile.funcs.len());
    assert!(diff::functions_table(&diff, Weight::Instructions, Scale::Sums).rows.is_empty());
    assert_eq!(diff.extra_paths(), []);
    assert_eq!(whole(&diff, Side::Old), profile.nodes.iter().map(|n| n.insns).sum::<u64>());
}

#[test]
fn functions_are_those_of_the_tables() {
    let profiles = [sample::profile(), sample::traced()];
    let diff = compare(&profiles[0], &profiles[1], Within::Everything);
    for (side, profile) in profiles.iter().enumerate() {
        let expected = rows::functions(profile, &Filter::default());
        let ours: Vec<_> =
            diff.functions().into_iter().filter_map(|f| Some((f.func, f.rows[side]?))).collect();
        assert_eq!(ours.len(), expected.len());
        for row in expected {
            let func = &profile.funcs[row.func as usize];
            let same = |f: u32| {
                let known = &diff.funcs[f as usize];
                known.name == func.name && known.module == func.module
            };
            let (_, amount) = ours.iter().find(|(f, _)| same(*f)).unwrap();
            assert_eq!(amount.own.insns, row.self_insns, "{}", func.name);
            assert_eq!(amount.total_insns, row.total_insns, "{}", func.name);
            assert_eq!(amount.total_ns, row.total_ns, "{}", func.name);
            assert_eq!(amount.own.calls, row.calls, "{}", func.name);
        }
    }
}

#[test]
fn what_was_added_is_found_wherever_the_code_lies() {
    let (old, new) = (sample::profile(), sample::traced());
    for (old, new, added) in [(&old, &new, Side::New), (&new, &old, Side::Old)] {
        let diff = compare(old, new, Within::Everything);
        let mut only_there = 0;
        for path in diff.extra_paths() {
            let name = diff.name(path.node);
            match name {
                "trace_mmap" => {
                    assert_eq!(path.side, added);
                    assert_eq!(path.total.insns, path.total.calls * (TRACED.0 + TRACED.1));
                    let callers: Vec<&str> =
                        diff.path(path.node).iter().rev().map(|&n| diff.name(n)).collect();
                    assert_eq!(callers[1], "do_mmap");
                    only_there += 1;
                }
                "sort_files" => assert_ne!(path.side, added),
                _ => panic!("{name} is no topmost frame of an extra path"),
            }
        }
        assert_eq!(only_there, 3, "sh, ls and sed");
        let table = diff::functions_table(&diff, Weight::Instructions, Scale::Sums);
        let column = |key: &str| table.columns.iter().position(|c| c.key == key).unwrap();
        let (by, own) = (column("self_instructions_difference"), column("function"));
        let differences: Vec<i64> = table
            .rows
            .iter()
            .map(|row| if let Cell::CountDiff(n) = row[by] { n } else { panic!("a difference") })
            .collect();
        assert!(differences.windows(2).all(|w| w[0].abs() >= w[1].abs()), "sorted by size: {differences:?}");
        let all = whole(&diff, Side::New) as i64 - whole(&diff, Side::Old) as i64;
        assert_eq!(differences.iter().sum::<i64>(), all);
        let names: Vec<&Cell> = table.rows.iter().map(|row| &row[own]).collect();
        assert!(names.contains(&&Cell::Text("ring_buffer_write".into())));
        assert!(!names.contains(&&Cell::Text("do_lookup_x".into())), "what did not change is no row");
    }
}

#[test]
fn a_system_call_is_measured_by_its_calls() {
    let (old, mut new) = (sample::profile(), sample::traced());
    // Twice as many calls of the same cost are no difference per call.
    for node in &mut new.nodes {
        (node.calls, node.insns, node.ns) = (2 * node.calls, 2 * node.insns, 2 * node.ns);
    }
    let diff = compare(&old, &new, Within::Syscall("mmap"));
    let [before, after] = diff.invocations.unwrap();
    assert_eq!(after, 2 * before);
    let scale = Scale::PerCall([before, after]);
    let table = diff::functions_table(&diff, Weight::Instructions, scale);
    let differ: Vec<Vec<Cell>> = table.rows.clone();
    let text = |row: &Vec<Cell>| {
        row.iter()
            .filter_map(|c| if let Cell::Text(t) = c { Some(t.clone()) } else { None })
            .collect::<Vec<_>>()
    };
    assert_eq!(text(&differ[0])[..2], ["new", "ring_buffer_write"]);
    let gained = whole(&diff, Side::New) / 2 - whole(&diff, Side::Old);
    assert_eq!(gained, before * (TRACED.0 + TRACED.1));
    let line = diff::headline(&diff, "mmap", scale, Style::default());
    assert!(line.starts_with("mmap: "), "{line}");
    assert!(line.contains(" calls; per call "), "{line}");
    let nothing = Diff::new(&old, &new, Within::Syscall("mmap"), &Filter { pids: vec![999], comms: vec![] });
    assert_eq!(nothing, None);
    // A function that only one run has is an extra path as a whole.
    let sorts = compare(&old, &new, Within::Function("sort_files"));
    let extra = sorts.extra_paths();
    assert_eq!((extra.len(), extra[0].side, sorts.name(extra[0].node)), (1, Side::Old, "sort_files"));
    assert_eq!(Diff::new(&old, &new, Within::Function("no_such"), &Filter::default()), None);
}

/// A run that lacks the compared part, and of which it is not known whether it had it, did not take 0 ns.
#[test]
fn the_cost_of_a_part_that_a_run_may_have_had_is_not_known() {
    let (old, new) = (sample::profile(), sample::traced());
    let unknown =
        compare(&old, &new, Within::Function("ring_buffer_write")).with_gaps([true, false], [false; 2]);
    assert_eq!(unknown.nodes[0].amounts[0], None);
    let line = diff::headline(&unknown, "ring_buffer_write", Scale::Sums, Style::default());
    assert!(line.contains("not known → ") && !line.contains("0 ns → "), "{line}");
    let tables = || diff::functions_table(&unknown, Weight::Instructions, Scale::Sums);
    let json = diff::to_json(&unknown, Scale::Sums, &tables(), &tables());
    assert!(json["old"]["ns"].is_null() && json["old"]["instructions"].is_null(), "{}", json["old"]);
    assert!(json["new"]["ns"].is_u64(), "{}", json["new"]);
    // Of a run that had nothing of it for certain, it is 0.
    let known = compare(&old, &new, Within::Function("ring_buffer_write"));
    assert_eq!(diff::to_json(&known, Scale::Sums, &tables(), &tables())["old"]["ns"], 0);
}

/// A body's tail calls belong to it. Callers that make several system calls from one place share the frames around.
#[test]
fn the_tree_of_a_system_call() {
    let mut b = Builder::new();
    let task = b.task(1, "init");
    let call = |b: &mut Builder, path: &str, calls, insns| b.path(task, path, calls, insns);
    call(&mut b, "mmap S:entry", 2, 10);
    call(&mut b, "mmap S:entry do_syscall_64", 2, 20);
    let node = call(&mut b, "mmap S:entry do_syscall_64 __x64_sys_mmap", 2, 4);
    call(&mut b, "mmap S:entry do_syscall_64 T:ksys_mmap", 2, 500);
    call(&mut b, "mmap S:entry I:timer", 1, 7);
    call(&mut b, "syscall S:entry", 5, 1_000);
    call(&mut b, "syscall S:entry __x64_sys_mmap do_mmap", 3, 90);
    let other = call(&mut b, "syscall S:entry __x64_sys_read", 2, 9_999);
    for at in [node, other] {
        let func = b.profile.nodes[at as usize].func;
        b.profile.syscalls.push(Syscall { func, node: at, ..Syscall::default() });
    }
    let body = b.profile.nodes[node as usize].func;
    // The path to do_mmap was added without calls of its own.
    let shared = b.path(task, "syscall S:entry __x64_sys_mmap", 3, 6);
    assert_eq!(b.profile.nodes[shared as usize].kind, FrameKind::Call);
    let tree::SyscallTree { tree, calls, shared } = tree::of_syscall(&b.profile, &[body], &Filter::default());
    assert_eq!((calls, shared), (5, 3));
    assert_eq!(tree.totals().insns[0], 10 + 20 + 4 + 500 + 7 + 90 + 6);
    let read = b.profile.nodes[other as usize].func;
    let tree::SyscallTree { tree, calls, shared } = tree::of_syscall(&b.profile, &[read], &Filter::default());
    assert_eq!((calls, shared, tree.totals().insns[0]), (2, 2, 9_999));
    let none = tree::of_syscall(&b.profile, &[], &Filter::default());
    assert_eq!((none.calls, none.tree.nodes.len()), (0, 1));
}
