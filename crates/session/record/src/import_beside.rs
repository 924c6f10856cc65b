// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts the events of a trace.dat beside the flow of a run, on the flow's clock.
//!
//! In: trace-cmd's file, recorded with the clock `x86-tsc` while the flow was, and the run. Out: `streams/events` of the run, as
//! `lab run --event` has it, with the file as it is. What cannot be placed on the flow's clock is refused, and the run stays
//! as it was.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use kprism_ftrace::Data;
use kprism_ftrace::dat::Dat;
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::raw::Cpu;
use kprism_session::moments;
use kprism_store::{Instrument, Run};
use kprism_tracefs::EVENTS;
use kprism_tracefs::beside::{Beside, CLOCK, Clocks, RecordedEvents};
use kprism_tracefs::stats::CpuStats;

/// Counts of the events put beside a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Number of events.
    pub events: u64,
    /// Number of events that the kernel lost.
    pub lost: u64,
    /// Remarks: what is not imported, what could not be read.
    pub notes: Vec<String>,
}

/// Puts the events of the file at `path` beside the flow of `run`.
///
/// # Errors
/// The file is no trace.dat, its clock or the run's does not fit, or the run has events already.
pub fn import(path: &Path, run: &Run) -> Result<Placed> {
    ensure!(
        run.holds(Instrument::Flow),
        "{}: has no flow that events could stand beside: kprism lab run records one",
        run.dir().display()
    );
    let place = run.dir().join(EVENTS);
    ensure!(!place.exists(), "{}: the run has kernel events already", place.display());
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let (recorded, notes) = read(&bytes).with_context(|| path.display().to_string())?;
    moments::fits(&recorded.clock, Some(&run.manifest()?)).map_err(|why| {
        anyhow::anyhow!("{}: its events cannot be placed in the flow: {why}", path.display())
    })?;
    // In one step: a run with half of the events would look whole.
    let begun = place.with_extension("new");
    if begun.exists() {
        fs::remove_dir_all(&begun).with_context(|| begun.display().to_string())?;
    }
    let write = || -> Result<()> {
        fs::create_dir_all(&begun)?;
        fs::write(begun.join(moments::DAT), &bytes)?;
        recorded.save(&begun)?;
        fs::rename(&begun, &place)?;
        Ok(())
    };
    let written = write().with_context(|| place.display().to_string());
    if written.is_err() {
        fs::remove_dir_all(&begun).ok();
    }
    written?;
    Ok(Placed { events: recorded.recorded(), lost: recorded.lost(), notes })
}

/// The events of the file's main buffer, counted, and remarks.
fn read(bytes: &[u8]) -> Result<(RecordedEvents, Vec<String>)> {
    let mut dat = Dat::parse(bytes)?;
    let Some(buffer) = dat.main() else { bail!("it has no events") };
    let clock = buffer.clock.clone();
    let clock = if clock.is_empty() { "local".to_owned() } else { clock };
    ensure!(
        clock == CLOCK,
        "its clock is {clock}, not that of the flow: record with trace-cmd record -C {CLOCK}"
    );
    let mut notes = dat.notes.clone();
    if dat.offset != 0 {
        bail!("its times are shifted by {} ns (trace-cmd record --ts-offset)", dat.offset);
    }
    let others: Vec<&str> = dat.buffers.iter().map(|buffer| buffer.name.as_str()).collect();
    if !others.is_empty() {
        notes.push(format!("events of instances are not imported: {}", others.join(", ")));
    }
    // Without formats every record stays as it is.
    let decoder = Decoder::new(&[], dat.big);
    let layout = dat.layout_of(&buffer);
    let (mut ids, mut cpus) = (BTreeSet::new(), Vec::new());
    for (at, (cpu, pages)) in buffer.cpus.iter().enumerate() {
        let mut events = Cpu::new(&decoder, layout, *cpu, pages);
        for event in events.by_ref() {
            if let Data::Raw { id, .. } = event.data {
                ids.insert(id);
            }
        }
        let counts = events.counts();
        if counts.faults.count > 0 {
            notes.push(format!("CPU {cpu}: {} places could not be read", counts.faults.count));
        }
        if counts.lost_uncounted > 0 {
            notes.push(format!("CPU {cpu}: events were lost in {} places, uncounted", counts.lost_uncounted));
        }
        let of_kernel = dat.stats.get(at).map(|text| CpuStats::parse(text)).unwrap_or_default();
        let overrun = of_kernel.overrun.max(counts.lost);
        cpus.push((*cpu, CpuStats { entries: 0, overrun, read: counts.events, ..of_kernel }));
    }
    let named = |id: &u16| {
        let format = dat.formats.iter().find(|format| format.id == *id)?;
        Some(format!("{}/{}", format.system, format.name))
    };
    let recorded = RecordedEvents {
        settings: Beside { events: Vec::new(), buffer_kib: 0 },
        events: ids.iter().filter_map(named).collect(),
        clock,
        cpus,
        clocks: Clocks::default(),
    };
    Ok((recorded, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_of_trace_cmd_is_refused() {
        assert!(read(b"").is_err());
        assert!(read(b"\x17\x08\x44tracing").is_err());
    }
}
