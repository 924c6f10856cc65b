// SPDX-License-Identifier: MIT OR Apache-2.0
//! An annotated function for a page that shows its source beside its instructions.
//!
//! In: the counts of a function's instructions, its debug information, the texts of its sources. Out: the JSON of
//! `kprism annotate --json` with the source files line by line: how often each line ran and how its branches went. The page
//! only draws, so it cannot disagree with the terminal. What is missing is said, with the remedy.

use std::collections::BTreeMap;
use std::path::Path;

use kprism_flow::replay::count::Counts;
use kprism_image::insn::Kind;
use kprism_image::symbols::FunctionId;
use kprism_profile::units::printable;
use kprism_profile::{Filter, Profile};
use kprism_report::rows;
use kprism_session::annotate::find_source;
use kprism_session::cover::DebugFiles;
use kprism_session::cover::sources::{Built, find};
use kprism_session::flow::Loaded;
use kprism_store::Run;
use serde_json::{Value, json};

use super::Annotation;
use crate::disasm::Syntax;

/// Lines without code are shown between the first and the last line with code, if these are no farther apart.
const MAX_SPAN: u32 = 1000;

/// Places of debug information and sources.
#[derive(Debug, Clone, Default)]
pub struct Places<'a> {
    /// Files with debug information that the user named.
    pub debug: DebugFiles,
    /// Folder of the sources, if they are not where they were compiled.
    pub source_dir: Option<&'a Path>,
}

/// A line's counts.
#[derive(Debug, Default)]
struct Row {
    /// Of its instruction that ran most often. Of a line that only holds inlined calls: of the first instruction of these.
    count: u64,
    /// Executions of all its instructions.
    insns: u64,
    /// All its code was inlined from other lines.
    inlined: bool,
    /// Offset, times taken and executions of its conditional branches.
    branches: Vec<(u64, u64, u64)>,
}

/// The functions of a profile that executed the most instructions themselves, at most `limit`, as name and module.
pub fn hottest(profile: &Profile, limit: usize) -> Vec<(String, String)> {
    let mut all = rows::functions(profile, &Filter::default());
    all.retain(|row| row.self_insns > 0);
    all.sort_by_key(|row| (std::cmp::Reverse(row.self_insns), row.func));
    all.truncate(limit);
    let name = |row: &rows::FunctionRow| {
        let func = &profile.funcs[row.func as usize];
        (func.name.clone(), func.module.clone())
    };
    all.iter().map(name).collect()
}

/// The annotation of `func` as JSON, with its sources.
pub fn with_sources(
    run: &Run,
    loaded: &Loaded,
    func: u32,
    counts: &Counts,
    places: &Places<'_>,
    syntax: Syntax,
) -> Value {
    let symbols = &loaded.symbols;
    let (source, fault) = match find_source(run, loaded, func, &places.debug) {
        Ok(source) => (source, None),
        Err(reason) => (None, Some(reason)),
    };
    let annotation = Annotation::new(func, counts, symbols, source.as_ref(), syntax);
    let mut value = annotation.to_json(symbols);
    let mut notes: Vec<String> = Vec::new();
    let built = Built::of_run(run.dir());
    let files: Vec<Value> = annotation
        .rows()
        .iter()
        .map(|(path, rows)| {
            let last = rows.keys().next_back().copied().unwrap_or(0);
            let found = find(path, last, places.source_dir);
            notes.extend(found.changed(path, &built));
            notes.extend(found.short());
            file(path, rows, found.text().as_deref())
        })
        .collect();
    value["missing"] = match (&source, fault) {
        (_, Some(fault)) => Some(format!("No source lines: {}.", printable(&fault))),
        (None, None) => Some(no_debug_information(loaded, func)),
        (Some(_), None) if files.is_empty() => Some(
            "The debug information has no lines for this function: its file was compiled without -g.".into(),
        ),
        (Some(_), None) if files.iter().all(|file| file["has_text"] == false) => {
            Some("The source files are not on this machine: --source-dir DIR names their folder.".into())
        }
        _ => None,
    }
    .into();
    value["notes"] = notes.iter().map(|note| printable(note)).collect();
    value["sources"] = files.into();
    value
}

/// Names the debug information that a function lacks, and where it would come from.
fn no_debug_information(loaded: &Loaded, func: u32) -> String {
    let function = loaded.symbols.function(FunctionId(func));
    let module = printable(&function.module);
    match (function.kernel, function.module == "[kernel]") {
        (true, true) => {
            "Instructions only: no debug information of this kernel was found. Install its debug package \
            (on Debian linux-image-…-dbg), or name the file: --vmlinux FILE."
                .to_owned()
        }
        (true, false) => format!(
            "Instructions only: no debug information of {module} was found. Load the module's file by lab run --module, or \
             name it: kprism annotate --module-file FILE."
        ),
        _ => format!(
            "Instructions only: {module} has no debug information. Compile it with -g, or name a folder with debug \
             information by build id: --debug-dir DIR."
        ),
    }
}

impl Annotation<'_> {
    /// The lines of each source file.
    fn rows(&self) -> BTreeMap<&str, BTreeMap<u32, Row>> {
        let mut files: BTreeMap<&str, BTreeMap<u32, Row>> = BTreeMap::new();
        for line in &self.lines {
            let Some(own) = line.frames.first() else { continue };
            let row = files.entry(&own.file).or_default().entry(own.line).or_default();
            row.count = row.count.max(line.site.count);
            row.insns = row.insns.saturating_add(line.site.count);
            if let Kind::CondJump { .. } = line.site.kind {
                row.branches.push((line.site.offset, line.site.taken, line.site.count));
            }
        }
        for line in &self.lines {
            for frame in line.frames.iter().skip(1) {
                let new = || Row { count: line.site.count, inlined: true, ..Row::default() };
                files.entry(&frame.file).or_default().entry(frame.line).or_insert_with(new);
            }
        }
        files
    }
}

/// A source file as JSON. Without its text it has the lines with code only.
fn file(path: &str, rows: &BTreeMap<u32, Row>, text: Option<&str>) -> Value {
    let first = rows.keys().next().copied().unwrap_or(0);
    let last = rows.keys().next_back().copied().unwrap_or(0);
    let is_near = last - first <= MAX_SPAN;
    let texts: Vec<&str> = text.map(|text| text.lines().take(last as usize).collect()).unwrap_or_default();
    let numbers: Vec<u32> = match is_near && text.is_some() {
        true => (first..=last).collect(),
        false => rows.keys().copied().collect(),
    };
    let lines = numbers.into_iter().map(|number| {
        let text = number.checked_sub(1).and_then(|at| texts.get(at as usize));
        let mut line = json!({ "line": number });
        if let Some(text) = text {
            line["text"] = shown(text).into();
        }
        if let Some(row) = rows.get(&number) {
            line["count"] = row.count.into();
            line["insns"] = row.insns.into();
            if row.inlined {
                line["inlined"] = true.into();
            }
            if !row.branches.is_empty() {
                let branch = |&(offset, taken, count): &(u64, u64, u64)| {
                    json!({"offset": offset.cast_signed(), "taken": taken, "count": count})
                };
                line["branches"] = row.branches.iter().map(branch).collect();
            }
        }
        line
    });
    json!({"file": path, "has_text": text.is_some(), "lines": lines.collect::<Vec<_>>()})
}

/// A line of source with its tabs as blanks and without what could command anything.
fn shown(text: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for c in text.trim_end().chars() {
        let width = if c == '\t' { 8 - column % 8 } else { 1 };
        match c {
            '\t' => out.extend(std::iter::repeat_n(' ', width)),
            _ => out.push(c),
        }
        column += width;
    }
    printable(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tabs_end_at_multiples_of_eight_and_nothing_commands() {
        assert_eq!(shown("\tif (a)\tb;  "), "        if (a)  b;");
        assert!(!shown("a\u{1b}[2Jb\u{202e}").contains(['\u{1b}', '\u{202e}']));
    }

    #[test]
    fn lines_between_those_with_code_are_shown_if_they_are_few() {
        let rows = BTreeMap::from([(2, Row { count: 7, insns: 9, ..Row::default() }), (4, Row::default())]);
        let near = file("a.c", &rows, Some("one\ntwo\nthree\nfour\nfive\n"));
        assert_eq!(near["lines"].as_array().unwrap().len(), 3);
        assert_eq!(near["lines"][0], json!({"line": 2, "text": "two", "count": 7, "insns": 9}));
        assert_eq!(near["lines"][1], json!({"line": 3, "text": "three"}));
        let rows = BTreeMap::from([(1, Row::default()), (u32::MAX, Row::default())]);
        assert_eq!(file("a.c", &rows, Some("one"))["lines"].as_array().unwrap().len(), 2);
        assert_eq!(file("a.c", &rows, None)["has_text"], false);
    }
}
