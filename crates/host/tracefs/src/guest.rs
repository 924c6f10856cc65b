// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recording in a guest, in two steps: all that does not depend on the command, and the command.
//!
//! [`make_ready`] takes [`Settings`] and leaves the tracer on, with recording off. [`record`] takes the command, in another
//! process perhaps; its output is that of [`crate::record()`]. Between the two steps the guest can be saved. Switching the tracer
//! on patches each of the kernel's 43,000 functions three times, for each of which QEMU forgets all translated addresses: seconds.
//!
//! Nothing is put back: the guest ends. So there is neither a journal nor a guard.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::calibrate::Cost;
use crate::error::{Context as _, Result};
use crate::journal::Journal;
use crate::record::{Recording, describe_before, record_ready};
use crate::setup::{self, Place};
use crate::tracefs::Tracefs;
use crate::{STREAMS, Settings, command};

/// All that the second step needs of the first.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Ready {
    settings: Settings,
    /// Folder of the instance, relative to tracefs. Empty for the top level.
    folder: String,
    cpus: Vec<u32>,
    events: Vec<String>,
    functions: Option<usize>,
    cost: Option<Cost>,
}

/// Sets tracefs up for a recording into the run at `folder`, up to the choice of tasks.
///
/// # Errors
/// The kernel has no such tracer, function or event, or tracefs refuses.
pub fn make_ready(settings: &Settings, folder: &Path) -> Result<()> {
    let tracefs = Tracefs::find()?;
    setup::check(settings, &tracefs)?;
    let output = folder.join(STREAMS);
    fs::create_dir_all(&output).at("create", &output)?;
    let mut place = setup::prepare(settings, &tracefs, &mut Journal::none(&tracefs), false)?;
    describe_before(settings, &tracefs, &mut place, folder)?;
    let Place { folder: instance, cpus, events, functions, cost, .. } = place;
    let ready = Ready { settings: settings.clone(), folder: instance, cpus, events, functions, cost };
    let path = file(folder);
    let text = serde_json::to_vec(&ready).map_err(std::io::Error::other).at("write", &path)?;
    fs::write(&path, text).at("write", &path)
}

/// Records `command` into the run at `folder`, for which [`make_ready`] was called.
///
/// # Errors
/// It was not called, the command cannot be run, or nothing could be recorded.
pub fn record(argv: &[String], folder: &Path) -> Result<Recording> {
    argv.first().map_or(Ok(()), |program| command::find(program))?;
    let path = file(folder);
    let text = fs::read(&path).at("read", &path)?;
    let ready: Ready = serde_json::from_slice(&text).map_err(std::io::Error::other).at("read", &path)?;
    // It is not a part of the run.
    fs::remove_file(&path).at("remove", &path)?;
    let Ready { settings, folder: instance, cpus, events, functions, cost } = ready;
    let place = Place::made(instance, cpus, events, functions, cost);
    record_ready(&settings, &Tracefs::find()?, &place, argv, folder)
}

/// File that one step leaves to the other.
fn file(folder: &Path) -> PathBuf {
    folder.join(STREAMS).join("ready.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_looked_for_before_what_is_ready_is_used_up() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join(STREAMS)).unwrap();
        fs::write(file(folder.path()), "{").unwrap();
        let said = |argv: &[&str]| {
            let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
            record(&argv, folder.path()).unwrap_err()
        };
        assert_eq!(said(&["/no/such/program"]).command_code(), Some(127));
        let why = said(&["/bin/sh"]).to_string();
        assert!(why.contains("ready.json"), "{why}");
        assert!(file(folder.path()).exists());
    }
}
