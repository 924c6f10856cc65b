// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of a run as bytes, with their names in errors.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// A file, its name in the error.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

/// A file that a run may lack: empty then.
///
/// # Errors
/// It is there and cannot be read.
pub fn read_if_there(path: &Path) -> Result<Vec<u8>> {
    match fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.with_context(|| path.display().to_string()),
    }
}
