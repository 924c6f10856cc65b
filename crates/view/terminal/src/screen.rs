// SPDX-License-Identifier: MIT OR Apache-2.0
//! A screen: named rows under columns, or lines of text.
//!
//! In: tables of `kprism-report`, text of a run. Out: values that [`crate::state`] sorts, filters and shows. All text in
//! them is made safe here, once: nothing that a run holds can command the terminal.

use kprism_profile::units::printable;
use kprism_report::Table;
use kprism_report::table::Cell;
use unicode_width::UnicodeWidthChar as _;

/// Longest text of a cell or line, in characters. A name may be of any length.
const LONGEST: usize = 4096;

/// One cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The text that is shown.
    pub text: String,
    /// The value by which rows are sorted; names are sorted by their text.
    pub number: Option<i128>,
}

/// A target of Enter: the row's own screens. It is a name, not an index, so that it holds when counts grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A function of a flow or of durations.
    Function {
        /// Its name.
        name: String,
        /// Its module.
        module: String,
    },
    /// One kind of interval.
    Interval(String),
    /// A node of the call tree: the names on the way from the root.
    Node(Vec<String>),
    /// A source with coverage.
    Source {
        /// Its path, as tables show it.
        path: String,
        /// The name and first line of one of its functions, if only that.
        function: Option<(String, u32)>,
    },
    /// A suite of the kernel's own tests.
    Suite(String),
    /// A test, by its place among the run's.
    Test(usize),
    /// A combination of keys that a probe counted.
    Keys {
        /// The probe's number.
        probe: usize,
        /// The keys, as they are shown.
        keys: String,
    },
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// A cell for each column.
    pub items: Vec<Item>,
    /// The screens behind the row.
    pub target: Option<Target>,
}

/// The contents of a screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Rows under columns.
    Grid {
        /// The heads of the columns; the first column stays in view.
        heads: Vec<String>,
        /// The column by which the rows are sorted at first.
        sorted: Option<usize>,
        /// The rows, as the report sorts them.
        rows: Vec<Row>,
    },
    /// Lines.
    Text(Vec<String>),
}

/// One screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Screen {
    /// Its name, as the tab shows it.
    pub name: String,
    /// Its contents.
    pub body: Body,
}

impl Item {
    /// A name; untrusted.
    pub fn text(text: &str) -> Self {
        Item { text: safe(text), number: None }
    }

    /// A number with the text that shows it.
    pub fn number(number: i128, text: impl Into<String>) -> Self {
        Item { text: text.into(), number: Some(number) }
    }
}

impl From<&Cell> for Item {
    fn from(cell: &Cell) -> Self {
        // Millionths: enough to sort by, and a cast of a float saturates.
        let millionths = |x: f64| Some((x * 1e6) as i128);
        let number = match cell {
            Cell::Text(_) => None,
            Cell::Int(n) | Cell::Count(n) | Cell::Ns(n) | Cell::Hex(n) => Some(i128::from(*n)),
            Cell::CountDiff(n) | Cell::NsDiff(n) => Some(i128::from(*n)),
            Cell::Percent(x) | Cell::Real(x) => millionths(*x),
            Cell::Nothing => Some(-1),
        };
        Item { text: safe(&cell.text()), number }
    }
}

impl Screen {
    /// Lines of text; untrusted.
    pub fn text<'t>(name: &str, lines: impl IntoIterator<Item = &'t str>) -> Self {
        let lines = lines.into_iter().map(safe).collect();
        Screen { name: safe(name), body: Body::Text(lines) }
    }

    /// A table of the report. `key` is the column that names the rows: it comes first. `sorted` is the column by which the
    /// report sorts. `target` returns the screens behind a row.
    pub fn of_table(
        name: &str,
        table: &Table,
        (key, sorted): (&str, &str),
        target: impl Fn(&[Cell]) -> Option<Target>,
    ) -> Self {
        let place = |wanted: &str| table.columns.iter().position(|column| column.key == wanted);
        let first = place(key).unwrap_or(0);
        let mut order: Vec<usize> = vec![first];
        order.extend((0..table.columns.len()).filter(|&column| column != first));
        let heads = order.iter().map(|&column| {
            let column = &table.columns[column];
            // Shares beside a time have no head of their own.
            if column.head.is_empty() { safe(column.key) } else { safe(&column.head) }
        });
        let rows = table.rows.iter().map(|cells| Row {
            items: order.iter().filter_map(|&column| cells.get(column)).map(Item::from).collect(),
            target: target(cells),
        });
        let sorted = place(sorted).and_then(|column| order.iter().position(|&other| other == column));
        let body = Body::Grid { heads: heads.collect(), sorted, rows: rows.collect() };
        Screen { name: safe(name), body }
    }

    /// Number of rows or lines.
    pub fn len(&self) -> usize {
        match &self.body {
            Body::Grid { rows, .. } => rows.len(),
            Body::Text(lines) => lines.len(),
        }
    }

    /// True without rows and lines.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Text that only puts characters on the screen: control characters, marks that turn the direction of text and
/// characters without a width are escapes. What is longer than any terminal is cut, with a mark.
pub fn safe(text: &str) -> String {
    let mut out = String::new();
    for (n, c) in printable(text).chars().enumerate() {
        if n == LONGEST {
            out.push('…');
            break;
        }
        match c.width() {
            Some(1..) => out.push(c),
            // A combining mark would join what stands before it.
            _ => out.extend(c.escape_unicode()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_commands_the_terminal() {
        assert_eq!(safe("a\x1b[2Jb\u{9b}c\r\n"), "a\\u{1b}[2Jb\\u{9b}c\\r\\n");
        assert_eq!(safe("x\u{202e}y\u{2066}\u{200b}\u{301}"), "x\\u{202e}y\\u{2066}\\u{200b}\\u{301}");
        assert_eq!(safe("函数µ"), "函数µ");
        assert_eq!(safe(&"w".repeat(LONGEST + 9)).chars().count(), LONGEST + 1);
        assert!(!safe(&String::from_utf8_lossy(b"\xff\xfe\x1b]0;t\x07")).contains(|c: char| c.is_control()));
    }
}
