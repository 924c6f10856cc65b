// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding what the build made: the agent, the observer and the recorder lie beside the program that runs.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// The guest's agent: `$KPRISM_AGENT`, or `kprism-agent` beside this program.
pub fn find_agent() -> Result<PathBuf> {
    find("kprism-agent", "KPRISM_AGENT")
}

/// The recorder for guests: `$KPRISM_RECORDER`, or `kprism-recorder` beside this program.
pub fn find_recorder() -> Result<PathBuf> {
    find("kprism-recorder", "KPRISM_RECORDER")
}

/// The observer: `$KPRISM_OBSERVER`, or `libkprism_observer.so` beside this program.
pub fn find_observer() -> Result<PathBuf> {
    find("libkprism_observer.so", "KPRISM_OBSERVER")
}

/// The plugin of QEMU's user mode, beside this program.
///
/// # Errors
/// It is not there.
pub fn find_user_plugin() -> Result<PathBuf> {
    find("libkprism_user.so", "KPRISM_USER_PLUGIN")
}

fn find(file: &str, variable: &'static str) -> Result<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    let place = own.parent().unwrap_or(&own).to_owned();
    let missing = || Error::NotBuilt { file: file.to_owned(), place: own.clone(), variable };
    if let Some(path) = std::env::var_os(variable).map(PathBuf::from) {
        return std::path::absolute(&path).ok().filter(|path| path.exists()).ok_or_else(missing);
    }
    // Tests and examples are built one folder further down; installed libraries lie in ../lib/kprism.
    ["", "..", "../lib/kprism"]
        .iter()
        .map(|step| place.join(step).join(file))
        .find(|path| path.exists())
        .ok_or_else(missing)
}
