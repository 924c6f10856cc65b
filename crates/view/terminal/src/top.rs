// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism top`: a recording, and what it has so far, on screens or as plain text each interval.
//!
//! In: a command line that records, and its run folder. Out: screens; the exit code is the recorder's. When the recording has
//! ended the run is read once more, as `kprism report` reads it.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use kprism_profile::units::grouped;
use kprism_session::Progress;

use crate::contents::Contents;
use crate::lines::fit;
use crate::live::{Before, Watch};
use crate::recording::{Output, Recording};
use crate::screen::{Body, Screen};
use crate::shell::{Terminal, open};
use crate::state::{Action, State};

/// The recording, and its presentation.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This program.
    pub program: PathBuf,
    /// Its arguments, which record.
    pub arguments: Vec<OsString>,
    /// The run folder that they name.
    pub run: PathBuf,
    /// Time between two readings.
    pub interval: Duration,
    /// Rows of each table in plain text.
    pub rows: usize,
}

/// For whom there is no terminal.
pub const REMEDY: &str = "kprism top --batch prints plain text, and without `top` the same is recorded";
/// Time after which a signal, or the end of the recording, is seen.
const TICK: Duration = Duration::from_millis(50);

/// The state of the recording in a line.
fn status(since: Duration, contents: Option<&Contents>, ended: Option<u8>, recording: &Recording) -> String {
    let mut text = match ended {
        Some(code) => format!("ended with {code}"),
        None if recording.is_ending() => "ending".to_owned(),
        None => format!("recording {:.0} s", since.as_secs_f64()),
    };
    if ended.is_none() {
        match contents.map(|contents| contents.behind) {
            None => text += ", nothing read yet",
            Some(Some(behind)) => {
                let ahead = behind.written.saturating_sub(behind.decoded);
                text += &format!(", {} bytes decoded, {} not yet", grouped(behind.decoded), grouped(ahead));
            }
            Some(None) => {}
        }
    }
    text
}

/// The finished run. Why it cannot be read, otherwise.
fn finished(settings: &Settings, before: Before) -> Result<Contents, String> {
    match before.new_run(&settings.run) {
        None => Err("nothing was recorded".to_owned()),
        Some(run) => Contents::open(&run, &Default::default(), &Progress::silent())
            .map_err(|error| format!("{error:#}")),
    }
}

/// Records, and shows it on the terminal. The lines that the recorder printed last are returned with its exit code.
///
/// # Errors
/// There is no terminal, or the recorder cannot be started.
pub fn on_terminal(settings: &Settings, color: bool) -> Result<(u8, Vec<String>)> {
    let before = Before::of(&settings.run);
    let mut terminal = Terminal::begin(color, REMEDY)?;
    let mut recording = Recording::start(&settings.program, &settings.arguments, Output::Kept)?;
    let watch = Watch::begin(&settings.run, before, settings.interval);
    let begun = Instant::now();
    let mut contents: Option<Contents> = None;
    let mut waiting: Option<Contents> = None;
    let mut note = String::new();
    let mut state = State::new("recording", vec![recording.screen()], true);
    let mut ended = None;
    let mut quits = false;
    loop {
        if ended.is_none() {
            match watch.latest() {
                Some(Ok(newer)) => {
                    waiting = Some(newer);
                    note.clear();
                }
                // The recorder writes just now; if not, the reason is shown.
                Some(Err(error)) => note = format!("; not read: {error:#}"),
                None => {}
            }
            ended = recording.ended()?;
            if ended.is_some() {
                state.live = false;
                state.paused = false;
                match finished(settings, before) {
                    Ok(whole) => {
                        waiting = Some(whole);
                        note.clear();
                    }
                    Err(why) => note = format!("; {why}"),
                }
            }
        }
        if !state.paused {
            if let Some(newer) = waiting.take() {
                contents = Some(newer);
            }
            let screens = match &contents {
                Some(contents) => contents.screens().into_iter().chain([recording.screen()]).collect(),
                None => vec![recording.screen()],
            };
            state.renew(screens, |target| contents.as_ref()?.behind_row(target).map(|(_, screens)| screens));
            state.rename(contents.as_ref().map_or("recording", |contents| contents.title.as_str()));
        }
        state.status = status(begun.elapsed(), contents.as_ref(), ended, &recording) + &note;
        if kprism_signals::end_requested() || quits {
            match ended {
                Some(_) => break,
                None => recording.end(),
            }
        }
        terminal.draw(&mut state)?;
        // A page is drawn again when something came, and at each tick.
        let Some(key) = terminal.key(TICK)? else { continue };
        match state.press(key) {
            Action::Show => {}
            Action::Open(target) => open(&mut state, contents.as_ref(), target),
            Action::Quit => quits = true,
        }
    }
    drop(terminal);
    Ok((ended.unwrap_or_default(), recording.lines()))
}

/// Records, and prints a block of text each interval, and one of the finished run.
///
/// # Errors
/// The recorder cannot be started, or `out` cannot be written.
pub fn in_batch(settings: &Settings, out: &mut dyn Write) -> Result<u8> {
    let before = Before::of(&settings.run);
    let mut recording = Recording::start(&settings.program, &settings.arguments, Output::StandardError)?;
    let watch = Watch::begin(&settings.run, before, settings.interval);
    let begun = Instant::now();
    let code = loop {
        if kprism_signals::end_requested() {
            recording.end();
        }
        if let Some(code) = recording.ended()? {
            break code;
        }
        // A reading that fails came while the recorder wrote: the next one says more.
        if let Some(Ok(contents)) = watch.latest() {
            let status = status(begun.elapsed(), Some(&contents), None, &recording);
            let printed = block(&contents, &status, settings.rows, out).and_then(|()| Ok(out.flush()?));
            if let Err(error) = printed {
                // Nobody reads: the recording is worth more than what cannot be said.
                recording.end();
                while recording.ended()?.is_none() {
                    std::thread::sleep(TICK);
                }
                return Err(error);
            }
        }
        std::thread::sleep(TICK);
    };
    match finished(settings, before) {
        Ok(contents) => {
            let status = status(begun.elapsed(), Some(&contents), Some(code), &recording);
            block(&contents, &status, settings.rows, out)?;
        }
        Err(why) => writeln!(out, "--- ended with {code}: {why}")?,
    }
    Ok(code)
}

/// All tables, as text.
fn block(contents: &Contents, status: &str, rows: usize, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "--- {status}")?;
    for screen in contents.screens().iter().filter(|screen| !screen.is_empty()) {
        if let Some(text) = table(screen, rows) {
            write!(out, "\n{}\n{text}", screen.name)?;
        }
    }
    writeln!(out)?;
    Ok(())
}

/// The first rows of a table as text; `None` if it is text already, which the run folder has.
fn table(screen: &Screen, most: usize) -> Option<String> {
    use unicode_width::UnicodeWidthStr as _;
    let Body::Grid { heads, rows, .. } = &screen.body else { return None };
    let shown = &rows[..rows.len().min(most)];
    let width = |column: usize| {
        let cells = shown.iter().filter_map(|row| row.items.get(column)).map(|item| item.text.width());
        cells.chain([heads[column].width()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let is_number = |column: usize| {
        shown.first().is_some_and(|row| row.items.get(column).is_some_and(|i| i.number.is_some()))
    };
    let line = |cells: Vec<&str>| {
        let each = cells.iter().enumerate().map(|(n, text)| fit(text, widths[n], is_number(n)));
        let line = each.collect::<Vec<_>>().join("  ");
        line.trim_end().to_owned() + "\n"
    };
    let mut out = line(heads.iter().map(String::as_str).collect());
    for row in shown {
        out += &line(row.items.iter().map(|item| item.text.as_str()).collect());
    }
    if rows.len() > most {
        out += &format!("… {} more rows\n", grouped((rows.len() - most) as u64));
    }
    Some(out)
}
