// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTML report: one file with the page's program, its style and the data. It works from `file://` on a machine
//! without a network. The comparison of two runs is another page of this kind.
//!
//! Input: manifest and profile. Output: the file's text. The program is built from `ui/` and stored here as `assets/`,
//! so building kprism needs no Node. The data are pruned to stay within a [`Budget`]; the page states what was folded.
//! Names are untrusted. The data are JSON in which every `<` is escaped, so nothing in them can end the script element.
//! A content security policy also prevents the page from loading or sending anything; a page that [`served`] changes for
//! `kprism-serve` may ask that server.

mod compare;
mod durations;
mod embed;
mod histogram;
mod intervals;
mod names;
mod prune;
mod trees;

use crate::diff::{Diff, Scale};
use crate::environment::Compared;
use crate::header::{self, Header};
use crate::lanes::{self, Lane};
use crate::table::Style;
use askama::Template;
use kprism_profile::units::printable;
use kprism_profile::{Profile, Times};
use kprism_store::{Account, Condition, Manifest};
use serde::Serialize;
use serde_json::Value;

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
    /// Limits of the timeline.
    pub lanes: lanes::detail::Budget,
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
            lanes: lanes::detail::Budget::default(),
        }
    }
}

/// A page draws with the program that is in it, and loads and sends nothing.
pub const POLICY: &str =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:";

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    title: &'a str,
    generator: &'a str,
    policy: &'a str,
    css: &'a str,
    js: &'a str,
    data: &'a str,
    heads: Vec<PageHead>,
}

/// The lines above a page: whether the run is whole.
struct PageHead {
    label: String,
    text: String,
    whole: bool,
}

/// The head on what else two runs differ in; none if they are the same, or nothing is known of it.
impl From<&Compared> for PageHead {
    fn from(compared: &Compared) -> Self {
        PageHead {
            label: "Environments of the runs, and what was recorded".to_owned(),
            text: compared.to_text().trim_end().to_owned(),
            whole: compared.is_same() && compared.recorded_same(),
        }
    }
}

/// An account that a page is headed by, with the name of its run where the page is of several.
pub type Headed<'a> = (&'a str, Option<&'a Account>);

impl PageHead {
    fn new((name, account): &Headed<'_>) -> Self {
        let text = header::head(*account, Style::default());
        let (label, text) = match name.is_empty() {
            true => ("Account of the run".to_owned(), text),
            false => (format!("Account of {}", printable(name)), format!("{}: {text}", printable(name))),
        };
        PageHead { label, text: text.trim_end().to_owned(), whole: account.is_some_and(Account::is_whole) }
    }

    /// The head on the properties in which the guest differs from a machine; none for a machine's own recording. They are no faults.
    fn of_guest(guest: &[Condition]) -> Option<Self> {
        let lines: Vec<&str> = guest.iter().map(|condition| condition.text.as_str()).collect();
        (!lines.is_empty()).then(|| PageHead {
            label: "What the guest is not".to_owned(),
            text: lines.join("\n"),
            whole: true,
        })
    }
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

/// Renders the report as one file; its timeline has what the profile alone knows.
///
/// # Errors
/// [`HtmlError`]; neither kind depends on the profile.
pub fn render(manifest: &Manifest, profile: &Profile, budget: &Budget) -> Result<String, HtmlError> {
    let lanes = lanes::of_flow(profile, lanes::Sources::default());
    Ok(render_flow(manifest, profile, lanes, Vec::new(), budget)?.html)
}

/// A page, and what had no room in it.
#[derive(Debug)]
pub struct Rendered {
    /// The file's text.
    pub html: String,
    /// Functions whose annotations were asked for and left out.
    pub sources_omitted: Vec<String>,
}

/// Bytes of data above which the timeline is made smaller: with script and style the file is below 5 MB.
const DATA_BYTES: usize = 4_800_000;

/// Renders the report with the lanes of its timeline: [`lanes::of_flow`], and those of other instruments. `sources`
/// are annotated functions, as `kprism-script` makes them, for the panel of sources, the more important first: they get three
/// quarters of the room that the rest leaves, and those that do not fit are left out.
///
/// # Errors
/// As [`render`].
pub fn render_flow(
    manifest: &Manifest,
    profile: &Profile,
    lanes: Vec<Lane>,
    sources: Vec<Value>,
    budget: &Budget,
) -> Result<Rendered, HtmlError> {
    let header = Header::new(manifest, profile);
    let mut data = embed::Data::new(&header, profile, None, budget);
    let mut room = DATA_BYTES.saturating_sub(bytes_of(&data)?);
    let mut of_sources = room / 4 * 3;
    for source in sources {
        let bytes = bytes_of(&source)? + 1;
        if bytes <= of_sources {
            of_sources -= bytes;
            room = room.saturating_sub(bytes);
            data.sources.push(source);
        } else {
            data.sources_omitted.push(source["function"].as_str().unwrap_or_default().to_owned());
        }
    }
    // The timeline takes the room that the rest leaves, and at least a sixteenth of its budget.
    let mut own = budget.lanes;
    for _ in 0..5 {
        let timeline = lanes::detail::reduce(&lanes, &own);
        let bytes = bytes_of(&timeline)?;
        data.timeline = Some(timeline);
        if bytes <= room {
            break;
        }
        own.items /= 2;
        own.cells /= 2;
        own.texts /= 2;
    }
    let sources_omitted = data.sources_omitted.clone();
    Ok(Rendered { html: report(&header, data)?, sources_omitted })
}

/// Bytes that a part of the data takes in a page.
fn bytes_of(part: &impl Serialize) -> Result<usize, HtmlError> {
    Ok(inert(&serde_json::to_string(part)?).len())
}

/// One tree of calling contexts as JSON, with the names that it uses: what a server sends when a page asks for more than it
/// holds. `contexts` is the maximum of nodes.
///
/// # Errors
/// As [`render`].
pub fn tree_json(profile: &Profile, scope: Scope<'_>, contexts: usize) -> Result<Option<String>, HtmlError> {
    let tree = embed::one_tree(profile, scope, contexts);
    Ok(tree.map(|tree| serde_json::to_string(&tree)).transpose()?)
}

/// The part of a run whose tree is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// All tasks.
    All,
    /// The task of this number in the profile.
    Task(u32),
    /// One system call, by name.
    Syscall(&'a str),
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
    let files = (include_str!("../assets/report.css"), include_str!("../assets/report.js"));
    let recorded = header.recorded.join("; ");
    page(title, &[(recorded.as_str(), header.account.as_ref())], &header.guest, files, &data)
}

/// Renders two runs side by side, as one file. `paths` are the runs' folders, `name` is the compared part; `compared` tells
/// whether they were recorded in the same way, where that is not given.
///
/// # Errors
/// As [`render`].
pub fn render_diff(
    diff: &Diff,
    scale: Scale,
    headers: [&Header; 2],
    paths: &[String; 2],
    name: &str,
    compared: Option<&Compared>,
) -> Result<String, HtmlError> {
    let data = compare::Data::new(diff, scale, headers, paths, name);
    let title = format!("{name}: {} against {}", paths[1], paths[0]);
    let files = (include_str!("../assets/diff.css"), include_str!("../assets/diff.js"));
    let accounts = headers.map(|header| header.account.as_ref());
    let [old, new] = [("OLD", headers[0]), ("NEW", headers[1])].map(|(name, header)| {
        let recorded = header.recorded.iter().map(String::as_str);
        std::iter::once(name).chain(recorded).collect::<Vec<_>>().join("; ")
    });
    let mut heads = heads_of_two([(old.as_str(), accounts[0]), (new.as_str(), accounts[1])], compared);
    for (name, header) in ["OLD", "NEW"].iter().zip(headers) {
        let guest = PageHead::of_guest(&header.guest);
        heads.extend(guest.map(|head| PageHead { text: format!("{name}: {}", head.text), ..head }));
    }
    heads.extend(diff.unknown.contains(&true).then(|| PageHead {
        label: "What is not known".to_owned(),
        text: NOT_ZERO.to_owned(),
        whole: false,
    }));
    headed(&title, heads, files, &data)
}

/// The meaning of hatched paths and of dashes in the tables.
const NOT_ZERO: &str = "Not the same was recorded, or something was lost: what only one run has may have run in the other, too. \
     It is hatched in the charts, and – in the tables.";

/// The heads of a page of two runs.
fn heads_of_two(runs: [Headed<'_>; 2], compared: Option<&Compared>) -> Vec<PageHead> {
    let mut heads: Vec<PageHead> = runs.iter().map(PageHead::new).collect();
    heads.extend(compared.map(PageHead::from).filter(|head| !head.text.is_empty()));
    heads
}

/// Renders a page of two runs, with their accounts and what else they differ in.
pub(crate) fn page_of_two(
    title: &str,
    accounts: [Option<&Account>; 2],
    compared: Option<&Compared>,
    files: (&str, &str),
    data: &impl Serialize,
) -> Result<String, HtmlError> {
    let [old, new] = accounts;
    headed(title, heads_of_two([("OLD", old), ("NEW", new)], compared), files, data)
}

/// Renders a page from its data, program and style. `guest`: what the guest of the run does otherwise than a machine.
pub(crate) fn page(
    title: &str,
    heads: &[Headed<'_>],
    guest: &[Condition],
    files: (&str, &str),
    data: &impl Serialize,
) -> Result<String, HtmlError> {
    let heads = heads.iter().map(PageHead::new).chain(PageHead::of_guest(guest));
    headed(title, heads.collect(), files, data)
}

fn headed(
    title: &str,
    heads: Vec<PageHead>,
    (css, js): (&str, &str),
    data: &impl Serialize,
) -> Result<String, HtmlError> {
    let data = inert(&serde_json::to_string(data)?);
    let generator = concat!("kprism ", env!("CARGO_PKG_VERSION"));
    Ok(Page { title, generator, policy: POLICY, css, js, data: &data, heads }.render()?)
}

/// The page as a server on loopback gives it: it may also fetch from that server, and finds the facts of `view` in an element
/// of its own.
///
/// # Errors
/// The facts could not be written as JSON. A text that is no page of this crate is returned as it is.
pub fn served(page: String, view: &impl Serialize) -> Result<String, HtmlError> {
    let Some((head, rest)) = page.split_once(POLICY) else { return Ok(page) };
    let Some((meta, body)) = rest.split_once("<body>\n") else { return Ok(page) };
    let facts = inert(&serde_json::to_string(view)?);
    let policy = format!("{POLICY}; connect-src 'self'");
    Ok(format!(
        "{head}{policy}{meta}<body>\n<script type=\"application/json\" id=\"kprism-view\">{facts}</script>\n{body}"
    ))
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
