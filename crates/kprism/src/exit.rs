// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the program ends.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | nothing matched: an empty table, no runs, something necessary missing in `check` |
//! | 2 | error; also of the command line itself |
//! | 4 | with `--strict`: done, but something was lost, not understood or guessed |
//!
//! `kprism lab run` is different, so that it can stand in front of any command: it ends with the guest
//! command's own code; with 124 when `--timeout` ended it, 125 when kprism itself failed, 130 after Ctrl-C
//! (the codes of timeout(1), env(1) and the shells).

use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it was asked.
    Done,
    /// It worked, but there is nothing to show.
    NothingMatched,
    /// It did what it was asked, and the run's account is not whole (`--strict`).
    Incomplete,
    /// The code to end with is somebody else's.
    Code(u8),
}

/// `kprism lab run` gave the command up after `--timeout`.
pub const TIMED_OUT: u8 = 124;
/// `kprism lab run` itself failed.
pub const LAB_FAILED: u8 = 125;
/// `kprism lab run` was interrupted.
pub const INTERRUPTED: u8 = 130;

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => ExitCode::SUCCESS,
            Outcome::NothingMatched => ExitCode::from(1),
            Outcome::Incomplete => ExitCode::from(4),
            Outcome::Code(code) => ExitCode::from(code),
        }
    }
}

/// Whether the error is that nobody reads our output any more (`kprism report | head`).
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(std::io::ErrorKind::BrokenPipe)
    })
}
