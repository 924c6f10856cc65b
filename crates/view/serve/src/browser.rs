// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the address in the user's browser, where there is one.
//!
//! Command lines are seen by every user of a machine, so the address, which holds the token, is in none: the browser gets a
//! file that only this user can read, and that leads on to the address.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The file that leads to the address; dropping it removes it.
#[derive(Debug)]
pub struct Lead(PathBuf);

impl Drop for Lead {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Asks `xdg-open` to show `url`. `None` if there is no display.
///
/// # Errors
/// The file cannot be written, or `xdg-open` cannot be started.
pub fn open(url: &str) -> io::Result<Option<Lead>> {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !is_set("DISPLAY") && !is_set("WAYLAND_DISPLAY") {
        return Ok(None);
    }
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    let folder = folder.unwrap_or_else(std::env::temp_dir);
    let path = folder.join(format!("kprism-view-{}.html", std::process::id()));
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let lead = Lead(path);
    writeln!(
        file,
        "<!DOCTYPE html><meta charset=\"utf-8\"><title>kprism</title>\
         <meta http-equiv=\"refresh\" content=\"0; url={url}\"><a href=\"{url}\">kprism view</a>"
    )?;
    let mut opener = Command::new("xdg-open");
    opener.arg(&lead.0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = opener.spawn()?;
    // Ends by itself; somebody has to take note.
    std::thread::spawn(move || child.wait());
    Ok(Some(lead))
}
