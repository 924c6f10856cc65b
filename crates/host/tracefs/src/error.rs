// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors of recording. Each message tells the user a remedy where there is one.

use std::path::{Path, PathBuf};

/// The reason why a recording could not start, or why it ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel was built without tracefs.
    #[error("this kernel has no tracefs: it was built without CONFIG_FTRACE")]
    NoTracefs,
    /// tracefs is not mounted.
    #[error("tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing")]
    NotMounted,
    /// The process may not write to tracefs.
    #[error("{}: not permitted to trace: run as root", path.display())]
    NotRoot {
        /// The file that could not be opened.
        path: PathBuf,
    },
    /// Kernel lockdown forbids tracing, even for root.
    #[error(
        "the kernel is locked down ({state}), which forbids tracing: boot without lockdown= and, where Secure Boot \
         switches it on, without that; or trace a guest (--guest)"
    )]
    LockedDown {
        /// The active level in `/sys/kernel/security/lockdown`.
        state: String,
    },
    /// The kernel does not have the function graph tracer.
    #[error(
        "this kernel cannot trace functions' returns: it was built without CONFIG_FUNCTION_GRAPH_TRACER (it has: \
         {available}); use another backend, or a guest (--guest)"
    )]
    NoFunctionGraph {
        /// Contents of `available_tracers`.
        available: String,
    },
    /// Another user of tracefs stands in the way.
    #[error("{what}: {remedy}")]
    Busy {
        /// Description of the conflict.
        what: String,
        /// Instruction that resolves the conflict.
        remedy: String,
    },
    /// Another kprism recording is under way.
    #[error("process {pid} is recording already: wait for its end, or end it with `kill {pid}`")]
    Recording {
        /// Process ID of that recording.
        pid: u32,
    },
    /// No traceable function matches the glob.
    #[error("no traceable function is called {glob}: see available_filter_functions in {}", tracefs.display())]
    NoSuchFunction {
        /// The glob that was given.
        glob: String,
        /// The folder at which tracefs is mounted.
        tracefs: PathBuf,
    },
    /// A setting that does not make sense on this machine.
    #[error("{0}")]
    Setting(String),
    /// The command could not be run.
    #[error("{program}: {source}")]
    Command {
        /// Program of the command.
        program: String,
        /// Error returned by the system.
        source: std::io::Error,
    },
    /// A file operation failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The file concerned.
        path: PathBuf,
        /// Error returned by the system.
        source: std::io::Error,
    },
}

impl Error {
    /// The exit code that a shell would use if the command itself is at fault: 127 for not found, 126 for not
    /// executable. `None` for other errors.
    pub fn command_code(&self) -> Option<u8> {
        match self {
            Error::Command { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Some(127),
            Error::Command { .. } => Some(126),
            _ => None,
        }
    }
}

/// Result with this crate's error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds the failed operation and the file to an I/O error.
pub(crate) trait Context<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T>;
}

impl<T> Context<T> for std::io::Result<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { what, path: path.to_owned(), source })
    }
}
