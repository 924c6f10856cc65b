// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds files of kprism's own build. The agent, the observer and others lie beside the running program.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::{Cache, Key};
use crate::error::{Context, Error, Result};

/// The guest's agent: `$KPRISM_AGENT`, or `kprism-agent` beside this program.
pub fn find_agent() -> Result<PathBuf> {
    find("kprism-agent", "KPRISM_AGENT")
}

/// The recorder for guests: `$KPRISM_RECORDER`, or `kprism-recorder` beside this program.
pub fn find_recorder() -> Result<PathBuf> {
    find("kprism-recorder", "KPRISM_RECORDER")
}

/// The recorder for machines with another processor, by the name that `uname -m` gives it: `$KPRISM_RECORDER_AARCH64`, or
/// `kprism-recorder-aarch64` beside this program.
///
/// # Errors
/// The file does not exist, or there is none for such a processor.
pub fn find_recorder_for(machine: &str) -> Result<PathBuf> {
    match machine {
        "aarch64" => {
            let (file, variable) = ("kprism-recorder-aarch64", "KPRISM_RECORDER_AARCH64");
            let missing = |_| {
                let own = std::env::current_exe().unwrap_or_default();
                Error::Option(format!(
                    "{file} is not beside {} or in ../lib/kprism, and {variable} does not name it",
                    own.display()
                ))
            };
            find(file, variable).map_err(missing)
        }
        other => Err(Error::Option(format!("there is no recorder for {other}"))),
    }
}

/// The observer: `$KPRISM_OBSERVER`, or `libkprism_observer.so` beside this program.
pub fn find_observer() -> Result<PathBuf> {
    find("libkprism_observer.so", "KPRISM_OBSERVER")
}

/// The program with DuckDB in it: `$KPRISM_SQL`, or `kprism-sql` beside this program.
///
/// # Errors
/// The file does not exist.
pub fn find_sql() -> Result<PathBuf> {
    find("kprism-sql", "KPRISM_SQL")
}

/// The plugin of QEMU's user mode, beside this program.
///
/// # Errors
/// The file does not exist.
pub fn find_user_plugin() -> Result<PathBuf> {
    find("libkprism_user.so", "KPRISM_USER_PLUGIN")
}

/// Programs of this name in the folders of PATH.
pub(crate) fn in_path(name: &Path) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).filter(|file| file.is_file()).collect()
}

/// A guest image that was installed with kprism: `guest.tar` beside this program, or in `../share/kprism`.
pub(crate) fn find_guest_image() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let place = own.parent()?;
    ["guest.tar", "../share/kprism/guest.tar"].iter().map(|name| place.join(name)).find(|path| path.is_file())
}

/// Identifies a file's content: 24 hexadecimal digits.
///
/// # Errors
/// The file cannot be read.
pub fn content(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).at("read", path)?;
    Ok(Key::default().add(bytes).finish())
}

/// QEMU's user mode with plugins: `$KPRISM_QEMU_USER`, the one that `scripts/qemu-user.sh` put into the cache, or
/// `qemu-x86_64` in PATH. Debian's own has no plugins from QEMU 9 on.
///
/// # Errors
/// None of them supports plugins.
pub fn find_qemu_user() -> Result<PathBuf> {
    let named = std::env::var_os("KPRISM_QEMU_USER").map(PathBuf::from);
    let cached = || Cache::open().ok().map(|cache| cache.folder().join("tools/qemu-user/qemu-x86_64"));
    let all = match &named {
        Some(path) => vec![path.clone()],
        None => cached().into_iter().chain([PathBuf::from("qemu-x86_64")]).collect(),
    };
    let help = |path: &Path| Command::new(path).arg("-help").output();
    let takes = |path: &PathBuf| {
        let said = help(path).map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        said.is_ok_and(|said| said.lines().any(|line| line.starts_with("-plugin")))
    };
    all.into_iter().find(takes).ok_or_else(|| {
        let found = match named {
            Some(path) => format!("KPRISM_QEMU_USER={} does not start, or takes no plugins", path.display()),
            None if help(Path::new("qemu-x86_64")).is_ok() => "the qemu-x86_64 here takes no plugins".into(),
            None => "there is no qemu-x86_64 here".into(),
        };
        let remedy = "scripts/qemu-user.sh gets one that does; --method model, in the guest, needs none";
        Error::Option(format!("{found}: {remedy}"))
    })
}

fn find(file: &str, variable: &'static str) -> Result<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    let place = own.parent().unwrap_or(&own).to_owned();
    let missing = || Error::NotBuilt { file: file.to_owned(), place: own.clone(), variable };
    if let Some(path) = std::env::var_os(variable).map(PathBuf::from) {
        return std::path::absolute(&path).ok().filter(|path| path.exists()).ok_or_else(missing);
    }
    // Tests and examples are built one folder deeper. Installed libraries lie in ../lib/kprism.
    ["", "..", "../lib/kprism"]
        .iter()
        .map(|step| place.join(step).join(file))
        .find(|path| path.exists())
        .ok_or_else(missing)
}
