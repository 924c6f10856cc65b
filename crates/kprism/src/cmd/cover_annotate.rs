// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism annotate` of coverage: a source file, some of its lines, or a function, with counts.
//!
//! In: what the command line names, and the coverage. Out: text or JSON; what is missing or guessed in the counts is told
//! beside them.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use kprism_report::cover::{self, source};
use kprism_report::header::head;
use kprism_report::{Style, shape};

use super::cover::Selection;
use super::output::print_json;
use super::strict::{StrictArgs, judge_own};
use crate::exit::Outcome;
use kprism_session::Progress;
use kprism_session::cover::load_and_tell;
use kprism_session::cover::place::{Which, find, split};
use kprism_session::cover::{Loaded, Options, SourceText};

/// Options of `annotate` on a source file.
pub struct Annotate<'a> {
    /// The file, `FILE:LINE`, `FILE:FROM-TO`, or a function.
    pub what: &'a str,
    /// A line for each branch and call.
    pub branches: bool,
    /// As JSON.
    pub json: bool,
    /// Style of the text.
    pub style: Style,
    /// Whether something missing is an error.
    pub strict: StrictArgs,
}

/// `kprism annotate FILE` of a run with coverage.
pub fn annotate(
    input: &Path,
    (from, who): Selection<'_>,
    view: &Annotate<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let (name, lines) = split(view.what)?;
    let from = Options { shows_text: true, ..from.clone() };
    let mut loaded = load_and_tell(input, &from, who, progress)?;
    let cover = std::mem::take(&mut loaded.cover);
    let nothing = |account| judge_own(view.strict, &[(input, account)], Outcome::NothingMatched, progress);
    let (found, lines) = match find(&cover, name, lines)? {
        Which::One(found, lines) => (found, lines),
        Which::Several(functions) => {
            match view.json {
                true => print_json(&source::several_json(&cover, &functions), out)?,
                false => write!(out, "{}", source::several(view.what, &cover, &functions))?,
            }
            return nothing(&loaded.account);
        }
        Which::None => {
            progress.say(&format!(
                "kprism: {name}: no such source file or function; `kprism report cover --each file` lists them"
            ));
            return nothing(&loaded.account);
        }
    };
    let path = cover.shown(&found.path);
    let SourceText { text, last, short, missing, changed } =
        loaded.read_source(found, from.source_dir.as_deref());
    for remark in short.into_iter().chain(missing.filter(|_| !view.json)).chain(changed) {
        progress.note(&remark);
    }
    if lines.first > last {
        let end = if text.is_some() { "ends at" } else { "has no code after" };
        progress.say(&format!("kprism: {path}: {end} line {last}"));
        return nothing(&loaded.account);
    }
    let Loaded { runs, account, inferred, .. } = loaded;
    let inferred = inferred.map(|mut all| all.remove(&found.path).unwrap_or_default());
    let shown = source::Shown {
        lines: lines.shown,
        branches: view.branches,
        runs: runs.as_ref(),
        inferred: inferred.as_ref(),
    };
    if view.json {
        let mut value = source::to_json(path, found, shown);
        value["run"] = shape::run(None, Some(&account));
        print_json(&value, out)?;
    } else {
        write!(out, "{}", head(Some(&account), view.style))?;
        writeln!(out, "{}\n{}", view.style.bold(path), cover::summary(&found.totals()))?;
        write!(out, "{}", source::header(shown, view.style))?;
        write!(out, "{}", source::to_text(found, text.as_deref(), shown, view.style))?;
    }
    judge_own(view.strict, &[(input, &account)], Outcome::Done, progress)
}
