// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run's trace, in the form that its recorder left.
//!
//! In: `streams/ftrace` or `streams/bpf`. Out: [`Measured`], and facts on the reading.

use anyhow::Result;
use kprism_durations::Measured;
use kprism_store::Run;

use super::consumer::Consumer;
use super::facts::Facts;
use super::{bpf, dat, perf, raw, text};
use crate::files::read_if_there;

/// Reads it.
pub(super) fn read_trace(run: &Run, facts: &mut Facts, consumer: &mut Consumer<'_>) -> Result<Measured> {
    let dir = run.ftrace();
    facts.clock = "local".into();
    let kallsyms = read_if_there(&run.kallsyms())?;
    let (dat, txt) = (dir.join("trace.dat"), dir.join("trace.txt"));
    let of_perf = dir.join("perf.data");
    let mut measured = if dat.is_file() {
        dat::measure(&dat, &kallsyms, facts, consumer)?
    } else if txt.is_file() {
        text::measure(&txt, facts, consumer)?
    } else if of_perf.exists() {
        perf::measure(&of_perf, &kallsyms, facts, consumer)?
    } else if dir.is_dir() {
        raw::measure(&dir, &kallsyms, facts, consumer)?
    } else {
        bpf::measure(run, &kallsyms, facts, consumer)?
    };
    let counts = &mut measured.times.counts;
    counts.lost = facts.lost_events(counts).unwrap_or(0);
    Ok(measured)
}
