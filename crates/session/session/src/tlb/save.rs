// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a recording: the table of misses, the account, and a summary.

use std::fs;

use anyhow::Result;
use kprism_profile::units;
use kprism_store::{Instrument, MissRow, Run, save_tlb_misses};
use kprism_tlb::stream::{Context as Place, Event, Reader};

use super::{Loaded, Method, readers};

/// Writes the table `tlb_misses` and the account into the run. Returns a summary in words.
///
/// # Errors
/// The run holds no misses, or its manifest cannot be written. A table that cannot be written is told in the summary:
/// reports need none.
pub fn save(run: &Run) -> Result<String> {
    let mut loaded = Loaded::open(run)?;
    let mut rows_of = Vec::new();
    for (cpu, reader) in readers(&loaded.streams)?.into_iter().enumerate() {
        rows_of.push(rows(cpu as u32, reader));
    }
    let saved = save_tlb_misses(run, rows_of.into_iter().flatten());
    let profile = loaded.profile()?;
    let all = profile.all();
    let mut text = String::new();
    // Reports need no table, and a full disk must not keep anybody from seeing them.
    if let Err(why) = saved {
        fs::remove_dir_all(run.tables()).ok();
        text += &format!("note: the table tlb_misses is not kept: {why}\n");
    }
    let geometries = loaded.geometries()?;
    for (geometry, misses) in geometries.iter().zip(all) {
        text += &format!("{}: {} misses\n", geometry.name, units::grouped(misses));
    }
    if loaded.method() == Method::Sampled {
        text += &format!(
            "sampled: about {} misses, by {} samples\n",
            units::grouped(all[0]),
            units::grouped(loaded.counts["samples"].as_u64().unwrap_or(0))
        );
    } else if geometries.is_empty() {
        text += &format!("off the bus: {} misses\n", units::grouped(all[0]));
    }
    for note in &loaded.notes {
        text += &format!("note: {note}\n");
    }
    let account = loaded.account(&profile);
    if !account.is_whole() {
        text += &format!("account\n{}\n", account.to_text().trim_end());
    }
    let mut manifest = run.manifest()?;
    manifest.accounts.insert(Instrument::Tlb, account);
    run.write_manifest(&manifest)?;
    let (place, input) = (run.dir().display(), crate::input_option(run));
    text += &format!("recorded in {place}; see: kprism report tlb{input}");
    Ok(text)
}

/// Misses of the last level. Ends at damage, which [`Loaded::profile`] names.
fn rows(cpu: u32, reader: Reader<'_>) -> impl Iterator<Item = MissRow> {
    let (mut place, mut entry) = (Place::default(), None);
    reader.map_while(Result::ok).filter_map(move |event| {
        place.follow(&event);
        if let Event::Entry(at) = event {
            entry = Some(at);
        }
        let Event::Miss(m) = event else { return None };
        let pte = entry.take();
        (m.last != 0).then(|| MissRow {
            time_ns: m.ns,
            cpu,
            pid: place.pid,
            tgid: place.tgid,
            space: place.space,
            va: m.va,
            page_bytes: m.size.bytes(),
            pte,
            ip: m.ip,
            access: m.access as u32,
            geometries: m.last.into(),
        })
    })
}
