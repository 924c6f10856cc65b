// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one job: the commands before it, its warm-up turns, the command between its marks, and the forwarding of its output.

use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use kprism_agent::gcov::{FOLDER, Session};
use kprism_agent::mark::{MARK_BEGIN, MARK_END, MARK_STOP, mark};
use kprism_agent::{
    CONTROL_PORT, CounterReading, Job, Message, PAUSE, PAUSE_PORT, STDERR_PORT, STDIN_FILE, STDOUT_PORT,
};
use kprism_layout::GcovFiles;

use crate::ports;

/// Runs the commands before, then the command itself. Returns its exit code as a shell would, and the counters, if they
/// were read here.
pub fn run(job: &Job, mut say: impl FnMut(Message)) -> io::Result<(u8, Option<Session>)> {
    let children = ChildSignal::new()?;
    run_lines(&job.before, job, &children)?;
    has_folder(job)?;
    for _ in 0..job.warm.turns {
        let code = warm_up(job, &children)?;
        say(Message::Turn { code });
    }
    run_lines(&job.begin, job, &children)?;
    has_folder(job)?;
    let stop_marks = StopMarks::new(job.counters == CounterReading::Held)?;
    let mut session = match job.counters {
        CounterReading::Read => Some(Session::begin(Path::new(FOLDER)).map_err(|error| {
            io::Error::other(format!(
                "{FOLDER}: {error}: the kernel needs CONFIG_GCOV_KERNEL and CONFIG_DEBUG_FS"
            ))
        })?),
        _ => None,
    };
    let stops = matches!(job.counters, CounterReading::Stopped | CounterReading::Held);
    let marks = !job.marked_by_command;
    let [program, arguments @ ..] = &job.argv[..] else {
        if job.counters == CounterReading::None {
            return Err(io::Error::other("the job has no command"));
        }
        // An empty window.
        if stops {
            stop_marks.stop(0);
            stop_marks.stop(1);
        }
        session.as_mut().map(Session::end).transpose()?;
        return Ok((0, session));
    };
    let mut command = user_command(program, arguments, job)?;
    // SAFETY: the closure makes system calls and executes CPUID, both fine between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let pid = std::process::id();
            if stops {
                // From here to the mark nothing of the kernel runs: counters and observer see the same window.
                stop_marks.stop(0);
                mark(MARK_BEGIN, pid);
                return ports::allow_ports(false);
            }
            // Otherwise the loss of the port rights must not be recorded.
            ports::allow_ports(false)?;
            if marks {
                mark(MARK_BEGIN, pid);
            }
            Ok(())
        });
    }
    let started = |pid| say(Message::Started { pid });
    let mut ended = Ok(());
    let outputs = [STDOUT_PORT, STDERR_PORT].map(Some);
    let status = spawn_and_wait(&mut command, &children, outputs, started, || {
        if stops {
            stop_marks.stop(1);
        }
        ended = session.as_mut().map(Session::end).transpose().map(|_| ());
    });
    ended?;
    let code = match status {
        Ok(status) => code_of(status),
        Err(error) => {
            // The begin was marked if the fork succeeded. An end without a begin does no harm.
            mark(MARK_END, 0);
            ports::write(STDERR_PORT, format!("kprism: {program}: {error}\n").as_bytes());
            if stops {
                stop_marks.stop(1);
            }
            session.as_mut().map(Session::end).transpose()?;
            code_of_error(&error)
        }
    };
    Ok((code, session))
}

/// Runs shell commands of the job, one after the other. Their output goes to standard error: only the command's own is the run's
/// output.
fn run_lines(lines: &[String], job: &Job, children: &ChildSignal) -> io::Result<()> {
    for line in lines {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", line]);
        set_up(&mut shell, job);
        has_folder(job)?;
        let status =
            spawn_and_wait(&mut shell, children, [Some(STDERR_PORT); 2], |_| {}, || {}).map_err(|error| {
                io::Error::other(format!("/bin/sh, to run `{line}` before the command: {error}"))
            })?;
        if !status.success() {
            return Err(io::Error::other(format!("`{line}`, run before the command, ended with {status}")));
        }
    }
    Ok(())
}

/// Runs the user's command once without its marks, and drops its output. Returns its exit code as a shell would.
fn warm_up(job: &Job, children: &ChildSignal) -> io::Result<u8> {
    let [program, arguments @ ..] = &job.warm.argv[..] else {
        return Err(io::Error::other("the warm-up has no command"));
    };
    let mut command = user_command(program, arguments, job)?;
    // SAFETY: the closure makes a system call, which is fine between fork and exec.
    unsafe { command.pre_exec(|| ports::allow_ports(false)) };
    Ok(match spawn_and_wait(&mut command, children, [None; 2], |_| {}, || {}) {
        Ok(status) => code_of(status),
        Err(error) => code_of_error(&error),
    })
}

/// A command in the job's surroundings. Its standard input begins anew.
fn user_command(program: &str, arguments: &[String], job: &Job) -> io::Result<Command> {
    let mut command = Command::new(program);
    command.args(arguments);
    set_up(&mut command, job);
    if job.stdin {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{STDIN_FILE}: {error}"));
        command.stdin(std::fs::File::open(STDIN_FILE).map_err(named)?);
    }
    Ok(command)
}

/// The exit code that a shell gives a command that ended so.
fn code_of(status: ExitStatus) -> u8 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)) as u8
}

/// The exit code that a shell gives a command that could not be started.
fn code_of_error(error: &io::Error) -> u8 {
    if error.kind() == ErrorKind::NotFound { 127 } else { 126 }
}

/// The messages at which the host reads counters, encoded in advance: sending them executes instructions of this
/// program only.
#[derive(Debug, Clone, Copy)]
struct StopMarks {
    messages: [&'static [u8]; 2],
    /// True if the observer stops the guest.
    held: bool,
}

impl StopMarks {
    fn new(held: bool) -> io::Result<Self> {
        let line = |name: &str| -> io::Result<&'static [u8]> {
            let mut line = serde_json::to_vec(&Message::Counters { name: name.to_owned() })?;
            line.push(b'\n');
            Ok(line.leak())
        };
        Ok(Self { messages: [line(GcovFiles::BEFORE)?, line(GcovFiles::AFTER)?], held })
    }

    /// Stops the guest until the host has read its counters.
    fn stop(&self, index: usize) {
        ports::write(CONTROL_PORT, self.messages[index]);
        if self.held {
            mark(MARK_STOP, 0);
        } else {
            ports::write(PAUSE_PORT, &[PAUSE]);
        }
    }
}

/// The output of a shell command, including its errors. The command is waited for, because nothing else runs by then.
pub fn output_of(line: &str, job: &Job) -> String {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", line]);
    set_up(&mut shell, job);
    match shell.output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&text).into_owned()
        }
        Err(error) => format!("/bin/sh: {error}\n"),
    }
}

/// Working directory of the job's commands.
fn folder(job: &Job) -> &str {
    if job.cwd.is_empty() { "/root" } else { &job.cwd }
}

/// Refuses a working directory that does not exist. Starting a command in it would fail as if the command were missing.
fn has_folder(job: &Job) -> io::Result<()> {
    let folder = folder(job);
    match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(io::Error::other(format!("the working directory {folder} is no folder"))),
        Err(error) => Err(io::Error::other(format!("the working directory {folder}: {error}"))),
    }
}

fn set_up(command: &mut Command, job: &Job) {
    command.env_clear().envs(job.env.iter().map(|(name, value)| (name, value)));
    command.current_dir(folder(job));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: sigprocmask and setsid are async-signal-safe; the set is ours.
    unsafe {
        command.pre_exec(|| {
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            libc::setsid();
            Ok(())
        });
    }
}

/// Starts `command`, forwards its output to the two `ports` (`None`: reads and drops it) and waits for it. The end mark and `ended` come when it
/// ends, before the rest of its output is forwarded.
fn spawn_and_wait(
    command: &mut Command,
    children: &ChildSignal,
    ports: [Option<u16>; 2],
    started: impl FnOnce(u32),
    ended: impl FnOnce(),
) -> io::Result<ExitStatus> {
    let mut child = command.spawn()?;
    started(child.id());
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("a pipe is missing"));
    };
    let mut pipes = [Some((OwnedFd::from(stdout), ports[0])), Some((OwnedFd::from(stderr), ports[1]))];
    for (pipe, _) in pipes.iter().flatten() {
        // SAFETY: sets a flag on a pipe end that is ours alone.
        unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    }
    let mut ended = Some(ended);
    loop {
        let fd =
            |pipe: &Option<(OwnedFd, Option<u16>)>| pipe.as_ref().map_or(-1, |(pipe, _)| pipe.as_raw_fd());
        wait_for([fd(&pipes[0]), fd(&pipes[1]), children.0.as_raw_fd()]);
        let status = children.take().then(|| reap(&mut child)).flatten();
        if status.is_some() {
            mark(MARK_END, child.id());
            ended.take().into_iter().for_each(|ended| ended());
        }
        pipes.iter_mut().for_each(forward);
        if let Some(status) = status {
            return Ok(status);
        }
    }
}

/// Copies available data from the pipe to its port, if it has one. Closes the pipe at its end.
fn forward(slot: &mut Option<(OwnedFd, Option<u16>)>) {
    let mut buffer = [0; 65536];
    while let Some((pipe, port)) = slot {
        // SAFETY: `buffer` is as long as is said.
        match unsafe { libc::read(pipe.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) } {
            count if count > 0 => {
                if let Some(port) = port {
                    ports::write(*port, &buffer[..count as usize]);
                }
            }
            0 => *slot = None,
            _ => return,
        }
    }
}

/// Reaps all dead processes, as PID 1 must. Returns the status of `child` if it is among them.
fn reap(child: &mut Child) -> Option<ExitStatus> {
    let mut found = None;
    loop {
        let mut status = 0;
        // SAFETY: `status` lives through the call. The child's own `wait` is never used.
        match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
            pid if pid <= 0 => return found,
            pid if pid as u32 == child.id() => found = Some(ExitStatus::from_raw(status)),
            _ => {}
        }
    }
}

/// Sleeps until one of the descriptors is readable. Negative ones are ignored.
fn wait_for(descriptors: [RawFd; 3]) {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: the array is as long as is said.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
}

/// SIGCHLD as a file descriptor.
struct ChildSignal(std::fs::File);

impl ChildSignal {
    fn new() -> io::Result<Self> {
        // SAFETY: the set is ours; the descriptor is fresh and owned from here on.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGCHLD);
            libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            let fd = libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(std::fs::File::from_raw_fd(fd)))
        }
    }

    /// Returns true if a signal has come.
    fn take(&self) -> bool {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        (&self.0).read(&mut record).is_ok_and(|count| count > 0)
    }
}
