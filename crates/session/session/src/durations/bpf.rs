// SPDX-License-Identifier: MIT OR Apache-2.0
//! The records of BPF: single calls, or functions' numbers.

use anyhow::{Result, bail};
use kprism_durations::{Measured, aggregate, record};
use kprism_profile::CpuTotals;
use kprism_store::Run;

use super::consumer::Consumer;
use super::facts::Facts;
use super::names::{collector, finish, symbols};
use crate::files::read;

/// Measures it.
pub(super) fn measure(
    run: &Run,
    kallsyms: &[u8],
    facts: &mut Facts,
    consumer: &Consumer<'_>,
) -> Result<Measured> {
    facts.clock = "monotonic".into();
    facts.of_calls = true;
    let manifest = run.manifest()?;
    let calls = run.bpf_calls();
    let functions = run.bpf_functions();
    let mut measured = if functions.is_file() && !calls.is_file() {
        facts.source = "functions counted by BPF";
        let (mut measured, bad) = aggregate::read(&read(&functions)?);
        facts.faults = bad.len() as u64;
        facts.fault_places = bad.iter().map(ToString::to_string).collect();
        facts.notes.extend(bad.iter().map(ToString::to_string));
        facts.events = measured.times.counts.calls;
        let last_ns = manifest.durations.recorded_ns.unwrap_or(0);
        let cpu = CpuTotals { last_ns, ..CpuTotals::default() };
        measured.profile.totals.per_cpu = vec![cpu; manifest.vcpus.min(1 << 16) as usize];
        measured
    } else {
        facts.source = "calls kept by BPF";
        let bytes = manifest.option_facts().record_bytes;
        if bytes != Some(record::SIZE as u64) {
            bail!(
                "{}: its records are not of {} bytes: another version of kprism recorded it; record it again",
                calls.display(),
                record::SIZE
            );
        }
        let symbols = symbols(kallsyms, facts);
        let mut collector = collector(&symbols, true);
        consumer.prepare(&mut collector);
        for call in record::read(&read(&calls)?) {
            match call {
                Ok(call) => {
                    facts.events += 1;
                    collector.kept(&call);
                }
                Err(error) => {
                    facts.faults += 1;
                    facts.fault_places.push(error.to_string());
                    facts.notes.push(error.to_string());
                }
            }
        }
        finish(collector, &symbols)
    };
    facts.notes.extend(manifest.filtered("calls"));
    let losses = manifest.durations.losses.unwrap_or_default();
    let counts = &mut measured.times.counts;
    counts.lost = losses.lost.saturating_add(losses.overflowed).saturating_add(losses.missed);
    counts.unfinished = losses.unfinished.saturating_add(losses.abandoned);
    counts.orphans = losses.orphans;
    Ok(measured)
}
