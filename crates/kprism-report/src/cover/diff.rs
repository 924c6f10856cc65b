// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two runs' coverage, line by line, and coverage of the lines that a patch adds.

use std::collections::BTreeMap;

use kprism_gcov::Cover;
use kprism_gcov::cover::Source;

use super::takes;
use crate::table::{Cell, Table};

/// What became of the lines of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Executed in the new run only.
    pub gained: Vec<u32>,
    /// Executed in the old run only.
    pub lost: Vec<u32>,
    /// Executed in both, another number of times.
    pub changed: u64,
}

/// The changes by file, as far as there are any.
pub fn changes(old: &Cover, new: &Cover, filter: Option<&str>) -> BTreeMap<String, Change> {
    let mut changes: BTreeMap<String, Change> = BTreeMap::new();
    let mut counts: BTreeMap<(&str, u32), (i64, i64)> = BTreeMap::new();
    for (cover, is_new) in [(old, false), (new, true)] {
        for source in &cover.sources {
            let path = cover.shown(&source.path);
            if takes(filter, path) {
                for line in source.lines.iter().filter(|line| line.count != 0) {
                    let entry = counts.entry((path, line.line)).or_default();
                    *(if is_new { &mut entry.1 } else { &mut entry.0 }) = line.count;
                }
            }
        }
    }
    for ((path, line), (old, new)) in counts.into_iter().filter(|(_, (old, new))| old != new) {
        let change = match changes.get_mut(path) {
            Some(change) => change,
            None => changes.entry(path.to_owned()).or_default(),
        };
        match (old, new) {
            (0, _) => change.gained.push(line),
            (_, 0) => change.lost.push(line),
            _ => change.changed += 1,
        }
    }
    changes
}

/// The changes as a table.
pub fn table(changes: &BTreeMap<String, Change>) -> Table {
    let rows = changes.iter().map(|(path, change)| {
        vec![
            Cell::Int(change.gained.len() as u64),
            Cell::Int(change.lost.len() as u64),
            Cell::Int(change.changed),
            Cell::Text(path.clone()),
            Cell::Text(ranges(&change.gained, '+')),
            Cell::Text(ranges(&change.lost, '-')),
        ]
    });
    let columns = [
        ("gained", "gained"),
        ("lost", "lost"),
        ("changed", "changed"),
        ("path", "file"),
        ("gained_lines", "lines gained"),
        ("lost_lines", "lines lost"),
    ];
    Table::new(&columns, rows.collect())
}

/// `+3-5 +9`: neighbours as one.
fn ranges(lines: &[u32], sign: char) -> String {
    let runs = lines.chunk_by(|a, b| a + 1 == *b);
    let words = runs.map(|run| match run {
        [one] => format!("{sign}{one}"),
        run => format!("{sign}{}-{}", run[0], run[run.len() - 1]),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Lines that a patch adds, by file: a unified diff as git or diff write it, of one level of folders (`a/`, `b/`).
pub fn added(patch: &str) -> BTreeMap<String, Vec<u32>> {
    let mut files: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut file: Option<String> = None;
    let (mut next, mut old_left, mut new_left) = (0u32, 0u32, 0u32);
    for line in patch.lines() {
        if old_left == 0 && new_left == 0 {
            if let Some(name) = line.strip_prefix("+++ ") {
                let name = name.split('\t').next().unwrap_or(name);
                let name = name.split_once('/').map_or(name, |(_, rest)| rest);
                file = (name != "dev/null" && name != "null").then(|| name.to_owned());
            } else if let Some(((_, old), (start, new))) = hunk(line) {
                (next, old_left, new_left) = (start, old, new);
            }
            continue;
        }
        match line.as_bytes().first() {
            Some(b'+') => {
                if let Some(file) = &file {
                    files.entry(file.clone()).or_default().push(next);
                }
                next = next.saturating_add(1);
                new_left = new_left.saturating_sub(1);
            }
            Some(b'-') => old_left = old_left.saturating_sub(1),
            Some(b'\\') => {}
            _ => {
                next = next.saturating_add(1);
                old_left = old_left.saturating_sub(1);
                new_left = new_left.saturating_sub(1);
            }
        }
    }
    files
}

/// Start and length of both sides of `@@ -1,2 +3,4 @@`.
fn hunk(line: &str) -> Option<((u32, u32), (u32, u32))> {
    let mut words = line.strip_prefix("@@ ")?.split(' ');
    let side = |word: &str, sign: char| -> Option<(u32, u32)> {
        let (start, count) = word.strip_prefix(sign)?.split_once(',').unwrap_or((&word[1..], "1"));
        Some((start.parse().ok()?, count.parse().ok()?))
    };
    Some((side(words.next()?, '-')?, side(words.next()?, '+')?))
}

/// What was executed of the lines that a patch adds.
pub fn patch_table(cover: &Cover, added: &BTreeMap<String, Vec<u32>>) -> Table {
    let rows = added.iter().map(|(path, lines)| {
        let source = cover.sources.iter().find(|source| cover.shown(&source.path) == path);
        let count = |line: u32| source.and_then(|source| count_of(source, line));
        let with_code: Vec<u32> = lines.iter().copied().filter(|&line| count(line).is_some()).collect();
        let missed: Vec<u32> = with_code.iter().copied().filter(|&line| count(line) == Some(0)).collect();
        let hit = with_code.len() - missed.len();
        let percent = match (source, with_code.len()) {
            (None, _) | (_, 0) => Cell::Nothing,
            (_, all) => Cell::Percent(100.0 * hit as f64 / all as f64),
        };
        vec![
            percent,
            Cell::Int(hit as u64),
            Cell::Int(with_code.len() as u64),
            Cell::Int(lines.len() as u64),
            Cell::Text(path.clone()),
            Cell::Text(match source {
                None => "not in the run".into(),
                Some(_) => ranges(&missed, ' ').trim().to_owned(),
            }),
        ]
    });
    let columns = [
        ("lines_percent", "executed"),
        ("lines_hit", "hit"),
        ("lines", "of"),
        ("added", "added"),
        ("path", "file"),
        ("missed", "not executed"),
    ];
    Table::new(&columns, rows.collect())
}

fn count_of(source: &Source, line: u32) -> Option<i64> {
    let place = source.lines.binary_search_by_key(&line, |found| found.line).ok()?;
    Some(source.lines[place].count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_lines_of_patches() {
        let patch = "\
diff --git a/kernel/fork.c b/kernel/fork.c
--- a/kernel/fork.c
+++ b/kernel/fork.c
@@ -10,3 +10,4 @@ static int f(void)
 one
-two
+2
+two and a half
 three
@@ -30 +31,0 @@
-gone
--- a/new.c\t2026-01-01
+++ b/new.c\t2026-01-02
@@ -0,0 +1,2 @@
+--- not a header
++++ nor this
--- a/old.c
+++ /dev/null
@@ -1 +0,0 @@
-x
";
        let expected = [("kernel/fork.c".to_owned(), vec![11, 12]), ("new.c".to_owned(), vec![1, 2])].into();
        assert_eq!(added(patch), expected);
        assert!(added("@@ -1,99999 +1,4294967295 @@\n+x\n garbage").is_empty());
        assert_eq!(ranges(&[3, 4, 5, 9], '+'), "+3-5 +9");
    }
}
