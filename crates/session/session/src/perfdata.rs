// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism export -o NAME.perf.data`: a run's folder in, perf's out.

use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_image::Bytes;
use kprism_image::maps::{self, MapRecord};
use kprism_import::perfdata::export::{self, Source};
use kprism_store::{Account, Clock, Fate, Instrument, Run};
use serde::Deserialize;

use crate::files::{read, read_if_there};
use crate::flow::{clock_config, code, enter_clock, errata, not_understood, sideband_records};
use crate::held;
use crate::progress::Progress;

/// Whether the name of a file asks for this format.
pub fn is_named(output: &Path) -> bool {
    let name = output.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    name == "perf.data" || name.ends_with(".perf.data")
}

/// The part of `streams/counts.json` that the export needs.
#[derive(Deserialize, Default)]
struct Settings {
    ret_compression: Option<bool>,
}

/// Writes the run as a perf.data folder. Returns the account of what is in it, without the run's own.
pub fn export(input: &Path, output: &Path, progress: &Progress) -> Result<Account> {
    if output.symlink_metadata().is_ok() {
        bail!("{}: is there already; remove it, or choose another name", output.display());
    }
    let run = Run::open(input)?;
    if !run.holds(Instrument::Flow) {
        return Err(held::missing(&run, Instrument::Flow));
    }
    let manifest = run.manifest()?;
    progress.step("reading the streams");
    let mut notes = Vec::new();
    let records = sideband_records(&run, &mut notes)?;
    let dict = code(&run, &mut notes)?;
    notes.extend(not_understood(&manifest));
    let mut cpus: Vec<(Bytes, Vec<MapRecord>)> = Vec::new();
    for cpu in 0..manifest.vcpus {
        let (map, fault) = maps::parse_map(&read(&run.code_map(cpu))?);
        notes.extend(fault.map(|f| format!("{}: {f}", run.code_map(cpu).display())));
        let path = run.pt(cpu);
        let packets = Bytes::open_stream(&path).with_context(|| path.display().to_string())?;
        cpus.push((packets, map));
    }
    let settings: Settings =
        serde_json::from_slice(&read(&run.counts())?).with_context(|| run.counts().display().to_string())?;
    let kernel = manifest.kernel.clone().unwrap_or_default();
    let cpus: Vec<_> = cpus.iter().map(|(pt, map)| (&pt[..], &map[..])).collect();
    progress.step("writing perf.data");
    let source = Source {
        cpus: &cpus,
        dict: &dict,
        records: &records,
        clock: clock_config(&manifest.clock),
        errata: errata(&manifest),
        kallsyms: &read_if_there(&run.kallsyms())?,
        modules: &read_if_there(&run.modules())?,
        root: &run.root(),
        release: &kernel.release,
        build_id: &kernel.build_id,
        command: &manifest.command,
        ret_compression: settings.ret_compression.unwrap_or(true),
    };
    let left_out = export::export(&source, output)?;
    let mut account = account(left_out, &notes, manifest.option_facts().import_notes, &manifest.clock);
    if manifest.account(Instrument::Flow).is_none() {
        account = account.at(Fate::NotUnderstood, "decode errors", None, vec![NOT_DECODED.to_owned()]);
    }
    if left_out > 0 {
        notes.push(format!("{left_out} pieces of code are left out: {LEFT_OUT}"));
    }
    if manifest.clock.is_guessed() {
        notes.push("the frequency of the clock is not known: perf's times will be its ticks".to_owned());
    }
    progress.clear();
    for note in notes {
        progress.note(&note);
    }
    let name = output.display();
    progress.say(&format!("wrote {name}; see: perf script -i {name} --symfs {name}/symfs --itrace=bei0ns"));
    Ok(account)
}

/// Why the decode errors are not known.
const NOT_DECODED: &str = "the run was not decoded, so nothing tells whether its code is whole";

/// Why a piece of code is in no process.
const LEFT_OUT: &str = "by estimated times, no process had their address space when they were seen";

/// The account of an export. `notes` are faults of the run's files.
fn account(left_out: u64, notes: &[String], imported: Vec<String>, clock: &Clock) -> Account {
    let notes: Vec<String> = imported.into_iter().chain(notes.iter().cloned()).collect();
    let account = Account::new()
        .at(Fate::Lost, "pieces of code left out", left_out, vec![LEFT_OUT.to_owned()])
        .at(Fate::NotUnderstood, "damaged or missing files", notes.len() as u64, notes);
    enter_clock(account, clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_is_whole_only_with_all_code_all_files_and_a_clock() {
        let whole = Clock { name: "perf".into(), tsc_hz: 1_000_000_000, ..Clock::default() };
        assert!(account(0, &[], Vec::new(), &whole).is_whole());
        assert!(!account(1, &[], Vec::new(), &whole).is_whole());
        assert!(!account(0, &["sideband.jsonl: line 3".to_owned()], Vec::new(), &whole).is_whole());
        assert!(!account(0, &[], vec!["perf lost 7 records".to_owned()], &whole).is_whole());
        let guessed = Clock { name: "tsc".into(), tsc_hz: 0, ..Clock::default() };
        assert!(guessed.is_guessed() && !account(0, &[], Vec::new(), &guessed).is_whole());
    }
}
