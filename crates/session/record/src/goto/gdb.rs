// SPDX-License-Identifier: MIT OR Apache-2.0
//! GDB at a guest that is stopped: its command line, and a run of it.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use kprism_lab::replay::Stopped;
use kprism_signals::{InterruptsIgnored, take_interrupts};

/// Interval at which GDB is polled.
const POLL: Duration = Duration::from_millis(20);

/// A command line of GDB.
#[derive(Debug, Clone)]
pub struct Gdb {
    /// File with the kernel's symbols, if there is one.
    pub kernel: Option<PathBuf>,
    /// Commands that load the symbols of modules and programs, if there are some.
    pub script: Option<PathBuf>,
    /// The vCPU that is looked at first.
    pub cpu: u32,
    /// The socket to attach to.
    pub socket: PathBuf,
    /// Further arguments, after those that attach.
    pub more: Vec<OsString>,
}

impl Gdb {
    fn arguments(&self) -> Vec<OsString> {
        let mut attach = OsString::from("target remote ");
        attach.push(&self.socket);
        let mut all: Vec<OsString> = Vec::new();
        if let Some(script) = &self.script {
            all.extend(["-x".into(), script.as_os_str().to_owned()]);
        }
        // Without it GDB takes a kernel without symbols for 32-bit code.
        all.extend(["-ex".into(), "set architecture i386:x86-64".into(), "-ex".into(), attach]);
        if self.cpu > 0 {
            // GDB's threads are the vCPUs, counted from 1.
            all.extend(["-ex".into(), format!("thread {}", self.cpu + 1).into()]);
        }
        all.extend(self.more.iter().cloned());
        all.extend(self.kernel.iter().map(|file| file.as_os_str().to_owned()));
        all
    }

    /// The command for a shell.
    pub fn command(&self) -> String {
        self.arguments().iter().fold("gdb".to_owned(), |line, word| line + " " + &shell_word(word))
    }
}

/// One word of a shell's command line.
pub(super) fn shell_word(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Runs GDB in this terminal until it ends. Ctrl-C is GDB's meanwhile. Returns GDB's exit code, or `None` if a signal ended it.
///
/// # Errors
/// There is no GDB.
pub fn run_gdb(gdb: &Gdb, stopped: &mut Stopped) -> Result<Option<i32>> {
    let _ignored = InterruptsIgnored::begin()?;
    let mut command = Command::new("gdb");
    command.args(gdb.arguments());
    // SAFETY: the function makes one async-signal-safe call.
    unsafe {
        command.pre_exec(|| {
            take_interrupts();
            Ok(())
        });
    }
    let mut child = command.spawn().context("gdb: cannot be started (Debian: apt install gdb)")?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if kprism_signals::end_requested() {
            child.kill().ok();
        }
        // GDB shows the end of the guest by itself.
        stopped.is_there();
        std::thread::sleep(POLL);
    }
}

/// A file that GDB reads symbols from.
///
/// # Errors
/// It is not there.
pub fn symbol_file(path: &Path) -> Result<PathBuf> {
    std::fs::metadata(path).with_context(|| path.display().to_string())?;
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_for_a_shell() {
        let gdb = Gdb {
            kernel: Some("/a b/vmlinux".into()),
            script: Some("/tmp/x/symbols.gdb".into()),
            cpu: 0,
            socket: "/tmp/x/gdb".into(),
            more: vec![],
        };
        let command = gdb.command();
        assert!(command.starts_with("gdb -x /tmp/x/symbols.gdb -ex "), "{command}");
        assert!(command.ends_with("-ex 'target remote /tmp/x/gdb' '/a b/vmlinux'"), "{command}");
    }
}
