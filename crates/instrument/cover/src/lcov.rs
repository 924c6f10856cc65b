// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads lcov's tracefile: coverage that another program worked out, as `llvm-cov export -format=lcov` or `geninfo`.
//!
//! Input: the file's text. Output: a [`Cover`], with what the text does not say and what was not understood. Records of
//! one source, also of several tests, are added up, as `lcov -a` does. Source: geninfo(1), "FILES", of lcov 1 and 2.
//!
//! A tracefile has less than counters: no calls, no blocks, no returns, and of a branch only how often it was taken.
//! A branch's decision ran at least as often as its branches were taken together.

use std::collections::{BTreeMap, HashMap};

use crate::cover::{BranchCount, Cover, FunctionTotal, LineCount, Source, Way};
use crate::path::root_of;

/// A tracefile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tracefile {
    /// Its coverage. [`Cover::objects`] is 0, and so are a function's blocks: they are not known.
    pub cover: Cover,
    /// Number of records (`SF` to `end_of_record`).
    pub records: u64,
    /// Number of decisions, whose executions are the sum of their branches.
    pub decisions: u64,
    /// Lines of kinds that are not known, with the first ones.
    pub unknown: (u64, Vec<String>),
    /// Counts of functions whose line no `FN` tells, which are left out, with the first ones.
    pub placeless: (u64, Vec<String>),
}

/// Why a text is no tracefile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {expected}")]
pub struct LcovError {
    /// Line number, from 1.
    pub line: usize,
    /// The form expected there, and the text found.
    pub expected: String,
}

/// Kinds of lines that add nothing: names of tests, versions, and sums that follow from the other lines.
const SUMS: [&str; 10] = ["TN", "VER", "FNF", "FNH", "BRF", "BRH", "LF", "LH", "MCF", "MCH"];

/// Lines that are quoted, of each kind of trouble.
const NAMED: usize = 5;

/// Whether a file's beginning is that of a tracefile: its first line that says something is `TN:` or `SF:`.
pub fn begins(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with(b"#"));
    first.is_some_and(|line| line.starts_with(b"TN:") || line.starts_with(b"SF:"))
}

#[derive(Debug, Default)]
struct Function {
    lines: (u32, u32),
    called: i64,
}

/// Of a source: a block of branches has a number, or a number and an `e` (of an exception).
#[derive(Debug, Default)]
struct Gathered {
    lines: BTreeMap<u32, i64>,
    functions: BTreeMap<String, Function>,
    /// By line, block, and whether it is of an exception.
    branches: BTreeMap<(u32, u32, bool), Vec<Branch>>,
}

/// A branch by its name, and how often it was taken, if its line ran.
type Branch = (String, Option<i64>);

/// Reads a tracefile.
///
/// # Errors
/// A line of a known kind is not as it has to be, is outside a record, or the text ends within a record.
pub fn read(bytes: &[u8]) -> Result<Tracefile, LcovError> {
    let text = String::from_utf8_lossy(bytes);
    let mut found = Tracefile::default();
    let mut sources: BTreeMap<String, Gathered> = BTreeMap::new();
    let mut open: Option<(&str, usize)> = None;
    // lcov 2 names functions by numbers within a record.
    let mut numbered: HashMap<&str, (u32, u32)> = HashMap::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim_end)) {
        let error = |expected: String| LcovError { line: number, expected };
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "end_of_record" {
            if open.take().is_none() {
                return Err(error("end_of_record without an SF before it".into()));
            }
            numbered.clear();
            continue;
        }
        let Some((kind, rest)) = line.split_once(':') else {
            return Err(error(format!("expected KIND:VALUES or end_of_record, not {}", quoted(line))));
        };
        if kind == "SF" {
            if let Some((path, from)) = open {
                return Err(error(format!("SF before the end_of_record of {} (line {from})", quoted(path))));
            }
            open = Some((rest, number));
            found.records += 1;
            sources.entry(rest.to_owned()).or_default();
            continue;
        }
        if SUMS.contains(&kind) {
            continue;
        }
        let source = open.and_then(|(path, _)| sources.get_mut(path));
        let bad = |form: &str| error(format!("expected {kind}:{form}, not {}", quoted(line)));
        let inside =
            |source| Option::ok_or(source, error(format!("{kind} outside a record: no SF before it")));
        match kind {
            "DA" => {
                // A checksum may follow.
                let mut parts = rest.split(',');
                let place = parts.next().and_then(line_number).zip(parts.next().and_then(count));
                let (line, count) = place.ok_or_else(|| bad("LINE,COUNT"))?;
                let known = inside(source)?.lines.entry(line).or_default();
                *known = known.saturating_add(count);
            }
            "FN" => {
                let form = || bad("LINE,NAME or LINE,LAST,NAME");
                let (first, name) = rest.split_once(',').ok_or_else(form)?;
                let first = line_number(first).ok_or_else(form)?;
                // Names of C++ have commas too, and no digits before the first.
                let (last, name) =
                    match name.split_once(',').and_then(|(last, name)| Some((line_number(last)?, name))) {
                        Some(both) => both,
                        None => (first, name),
                    };
                inside(source)?.functions.entry(name.to_owned()).or_default().lines =
                    (first, last.max(first));
            }
            "FNL" => {
                let mut parts = rest.split(',');
                let place = parts.next().zip(parts.next().and_then(line_number));
                let (index, first) = place.ok_or_else(|| bad("INDEX,LINE or INDEX,LINE,LAST"))?;
                let last = parts.next().and_then(line_number).unwrap_or(first);
                numbered.insert(index, (first, last.max(first)));
                inside(source)?;
            }
            "FNDA" | "FNA" => {
                let form = || bad(if kind == "FNA" { "INDEX,COUNT,NAME" } else { "COUNT,NAME" });
                let (index, rest) = match kind {
                    "FNA" => {
                        rest.split_once(',').map(|(index, rest)| (Some(index), rest)).ok_or_else(form)?
                    }
                    _ => (None, rest),
                };
                let (calls, name) = rest.split_once(',').ok_or_else(form)?;
                let calls = count(calls).ok_or_else(form)?;
                let function = inside(source)?.functions.entry(name.to_owned()).or_default();
                function.called = function.called.saturating_add(calls);
                if let Some(&lines) = index.and_then(|index| numbered.get(index)) {
                    function.lines = lines;
                }
            }
            "BRDA" => {
                let form = || bad("LINE,BLOCK,BRANCH,TAKEN");
                let (line, rest) = rest.split_once(',').ok_or_else(form)?;
                let (block, rest) = rest.split_once(',').ok_or_else(form)?;
                // lcov 2: a branch may be named by its expression, which may have commas.
                let (name, taken) = rest.rsplit_once(',').ok_or_else(form)?;
                let (throws, block) = match block.strip_prefix('e') {
                    Some(block) => (true, block),
                    None => (false, block),
                };
                let taken = if taken == "-" { None } else { Some(count(taken).ok_or_else(form)?) };
                let place = line_number(line).zip(block.parse::<u32>().ok()).ok_or_else(form)?;
                let all = inside(source)?.branches.entry((place.0, place.1, throws)).or_default();
                match all.iter_mut().find(|(known, _)| known == name) {
                    Some((_, known)) => {
                        *known = match (*known, taken) {
                            (Some(a), Some(b)) => Some(a.saturating_add(b)),
                            (a, b) => a.or(b),
                        }
                    }
                    None => all.push((name.to_owned(), taken)),
                }
            }
            _ => {
                inside(source)?;
                remark(&mut found.unknown, || format!("line {number}: {}", quoted(line)));
            }
        }
    }
    if let Some((path, line)) = open {
        let expected = format!("the file ends before the end_of_record of {}: it is cut off", quoted(path));
        return Err(LcovError { line, expected });
    }
    if found.records == 0 {
        return Err(LcovError { line: 1, expected: "expected a record, SF:PATH: there is none".into() });
    }
    let mut folders: BTreeMap<String, u32> = BTreeMap::new();
    for path in sources.keys() {
        if let Some((folder, _)) = path.rsplit_once('/').filter(|(folder, _)| folder.starts_with('/')) {
            *folders.entry(folder.to_owned()).or_default() += 1;
        }
    }
    found.cover.root = root_of(&folders);
    found.cover.sources = sources.into_iter().map(|(path, all)| source(path, all, &mut found)).collect();
    Ok(found)
}

fn remark(of: &mut (u64, Vec<String>), text: impl FnOnce() -> String) {
    of.0 += 1;
    if of.1.len() < NAMED {
        of.1.push(text());
    }
}

fn quoted(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    format!("{short:?}")
}

fn line_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&line| line > 0)
}

/// A count; LLVM's go up to 2^64 - 1.
fn count(text: &str) -> Option<i64> {
    let count: i128 = text.parse().ok()?;
    Some(i64::try_from(count).unwrap_or(if count < 0 { i64::MIN } else { i64::MAX }))
}

fn source(path: String, all: Gathered, found: &mut Tracefile) -> Source {
    let mut source = Source { path, ..Source::default() };
    source.lines.extend(all.lines.into_iter().map(|(line, count)| LineCount {
        line,
        unexecuted_block: false,
        exceptional: false,
        count,
    }));
    for (name, Function { lines, called }) in all.functions {
        if lines.0 == 0 {
            remark(&mut found.placeless, || format!("{} in {}", quoted(&name), quoted(&source.path)));
            continue;
        }
        source.functions.push(FunctionTotal {
            name,
            lines,
            columns: (0, 0),
            called,
            returned: 0,
            blocks: (0, 0),
            conditions: (0, 0),
            paths: (0, 0),
        });
    }
    source.functions.sort_by(|a, b| (a.lines.0, &a.name).cmp(&(b.lines.0, &b.name)));
    for ((line, block, throws), branches) in all.branches {
        found.decisions += 1;
        let executed = branches.iter().filter_map(|(_, taken)| *taken).fold(0, i64::saturating_add);
        let of = u16::try_from(branches.len()).unwrap_or(u16::MAX);
        let way = if throws { Way::Throw } else { Way::Jump };
        source.branches.extend((0..of).zip(branches).map(|(place, (_, taken))| BranchCount {
            line,
            function: block,
            of,
            place,
            way,
            taken: taken.unwrap_or(0),
            executed,
        }));
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "TN:\nSF:/w/a.cc\nFN:3,9,f(int, int)\nFN:12,g\nFNDA:2,f(int, int)\nFNDA:0,g\nFNF:2\nFNH:1\n\
                        BRDA:4,0,0,1\nBRDA:4,0,1,-\nBRDA:5,0,0,-\nDA:3,2\nDA:4,2,abc\nDA:12,0\nLF:3\nLH:2\nend_of_record\n\
                        TN:other\nSF:/w/a.cc\nFNDA:1,f(int, int)\nBRDA:4,0,1,3\nDA:4,18446744073709551615\nend_of_record\n\
                        SF:/w/sub/b.c\nFNL:0,7,8\nFNA:0,4,h\nFNA:1,4,nowhere\nMCDC:7,2,t,1,0,a\nDA:7,4\nend_of_record\n";

    #[test]
    fn records_of_a_source_are_added_up() {
        let found = read(BOTH.as_bytes()).unwrap();
        assert_eq!((found.records, found.decisions, found.cover.root.as_deref()), (3, 2, Some("/w")));
        assert_eq!((found.unknown.0, found.placeless.0), (1, 1), "{found:?}");
        let [a, b] = &found.cover.sources[..] else { panic!("{found:?}") };
        let lines: Vec<_> = a.lines.iter().map(|line| (line.line, line.count)).collect();
        assert_eq!(lines, [(3, 2), (4, i64::MAX), (12, 0)]);
        let functions: Vec<_> = a.functions.iter().map(|f| (&f.name[..], f.lines, f.called)).collect();
        assert_eq!(functions, [("f(int, int)", (3, 9), 3), ("g", (12, 12), 0)]);
        let branches: Vec<_> =
            a.branches.iter().map(|b| (b.line, b.place, b.of, b.taken, b.executed)).collect();
        assert_eq!(branches, [(4, 0, 2, 1, 4), (4, 1, 2, 3, 4), (5, 0, 1, 0, 0)]);
        assert_eq!((&b.functions[0].name[..], b.functions[0].lines, b.functions[0].called), ("h", (7, 8), 4));
    }

    #[test]
    fn what_is_none_is_told_by_its_line() {
        for (text, line, says) in [
            ("", 1, "there is none"),
            ("TN:\n", 1, "there is none"),
            ("SF:a\nDA:1,1\n", 1, "cut off"),
            ("SF:a\nSF:b\n", 2, "before the end_of_record"),
            ("DA:1,1\n", 1, "outside a record"),
            ("end_of_record\n", 1, "without an SF"),
            ("SF:a\nDA:0,1\n", 2, "expected DA:LINE,COUNT"),
            ("SF:a\nDA:1\n", 2, "expected DA:LINE,COUNT"),
            ("SF:a\nFN:x,f\n", 2, "expected FN:"),
            ("SF:a\nBRDA:1,0,0,x\n", 2, "expected BRDA:"),
            ("SF:a\nnonsense\n", 2, "expected KIND:VALUES"),
        ] {
            let error = read(text.as_bytes()).unwrap_err();
            assert!(error.line == line && error.expected.contains(says), "{text:?}: {error}");
        }
        assert!(begins(b"\n# a\nTN:\n") && begins(b"SF:x") && !begins(b"\x81profraw") && !begins(b""));
    }
}
