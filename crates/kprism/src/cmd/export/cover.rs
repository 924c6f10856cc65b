// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports of coverage: for other tools, and for compilers that optimise by it.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use kprism_cover::sampled;
use kprism_gcov::{Cover, export};
use kprism_report::cover::{self, Each};
use kprism_store::{Account, Fate};

use super::request::Request;
use crate::cmd::cover::{complain, load_and_complain};
use crate::cmd::strict::judge_own;
use crate::exit::Outcome;
use kprism_session::cover::Part;
use kprism_session::profile_use;

/// Options of every export of coverage.
const COVER: &str = "subject input output build_dir since_boot by_flow merge vmlinux module_file \
    debug_dir source_dir source_prefix pids comms syscall call";
const SAMPLES: &str = "input output pids comms syscall call vmlinux module_file debug_dir";

/// The suffix of the file's name, in small letters; empty if there is no point in it.
pub fn suffix(output: &Path) -> String {
    output.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

/// Refuses options that an export of coverage would ignore.
pub fn honoured(request: &Request<'_>) -> Result<()> {
    request.given.only("an export of coverage", &[COVER])?;
    request.args.cover.check(request.given, &[&request.args.input], false)
}

/// Whose coverage is asked for.
fn part(request: &Request<'_>) -> Part {
    let args = request.args;
    Part { filter: args.select.filter(), call: args.one.syscall.is_some().then(|| args.one.call()) }
}

/// Reads coverage and lets `write` write it.
fn coverage(
    request: &Request<'_>,
    out: &mut dyn Write,
    write: impl FnOnce(&Cover, &mut dyn Write) -> std::io::Result<()>,
) -> Result<Outcome> {
    let Request { args, progress, .. } = request;
    let (cover, account) = load_and_complain(&args.input, (&args.cover.options(), &part(request)), progress)?;
    request.to_file(out, |out| Ok(write(&cover, out)?))?;
    judge_own(args.strict, &[(&args.input, &account)], Outcome::Done, progress)
}

pub fn lcov_or_cobertura(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    if suffix(&request.args.output) == "info" {
        return coverage(request, out, export::lcov);
    }
    let recorded = kprism_session::cover::recorded(&request.args.input);
    coverage(request, out, |cover, out| export::cobertura(cover, recorded, out))
}

pub fn json(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    coverage(request, out, export::json)
}

pub fn llvm(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    coverage(request, out, export::llvm)
}

pub fn csv(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    coverage(request, out, |cover, out| {
        out.write_all(cover::table(cover, Each::File, None).to_csv().as_bytes())
    })
}

/// `FILE.afdo`, `FILE.prof`: samples for compilers.
pub fn samples(request: &Request<'_>, _: &mut dyn Write) -> Result<Outcome> {
    let Request { args, given, progress } = request;
    given.only("samples for a compiler", &[SAMPLES])?;
    let debug = args.cover.options().debug;
    let (profile, problems) =
        kprism_session::flow_cover::sampled(&args.input, &debug, &part(request), progress)?;
    complain(&problems);
    let name = || args.output.display().to_string();
    let mut file = BufWriter::new(std::fs::File::create(&args.output).with_context(name)?);
    let (written, option) = match suffix(&args.output).as_str() {
        "afdo" => (sampled::gcc(&profile, &mut file), "gcc takes it with -fauto-profile"),
        _ => (sampled::llvm(&profile, &mut file), "clang takes it with -fprofile-sample-use"),
    };
    written.and_then(|()| file.flush()).with_context(name)?;
    progress.say(&format!("wrote {}: {} functions; {option}={}", name(), profile.functions.len(), name()));
    let account = left_out("files left out", problems);
    judge_own(args.strict, &[(&args.input, &account)], Outcome::Done, progress)
}

/// `FOLDER.gcda`: what gcc takes with `-fprofile-use`.
pub fn counters(request: &Request<'_>, _: &mut dyn Write) -> Result<Outcome> {
    let Request { args, given, progress } = request;
    given.only(
        "a folder of .gcda",
        &["subject", "input", "output", "build_dir", "since_boot", "merge", "relative"],
    )?;
    args.cover.check(given, &[&args.input], false)?;
    let folder = args.output.as_path();
    let written = profile_use::write(&args.input, &args.cover.options(), args.relative, folder, progress)?;
    complain(&written.problems);
    if written.torn > 0 {
        progress.say(&format!(
            "kprism: note: {} counters were negative (torn: several CPUs changed them at once), and are 0 in the profile",
            written.torn
        ));
    }
    if let Some(first) = written.damaged.first() {
        progress.say(&format!(
            "kprism: note: {} objects have functions without counters or without notes, the first: {first}; `kprism report \
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
    let account =
        left_out("objects left out", written.problems).with(Fate::Kept, "objects", written.files as u64);
    judge_own(args.strict, &[(&args.input, &account)], Outcome::Done, progress)
}

/// An account of what could not be used.
fn left_out(unit: &str, problems: Vec<String>) -> Account {
    Account::new().at(Fate::Lost, unit, problems.len() as u64, problems)
}
