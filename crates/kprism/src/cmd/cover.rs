// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage that is read with its remarks, for `report` and others; its part in `diff` and in recordings.

use std::collections::BTreeMap;
use std::io::{Read as _, Write};
use std::path::Path;

use anyhow::{Context, Result};
use kprism_report::cover::{self, diff, patch};
use kprism_report::header::head;
use kprism_report::{Style, Table, shape};
use serde_json::json;

use super::output::{ROWS, Shown, print_json, write_file};
use super::strict::{StrictArgs, judge_own};
use crate::exit::Outcome;
use kprism_session::Progress;
use kprism_session::cover::{Loaded, Options, Part, load, load_and_tell};

/// Objects left out that are named.
const NAMED: usize = 5;

/// The part of the coverage that is shown, and the form of the tables.
pub struct View<'a> {
    /// Folder, file or pattern.
    pub path: Option<&'a str>,
    /// The table's order and form.
    pub shown: Shown<'a>,
    /// Whether something missing is an error.
    pub strict: StrictArgs,
}

/// Notes on single files, the first ones.
pub fn notes(texts: &[String], progress: &Progress) {
    for text in texts.iter().take(NAMED) {
        progress.note(text);
    }
    if texts.len() > NAMED {
        progress.note(&format!("so too {} more", texts.len() - NAMED));
    }
}

/// Says that a path is none of a source.
pub fn no_match(path: Option<&str>, progress: &Progress) {
    match path {
        Some(path) => progress.say(&format!("kprism: no source matches {path}; --each file lists them")),
        None => progress.say("kprism: no source file in it"),
    }
}

/// The source of coverage, and the tasks.
pub type Selection<'a> = (&'a Options, &'a Part);

/// Reads coverage for a view that shows no sources.
fn without_sources(input: &Path, (from, who): Selection<'_>, progress: &Progress) -> Result<Loaded> {
    from.refuse_source_dir(input)?;
    load_and_tell(input, from, who, progress)
}

/// A recording's remarks on itself: its totals, what the reading added, and the folder or file that was asked for.
pub fn tell(run: &Path, show: Option<&str>, progress: &Progress, out: &mut dyn Write) -> Result<()> {
    let loaded = load(run, &Options::default(), &Part::default(), progress)?;
    let objects = loaded.cover.objects;
    progress.say(&format!(
        "{}: {objects} objects\n{}",
        run.display(),
        cover::summary(&loaded.cover.totals()).trim_end()
    ));
    loaded.of_recording().iter().for_each(|text| progress.say(text));
    if show.is_some() {
        let mut table = cover::executed(&loaded.cover, show);
        table.limit(ROWS);
        table.select(&cover::SHOWN);
        write!(out, "{}", table.to_text(Style::default()))?;
    }
    Ok(())
}

/// `kprism diff` of two runs with coverage.
pub fn of_two(
    old: &Path,
    new: &Path,
    from: Selection<'_>,
    view: &View<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let paths = (old, new);
    let Loaded { cover: old, account: of_old, .. } = without_sources(old, from, progress)?;
    let Loaded { cover: new, account: of_new, .. } = without_sources(new, from, progress)?;
    let accounts = [(paths.0, &of_old), (paths.1, &of_new)];
    let changes = diff::changes(&old, &new, view.path);
    let table = diff::table(&changes);
    let ((of_old_files, before), (of_new_files, after)) =
        (cover::chosen(&old, view.path), cover::chosen(&new, view.path));
    if of_old_files.is_empty() && of_new_files.is_empty() {
        no_match(view.path, progress);
    }
    if view.shown.json {
        let mut value = diff::to_json(&before, &after, &changes);
        value["runs"] = json!({"old": {"account": of_old}, "new": {"account": of_new}});
        let outcome = show(table, view, value, out)?;
        return judge_own(view.strict, &accounts, outcome, progress);
    }
    for (side, account) in [("OLD", &of_old), ("NEW", &of_new)] {
        write!(out, "{side} {}", head(Some(account), view.shown.style))?;
    }
    writeln!(out, "{}", diff::summary(&before, &after, &changes))?;
    let outcome = show(table, view, json!({}), out)?;
    judge_own(view.strict, &accounts, outcome, progress)
}

/// `kprism diff --html` of two runs with coverage.
pub fn page_of_two(
    paths: [&Path; 2],
    from: Selection<'_>,
    view: &View<'_>,
    file: &Path,
    progress: &Progress,
) -> Result<Outcome> {
    let old = without_sources(paths[0], from, progress)?;
    let new = without_sources(paths[1], from, progress)?;
    let compared = kprism_export::compare::of_coverage(paths, [&old, &new], view.path)?;
    let empty = compared.sections.iter().all(|section| section.table.rows.is_empty());
    write_file(file, compared.render().context("HTML comparison")?, progress)?;
    let accounts = [(paths[0], &old.account), (paths[1], &new.account)];
    judge_own(view.strict, &accounts, Outcome::of_rows(empty), progress)
}

/// The lines that a patch adds, by file; `-` is standard input.
///
/// # Errors
/// It cannot be read, or is no diff.
pub fn read_patch(file: &Path) -> Result<BTreeMap<String, Vec<u32>>> {
    let mut text = Vec::new();
    let (name, read) = match file.to_str() {
        Some("-") => ("standard input".into(), std::io::stdin().lock().read_to_end(&mut text).map(drop)),
        _ => (file.display().to_string(), std::fs::read(file).map(|bytes| text = bytes)),
    };
    read.with_context(|| name.clone())?;
    patch::added(&String::from_utf8_lossy(&text)).context(name)
}

/// `kprism diff --patch`: what was executed of the lines a patch adds.
pub fn of_patch(
    input: &Path,
    file: &Path,
    from: Selection<'_>,
    view: &View<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let added = read_patch(file)?;
    if added.is_empty() {
        progress.say("kprism: the patch adds no line");
    }
    let Loaded { cover, account, .. } = without_sources(input, from, progress)?;
    let found = patch::found(&cover, &added, view.path);
    let totals = patch::totals(&found);
    let account = patch::account(account, &found);
    if found.is_empty()
        && let Some(path) = view.path
    {
        progress.say(&format!("kprism: no file of the patch matches {path}"));
    }
    let mut value = json!({});
    if view.shown.json {
        value["totals"] = totals.to_json();
        value["run"] = shape::run(None, Some(&account));
    } else if !found.is_empty() {
        write!(out, "{}", head(Some(&account), view.shown.style))?;
        writeln!(out, "{}\n", totals.to_text())?;
    }
    let outcome = show(patch::table(&found), view, value, out)?;
    judge_own(view.strict, &[(input, &account)], outcome, progress)
}

fn show(
    mut table: Table,
    view: &View<'_>,
    mut value: serde_json::Value,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let outcome = Outcome::of_rows(view.shown.arrange(&mut table)?);
    if view.shown.json {
        value["rows"] = table.to_json();
        value["hidden"] = table.hidden.into();
        print_json(&value, out)?;
    } else {
        diff::shorten(&mut table);
        write!(out, "{}", table.to_text(view.shown.style))?;
    }
    Ok(outcome)
}
