// SPDX-License-Identifier: MIT OR Apache-2.0
//! The coverage of the lines that a patch adds.

use std::borrow::Cow;
use std::collections::BTreeMap;

use anyhow::{Result, bail};
use kprism_cover::Cover;
use kprism_cover::cover::{Ratio, Source};
use kprism_cover::path::absolute;
use kprism_profile::units::grouped;
use kprism_store::{Account, Fate};
use serde_json::{Value, json};

use super::diff::ranges;
use super::{takes, takes_source};
use crate::table::{Cell, Table};

/// The lines that a patch adds, by file. The patch is a unified diff of git or diff, with prefixes (`a/`, `b/`) or
/// without. Of a merge (`diff --cc`), the lines that no parent has.
///
/// # Errors
/// It is not empty and no diff, or ends in the middle of a hunk: the error names the file.
pub fn added(patch: &str) -> Result<BTreeMap<String, Vec<u32>>> {
    let mut files: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut file: Option<String> = None;
    let (mut old, mut has_prefix) = (String::new(), true);
    let (mut next, mut left) = (0u32, Left::default());
    for line in patch.lines() {
        if left.is_done() {
            if let Some(name) = line.strip_prefix("--- ") {
                old = file_name(name).into_owned();
            } else if let Some(name) = line.strip_prefix("+++ ") {
                let name = &*file_name(name);
                // git's prefixes differ in one component. Without them (--no-prefix) both names are the same.
                has_prefix = match old.as_str() {
                    "/dev/null" => name.starts_with("b/") || has_prefix,
                    old => old != name,
                };
                let plain = match has_prefix {
                    true => name.split_once('/').map_or(name, |(_, rest)| rest),
                    false => name,
                };
                file = (name != "/dev/null").then(|| plain.to_owned());
            } else if let Some((olds, (start, new))) = hunk(line) {
                (next, left) = (start, Left { olds, new });
            }
            continue;
        }
        if line.starts_with('\\') {
            continue;
        }
        // One sign for each compared side.
        let signs = &line.as_bytes()[..left.olds.len().min(line.len())];
        let is_removed = signs.contains(&b'-');
        for (count, side) in left.olds.iter_mut().enumerate() {
            let is_there = match signs.get(count) {
                Some(b'-') => true,
                Some(b'+') => false,
                _ => !is_removed,
            };
            *side = side.saturating_sub(u32::from(is_there));
        }
        if is_removed {
            continue;
        }
        if !signs.is_empty()
            && signs.iter().all(|&sign| sign == b'+')
            && let Some(file) = &file
        {
            files.entry(file.clone()).or_default().push(next);
        }
        next = next.saturating_add(1);
        left.new = left.new.saturating_sub(1);
    }
    if !left.is_done() {
        bail!("it is cut off in a hunk of {}", file.as_deref().unwrap_or("a file that is removed"));
    }
    // A change may remove lines only, or nothing.
    let is_diff = |line: &str| line.starts_with("+++ ") || line.starts_with("diff --git ");
    if files.is_empty() && !patch.trim().is_empty() && !patch.lines().any(is_diff) {
        bail!("not a unified diff (git diff --no-color, diff -u)");
    }
    Ok(files)
}

/// The name in a line `--- NAME` or `+++ NAME`, before the time of GNU diff. Both git and GNU diff put names with letters
/// beyond ASCII, quotes or control characters into quotes, as in C.
fn file_name(text: &str) -> Cow<'_, str> {
    match text.strip_prefix('"').and_then(unquoted) {
        Some(name) => Cow::Owned(name),
        None => Cow::Borrowed(text.split('\t').next().unwrap_or(text)),
    }
}

/// The text before the closing quote. None if there is none, or an escape is not one of C's.
fn unquoted(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    loop {
        match bytes.next()? {
            b'"' => return Some(String::from_utf8_lossy(&out).into_owned()),
            b'\\' => out.push(match bytes.next()? {
                b'a' => 7,
                b'b' => 8,
                b't' => b'\t',
                b'n' => b'\n',
                b'v' => 11,
                b'f' => 12,
                b'r' => b'\r',
                letter @ (b'"' | b'\\' | b' ') => letter,
                first @ b'0'..=b'3' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    if !digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) {
                        return None;
                    }
                    (first - b'0') << 6 | (digits[0] - b'0') << 3 | (digits[1] - b'0')
                }
                _ => return None,
            }),
            byte => out.push(byte),
        }
    }
}

/// Lines of a hunk that are still to come.
#[derive(Debug, Default)]
struct Left {
    /// For each compared side: one, or the parents of a merge.
    olds: Vec<u32>,
    new: u32,
}

impl Left {
    fn is_done(&self) -> bool {
        self.new == 0 && self.olds.iter().all(|&left| left == 0)
    }
}

/// Lengths of the old sides, and start and length of the new one: `@@ -1,2 +3,4 @@`, for a merge
/// `@@@ -1,2 -1,3 +1,4 @@@`.
fn hunk(line: &str) -> Option<(Vec<u32>, (u32, u32))> {
    let marks = line.bytes().take_while(|&letter| letter == b'@').count();
    if !(2..=MOST_PARENTS).contains(&marks) {
        return None;
    }
    let mut words = line[marks..].strip_prefix(' ')?.split(' ');
    let side = |word: &str, sign: char| -> Option<(u32, u32)> {
        let (start, count) = word.strip_prefix(sign)?.split_once(',').unwrap_or((&word[1..], "1"));
        Some((start.parse().ok()?, count.parse().ok()?))
    };
    let mut olds = Vec::with_capacity(marks - 1);
    for _ in 1..marks {
        olds.push(side(words.next()?, '-')?.1);
    }
    Some((olds, side(words.next()?, '+')?))
}

/// git does not write longer rows of `@`.
const MOST_PARENTS: usize = 17;

/// The files of a patch that a filter selects, each with its source, if there is code of it. A patch names files
/// relative to its repository, which need not be the folder to which displayed paths are relative. So one path may have
/// additional leading components.
pub fn found<'a>(
    cover: &'a Cover,
    added: &'a BTreeMap<String, Vec<u32>>,
    filter: Option<&str>,
) -> Vec<Patched<'a>> {
    let files = added.iter().map(|(path, lines)| {
        let exact = cover.sources.iter().find(|source| cover.shown(&source.path) == path);
        let below =
            |long: &str, short: &str| long.strip_suffix(short).is_some_and(|rest| rest.ends_with('/'));
        let mut ends = cover.sources.iter().filter(|source| {
            let shown = cover.shown(&source.path);
            // A name without a folder may be that of any file.
            below(&source.path, path) || shown.contains('/') && below(path, shown)
        });
        let only = match (ends.next(), ends.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        };
        Patched { path, lines, source: exact.or(only) }
    });
    files
        .filter(|file| {
            let wanted = filter.map(|filter| absolute(None, filter));
            takes(wanted.as_deref(), file.path)
                || file.source.is_some_and(|source| takes_source(cover, filter, &source.path))
        })
        .collect()
}

/// A file in a patch.
#[derive(Debug, Clone, Copy)]
pub struct Patched<'a> {
    /// Its path in the patch.
    pub path: &'a str,
    /// The added lines.
    pub lines: &'a [u32],
    /// Its coverage.
    pub source: Option<&'a Source>,
}

impl Patched<'_> {
    /// The added lines with code, each with its count.
    fn counts(&self) -> impl Iterator<Item = (u32, i64)> {
        self.lines.iter().filter_map(|&line| Some((line, count_of(self.source?, line)?)))
    }

    /// The added lines with code that did not run: `11-12 30`.
    pub fn missed_text(&self) -> String {
        let missed: Vec<u32> = self.counts().filter(|(_, count)| *count == 0).map(|(line, _)| line).collect();
        ranges(&missed, ' ').trim().to_owned()
    }
}

/// Totals of a patch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PatchTotals {
    /// Number of lines added.
    pub added: u64,
    /// Number of those with code, and of those executed.
    pub lines: Ratio,
    /// Number of files without code in the run.
    pub unknown: u64,
}

impl PatchTotals {
    /// The totals as text.
    pub fn to_text(self) -> String {
        let percent = self.lines.percent().map_or(String::new(), |percent| format!(" ({percent:.2}%)"));
        let (hit, all) = (grouped(self.lines.hit), grouped(self.lines.all));
        let unknown = match self.unknown {
            0 => String::new(),
            1 => "; 1 file is not in the run".to_owned(),
            n => format!("; {n} files are not in the run"),
        };
        let added = grouped(self.added);
        format!("{added} lines added, {all} of them with code: {hit} executed{percent}{unknown}")
    }

    /// The totals as JSON.
    pub fn to_json(self) -> Value {
        json!({
            "added": self.added, "lines": self.lines.all, "lines_hit": self.lines.hit,
            "files_not_in_the_run": self.unknown,
        })
    }
}

/// The sums over all files of a patch.
pub fn totals(files: &[Patched<'_>]) -> PatchTotals {
    let mut totals = PatchTotals::default();
    for file in files {
        totals.added += file.lines.len() as u64;
        totals.unknown += u64::from(file.source.is_none());
        for (_, count) in file.counts() {
            totals.lines.all += 1;
            totals.lines.hit += u64::from(count != 0);
        }
    }
    totals
}

/// Adds the files of a patch that are not in the run to the account of its coverage.
pub fn account(account: Account, files: &[Patched<'_>]) -> Account {
    let unknown = files.iter().filter(|file| file.source.is_none()).map(|file| file.path.to_owned());
    let unknown: Vec<String> = unknown.collect();
    account.at(Fate::Lost, "files of the patch that are not in the run", unknown.len() as u64, unknown)
}

/// A table of the executed lines among those that a patch adds.
pub fn table(files: &[Patched<'_>]) -> Table {
    let rows = files.iter().map(|file| {
        let all = file.counts().count();
        let hit = file.counts().filter(|(_, count)| *count != 0).count();
        vec![
            if all == 0 { Cell::Nothing } else { Cell::Percent(100.0 * hit as f64 / all as f64) },
            Cell::Int(hit as u64),
            Cell::Int(all as u64),
            Cell::Int(file.lines.len() as u64),
            Cell::Text(file.path.to_owned()),
            Cell::Text(match file.source {
                None => "not in the run".into(),
                Some(_) => file.missed_text(),
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
        assert_eq!(added(patch).unwrap(), expected);
        let plain = "--- kernel/fork.c\n+++ kernel/fork.c\n@@ -1 +1,2 @@\n a\n+b\n";
        assert_eq!(added(plain).unwrap(), [("kernel/fork.c".to_owned(), vec![2])].into(), "--no-prefix");
        // `git show` of a merge: a line that both parents lack was added by the merge itself.
        let merge = "\
diff --cc a.c
--- a/a.c
+++ b/a.c
@@@ -1,4 -1,4 +1,5 @@@
  one
 +theirs
+ ours
++both
- gone
 -gone too
  three
@@@ -9,1 -9,1 +11,2 @@@
  nine
++ten
";
        assert_eq!(added(merge).unwrap(), [("a.c".to_owned(), vec![4, 12])].into());
        // git's quotes, those of GNU diff with its time, and a blank, after which git puts a tab.
        let quoted = r#"
--- "a/s p/\303\274.c"
+++ "b/s p/\303\274.c"
@@ -1 +1,2 @@
 a
+b
--- "old/q\"t.c"	2026-01-01
+++ "new/q\"t.c"	2026-01-02
@@ -1 +1,2 @@
 a
+b
--- a/b c.c	
+++ b/b c.c	
@@ -1 +1,2 @@
 a
+b
--- /dev/null
+++ "b/t\tab.c"
@@ -0,0 +1 @@
+b
"#;
        let names: Vec<String> = added(quoted).unwrap().into_keys().collect();
        assert_eq!(names, ["b c.c", "q\"t.c", "s p/\u{fc}.c", "t\tab.c"]);
        assert_eq!(file_name("\"never closed"), "\"never closed");
        assert_eq!(file_name("\"\\400.c\""), "\"\\400.c\"", "no byte");
        assert!(added("nothing of a patch").is_err());
        assert!(added("diff --git a/x b/x\n").unwrap().is_empty());
        let error = added("--- a/f.c\n+++ b/f.c\n@@ -1,99999 +1,4294967295 @@\n+x\n garbage").unwrap_err();
        assert_eq!(error.to_string(), "it is cut off in a hunk of f.c");
        assert_eq!(ranges(&[3, 4, 5, 9], '+'), "+3-5 +9");
    }
}
