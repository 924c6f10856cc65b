// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual machines in a run of a host: in, the run; out, each CPU's time by place, and what was not known of it.

use anyhow::Result;
use kprism_flow::vms::{Residency, residency};
use kprism_store::{Instrument, Run};

use crate::flow::{clock_config, errata, not_understood, read_streams, sideband_records};
use crate::{Progress, held};

/// A run's CPUs.
pub struct Vms {
    /// CPU, and its time by place.
    pub cpus: Vec<(usize, Residency)>,
    /// True if times are ns; otherwise they are ticks of the TSC, whose frequency the recording does not tell.
    pub in_ns: bool,
}

/// Reads the packets of a run.
///
/// # Errors
/// The run has no flow, or its streams are not what they should be.
pub fn of_run(run: &Run, progress: &Progress) -> Result<Vms> {
    if !run.holds(Instrument::Flow) || run.holds(Instrument::Durations) {
        return Err(held::missing(run, Instrument::Flow));
    }
    let manifest = run.manifest()?;
    let mut notes = Vec::new();
    let records = sideband_records(run, &mut notes)?;
    let streams = read_streams(run, manifest.vcpus, &records, &mut notes)?;
    notes.extend(not_understood(&manifest));
    notes.iter().for_each(|note| progress.note(note));
    progress.step("reading packets");
    let (clock, errata) = (clock_config(&manifest.clock), errata(&manifest));
    let cpus = streams.iter().map(|(bytes, _)| residency(bytes, clock, errata)).enumerate().collect();
    progress.clear();
    Ok(Vms { cpus, in_ns: manifest.clock.tsc_hz > 0 })
}
