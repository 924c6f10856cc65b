// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to a recording that another process makes: begin, pause.
//!
//! The recorder listens on a socket without a file (unix(7): "abstract"), which is named by the run folder's device and inode. So
//! nothing is left behind, however it ends. Each side makes sure that the other is its own user or root. A request is one word
//! and a line's end. The answer is a JSON object on a line, after which the connection is closed.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::linux::fs::MetadataExt as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use kprism_gdb::peer;
use serde::{Deserialize, Serialize};

/// Longest time for a request to come once its connection is there.
const PATIENCE: Duration = Duration::from_millis(500);
/// Longest time for an answer: the recorder may have to wait for the guest.
const ANSWER: Duration = Duration::from_secs(120);

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Begin, or go on.
    Start,
    /// Pause.
    Stop,
}

impl Request {
    /// All of them, with their words and what they do.
    pub const ALL: &[(Request, &[&str], &str)] = &[
        (Request::Start, &["start"], "Begin to record, or go on"),
        (Request::Stop, &["stop"], "Pause the recording; the machine runs on"),
    ];
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It was done: a sentence.
    Done(String),
    /// It was not done: the reason.
    Refused(String),
}

/// The recorder's side.
#[derive(Debug)]
pub struct Listener(UnixListener);

fn address(run: &Path) -> io::Result<SocketAddr> {
    let facts = fs::metadata(run)?;
    SocketAddr::from_abstract_name(format!("kprism-observe/{:x}/{:x}", facts.st_dev(), facts.st_ino()))
}

/// Makes sure that nobody else's process is at the other end.
fn is_ours(stream: &UnixStream) -> Result<(), String> {
    peer::of_unix(stream).map_err(|error| error.to_string()).and_then(peer::allowed)
}

impl Listener {
    /// Listens for the run `dir`.
    ///
    /// # Errors
    /// Another process does.
    pub fn new(dir: &Path) -> Result<Self> {
        let listen = || -> io::Result<UnixListener> {
            let socket = UnixListener::bind_addr(&address(dir)?)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        Ok(Self(listen().with_context(|| format!("{}: a socket for `kprism mark`", dir.display()))?))
    }

    /// The next caller, if there is one.
    pub fn next(&self) -> Option<Caller> {
        let (stream, _) = self.0.accept().ok()?;
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        Some(Caller(stream))
    }
}

/// A connection to the recorder.
#[derive(Debug)]
pub struct Caller(UnixStream);

impl Caller {
    /// Its request.
    ///
    /// # Errors
    /// It is none, does not come, or is another user's.
    pub fn request(&mut self) -> Result<Request, String> {
        is_ours(&self.0)?;
        let mut line = String::new();
        let mut limited = BufReader::new((&self.0).take(64));
        limited.read_line(&mut line).map_err(|error| error.to_string())?;
        let word = line.trim();
        let found = Request::ALL.iter().find(|(_, words, _)| words.contains(&word));
        found.map(|(request, ..)| *request).ok_or_else(|| format!("`{word}`: expected start or stop"))
    }

    /// Answers. A caller that is gone does not matter.
    pub fn answer(&mut self, answer: &Answer) {
        if let Ok(text) = serde_json::to_string(answer) {
            writeln!(self.0, "{text}").ok();
        }
    }
}

/// Asks the recorder that writes the run `dir`, and returns its answer.
///
/// # Errors
/// No recorder is there, it does not answer, or it refuses.
pub fn send(dir: &Path, request: Request) -> Result<String> {
    let connect = || UnixStream::connect_addr(&address(dir)?);
    let mut stream = connect()
        .map_err(|error| anyhow!("{}: {error}: no `kprism observe` is writing this run", dir.display()))?;
    is_ours(&stream).map_err(|why| anyhow!("{}: not our recorder: {why}", dir.display()))?;
    stream.set_read_timeout(Some(ANSWER))?;
    let word = Request::ALL.iter().find(|(known, ..)| *known == request).map_or("", |(_, words, _)| words[0]);
    writeln!(stream, "{word}")?;
    let mut line = String::new();
    BufReader::new(stream.take(1 << 16)).read_line(&mut line).context("no answer")?;
    match serde_json::from_str(&line) {
        Ok(Answer::Done(text)) => Ok(text),
        Ok(Answer::Refused(why)) => bail!("{why}"),
        Err(_) => bail!("the recorder ended without an answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_and_nothing_stays() {
        let dir = tempfile::tempdir().unwrap();
        // Longer than the path of a socket may be.
        let run = dir.path().join("x".repeat(120));
        fs::create_dir(&run).unwrap();
        let listener = Listener::new(&run).unwrap();
        assert!(listener.next().is_none());
        assert!(Listener::new(&run).is_err(), "one recorder for a run");
        std::thread::scope(|scope| {
            let client = scope.spawn(|| (send(&run, Request::Start), send(&run, Request::Stop)));
            let mut answers =
                [Answer::Done("recording".into()), Answer::Refused("why not".into())].into_iter();
            let mut requests = Vec::new();
            while requests.len() < 2 {
                if let Some(mut caller) = listener.next() {
                    requests.push(caller.request().unwrap());
                    caller.answer(&answers.next().unwrap());
                }
            }
            assert_eq!(requests, [Request::Start, Request::Stop]);
            let (first, second) = client.join().unwrap();
            assert_eq!(first.unwrap(), "recording");
            assert_eq!(second.unwrap_err().to_string(), "why not");
        });
        drop(listener);
        assert_eq!(fs::read_dir(&run).unwrap().count(), 0);
        assert!(send(&run, Request::Stop).unwrap_err().to_string().contains("kprism observe"));
    }
}
