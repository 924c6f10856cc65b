// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a recording of TLB misses: the table, the account, and a summary.

use std::fs;

use anyhow::Result;
use kprism_profile::units;
use kprism_session::Progress;
use kprism_session::tlb::{Loaded, Method};
use kprism_store::{Instrument, Run, save_tlb_misses};

/// Writes the table `tlb_misses` and the account into the run, and tells a summary.
///
/// # Errors
/// The run holds no misses, or its manifest cannot be written. A table that cannot be written is told with the summary:
/// reports need none.
pub(crate) fn close(run: &Run, progress: &Progress) -> Result<()> {
    // The recorder may have written on since the manifest was: the recording is over now, and its files are as long as they are.
    run.write_manifest(&run.own_manifest()?)?;
    progress.step("writing the table of misses");
    let mut loaded = Loaded::open(run)?;
    let saved = save_tlb_misses(run, loaded.rows()?);
    let profile = loaded.profile()?;
    let mut text = String::new();
    // Reports need no table, and a full disk must not keep anybody from seeing them.
    let mark = match saved {
        Ok(mark) => Some(mark),
        Err(why) => {
            fs::remove_dir_all(run.tables()).ok();
            text += &format!("note: the table tlb_misses is not kept: {why}\n");
            None
        }
    };
    let all = profile.all();
    let geometries = loaded.geometries()?;
    for (geometry, misses) in geometries.iter().zip(all) {
        text += &format!("{}: {} misses\n", geometry.name, units::grouped(misses));
    }
    if loaded.method() == Method::Sampled {
        text += &format!(
            "sampled: about {} misses, by {} samples\n",
            units::grouped(all[0]),
            loaded.counts.samples.map_or("a number not known of".into(), units::grouped)
        );
    } else if loaded.method() == Method::Bus {
        text += &format!("off the bus: {} misses\n", units::grouped(all[0]));
    }
    for note in &loaded.notes {
        text += &format!("note: {note}\n");
    }
    let account = loaded.account(&profile);
    if !account.is_whole() {
        text += account.head().as_str();
    }
    let mut manifest = run.own_manifest()?;
    manifest.accounts.insert(Instrument::Tlb, account);
    manifest.name_tables(mark.map(|mark| ("tlb_misses".to_owned(), mark)));
    run.write_manifest(&manifest)?;
    let (place, input) = (run.dir().display(), kprism_session::input_option(run));
    text += &format!("recorded in {place}; see: kprism report tlb{input}");
    progress.clear();
    progress.say(&text);
    Ok(())
}
