// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares two coverages of one run, from gcov's counters and from the flow: which lines agree, and why others do not.
//!
//! Input: both [`Cover`]s, and [`Known`], the contents of the debug information. Output: a [`Comparison`] for each
//! source file. Reasons are computed from the data, never guessed: a line is optimised away if no instruction in any
//! copy of its function has its number, inlined if its function has no code of its own, and so on.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::cover::{Cover, FunctionTotal, Source};

use crate::executed::Inferred;
use kprism_debuginfo::lines::Lines;

/// Contents of the debug information.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Lines with code, by source file, from every row of the line table.
    lines: HashMap<String, HashSet<u32>>,
    /// Functions known to the linker.
    functions: HashSet<String>,
    /// Lines in the flow's coverage that have no code.
    pub inferred: Inferred,
}

impl Known {
    /// Adds a program, kernel or module.
    pub fn add(&mut self, lines: &Lines) {
        let names = lines.files.iter().map(|path| path.as_str());
        let mut by_file: Vec<HashSet<u32>> = names.clone().map(|_| HashSet::new()).collect();
        let rows = lines.rows.iter().map(|row| (row.file, row.line));
        for (file, line) in rows.chain(lines.bare.iter().map(|bare| (bare.file, bare.line))) {
            if let Some(found) = by_file.get_mut(file as usize).filter(|_| line != 0) {
                found.insert(line);
            }
        }
        for (path, found) in names.zip(by_file) {
            self.lines.entry(path.to_owned()).or_default().extend(found);
        }
        // A compiler's variant of a function (`f.isra.0`) counts as that function.
        let names = lines.functions.iter().map(|f| f.name.split('.').next().unwrap_or(&f.name));
        self.functions.extend(names.map(str::to_owned));
    }
}

/// Reason why only gcov has a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// A label, an `else`, a brace: gcov gives it the count of the next block, but it has no code.
    Label,
    /// Its function is in the program, but no instruction in it belongs to the line: it was merged with another line,
    /// or computed by the compiler.
    Optimised,
    /// Its function has no code of its own. Some of its inlined lines exist, but not this one.
    Inlined,
    /// Neither its function nor a copy of it is in the program.
    Gone,
    /// The line table has it, but at no instruction of a named function: the entry of an inlined copy, or code replaced
    /// by another definition.
    Unnamed,
    /// The source file is in no debug information that was read.
    NoDebug,
}

impl Why {
    /// All reasons, in order of display.
    pub const ALL: [Why; 6] =
        [Why::Label, Why::Optimised, Why::Inlined, Why::Gone, Why::Unnamed, Why::NoDebug];

    /// The key in output for programs.
    pub fn key(self) -> &'static str {
        match self {
            Why::Label => "label",
            Why::Optimised => "optimised",
            Why::Inlined => "inlined",
            Why::Gone => "gone",
            Why::Unnamed => "unnamed",
            Why::NoDebug => "no_debug",
        }
    }

    /// A short description.
    pub fn words(self) -> &'static str {
        match self {
            Why::Label => "a label, an else, a brace: no code",
            Why::Optimised => "no instruction of it left in its function",
            Why::Inlined => "its function was inlined everywhere, and nothing of the line is left",
            Why::Gone => "neither its function nor a copy of it is there",
            Why::Unnamed => "the line table names it, at no instruction of a function",
            Why::NoDebug => "its file is in no debug information",
        }
    }
}

/// Kind of difference for a line in both coverages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Differs {
    /// Only gcov has it executed: the remaining code of the line did not run.
    OnlyGcov,
    /// Only the flow has it executed: the line shares instructions with another, or they were moved before a branch.
    OnlyFlow,
    /// Both have it executed, the flow less often.
    Fewer,
    /// Both have it executed, the flow more often.
    More,
}

impl Differs {
    /// All kinds, in order of display.
    pub const ALL: [Differs; 4] = [Differs::OnlyGcov, Differs::OnlyFlow, Differs::Fewer, Differs::More];

    /// The key in output for programs.
    pub fn key(self) -> &'static str {
        match self {
            Differs::OnlyGcov => "gcov_only",
            Differs::OnlyFlow => "flow_only",
            Differs::Fewer => "fewer",
            Differs::More => "more",
        }
    }

    /// The kind in words, for a table.
    pub fn name(self) -> &'static str {
        match self {
            Differs::OnlyGcov => "ran by gcov only",
            Differs::OnlyFlow => "ran by the flow only",
            Differs::Fewer => "ran less often by the flow",
            Differs::More => "ran more often by the flow",
        }
    }

    /// The cause.
    pub fn words(self) -> &'static str {
        match self {
            Differs::OnlyGcov => "what is left of the line did not run",
            Differs::OnlyFlow => "code shared with another line, or moved before a branch",
            Differs::Fewer => "parts of the line were merged or computed by the compiler",
            Differs::More => "code shared with another line, or moved",
        }
    }
}

/// Lines that gcov has executed, and what the flow says of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Executed {
    /// Their number.
    pub gcov: u64,
    /// Number of these that the flow has executed too.
    pub both: u64,
    /// Number of these for which it has the same count.
    pub equal: u64,
    /// Number of these that are not in the flow's coverage, by reason. The rest that it misses is
    /// [`Differs::OnlyGcov`].
    pub absent: BTreeMap<Why, u64>,
}

/// One source file.
#[derive(Debug, Clone, Default)]
pub struct Comparison {
    /// Its path.
    pub path: String,
    /// Number of gcov's lines.
    pub gcov: u64,
    /// Number of lines in both.
    pub both: u64,
    /// Number of these on which both agree whether they were executed.
    pub alike: u64,
    /// Number of these with equal counts.
    pub equal: u64,
    /// Lines in both that have no code: their number, and the number of those that agree.
    pub inferred: (u64, u64),
    /// Lines without code that only the flow has executed.
    pub wrongly: Vec<u32>,
    /// Lines executed for gcov.
    pub executed: Executed,
    /// Lines that only gcov has, by reason.
    pub only_gcov: BTreeMap<Why, Vec<u32>>,
    /// Lines that only the flow has.
    pub only_flow: Vec<u32>,
    /// Those of them that were executed.
    pub only_flow_ran: Vec<u32>,
    /// Lines in both that differ.
    pub differ: Vec<(u32, Differs)>,
    /// Those of them for which the flow has the count of all of gcov's blocks with the line: see [`Counts::every_block`].
    pub by_rule: Vec<(u32, Differs)>,
}

/// gcov's counts of one run.
#[derive(Debug, Clone, Copy)]
pub struct Counts<'c> {
    /// By gcov's rule, for which each block of a file's code is of one line only, the highest in it.
    pub gcov: &'c Cover,
    /// Of the same counters: how often control came to any block with the line.
    pub every_block: &'c Cover,
}

impl Comparison {
    /// Adds another file's numbers.
    pub fn add(&mut self, other: &Comparison) {
        self.gcov += other.gcov;
        self.both += other.both;
        self.alike += other.alike;
        self.equal += other.equal;
        self.inferred.0 += other.inferred.0;
        self.inferred.1 += other.inferred.1;
        self.executed.gcov += other.executed.gcov;
        self.executed.both += other.executed.both;
        self.executed.equal += other.executed.equal;
        for (why, lines) in &other.executed.absent {
            *self.executed.absent.entry(*why).or_default() += lines;
        }
        self.wrongly.extend(&other.wrongly);
        for (why, lines) in &other.only_gcov {
            self.only_gcov.entry(*why).or_default().extend(lines);
        }
        self.only_flow.extend(&other.only_flow);
        self.only_flow_ran.extend(&other.only_flow_ran);
        self.differ.extend(&other.differ);
        self.by_rule.extend(&other.by_rule);
    }
}

/// Compares gcov's files that `takes` accepts. `text` returns a source file's lines, if it is available.
pub fn compare(
    &Counts { gcov, every_block }: &Counts<'_>,
    flow: &Cover,
    known: &Known,
    takes: &dyn Fn(&str) -> bool,
    text: &dyn Fn(&str) -> Option<String>,
) -> Vec<Comparison> {
    let every: HashMap<&str, &Source> = every_block.sources.iter().map(|s| (s.path.as_str(), s)).collect();
    let flows: HashMap<&str, &Source> = flow.sources.iter().map(|s| (s.path.as_str(), s)).collect();
    let chosen = gcov.sources.iter().filter(|source| takes(&source.path));
    let one = |source: &Source| {
        let text = text(&source.path).unwrap_or_default();
        let text: Vec<&str> = text.lines().map(str::trim).collect();
        let path = source.path.as_str();
        let mut found = file(source, flows.get(path).copied(), every.get(path).copied(), known, &text);
        gcov.shown(&source.path).clone_into(&mut found.path);
        found
    };
    chosen.map(one).collect()
}

fn file(
    gcov: &Source,
    flow: Option<&Source>,
    every: Option<&Source>,
    known: &Known,
    text: &[&str],
) -> Comparison {
    let mut found = Comparison { gcov: gcov.lines.len() as u64, ..Comparison::default() };
    let counts_of = |source: Option<&Source>| -> BTreeMap<u32, i64> {
        source.iter().flat_map(|source| &source.lines).map(|line| (line.line, line.count)).collect()
    };
    let (counts, theirs, every) = (counts_of(Some(gcov)), counts_of(flow), counts_of(every));
    let more = || theirs.iter().filter(|(line, _)| !counts.contains_key(line));
    found.only_flow.extend(more().map(|(&line, _)| line));
    found.only_flow_ran.extend(more().filter(|(_, count)| **count > 0).map(|(&line, _)| line));
    let rows = known.lines.get(&gcov.path);
    let inferred = known.inferred.get(&gcov.path);
    for (&line, &count) in &counts {
        found.executed.gcov += u64::from(count > 0);
        let Some(&other) = theirs.get(&line) else {
            let text = text.get((line as usize).wrapping_sub(1)).copied();
            let why = why(line, text, &gcov.functions, rows, known);
            found.only_gcov.entry(why).or_default().push(line);
            if count > 0 {
                *found.executed.absent.entry(why).or_default() += 1;
            }
            continue;
        };
        found.both += 1;
        found.alike += u64::from((count > 0) == (other > 0));
        found.equal += u64::from(count == other);
        found.executed.both += u64::from(count > 0 && other > 0);
        found.executed.equal += u64::from(count > 0 && count == other);
        if inferred.is_some_and(|lines| lines.contains(&line)) {
            found.inferred.0 += 1;
            found.inferred.1 += u64::from((count > 0) == (other > 0));
            if count <= 0 && other > 0 {
                found.wrongly.push(line);
            }
        }
        if count != other {
            let differs = match (count > 0, other > 0) {
                (true, false) => Differs::OnlyGcov,
                (false, true) => Differs::OnlyFlow,
                _ if other < count => Differs::Fewer,
                _ => Differs::More,
            };
            found.differ.push((line, differs));
            if every.get(&line) == Some(&other) {
                found.by_rule.push((line, differs));
            }
        }
    }
    found
}

fn why(
    line: u32,
    text: Option<&str>,
    functions: &[FunctionTotal],
    rows: Option<&HashSet<u32>>,
    known: &Known,
) -> Why {
    let Some(rows) = rows else { return Why::NoDebug };
    if rows.contains(&line) {
        return Why::Unnamed;
    }
    if text.is_some_and(is_label) {
        return Why::Label;
    }
    // Functions made by macros may share lines. It suffices if one of them has code.
    let around = || functions.iter().filter(|f| (f.lines.0..=f.lines.1).contains(&line));
    if around().any(|f| known.functions.contains(f.name.split('.').next().unwrap_or(&f.name))) {
        return Why::Optimised;
    }
    if around().any(|f| (f.lines.0..=f.lines.1).any(|line| rows.contains(&line))) {
        return Why::Inlined;
    }
    Why::Gone
}

/// Returns true if the line is only a label or a brace, and does nothing.
fn is_label(line: &str) -> bool {
    let line = line.split("/*").next().unwrap_or(line).trim();
    let is_name = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_');
    let case = line.strip_prefix("case ").or(line.strip_prefix("default")).is_some();
    case && line.ends_with(':')
        || line.strip_suffix(':').is_some_and(is_name)
        || matches!(line, "{" | "}" | "else" | "else {" | "} else {" | "do {" | "};")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use crate::cover::LineCount;

    fn source(path: &str, counts: &[(u32, i64)], functions: &[(&str, u32, u32)]) -> Source {
        let lines = counts.iter().map(|&(line, count)| LineCount {
            line,
            unexecuted_block: false,
            exceptional: false,
            count,
        });
        let functions = functions.iter().map(|&(name, from, to)| FunctionTotal {
            columns: (0, 0),
            name: name.to_owned(),
            lines: (from, to),
            called: 0,
            returned: 0,
            blocks: (0, 0),
            conditions: (0, 0),
            paths: (0, 0),
        });
        Source {
            path: path.into(),
            lines: lines.collect(),
            functions: functions.collect(),
            branches: Vec::new(),
            conditions: Vec::new(),
        }
    }

    #[test]
    fn each_line_has_its_reason() {
        let functions = [("own", 1, 9), ("inlined", 10, 19), ("gone", 20, 29)];
        let lines = [(1, 5), (2, 5), (3, 0), (4, 1), (5, 1), (11, 1), (12, 1), (21, 0), (40, 1)];
        let gcov = source("/a.c", &lines, &functions);
        let flow = source("/a.c", &[(1, 5), (2, 4), (3, 1), (11, 0), (7, 1)], &[]);
        // By all of gcov's blocks with the line, the second has the flow's count.
        let every = source("/a.c", &[(1, 5), (2, 4), (3, 0), (11, 1)], &[]);
        let known = Known {
            lines: [("/a.c".to_owned(), HashSet::from([1, 2, 3, 11, 40]))].into(),
            functions: ["own".to_owned()].into(),
            inferred: [("/a.c".to_owned(), BTreeSet::from([3]))].into(),
        };
        let text: Vec<&str> = "a\nb\nc\ncase X:\nz = 1;".lines().collect();
        let found = file(&gcov, Some(&flow), Some(&every), &known, &text);
        assert_eq!((found.gcov, found.both, found.alike, found.equal), (9, 4, 2, 1));
        let reasons: Vec<_> = found.only_gcov.into_iter().collect();
        let expected = [
            (Why::Label, vec![4]),
            (Why::Optimised, vec![5]),
            (Why::Inlined, vec![12]),
            (Why::Gone, vec![21]),
            (Why::Unnamed, vec![40]),
        ];
        assert_eq!(reasons, expected);
        assert_eq!(found.only_flow, [7]);
        assert_eq!((found.inferred, &found.wrongly[..]), ((1, 0), &[3][..]));
        let absent = [(Why::Label, 1), (Why::Optimised, 1), (Why::Inlined, 1), (Why::Unnamed, 1)].into();
        assert_eq!(found.executed, Executed { gcov: 7, both: 2, equal: 1, absent });
        assert_eq!(found.only_flow_ran, [7]);
        let differ = [(2, Differs::Fewer), (3, Differs::OnlyFlow), (11, Differs::OnlyGcov)];
        assert_eq!(found.differ, differ);
        assert_eq!(found.by_rule, [(2, Differs::Fewer)]);
        let other = source("/b.c", &[(1, 1)], &[]);
        assert_eq!(
            file(&other, None, None, &known, &[]).only_gcov.keys().collect::<Vec<_>>(),
            [&Why::NoDebug]
        );
    }

    #[test]
    fn labels_do_nothing() {
        for line in ["case 'a':", "default:", "out:", "} else {", "case A ... B: /* all */"] {
            assert!(is_label(line), "{line}");
        }
        for line in ["case 1: return 2;", "a ? b : c;", "x = 1;", "if (a)"] {
            assert!(!is_label(line), "{line}");
        }
    }
}
