// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTML page: a plot and a table for each sweep. No script, nothing loaded.

use askama::Template;

use super::{mix_table, plot, resolutions, sweep_table};
use crate::header;
use crate::html::HtmlError;
use crate::table::{Cell, Style, Table};
use kprism_flow::cost::{Setting, Sweep};
use kprism_profile::units::{duration, grouped};
use kprism_store::Account;

/// The recording's data for the head of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// The command; untrusted.
    pub command: String,
    /// The kernel's release.
    pub kernel: String,
    /// True if only the flow of user code was traced.
    pub user_only: bool,
    /// The account of all recordings.
    pub account: Account,
}

/// The tables of all sweeps, for a terminal. `recordings` is the number of recordings of the same instructions.
pub fn to_text(about: &About, sweeps: &[Sweep], recordings: usize, style: Style) -> String {
    let Some((_, any)) = sweeps.iter().flat_map(|sweep| &sweep.steps).next() else { return String::new() };
    let recordings = match recordings {
        1 => String::new(),
        n => format!(", the same in all {n} recordings"),
    };
    let mut text = format!(
        "{} on {}\n{} instructions{} in {} (guest-virtual clock){recordings}\n",
        about.command,
        about.kernel,
        grouped(any.instructions),
        if about.user_only { " of user code" } else { "" },
        duration(any.duration_ns),
    );
    text += &header::head(Some(&about.account), style);
    for (sweep, trf) in sweeps.iter().zip(resolutions(sweeps)) {
        text +=
            &format!("\n{}\n{}", style.bold(sweep.setting.name()), sweep_table(sweep, &trf).to_text(style));
    }
    text
}

/// Cells in the form for the page.
struct Rows {
    heads: Vec<String>,
    rows: Vec<Vec<(bool, String)>>,
}

impl Rows {
    fn new(table: &Table) -> Self {
        let cell = |cell: &Cell| (matches!(cell, Cell::Text(_)), cell.text());
        Rows {
            heads: table.columns.iter().map(|c| c.head.to_string()).collect(),
            rows: table.rows.iter().map(|row| row.iter().map(cell).collect()).collect(),
        }
    }
}

struct Section {
    title: &'static str,
    says: &'static str,
    plot: String,
    table: Rows,
}

#[derive(Template)]
#[template(path = "flow-cost.html")]
struct Page<'a> {
    generator: &'a str,
    about: &'a About,
    instructions: String,
    duration: String,
    sections: Vec<Section>,
    mixes: Vec<(String, Rows)>,
}

fn section(sweep: &Sweep, trf: &[Option<f64>]) -> Section {
    let (title, says) = match sweep.setting {
        Setting::Cyc => ("CYC", "CYC varied, MTC off, PSB constant."),
        Setting::Mtc => ("MTC", "MTC varied, CYC off, PSB constant."),
        Setting::Psb => ("PSB", "PSB varied, CYC and MTC off."),
    };
    Section { title, says, plot: plot::svg(sweep, trf), table: Rows::new(&sweep_table(sweep, trf)) }
}

/// Renders the page as one file.
///
/// # Errors
/// [`HtmlError::Template`], which does not depend on the data.
pub fn render(about: &About, sweeps: &[Sweep]) -> Result<String, HtmlError> {
    let first = sweeps.iter().flat_map(|s| &s.steps).map(|(_, cost)| cost).next();
    let mixes = sweeps.iter().filter_map(|s| s.steps.first().map(|(_, cost)| (s, cost)));
    let page = Page {
        generator: concat!("kprism ", env!("CARGO_PKG_VERSION")),
        about,
        instructions: grouped(first.map_or(0, |c| c.instructions)),
        duration: duration(first.map_or(0, |c| c.duration_ns)),
        sections: sweeps.iter().zip(resolutions(sweeps)).map(|(s, trf)| section(s, &trf)).collect(),
        mixes: mixes
            .map(|(s, cost)| (format!("{} {}", s.setting.key(), cost.name), Rows::new(&mix_table(cost))))
            .collect(),
    };
    Ok(page.render()?)
}
