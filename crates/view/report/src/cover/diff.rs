// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares two runs' coverage line by line.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use kprism_cover::Cover;
use kprism_cover::cover::Totals;
use kprism_cover::path::{Prefixes, absolute, common};
use serde_json::{Value, json};

use super::{summary_json, takes_either};
use crate::table::{Cell, Table};

/// Changes in the lines of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Executed in the new run only.
    pub gained: Vec<u32>,
    /// Executed in the old run only.
    pub lost: Vec<u32>,
    /// Number of lines executed in both runs, with different counts.
    pub changed: u64,
}

/// The changes by file, as far as there are any. Files are compared by their full path, and both runs are shown from the
/// same folder: which folder most sources are below may differ between them. If no source of the old run is where the new
/// one has it, the sources have moved, and the folder that they moved with is taken for the new one.
pub fn changes(old: &Cover, new: &Cover, filter: Option<&str>) -> BTreeMap<String, Change> {
    let mut changes: BTreeMap<String, Change> = BTreeMap::new();
    let mut counts: BTreeMap<(Cow<'_, str>, u32), (i64, i64)> = BTreeMap::new();
    let moved = moved(old, new);
    let root = match (&old.root, &new.root) {
        (Some(a), Some(b)) => common(&moved.map(a), b).map(str::to_owned).or(new.root.clone()),
        _ => new.root.clone(),
    };
    let shown = |path| match path {
        Cow::Borrowed(path) => Cow::Borrowed(below(path, root.as_deref())),
        Cow::Owned(path) => Cow::Owned(below(&path, root.as_deref()).to_owned()),
    };
    let wanted = filter.map(|filter| below(&absolute(None, filter), root.as_deref()).to_owned());
    let stay = Prefixes::default();
    for (cover, prefixes, is_new) in [(old, &moved, false), (new, &stay, true)] {
        for source in &cover.sources {
            let full = prefixes.map(&source.path);
            let path = shown(full.clone());
            if wanted.as_deref().is_none_or(|wanted| takes_either(wanted, &full, &path)) {
                for line in source.lines.iter().filter(|line| line.count != 0) {
                    let entry = counts.entry((path.clone(), line.line)).or_default();
                    *(if is_new { &mut entry.1 } else { &mut entry.0 }) = line.count;
                }
            }
        }
    }
    for ((path, line), (old, new)) in counts.into_iter().filter(|(_, (old, new))| old != new) {
        let change = match changes.get_mut(&*path) {
            Some(change) => change,
            None => changes.entry(path.into_owned()).or_default(),
        };
        match (old, new) {
            (0, _) => change.gained.push(line),
            (_, 0) => change.lost.push(line),
            _ => change.changed += 1,
        }
    }
    changes
}

fn below<'p>(path: &'p str, folder: Option<&str>) -> &'p str {
    folder.and_then(|folder| path.strip_prefix(folder)?.strip_prefix('/')).unwrap_or(path)
}

/// The folder to which the old run's sources moved in the new one: none, if one of its own (not a system's header) is still where
/// it was. Else the two folders that most files of the same name differ by.
fn moved(old: &Cover, new: &Cover) -> Prefixes {
    let paths: HashSet<&str> = new.sources.iter().map(|source| source.path.as_str()).collect();
    let own = |path: &str| old.root.as_deref().is_none_or(|root| below(path, Some(root)) != path);
    let own = || old.sources.iter().map(|source| source.path.as_str()).filter(|path| own(path));
    if own().any(|path| paths.contains(path)) {
        return Prefixes::default();
    }
    let mut names: HashMap<&str, Vec<&str>> = HashMap::new();
    for path in paths {
        names.entry(path.rsplit('/').next().unwrap_or(path)).or_default().push(path);
    }
    let mut votes: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for path in own() {
        // Of several files of that name, that with the longest end in common.
        let found = names.get(path.rsplit('/').next().unwrap_or(path)).into_iter().flatten();
        let ends = found.map(|other| (shared(path, other), *other));
        if let Some((end, other)) = ends.max() {
            *votes.entry((&path[..path.len() - end], &other[..other.len() - end])).or_default() += 1;
        }
    }
    let best = votes.into_iter().max_by_key(|&(_, votes)| votes);
    Prefixes::new(best.map(|((old, new), _)| (old.to_owned(), new.to_owned())))
}

/// Length of the longest end of whole parts that two paths have in common, with the slash before it.
fn shared(a: &str, b: &str) -> usize {
    let same = a.rsplit('/').zip(b.rsplit('/')).take_while(|(a, b)| a == b);
    same.map(|(part, _)| part.len() + 1).sum::<usize>().min(a.len()).min(b.len())
}

/// Numbers of lines gained and lost in all files.
fn counts(changes: &BTreeMap<String, Change>) -> (usize, usize) {
    let sum = |of: fn(&Change) -> &[u32]| changes.values().map(|change| of(change).len()).sum();
    (sum(|change| &change.gained), sum(|change| &change.lost))
}

/// The sums in words. `before` and `after` are the totals of the two runs.
pub fn summary(before: &Totals, after: &Totals, changes: &BTreeMap<String, Change>) -> String {
    let (gained, lost) = counts(changes);
    format!(
        "lines executed: {} before, {} after; {gained} gained, {lost} lost, in {} files\n",
        before.lines.hit,
        after.lines.hit,
        changes.len()
    )
}

/// The sums as JSON.
pub fn to_json(before: &Totals, after: &Totals, changes: &BTreeMap<String, Change>) -> Value {
    let (gained, lost) = counts(changes);
    json!({"old": summary_json(before), "new": summary_json(after), "gained": gained, "lost": lost})
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

/// `+3-5 +9`: consecutive lines are joined.
pub(super) fn ranges(lines: &[u32], sign: char) -> String {
    let runs = lines.chunk_by(|a, b| a + 1 == *b);
    let words = runs.map(|run| match run {
        [one] => format!("{sign}{one}"),
        run => format!("{sign}{}-{}", run[0], run[run.len() - 1]),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Width to which columns of line numbers are cut for people. Programs get all.
const WIDEST: usize = 80;

/// Cuts columns of line numbers at a blank, and adds the number of omitted ones.
pub fn shorten(table: &mut Table) {
    let columns =
        table.columns.iter().map(|column| ["gained_lines", "lost_lines", "missed"].contains(&column.key));
    let places: Vec<usize> = columns.enumerate().filter(|(_, is)| *is).map(|(place, _)| place).collect();
    for row in &mut table.rows {
        for &place in &places {
            let Some(Cell::Text(text)) = row.get_mut(place) else { continue };
            if text.len() <= WIDEST {
                continue;
            }
            let end = text[..WIDEST].rfind(' ').unwrap_or(WIDEST);
            let more = text[end..].split_whitespace().count();
            *text = format!("{} … {more} more", &text[..end]);
        }
    }
}
