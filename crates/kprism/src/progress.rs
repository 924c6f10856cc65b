// SPDX-License-Identifier: MIT OR Apache-2.0
//! The current step, on standard error: a live line on terminals, plain lines of the steps elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use kprism_session::{Progress, Update};

use kprism_report::plain::plain;

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
    bar: Option<ProgressBar>,
    /// The live line was begun and not cleared: clearing one that never was would draw it.
    begun: AtomicBool,
}

impl Terminal {
    fn new(level: Level) -> Self {
        use std::io::IsTerminal as _;
        let live = level != Level::Quiet && std::io::stderr().is_terminal();
        let bar = live.then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(spinner());
            bar
        });
        Terminal { level, bar, begun: AtomicBool::new(false) }
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

    /// Without a live line, `plain` decides who is told.
    fn begin(&self, text: &str, plain: Level) {
        match &self.bar {
            Some(bar) => {
                self.begun.store(true, Ordering::Relaxed);
                bar.set_style(spinner());
                bar.enable_steady_tick(Duration::from_millis(120));
                bar.set_prefix(text.to_owned());
                bar.set_message("");
            }
            None if self.level >= plain => eprintln!("kprism: {text}"),
            None => {}
        }
    }

    fn detail(&self, text: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(text.chars().filter(|c| !c.is_control()).take(100).collect::<String>())
            }
            None if self.level == Level::Verbose => eprintln!("kprism:   {}", plain(text)),
            None => {}
        }
    }

    fn amount(&self, text: &str, done: u64, total: u64) {
        if let Some(bar) = &self.bar {
            self.begun.store(true, Ordering::Relaxed);
            if bar.length() != Some(total) {
                bar.set_style(gauge());
                bar.set_length(total);
                bar.set_prefix(text.to_owned());
            }
            bar.set_position(done);
        }
    }

    /// The words hold their own time: that of the bar begins anew when it was cleared.
    fn state(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_style(state());
            bar.set_prefix(text.to_owned());
            if !self.begun.swap(true, Ordering::Relaxed) {
                bar.enable_steady_tick(Duration::from_millis(120));
            }
        }
    }

    fn clear(&self) {
        if let (Some(bar), true) = (&self.bar, self.begun.swap(false, Ordering::Relaxed)) {
            bar.disable_steady_tick();
            bar.finish_and_clear();
            bar.reset();
        }
    }

    fn say(&self, text: &str) {
        let text = plain(text);
        match &self.bar {
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
