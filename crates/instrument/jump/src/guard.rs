// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that writes jumps into running programs for the recorder, and takes them out if the recorder is killed.
//!
//! The recorder starts its own program again under another name. It sends a request on a line and gets an answer on a line.
//! A running program is stopped by the guard alone: a recorder that is killed meanwhile leaves no thread with registers that are not
//! its own, or in a single step. What was begun is done, then the end of the pipe without a farewell tells the guard that the
//! recorder is gone.

use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::area::Memory;
use crate::displace::JUMP;
use crate::patch::{self, Patch, To, undo};
use crate::process::{Stopped, in_thread};

/// Name of the guard's process.
pub const NAME: &str = "kprism-jump-guard";

/// The recorder's side of the guard.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    requests: PipeWriter,
    answers: BufReader<PipeReader>,
}

/// A place that is to have a jump.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its address.
    pub at: u64,
    /// The bytes of the program's file that the jump would replace.
    pub file: Vec<u8>,
}

/// A jump that is to be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// The jump.
    pub patch: Patch,
    /// Code behind the first instruction that it replaces, if there is some: no thread may be there.
    pub middle: Option<Range<u64>>,
}

/// Asked of the guard.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Make memory for trampolines in a process, within reach of these places.
    Make { pid: u32, places: Vec<Place> },
    /// Write jumps in a process.
    Write { pid: u32, jumps: Vec<Planned> },
    /// The recorder itself writes this jump, into a command that has not begun.
    Tell(Patch),
    /// All jumps are out: the guard ends.
    Done,
}

/// Memory that the guard made: its own file, the address in the process, and the bytes at the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Made {
    fd: i32,
    base: u64,
    before: [u8; JUMP],
}

/// One result for each place or jump; or the reason why the process could not be stopped.
type Each<T> = Result<Vec<Result<T, String>>, String>;

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Made(Each<Made>),
    Written(Each<bool>),
    Told,
}

impl Guard {
    /// Starts the guard.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start() -> io::Result<Self> {
        let (from, requests) = io::pipe()?;
        let (answers, to) = io::pipe()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).stdin(from).stdout(to).stderr(Stdio::null());
        // SAFETY: setsid touches no memory. In a session of its own no terminal ends it.
        unsafe {
            command.pre_exec(|| match libc::setsid() {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        Ok(Self { child: command.spawn()?, requests, answers: BufReader::new(answers) })
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, String> {
        let failed = |error: io::Error| format!("the process that writes jumps: {error}");
        let mut line = serde_json::to_string(request).map_err(|error| error.to_string())?;
        line.push('\n');
        self.requests.write_all(line.as_bytes()).map_err(failed)?;
        line.clear();
        self.answers.read_line(&mut line).map_err(failed)?;
        serde_json::from_str(&line).map_err(|_| "the process that writes jumps has ended".to_owned())
    }

    /// Makes memory for trampolines in a running process. Each result is the memory, and the bytes at its place.
    ///
    /// # Errors
    /// The process cannot be stopped, or the guard is gone.
    pub fn make(&mut self, pid: u32, places: Vec<Place>) -> Each<(Memory, [u8; JUMP])> {
        let Answer::Made(made) = self.ask(&Request::Make { pid, places })? else {
            return Err(OTHER.to_owned());
        };
        let guard = self.child.id();
        let open = |Made { fd, base, before }: Made| Ok((Memory::of(guard, fd, base)?, before));
        Ok(made?.into_iter().map(|made| made.and_then(open)).collect())
    }

    /// Writes jumps into a running process. Each result is false if a thread is in the way.
    ///
    /// # Errors
    /// The process cannot be stopped, or the guard is gone.
    pub fn write(&mut self, pid: u32, jumps: Vec<Planned>) -> Each<bool> {
        match self.ask(&Request::Write { pid, jumps })? {
            Answer::Written(written) => written,
            _ => Err(OTHER.to_owned()),
        }
    }

    /// Tells the guard a jump that the recorder is about to write itself.
    ///
    /// # Errors
    /// The guard is gone.
    pub fn tell(&mut self, patch: &Patch) -> Result<(), String> {
        self.ask(&Request::Tell(patch.clone())).map(drop)
    }

    /// Ends the guard: all jumps are out.
    pub fn dismiss(mut self) {
        if let Ok(line) = serde_json::to_string(&Request::Done) {
            writeln!(self.requests, "{line}").ok();
        }
        drop(self.requests);
        self.child.wait().ok();
    }
}

const OTHER: &str = "the process that writes jumps answered something else";

/// If this process was started as the guard, does its work and returns true. Programs that record call this first.
pub fn was_guard() -> bool {
    if std::env::args_os().next().is_none_or(|name| name != NAME) {
        return false;
    }
    // The signals that end the recorder do not end its guard, nor does a pipe that nobody reads.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
        // SAFETY: no handler is set.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut patches = Vec::new();
    if !serve(io::stdin().lock(), io::stdout().lock(), &mut patches) {
        undo(&patches, To::File);
    }
    true
}

/// Answers requests. False if they end without a farewell; `patches` are the jumps that may be in programs then.
fn serve(requests: impl BufRead, mut answers: impl Write, patches: &mut Vec<Patch>) -> bool {
    // Files stay open for the recorder, which opens them by their numbers.
    let mut files = Vec::new();
    for line in requests.lines().map_while(Result::ok) {
        let answer = match serde_json::from_str(&line) {
            Ok(Request::Make { pid, places }) => {
                let made = in_thread(|| make(pid, &places));
                Answer::Made(made.map(|all| {
                    let mut keep = |(memory, before): (Memory, _)| {
                        let made = Made { fd: memory.file.as_raw_fd(), base: memory.base, before };
                        files.push(memory);
                        made
                    };
                    all.into_iter().map(|one| one.map(&mut keep)).collect()
                }))
            }
            Ok(Request::Write { pid, jumps }) => {
                patches.extend(jumps.iter().map(|jump| jump.patch.clone()));
                Answer::Written(in_thread(|| write(pid, &jumps)))
            }
            Ok(Request::Tell(patch)) => {
                patches.push(patch);
                Answer::Told
            }
            Ok(Request::Done) => return true,
            // A line that was cut off: the recorder was killed while it wrote.
            Err(_) => return false,
        };
        let Ok(line) = serde_json::to_string(&answer) else { return false };
        // A recorder that is gone reads nothing; the next line tells.
        writeln!(answers, "{line}").and_then(|()| answers.flush()).ok();
    }
    false
}

fn make(pid: u32, places: &[Place]) -> Each<(Memory, [u8; JUMP])> {
    let stopped = Stopped::seize(pid)?;
    let one = |place: &Place| {
        let before = patch::found(&stopped, place.at, &place.file)?;
        Ok((Memory::make(&stopped, place.at)?, before))
    };
    Ok(places.iter().map(one).collect())
}

fn write(pid: u32, jumps: &[Planned]) -> Each<bool> {
    let mut stopped = Stopped::seize(pid)?;
    Ok(jumps.iter().map(|jump| patch::write(&mut stopped, &jump.patch, jump.middle.as_ref())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a process to stop each request has its answer, and the end tells whether jumps may be left.
    #[test]
    fn requests_and_ends() {
        let patch = Patch { inode: 1, at: 2, file: [3; JUMP], before: [4; JUMP], jump: [5; JUMP] };
        let served = |requests: &[Request], cut: &str| {
            let mut lines: String =
                requests.iter().map(|r| serde_json::to_string(r).unwrap() + "\n").collect();
            lines.push_str(cut);
            let (mut answers, mut patches) = (Vec::new(), Vec::new());
            let done = serve(lines.as_bytes(), &mut answers, &mut patches);
            (done, String::from_utf8(answers).unwrap(), patches.len())
        };
        assert_eq!(
            served(&[Request::Tell(patch.clone()), Request::Done], ""),
            (true, "\"Told\"\n".into(), 1)
        );
        assert!(!served(&[Request::Tell(patch.clone())], "").0);
        assert_eq!(served(&[Request::Tell(patch.clone())], "{\"Wri"), (false, "\"Told\"\n".into(), 1));
        let jumps = vec![Planned { patch, middle: Some(3..7) }];
        let (done, answers, known) = served(&[Request::Write { pid: u32::MAX, jumps }, Request::Done], "");
        assert!(done && answers.starts_with("{\"Written\":{\"Err\":"), "{answers}");
        assert_eq!(known, 1);
    }
}
