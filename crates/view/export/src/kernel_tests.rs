// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's own tests as text, JSON, CSV, or a file with JUnit's XML.

use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use kprism_report::header::{account_text, head};
use kprism_report::{Shown, kernel_tests as view};
use kprism_session::Progress;
use kprism_session::kernel_tests::Tests;
use kprism_store::Account;

/// Shows tests, or writes them to the file `junit`. Returns true if there are none.
///
/// # Errors
/// There is no such column, or something cannot be written.
pub fn show(
    (tests, account): &(Tests, Account),
    (shown, junit): (&Shown<'_>, Option<&Path>),
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<bool> {
    tests.notes.iter().for_each(|note| progress.note(note));
    let empty = tests.tests.is_empty();
    if let Some(file) = junit {
        std::fs::write(file, view::junit(tests)).with_context(|| file.display().to_string())?;
        progress.say(&format!("{}; wrote {}", view::summary(tests), file.display()));
        return Ok(empty);
    }
    let mut table = view::table(tests);
    shown.arrange(&mut table)?;
    if shown.json {
        serde_json::to_writer_pretty(&mut *out, &view::to_json(tests, account, &table))?;
        writeln!(out)?;
    } else if shown.csv {
        out.write_all(table.to_csv().as_bytes())?;
    } else {
        let style = shown.style;
        table.select(&view::shown(tests));
        writeln!(out, "{}\n{}", style.bold(&view::summary(tests)), head(Some(account), style))?;
        write!(out, "{}\n{}", table.to_text(style), view::failures(tests, style))?;
        write!(out, "{}", account_text(Some(account), style))?;
    }
    Ok(empty)
}
