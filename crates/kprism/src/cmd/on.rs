// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--on`: the same command line on another machine. [`kprism_remote`] does it.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use kprism_placed::is_target;
use kprism_remote::{Ended, Job, Recorder, Stream, Target};
use kprism_session::Progress;
use kprism_signals::Second;

use super::pass::Output;
use crate::exit::Outcome;

/// The machine that is asked for, if this is not it.
pub fn other(on: &Option<Target>) -> Option<&Target> {
    on.as_ref().filter(|_| !is_target())
}

/// The same in the words of `kprism-recorder`; or why it cannot.
pub type Words = std::result::Result<Vec<OsString>, String>;

/// The commands of `kprism-recorder`.
pub const KNOWN: &str =
    "kprism-recorder, which records there, knows `record durations` by ftrace and `record boot` alone";

/// The folder of the run on the target. The copy there chooses its own.
pub const RUN: &str = "run";

/// A command that makes no run and reads no standard input.
pub fn look(target: &Target, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let ended = run(target, None, None, Err(KNOWN.into()), progress, out)?;
    Ok(Outcome::Code(ended.code))
}

/// Runs this process's command line there. `given`: a file that is sent along. `words`: for a target with another processor.
pub fn run(
    target: &Target,
    output: Option<&Path>,
    given: Option<&Path>,
    words: Words,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Ended> {
    // A second Ctrl-C ends this process, and the target cleans up by itself.
    kprism_signals::catch(Second::EndsProcess)?;
    let job = Job {
        target: target.clone(),
        words: kprism_options::command_line(),
        output: output.map(Path::to_owned),
        given: given.map(Path::to_owned),
        input: output.is_some(),
        recorder: Recorder { words, find: |machine| Ok(kprism_lab::find_recorder_for(machine)?) },
    };
    let mut shown = Output::new(out, progress);
    kprism_remote::run(&job, progress, &mut |stream, bytes| {
        shown.pass(match stream {
            Stream::Output => kprism_lab::Progress::Stdout(bytes),
            Stream::Error => kprism_lab::Progress::Stderr(bytes),
        });
    })
}
