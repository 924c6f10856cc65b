// SPDX-License-Identifier: MIT OR Apache-2.0
//! One descriptor that wakes the recorder: signals, the command's end, a full disk, all write to it.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static ALONE: AtomicBool = AtomicBool::new(false);
/// Where the handler writes to; -1 for nowhere.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// Takes SIGINT, SIGTERM and SIGHUP: they end a recording, and then the program goes on to put everything back.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = on_signal as extern "C" fn(libc::c_int);
        // SAFETY: the handler does nothing but an atomic store and a write(2).
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// The same where nobody else gets them: the command has to be told by us. Otherwise the terminal's Ctrl-C reaches it too.
pub fn catch_alone() {
    ALONE.store(true, Ordering::SeqCst);
    catch();
}

/// Whether the command gets no signals but ours.
pub(crate) fn alone() -> bool {
    ALONE.load(Ordering::SeqCst)
}

/// Whether such a signal came.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

extern "C" fn on_signal(_: libc::c_int) {
    REQUESTED.store(true, Ordering::SeqCst);
    let one = 1u64.to_ne_bytes();
    // SAFETY: write is async-signal-safe, and the eight bytes are ours. A closed descriptor is an error, no harm.
    unsafe { libc::write(WAKE.load(Ordering::SeqCst), one.as_ptr().cast(), 8) };
}

/// An eventfd; clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Bell(Arc<File>);

impl Bell {
    pub fn new() -> io::Result<Self> {
        // SAFETY: makes a descriptor, which is owned from here on.
        unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(Arc::new(File::from(OwnedFd::from_raw_fd(fd)))))
        }
    }

    /// Wakes whoever waits, now or later.
    pub fn ring(&self) {
        (&*self.0).write_all(&1u64.to_ne_bytes()).ok();
    }

    /// Signals ring it from now on, by a descriptor that is never closed: the handler may run at any time.
    pub fn take_signals(&self) -> io::Result<()> {
        WAKE.store(self.0.try_clone()?.into_raw_fd(), Ordering::SeqCst);
        Ok(())
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Silences it.
    pub fn hush(&self) {
        let mut count = [0; 8];
        (&*self.0).read_exact(&mut count).ok();
    }
}

/// Sleeps until one of the descriptors can be read, or `limit` is over. Negative ones are left out.
pub(crate) fn wait(descriptors: &[RawFd], limit: Option<std::time::Duration>) {
    let mut polled: Vec<libc::pollfd> =
        descriptors.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let ms = limit.map_or(-1, |limit| i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
    // SAFETY: the array is as long as is said.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, ms) };
}
