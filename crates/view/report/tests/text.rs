// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots of the output for people and scripts, and sums checked by a second, slow computation.

mod sample;

use std::path::Path;

use kprism_profile::Filter;
use kprism_profile::*;
use kprism_report::calltree::{self, Options, Weight};
use kprism_report::header::Header;
use kprism_report::{Style, Table, folded, html, rows, tables, tree};
use kprism_store::{Instrument, Manifest, OptionKey};

fn short(mut table: Table, rows: usize) -> Table {
    table.limit(rows);
    table
}

fn ls() -> Filter {
    Filter { comms: vec!["l*".into()], ..Filter::default() }
}

#[test]
fn text() {
    let profile = sample::profile();
    let plain = Style::default();
    insta::assert_snapshot!("header", Header::new(&sample::manifest(), &profile).to_text(&profile, plain));
    insta::assert_snapshot!(
        "functions",
        short(tables::functions(&profile, &Filter::default()), 25).to_text(plain)
    );
    insta::assert_snapshot!("functions_ls", short(tables::functions(&profile, &ls()), 8).to_text(plain));
    insta::assert_snapshot!("syscalls", tables::syscalls(&profile, &Filter::default()).to_text(plain));
    insta::assert_snapshot!("tasks", tables::tasks(&profile, &Filter::default()).to_text(plain));
    insta::assert_snapshot!("errors", tables::errors(&profile).to_text(plain));
    let all = tree::by_comm(&profile, &Filter::default());
    insta::assert_snapshot!("tree", calltree::to_text(&profile, &all, &Options::default(), plain));
    let time = Options { weight: Weight::Time, min_percent: 8.0, max_depth: 6 };
    let sed = tree::of_task(&profile, 2);
    insta::assert_snapshot!("tree_sed_time", calltree::to_text(&profile, &sed, &time, plain));
}

#[test]
fn colour_is_only_added_never_needed() {
    let profile = sample::profile();
    let table = tables::functions(&profile, &Filter::default());
    let coloured = table.to_text(Style { color: true, ..Style::default() });
    assert!(coloured.contains("\x1b[31m"));
    let mut stripped = coloured;
    for code in ["1", "2", "31", "32", "0"] {
        stripped = stripped.replace(&format!("\x1b[{code}m"), "");
    }
    assert_eq!(stripped, table.to_text(Style::default()));
    assert!(!stripped.contains('\x1b'), "names of binaries reach the terminal unescaped");
}

/// Properties of the guest stand below the account, where they matter; that of every run with details alone.
#[test]
fn the_head_tells_what_the_guest_is_not() {
    let mut profile = sample::profile();
    let mut manifest = sample::manifest();
    let text = |manifest: &Manifest, profile: &Profile, detail: bool| {
        Header::new(manifest, profile).to_text(profile, Style { detail, ..Style::default() })
    };
    let before = text(&manifest, &profile, true);
    manifest.set(OptionKey::Pace, "exact");
    let turns = "2 CPUs take turns";
    let time = "time is work: 1 ns an instruction";
    // Calls of one task on one CPU: nothing waits for another CPU.
    profile.syscalls.truncate(1);
    assert_eq!(text(&manifest, &profile, false), before);
    assert!(text(&manifest, &profile, true).contains(time));
    let call = profile.syscalls[0].clone();
    let task = (call.task + 1) % profile.tasks.len() as u32;
    profile.syscalls.push(Syscall { cpu: call.cpu + 1, task, ..call });
    assert!(text(&manifest, &profile, false).contains(turns));
    let guest = &Header::new(&manifest, &profile).to_json()["guest"];
    let kinds: Vec<_> = guest.as_array().expect("a list").iter().map(|one| one["what"].clone()).collect();
    assert_eq!(kinds, ["cpus_take_turns", "time_is_work"]);
    let page = html::render(&manifest, &sample::profile(), &html::Budget::default()).unwrap();
    assert!(page.contains("What the guest is not") && page.contains(time), "the lines beside the account");
    let info =
        |tables| kprism_report::info::to_text(Path::new("run"), &[Instrument::Flow], &manifest, tables);
    let told = info(Ok(Some(&profile)));
    assert!(told.contains(turns) && told.contains("--smp 1") && told.contains(time), "{told}");
    assert!(!told.contains("cannot be read"), "{told}");
    let told = info(Err("functions.parquet: damaged"));
    assert!(told.contains("cannot be read") && told.contains("functions.parquet: damaged"), "{told}");
}

#[test]
fn json_and_csv() {
    let profile = sample::profile();
    let filter = Filter { pids: vec![302], ..Filter::default() };
    let json = |value| serde_json::to_string_pretty(&value).unwrap();
    insta::assert_snapshot!("functions_json", json(short(tables::functions(&profile, &filter), 2).to_json()));
    insta::assert_snapshot!("syscalls_json", json(short(tables::syscalls(&profile, &filter), 2).to_json()));
    insta::assert_snapshot!("header_json", json(Header::new(&sample::manifest(), &profile).to_json()));
    let options = Options { min_percent: 12.0, ..Options::default() };
    let task = tree::of_task(&profile, 1);
    insta::assert_snapshot!("tree_json", json(calltree::to_json(&profile, &task, &options, 0).0));
    insta::assert_snapshot!("syscalls_csv", tables::syscalls(&profile, &filter).to_csv());
    let mut csv = tables::functions(&profile, &Filter::default());
    csv.sort_by("module").unwrap();
    csv.limit(4);
    insta::assert_snapshot!("functions_csv", csv.to_csv());
}

#[test]
fn folded_stacks() {
    let profile = sample::profile();
    let mut out = Vec::new();
    folded::write(&profile, &ls(), Weight::Instructions, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = text.lines().take(12).collect();
    insta::assert_snapshot!("folded", lines.join("\n"));

    // Every instruction is in exactly one line, and no name breaks the format.
    let mut out = Vec::new();
    folded::write(&profile, &Filter::default(), Weight::Time, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let sum: u64 = text.lines().map(|l| l.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, profile.nodes.iter().map(|n| n.ns).sum::<u64>());
}

#[test]
fn tables_sort_by_any_column() {
    let profile = sample::profile();
    let mut table = tables::functions(&profile, &Filter::default());
    for key in table.columns.iter().map(|c| c.key).collect::<Vec<_>>() {
        table.sort_by(key).unwrap();
        let first = table.rows[0].clone();
        table.sort_by(&format!("-{key}")).unwrap();
        assert_ne!(first, table.rows[0], "{key}");
    }
    let message = table.sort_by("size").unwrap_err().to_string();
    assert!(message.contains("no column \"size\"; there are: self_percent, self_instructions"), "{message}");
}

#[test]
fn totals_count_recursion_once() {
    let mut b = sample::Builder::new();
    let task = b.task(1, "t");
    b.path(task, "f g f g f", 1, 100);
    b.path(task, "f g", 5, 10);
    b.path(task, "g f", 2, 7);
    let rows = rows::functions(&b.profile, &Filter::default());
    let of = |name: &str| {
        let func = b.profile.funcs.iter().position(|f| f.name == name).unwrap();
        rows.iter().find(|r| r.func as usize == func).unwrap()
    };
    // f: 100 + 10 under its outermost call, and 7 under g; g: all below the first f, and its own call.
    assert_eq!((of("f").total_insns, of("f").self_insns), (117, 107));
    assert_eq!((of("g").total_insns, of("g").self_insns), (117, 10));
}

/// Totals by walking up from every node and remembering the functions passed: slow, but independent.
#[test]
fn totals_agree_with_a_slow_second_way() {
    for profile in [sample::profile(), sample::large(5, 2_000)] {
        let mut expected = vec![(0u64, 0u64); profile.funcs.len()];
        for node in &profile.nodes {
            let mut passed = std::collections::HashSet::new();
            let mut at = node;
            while at.parent != NO_PARENT {
                if passed.insert(at.func) {
                    expected[at.func as usize].0 += node.insns;
                    expected[at.func as usize].1 += node.ns;
                }
                at = &profile.nodes[at.parent as usize];
            }
        }
        for row in rows::functions(&profile, &Filter::default()) {
            assert_eq!((row.total_insns, row.total_ns), expected[row.func as usize]);
        }
        let all = tree::by_comm(&profile, &Filter::default());
        assert_eq!(all.totals().insns[0], profile.nodes.iter().map(|n| n.insns).sum::<u64>());
        assert_eq!(all.totals().ns[0], profile.nodes.iter().map(|n| n.ns).sum::<u64>());
    }
}

#[test]
fn percentiles_are_values_that_occurred() {
    let row = |wall_ns: Vec<u64>| rows::SyscallRow {
        func: 0,
        name: String::new(),
        wall_ns,
        on_cpu_ns: 0,
        insns: 0,
        parts: Parts::default(),
    };
    let hundred = row((1..=100).collect());
    assert_eq!([50, 90, 99, 100].map(|p| hundred.percentile_ns(p)), [50, 90, 99, 100]);
    assert_eq!([50, 90, 99, 100].map(|p| row(vec![7]).percentile_ns(p)), [7; 4]);
    assert_eq!([50, 99].map(|p| row(vec![1, 2, 3]).percentile_ns(p)), [2, 3]);
    assert_eq!((row(vec![]).percentile_ns(50), row(vec![]).average_ns()), (0, 0));
}

#[test]
fn an_empty_run_and_huge_counts_are_shown() {
    let empty = Profile::default();
    let plain = Style::default();
    let none = Filter::default();
    assert!(tables::functions(&empty, &none).to_text(plain).starts_with("self"));
    calltree::to_text(&empty, &tree::by_comm(&empty, &none), &Options::default(), plain);
    let mut b = sample::Builder::new();
    let task = b.task(1, "t");
    for path in ["f g", "f h"] {
        let node = b.path(task, path, 1, 0);
        let node = &mut b.profile.nodes[node as usize];
        (node.calls, node.insns, node.ns) = (u64::MAX, u64::MAX, u64::MAX);
    }
    tables::functions(&b.profile, &none).to_text(plain);
    calltree::to_json(&b.profile, &tree::by_comm(&b.profile, &none), &Options::default(), 0);
}
