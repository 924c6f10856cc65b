// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record durations`: durations of kernel functions, on this machine or in a guest.

use std::io::Write;

use anyhow::Result;
use kprism_record::durations::{self as recorder, Recorded, RecordingEnd, record};
use kprism_session::Progress;
use kprism_signals::Second;
use kprism_store::Run;

use super::durations_args::Args;
use crate::cmd::ended;
use crate::cmd::guest_args::no_guest;
use crate::cmd::pass::Output;
use crate::exit::{self, Outcome};
use crate::given::Given;

pub const HELP: &str = "\
Examples (as root, or with --guest on any machine):
  kprism record durations -- ls                          all functions of a command
  kprism record durations --longer-than 1ms -a           long calls of everybody, for hours
  kprism record durations -T 'vfs_*' -N '*iter*' -p 1234 some functions of a process
  kprism record durations -G vfs_read -- cat FILE        one function and all below it
  kprism record durations --aggregate -T 'vfs_*' -a      numbers only, counted in the kernel
  kprism record durations -T vfs_read --if 'count > 4096' -- CMD
                                                    only calls for which it holds
  kprism record durations --guest --longer-than 1ms -- find /sys
  kprism record durations --remeasure --longer-than 1ms -- CMD
                                                    and again, with what was found

The trace is recorded in an instance of its own. What is changed in tracefs
beside it is put back at the end, on Ctrl-C and on errors; after a kill -9, at
the next recording or by `kprism check`.

Exit codes: 0 done, 2 error, also if not all could be written (a full disk), 130
CMD was interrupted. CMD's own code is in the run: kprism info.";

/// Records.
pub fn run(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    if !args.guest {
        no_guest(given)?;
    }
    match args.guest {
        true => kprism_signals::catch(Second::EndsProcess)?,
        false => kprism_signals::catch(Second::Ignored)?,
    }
    let mut output = Output::new(out, progress);
    match record(&args.settings()?, progress, &mut |p| output.pass(p)) {
        Ok(recorded) => Ok(outcome(&recorded)),
        Err(error) => ended::interrupted(error),
    }
}

/// Measures what `kprism-recorder` recorded on another machine.
pub fn brought(run: Run, progress: &Progress) -> Result<Outcome> {
    Ok(outcome(&recorder::brought(run, progress)?))
}

fn outcome(recorded: &Recorded) -> Outcome {
    match recorded.end {
        RecordingEnd::Done => Outcome::Done,
        RecordingEnd::Interrupted => Outcome::Code(exit::INTERRUPTED),
        RecordingEnd::Unwritten => Outcome::Code(exit::FAILED),
    }
}
