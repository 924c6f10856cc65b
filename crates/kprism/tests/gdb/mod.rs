// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions of the real GDB with `kprism gdbserver`, for tests.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use kprism_test::{BPF, GDB, ROOT, UPROBES, needs, until};

/// Programs and scripts of the tests.
pub const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gdbserver");

/// uprobes need root, and the sessions GDB.
pub fn allowed() {
    needs(&[ROOT, BPF, UPROBES, GDB]);
}

pub fn built(dir: &Path, source: &Path, flags: &[&str]) -> PathBuf {
    let program = dir.join(source.file_stem().unwrap());
    let status = Command::new("gcc").args(["-g", "-o"]).arg(&program).args(flags).arg(source).status();
    assert!(status.expect("gcc runs").success());
    program
}

/// Longest time that anything waited for may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A program or server, ended when dropped.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

pub struct Server {
    pub process: Running,
    pub socket: PathBuf,
    dir: PathBuf,
}

impl Server {
    pub fn start(dir: &Path, args: &[&str], then: &[&str], stdout: Stdio) -> Self {
        let socket = dir.join("socket");
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        command.arg("gdbserver").args(args).arg(&socket).args(then).stdout(stdout).stderr(Stdio::null());
        let process = Running(command.spawn().expect("kprism runs"));
        until(PATIENCE, "no socket", || socket.exists());
        Self { process, socket, dir: dir.to_owned() }
    }

    pub fn gdb(&self, program: Option<&Path>, script: &str) -> String {
        let file = self.dir.join("session.gdb");
        let head = "set remotetimeout 60\nset pagination off\nset confirm off\nset sysroot /\nset print thread-events off\n";
        let head = format!("{head}target remote {}\n", self.socket.display());
        fs::write(&file, head + script).unwrap();
        session(program, &file, &self.dir)
    }
}

/// Runs a script; what GDB printed, errors too. GDB 13 assigns to a string before it is made where it sees a static
/// tracepoint: memory that is zero makes that harmless.
pub fn session(program: Option<&Path>, script: &Path, dir: &Path) -> String {
    let Output { stdout, stderr, .. } = Command::new("timeout")
        .args(["120", "gdb", "-nx", "-batch", "-x"])
        .arg(script)
        .args(program)
        .current_dir(dir)
        .env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.perturb=255")
        .stdin(Stdio::null())
        .output()
        .expect("gdb runs");
    format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr))
}

/// The part after `== NAME`.
pub fn section<'a>(text: &'a str, name: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("== {name}\n")).unwrap_or_else(|| panic!("no {name}: {text}"));
    &rest[..rest.find("\n== ").map_or(rest.len(), |end| end + 1)]
}

pub fn numbers_after<'a>(text: &'a str, head: &'a str) -> impl Iterator<Item = i64> + 'a {
    text.lines().filter_map(move |line| line.strip_prefix(head)?.trim().parse().ok())
}
