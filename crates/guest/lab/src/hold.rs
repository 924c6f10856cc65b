// SPDX-License-Identifier: MIT OR Apache-2.0
//! The observer, as it holds the vCPUs' thread at the agent's stop marks and at the edges of windows, and QEMU's stop of a guest
//! that is held.
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

/// The host's bytes: the guest goes on; it goes on when QEMU's main thread has taken the order to stop it. That takes microseconds
/// unless this machine is busy.
const GO_ON: u8 = 1;
const STOP: u8 = 2;

/// The observer's bytes: the guest is held at a stop mark, where a window opens, where it closes. After the last two, guest time
/// follows.
const MARK: u8 = 1;
const OPENS: u8 = 2;
const CLOSES: u8 = 3;

/// A place at which the guest is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// At a stop mark of the agent.
    Mark,
    /// A window opens or closes, at this guest time in ns.
    Window { opens: bool, ns: u64 },
}

/// The host's end of the observer's connection.
#[derive(Debug)]
pub(crate) struct Holder {
    socket: UnixStream,
    /// A mark that was seen before its message.
    at_mark: bool,
}

impl Holder {
    /// A connection, and the end that QEMU is to inherit.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new(folder: &Path) -> Result<(Self, OwnedFd)> {
        let (host, guest) = UnixStream::pair().at("make a socket for", folder)?;
        host.set_read_timeout(Some(PATIENCE)).at("make a socket for", folder)?;
        Ok((Self { socket: host, at_mark: false }, guest.into()))
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

    /// Waits until the guest is held at a mark.
    ///
    /// # Errors
    /// The observer is gone, or the guest does not come to its mark.
    pub fn wait(&mut self) -> Result<()> {
        match self.held()? {
            Held::Mark => Ok(()),
            Held::Window { .. } => Err(Error::Qemu {
                reason: "the observer holds the guest at a window that nobody asked for".into(),
            }),
        }
    }

    /// Waits until the guest is held anywhere.
    ///
    /// # Errors
    /// As of [`Holder::wait`].
    pub fn held(&mut self) -> Result<Held> {
        if std::mem::take(&mut self.at_mark) {
            return Ok(Held::Mark);
        }
        let mut kind = [0];
        self.socket.read_exact(&mut kind).map_err(|source| unanswered(&source))?;
        self.rest_of(kind[0])
    }

    /// Returns where a window opens or closes, if the guest is held there now.
    ///
    /// # Errors
    /// The connection fails. An observer that is gone is none: QEMU's end says more.
    pub fn at_window(&mut self) -> Result<Option<Held>> {
        if self.at_mark {
            return Ok(None);
        }
        let mut kind = [0];
        let read = self.socket.set_nonblocking(true).and_then(|()| self.socket.read(&mut kind));
        self.socket.set_nonblocking(false).map_err(|source| unanswered(&source))?;
        match read {
            Ok(0) => Ok(None),
            Ok(_) => {
                let held = self.rest_of(kind[0])?;
                self.at_mark = held == Held::Mark;
                Ok(Some(held).filter(|held| *held != Held::Mark))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(unanswered(&error)),
        }
    }

    /// Reads what follows the observer's byte.
    fn rest_of(&mut self, kind: u8) -> Result<Held> {
        match kind {
            MARK => Ok(Held::Mark),
            OPENS | CLOSES => {
                let mut ns = [0; 8];
                self.socket.read_exact(&mut ns).map_err(|source| unanswered(&source))?;
                Ok(Held::Window { opens: kind == OPENS, ns: u64::from_le_bytes(ns) })
            }
            other => Err(Error::Qemu { reason: format!("the observer says nonsense: {other}") }),
        }
    }

    /// Adds what the observer says to `line`, for at most `limit`. Returns true if the line is whole.
    ///
    /// # Errors
    /// The connection fails, or the observer is gone.
    pub fn read_line(&mut self, line: &mut Vec<u8>, limit: Duration) -> io::Result<bool> {
        self.socket.set_read_timeout(Some(limit))?;
        let mut bytes = [0; 4096];
        match self.socket.read(&mut bytes) {
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
        self.answer(GO_ON)
    }

    fn answer(&mut self, byte: u8) -> Result<()> {
        self.socket.write_all(&[byte]).map_err(|source| unanswered(&source))
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
        self.answer(STOP)?;
        qemu.qmp.answer("stop", order).map(|_| ())
    }
}

fn unanswered(source: &std::io::Error) -> Error {
    Error::Qemu { reason: format!("the observer, to hold the guest: {source}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Holder, UnixStream) {
        let (holder, guest) = Holder::new(Path::new("/")).unwrap();
        (holder, guest.into())
    }

    #[test]
    fn windows_and_marks_are_told_apart_in_any_order() {
        let (mut holder, mut observer) = pair();
        assert_eq!(holder.at_window().unwrap(), None);
        let window = |kind: u8, ns: u64| [&[kind][..], &ns.to_le_bytes()].concat();
        observer.write_all(&window(2, 7)).unwrap();
        assert_eq!(holder.at_window().unwrap(), Some(Held::Window { opens: true, ns: 7 }));
        // A mark is for whoever waits for it, after the agent's message.
        observer.write_all(&[1]).unwrap();
        assert_eq!(holder.at_window().unwrap(), None);
        assert_eq!(holder.at_window().unwrap(), None);
        assert_eq!(holder.held().unwrap(), Held::Mark);
        observer.write_all(&window(3, u64::MAX)).unwrap();
        assert_eq!(holder.held().unwrap(), Held::Window { opens: false, ns: u64::MAX });
        observer.write_all(&window(3, 0)).unwrap();
        assert!(holder.wait().unwrap_err().to_string().contains("nobody asked for"));
        observer.write_all(&[9]).unwrap();
        assert!(holder.held().unwrap_err().to_string().contains("nonsense"));
        holder.release().unwrap();
        let mut answer = [0];
        observer.read_exact(&mut answer).unwrap();
        drop(observer);
        assert_eq!(holder.at_window().unwrap(), None, "QEMU's end is told elsewhere");
        assert!(holder.held().is_err());
    }
}
