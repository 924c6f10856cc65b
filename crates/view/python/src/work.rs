// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long work beside Python: a thread does it, so that other threads of Python run meanwhile and Ctrl-C ends the wait.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::{KprismError, refused};

/// Between two looks at Python's signals.
const LOOK: Duration = Duration::from_millis(50);

/// Does `work` in a thread of its own and returns its result.
///
/// # Errors
/// Those of `work`, and what a signal's handler raises, such as `KeyboardInterrupt`. The thread is not stopped then: it
/// ends by itself, or with the process. It writes files completely or not at all.
pub fn beside<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> PyResult<T> {
    let (tell, told) = channel();
    thread::Builder::new().name("kprism".into()).spawn(move || drop(tell.send(work())))?;
    py.detach(move || {
        loop {
            match told.recv_timeout(LOOK) {
                Ok(result) => return result.map_err(|error| refused(&error)),
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| py.check_signals())?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(KprismError::new_err(
                        "kprism itself failed: its message is on standard error",
                    ));
                }
            }
        }
    })
}
