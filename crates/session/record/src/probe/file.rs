// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file of probes: read, and named in errors.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use kprism_probe::written::{self, Wanted, Written};
use kprism_session::files;

/// Probes that are written in a file.
#[derive(Debug, Clone)]
pub struct ProbeFile {
    /// The file's name, for errors.
    pub name: String,
    /// Its contents.
    pub written: Written,
}

impl ProbeFile {
    /// Reads a file; `-` is standard input. `name`: its name in errors, which on another machine is not where it is read.
    ///
    /// # Errors
    /// It cannot be read, or is no file of probes: FILE:LINE:COLUMN, and what was expected there.
    pub fn read(path: &Path, name: &Path) -> Result<Self> {
        let (name, bytes) = match path.as_os_str() == "-" {
            true => {
                let mut bytes = Vec::new();
                std::io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
                ("standard input".to_owned(), bytes)
            }
            false => (name.display().to_string(), files::read(path)?),
        };
        let written = written::parse(&bytes).map_err(|error| anyhow!("{name}:{error}"))?;
        Ok(Self { name, written })
    }

    /// An error of a probe with its place in the file.
    pub(super) fn located(&self, wanted: &Wanted, error: anyhow::Error) -> anyhow::Error {
        let at = error.downcast_ref().map_or(wanted.at, |error| wanted.position(error));
        anyhow!("{}:{at}: {error:#}", self.name)
    }
}
