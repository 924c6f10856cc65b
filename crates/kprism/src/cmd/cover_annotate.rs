// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism annotate` of coverage: a source file, some of its lines, or a function, with counts.
//!
//! In: what the command line names, and the coverage. Out: text or JSON; what is missing or guessed in the counts is told
//! beside them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use kprism_gcov::cover::{FunctionTotal, Source};
use kprism_gcov::path::absolute;
use kprism_gcov::{Cover, demangled};
use kprism_image::glob::glob;
use kprism_profile::units::{grouped, printable};
use kprism_report::Style;
use kprism_report::cover::{self, source};
use kprism_store::Fate;
use serde_json::json;

use super::cover::{Asked, load_told, short_text};
use super::report::print_json;
use super::strict::{StrictArgs, bad, judge_own};
use crate::exit::Outcome;
use kprism_session::Progress;
use kprism_session::cover::{Loaded, Options, is_flow};
use kprism_session::flow_cover::CHANGED;
use kprism_session::source_files::{self, Found};

/// Options of `annotate` on a source file.
pub struct Annotate<'a> {
    /// The file, `FILE:LINE`, `FILE:FROM-TO`, or a function.
    pub what: &'a str,
    /// A line for each branch and call.
    pub branches: bool,
    /// As JSON.
    pub json: bool,
    /// How text is drawn.
    pub style: Style,
    /// Whether something missing is an error.
    pub strict: StrictArgs,
}

/// Lines around one that is asked for.
const AROUND: u32 = 10;

/// Lines that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lines {
    /// First and last line that are shown.
    shown: (u32, u32),
    /// The first one that was named.
    first: u32,
}

const ALL: Lines = Lines { shown: (1, u32::MAX), first: 1 };

/// `kprism annotate FILE` of a run with coverage.
pub fn annotate(
    input: &Path,
    (from, who): Asked<'_>,
    view: &Annotate<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let (name, lines) = split(view.what)?;
    let from = Options { shows_text: true, ..from.clone() };
    let Loaded { cover, runs, mut account, built, inferred, .. } = load_told(input, (&from, who), progress)?;
    let nothing = |account| judge_own(view.strict, &[(input, account)], Outcome::NothingMatched, progress);
    let (found, lines) = match find(&cover, name, lines)? {
        Which::One(found, lines) => (found, lines),
        Which::Several(functions) => {
            several(view, &cover, &functions, out)?;
            return nothing(&account);
        }
        Which::None => {
            progress.say(&format!(
                "kprism: {name}: no such source file or function; `kprism report cover --each file` lists them"
            ));
            return nothing(&account);
        }
    };
    let path = cover.shown(&found.path);
    let file = source_files::of_source(found, from.source_dir.as_deref());
    let changed = file.changed(&found.path, &built);
    match &file {
        Found::Short(place, lines) => {
            progress.say(&format!("kprism: note: {}", short_text(place, *lines)));
        }
        Found::Missing if !view.json => {
            progress.say(&format!("kprism: note: {}: no source; --source-dir names its folder", found.path));
        }
        Found::Missing | Found::Text { .. } => {}
    }
    if let Some(changed) = &changed {
        progress.say(&format!("kprism: note: {changed}"));
    }
    if !is_flow(input, &from) {
        account =
            account.at(Fate::Guessed, CHANGED, u64::from(changed.is_some()), changed.into_iter().collect());
    }
    let text = file.text();
    let code = found.lines.last().map_or(0, |line| line.line);
    let last =
        text.as_ref().map_or(0, |text| u32::try_from(text.lines().count()).unwrap_or(u32::MAX)).max(code);
    if lines.first > last {
        let end = if text.is_some() { "ends at" } else { "has no code after" };
        progress.say(&format!("kprism: {path}: {end} line {last}"));
        return nothing(&account);
    }
    let inferred = inferred.map(|mut all| all.remove(&found.path).unwrap_or_default());
    let shown = source::Shown {
        lines: lines.shown,
        branches: view.branches,
        runs: runs.as_ref(),
        inferred: inferred.as_ref(),
    };
    if view.json {
        let mut value = source::to_json(path, found, shown);
        value["account"] = json!(account);
        print_json(&value, out)?;
    } else {
        writeln!(out, "{}\n{}", view.style.bold(path), cover::summary(&found.totals()))?;
        write!(out, "{}", source::header(shown, view.style))?;
        write!(out, "{}", source::to_text(found, text.as_deref(), shown, view.style))?;
        if let Some(reason) = bad(&account) {
            writeln!(out, "\n{}", view.style.alert(&format!("not whole: {reason}")))?;
        }
    }
    judge_own(view.strict, &[(input, &account)], Outcome::Done, progress)
}

/// The source or the functions that a name stands for.
enum Which<'a> {
    One(&'a Source, Lines),
    Several(Vec<(&'a Source, &'a FunctionTotal)>),
    None,
}

/// The file, and which lines of it.
fn find<'a>(cover: &'a Cover, name: &str, lines: Option<Lines>) -> Result<Which<'a>> {
    let plain = absolute(None, name);
    let mut found: Vec<&Source> = Vec::new();
    for source in &cover.sources {
        let path = cover.shown(&source.path);
        if path == plain || source.path == plain {
            return Ok(Which::One(source, lines.unwrap_or(ALL)));
        }
        if path.strip_suffix(plain.as_str()).is_some_and(|rest| rest.ends_with('/')) {
            found.push(source);
        }
    }
    match found[..] {
        [one] => return Ok(Which::One(one, lines.unwrap_or(ALL))),
        // Lines are of a file.
        [] if lines.is_some() => return Ok(Which::None),
        [] => {}
        _ => {
            let names: Vec<&str> = found.iter().map(|source| cover.shown(&source.path)).collect();
            bail!("{name} is several files: {}", names.join(", "))
        }
    }
    let mut functions = named(cover, &|function| is_called(function, &|full| full == name));
    if functions.is_empty() {
        functions = named(cover, &|function| is_called(function, &|full| glob(name, full)));
    }
    Ok(match functions[..] {
        [] => Which::None,
        [(source, function)] => Which::One(source, Lines { shown: function.lines, first: function.lines.0 }),
        _ => Which::Several(functions),
    })
}

/// The functions that are meant. Instances of a template, and what a compiler makes of one function, are one.
fn named<'a>(cover: &'a Cover, is_meant: &dyn Fn(&str) -> bool) -> Vec<(&'a Source, &'a FunctionTotal)> {
    let all = cover.sources.iter().flat_map(|source| source.functions.iter().map(move |f| (source, f)));
    let mut found = BTreeMap::new();
    for (source, function) in all.filter(|(_, function)| is_meant(&function.name)) {
        found.entry((source.path.as_str(), function.lines)).or_insert((source, function));
    }
    found.into_values().collect()
}

/// Whether a function has this name: as the linker knows it, or as its source does, with parameters or without.
fn is_called(function: &str, is: &dyn Fn(&str) -> bool) -> bool {
    let shown = demangled(function);
    is(function) || is(&shown) || shown.split_once('(').is_some_and(|(plain, _)| is(plain))
}

/// Lists the functions that the name could mean.
fn several(
    view: &Annotate<'_>,
    cover: &Cover,
    functions: &[(&Source, &FunctionTotal)],
    out: &mut dyn Write,
) -> Result<()> {
    if view.json {
        let rows = functions.iter().map(|(source, function)| {
            json!({
                "function": function.name, "demangled_name": demangled(&function.name),
                "file": cover.shown(&source.path), "line": function.lines.0, "last_line": function.lines.1,
                "called": function.called,
            })
        });
        return print_json(&json!({ "several": rows.collect::<Vec<_>>() }), out);
    }
    writeln!(out, "{} is several functions; choose one by its lines:", view.what)?;
    for (source, function) in functions {
        let (path, (first, last)) = (cover.shown(&source.path), function.lines);
        let called = grouped(function.called.max(0) as u64);
        let name = printable(&demangled(&function.name));
        writeln!(out, "{called:>15} called  {}:{first}-{last}  {name}", printable(path))?;
    }
    Ok(())
}

/// The name, and the lines behind it: `FILE:12` with some lines around it, or `FILE:12-40`.
fn split(what: &str) -> Result<(&str, Option<Lines>)> {
    let Some((name, text)) = what.rsplit_once(':') else { return Ok((what, None)) };
    let is_lines = |text: &str| text.bytes().all(|letter| letter.is_ascii_digit() || letter == b'-');
    if name.is_empty() || !text.starts_with(|letter: char| letter.is_ascii_digit()) || !is_lines(text) {
        return Ok((what, None));
    }
    let number = |text: &str| match text.parse::<u32>() {
        Ok(0) => bail!("{what}: lines count from 1"),
        Ok(line) => Ok(line),
        Err(_) => bail!("{what}: {text:?} is no line: FILE:LINE or FILE:FROM-TO"),
    };
    let lines = match text.split_once('-') {
        Some((from, to)) => {
            let (from, to) = (number(from)?, number(to)?);
            if from > to {
                bail!("{what}: ends before it begins: {name}:{to}-{from}");
            }
            Lines { shown: (from, to), first: from }
        }
        None => {
            let line = number(text)?;
            Lines { shown: (line.saturating_sub(AROUND).max(1), line.saturating_add(AROUND)), first: line }
        }
    };
    Ok((name, Some(lines)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_behind_a_name() {
        let lines = |what| split(what).map(|(name, lines)| (name, lines.map(|l| (l.shown, l.first))));
        assert_eq!(lines("a.c:12").unwrap(), ("a.c", Some(((2, 22), 12))));
        assert_eq!(lines("a.c:3-9").unwrap(), ("a.c", Some(((3, 9), 3))));
        for name in ["a.c", "ns::f", "std::vector<int>::at", ":7"] {
            assert_eq!(lines(name).unwrap(), (name, None));
        }
        for (what, words) in [
            ("a.c:0", "lines count from 1"),
            ("a.c:9-3", "a.c:3-9"),
            ("a.c:3-", "is no line"),
            ("a.c:99999999999", "is no line"),
        ] {
            let told = lines(what).unwrap_err().to_string();
            assert!(told.contains(words), "{told}");
        }
    }
}
