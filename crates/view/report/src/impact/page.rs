// SPDX-License-Identifier: MIT OR Apache-2.0
//! The impacts of several tracers as an HTML page.

use askama::Template;

use kprism_profile::Filter;

use super::view::{Page, TABLES, TOTALS, caption, functions};
use super::{Impact, Side, SyscallImpact, isolate};
use crate::diff::{Diff, Scale, Within};
use crate::header::Header;
use crate::html::{HtmlError, render_diff};

#[derive(Template)]
#[template(path = "impact.html")]
struct Html<'a> {
    page: &'a Page,
    generator: &'a str,
    trust: Vec<String>,
    matrices: Vec<(&'a str, Vec<Vec<String>>)>,
    tracers: Vec<HtmlTracer<'a>>,
}

struct HtmlTracer<'a> {
    name: &'a str,
    about: &'a str,
    events: &'a str,
    error: &'a str,
    calls: Vec<HtmlCall>,
}

struct HtmlCall {
    caption: String,
    rows: Vec<(f64, Vec<String>)>,
    hidden: usize,
}

/// Renders one HTML page that needs no network and no script.
///
/// # Errors
/// [`HtmlError`]; it does not depend on the data.
pub fn render(page: &Page) -> Result<String, HtmlError> {
    let mut matrices: Vec<(&str, Vec<Vec<String>>)> =
        TABLES.iter().map(|&(title, kind)| (title, page.matrix(kind))).collect();
    matrices.push((TOTALS, page.totals()));
    let call = |call: &SyscallImpact| {
        let (rows, hidden) = functions(call, page.functions);
        let whole = call.functions.iter().map(|f| call.added_by(f).insns.max(0.0)).sum::<f64>().max(1.0);
        let share = |i: usize| {
            let f = i.checked_sub(1).and_then(|i| call.functions.get(i));
            f.map_or(0.0, |f| (call.added_by(f).insns.max(0.0) * 100.0 / whole).round())
        };
        let rows = rows.into_iter().enumerate().map(|(i, row)| (share(i), row)).collect();
        HtmlCall { caption: caption(call), rows, hidden }
    };
    let tracers = page.tracers.iter().map(|t| HtmlTracer {
        name: &t.name,
        about: &t.about,
        events: t.events.as_deref().unwrap_or_default(),
        error: t.impact.as_ref().err().map_or("", String::as_str),
        // A page has room for each system call.
        calls: t.impact.iter().flat_map(|i| listed(page, i)).map(|c| call(&c)).collect(),
    });
    let html = Html {
        page,
        generator: concat!("kprism ", env!("CARGO_PKG_VERSION")),
        trust: page.trust(),
        matrices,
        tracers: tracers.collect(),
    };
    Ok(html.render()?)
}

/// The system calls. If all are shown, their sum comes first.
fn listed(page: &Page, impact: &Impact) -> Vec<SyscallImpact> {
    let all = (!page.by_syscall).then(|| impact.all_syscalls());
    all.into_iter().chain(impact.syscalls.iter().cloned()).collect()
}

/// A system call by itself, and with this tracer, as a page of sunbursts side by side, entry and exit with it. `None` if one of
/// the two does not make it.
///
/// # Errors
/// The page cannot be rendered.
pub fn render_syscall(
    syscall: &str,
    tracer: &str,
    sides: [Side<'_>; 2],
    headers: [&Header; 2],
) -> Result<Option<String>, HtmlError> {
    let [Some(bare), Some(traced)] = sides.map(|side| isolate(side, syscall)) else { return Ok(None) };
    // The first frame of what was isolated is the kernel's entry.
    let Some(entry) = bare.nodes.get(1).map(|node| bare.funcs[node.func as usize].name.clone()) else {
        return Ok(None);
    };
    let Some(diff) = Diff::new(&bare, &traced, Within::Function(&entry), &Filter::default()) else {
        return Ok(None);
    };
    let scale = diff.invocations.map_or(Scale::Sums, Scale::PerCall);
    let paths = ["baseline".to_owned(), tracer.to_owned()];
    render_diff(&diff, scale, headers, &paths, syscall, None).map(Some)
}
