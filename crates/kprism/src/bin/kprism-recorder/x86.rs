// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that need an x86-64 processor: probes, which read its registers and patch its code, and events on the clock of its TSC.

use std::path::Path;

use kprism_record::probe::guest as probe;
use kprism_report::plain::plain;
use kprism_session::errors::text_of;
use kprism_session::{Progress, Update};
use kprism_signals::Second;
use kprism_tracefs::beside;

use super::{FAILED, failed, owned};

/// See [`kprism_record::probe::was_jump_guard`].
pub fn was_guard() -> bool {
    kprism_record::probe::was_jump_guard()
}

/// Runs the commands `probe`, `events-begin` and `events-end`.
pub fn run(words: &[&str]) -> Result<u8, (u8, String)> {
    match words {
        ["probe", folder, settings, probes, command @ ..] => {
            of_probes(Path::new(folder), settings, Path::new(probes), command)
                .map_err(|error| (2, plain(&text_of(&error))))
        }
        ["events-begin", folder, settings] => {
            let settings: beside::Beside =
                serde_json::from_str(settings).map_err(|error| (FAILED, format!("settings: {error}")))?;
            beside::begin(&settings, Path::new(folder)).map(|()| 0).map_err(failed)
        }
        ["events-end", folder] => beside::end(Path::new(folder)).map(|_| 0).map_err(failed),
        _ => Err((2, format!("`{}` lacks arguments, or has too many", words.join(" ")))),
    }
}

/// Records probes. Says no more than errors, and the counts so far if they are asked for: the host tells the rest.
fn of_probes(folder: &Path, settings: &str, probes: &Path, command: &[&str]) -> anyhow::Result<u8> {
    kprism_signals::catch(Second::Ignored)?;
    let progress = Progress::new(false, |update| {
        if let Update::Error(text) = update {
            eprintln!("{}", plain(text));
        }
    });
    let recorded =
        probe::recorder(settings, probes, folder, owned(command), &progress, &mut |since, so_far| {
            eprint!("{}", kprism_report::probe::so_far(since, so_far));
        })?;
    if let Some(why) = &recorded.full {
        eprintln!("kprism: {why}; recording ended there, and what was recorded until then is kept");
    }
    Ok(match () {
        () if recorded.interrupted => 130,
        () if recorded.full.is_some() || recorded.not_attached > 0 => 2,
        () if recorded.hits() == 0 => 1,
        () => 0,
    })
}
