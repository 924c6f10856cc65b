// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a table is shown: options that the views of `report`, `diff` and `export` share.

use anyhow::Result;
use kprism_report::{Style, Table};

use crate::exit::Outcome;

/// Order, length and form of a table.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown<'a> {
    /// Column to sort by.
    pub sort: Option<&'a str>,
    /// Rows at most; 0 is all.
    pub rows: usize,
    /// As JSON.
    pub json: bool,
    /// As CSV.
    pub csv: bool,
    /// Colours.
    pub style: Style,
}

impl Shown<'_> {
    /// Sorts and shortens a table, and says whether it has a row.
    ///
    /// # Errors
    /// It has no such column.
    pub fn arrange(&self, table: &mut Table) -> Result<Outcome> {
        if let Some(key) = self.sort {
            table.sort_by(key)?;
        }
        let outcome = if table.rows.is_empty() { Outcome::NothingMatched } else { Outcome::Done };
        if self.rows > 0 {
            table.limit(self.rows);
        }
        Ok(outcome)
    }
}
