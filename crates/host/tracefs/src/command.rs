// SPDX-License-Identifier: MIT OR Apache-2.0
//! Start of the traced command. The child process is forked but held before it executes its program, until the tracer
//! is ready for it.
//!
//! The input is an argument vector. The output is a [`Held`], which lets the program start, and a [`Running`], which
//! reports its end. Holding the child gives the recorder its process ID before the first instruction of the program
//! runs.

use std::io::{self, PipeWriter, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use crate::error::{Error, Result};
use crate::path::{self, NotFound};
use crate::signals::Bell;

/// A forked child that waits to execute the command's program.
pub struct Held {
    pub pid: u32,
    go: PipeWriter,
}

/// A command that was started.
pub struct Running {
    pid: u32,
    status: Receiver<io::Result<ExitStatus>>,
    program: String,
}

/// Fails if the program does not exist or is not executable. Called before anything is set up for it.
pub fn find(program: &str) -> Result<()> {
    path::find_here(program).map(drop).map_err(|why| {
        let kind = match why {
            NotFound::Missing => io::ErrorKind::NotFound,
            NotFound::NotExecutable(_) => io::ErrorKind::PermissionDenied,
        };
        Error::Command { program: program.to_owned(), source: io::Error::from(kind) }
    })
}

/// Starts the command up to the point before its program is executed. `bell` rings when the command has ended.
pub fn hold(argv: &[String], bell: &Bell) -> Result<(Held, Running)> {
    let [program, arguments @ ..] = argv else {
        return Err(Error::Setting("no command is given".into()));
    };
    let failed = |source| Error::Command { program: program.clone(), source };
    let (mut pid_from_child, pid_to_us) = io::pipe().map_err(failed)?;
    let (go_to_child, go) = io::pipe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(arguments);
    let (says, hears, ours) = (pid_to_us.as_raw_fd(), go_to_child.as_raw_fd(), go.as_raw_fd());
    // SAFETY: the closure makes only async-signal-safe system calls, on descriptors that are open: they are kept until
    // the child has its copies.
    unsafe {
        command.pre_exec(move || {
            // If the child kept this end open too, it would never notice a sudden end of the recorder.
            libc::close(ours);
            let pid = libc::getpid().to_ne_bytes();
            let mut byte = 0u8;
            if libc::write(says, pid.as_ptr().cast(), pid.len()) != pid.len() as isize
                || libc::read(hears, (&raw mut byte).cast(), 1) != 1
            {
                libc::_exit(125);
            }
            Ok(())
        });
    }
    let (sender, status) = channel();
    let bell = bell.clone();
    // `spawn` returns only once the child executes its program, so it gets a thread of its own.
    let waiter = std::thread::Builder::new().name("command".into()).spawn(move || {
        let mut command = command;
        let spawned = command.spawn();
        drop((pid_to_us, go_to_child));
        sender.send(spawned.and_then(|mut child| child.wait())).ok();
        bell.ring();
    });
    waiter.map_err(failed)?;
    let mut pid = [0; 4];
    let running = |pid| Running { pid, status, program: program.clone() };
    match pid_from_child.read_exact(&mut pid) {
        Ok(()) => {
            let pid = u32::from_ne_bytes(pid);
            Ok((Held { pid, go }, running(pid)))
        }
        // The fork failed.
        Err(error) => Err(running(0).take().and_then(|status| status.err()).unwrap_or_else(|| failed(error))),
    }
}

impl Held {
    /// Lets the child execute its program.
    pub fn release(mut self) -> io::Result<()> {
        self.go.write_all(&[1])
    }
}

impl Running {
    /// The command's exit status, or `None` while it runs.
    pub fn ended(&self) -> Option<Result<ExitStatus>> {
        match self.status.try_recv() {
            Ok(result) => Some(self.judge(result)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(self.judge(Err(io::Error::other("its end was not seen"))))
            }
        }
    }

    fn take(self) -> Option<Result<ExitStatus>> {
        self.status.recv().ok().map(|result| self.judge(result))
    }

    fn judge(&self, result: io::Result<ExitStatus>) -> Result<ExitStatus> {
        result.map_err(|source| Error::Command { program: self.program.clone(), source })
    }

    /// Waits up to `patience` for the command's end, then sends it SIGTERM and waits for its end.
    pub fn finish(self, patience: std::time::Duration) -> Option<Result<ExitStatus>> {
        match self.status.recv_timeout(patience) {
            Ok(result) => Some(self.judge(result)),
            Err(_) => {
                if let Ok(pid) = libc::pid_t::try_from(self.pid) {
                    // SAFETY: kill touches no memory; the process has not been waited for, so its number is still its
                    // own.
                    unsafe { libc::kill(pid, libc::SIGTERM) };
                }
                self.take()
            }
        }
    }

    /// Waits for the command's end without a limit.
    pub fn wait(self) -> Option<Result<ExitStatus>> {
        self.take()
    }
}
