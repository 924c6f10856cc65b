// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs for other tools: timelines, stacks, tables, coverage, records of probes.
//!
//! Input: a [`Request`]: a run's folder, and a file whose suffix picks the format. Output: the file; steps and remarks go to
//! the request's progress. [`durations`], [`misses`], [`probes`] and
//! [`kernel_tests`] write durations, TLB misses, records and tests as text, JSON and CSV. [`compare`] reads two runs and
//! compares them, [`pages`] gives the page of a run's instrument.
//!
//! [`formats`] lists the formats, each with its function: a new one is one entry.

pub mod compare;
pub mod cover;
mod ctf;
pub mod durations;
pub mod formats;
pub mod kernel_tests;
pub mod misses;
mod page_lanes;
pub mod pages;
pub mod probes;
mod profile;
mod request;
pub mod sources;
mod timeline;

use std::io::Write;

use anyhow::{Result, bail};
use kprism_store::{Instrument, Run};

pub use formats::{Format, Of};
pub use profile::{report_page, report_page_with};
pub use request::{Request, Subject, Written};

/// The format that the file's suffix picks.
///
/// # Errors
/// There is none for what the input holds, or the input is no run.
pub fn choose(request: &Request<'_>) -> Result<&'static Format> {
    if kprism_session::cover::is_alone(request.input) && request.subject != Subject::Cover {
        formats::suits_counters_alone(request.input, request.output)?;
    }
    if let Some(format) = formats::of_any_subject(request.output) {
        return Ok(format);
    }
    let of = match request.subject {
        Subject::Cover => Of::Coverage,
        Subject::Tlb => Of::Misses,
        _ if request.view.is_some() => {
            bail!("NAME names a view of `export tlb`; other subjects have one each")
        }
        // Only a flow has these, whatever else the run holds.
        Subject::Syscalls | Subject::Tree | Subject::Tasks | Subject::Errors | Subject::Delta => Of::Profile,
        _ if Run::open(request.input)?.holds(Instrument::Probe) => Of::Probes,
        _ => Of::Profile,
    };
    formats::find(of, request.output)
}

/// Writes a run in a format ([`choose`]), to the request's file or to `out`.
///
/// # Errors
/// The run does not hold what the format is written from, or the file cannot be written.
pub fn write(request: &Request<'_>, format: &Format, out: &mut dyn Write) -> Result<Written> {
    if format.needs_name && request.is_stdout() {
        bail!(
            "{}: this format cannot be written to standard output: name a file or folder",
            request.output.display()
        );
    }
    if format.of == Of::Coverage {
        request.cover.refuse_source_dir(request.input)?;
    }
    (format.write)(request, out)
}
