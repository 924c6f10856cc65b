// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--on`: the same command line on another machine. [`kprism_remote`] does it.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use kprism_remote::{Job, Stream, Target, is_target};
use kprism_session::Progress;
use kprism_signals::Second;

use super::pass::Output;
use crate::exit::Outcome;

/// The machine that is asked for, if this is not it.
pub fn other(on: &Option<Target>) -> Option<&Target> {
    on.as_ref().filter(|_| !is_target())
}

/// A command that makes no run and reads no standard input.
pub fn look(target: &Target, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    run(target, None, None, progress, out)
}

/// Runs this process's command line there. `given`: a file that is sent along.
pub fn run(
    target: &Target,
    output: Option<&Path>,
    given: Option<&Path>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    // A second Ctrl-C ends this process, and the target cleans up by itself.
    kprism_signals::catch(Second::EndsProcess)?;
    let job = Job {
        target: target.clone(),
        words: kprism_options::command_line(),
        output: output.map(Path::to_owned),
        given: given.map(Path::to_owned),
        input: output.is_some(),
    };
    let mut shown = Output::new(out, progress);
    let code = kprism_remote::run(&job, progress, &mut |stream, bytes| {
        shown.pass(match stream {
            Stream::Output => kprism_lab::Progress::Stdout(bytes),
            Stream::Error => kprism_lab::Progress::Stderr(bytes),
        });
    })?;
    Ok(Outcome::Code(code))
}
