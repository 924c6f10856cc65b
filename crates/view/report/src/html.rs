// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTML report: one file with the page's program, its style and the data. It works from `file://` on a machine
//! without a network. The comparison of two runs is another page of this kind.
//!
//! Input: manifest and profile. Output: the file's text. The program is built from `ui/` and stored here as `assets/`,
//! so building kprism needs no Node. The data are pruned to stay within a [`Budget`]; the page states what was folded.
//! Names are untrusted. The data are JSON in which every `<` is escaped, so nothing in them can end the script element.
//! A content security policy also prevents the page from loading or sending anything.

mod compare;
mod durations;
mod embed;
mod histogram;
mod intervals;
mod names;
mod prune;
mod trees;

use crate::diff::{Diff, Scale};
use crate::header::Header;
use askama::Template;
use kprism_profile::{Profile, Times};
use kprism_store::Manifest;
use serde::Serialize;

/// Limits on the embedded data. The default keeps a file below 5 MB, usually far below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Maximum of calling contexts in the tree of all tasks.
    pub contexts: usize,
    /// Maximum of calling contexts over all trees of single tasks.
    pub task_contexts: usize,
    /// Maximum of calling contexts over all trees of single system calls.
    pub syscall_contexts: usize,
    /// Maximum of tasks, and of system calls, with their own tree.
    pub trees: usize,
    /// Maximum of rows of the function table, for all tasks together.
    pub functions: usize,
    /// Maximum of rows over the function tables of single tasks.
    pub task_functions: usize,
    /// Maximum of rows over the system call tables of single tasks.
    pub task_syscalls: usize,
    /// Maximum of decode errors listed.
    pub errors: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            contexts: 20_000,
            task_contexts: 20_000,
            syscall_contexts: 15_000,
            trees: 64,
            functions: 6_000,
            task_functions: 16_000,
            task_syscalls: 3_000,
            errors: 500,
        }
    }
}

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    title: &'a str,
    generator: &'a str,
    css: &'a str,
    js: &'a str,
    data: &'a str,
}

/// Errors in making a report.
#[derive(Debug, thiserror::Error)]
pub enum HtmlError {
    /// The data could not be written as JSON.
    #[error("embedding the data: {0}")]
    Json(#[from] serde_json::Error),
    /// The page could not be filled in.
    #[error("filling in the page: {0}")]
    Template(#[from] askama::Error),
}

/// Renders the report as one file.
///
/// # Errors
/// [`HtmlError`]; neither kind depends on the profile.
pub fn render(manifest: &Manifest, profile: &Profile, budget: &Budget) -> Result<String, HtmlError> {
    let header = Header::new(manifest, profile);
    report(&header, embed::Data::new(&header, profile, None, budget))
}

/// Renders the report of a run of durations. `times` must be those of the profile.
///
/// # Errors
/// As [`render`].
pub fn render_durations(
    manifest: &Manifest,
    profile: &Profile,
    times: &Times,
    budget: &Budget,
) -> Result<String, HtmlError> {
    let header = Header::new(manifest, profile);
    let cost = manifest.durations.tracing_cost;
    report(&header, embed::Data::new(&header, profile, Some((times, cost.as_ref())), budget))
}

fn report(header: &Header, data: embed::Data) -> Result<String, HtmlError> {
    let title = if header.command.is_empty() { "imported trace" } else { &header.command };
    page(title, include_str!("../assets/report.css"), include_str!("../assets/report.js"), &data)
}

/// Renders two runs side by side, as one file. `paths` are the runs' folders, `name` is the compared part.
///
/// # Errors
/// As [`render`].
pub fn render_diff(
    diff: &Diff,
    scale: Scale,
    headers: [&Header; 2],
    paths: &[String; 2],
    name: &str,
) -> Result<String, HtmlError> {
    let data = compare::Data::new(diff, scale, headers, paths, name);
    let title = format!("{name}: {} against {}", paths[1], paths[0]);
    page(&title, include_str!("../assets/diff.css"), include_str!("../assets/diff.js"), &data)
}

/// Renders a page from its data, program and style.
pub(crate) fn page(title: &str, css: &str, js: &str, data: &impl Serialize) -> Result<String, HtmlError> {
    let data = inert(&serde_json::to_string(data)?);
    let generator = concat!("kprism ", env!("CARGO_PKG_VERSION"));
    Ok(Page { title, generator, css, js, data: &data }.render()?)
}

/// Escapes JSON such that it has the same value, but no meaning to an HTML parser. `<`, `>` and `&` occur only inside
/// JSON strings, where an escape can replace them.
fn inert(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + json.len() / 50);
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            _ => out.push(c),
        }
    }
    out
}
