// SPDX-License-Identifier: MIT OR Apache-2.0
//! State of the screens, and the step from a key to the next state. It knows no terminal.
//!
//! In: screens ([`Screen`]) and keys. Out: the rows to show ([`State::order`]), and what the program has to do ([`Action`]).

use crate::screen::{Body, Row, Screen, Target};

/// A key, as far as a meaning goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Up.
    Up,
    /// Down.
    Down,
    /// Left.
    Left,
    /// Right.
    Right,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the first row.
    Home,
    /// To the last row.
    End,
    /// Enter.
    Enter,
    /// Escape.
    Esc,
    /// Backspace.
    Backspace,
    /// Tab.
    Tab,
    /// Shift and Tab.
    BackTab,
    /// Ctrl-C.
    Interrupt,
}

/// Task of the program after a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing but show the state again.
    Show,
    /// Open the screens behind a row: [`State::open`].
    Open(Target),
    /// End.
    Quit,
}

/// The view of one screen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// The chosen row, by its place in the order shown.
    pub selected: usize,
    /// Columns that are scrolled away, or characters of text.
    pub left: usize,
    /// The column to sort by, and whether the order is turned round. Without it, as the report sorts.
    pub sort: Option<(usize, bool)>,
    /// Only rows that contain this, in any case.
    pub filter: String,
}

/// Screens side by side, with the view of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// The name of what is shown.
    pub title: String,
    /// The target by which it was opened; none for the first.
    pub target: Option<Target>,
    /// The screens.
    pub screens: Vec<Screen>,
    /// The view of each.
    pub views: Vec<View>,
    /// The screen that is shown.
    pub tab: usize,
    /// True if the reader chose it. A text that nobody chose makes room for the first table that comes.
    pub picked: bool,
}

/// The meaning of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They move.
    Browse,
    /// They are a filter's text.
    Filter,
    /// Any ends the help.
    Help,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The run's screens, then those that were opened one after the other. Never empty.
    levels: Vec<Level>,
    /// The meaning of keys.
    pub mode: Mode,
    /// True if growing counts are not shown.
    pub paused: bool,
    /// True if counts can grow.
    pub live: bool,
    /// A line about the recording.
    pub status: String,
    /// Rows that a page has.
    pub page: usize,
}

impl Level {
    /// Screens in their first view.
    pub fn new(title: &str, target: Option<Target>, screens: Vec<Screen>) -> Self {
        let views = vec![View::default(); screens.len()];
        Level { title: crate::screen::safe(title), target, screens, views, tab: 0, picked: false }
    }

    /// Shows the screen that stands so many after this one.
    fn turn(&mut self, by: usize) {
        self.tab = (self.tab + by) % self.screens.len().max(1);
        // Of one screen alone there is no choice.
        self.picked = self.screens.len() > 1;
    }

    /// Puts newer screens in the place of these. The view of each screen, and its chosen row, stay.
    fn renew(&mut self, screens: Vec<Screen>) {
        let chosen = |level: &Level, tab: usize| {
            let (screen, view) = (level.screens.get(tab)?, level.views.get(tab)?);
            let Body::Grid { rows, .. } = &screen.body else { return None };
            let row = &rows[*order(screen, view).get(view.selected)?];
            row.items.first().map(|item| item.text.clone())
        };
        let mut views = Vec::new();
        for screen in &screens {
            let old = self.screens.iter().position(|old| old.name == screen.name);
            let mut view = old.map_or_else(View::default, |old| self.views[old].clone());
            // A row at the top stays at the top, so that what grows fastest is seen to come up.
            let name = old.filter(|_| view.selected > 0).and_then(|old| chosen(self, old));
            let order = order(screen, &view);
            if let (Some(name), Body::Grid { rows, .. }) = (name, &screen.body)
                && let Some(at) =
                    order.iter().position(|&row| rows[row].items.first().is_some_and(|i| i.text == name))
            {
                view.selected = at;
            }
            view.selected = view.selected.min(order.len().saturating_sub(1));
            views.push(view);
        }
        let shown = self.screens.get(self.tab);
        let stays = |screen: &&Screen| self.picked || matches!(screen.body, Body::Grid { .. });
        let shown = shown.filter(stays).map(|screen| screen.name.clone());
        self.tab = screens.iter().position(|screen| Some(&screen.name) == shown.as_ref()).unwrap_or(0);
        (self.screens, self.views) = (screens, views);
    }
}

impl State {
    /// The run's screens, at least one.
    pub fn new(title: &str, screens: Vec<Screen>, live: bool) -> Self {
        State {
            levels: vec![Level::new(title, None, screens)],
            mode: Mode::Browse,
            paused: false,
            live,
            status: String::new(),
            page: 20,
        }
    }

    /// Gives the run's screens another title.
    pub fn rename(&mut self, title: &str) {
        self.levels[0].title = crate::screen::safe(title);
    }

    /// The level that is shown.
    pub fn level(&self) -> &Level {
        &self.levels[self.levels.len() - 1]
    }

    /// The titles of all levels, the run's first.
    pub fn titles(&self) -> impl Iterator<Item = &str> {
        self.levels.iter().map(|level| level.title.as_str())
    }

    fn level_mut(&mut self) -> &mut Level {
        let last = self.levels.len() - 1;
        &mut self.levels[last]
    }

    /// The screen that is shown, and its view.
    pub fn shown(&self) -> Option<(&Screen, &View)> {
        let level = self.level();
        Some((level.screens.get(level.tab)?, level.views.get(level.tab)?))
    }

    fn view_mut(&mut self) -> Option<&mut View> {
        let level = self.level_mut();
        level.views.get_mut(level.tab)
    }

    /// The rows that are shown, in their order: indices into the screen's rows or lines.
    pub fn order(&self) -> Vec<usize> {
        self.shown().map(|(screen, view)| order(screen, view)).unwrap_or_default()
    }

    /// Shows these screens on top of the others.
    pub fn open(&mut self, title: &str, target: Target, screens: Vec<Screen>) {
        self.levels.push(Level::new(title, Some(target), screens));
    }

    /// Puts newer screens in the place of all. `of` returns those behind a target, if it is still there; screens of one that is
    /// not stay as they are.
    pub fn renew(&mut self, screens: Vec<Screen>, of: impl Fn(&Target) -> Option<Vec<Screen>>) {
        for (n, level) in self.levels.iter_mut().enumerate() {
            match &level.target {
                None if n == 0 => level.renew(screens.clone()),
                None => {}
                Some(target) => {
                    if let Some(screens) = of(target) {
                        level.renew(screens);
                    }
                }
            }
        }
    }

    /// The state after a key.
    pub fn press(&mut self, key: Key) -> Action {
        if key == Key::Interrupt {
            return Action::Quit;
        }
        match self.mode {
            Mode::Help => self.mode = Mode::Browse,
            Mode::Filter => self.type_filter(key),
            Mode::Browse => return self.browse(key),
        }
        Action::Show
    }

    fn type_filter(&mut self, key: Key) {
        let Some(view) = self.view_mut() else { return };
        match key {
            Key::Char(c) if !c.is_control() => view.filter.push(c),
            Key::Backspace => drop(view.filter.pop()),
            Key::Esc => view.filter.clear(),
            _ => {}
        }
        view.selected = 0;
        if matches!(key, Key::Enter | Key::Esc) {
            self.mode = Mode::Browse;
        }
    }

    fn browse(&mut self, key: Key) -> Action {
        let last = self.order().len().saturating_sub(1);
        let page = self.page.max(1);
        let columns = match self.shown() {
            Some((Screen { body: Body::Grid { heads, .. }, .. }, _)) => heads.len(),
            _ => 0,
        };
        let tabs = self.level().screens.len().max(1);
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Char('?') => self.mode = Mode::Help,
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Char(' ') if self.live => self.paused = !self.paused,
            Key::Tab => self.level_mut().turn(1),
            Key::BackTab => self.level_mut().turn(tabs - 1),
            Key::Enter => {
                return self.chosen().and_then(|row| row.target.clone()).map_or(Action::Show, Action::Open);
            }
            Key::Esc | Key::Backspace => self.back(),
            Key::Char('s' | 'S' | 'r') if columns > 0 => self.sort(key, columns),
            _ => {}
        }
        let moves = columns.max(1) - 1;
        let is_text = columns == 0;
        let Some(view) = self.view_mut() else { return Action::Show };
        match key {
            Key::Up | Key::Char('k') => view.selected = view.selected.saturating_sub(1),
            Key::Down | Key::Char('j') => view.selected += 1,
            Key::PageUp => view.selected = view.selected.saturating_sub(page),
            Key::PageDown => view.selected += page,
            Key::Home | Key::Char('g') => view.selected = 0,
            Key::End | Key::Char('G') => view.selected = last,
            Key::Left | Key::Char('h') => view.left = view.left.saturating_sub(if is_text { 8 } else { 1 }),
            Key::Right | Key::Char('l') if is_text => view.left += 8,
            Key::Right | Key::Char('l') => view.left = (view.left + 1).min(moves.saturating_sub(1)),
            _ => {}
        }
        if !matches!(key, Key::Tab | Key::BackTab | Key::Esc | Key::Backspace) {
            view.selected = view.selected.min(last);
        }
        Action::Show
    }

    /// First the filter goes, then the level.
    fn back(&mut self) {
        if let Some(view) = self.view_mut().filter(|view| !view.filter.is_empty()) {
            view.filter.clear();
            view.selected = 0;
        } else if self.levels.len() > 1 {
            self.levels.pop();
        }
    }

    fn sort(&mut self, key: Key, columns: usize) {
        let first = match self.shown() {
            Some((Screen { body: Body::Grid { sorted, .. }, .. }, _)) => sorted.unwrap_or(0),
            _ => 0,
        };
        let Some(view) = self.view_mut() else { return };
        let (column, turned) = view.sort.unwrap_or((first, false));
        view.sort = Some(match key {
            Key::Char('s') => ((column + 1) % columns, false),
            Key::Char('S') => ((column + columns - 1) % columns, false),
            _ => (column, !turned),
        });
        view.selected = 0;
    }

    /// The chosen row of a table.
    pub fn chosen(&self) -> Option<&Row> {
        let (screen, view) = self.shown()?;
        let Body::Grid { rows, .. } = &screen.body else { return None };
        rows.get(*order(screen, view).get(view.selected)?)
    }
}

/// Indices of the rows or lines that pass the filter, sorted.
pub fn order(screen: &Screen, view: &View) -> Vec<usize> {
    let wanted = view.filter.to_lowercase();
    let has = |text: &str| wanted.is_empty() || text.to_lowercase().contains(&wanted);
    match &screen.body {
        Body::Text(lines) => (0..lines.len()).filter(|&n| has(&lines[n])).collect(),
        Body::Grid { rows, .. } => {
            // Names only: "12" is not meant to find counts.
            let names = |row: &Row| row.items.iter().any(|item| item.number.is_none() && has(&item.text));
            let mut order: Vec<usize> =
                (0..rows.len()).filter(|&n| wanted.is_empty() || names(&rows[n])).collect();
            if let Some((column, turned)) = view.sort {
                order.sort_by(|&a, &b| {
                    let (Some(a), Some(b)) = (rows[a].items.get(column), rows[b].items.get(column)) else {
                        return std::cmp::Ordering::Equal;
                    };
                    // As the report does: numbers from large to small, names from a to z.
                    let order = b.number.cmp(&a.number).then_with(|| match a.number {
                        None => a.text.cmp(&b.text),
                        Some(_) => std::cmp::Ordering::Equal,
                    });
                    if turned { order.reverse() } else { order }
                });
            }
            order
        }
    }
}
