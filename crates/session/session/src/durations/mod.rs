// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what ftrace or a BPF recorder left in a run to its durations.
//!
//! In: `streams/ftrace` and `streams/bpf`, as `docs/run-folder.md` has them. Out: [`Measured`], kept as the run's
//! tables, with the task switches as its sideband and what was read and lost in its manifest.
//!
//! | file | job |
//! |---|---|
//! | `read` | chooses the form that is there |
//! | `text`, `dat`, `raw`, `perf`, `bpf` | one form each |
//! | `merged` | events of several CPUs on one clock |
//! | `wanted` | events of the tasks that were asked for |
//! | `consumer` | who takes the events, beside the collector |
//! | `names` | the kernel's functions |
//! | `facts`, `account` | what was read, lost, not understood |
//! | [`flow`] | the same from a flow, which has every call |

mod account;
mod bpf;
mod consumer;
mod dat;
mod events;
mod facts;
pub mod flow;
mod merged;
mod names;
mod perf;
mod raw;
mod read;
mod text;
mod wanted;

use std::fs;

use anyhow::{Context, Result};
use kprism_durations::Measured;
use kprism_profile::units::{counted, grouped};
use kprism_profile::{Profile, Times};
use kprism_store::{
    Instrument, Manifest, OptionKey, Run, has_times, load_profile, load_times, save_profile, save_times,
};
use serde_json::json;

use crate::progress::Progress;
pub use consumer::{Consumer, Visitor};
pub use events::{Events, events};
use facts::Facts;
use read::read_trace;

/// The duration in ns below which the recorder left calls out, by the run's settings; 0 if it left none out.
pub fn threshold_ns(manifest: &Manifest) -> u64 {
    manifest.option_facts().longer_than.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Opens a run of durations, measuring first if that was not done yet.
///
/// # Errors
/// No such run, or one that cannot be read.
pub fn open(run: &Run, progress: &Progress) -> Result<(Profile, Times)> {
    if run.has_tables() && has_times(run) {
        progress.step("reading the tables");
        let loaded = load_profile(run).and_then(|profile| Ok((load_times(run, &profile)?, profile)));
        match loaded {
            Ok((times, profile)) => return Ok((profile, times)),
            // Tables are made from the streams: damaged ones, or those of an older kprism, are made again.
            Err(error) if has_streams(run) => progress.note(&format!("{error}; reading the trace again")),
            Err(error) => return Err(error.into()),
        }
    }
    progress.step("reading the trace");
    let mut facts = Facts::default();
    let measured = read_trace(run, &mut facts, &mut Consumer::None)?;
    progress.step("writing the tables");
    // A full disk must not keep anybody from seeing why it is full. Half a table would be taken for one.
    if let Err(why) = enter(run, &measured, facts, progress) {
        fs::remove_dir_all(run.tables()).ok();
        progress.note(&format!("the tables are not kept, each report reads the trace again: {why:#}"));
    }
    let Measured { profile, times, .. } = measured;
    Ok((profile, times))
}

/// True if the run has a trace to measure.
fn has_streams(run: &Run) -> bool {
    ["ftrace", "bpf"].iter().any(|kind| run.streams().join(kind).exists())
}

/// Measures a run, saves its tables, and enters what was read into its manifest.
///
/// # Errors
/// The streams are not there or not what they should be, or the disk refuses.
pub fn measure(run: &Run, progress: &Progress) -> Result<Measured> {
    progress.step("reading the trace");
    let mut facts = Facts::default();
    let measured = read_trace(run, &mut facts, &mut Consumer::None)?;
    progress.step("writing the tables");
    enter(run, &measured, facts, progress)?;
    Ok(measured)
}

/// Reads a run's trace again, for a consumer that needs more of it than the tables have. Damage to the trace goes to `progress`
/// ([`Progress::found`]).
///
/// # Errors
/// As [`measure`].
pub fn again(run: &Run, consumer: &mut Consumer<'_>, progress: &Progress) -> Result<Measured> {
    let mut facts = Facts::default();
    let measured = read_trace(run, &mut facts, consumer)?;
    progress.found(&account::of_trace(&facts));
    Ok(measured)
}

/// Saves tables, sideband and manifest.
fn enter(run: &Run, measured: &Measured, facts: Facts, progress: &Progress) -> Result<()> {
    // Read before the sideband is written, which may be longer than that of another version.
    let mut manifest = run.manifest()?;
    if !measured.switches.is_empty() {
        let line = |s: &kprism_durations::Switch| {
            json!({"k": "switch", "t": s.ns, "cpu": s.cpu, "prev_pid": s.prev.0, "prev_comm": &*s.prev.1,
                "pid": s.next.0, "comm": &*s.next.1})
        };
        let text: String = measured.switches.iter().map(|s| format!("{}\n", line(s))).collect();
        fs::write(run.sideband(), text).with_context(|| run.sideband().display().to_string())?;
    }
    manifest.vcpus = manifest.vcpus.max(u32::try_from(measured.profile.totals.per_cpu.len())?);
    manifest.clock.name.clone_from(&facts.clock);
    manifest.clock.tsc_hz = 1_000_000_000;
    (manifest.clock.art_num, manifest.clock.art_den) = (0, 0);
    if manifest.kernel.is_none() && !facts.kernel.is_empty() {
        manifest.kernel = Some(kprism_store::Kernel {
            release: facts.kernel.clone(),
            build_id: String::new(),
            ..kprism_store::Kernel::default()
        });
    }
    let account = account::account(&manifest, &measured.times, &facts);
    manifest.accounts.insert(Instrument::Durations, account);
    let ftrace = json!({"source": facts.source, "events": facts.events, "overwritten": facts.overwritten});
    manifest.set(OptionKey::Ftrace, ftrace);
    if !facts.notes.is_empty() {
        manifest.set(OptionKey::DecodeNotes, facts.notes.clone());
    }
    run.write_manifest(&manifest)?;
    for note in &facts.notes {
        progress.note(note);
    }
    // The tables name the manifest's clock.
    manifest.name_tables(save_profile(run, &measured.profile)?);
    run.write_manifest(&manifest)?;
    Ok(save_times(run, &measured.times)?)
}

/// A few lines on what was measured.
///
/// # Errors
/// The manifest cannot be read.
pub fn summary(run: &Run, measured: &Measured) -> Result<String> {
    let manifest = run.manifest()?;
    let events = events_of(&manifest).map_or("events not counted".into(), |n| counted(n, "events"));
    let account = manifest.account(Instrument::Durations);
    let whole = account.map_or("not known whether whole".into(), |account| account.line());
    let text = format!("{events}, {}; {whole}", calls(measured));
    Ok(text + &format!("\nread into {}", see(run)))
}

/// Checks that a run of durations kept its single calls.
///
/// # Errors
/// They were only counted, by function.
pub fn kept_calls(run: &Run) -> Result<()> {
    anyhow::ensure!(
        !run.holds(Instrument::Durations) || run.ftrace().is_dir() || run.bpf_calls().is_file(),
        "functions were counted while recording, no single calls were kept: record without --aggregate"
    );
    Ok(())
}

/// Whether anything at all was read.
///
/// # Errors
/// The manifest cannot be read.
pub fn has_events(run: &Run) -> Result<bool> {
    Ok(events_of(&run.manifest()?).unwrap_or(0) > 0)
}

/// Number of events that were read; `None` if nobody counted them.
fn events_of(manifest: &Manifest) -> Option<u64> {
    manifest.option(OptionKey::Ftrace)?["events"].as_u64()
}

/// The numbers of calls and of functions, in words.
pub fn calls(measured: &Measured) -> String {
    let functions = grouped(measured.profile.called_functions() as u64);
    format!("{} calls of {functions} functions", grouped(measured.times.counts.calls))
}

/// The run's folder, and the command that shows it.
pub fn see(run: &Run) -> String {
    let place = run.dir().display();
    let input = crate::input_option(run);
    format!("{place}; see: kprism report durations{input}")
}
