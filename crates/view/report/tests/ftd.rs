// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares `--ftd` with ftd itself.
//!
//! `data/vfs_read.txt` is a function graph of vfs_read on 6.12. `data/vfs_read.ftd` is the output of ftd 0.5 for it,
//! without its row `[user-space]` and its statistics. ftd knows two of the marks before long durations; the other marks
//! were replaced by those for it.

use kprism_durations::Names;
use kprism_durations::ftrace::Collector;
use kprism_ftrace::text::Text;
use kprism_profile::Filter;
use kprism_report::durations;

/// Function, and count, time, average, local.
fn rows(table: &str) -> Vec<(String, [i64; 4])> {
    let mut rows = Vec::new();
    for line in table.lines().skip(2) {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let numbers: Vec<i64> =
            words.split_off(words.len() - 4).iter().map(|n| n.parse().expect("a number")).collect();
        // ftd takes the first word of `name [module]`.
        rows.push((words[0].to_owned(), numbers.try_into().expect("four")));
    }
    rows.sort();
    rows
}

#[test]
fn the_columns_are_those_of_ftd() {
    let mut reader = Text::new(include_bytes!("data/vfs_read.txt"));
    let mut collector = Collector::new(Names::default(), reader.timed());
    reader.by_ref().for_each(|event| collector.event(&event));
    let measured = collector.finish(|_| None);
    let ours = durations::ftd(&measured.profile, &measured.times, &Filter::default(), None);
    let theirs = include_str!("data/vfs_read.ftd");
    let heads = |table: &str| table.lines().take(2).map(|l| l.trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(heads(&ours), heads(theirs));
    let (ours, theirs) = (rows(&ours), rows(theirs));
    assert_eq!(ours.len(), theirs.len());
    assert!(ours.len() > 50);
    for ((name, ours), (same, theirs)) in ours.iter().zip(&theirs) {
        assert_eq!(name, same);
        let count = ours[0];
        assert_eq!(count, theirs[0], "calls of {name}");
        // ftd loses up to 1 ns of each duration to floating point.
        assert!((0..=count).contains(&(ours[1] - theirs[1])), "time of {name}: {ours:?} {theirs:?}");
        assert!((ours[2] - theirs[2]).abs() <= 1, "average of {name}: {ours:?} {theirs:?}");
        assert!((ours[3] - theirs[3]).abs() <= 1000, "local time of {name}: {ours:?} {theirs:?}");
    }
}
