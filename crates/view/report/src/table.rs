// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table of typed cells, which can be output as text, JSON or CSV.
//!
//! Text is for people: scaled units, aligned, in colour on request. JSON and CSV are for programs: integers, with the
//! unit in the column's key (`_ns`, `_percent`).

use kprism_profile::units;
use serde_json::{Map, Number, Value};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::Write;

/// A value with its unit.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// A name; untrusted.
    Text(String),
    /// A small number, not scaled.
    Int(u64),
    /// A number that is scaled for people.
    Count(u64),
    /// A duration in ns.
    Ns(u64),
    /// Percent, 0 to 100.
    Percent(f64),
    /// A difference of counts.
    CountDiff(i64),
    /// A difference of nanoseconds.
    NsDiff(i64),
    /// An address or offset.
    Hex(u64),
    /// A measure without a unit of its own.
    Real(f64),
    /// No value.
    Nothing,
}

/// A column's two names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// For programs and for sorting.
    pub key: &'static str,
    /// For people; untrusted where a recording names it.
    pub head: Cow<'static, str>,
}

/// Rows of cells under columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows; each has a cell per column.
    pub rows: Vec<Vec<Cell>>,
    /// Number of rows that [`Table::limit`] removed.
    pub hidden: usize,
}

/// Style of text output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    /// Use ANSI colours; only for terminals.
    pub color: bool,
    /// Show zeros of the account, and legends, too.
    pub detail: bool,
}

impl Style {
    /// Bold, if colours are on.
    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Faint, if colours are on.
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Highlights a warning, if colours are on.
    pub fn alert(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    /// Colours by weight as in perf: red if high, green if medium.
    pub fn heat(self, percent: f64, text: &str) -> String {
        match percent {
            p if p >= 5.0 => self.paint("31", text),
            p if p >= 0.5 => self.paint("32", text),
            _ => text.to_string(),
        }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

/// Sorting by an unknown column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no column {asked:?}; there are: {known}")]
pub struct UnknownColumn {
    asked: String,
    known: String,
}

impl Table {
    pub(crate) fn new(columns: &[(&'static str, &'static str)], rows: Vec<Vec<Cell>>) -> Self {
        let columns = columns.iter().map(|&(key, head)| Column { key, head: head.into() }).collect();
        Table { columns, rows, hidden: 0 }
    }

    /// Sorts by a column: numbers from large to small, differences by absolute value, names from a to z. A `-` before
    /// the key reverses the order. Equal rows keep their order.
    ///
    /// # Errors
    /// [`UnknownColumn`], which lists the known keys.
    pub fn sort_by(&mut self, key: &str) -> Result<(), UnknownColumn> {
        let (wanted, turned) = match key.strip_prefix('-') {
            Some(rest) => (rest, true),
            None => (key, false),
        };
        // The column's key in the output, or its heading.
        let heading = |c: &Column| c.head.eq_ignore_ascii_case(&wanted.replace(['_', '-'], " "));
        let column = self.columns.iter().position(|c| c.key == wanted);
        let Some(column) = column.or_else(|| self.columns.iter().position(heading)) else {
            let known: Vec<&str> = self.columns.iter().map(|c| c.key).collect();
            return Err(UnknownColumn { asked: wanted.into(), known: known.join(", ") });
        };
        self.rows.sort_by(|a, b| {
            let order = order(&a[column], &b[column]);
            if turned { order.reverse() } else { order }
        });
        Ok(())
    }

    /// Keeps the columns with these keys, in this order.
    pub fn select(&mut self, keys: &[&str]) {
        let places: Vec<usize> =
            keys.iter().filter_map(|key| self.columns.iter().position(|c| c.key == *key)).collect();
        self.columns = places.iter().map(|&i| self.columns[i].clone()).collect();
        for row in &mut self.rows {
            *row = places.iter().map(|&i| row[i].clone()).collect();
        }
    }

    /// Keeps the first `rows` rows and counts the removed ones.
    pub fn limit(&mut self, rows: usize) {
        self.hidden += self.rows.len().saturating_sub(rows);
        self.rows.truncate(rows);
    }

    /// Formats the table as text: aligned columns, and the number of hidden rows at the end.
    pub fn to_text(&self, style: Style) -> String {
        let cells: Vec<Vec<String>> = self.rows.iter().map(|r| r.iter().map(Cell::text).collect()).collect();
        let width = |c: usize| {
            let longest = cells.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
            longest.max(self.columns[c].head.chars().count())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let is_text: Vec<bool> = (0..self.columns.len())
            .map(|c| self.rows.first().is_some_and(|r| matches!(r[c], Cell::Text(_))))
            .collect();
        let mut out = String::new();
        let heads: Vec<String> = self.columns.iter().map(|c| units::printable(&c.head)).collect();
        let head = line(&heads, &widths, &is_text);
        out.push_str(&style.bold(&head));
        out.push('\n');
        for (row, texts) in self.rows.iter().zip(&cells) {
            let percent = row.iter().find_map(|c| if let Cell::Percent(p) = c { Some(*p) } else { None });
            let text = line(texts, &widths, &is_text);
            out.push_str(&percent.map_or(text.clone(), |p| style.heat(p, &text)));
            out.push('\n');
        }
        if self.hidden > 0 {
            let note = format!("… {} more rows", units::grouped(self.hidden as u64));
            let _ = writeln!(out, "{}", style.dim(&note));
        }
        out
    }

    /// The table as JSON: an array of objects.
    pub fn to_json(&self) -> Value {
        let object = |row: &Vec<Cell>| {
            let fields = self.columns.iter().zip(row).map(|(c, cell)| (c.key.to_string(), cell.json()));
            Value::Object(fields.collect::<Map<_, _>>())
        };
        Value::Array(self.rows.iter().map(object).collect())
    }

    /// The table as CSV: a line of keys, then a line per row (RFC 4180, lines end in `\n`).
    pub fn to_csv(&self) -> String {
        let keys: Vec<&str> = self.columns.iter().map(|c| c.key).collect();
        let mut out = keys.join(",") + "\n";
        for row in &self.rows {
            let fields: Vec<String> = row.iter().map(Cell::csv).collect();
            out.push_str(&fields.join(","));
            out.push('\n');
        }
        out
    }
}

/// Formats a line: numbers right-aligned, names left-aligned, nothing after the last column.
fn line(cells: &[String], widths: &[usize], is_text: &[bool]) -> String {
    let mut out = String::new();
    for (i, cell) in cells.iter().enumerate() {
        if i > 0 {
            out.push_str("  ");
        }
        let pad = " ".repeat(widths[i].saturating_sub(cell.chars().count()));
        if !is_text[i] {
            out.push_str(&pad);
        }
        out.push_str(cell);
        if is_text[i] && i + 1 < cells.len() {
            out.push_str(&pad);
        }
    }
    out.truncate(out.trim_end().len());
    out
}

fn order(a: &Cell, b: &Cell) -> Ordering {
    match (a, b) {
        (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
        (Cell::Percent(a) | Cell::Real(a), Cell::Percent(b) | Cell::Real(b)) => b.total_cmp(a),
        _ => b.number().cmp(&a.number()),
    }
}

impl Cell {
    fn number(&self) -> u64 {
        match self {
            Cell::Int(n) | Cell::Count(n) | Cell::Ns(n) | Cell::Hex(n) => *n,
            Cell::CountDiff(n) | Cell::NsDiff(n) => n.unsigned_abs(),
            Cell::Text(_) | Cell::Percent(_) | Cell::Real(_) | Cell::Nothing => 0,
        }
    }

    /// The cell as people read it, safe to print.
    pub fn text(&self) -> String {
        match self {
            Cell::Text(text) => units::printable(text),
            Cell::Int(n) => n.to_string(),
            Cell::Count(n) => units::count(*n),
            Cell::Ns(n) => units::duration(*n),
            Cell::Percent(p) => format!("{p:.2}%"),
            Cell::CountDiff(n) => signed(*n, units::count),
            Cell::NsDiff(n) => signed(*n, units::duration),
            Cell::Hex(n) => format!("{n:#x}"),
            Cell::Real(x) => units::real(*x),
            Cell::Nothing => "–".into(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        match self {
            Cell::Text(text) => Value::String(text.clone()),
            Cell::CountDiff(n) | Cell::NsDiff(n) => Value::Number((*n).into()),
            Cell::Percent(p) => Number::from_f64(round(*p)).map_or(Value::Null, Value::Number),
            Cell::Real(x) => Number::from_f64(*x).map_or(Value::Null, Value::Number),
            Cell::Nothing => Value::Null,
            _ => Value::Number(self.number().into()),
        }
    }

    fn csv(&self) -> String {
        match self {
            Cell::Text(text) if text.contains([',', '"', '\n', '\r']) => {
                format!("\"{}\"", text.replace('"', "\"\""))
            }
            Cell::Text(text) => text.clone(),
            Cell::CountDiff(n) | Cell::NsDiff(n) => n.to_string(),
            Cell::Percent(p) => round(*p).to_string(),
            Cell::Real(x) => x.to_string(),
            Cell::Nothing => String::new(),
            _ => self.number().to_string(),
        }
    }
}

/// A difference, always with its sign; empty for zero.
fn signed(n: i64, unit: fn(u64) -> String) -> String {
    let sign = match n {
        0 => return String::new(),
        ..0 => '-',
        _ => '+',
    };
    format!("{sign}{}", unit(n.unsigned_abs()))
}

/// Rounds to four decimals: enough for one in a million, and the same text on every machine.
fn round(percent: f64) -> f64 {
    (percent * 10_000.0).round() / 10_000.0
}

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
    /// Sorts and shortens a table. Returns true if it has no row.
    ///
    /// # Errors
    /// It has no such column.
    pub fn arrange(&self, table: &mut Table) -> Result<bool, UnknownColumn> {
        if let Some(key) = self.sort {
            table.sort_by(key)?;
        }
        let empty = table.rows.is_empty();
        if self.rows > 0 {
            table.limit(self.rows);
        }
        Ok(empty)
    }
}
