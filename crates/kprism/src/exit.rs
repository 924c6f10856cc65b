// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exit codes of the program.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | nothing matched: an empty table, no runs, something necessary missing in `check` |
//! | 2 | error; also of the command line itself |
//! | 3 | a rule of `kprism gate` fired, or has no verdict |
//! | 4 | with `--strict`, and of `kprism gate`: something was lost, not understood or guessed, whether anything matched or not |
//!
//! `kprism lab run` is different, so that it can stand in front of any command: it ends with the guest
//! command's own code; with 124 when `--timeout` or `--max-size` ended it, 125 when kprism itself failed
//! or the disk was nearly full, 130 after Ctrl-C (the codes of timeout(1), env(1) and the shells).

use std::process::ExitCode;

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it was asked.
    Done,
    /// It worked, but there is nothing to show.
    NothingMatched,
    /// It did what it was asked, and the account that it drew up itself says that nothing is missing (`--strict`).
    Whole,
    /// There is nothing to show, and the account that it drew up itself says that nothing is missing (`--strict`).
    WholeNothing,
    /// It did what it was asked, and the run's account is not whole (`--strict`).
    Incomplete,
    /// The code to end with is somebody else's.
    Code(u8),
}

impl Outcome {
    /// Of a table, or of records: nothing matched if there are none.
    pub fn of_rows(empty: bool) -> Self {
        if empty { Outcome::NothingMatched } else { Outcome::Done }
    }
}

/// An error; what was recorded until then is kept.
pub const FAILED: u8 = 2;
/// A rule of `kprism gate` fired, or has no verdict.
pub const GATE: u8 = 3;
/// `kprism lab run` gave the command up at a limit of the user's: `--timeout`, `--max-size`.
pub const LIMIT: u8 = 124;
/// `kprism lab run` itself failed.
pub const LAB_FAILED: u8 = 125;
/// `kprism lab run` was interrupted.
pub const INTERRUPTED: u8 = 130;

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done | Outcome::Whole => ExitCode::SUCCESS,
            Outcome::NothingMatched | Outcome::WholeNothing => ExitCode::from(1),
            Outcome::Incomplete => ExitCode::from(4),
            Outcome::Code(code) => ExitCode::from(code),
        }
    }
}
