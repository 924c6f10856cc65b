// SPDX-License-Identifier: MIT OR Apache-2.0
//! This side: has a command line run on the target, passes its output on, and keeps its run.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use anyhow::{Context as _, Result, bail};
use kprism_placed::Machine;
use kprism_placed::frame::{CHUNK, Frame};
use kprism_profile::units::bytes;
use kprism_session::Progress;
use kprism_store::{Manifest, OptionKey, Run};

use crate::bring::{Incoming, may_be_put};
use crate::connect::{self, Link, connect};
use crate::program::Copied;
use crate::target::Target;

/// A command line for the target.
#[derive(Debug, Clone)]
pub struct Job {
    /// The machine to run on.
    pub target: Target,
    /// The words after the program's name. The copy on the target, which has the same options, takes its output folder from
    /// [`kprism_placed::output`].
    pub words: Vec<OsString>,
    /// The folder for the run; `None` if the command line makes none.
    pub output: Option<PathBuf>,
    /// A file of this machine that the command line names ([`kprism_placed::given`]).
    pub given: Option<PathBuf>,
    /// This process's standard input belongs to the command.
    pub input: bool,
    /// For a machine with another processor.
    pub recorder: Recorder,
}

/// The work of `kprism-recorder` instead, on a machine for whose processor this program is not built.
#[derive(Debug, Clone)]
pub struct Recorder {
    /// The same in its words; or why it cannot.
    pub words: std::result::Result<Vec<OsString>, String>,
    /// Finds the recorder for a machine by the name that `uname -m` gives it.
    pub find: fn(&str) -> Result<PathBuf>,
}

/// The end of a command line.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code.
    pub code: u8,
    /// The program that ran there. The recorder leaves it to this side to measure and to tell.
    pub copied: Copied,
    /// The run that was brought back.
    pub run: Option<Run>,
}

/// Exit code of a recorder that failed itself.
const RECORDER_FAILED: u8 = 125;

/// A stream of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// Has it run. Output goes to `pass`. A signal ([`kprism_signals`]) ends the recording there, whose
/// run is then brought back.
///
/// # Errors
/// The target cannot be reached or does not take kprism, the connection ends before everything is here, or the run cannot be
/// written. What has arrived of a run is kept.
pub fn run(job: &Job, progress: &Progress, pass: &mut dyn FnMut(Stream, &[u8])) -> Result<Ended> {
    if let Some(output) = &job.output {
        may_be_put(output)?;
    }
    let mut given = job.given.as_ref().map(|path| open(path)).transpose()?;
    let mut link = connect(&job.target, &job.recorder, progress)?;
    let copied = link.copied();
    let words = match (copied, &job.recorder.words) {
        (Copied::Recorder, Ok(words)) => words,
        _ => &job.words,
    };
    let shown = job.output.clone().unwrap_or_default();
    link.send(&Frame::Word(shown.into_os_string().into_vec()));
    words.iter().for_each(|word| link.send(&Frame::Word(word.as_bytes().to_vec())));
    if let Some(file) = &mut given {
        link.send(&Frame::Given);
        let mut buffer = vec![0; CHUNK];
        loop {
            match file.read(&mut buffer).context("the given file")? {
                0 => break,
                read => link.send(&Frame::Data(buffer[..read].to_vec())),
            }
        }
        link.send(&Frame::End);
    }
    link.send(&Frame::Start);
    let more = feed(&link, job.input);
    let mut here = Here { job, copied, machine: None, code: None, incoming: None, whole: false };
    let ended = here.follow(&mut link, &more, progress, pass);
    progress.clear();
    link.close();
    here.finish(ended, progress)
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| path.display().to_string())
}

/// A thread that sends standard input, a piece each time that one is asked for.
fn feed(link: &Link, input: bool) -> Sender<()> {
    let (more, asked) = channel();
    let send = link.sender();
    thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        for () in asked {
            let read = match input {
                // An error is an end too: closed, or not to be read by a process in the background.
                true => io::stdin().lock().read(&mut buffer).unwrap_or(0),
                false => 0,
            };
            send(&Frame::Input(buffer[..read].to_vec()));
        }
    });
    more
}

/// The state of this side.
struct Here<'j> {
    job: &'j Job,
    copied: Copied,
    machine: Option<Machine>,
    code: Option<u8>,
    incoming: Option<Incoming>,
    /// The whole run is here.
    whole: bool,
}

/// The end of the conversation.
enum End {
    /// The target said that it has removed its folder; or what it could not remove.
    Removed(String),
    /// The connection ended before.
    Cut,
}

impl Here<'_> {
    fn follow(
        &mut self,
        link: &mut Link,
        more: &Sender<()>,
        progress: &Progress,
        pass: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<End> {
        let host = &self.job.target.destination;
        let mut told = 0;
        while let Some(frame) = link.next().with_context(|| host.clone())? {
            match frame {
                Frame::Output(bytes) => pass(Stream::Output, &bytes),
                Frame::Error(bytes) => pass(Stream::Error, &bytes),
                Frame::WantInput => drop(more.send(())),
                Frame::Machine(json) => self.machine = serde_json::from_slice(&json).ok(),
                Frame::Ended(code) => self.code = Some(code),
                Frame::Unreadable(why) => {
                    bail!("{host}: the run cannot be read there: {}", String::from_utf8_lossy(&why))
                }
                Frame::Removed(failed) => {
                    return Ok(End::Removed(String::from_utf8_lossy(&failed).into_owned()));
                }
                frame => {
                    let Some(output) = &self.job.output else {
                        bail!("{host} sends a run that nobody asked for")
                    };
                    if self.incoming.is_none() {
                        progress.step(&format!("bringing the run back from {host}"));
                        self.incoming = Some(Incoming::begin(output, &connect::nonce()?)?);
                    }
                    let Some(incoming) = &mut self.incoming else { continue };
                    self.whole |= incoming.take(&frame).with_context(|| format!("the run of {host}"))?;
                    if incoming.bytes() / (1 << 20) != told {
                        told = incoming.bytes() / (1 << 20);
                        progress.detail(&bytes(incoming.bytes()));
                    }
                }
            }
        }
        Ok(End::Cut)
    }

    /// Keeps the run, and says what is missing.
    fn finish(mut self, ended: Result<End>, progress: &Progress) -> Result<Ended> {
        let target = self.job.target.to_string();
        let host = self.job.target.destination.clone();
        let fault = match &ended {
            Ok(End::Removed(_)) => None,
            Ok(End::Cut) if self.whole => None,
            Ok(End::Cut) => Some("the connection broke while the run was brought back".to_owned()),
            Err(error) => Some(format!("the run was not brought back whole: {error:#}")),
        };
        let amount = self.incoming.as_ref().map(|i| (i.entries(), i.bytes()));
        let run = match self.incoming.take() {
            Some(incoming) => incoming.keep(&|manifest| {
                note(manifest, &target, self.machine.as_ref());
                if !self.whole {
                    manifest.stopped.clone_from(&fault);
                }
            })?,
            None => None,
        };
        let dir = run.as_ref().map(|run| run.dir().display().to_string());
        if let (Some(dir), Some((entries, size)), true) = (&dir, amount, self.whole) {
            progress.say(&format!(
                "brought back from {host} to {dir}: {entries} files and folders, {}",
                bytes(size)
            ));
        }
        let end = match ended {
            Ok(end) => end,
            Err(error) => match dir {
                Some(dir) => return Err(error.context(format!("a part of the run is in {dir}"))),
                None => return Err(error),
            },
        };
        let alone = "the target ends what it still does, and removes its folder, by itself";
        match (end, self.code, self.whole) {
            (End::Removed(failed), Some(code), _) => {
                if !failed.is_empty() {
                    progress.note(&format!("{host}: not removed: {failed}"));
                }
                let failed = match self.copied {
                    Copied::Kprism => 2,
                    Copied::Recorder => RECORDER_FAILED,
                };
                if code == failed && self.machine.as_ref().is_some_and(|machine| machine.user != 0) {
                    let place = host.rsplit('@').next().unwrap_or(&host);
                    progress.note(&format!(
                        "on {host} kprism was not root; recorders need it: --on ssh:root@{place}"
                    ));
                }
                Ok(Ended { code, copied: self.copied, run })
            }
            (End::Cut, Some(code), true) => {
                progress.note(&format!("{host}: the connection broke after the run was here; {alone}"));
                Ok(Ended { code, copied: self.copied, run })
            }
            (End::Cut, Some(_), false) => match dir {
                Some(dir) => bail!(
                    "{host}: the connection broke after the recording, while the run was brought back: a part of it is in \
                     {dir}; {alone}"
                ),
                None => bail!(
                    "{host}: the connection broke after the recording, before its run was brought back; {alone}"
                ),
            },
            (_, None, _) => bail!("{host}: the connection broke before the end of the command; {alone}"),
        }
    }
}

/// Notes in the manifest on which machine it was recorded.
fn note(manifest: &mut Manifest, target: &str, machine: Option<&Machine>) {
    manifest.set(OptionKey::On, target);
    if let Some(machine) = machine {
        manifest.set(OptionKey::Machine, machine.name.clone());
    }
}
