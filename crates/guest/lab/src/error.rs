// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate's errors, each with a remedy.

use std::io;
use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error with its remedy. The text needs no context.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// The attempted operation, a verb: "read", "write".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The disk is full.
    #[error("the disk is full at {}: free some space, or {}", path.display(), elsewhere(path))]
    Full {
        /// The file that could not be written.
        path: PathBuf,
    },
    /// The disk has not enough free space.
    #[error(
        "not enough disk space at {}: {need_mib} MiB are needed; free some, or {}", path.display(), elsewhere(path)
    )]
    NoSpace {
        /// The folder.
        path: PathBuf,
        /// Space that this step takes, in MiB.
        need_mib: u64,
    },
    /// A required program is not installed.
    #[error("{program} not found: {remedy}")]
    MissingProgram {
        /// Its name.
        program: String,
        /// The way to install it.
        remedy: &'static str,
    },
    /// There is no QEMU that fits: each that is installed is too old, or has no plugins.
    #[error("{}\n{remedy}", no_qemu(program, found))]
    NoQemu {
        /// The program searched for.
        program: PathBuf,
        /// Each one found, with the reason why it does not fit.
        found: Vec<Unfit>,
        /// The way to get one on this distribution.
        remedy: String,
    },
    /// A file of kprism's own build is missing.
    #[error(
        "{file} not found beside {} or in ../lib/kprism: unpack or install kprism whole (from source: `cargo build --release`), or name \
         the file in ${variable}", place.display()
    )]
    NotBuilt {
        /// File name.
        file: String,
        /// The folder searched.
        place: PathBuf,
        /// Environment variable that names the file instead.
        variable: &'static str,
    },
    /// apt could not provide a package.
    #[error("apt cannot provide {package}: {reason}\n{remedy}")]
    Apt {
        /// The package, or a pattern.
        package: String,
        /// apt's error text.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A build reached its limit of time; how far it came.
    #[error("not built yet, {0}: the same command continues")]
    Unfinished(String),
    /// A package, kernel or module is damaged or of the wrong kind.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// The error in it.
        reason: String,
    },
    /// The kernel module does not exist.
    #[error("no kernel module {name} in {kernel}: give a module's name or the path of a .ko file")]
    NoModule {
        /// The name as the user gave it.
        name: String,
        /// The kernel searched.
        kernel: String,
    },
    /// QEMU refused to start, or ended unexpectedly.
    #[error("QEMU failed: {reason}")]
    Qemu {
        /// QEMU's error text.
        reason: String,
    },
    /// The guest did not start.
    #[error("the guest did not come up: {reason}\nlast lines of its console:\n{console}")]
    Boot {
        /// The observation that led to this error.
        reason: String,
        /// Last lines of the console.
        console: String,
    },
    /// The kernel's type information cannot be read.
    #[error("BTF of the guest kernel: {0}")]
    Btf(#[from] kprism_btf::Error),
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// An option is invalid.
    #[error("{0}")]
    Option(String),
}

/// None was found, or each on a line of its own.
fn no_qemu(program: &Path, found: &[Unfit]) -> String {
    match found.is_empty() {
        true => format!("{} not found", program.display()),
        false => {
            found.iter().fold("no QEMU here fits:".to_owned(), |text, unfit| format!("{text}\n  {unfit}"))
        }
    }
}

/// A QEMU that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// The program.
    pub program: PathBuf,
    /// The reason.
    pub why: String,
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.program.display(), self.why)
    }
}

/// The advice for putting a file of kprism's on another disk.
fn elsewhere(path: &Path) -> &'static str {
    match crate::cache::base().is_some_and(|cache| path.starts_with(cache)) {
        true => "set XDG_CACHE_HOME to a folder on a larger disk",
        false => "choose a folder on a larger disk with -o",
    }
}

/// Adds the file and the operation to an [`io::Error`].
pub(crate) trait Context<T> {
    /// Adds `what`, a verb, and `path`.
    fn at(self, what: &'static str, path: &Path) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::Full { path: path.to_owned() }
            }
            // The standard library repeats calls that a signal ended: this is ours, after a Ctrl-C.
            io::ErrorKind::Interrupted if kprism_signals::end_requested() => Error::Interrupted,
            _ => Error::Io { what, path: path.to_owned(), source },
        })
    }
}
