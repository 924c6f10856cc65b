// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a recorded run to what its trace cost: size, packets, and the distances between timed points.

use anyhow::{Result, bail};
use kprism_flow::Setup;
use kprism_flow::cost::Cost;
use kprism_flow::resolution::Distances;
use kprism_image::resolve::Regions;
use kprism_image::sideband::Record;
use kprism_profile::units::grouped;
use kprism_pt::mix::{Kind, Mix};
use kprism_store::{Account, Fate, Run};

use crate::flow;

/// Measures a run: its cost, and the account of what was measured. `name` is what tables call it.
///
/// # Errors
/// Parts are missing, or the decoder does not count the same instructions as the recorder.
pub fn measure(run: &Run, name: String) -> Result<(Cost, Account)> {
    let manifest = run.manifest()?;
    let mut notes = Vec::new();
    // Without the sideband the numbers of the packets are the same, and the duration may not be.
    let mut faults = Vec::new();
    let records = flow::sideband_records(run, &mut faults)?;
    let streams = flow::read_streams(run, manifest.vcpus, &records, &mut notes)?;
    if let Some(note) = notes.first() {
        bail!("{}: {note}", run.dir().display());
    }
    let regions = Regions::default();
    let clock = flow::clock_config(&manifest.clock);
    let errata = flow::errata(&manifest);
    let mut distances = Distances::default();
    let mut mix = Mix::default();
    let (mut instructions, mut errors) = (0, 0);
    let (mut first_ns, mut last_ns) = (u64::MAX, 0);
    for (bytes, image) in &streams {
        let stats =
            distances.add_stream(bytes, Setup { image, resolver: &regions, clock, watch: None, errata });
        mix.add(&Mix::of(bytes));
        instructions += stats.instructions;
        errors += stats.errors;
        if stats.last_ns > 0 {
            first_ns = first_ns.min(stats.first_ns);
            last_ns = last_ns.max(stats.last_ns);
        }
    }
    if let Some(recorded) = manifest.instructions_recorded.filter(|&n| n != instructions) {
        bail!(
            "{}: {} instructions decoded, {} recorded, {errors} decode errors: its cost cannot be told",
            run.dir().display(),
            grouped(instructions),
            grouped(recorded)
        );
    }
    let duration_ns = window(&records).unwrap_or_else(|| last_ns.saturating_sub(first_ns));
    faults.extend(manifest.option_facts().import_notes);
    let account = Account::new()
        .with(Fate::Seen, "instructions", manifest.instructions_recorded)
        .with(Fate::Kept, "instructions", instructions)
        .with(Fate::Lost, "stretches of packets (overflows)", mix.get(Kind::Ovf).packets)
        .with(Fate::NotUnderstood, "places that could not be decoded", errors)
        .at(Fate::NotUnderstood, "damaged or missing files", faults.len() as u64, faults);
    let cost = Cost {
        name,
        instructions,
        decode_errors: errors,
        duration_ns,
        mix,
        points: distances.ns.len(),
        median_ns: distances.ns.median(),
        p99_ns: distances.ns.p99(),
        median_insns: distances.insns.median(),
        product: distances.product(),
    };
    Ok((cost, manifest.with_recording(account)))
}

/// Duration of the recorded command: rare timing packets do not tell.
fn window(records: &[Record]) -> Option<u64> {
    let marks: Vec<u64> = records
        .iter()
        .filter_map(|r| match r {
            Record::Mark(mark) => Some(mark.t),
            _ => None,
        })
        .collect();
    match marks[..] {
        [begin, .., end] => end.checked_sub(begin),
        _ => None,
    }
}
