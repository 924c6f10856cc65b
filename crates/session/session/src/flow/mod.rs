// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a recorded run to its tables, in four steps: `recorded` completes the manifest from what the recorder left,
//! `load` reads the streams, `kprism-flow` decodes them, `account` adds up how much of the recording that is.
//!
//! In: a run folder's streams and symbols. Out: a [`Profile`], kept as the run's tables, and the counts in
//! its manifest. A part that is damaged or missing is named and counted, and the rest is decoded.

mod account;
mod load;
mod processor;
mod recorded;
mod summary;

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use kprism_flow::Options;
use kprism_flow::delta::Plan;
use kprism_flow::replay::{Inputs, Listener, Replayed, replay};
use kprism_flow::window::Window;
use kprism_profile::units::grouped;
use kprism_profile::{Delta, Profile};
use kprism_store::{Account, Fate, Instrument, Manifest, OptionKey, Run, load_profile, save_profile};

use kprism_tracefs::beside::RecordedEvents;

pub(crate) use account::enter_clock;
pub use account::{NO_PREEMPTION, Undecoded};
pub use load::{Loaded, clock_config, code, load, read_streams, sideband_records};
pub use processor::{errata, not_understood};
pub use recorded::{Recorded, complete};
pub(crate) use summary::condition_faults;
pub use summary::summary;

use crate::progress::Progress;

/// The profile of a run with a flow, and the run's manifest. Decodes the run first if that was not done yet.
///
/// # Errors
/// It has no flow, or cannot be decoded.
pub fn open(run: &Run, progress: &Progress) -> Result<(Profile, Manifest)> {
    if run.has_tables() {
        progress.step("reading the tables");
        match load_profile(run) {
            Ok(profile) if profile.deltas.iter().any(Delta::has_idle) && run.code_dict().exists() => {
                progress.note(
                    "an older kprism made the tables, with idle in the intervals; decoding the streams again",
                );
            }
            Ok(profile) => return Ok((profile, run.manifest()?)),
            // Tables are made from the streams: damaged ones, or those of an older kprism, are made again.
            Err(error) if run.code_dict().exists() => {
                progress.note(&format!("{error}; decoding the streams again"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    decode(run, progress)
}

/// Decodes a run, saves its tables, and enters the counts into its manifest, which it returns too.
///
/// # Errors
/// The streams are not there, or the disk refuses.
pub fn decode(run: &Run, progress: &Progress) -> Result<(Profile, Manifest)> {
    let loaded = load(run, progress)?;
    let profile = profile(&loaded, Plan::default(), None, progress);
    let account = account_of(&loaded, &profile, run, progress);
    let Loaded { mut manifest, notes, .. } = loaded;
    manifest.instructions = Some(profile.totals.instructions());
    manifest.decode_errors = Some(profile.totals.errors());
    manifest.lost_bytes = profile.totals.lost_bytes();
    manifest.accounts.insert(Instrument::Flow, account);
    if !notes.is_empty() {
        manifest.set(OptionKey::DecodeNotes, notes.clone());
    }
    progress.step("writing the tables");
    // If the disk is full, the profile is returned all the same; the next report decodes again.
    let saved = save_profile(run, &profile).and_then(|tables| {
        manifest.name_tables(tables);
        run.write_manifest(&manifest)
    });
    for note in &notes {
        progress.note(note);
    }
    if let Err(error) = saved {
        progress.note(&format!("{error}: the tables are not kept, the next report decodes again"));
        run.remove_tables();
    }
    Ok((profile, manifest))
}

/// The account of a profile of the whole flow.
pub(crate) fn account_of(loaded: &Loaded, profile: &Profile, run: &Run, progress: &Progress) -> Account {
    with_events(account::of(loaded, profile), run, progress)
}

/// Adds the counts of kernel events that were recorded beside the flow.
pub(crate) fn with_events(account: Account, run: &Run, progress: &Progress) -> Account {
    match RecordedEvents::load(&run.dir().join(kprism_tracefs::EVENTS)) {
        Ok(None) => account,
        Ok(Some(events)) => {
            let (recorded, lost) = (events.recorded(), events.lost());
            // A guest that did not come to its end left no counts.
            let known = !events.cpus.is_empty();
            account
                .with(Fate::Seen, KERNEL_EVENTS, known.then_some(recorded.saturating_add(lost)))
                .with(Fate::Kept, KERNEL_EVENTS, recorded)
                .with(Fate::Lost, KERNEL_EVENTS, known.then_some(lost))
        }
        Err(error) => {
            progress.note(&error.to_string());
            account.with(Fate::NotUnderstood, KERNEL_EVENTS, None)
        }
    }
}

const KERNEL_EVENTS: &str = "events of the kernel";

/// The flow of a run that is still being recorded, as far as its streams have been written.
pub struct SoFar {
    /// The profile of that part.
    pub profile: Profile,
    /// The manifest, with the clock of the recorder.
    pub manifest: Manifest,
    /// Bytes of packets that were decoded.
    pub decoded: u64,
}

/// Decodes what has been written so far, and writes nothing into the run. The streams end where the recorder last wrote them
/// out: a packet that is cut there may count as an error, which the whole stream does not have.
///
/// # Errors
/// There are no streams yet, or a file cannot be read.
pub fn so_far(run: &Run) -> Result<SoFar> {
    let progress = Progress::silent();
    let loaded = load::load_as(run, recorded::peek, &progress)?;
    let profile = profile(&loaded, Plan::default(), None, &progress);
    let decoded = loaded.lengths().iter().sum();
    Ok(SoFar { profile, decoded, manifest: loaded.manifest })
}

/// Decodes with the measurements of `plan`, or what is in the window, and saves nothing.
pub fn profile(loaded: &Loaded, plan: Plan, window: Option<Window>, progress: &Progress) -> Profile {
    let total: u64 = loaded.cpus.iter().map(|(pt, _)| pt.len() as u64).sum();
    progress.step("decoding");
    let done = AtomicU64::new(0);
    let tick = |bytes: u64| {
        let so_far = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        progress.amount("decoding", so_far, total);
    };
    let plan = plan.with_preemption(loaded.preemption);
    let options = Options {
        clock: loaded.clock(),
        errata: errata(&loaded.manifest),
        plan,
        window,
        ..Options::default()
    };
    let profile = kprism_flow::profile(&loaded.streams(), &loaded.symbols, &loaded.records, &options, &tick);
    progress.found(&account::of_streams(loaded, &profile));
    profile
}

/// Replays the whole run for a listener. Remarks on the run's files, and on what could not be decoded, go to `progress`, and so
/// does the account of the streams ([`Progress::found`]), which is returned too.
pub fn follow(loaded: &Loaded, listener: &mut impl Listener, progress: &Progress) -> Account {
    loaded.remarks().iter().for_each(|note| progress.note(note));
    let streams = loaded.streams();
    let inputs = Inputs {
        streams: &streams,
        resolver: &loaded.symbols,
        sideband: &loaded.records,
        clock: loaded.clock(),
        errata: errata(&loaded.manifest),
        stretch: 0,
    };
    let Replayed { stats, guessed, unended } = replay(&inputs, listener);
    let undecoded = Undecoded::of(&stats);
    if let Some(note) = undecoded.note() {
        progress.note(&note);
    }
    for (unit, n) in guessed.units() {
        progress.note(&format!("guessed: {} {unit}", grouped(n)));
    }
    for (unit, n) in unended.units() {
        progress.note(&format!("{} {unit}: how long they took is not known", grouped(n)));
    }
    let account = loaded.account(undecoded);
    let account = unended.units().fold(account, |account, (unit, n)| account.with(Fate::Seen, unit, n));
    let account = guessed.units().fold(account, |account, (unit, n)| account.with(Fate::Guessed, unit, n));
    progress.found(&account);
    account
}
