// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole runs of this machine, by a program without kprism's store and analyses: on a board, or at the other end of ssh.
//!
//! The input is that of [`crate::record()`] and [`crate::boot::collect`]. The output is a run folder: what these write, symbols and
//! `manifest.json`. It lacks tables and accounts, which kprism makes when it first reads the run.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use kprism_manifest::{Manifest, begun};

use crate::boot::{self, Collected};
use crate::error::{Context as _, Error, Result};
use crate::journal::Undone;
use crate::record::{self, Recording};
use crate::settings::Settings;

/// Records `command` into a new run at `folder`; see [`crate::record()`].
///
/// # Errors
/// `folder` is there already, or as of [`crate::record()`]. What is impossible is refused before the folder is made.
pub fn record(
    settings: &Settings,
    command: &[String],
    folder: &Path,
    undone: &mut dyn FnMut(&Undone),
) -> Result<Recording> {
    record::ready(settings, command)?;
    create(folder)?;
    let mut manifest = begun(command);
    write(&manifest, folder)?;
    let recording = record::record(settings, command, folder, undone)?;
    manifest.stopped = None;
    recording.enter(&mut manifest).map_err(std::io::Error::other).at("write", &folder.join(MANIFEST))?;
    write(&manifest, folder)?;
    Ok(recording)
}

/// Collects this boot's trace into a new run at `folder`; see [`boot::collect`].
///
/// # Errors
/// `folder` is there already, or as of [`boot::collect`]. A boot that was not traced is refused before the folder is made.
pub fn boot(folder: &Path) -> Result<Collected> {
    boot::ready()?;
    create(folder)?;
    let mut manifest = begun(&[]);
    write(&manifest, folder)?;
    let collected = boot::collect(folder, true)?;
    manifest.stopped = None;
    collected.enter(&mut manifest);
    write(&manifest, folder)?;
    Ok(collected)
}

const MANIFEST: &str = "manifest.json";

/// Makes the folder, which only its owner can read: a run has the kernel's addresses. An empty one may be there.
fn create(folder: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let is_empty = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
            match is_empty {
                true => Ok(()),
                false => {
                    Err(Error::Setting(format!("{} is there already: name another folder", folder.display())))
                }
            }
        }
        made => made.at("create", folder),
    }
}

fn write(manifest: &Manifest, folder: &Path) -> Result<()> {
    let path = folder.join(MANIFEST);
    let text = serde_json::to_vec_pretty(manifest).map_err(std::io::Error::other).at("write", &path)?;
    fs::write(&path, text).at("write", &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_made_in_a_new_folder_alone() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        create(&folder).unwrap();
        create(&folder).unwrap();
        write(&begun(&["true".into()]), &folder).unwrap();
        let manifest: Manifest = serde_json::from_slice(&fs::read(folder.join(MANIFEST)).unwrap()).unwrap();
        assert_eq!((manifest.command[0].as_str(), manifest.kernel.is_some()), ("true", true));
        assert!(manifest.stopped.is_some(), "it has not ended");
        let why = create(&folder).unwrap_err().to_string();
        assert!(why.contains("is there already"), "{why}");
        assert!(create(&place.path().join("no/such/place")).is_err());
    }
}
