// SPDX-License-Identifier: MIT OR Apache-2.0
//! The current step, on standard error: a live line on terminals, plain lines of the steps elsewhere.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use kprism_session::{Progress, Update};

use kprism_report::plain::plain;

/// Between two turns of the spinner.
const TICK: Duration = Duration::from_millis(120);

/// Verbosity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Errors only.
    Quiet,
    /// Steps and summaries.
    Normal,
    /// Details too.
    Verbose,
}

/// Shows what the library tells of its work.
pub fn progress(level: Level) -> Progress {
    let terminal = Terminal::new(level);
    Progress::new(level == Level::Verbose, move |update| terminal.show(update))
}

/// Standard error: a live line if it is a terminal and not told to be quiet.
struct Terminal {
    level: Level,
    live: bool,
    /// The live line that is shown now. Each one is a new bar: [`ProgressBar::reset`] would draw the cleared one once more, and
    /// what the user's command writes would stand behind it.
    bar: Mutex<Option<ProgressBar>>,
}

impl Terminal {
    fn new(level: Level) -> Self {
        use std::io::IsTerminal as _;
        let live = level != Level::Quiet && std::io::stderr().is_terminal();
        Terminal { level, live, bar: Mutex::new(None) }
    }

    fn show(&self, update: Update<'_>) {
        match update {
            Update::Step(text) => self.begin(text, Level::Verbose),
            Update::LongStep(text) => self.begin(text, Level::Normal),
            Update::Detail(text) => self.detail(text),
            Update::Amount { text, done, total } => self.amount(text, done, total),
            Update::State(text) => self.state(text),
            Update::Say(_) | Update::Note(_) if self.level == Level::Quiet => {}
            Update::Note(text) => self.say(&format!("kprism: note: {text}")),
            Update::Say(text) | Update::Error(text) => self.say(text),
            Update::Clear => self.clear(),
        }
    }

    /// The live line, if there is one now. A bar is a handle: its copies are the same line.
    fn shown(&self) -> Option<ProgressBar> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The live line, and whether it begins now; none where no line may be live.
    fn line(&self) -> Option<(ProgressBar, bool)> {
        let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = bar.is_none();
        self.live.then(|| (bar.get_or_insert_with(ProgressBar::new_spinner).clone(), begins))
    }

    /// Without a live line, `plain` decides who is told.
    fn begin(&self, text: &str, plain: Level) {
        match self.line() {
            Some((bar, _)) => {
                bar.set_style(spinner());
                bar.enable_steady_tick(TICK);
                bar.set_prefix(text.to_owned());
                bar.set_message("");
            }
            None if self.level >= plain => eprintln!("kprism: {text}"),
            None => {}
        }
    }

    fn detail(&self, text: &str) {
        if let Some(bar) = self.shown() {
            bar.set_message(text.chars().filter(|c| !c.is_control()).take(100).collect::<String>());
        } else if !self.live && self.level == Level::Verbose {
            eprintln!("kprism:   {}", plain(text));
        }
    }

    fn amount(&self, text: &str, done: u64, total: u64) {
        if let Some((bar, _)) = self.line() {
            if bar.length() != Some(total) {
                bar.set_style(gauge());
                bar.set_length(total);
                bar.set_prefix(text.to_owned());
            }
            bar.set_position(done);
        }
    }

    /// The words hold their own time: that of a line begins anew when another one was cleared.
    fn state(&self, text: &str) {
        if let Some((bar, begins)) = self.line() {
            bar.set_style(state());
            bar.set_prefix(text.to_owned());
            if begins {
                bar.enable_steady_tick(TICK);
            }
        }
    }

    fn clear(&self) {
        if let Some(bar) = self.bar.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bar.disable_steady_tick();
            bar.finish_and_clear();
        }
    }

    fn say(&self, text: &str) {
        let text = plain(text);
        match self.shown() {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }
}

fn spinner() -> ProgressStyle {
    ProgressStyle::with_template("{spinner} {prefix} {elapsed} {wide_msg:.dim}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn state() -> ProgressStyle {
    ProgressStyle::with_template("{spinner} {prefix} {wide_msg:.dim}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn gauge() -> ProgressStyle {
    ProgressStyle::with_template("{prefix} {bar:30} {percent}% {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
