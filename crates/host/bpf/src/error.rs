// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of assembling, loading and attaching programs, with their remedies.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Reason why something could not be assembled, loaded, attached or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The kernel refused, for a known reason.
    #[error("{what}: {why}")]
    Refused {
        /// The operation.
        what: String,
        /// The missing requirement, and the remedy.
        why: String,
    },
    /// The kernel refused, with only an error number.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// The verifier rejected a program.
    #[error("program {name}: the kernel's verifier refused it ({source})\n{log}")]
    Verifier {
        /// Name of the program.
        name: String,
        /// Error of the system call.
        source: io::Error,
        /// Last lines of the verifier's log, with the notes on the instructions.
        log: VerifierLog,
    },
    /// The program cannot be assembled.
    #[error("program: {0}")]
    Assembly(#[from] kprism_ebpf::asm::Error),
    /// A program refers to a map that it was not given.
    #[error("program: instruction {at} names map {map}")]
    NoMap {
        /// Index of the instruction.
        at: usize,
        /// Index of the map.
        map: usize,
    },
    /// BTF could not be read, or lacks a type.
    #[error(transparent)]
    Btf(#[from] kprism_btf::Error),
}

impl Error {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    /// The error in one line. For the verifier, the last message of its log.
    pub fn brief(&self) -> String {
        match self {
            Self::Verifier { source, log, .. } => {
                let counts = |line: &&str| line.starts_with("processed ") || line.trim().is_empty();
                let said = log.0.lines().rev().find(|line| !counts(line));
                said.map_or_else(|| source.to_string(), |line| line.trim().to_owned())
            }
            other => other.to_string(),
        }
    }

    pub(crate) fn refused(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Refused { what: what.into(), why: why.into() }
    }
}

/// The verifier's log, with the notes on the instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifierLog(pub String);

impl fmt::Display for VerifierLog {
    /// Formats the last lines: the error is at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LINES: usize = 24;
        let lines: Vec<&str> = self.0.lines().collect();
        let from = lines.len().saturating_sub(LINES);
        if from > 0 {
            writeln!(f, "    … {from} lines before")?;
        }
        let shown: Vec<String> = lines[from..].iter().map(|line| format!("    {line}")).collect();
        f.write_str(&shown.join("\n"))
    }
}
