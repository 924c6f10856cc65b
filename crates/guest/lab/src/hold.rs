// SPDX-License-Identifier: MIT OR Apache-2.0
//! The observer, as it holds the vCPUs' thread at the agent's stop marks, and QEMU's stop of a guest that is held.
//!
//! A guest that stops itself by a device is not stopped in the same state each time: see [`crate::stop_time`]. While the observer
//! holds the vCPUs, no guest time passes and nothing is idle, so QEMU has all the time it needs to stop the machine.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::error::{Context, Error, Result};
use crate::qemu::{Running, option};

/// Maximum time from the guest's message to its mark, which is a few instructions later.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time for QEMU's main thread to take the order to stop, while the guest is held. It takes microseconds, unless the host is very
/// busy. A guest that is let go too early is noticed.
const STOP_TIME: Duration = Duration::from_millis(100);

/// The host's end of the observer's connection.
#[derive(Debug)]
pub(crate) struct Holder(UnixStream);

impl Holder {
    /// A connection, and the end that QEMU is to inherit.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new(folder: &Path) -> Result<(Self, OwnedFd)> {
        let (host, guest) = UnixStream::pair().at("make a socket for", folder)?;
        host.set_read_timeout(Some(PATIENCE)).at("make a socket for", folder)?;
        Ok((Self(host), guest.into()))
    }

    /// The plugin's arguments: its file, and the descriptor that QEMU inherits.
    pub fn plugin(observer: &Path, guest: &OwnedFd) -> OsString {
        let mut plugin = option("", observer);
        plugin.push(Self::argument(guest));
        plugin
    }

    /// A further argument of the plugin.
    pub fn argument(guest: &OwnedFd) -> String {
        format!(",stops={}", guest.as_raw_fd())
    }

    /// Waits until the guest is held.
    ///
    /// # Errors
    /// The observer is gone, or the guest does not come to its mark.
    pub fn wait(&mut self) -> Result<()> {
        self.0.read_exact(&mut [0]).map_err(|source| unanswered(&source))
    }

    /// Adds what the observer says to `line`, for at most `limit`. Returns true if the line is whole.
    ///
    /// # Errors
    /// The connection fails, or the observer is gone.
    pub fn read_line(&mut self, line: &mut Vec<u8>, limit: Duration) -> io::Result<bool> {
        self.0.set_read_timeout(Some(limit))?;
        let mut bytes = [0; 4096];
        match self.0.read(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => line.extend_from_slice(&bytes[..n]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        Ok(line.ends_with(b"\n"))
    }

    /// Lets the guest go on.
    ///
    /// # Errors
    /// The observer is gone.
    pub fn release(&mut self) -> Result<()> {
        self.0.write_all(&[1]).map_err(|source| unanswered(&source))
    }

    /// Waits until the guest is held, and has QEMU stop it there.
    ///
    /// # Errors
    /// The observer is gone, or QEMU does not answer.
    pub fn stop(&mut self, qemu: &mut Running) -> Result<()> {
        self.wait()?;
        self.stop_held(qemu)
    }

    /// Has QEMU stop a guest that is held.
    ///
    /// # Errors
    /// The observer is gone, or QEMU does not answer.
    pub fn stop_held(&mut self, qemu: &mut Running) -> Result<()> {
        // The answer comes when the vCPUs have stopped, which they do only after they are released.
        let order = qemu.qmp.begin("stop", json!({}))?;
        std::thread::sleep(STOP_TIME);
        self.release()?;
        qemu.qmp.answer("stop", order).map(|_| ())
    }
}

fn unanswered(source: &std::io::Error) -> Error {
    Error::Qemu { reason: format!("the observer, to hold the guest: {source}") }
}
