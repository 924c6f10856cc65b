// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is going on, on standard error: a live line on terminals, plain lines of the steps elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::plain::plain;

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Errors only.
    Quiet,
    /// Steps and summaries.
    Normal,
    /// Details too.
    Verbose,
}

/// One place for everything that is said while working.
#[derive(Debug)]
pub struct Progress {
    level: Level,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A live line if standard error is a terminal and not told to be quiet.
    pub fn new(level: Level) -> Self {
        use std::io::IsTerminal as _;
        let live = level != Level::Quiet && std::io::stderr().is_terminal();
        let bar = live.then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(spinner());
            bar
        });
        Progress { level, bar }
    }

    /// A step begins that takes seconds at most.
    pub fn step(&self, text: &str) {
        self.begin(text, Level::Verbose);
    }

    /// A step begins that may take minutes, such as a download.
    pub fn long_step(&self, text: &str) {
        self.begin(text, Level::Normal);
    }

    /// Without a live line, `plain` decides who is told.
    fn begin(&self, text: &str, plain: Level) {
        match &self.bar {
            Some(bar) => {
                bar.set_style(spinner());
                bar.enable_steady_tick(Duration::from_millis(120));
                bar.set_prefix(text.to_owned());
                bar.set_message("");
            }
            None if self.level >= plain => eprintln!("kprism: {text}"),
            None => {}
        }
    }

    /// A detail of the current step, such as a line of the guest's console.
    pub fn detail(&self, text: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(text.chars().filter(|c| !c.is_control()).take(100).collect::<String>())
            }
            None if self.level == Level::Verbose => eprintln!("kprism:   {}", plain(text)),
            None => {}
        }
    }

    /// How much of a step of known size is done.
    pub fn amount(&self, text: &str, done: u64, total: u64) {
        if let Some(bar) = &self.bar {
            if bar.length() != Some(total) {
                bar.set_style(gauge());
                bar.set_length(total);
                bar.set_prefix(text.to_owned());
            }
            bar.set_position(done);
        }
    }

    /// Removes the live line, so that something else may be written.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.disable_steady_tick();
            bar.finish_and_clear();
            bar.reset();
        }
    }

    /// A line that stays.
    pub fn say(&self, text: &str) {
        if self.level == Level::Quiet {
            return;
        }
        let text = plain(text);
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Whether details are wanted.
    pub fn is_verbose(&self) -> bool {
        self.level == Level::Verbose
    }
}

fn spinner() -> ProgressStyle {
    ProgressStyle::with_template("{spinner} {prefix} {elapsed} {wide_msg:.dim}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn gauge() -> ProgressStyle {
    ProgressStyle::with_template("{prefix} {bar:30} {percent}% {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
