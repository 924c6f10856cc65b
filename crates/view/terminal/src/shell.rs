// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terminal: taken for the screens, and put back on every way out.
//!
//! In: [`State`], drawn as [`crate::lines`] has it. Out: keys. A panic, an error and a signal (`kprism_signals` makes a flag of
//! it) all lead through [`Terminal`]'s end.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, stdin, stdout};
use std::os::fd::AsFd as _;
use std::sync::Once;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::{cursor, execute, terminal};
use ratatui::Frame;
use ratatui::backend::{Backend as _, CrosstermBackend};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};

use crate::contents::Contents;
use crate::lines::{self, Look};
use crate::screen::Target;
use crate::state::{Action, Key, State};

/// A terminal that shows screens until it is dropped.
pub struct Terminal {
    inner: ratatui::Terminal<CrosstermBackend<BufWriter<File>>>,
    color: bool,
    /// The size was changed: what the terminal shows is not known. It may have the old size again, so that nobody else sees it.
    unknown: Cell<bool>,
}

/// The terminal as a file of its own: the program holds the lock of its standard output, and a panic in another thread
/// must not wait for that.
fn file() -> io::Result<BufWriter<File>> {
    // `stdout()` takes no lock before it writes.
    Ok(BufWriter::new(File::from(stdout().as_fd().try_clone_to_owned()?)))
}

/// Puts the terminal back. Errors are left: there is nobody to tell.
fn restore() {
    if let Ok(mut to) = file() {
        let _ = execute!(to, terminal::LeaveAlternateScreen, cursor::Show);
    }
    let _ = terminal::disable_raw_mode();
}

/// True if the terminal has no cursor that can be moved, and no colours: `TERM=dumb`.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|name| name == "dumb")
}

/// Refuses to go on without a terminal.
///
/// # Errors
/// Standard input or output is none, or one without a cursor (`TERM=dumb`); `remedy` says what to do then.
pub fn needed(remedy: &str) -> Result<()> {
    if is_dumb() {
        bail!("TERM=dumb: a terminal that cannot place its cursor shows no screens: {remedy}");
    }
    match stdin().is_terminal() && stdout().is_terminal() {
        true => Ok(()),
        false => bail!("standard input and output are not a terminal: {remedy}"),
    }
}

impl Terminal {
    /// Takes the terminal.
    ///
    /// # Errors
    /// Standard input and output are no terminal; `remedy` says what to do then.
    pub fn begin(color: bool, remedy: &str) -> Result<Self> {
        needed(remedy)?;
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                // Of other threads too: their message would be lost among the screens.
                restore();
                before(panic);
            }));
        });
        terminal::enable_raw_mode().context("the terminal")?;
        // From here on, dropping puts it back.
        let begun = (|| -> io::Result<_> {
            let mut to = file()?;
            execute!(to, terminal::EnterAlternateScreen, cursor::Hide)?;
            ratatui::Terminal::new(CrosstermBackend::new(to))
        })();
        match begun {
            Ok(inner) => Ok(Terminal { inner, color, unknown: Cell::new(false) }),
            Err(error) => {
                restore();
                Err(error).context("the terminal")
            }
        }
    }

    /// Shows the state.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, state: &mut State) -> Result<()> {
        let color = self.color;
        if self.unknown.take() {
            // `clear` of the terminal would ask it for its cursor, and wait for an answer. Both buffers are blank after this.
            self.inner.backend_mut().clear().context("the terminal")?;
            self.inner.swap_buffers();
        }
        self.inner.draw(|frame| draw(frame, state, color)).context("the terminal")?;
        Ok(())
    }

    /// The next key. `None` if there was none for so long, or the size changed.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn key(&self, wait: Duration) -> Result<Option<Key>> {
        let retry = |error: io::Error| match error.kind() {
            // A signal: its flag is looked at next.
            io::ErrorKind::Interrupted => Ok(false),
            _ => Err(error).context("the terminal"),
        };
        // A terminal that is gone is always ready to be read, and crossterm would read it for ever.
        is_there(Duration::ZERO)?;
        if !event::poll(LOOK).or_else(retry)? {
            is_there(wait)?;
            if !event::poll(LOOK).or_else(retry)? {
                return Ok(None);
            }
        }
        match event::read().context("the terminal")? {
            Event::Key(key) if key.kind != KeyEventKind::Release => Ok(meaning(key.code, key.modifiers)),
            Event::Resize(..) => {
                self.unknown.set(true);
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Longest time for which crossterm may look for what is there already: given no time at all, it does not look.
const LOOK: Duration = Duration::from_millis(1);

/// Waits for a key, a signal or so long.
fn is_there(wait: Duration) -> Result<()> {
    let mut input = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    let ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: poll(2) reads and writes one structure on the stack.
    unsafe { libc::poll(&mut input, 1, ms) };
    match input.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) {
        0 => Ok(()),
        _ => bail!("the terminal is gone"),
    }
}

fn meaning(code: KeyCode, modifiers: KeyModifiers) -> Option<Key> {
    Some(match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(c) if !modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        _ => return None,
    })
}

fn draw(frame: &mut Frame<'_>, state: &mut State, color: bool) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    state.page = lines::page(height);
    let style = |look: Look| match look {
        Look::Plain => Style::new(),
        Look::Bold if color => Style::new().add_modifier(Modifier::BOLD).fg(Color::Cyan),
        Look::Bold => Style::new().add_modifier(Modifier::BOLD),
        Look::Dim => Style::new().add_modifier(Modifier::DIM),
        Look::Chosen => Style::new().add_modifier(Modifier::REVERSED),
    };
    let lines = lines::lines(state, width, height).into_iter();
    let lines = lines.map(|line| {
        Line::from(line.into_iter().map(|(text, look)| Span::styled(text, style(look))).collect::<Vec<_>>())
    });
    frame.render_widget(Text::from(lines.collect::<Vec<_>>()), area);
}

/// Opens the screens behind a row, if there are any.
pub(crate) fn open(state: &mut State, contents: Option<&Contents>, target: Target) {
    if let Some((title, screens)) = contents.and_then(|contents| contents.behind_row(&target)) {
        state.open(&title, target, screens);
    }
}

/// Time after which a signal is seen.
const TICK: Duration = Duration::from_millis(100);

/// Shows a finished run until its reader ends that.
///
/// # Errors
/// There is no terminal, or it is gone.
pub fn browse(contents: &Contents, color: bool) -> Result<()> {
    let mut terminal = Terminal::begin(color, REMEDY)?;
    let mut state = State::new(&contents.title, contents.screens(), false);
    while !kprism_signals::end_requested() {
        terminal.draw(&mut state)?;
        let Some(key) = terminal.key(TICK)? else { continue };
        match state.press(key) {
            Action::Show => {}
            Action::Open(target) => open(&mut state, Some(contents), target),
            Action::Quit => break,
        }
    }
    Ok(())
}

/// For whom there is no terminal.
pub const REMEDY: &str = "kprism report prints the same";
