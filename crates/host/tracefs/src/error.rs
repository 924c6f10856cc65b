// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, with the remedy.

use std::path::{Path, PathBuf};

/// Why nothing could be recorded, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no tracefs.
    #[error("this kernel has no tracefs: it was built without CONFIG_FTRACE")]
    NoTracefs,
    /// It is not mounted.
    #[error("tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing")]
    NotMounted,
    /// Not permitted.
    #[error("{}: not permitted to trace: run as root", path.display())]
    NotRoot {
        /// What could not be opened.
        path: PathBuf,
    },
    /// The kernel does not let even root trace.
    #[error(
        "the kernel is locked down ({state}), which forbids tracing: boot without lockdown= and, where Secure Boot \
         switches it on, without that; or trace a guest (--guest)"
    )]
    LockedDown {
        /// What `/sys/kernel/security/lockdown` says.
        state: String,
    },
    /// No such tracer.
    #[error(
        "this kernel cannot trace functions' returns: it was built without CONFIG_FUNCTION_GRAPH_TRACER (it has: \
         {available}); use another backend, or a guest (--guest)"
    )]
    NoFunctionGraph {
        /// `available_tracers`.
        available: String,
    },
    /// Somebody else is tracing.
    #[error("{what}: {remedy}")]
    Busy {
        /// What stands in the way.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// Another recording of ours is under way.
    #[error("process {pid} is recording already: wait for its end, or end it with `kill {pid}`")]
    Recording {
        /// Its process ID.
        pid: u32,
    },
    /// Nothing is called that.
    #[error("no traceable function is called {glob}: see available_filter_functions in {}", tracefs.display())]
    NoSuchFunction {
        /// What was asked for.
        glob: String,
        /// Where tracefs is.
        tracefs: PathBuf,
    },
    /// What was asked for makes no sense here.
    #[error("{0}")]
    Setting(String),
    /// The command cannot be run.
    #[error("{program}: {source}")]
    Command {
        /// Its program.
        program: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the command itself is at fault, and as a shell would say it: 127 not found, 126 not executable.
    pub fn command_code(&self) -> Option<u8> {
        match self {
            Error::Command { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Some(127),
            Error::Command { .. } => Some(126),
            _ => None,
        }
    }
}

/// Shorthand for this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Says what was tried with which file.
pub(crate) trait Context<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T>;
}

impl<T> Context<T> for std::io::Result<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { what, path: path.to_owned(), source })
    }
}
