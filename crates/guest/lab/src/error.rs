// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, each with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure and its remedy; the text is complete as it stands.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb: "read", "write".
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk is full.
    #[error("the disk is full at {}: free some space, or {}", path.display(), elsewhere(path))]
    Full {
        /// The file that could not be written.
        path: PathBuf,
    },
    /// The disk would not be large enough.
    #[error(
        "not enough disk space at {}: {need_mib} MiB are needed; free some, or {}", path.display(), elsewhere(path)
    )]
    NoSpace {
        /// Where.
        path: PathBuf,
        /// How much this step takes, in MiB.
        need_mib: u64,
    },
    /// A program that must be installed is not.
    #[error("{program} not found: {remedy}")]
    MissingProgram {
        /// Its name.
        program: String,
        /// How to get it.
        remedy: &'static str,
    },
    /// QEMU is there but too old.
    #[error(
        "QEMU {found} is too old, 10.0 or later is needed: install qemu-system-x86 from bookworm-backports (scripts/setup.sh does it)"
    )]
    OldQemu {
        /// Its version.
        found: String,
    },
    /// A file of ours that the build makes is not where it should be.
    #[error("{file} not found beside {}: build everything with `cargo build --release`, or name the file in ${variable}", place.display())]
    NotBuilt {
        /// File name.
        file: String,
        /// Where it was looked for.
        place: PathBuf,
        /// Environment variable that overrides.
        variable: &'static str,
    },
    /// apt could not give a package.
    #[error("apt cannot provide {package}: {reason}\n{remedy}")]
    Apt {
        /// Which, or a pattern.
        package: String,
        /// apt's own words.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A package, kernel or module is not what it should be.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No such kernel module.
    #[error("no kernel module {name} in {kernel}: give a module's name or the path of a .ko file")]
    NoModule {
        /// As asked for.
        name: String,
        /// The kernel looked in.
        kernel: String,
    },
    /// QEMU refused to start, or ended by itself.
    #[error("QEMU failed: {reason}")]
    Qemu {
        /// Its own words.
        reason: String,
    },
    /// The guest did not come up.
    #[error("the guest did not come up: {reason}\nlast lines of its console:\n{console}")]
    Boot {
        /// Why we think so.
        reason: String,
        /// Tail of the console.
        console: String,
    },
    /// The kernel's type information cannot be read.
    #[error("BTF of the guest kernel: {0}")]
    Btf(#[from] kprism_btf::Error),
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// An option makes no sense.
    #[error("{0}")]
    Option(String),
}

/// How to have a file of kprism's on another disk.
fn elsewhere(path: &Path) -> &'static str {
    match crate::cache::base().is_some_and(|cache| path.starts_with(cache)) {
        true => "set XDG_CACHE_HOME to a folder on a larger disk",
        false => "choose a folder on a larger disk with -o",
    }
}

/// Names the file and the deed in an [`io::Error`].
pub(crate) trait Context<T> {
    /// `what` is a verb.
    fn at(self, what: &'static str, path: &Path) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::Full { path: path.to_owned() }
            }
            _ => Error::Io { what, path: path.to_owned(), source },
        })
    }
}
