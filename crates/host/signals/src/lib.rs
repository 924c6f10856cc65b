// SPDX-License-Identifier: MIT OR Apache-2.0
//! SIGINT, SIGTERM and SIGHUP as a request to end, and SIGUSR2 as a request for a snapshot.
//!
//! A recorder looks at [`end_requested`] while it waits, ends what it began, and keeps what it has. Nothing is caught until a
//! program says so: [`catch`] at its start. A library's user may call [`request_end`] instead.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::{flag, low_level};

const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The effect of a second signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Second {
    /// It ends the process at once, with 128 and its number. QEMU and other children end with this process.
    EndsProcess,
    /// None: the process has to put something back before it ends.
    Ignored,
}

fn end() -> &'static Arc<AtomicBool> {
    static END: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    END.get_or_init(Arc::default)
}

fn snapshot() -> &'static Arc<AtomicBool> {
    static SNAPSHOT: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    SNAPSHOT.get_or_init(Arc::default)
}

/// True once [`catch`] was called.
static CAUGHT: AtomicBool = AtomicBool::new(false);

/// Catches SIGINT, SIGTERM and SIGHUP for the whole process. Only the first call has an effect.
///
/// # Errors
/// The kernel refuses to change a signal's handler.
pub fn catch(second: Second) -> io::Result<()> {
    if CAUGHT.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    for signal in ENDING {
        if second == Second::EndsProcess {
            // Before the flag is set: actions run in the order in which they were registered.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(end()))?;
        }
        flag::register(signal, Arc::clone(end()))?;
    }
    Ok(())
}

/// Requests an end, as the first signal does.
pub fn request_end() {
    end().store(true, Ordering::SeqCst);
}

/// True if an end was requested.
pub fn end_requested() -> bool {
    end().load(Ordering::SeqCst)
}

/// Has each of the signals write a byte to `to`, for a thread that sleeps in poll(2). Without [`catch`] it does nothing: the
/// signals then end the process, as they do without this crate.
///
/// # Errors
/// The kernel refuses to change a signal's handler.
pub fn wake(to: &UnixStream) -> io::Result<()> {
    if !CAUGHT.load(Ordering::SeqCst) {
        return Ok(());
    }
    ENDING.into_iter().try_for_each(|signal| low_level::pipe::register(signal, to.try_clone()?).map(drop))
}

/// Catches SIGUSR2, which otherwise ends a process.
///
/// # Errors
/// The kernel refuses to change the signal's handler.
pub fn catch_snapshot() -> io::Result<()> {
    flag::register(SIGUSR2, Arc::clone(snapshot())).map(drop)
}

/// Ignores SIGINT until it is dropped: Ctrl-C is meant for a program that runs in this terminal meanwhile.
#[derive(Debug)]
pub struct InterruptsIgnored(libc::sigaction);

impl InterruptsIgnored {
    /// Ignores SIGINT from now on. A program that is started inherits that, unless it calls [`take_interrupts`] before.
    ///
    /// # Errors
    /// The kernel refuses to change the signal's handler.
    pub fn begin() -> io::Result<Self> {
        // SAFETY: both structures are plain data, valid during the call; all zero but the handler is a valid action.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            let mut ignore: libc::sigaction = std::mem::zeroed();
            ignore.sa_sigaction = libc::SIG_IGN;
            match libc::sigaction(SIGINT, &ignore, &mut before) {
                0 => Ok(Self(before)),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }
}

impl Drop for InterruptsIgnored {
    fn drop(&mut self) {
        // SAFETY: puts back what the kernel returned.
        unsafe { libc::sigaction(SIGINT, &self.0, std::ptr::null_mut()) };
    }
}

/// Lets SIGINT end the calling process. Async-signal-safe: to be called between fork and exec.
pub fn take_interrupts() {
    // SAFETY: sets the default action, which needs no code.
    unsafe { libc::signal(SIGINT, libc::SIG_DFL) };
}

/// True if SIGUSR2 came since the last call.
pub fn snapshot_requested() -> bool {
    snapshot().swap(false, Ordering::SeqCst)
}
