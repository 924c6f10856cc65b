// SPDX-License-Identifier: MIT OR Apache-2.0
//! Order, length and form of a view: options that reports share, and what writes them.

use std::io::{IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kprism_export::report_page;
use kprism_profile::{Filter, Profile};
pub use kprism_report::Shown;
use kprism_report::Style;
use kprism_session::Progress;
use kprism_store::{Manifest, Run};
use kprism_terminal::shell::is_dumb;

use crate::exit::Outcome;

/// Reads a value by one of its words; the help shows the first of them and the meaning.
pub fn words<T: Copy + Send + Sync + 'static>(
    all: &'static [(T, &[&str], &str)],
) -> impl TypedValueParser<Value = T> {
    let shown = all
        .iter()
        .map(|(_, words, meaning)| PossibleValue::new(words[0]).aliases(&words[1..]).help(*meaning));
    PossibleValuesParser::new(shown).try_map(|given| {
        let named = all.iter().find(|(_, words, _)| words.contains(&given.as_str()));
        named.map(|(value, ..)| *value).ok_or("no such word")
    })
}

/// The run folder of a recording of a flow, for a reader of the streams while they are written.
pub fn watched(output: &Path, no_decode: bool) -> Result<PathBuf> {
    if no_decode {
        bail!("--no-decode: what is shown is decoded; leave it out, or record without `top`");
    }
    Ok(output.to_owned())
}

/// Writes a file that the user named, and says so.
pub fn write_file(file: &Path, contents: impl AsRef<[u8]>, progress: &Progress) -> Result<()> {
    std::fs::write(file, contents).with_context(|| file.display().to_string())?;
    progress.say(&format!("wrote {}", file.display()));
    Ok(())
}

/// Writes a report as one HTML file.
pub fn write_html(
    run: &Run,
    file: &Path,
    manifest: &Manifest,
    profile: &Profile,
    progress: &Progress,
) -> Result<Outcome> {
    write_file(file, report_page(run, manifest, profile, progress)?, progress)?;
    Ok(Outcome::Done)
}

/// Rows of a table unless told otherwise.
pub const ROWS: usize = 40;

/// The rows that are shown unless told otherwise: a file for programs has all, because its sums would be wrong.
pub fn default_rows(for_programs: bool, rows: usize) -> usize {
    if for_programs { 0 } else { rows }
}

/// Length and form.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct FormArgs {
    /// Show no more than this many rows; 0 shows all. JSON and CSV have all unless told otherwise
    #[arg(long, value_name = "ROWS")]
    pub limit: Option<usize>,
    /// Print as JSON
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print as CSV
    #[arg(long)]
    pub csv: bool,
}

/// Order, length and form of a table.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct OutputArgs {
    /// Sort by this column, from large to small; `-COLUMN` turns it round
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub sort: Option<String>,
    #[command(flatten)]
    pub form: FormArgs,
}

impl FormArgs {
    /// With `rows` unless told otherwise.
    pub fn shown(&self, rows: usize, style: Style) -> Shown<'static> {
        let rows = self.limit.unwrap_or(default_rows(self.json || self.csv, rows));
        Shown { sort: None, rows, json: self.json, csv: self.csv, style }
    }
}

impl OutputArgs {
    /// With `rows` unless told otherwise.
    pub fn shown(&self, rows: usize, style: Style) -> Shown<'_> {
        Shown { sort: self.sort.as_deref(), ..self.form.shown(rows, style) }
    }
}

/// The tasks to take.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Select {
    /// Only this process or thread id (can be repeated)
    #[arg(long = "task", value_name = "PID")]
    pub pids: Vec<u32>,
    /// Only tasks of this name, `*` and `?` allowed (can be repeated)
    #[arg(long = "comm", value_name = "GLOB")]
    pub comms: Vec<String>,
}

impl Select {
    /// As the views take it.
    pub fn filter(&self) -> Filter {
        Filter { pids: self.pids.clone(), comms: self.comms.clone() }
    }
}

/// Prints it, indented.
pub fn print_json(value: &impl serde::Serialize, out: &mut dyn Write) -> Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    Ok(writeln!(out)?)
}

/// Colour goes to terminals only, and not where `NO_COLOR` asks for none (<https://no-color.org>).
pub fn wants_color(choice: clap::ColorChoice) -> bool {
    match choice {
        clap::ColorChoice::Always => true,
        clap::ColorChoice::Never => false,
        clap::ColorChoice::Auto => {
            let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()) || is_dumb();
            !refused && std::io::stdout().is_terminal()
        }
    }
}

/// The style of what is printed.
pub fn style(choice: clap::ColorChoice, progress: &Progress) -> Style {
    Style { color: wants_color(choice), detail: progress.is_verbose() }
}

/// Input and outputs of a view.
pub struct Io<'a> {
    /// The run's folder.
    pub input: &'a Path,
    /// Colours.
    pub style: Style,
    /// Listener of the steps.
    pub progress: &'a Progress,
    /// Standard output.
    pub out: &'a mut dyn Write,
}
