// SPDX-License-Identifier: MIT OR Apache-2.0
//! A descriptor that wakes the recorder. The input is signals, the command's end and errors such as a full disk, which
//! all write to it; the output is a readable descriptor. One descriptor is used so that a single poll(2) can wait for
//! all of them.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static ALONE: AtomicBool = AtomicBool::new(false);
/// Descriptor to which the signal handler writes; -1 for none.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// Installs handlers for SIGINT, SIGTERM and SIGHUP. These signals end a recording, and the program then goes on to
/// restore everything.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = on_signal as extern "C" fn(libc::c_int);
        // SAFETY: the handler does nothing but an atomic store and a write(2).
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Installs the handlers, for a process that gets the signals alone and must forward them to the command. Otherwise the
/// terminal's Ctrl-C reaches the command too.
pub fn catch_alone() {
    ALONE.store(true, Ordering::SeqCst);
    catch();
}

/// True if the command receives signals only from this process.
pub(crate) fn alone() -> bool {
    ALONE.load(Ordering::SeqCst)
}

/// True if one of the signals has arrived.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

extern "C" fn on_signal(_: libc::c_int) {
    REQUESTED.store(true, Ordering::SeqCst);
    let one = 1u64.to_ne_bytes();
    // SAFETY: write is async-signal-safe, and the eight bytes are ours. With a closed descriptor it only fails.
    unsafe { libc::write(WAKE.load(Ordering::SeqCst), one.as_ptr().cast(), 8) };
}

/// An eventfd. Clones share the same eventfd.
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

    /// Wakes the waiting thread, or the next one that waits.
    pub fn ring(&self) {
        (&*self.0).write_all(&1u64.to_ne_bytes()).ok();
    }

    /// Makes signals ring this bell. The handler uses a duplicate descriptor that is never closed, because it may run
    /// at any time.
    pub fn take_signals(&self) -> io::Result<()> {
        WAKE.store(self.0.try_clone()?.into_raw_fd(), Ordering::SeqCst);
        Ok(())
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Resets the bell.
    pub fn reset(&self) {
        let mut count = [0; 8];
        (&*self.0).read_exact(&mut count).ok();
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
