// SPDX-License-Identifier: MIT OR Apache-2.0
//! The place of a command line that runs on a target: a folder that is removed afterwards, in which its run and the files
//! that were given to it are.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Environment variable that names the folder. It is taken out of the environment at the start.
pub(crate) const VARIABLE: &str = "KPRISM_PLACED";

/// First argument of the copy on the target.
pub const SERVE: &str = "serve-through-ssh";

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// The role of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// An ordinary kprism, on either side.
    No,
    /// The copy on a target that serves the connection: call [`serve()`](crate::serve()).
    Serves,
}

/// Finds out the role of this process, and forgets the environment variable that tells it.
///
/// # Safety
/// No other thread runs yet.
pub unsafe fn placed() -> Placed {
    if let Some(folder) = std::env::var_os(VARIABLE) {
        // SAFETY: the caller promises that this is the only thread.
        unsafe { std::env::remove_var(VARIABLE) };
        let _ = FOLDER.set(folder.into());
    }
    match std::env::args_os().nth(1).is_some_and(|word| word == SERVE) {
        true => Placed::Serves,
        false => Placed::No,
    }
}

/// True if this command line runs on the target, as `--on` asked for.
pub fn is_target() -> bool {
    FOLDER.get().is_some()
}

/// The run folder to write instead of `asked`, which is a folder of the machine that asked.
pub fn output(asked: &Path) -> PathBuf {
    FOLDER.get().map_or_else(|| asked.to_owned(), |folder| run_in(folder))
}

/// The copy of a file that the asking machine sent along; the file itself if nothing was sent.
pub fn given(asked: &Path) -> PathBuf {
    let copy = FOLDER.get().map(|folder| given_in(folder)).filter(|copy| copy.is_file());
    copy.unwrap_or_else(|| asked.to_owned())
}

pub(crate) fn run_in(folder: &Path) -> PathBuf {
    folder.join("run")
}

pub(crate) fn given_in(folder: &Path) -> PathBuf {
    folder.join("given")
}

pub(crate) fn program_in(folder: &Path) -> PathBuf {
    folder.join("kprism")
}
