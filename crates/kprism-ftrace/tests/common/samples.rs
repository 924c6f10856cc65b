// SPDX-License-Identifier: MIT OR Apache-2.0
//! The samples of ftrace, for the tests of who reads them: `KPRISM_TEST_DATA`, or `../shared/data` beside the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The unpacked samples, in a folder that goes with the value.
pub fn samples() -> Option<tempfile::TempDir> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let data = std::env::var_os("KPRISM_TEST_DATA").map_or(root.join("../shared/data"), PathBuf::from);
    let archive = data.join("ftrace/ftrace-samples.tar.xz");
    if !archive.is_file() {
        println!("skipped: no samples of ftrace");
        return None;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let status =
        Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(dir.path()).status().expect("tar");
    assert!(status.success());
    Some(dir)
}
