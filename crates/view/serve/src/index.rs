// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first page: the runs, what each holds, and two of them to compare.
//!
//! In: the runs' folders as they are now. Out: a page without a program. A run that is gone or cannot be read is listed with
//! the reason.

use kprism_profile::units::{grouped, quoted};
use kprism_report::xml::escaped;
use kprism_store::{Manifest, Run};

use crate::pages::views;
use crate::route::View;

const STYLE: &str = "\
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 1100px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35em .8em .35em 0; vertical-align: top; overflow-wrap: anywhere; }
tr + tr td { border-top: 1px solid color-mix(in srgb, currentColor 18%, transparent); }
code { font: 13px ui-monospace, Menlo, Consolas, monospace; }
th, .number, .time { white-space: nowrap; overflow-wrap: normal; }
.number { text-align: right; }
.broken { color: light-dark(#b3261e, #ff8a80); }
form { margin-top: 1.5em; display: flex; gap: .6em; align-items: center; flex-wrap: wrap; }
select { max-width: 30em; }";

/// One row: a run as it was found.
pub struct Row {
    /// Its folder, as it was named.
    pub name: String,
    /// The run and its manifest, or why it cannot be read.
    pub found: Result<(Run, Manifest), String>,
}

fn label(view: View, run: &Run) -> &'static str {
    match view {
        View::Report if run.holds(kprism_store::Instrument::Durations) => "durations",
        View::Report => "flow",
        View::Tlb => "TLB misses",
        View::Probe => "probes",
        View::Boot => "boot",
        View::Cover => "coverage",
    }
}

fn row(number: usize, row: &Row) -> String {
    let name = escaped(&row.name);
    let (run, manifest) = match &row.found {
        Ok(found) => found,
        Err(reason) => {
            return format!(
                "<tr><td><code>{name}</code></td><td class=\"broken\" colspan=\"5\">{}</td></tr>\n",
                escaped(reason)
            );
        }
    };
    let links: Vec<String> = views(run)
        .into_iter()
        .map(|view| format!("<a href=\"run/{number}/{}\">{}</a>", view.word(), label(view, run)))
        .collect();
    let links = if links.is_empty() { "nothing recorded".to_owned() } else { links.join(" ") };
    let kernel = manifest.kernel.as_ref().map_or("", |kernel| &kernel.release);
    let instructions = manifest.instructions.map(grouped).unwrap_or_default();
    let fault = manifest.fault().map(|fault| format!("<div class=\"broken\">{}</div>", escaped(&fault)));
    format!(
        "<tr><td><code>{name}</code></td><td>{links}{}</td><td><code>{}</code></td><td>{}</td>\
         <td class=\"number\">{instructions}</td><td class=\"time\">{}</td></tr>\n",
        fault.unwrap_or_default(),
        escaped(&quoted(&manifest.command)),
        escaped(kernel),
        escaped(&manifest.created),
    )
}

/// The page.
pub fn page(rows: &[Row]) -> String {
    let body: String = rows.iter().enumerate().map(|(number, of)| row(number, of)).collect();
    let options = |chosen: usize| -> String {
        let option = |(number, row): (usize, &Row)| {
            let selected = if number == chosen { " selected" } else { "" };
            format!("<option value=\"{number}\"{selected}>{}</option>", escaped(&row.name))
        };
        rows.iter().enumerate().map(option).collect()
    };
    let compare = match rows.len() {
        0 | 1 => String::new(),
        _ => format!(
            "<form action=\"diff\"><label for=\"old\">Compare</label> <select id=\"old\" name=\"old\">{}</select>\n\
             <label for=\"new\">with</label> <select id=\"new\" name=\"new\">{}</select>\n\
             <button type=\"submit\">Show both side by side</button></form>\n",
            options(0),
            options(1)
        ),
    };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Runs · kprism</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>Runs</h1>\n<table id=\"runs\">\n<tr><th>run</th><th>pages</th>\
         <th>command</th><th>kernel</th><th class=\"number\">instructions</th><th>recorded</th></tr>\n{body}</table>\n\
         {compare}</body>\n</html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_text() {
        let row = || Row { name: "<b>\"x\"&\u{1b}[2J\u{202e}".into(), found: Err("<script>".into()) };
        let page = page(&[row(), row()]);
        assert!(
            !page.contains("<b>") && !page.contains("<script") && page.contains("&lt;script&gt;"),
            "{page}"
        );
        assert!(!page.contains(['\u{1b}', '\u{202e}']));
        assert!(page.contains("action=\"diff\""));
    }
}
