// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keys and lines without a terminal: order, filter, levels, and counts that grow under the reader's eyes.

use kprism_terminal::lines::{fit, lines};
use kprism_terminal::screen::{Body, Item, Row, Screen, Target};
use kprism_terminal::state::{Action, Key, Mode, State};
use unicode_width::UnicodeWidthStr as _;

fn screen(rows: &[(&str, i128)]) -> Screen {
    let rows = rows.iter().map(|(name, count)| Row {
        items: vec![Item::text(name), Item::number(*count, count.to_string())],
        target: Some(Target::Interval((*name).to_owned())),
    });
    let heads = vec!["function".to_owned(), "calls".to_owned()];
    Screen { name: "functions".into(), body: Body::Grid { heads, sorted: Some(1), rows: rows.collect() } }
}

fn state() -> State {
    let first = screen(&[("read", 30), ("write", 20), ("close", 10)]);
    State::new("run", vec![first, Screen::text("console", ["one", "two"])], true)
}

fn names(state: &State) -> Vec<String> {
    let (screen, _) = state.shown().unwrap();
    let Body::Grid { rows, .. } = &screen.body else { panic!("a table") };
    state.order().into_iter().map(|row| rows[row].items[0].text.clone()).collect()
}

fn text(state: &State, width: usize, height: usize) -> Vec<String> {
    let line = |line: Vec<(String, _)>| line.into_iter().map(|(text, _)| text).collect::<String>();
    lines(state, width, height).into_iter().map(line).collect()
}

/// The first reading of a recording may have no table yet: what comes later is shown, unless the reader chose a screen.
#[test]
fn the_first_table_takes_the_place_of_texts() {
    let words = |name: &str| Screen::text(name, ["x"]);
    let start = || State::new("recording", vec![words("recorder")], true);
    let table = || vec![screen(&[("read", 1)]), words("run"), words("recorder")];
    let shown = |state: &State| state.shown().unwrap().0.name.clone();
    let mut state = start();
    // A screen alone is no choice.
    state.press(Key::Tab);
    state.renew(vec![words("run"), words("recorder")], |_| None);
    assert_eq!(shown(&state), "run");
    state.renew(table(), |_| None);
    assert_eq!(shown(&state), "functions");
    let mut state = start();
    state.renew(vec![words("run"), words("recorder")], |_| None);
    state.press(Key::Tab);
    state.renew(table(), |_| None);
    assert_eq!(shown(&state), "recorder", "the reader chose it");
}

#[test]
fn rows_are_sorted_turned_round_and_filtered() {
    let mut state = state();
    assert_eq!(names(&state), ["read", "write", "close"]);
    // From the second of two columns to the first: by name.
    state.press(Key::Char('s'));
    assert_eq!(names(&state), ["close", "read", "write"]);
    state.press(Key::Char('r'));
    assert_eq!(names(&state), ["write", "read", "close"]);
    for key in [Key::Char('/'), Key::Char('E'), Key::Char('A'), Key::Char('q'), Key::Backspace, Key::Enter] {
        assert_eq!(state.press(key), Action::Show, "while a filter is typed, q is a letter");
    }
    assert_eq!((names(&state), state.mode), (vec!["read".to_owned()], Mode::Browse));
    state.press(Key::Esc);
    assert_eq!(names(&state).len(), 3);
}

#[test]
fn levels_are_opened_and_left() {
    let mut state = state();
    state.press(Key::Down);
    let Action::Open(target) = state.press(Key::Enter) else { panic!("a row with screens behind it") };
    assert_eq!(target, Target::Interval("write".into()));
    state.open("write", target, vec![screen(&[("callee", 1)])]);
    assert_eq!(names(&state), ["callee"]);
    state.press(Key::Esc);
    assert_eq!(state.shown().unwrap().1.selected, 1, "where the reader was");
    state.press(Key::Esc);
    assert_eq!(names(&state).len(), 3, "the first level stays");
    state.press(Key::Tab);
    assert_eq!(state.press(Key::Enter), Action::Show, "nothing is behind text");
    assert_eq!(state.press(Key::Char('q')), Action::Quit);
}

/// The row that was chosen stays chosen when others pass it, and views stay when a screen comes before theirs.
#[test]
fn counts_grow_under_the_chosen_row() {
    let mut state = state();
    state.press(Key::Down);
    let newer = screen(&[("open", 99), ("close", 50), ("read", 30), ("write", 21)]);
    state.renew(vec![Screen::text("new", ["x"]), newer.clone()], |_| None);
    assert_eq!(state.shown().unwrap().0.name, "functions");
    assert_eq!(state.chosen().unwrap().items[0].text, "write");
    // Rows that are gone leave a valid choice.
    state.renew(vec![screen(&[("open", 100)])], |_| None);
    assert_eq!(state.chosen().unwrap().items[0].text, "open");
    state.renew(vec![screen(&[])], |_| None);
    assert_eq!(state.chosen(), None);
    state.renew(Vec::new(), |_| None);
    assert_eq!(state.shown(), None);
    for key in [Key::Down, Key::Enter, Key::Tab, Key::BackTab, Key::Char('s'), Key::Char('/'), Key::Char('x')]
    {
        state.press(key);
    }
}

#[test]
fn lines_fit_any_size() {
    let wide = "函".repeat(300);
    let rows: Vec<(String, i128)> = (0..500).map(|n| (format!("{wide}{n}"), n)).collect();
    let rows: Vec<(&str, i128)> = rows.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let mut state =
        State::new(&"t".repeat(500), vec![screen(&rows), Screen::text(&wide, [wide.as_str()])], true);
    state.status = "s".repeat(300);
    let keys = [
        Key::Down,
        Key::End,
        Key::Right,
        Key::Right,
        Key::Char('?'),
        Key::Char(' '),
        Key::Char('/'),
        Key::Enter,
        Key::Tab,
    ];
    for key in keys {
        state.press(key);
        for width in [0, 1, 2, 7, 20, 80, 300] {
            for height in [0, 1, 2, 3, 4, 24, 100] {
                let lines = text(&state, width, height);
                assert!(lines.len() <= height, "{key:?} {width}x{height}");
                assert!(
                    lines.iter().all(|line| line.width() <= width),
                    "{key:?} {width}x{height}: {lines:?}"
                );
            }
        }
    }
}

#[test]
fn the_chosen_row_is_in_view_and_names_stay_beside_columns() {
    let rows: Vec<(String, i128)> = (0..500).map(|n| (format!("name{n}"), n)).collect();
    let rows: Vec<(&str, i128)> = rows.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let mut state = State::new("run", vec![screen(&rows)], false);
    state.page = 20;
    for key in [Key::PageDown, Key::PageDown, Key::Down, Key::Right] {
        state.press(key);
        let chosen = state.chosen().unwrap().items[0].text.clone();
        assert!(text(&state, 80, 24).iter().any(|line| line.contains(&chosen)), "{chosen}");
    }
}

#[test]
fn text_is_cut_in_cells() {
    assert_eq!(fit("abc", 5, false), "abc  ");
    assert_eq!(fit("abc", 5, true), "  abc");
    assert_eq!(fit("abcdef", 4, false), "abc…");
    // A wide character that would stand on both sides of the edge is left out.
    assert_eq!(fit("函函函", 4, false), "函… ");
    assert_eq!(fit("x", 0, false), "");
}

/// Names of a recording cannot reach the terminal as commands, wherever they stand.
#[test]
fn hostile_names_are_harmless_everywhere() {
    let evil = "\x1b[2J\x1b]0;t\x07\u{202e}\u{9b}31m\r\n\0";
    let mut state = State::new(evil, vec![screen(&[(evil, 1)]), Screen::text(evil, [evil])], true);
    state.status = evil.into();
    state.press(Key::Char('/'));
    state.press(Key::Char('\u{202e}'));
    for key in [Key::Enter, Key::Tab, Key::Esc, Key::BackTab] {
        state.press(key);
        for line in text(&state, 200, 24) {
            assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
        }
    }
}
