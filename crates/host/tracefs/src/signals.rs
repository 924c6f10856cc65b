// SPDX-License-Identifier: MIT OR Apache-2.0
//! A descriptor that wakes the recorder. Signals, the command's end and errors such as a full disk all write to it, so that a
//! single poll(2) waits for all of them.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kprism_signals::Second;

static ALONE: AtomicBool = AtomicBool::new(false);

/// Catches the signals that end a recording, for a process that gets them alone and must forward them to the command.
/// Otherwise the terminal's Ctrl-C reaches the command too.
///
/// # Errors
/// The kernel refuses to change a signal's handler.
pub fn catch_alone() -> io::Result<()> {
    ALONE.store(true, Ordering::SeqCst);
    kprism_signals::catch(Second::Ignored)
}

/// True if the command receives signals only from this process.
pub(crate) fn alone() -> bool {
    ALONE.load(Ordering::SeqCst)
}

/// A pair of connected sockets that do not block. Clones share the same pair.
#[derive(Debug, Clone)]
pub(crate) struct Bell(Arc<(UnixStream, UnixStream)>);

impl Bell {
    pub fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        Ok(Self(Arc::new((read, write))))
    }

    /// Wakes the waiting thread, or the next one that waits.
    pub fn ring(&self) {
        // A socket that is full wakes it as well.
        (&self.0.1).write_all(&[1]).ok();
    }

    /// Makes signals ring this bell.
    pub fn take_signals(&self) -> io::Result<()> {
        kprism_signals::wake(&self.0.1)
    }

    pub fn fd(&self) -> RawFd {
        self.0.0.as_raw_fd()
    }

    /// Resets the bell.
    pub fn reset(&self) {
        let mut rung = [0; 64];
        while (&self.0.0).read(&mut rung).is_ok_and(|n| n == rung.len()) {}
    }
}

/// Sleeps until one of the descriptors is readable, or `limit` has passed. Negative descriptors are ignored.
pub(crate) fn wait(descriptors: &[RawFd], limit: Option<std::time::Duration>) {
    let mut polled: Vec<libc::pollfd> =
        descriptors.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let ms = limit.map_or(-1, |limit| i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
    // SAFETY: the length passed is the array's.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, ms) };
}
