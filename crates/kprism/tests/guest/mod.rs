// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests with a guest share: the program, run with arguments.
#![allow(dead_code)]

use std::path::Path;
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
