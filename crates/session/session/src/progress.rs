// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress of recording and decoding, for a program that shows it.
//!
//! The library prints nothing. It tells each step to a function that its user passes in; [`Progress::silent`] tells nobody.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use kprism_store::Account;

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
    /// The current step's progress, in words: in place of the words before. It is for a live line alone.
    State(&'t str),
    /// A line that stays: a result.
    Say(&'t str),
    /// A line that stays: a remark on the result, such as a loss.
    Note(&'t str),
    /// A line that stays, and that is shown even to a user who asked for quiet: why something did not end as it should.
    Error(&'t str),
    /// The current step is over; something else may be written.
    Clear,
}

/// Faults of what was read anew.
#[derive(Debug, Default)]
struct Found {
    /// The first.
    first: Option<String>,
    /// The first that the result itself does not show.
    untold: Option<String>,
}

/// Receiver of the updates. A copy tells the same function, and shares what was found.
#[derive(Clone)]
pub struct Progress {
    verbose: bool,
    found: Arc<Mutex<Found>>,
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
        Progress { verbose, found: Arc::default(), show: Arc::new(show) }
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

    /// See [`Update::State`].
    pub fn state(&self, text: &str) {
        (self.show)(Update::State(text));
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

    /// Takes the account of what was read just now. The run's own account is of the time when its tables were made: a stream
    /// may have been damaged since.
    pub fn found(&self, account: &Account) {
        self.enter(account, false);
    }

    /// The same of an account that the result shows.
    pub fn shown(&self, account: &Account) {
        self.enter(account, true);
    }

    fn enter(&self, account: &Account, is_shown: bool) {
        let Some(fault) = account.fault() else { return };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_shown {
            found.untold.get_or_insert_with(|| fault.clone());
        }
        found.first.get_or_insert(fault);
    }

    /// The same receiver, for another run: what was found is kept apart.
    #[must_use]
    pub fn apart(&self) -> Self {
        Progress { found: Arc::default(), ..self.clone() }
    }

    /// The first fault of what was read so far; `None` if there was none, or nothing was read anew.
    pub fn fault(&self) -> Option<String> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).first.clone()
    }

    /// The first of them that the result does not show.
    pub fn untold(&self) -> Option<String> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).untold.clone()
    }

    /// Whether details are wanted.
    pub fn is_verbose(&self) -> bool {
        self.verbose
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_store::Fate;

    #[test]
    fn copies_share_the_first_fault_that_was_found() {
        let progress = Progress::silent();
        let copy = progress.clone();
        copy.found(&Account::new().with(Fate::Lost, "bytes", 0));
        assert_eq!(progress.fault(), None);
        copy.shown(&Account::new().with(Fate::Lost, "bytes", 7));
        assert_eq!(progress.untold(), None);
        copy.found(&Account::new().with(Fate::Guessed, "names", 1));
        assert_eq!(progress.fault().as_deref(), Some("lost 7 bytes"));
        assert_eq!(progress.untold().as_deref(), Some("guessed 1 name"));
        assert_eq!(progress.apart().fault(), None);
        assert_eq!(Progress::silent().fault(), None);
    }
}
