// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports of coverage: for other tools, and for compilers that optimise by it.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_cover::Cover;
use kprism_report::cover::{self, Each};
use kprism_session::cover::{RESET_OBJECTS, RESETS, executed, load_and_tell, profile_use, tell_problems};
use kprism_store::{Account, Fate};

use crate::request::{Request, Written};

pub mod cobertura;
pub mod json;
pub mod lcov;
pub mod llvm;
pub mod samples;

/// Objects and runs that are named whose counters restarted.
const NAMED: usize = 5;

/// The suffix of the file's name, in small letters; empty if there is no point in it.
pub(crate) fn suffix(output: &Path) -> String {
    output.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

/// Reads coverage and lets `write` write it.
fn coverage(
    request: &Request<'_>,
    out: &mut dyn Write,
    write: impl FnOnce(&Cover, &mut dyn Write) -> std::io::Result<()>,
) -> Result<Written> {
    let loaded = load_and_tell(request.input, &request.cover, &request.part(), request.progress)?;
    if loaded.cover.sources.is_empty() {
        bail!("{}: of what ran no line of source is known: nothing can be written", request.input.display());
    }
    request.to_file(out, |out| Ok(write(&loaded.cover, out)?))?;
    Ok(Written::with(loaded.account))
}

pub(crate) fn lcov_or_cobertura(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    if suffix(request.output) == "info" {
        return coverage(request, out, lcov::write);
    }
    let recorded = kprism_session::cover::recorded(request.input);
    coverage(request, out, |cover, out| cobertura::write(cover, recorded, out))
}

pub(crate) fn json(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    coverage(request, out, json::write)
}

pub(crate) fn llvm(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    coverage(request, out, llvm::write)
}

pub(crate) fn csv(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    coverage(request, out, |cover, out| {
        out.write_all(cover::table(cover, Each::File, None).to_csv().as_bytes())
    })
}

/// `FILE.afdo`, `FILE.prof`: samples for compilers.
pub(crate) fn samples(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    let progress = request.progress;
    let debug = &request.cover.debug;
    let (profile, problems, account) = executed::sampled(request.input, debug, &request.part(), progress)?;
    tell_problems(&problems, progress);
    if profile.functions.is_empty() {
        bail!(
            "{}: no function that ran has lines of source: there are no samples to write",
            request.input.display()
        );
    }
    let name = || request.output.display().to_string();
    let is_gcc = suffix(request.output) == "afdo";
    let write = if is_gcc { samples::gcc } else { samples::llvm };
    if request.is_stdout() {
        write(&profile, out)?;
    } else {
        let mut file = BufWriter::new(std::fs::File::create(request.output).with_context(name)?);
        write(&profile, &mut file).and_then(|()| file.flush()).with_context(name)?;
        let taker = match is_gcc {
            true => "gcc takes it with -fauto-profile",
            false => "clang takes it with -fprofile-sample-use",
        };
        progress.say(&format!("wrote {}: {} functions; {taker}={}", name(), profile.functions.len(), name()));
    }
    let account = account.at(Fate::Lost, "files left out", problems.len() as u64, problems);
    Ok(Written::with(account))
}

/// `FOLDER.gcda`: what gcc takes with `-fprofile-use`.
pub(crate) fn counters(request: &Request<'_>, _: &mut dyn Write) -> Result<Written> {
    let (progress, folder) = (request.progress, request.output);
    let written = profile_use::write(request.input, &request.cover, request.relative, folder, progress)?;
    tell_problems(&written.problems, progress);
    if written.torn > 0 {
        progress.note(&format!(
            "{} counters were negative (torn: several CPUs changed them at once), and are 0 in the profile",
            written.torn
        ));
    }
    for text in written.resets.iter().chain(&written.restarted).take(NAMED) {
        progress.note(text);
    }
    if let Some(first) = written.damaged.first() {
        progress.note(&format!(
            "{} objects have functions without counters or without notes, the first: {first}; `kprism report \
             cover` counts them",
            written.damaged.len()
        ));
    }
    let prefix = written.root.map(|root| format!(" -fprofile-prefix-path={root}")).unwrap_or_default();
    let place = folder.canonicalize().with_context(|| folder.display().to_string())?;
    progress.say(&format!(
        "wrote {}: {} files; gcc takes them with -fprofile-use={}{prefix}",
        folder.display(),
        written.files,
        place.display()
    ));
    let account = left_out("objects left out", written.problems)
        .with(Fate::Kept, "objects", written.files as u64)
        .at(Fate::Lost, RESET_OBJECTS, written.restarted.len() as u64, written.restarted)
        .at(Fate::Lost, RESETS, written.resets.len() as u64, written.resets);
    Ok(Written::with(account))
}

/// An account of what could not be used.
fn left_out(unit: &str, problems: Vec<String>) -> Account {
    Account::new().at(Fate::Lost, unit, problems.len() as u64, problems)
}
