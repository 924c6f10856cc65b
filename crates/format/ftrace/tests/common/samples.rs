// SPDX-License-Identifier: MIT OR Apache-2.0
//! The samples of ftrace, for the tests of who reads them: from the folder named by `KPRISM_TEST_DATA`.

use std::process::Command;

use kprism_test::captures;

/// The unpacked samples, in a folder that goes with the value. Without them the test is ignored.
pub fn samples() -> tempfile::TempDir {
    let archive = captures("ftrace/ftrace-samples.tar.xz");
    let dir = tempfile::tempdir().expect("a folder");
    let status =
        Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(dir.path()).status().expect("tar");
    assert!(status.success());
    dir
}
