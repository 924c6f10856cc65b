// SPDX-License-Identifier: MIT OR Apache-2.0
//! A signal wakes only a program that asked for it. Each test runs once more in a child, which raises SIGTERM on itself.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use kprism_signals::{Second, catch, end_requested, wake};

/// Set in a child.
const CHILD: &str = "KPRISM_SIGNALS_CHILD";

fn in_child(test: &str, body: impl FnOnce()) -> Option<ExitStatus> {
    if std::env::var_os(CHILD).is_some() {
        body();
        return None;
    }
    let this = std::env::current_exe().expect("the test's own file");
    Some(Command::new(this).args(["--exact", test]).env(CHILD, "1").status().expect("child starts"))
}

fn wake_and_raise() {
    let (mut read, write) = UnixStream::pair().expect("a pair of sockets");
    wake(&write).expect("handlers");
    signal_hook::low_level::raise(signal_hook::consts::SIGTERM).expect("signal");
    assert!(end_requested());
    read.read_exact(&mut [0]).expect("a byte from the handler");
}

#[test]
fn a_signal_that_nobody_caught_ends_the_process() {
    if let Some(status) = in_child("a_signal_that_nobody_caught_ends_the_process", wake_and_raise) {
        assert_eq!(status.signal(), Some(signal_hook::consts::SIGTERM));
    }
}

#[test]
fn a_caught_signal_requests_an_end_and_writes_a_byte() {
    let body = || {
        catch(Second::Ignored).expect("handlers");
        wake_and_raise();
    };
    if let Some(status) = in_child("a_caught_signal_requests_an_end_and_writes_a_byte", body) {
        assert!(status.success());
    }
}
