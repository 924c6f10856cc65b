// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests with a guest share: the program, run with arguments.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard};

use serde_json::Value;

/// Guests are large and the machine may be small: holds others off while one runs.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner())
}

/// Runs kprism.
pub fn kprism(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

/// Runs kprism, which must succeed, and gives its standard output.
pub fn ok(args: &[&str]) -> Vec<u8> {
    let output = kprism(args);
    assert!(output.status.success(), "kprism {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The same for one that prints JSON.
pub fn json(args: &[&str]) -> Value {
    serde_json::from_slice(&ok(args)).expect("--json prints JSON")
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is UTF-8")
}

/// Builds a program whose function `work` begins with `planted` and is called so often, and records it.
pub fn planted(dir: &Path, name: &str, planted: &str, calls: u64) -> PathBuf {
    let share = dir.join(name);
    fs::create_dir(&share).unwrap();
    let source = format!(
        "static int sum;\n\
         __attribute__((noinline)) void work(int n) {{ __asm__ volatile(\"{planted}\"); sum += n; }}\n\
         int main(void) {{ for (int n = 1; n <= {calls}; n++) work(n); return sum == 0; }}\n\
         __attribute__((used)) int never(int n) {{ return n + 1; }}\n"
    );
    fs::write(share.join("program.c"), source).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-g", "-static", "-falign-functions=64", "-o", "program", "program.c"])
        .current_dir(&share)
        .status();
    assert!(built.expect("a C compiler is installed").success());
    let run = dir.join(format!("{name}.data"));
    ok(&["lab", "run", "-q", "-o", text(&run), "--share", text(&share), "--", "/share/program"]);
    run
}
