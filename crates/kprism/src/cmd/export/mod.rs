// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism export`: a run for other tools; the file's suffix picks the format.
//!
//! [`formats`] lists the formats, each with its function.

mod cover;
pub mod formats;
mod probes;
mod profile;
mod request;

use std::io::Write;

use anyhow::{Result, bail};
use kprism_session::Progress;
use kprism_store::{Instrument, Run};

use self::formats::Of;
use self::request::{Request, Subject};
use crate::exit::Outcome;
use crate::given::Given;

pub use self::request::Args;

/// Writes it.
pub fn run(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    if kprism_session::cover::is_alone(&args.input) && args.subject != Subject::Cover {
        formats::suits_counters_alone(&args.input, &args.output)?;
    }
    let request = Request { args, given, progress };
    let fixed = formats::of_any_subject(&args.output);
    let of = match (fixed, args.subject) {
        (Some(format), _) => format.of,
        (None, Subject::Cover) => Of::Coverage,
        (None, Subject::Tlb) => Of::Misses,
        (None, _) if args.name.is_some() => {
            bail!("NAME names a view of `export tlb`; other subjects have one each")
        }
        (None, _) if Run::open(&args.input)?.holds(Instrument::Probe) => Of::Probes,
        (None, _) => Of::Profile,
    };
    match of {
        Of::Coverage => cover::honoured(&request)?,
        Of::Misses => {
            given.only("an export of TLB misses", &["subject", "name", "input", "output", "pids"])?;
        }
        // A record has its task's number, no name.
        Of::Probes => given.only("an export of probes", &["subject", "input", "output", "pids"])?,
        // Each format honours others.
        Of::Profile | Of::Compiler => {}
    }
    let format = match fixed {
        Some(format) => format,
        None => formats::find(of, &args.output)?,
    };
    (format.write)(&request, out)
}
