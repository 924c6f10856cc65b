// SPDX-License-Identifier: MIT OR Apache-2.0
//! A state as lines of a terminal: pieces of text, each with its meaning. It knows no colour and no terminal.
//!
//! In: [`State`] and a size. Out: as many lines as the terminal has, none wider than it.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::screen::{Body, Screen};
use crate::state::{Mode, State, View};

/// The meaning of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// As it is.
    Plain,
    /// A head, or what is chosen among tabs.
    Bold,
    /// Less important.
    Dim,
    /// The chosen row.
    Chosen,
}

/// A line.
pub type Line = Vec<(String, Look)>;

/// Narrowest and widest first column of a table.
const NAMES: (usize, usize) = (16, 48);

const HELP: &str = "\
arrows, h j k l      move; left and right scroll columns
PgUp PgDn g G        a page, the first row, the last row
Enter                screens behind the row: callers, callees, histograms
Esc                  back; first the filter goes, then the screen
Tab, Shift-Tab       next screen, screen before
/                    filter by a part of a name; Enter keeps it, Esc drops it
s S r                sort by the next column, by the one before, turn round
space                pause (while a run is recorded)
q, Ctrl-C            end (while a run is recorded: end the recording)";

/// Cuts or fills text to a width in cells.
pub fn fit(text: &str, width: usize, to_right: bool) -> String {
    let whole = text.width();
    if whole <= width {
        let pad = " ".repeat(width - whole);
        return if to_right { pad + text } else { text.to_owned() + &pad };
    }
    let (mut out, mut used) = (String::new(), 0);
    for c in text.chars() {
        let next = c.width().unwrap_or(0);
        if used + next + 1 > width {
            break;
        }
        out.push(c);
        used += next;
    }
    if width > 0 {
        out.push('…');
        used += 1;
    }
    out + &" ".repeat(width.saturating_sub(used))
}

/// Rows that a table has at this height: without title, tabs, head and foot.
pub fn page(height: usize) -> usize {
    height.saturating_sub(4)
}

/// The lines.
pub fn lines(state: &State, width: usize, height: usize) -> Vec<Line> {
    let mut out = vec![title(state, width), tabs(state, width)];
    let room = height.saturating_sub(3);
    let mut body = match (state.mode, state.shown()) {
        (Mode::Help, _) => HELP.lines().map(|line| vec![(fit(line, width, false), Look::Plain)]).collect(),
        (_, None) => vec![vec![(fit("nothing to show", width, false), Look::Dim)]],
        (_, Some((screen, view))) => match &screen.body {
            Body::Grid { .. } => grid(state, screen, view, width, room),
            Body::Text(text) => texts(state, text, view, width, room),
        },
    };
    body.truncate(room);
    body.resize(room, Vec::new());
    out.extend(body);
    out.push(foot(state, width));
    out.truncate(height);
    out
}

fn title(state: &State, width: usize) -> Line {
    let all: Vec<&str> = state.titles().collect();
    let mark = if state.paused { " [paused]" } else { "" };
    vec![(fit(&format!("kprism  {}{mark}", all.join(" › ")), width, false), Look::Bold)]
}

fn tabs(state: &State, width: usize) -> Line {
    let level = state.level();
    let names: Vec<String> = level.screens.iter().map(|screen| format!(" {} ", screen.name)).collect();
    // The chosen tab is always in view.
    let mut first = 0;
    let used = |first: usize| {
        names[first..=level.tab.min(names.len().saturating_sub(1))].iter().map(|n| n.width()).sum::<usize>()
    };
    while first < level.tab && used(first) > width {
        first += 1;
    }
    let (mut line, mut left): (Line, usize) = (Vec::new(), width);
    for (n, name) in names.iter().enumerate().skip(first) {
        if left == 0 {
            break;
        }
        let text = fit(name, name.width().min(left), false);
        left -= text.width().min(left);
        line.push((text, if n == level.tab { Look::Chosen } else { Look::Dim }));
    }
    line
}

fn foot(state: &State, width: usize) -> Line {
    if state.mode == Mode::Filter {
        let filter = state.shown().map_or("", |(_, view)| view.filter.as_str());
        return vec![(fit(&format!("/{}_", crate::screen::safe(filter)), width, false), Look::Bold)];
    }
    let (all, shown, filter) = match state.shown() {
        Some((screen, view)) => (screen.len(), state.order().len(), view.filter.as_str()),
        None => (0, 0, ""),
    };
    let at = state.shown().map_or(0, |(_, view)| (view.selected + 1).min(shown));
    let mut text = format!("{at}/{shown}");
    if !filter.is_empty() {
        text += &format!(" of {all}, /{}", crate::screen::safe(filter));
    }
    if !state.status.is_empty() {
        text += &format!("  {}", crate::screen::safe(&state.status));
    }
    let keys = "  ? help  q quit";
    let room = width.saturating_sub(keys.width());
    vec![(fit(&text, room, false), Look::Plain), (fit(keys, width.min(keys.width()), false), Look::Dim)]
}

/// The first row of a page that shows the chosen one.
fn first_row(selected: usize, rows: usize, room: usize) -> usize {
    // Pages: the chosen row moves, not everything around it.
    let page = selected.checked_div(room).unwrap_or(0) * room;
    page.min(rows.saturating_sub(1))
}

fn grid(state: &State, screen: &Screen, view: &View, width: usize, room: usize) -> Vec<Line> {
    let Body::Grid { heads, sorted, rows } = &screen.body else { return Vec::new() };
    let order = state.order();
    let rows_room = room.saturating_sub(1);
    let first = first_row(view.selected, order.len(), rows_room);
    let page: Vec<usize> = order.iter().skip(first).take(rows_room).copied().collect();
    let (by, turned) = match view.sort {
        Some((column, turned)) => (Some(column), turned),
        None => (*sorted, false),
    };
    let head = |column: usize| {
        let mark = if by != Some(column) {
            ""
        } else if turned {
            "▲"
        } else {
            "▼"
        };
        format!("{}{mark}", heads[column])
    };
    // Widths of what is in view.
    let wide = |column: usize| {
        let cells = page.iter().filter_map(|&row| rows[row].items.get(column)).map(|item| item.text.width());
        cells.chain([head(column).width()]).max().unwrap_or(0)
    };
    let most = NAMES.1.min(width.saturating_mul(2) / 5).max(NAMES.0);
    let name = wide(0).clamp(1, most).min(width);
    let (mut columns, mut used) = (vec![(0, name)], name);
    let mut beyond = 0;
    for column in (1..heads.len()).skip(view.left) {
        let own = wide(column);
        let left = width.saturating_sub(used + 2);
        let is_name =
            page.first().is_some_and(|&row| rows[row].items.get(column).is_some_and(|i| i.number.is_none()));
        // A name may be cut, a number not.
        if beyond == 0 && (own <= left || is_name && left >= 8) {
            columns.push((column, own.min(left)));
            used += own.min(left) + 2;
        } else {
            beyond += 1;
        }
    }
    let to_right = |column: usize| {
        page.first().is_some_and(|&row| rows[row].items.get(column).is_some_and(|item| item.number.is_some()))
    };
    let line = |text: &dyn Fn(usize) -> String| {
        let mut out = String::new();
        for (n, &(column, wide)) in columns.iter().enumerate() {
            if n > 0 {
                out += "  ";
            }
            out += &fit(&text(column), wide, to_right(column));
        }
        fit(&out, width, false)
    };
    let mut top = line(&head);
    if view.left + beyond > 0 {
        let more = format!(" ‹{} ›{}", view.left, beyond);
        if used + more.width() <= width {
            top = fit(top.trim_end(), width - more.width(), false) + &more;
        }
    }
    let mut out = vec![vec![(top, Look::Bold)]];
    for (n, &row) in page.iter().enumerate() {
        let text =
            line(&|column| rows[row].items.get(column).map_or_else(String::new, |item| item.text.clone()));
        let look = if first + n == view.selected { Look::Chosen } else { Look::Plain };
        out.push(vec![(text, look)]);
    }
    if order.is_empty() {
        let why = if view.filter.is_empty() { "nothing yet" } else { "no row matches the filter" };
        out.push(vec![(
            fit(if state.live || !view.filter.is_empty() { why } else { "no rows" }, width, false),
            Look::Dim,
        )]);
    }
    out
}

fn texts(state: &State, text: &[String], view: &View, width: usize, room: usize) -> Vec<Line> {
    let order = state.order();
    // The chosen line is the first in view, as in a pager.
    let first = view.selected.min(order.len().saturating_sub(room));
    order
        .iter()
        .skip(first)
        .take(room)
        .map(|&line| {
            let shown: String = text[line].chars().skip(view.left).collect();
            vec![(fit(&shown, width, false), Look::Plain)]
        })
        .collect()
}
