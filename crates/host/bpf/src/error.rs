// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong between a program and the kernel, each with its remedy.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why something could not be assembled, loaded, attached or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel refused, and why it does is known.
    #[error("{what}: {why}")]
    Refused {
        /// What was tried.
        what: String,
        /// What is missing, and the remedy.
        why: String,
    },
    /// The kernel refused, with nothing but a number.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The verifier refused a program.
    #[error("program {name}: the kernel's verifier refused it ({source})\n{log}")]
    Verifier {
        /// The program.
        name: String,
        /// The code it came with.
        source: io::Error,
        /// The end of its log, beside what we meant with each instruction.
        log: VerifierLog,
    },
    /// A program that cannot be written down.
    #[error("program: {0}")]
    Assembly(String),
    /// The kernel's types, or something that is not among them.
    #[error(transparent)]
    Btf(#[from] kprism_btf::Error),
}

impl Error {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    /// In one line: of what the verifier says, the last of its words.
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

/// The verifier's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifierLog(pub String);

impl fmt::Display for VerifierLog {
    /// Its last lines: what was wrong is said at the end.
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
