// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress of recording and decoding, for a program that shows it.
//!
//! The library prints nothing. It tells each step to a function that its user passes in; [`Progress::silent`] tells nobody.

use std::fmt;
use std::sync::Arc;

/// One thing to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update<'t> {
    /// A step begins that takes seconds at most.
    Step(&'t str),
    /// A step begins that may take minutes, such as a download.
    LongStep(&'t str),
    /// A detail of the current step, such as a line of the guest's console.
    Detail(&'t str),
    /// The part of the step `text` that is done, in its own unit (bytes, as a rule).
    Amount {
        /// The step.
        text: &'t str,
        /// Units done.
        done: u64,
        /// Units in all.
        total: u64,
    },
    /// A line that stays: a result.
    Say(&'t str),
    /// A line that stays: a remark on the result, such as a loss.
    Note(&'t str),
    /// A line that stays, and that is shown even to a user who asked for quiet: why something did not end as it should.
    Error(&'t str),
    /// The current step is over; something else may be written.
    Clear,
}

/// Receiver of the updates. A copy tells the same function.
#[derive(Clone)]
pub struct Progress {
    verbose: bool,
    show: Arc<dyn Fn(Update<'_>) + Send + Sync>,
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("verbose", &self.verbose).finish_non_exhaustive()
    }
}

impl Progress {
    /// Updates go to `show`, from any thread. `verbose`: details are wanted, even where they cost something.
    pub fn new(verbose: bool, show: impl Fn(Update<'_>) + Send + Sync + 'static) -> Self {
        Progress { verbose, show: Arc::new(show) }
    }

    /// Updates go nowhere.
    pub fn silent() -> Self {
        Self::new(false, |_| {})
    }

    /// See [`Update::Step`].
    pub fn step(&self, text: &str) {
        (self.show)(Update::Step(text));
    }

    /// See [`Update::LongStep`].
    pub fn long_step(&self, text: &str) {
        (self.show)(Update::LongStep(text));
    }

    /// See [`Update::Detail`].
    pub fn detail(&self, text: &str) {
        (self.show)(Update::Detail(text));
    }

    /// See [`Update::Amount`].
    pub fn amount(&self, text: &str, done: u64, total: u64) {
        (self.show)(Update::Amount { text, done, total });
    }

    /// See [`Update::Say`].
    pub fn say(&self, text: &str) {
        (self.show)(Update::Say(text));
    }

    /// See [`Update::Note`].
    pub fn note(&self, text: &str) {
        (self.show)(Update::Note(text));
    }

    /// See [`Update::Error`].
    pub fn error(&self, text: &str) {
        (self.show)(Update::Error(text));
    }

    /// See [`Update::Clear`].
    pub fn clear(&self) {
        (self.show)(Update::Clear);
    }

    /// Whether details are wanted.
    pub fn is_verbose(&self) -> bool {
        self.verbose
    }
}
