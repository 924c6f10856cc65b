// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queries over a lake, by an embedded DuckDB. Input: a request. Output: rows. The program `kprism-sql` holds DuckDB; this
//! library is what it shares with `kprism`, and has no DuckDB in it.

mod request;

pub use request::{Format, Query, Request};

/// A text as a literal of SQL.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Most memory of a query, if none is given.
pub const MEMORY: &str = "4GB";

/// Lays out a table for a terminal. Columns of numbers stand at the right.
pub fn table(names: &[String], numbers: &[bool], rows: &[Vec<Option<String>>]) -> String {
    let shown = |value: &Option<String>| match value {
        None => "NULL".to_owned(),
        Some(text) => text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect(),
    };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(shown).collect()).collect();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        cells.chain(names.get(at).map(|name| name.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    let line = |cells: &[String]| {
        let mut line = String::new();
        for (at, cell) in cells.iter().enumerate() {
            let fill = " ".repeat(widths.get(at).copied().unwrap_or(0).saturating_sub(cell.chars().count()));
            let gap = if at == 0 { "" } else { "  " };
            line += gap;
            match numbers.get(at) {
                Some(true) => line += &(fill + cell),
                _ => line += &(cell.clone() + &fill),
            }
        }
        line.truncate(line.trim_end().len());
        line + "\n"
    };
    let mut text = line(names);
    for row in &rows {
        text += &line(row);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_at_the_right() {
        let names = ["name".to_owned(), "insns".to_owned()];
        let rows = [vec![Some("a\u{1b}".into()), Some("7".into())], vec![None, Some("123456".into())]];
        assert_eq!(table(&names, &[false, true], &rows), "name   insns\na\u{fffd}         7\nNULL  123456\n");
    }
}
