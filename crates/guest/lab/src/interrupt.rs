// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles Ctrl-C. The first one makes every wait of this crate end cleanly. The second one ends the process at once
//! (and QEMU with it, see `qemu.rs`).

use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Handles SIGINT, SIGTERM and SIGHUP for the whole process. This is for programs; users of the library may call
/// [`request`] instead.
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = on_signal as extern "C" fn(libc::c_int);
        // SAFETY: the handler does nothing but an atomic swap and, at the second signal, _exit.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Requests a clean end, as the first Ctrl-C does.
pub fn request() {
    REQUESTED.store(true, Ordering::SeqCst);
}

/// Returns true if an end was requested.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

extern "C" fn on_signal(signal: libc::c_int) {
    if REQUESTED.swap(true, Ordering::SeqCst) {
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(128 + signal) };
    }
}
