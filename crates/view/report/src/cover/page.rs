// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage as one HTML file: folders, files, functions, and every source file with its counts.
//!
//! Input: coverage, and the sources' text. Output: the page. It holds the text of a whole kernel's sources, so each
//! file is deflated separately and inflated by the browser when it is opened. So the page opens at once, whatever its
//! size.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use flate2::{Compression, write::DeflateEncoder};
use kprism_cover::counters::Runs;
use kprism_cover::cover::{Source, Way};
use kprism_cover::{Cover, demangled};
use kprism_store::Account;
use serde::Serialize;
use serde_json::{Value, json};

use super::chosen;
use super::source::outcomes;
use crate::html::{HtmlError, page};

/// A page, and the number of sources that it lacks.
#[derive(Debug)]
pub struct Page {
    /// The file's text.
    pub html: String,
    /// Number of source files.
    pub files: usize,
    /// Number of source files whose text could not be read.
    pub without_source: usize,
}

/// The input of the page's program.
#[derive(Serialize)]
struct Data<'a> {
    title: &'a str,
    generator: &'static str,
    objects: u32,
    root: Option<&'a str>,
    runs: &'a [String],
    /// By file: path, its [`numbers`], and for several runs the lines that each executed.
    files: Vec<(&'a str, [u64; 8], Vec<u64>)>,
    /// Deflated, by file: its functions' names, first lines, calls, blocks, executed blocks.
    functions: String,
    /// Deflated, by file: text, lines, branches.
    contents: Vec<String>,
}

/// Renders the page for the files that `filter` selects. `text` reads a source file.
///
/// # Errors
/// As [`crate::html::render`].
pub fn render(
    cover: &Cover,
    runs: Option<&Runs>,
    filter: Option<&str>,
    (title, account): (&str, &Account),
    text: &(dyn Fn(&Source) -> Option<String> + Sync),
) -> Result<Page, HtmlError> {
    let (sources, _) = chosen(cover, filter);
    let (contents, without_source) = contents(&sources, runs, text);
    let functions: Vec<Value> = sources.iter().map(|source| functions_of(source)).collect();
    let data = Data {
        title,
        generator: concat!("kprism ", env!("CARGO_PKG_VERSION")),
        objects: cover.objects,
        root: cover.root.as_deref(),
        runs: runs.map_or(&[], |runs| &runs.names),
        files: sources
            .iter()
            .map(|source| (cover.shown(&source.path), numbers(source), hits_by_run(source, runs)))
            .collect(),
        functions: packed(&json!(functions)),
        contents,
    };
    let (css, js) = (include_str!("../../assets/cover.css"), include_str!("../../assets/cover.js"));
    Ok(Page {
        html: page(title, &[("", Some(account))], &[], (css, js), &data)?,
        files: sources.len(),
        without_source,
    })
}

/// Numbers of lines and executed ones, functions and called ones, branches and taken ones, calls and executed ones.
fn numbers(source: &Source) -> [u64; 8] {
    let totals = source.totals();
    let (lines, functions, calls) = (totals.lines, totals.functions, totals.calls);
    let branches = totals.branches.all;
    [lines.all, lines.hit, functions.all, functions.hit, branches, totals.taken, calls.all, calls.hit]
}

fn hits_by_run(source: &Source, runs: Option<&Runs>) -> Vec<u64> {
    let Some(runs) = runs else { return Vec::new() };
    let mut hits = vec![0; runs.names.len()];
    for &(_, set) in runs.of_source(&source.path) {
        for &run in &runs.sets[set as usize] {
            hits[usize::from(run)] += 1;
        }
    }
    hits
}

fn functions_of(source: &Source) -> Value {
    let all = source.functions.iter();
    json!(
        all.map(|f| json!([demangled(&f.name), f.lines.0, f.called, f.blocks.0, f.blocks.1]))
            .collect::<Vec<_>>()
    )
}

/// The contents of all files, computed on all CPUs.
fn contents(
    sources: &[&Source],
    runs: Option<&Runs>,
    text: &(dyn Fn(&Source) -> Option<String> + Sync),
) -> (Vec<String>, usize) {
    let made: Vec<Mutex<(String, bool)>> = sources.iter().map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((source, place)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    sources.get(index).zip(made.get(index))
                } {
                    let text = text(source);
                    let has_text = text.is_some();
                    let made = (packed(&content(source, runs, text)), has_text);
                    *place.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = made;
                }
            });
        }
    });
    let made =
        made.into_iter().map(|made| made.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner));
    let (contents, has_text): (Vec<String>, Vec<bool>) = made.unzip();
    (contents, has_text.into_iter().filter(|has_text| !has_text).count())
}

/// The contents of a file as flat lists. Lines: number, count, whether a part was not executed, runs. Branches: line,
/// kind, taken, executed. Conditions by line, as text.
fn content(source: &Source, runs: Option<&Runs>, text: Option<String>) -> Value {
    let mut lines: Vec<Value> = Vec::with_capacity(source.lines.len() * 4);
    for line in &source.lines {
        let executed_by = runs.map(|runs| runs.of_line(&source.path, line.line)).unwrap_or_default();
        lines.extend([json!(line.line), json!(line.count), json!(u8::from(line.unexecuted_block))]);
        lines.push(if executed_by.is_empty() { json!(0) } else { json!(executed_by) });
    }
    let mut branches: Vec<i64> = Vec::with_capacity(source.branches.len() * 4);
    for branch in &source.branches {
        let kind = match branch.way {
            Way::Jump => 0,
            Way::Fallthrough => 1,
            Way::Throw => 2,
            Way::Call => 3,
        };
        branches.extend([branch.line.into(), kind, branch.taken, branch.executed]);
    }
    let conditions = source.conditions.chunk_by(|a, b| a.line == b.line).map(|same| {
        let told = same.iter().enumerate().map(|(index, condition)| outcomes(index, condition.seen));
        json!([same[0].line, told.collect::<Vec<_>>()])
    });
    json!({
        "text": text, "lines": lines, "branches": branches, "conditions": conditions.collect::<Vec<_>>(),
    })
}

/// Encodes JSON, deflated, in base64.
fn packed(value: &Value) -> String {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    let written = serde_json::to_writer(&mut encoder, value).is_ok();
    let bytes = if written { encoder.finish().unwrap_or_default() } else { Vec::new() };
    base64(&bytes)
}

/// Encodes bytes in base64 (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let at = |index: usize| u32::from(part.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for letter in 0..4 {
            let value = bits >> (18 - 6 * letter) & 63;
            out.push(if letter <= part.len() { char::from(LETTERS[value as usize]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_of_all_lengths() {
        for (bytes, text) in [("", ""), ("M", "TQ=="), ("Ma", "TWE="), ("Man", "TWFu"), ("ManM", "TWFuTQ==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
