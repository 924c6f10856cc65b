// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage from a recorded flow: of code that was built as always, by its debug information.
//!
//! In: a run with a flow, and debug information of what ran: that of mapped programs in the run or by their build id,
//! `--vmlinux`, modules. Out: a coverage as of gcov's counters, with files that could not be used. Exact for the tasks,
//! or the single system call, that are asked for.
//!
//! | step | file |
//! |---|---|
//! | debug information of what ran | `debug_files.rs` |
//! | where a file's sections ran | `places.rs` |
//! | counts of instructions at the file's own addresses | `instructions.rs` |
//! | lines of single instructions of the kernel | `kernel_lines.rs` |
//! | coverage, or a sample profile, of all files | this one |

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use kprism_cover::executed::Gatherer;
use kprism_cover::executed::sampled::Profile;
use kprism_cover::path::Prefixes;
use kprism_cover::why::Known;
use kprism_debuginfo::scopes::Scopes;
use kprism_profile::units::grouped;
use kprism_store::{Account, Fate, Run};

use super::loaded::{Loaded, Problem, ProblemKind};
use super::options::{DebugFiles, Options, Part};
use super::sources::{self, Built, CHANGED};
use crate::progress::Progress;

mod debug_files;
mod instructions;
mod kernel_lines;
mod places;

pub(crate) use debug_files::module_sources;
pub use debug_files::{of_the_build, recorded_module, recorded_vmlinux};
use instructions::{Instructions, each};
pub(crate) use kernel_lines::kernel_lines;

/// Unit of the account.
const WITHOUT: &str = "instructions in files without debug information";
/// Unit of the account: programs of 32 bits are not read.
const OF_32_BITS: &str = "instructions of 32-bit code";

/// The account of executed instructions.
fn account(seen: &Instructions) -> Account {
    let mut account = Account::new()
        .with(Fate::Seen, "instructions", seen.insns)
        .with(Fate::Kept, "instructions", seen.kept)
        .at(Fate::Lost, WITHOUT, seen.without(), seen.largest())
        .with(Fate::Lost, OF_32_BITS, seen.of_32_bits);
    account.entries.extend(seen.streams.entries.iter().cloned());
    account
}

/// Reads coverage.
pub fn load(input: &Path, options: &Options, part: &Part, progress: &Progress) -> Result<Loaded> {
    load_known(input, options, part, progress).map(|(loaded, _)| loaded)
}

/// The same, and which lines there are in the debug information.
pub fn load_known(
    input: &Path,
    options: &Options,
    part: &Part,
    progress: &Progress,
) -> Result<(Loaded, Known)> {
    let (mut gatherer, mut known) = (Gatherer::default(), Known::default());
    let prefixes = sources::prefixes(&options.source_prefix);
    let (problems, seen) = each(input, (&options.debug, &prefixes), part, progress, &mut |seen| {
        known.add(seen.lines);
        gatherer.add(seen.lines, seen.ran, &seen.jumps);
    })?;
    progress.step("reading sources");
    let built = Built::of_run(input);
    let changed = RefCell::new(BTreeSet::new());
    let text = |path: &str, last: u32| {
        let found = sources::find(path, last, options.source_dir.as_deref());
        changed.borrow_mut().extend(found.changed(path, &built));
        found.text()
    };
    let (cover, inferred) = gatherer.finish(&text);
    known.inferred = inferred;
    progress.clear();
    let inferred = known.inferred.values().map(|lines| lines.len() as u64).sum::<u64>();
    let changed: Vec<String> = changed.into_inner().into_iter().collect();
    let account = account(&seen)
        .with(Fate::Kept, "files with debug information", u64::from(cover.objects))
        .at(Fate::Lost, "files left out", problems.len() as u64, problems.clone())
        .with(Fate::Guessed, "lines without code or with merged code, told from lines around", inferred)
        .at(Fate::Guessed, CHANGED, changed.len() as u64, changed);
    let problem = |text| Problem { kind: ProblemKind::LeftOut, text };
    let problems = problems.into_iter().map(problem).collect();
    let loaded = Loaded {
        cover,
        problems,
        footprint: None,
        unsettled: None,
        runs: None,
        account,
        built,
        inferred: Some(known.inferred.clone()),
        windows: Vec::new(),
        resets: Vec::new(),
    };
    Ok((loaded, known))
}

/// The executed code as samples for compilers, the files that could not be used, and the account, in which these files are
/// not counted.
pub fn sampled(
    input: &Path,
    debug: &DebugFiles,
    part: &Part,
    progress: &Progress,
) -> Result<(Profile, Vec<String>, Account)> {
    let mut profile = Profile::default();
    let folders = debug.folders(&Run::open(input)?);
    let mut problems = Vec::new();
    let (more, seen) =
        each(input, (debug, &Prefixes::default()), part, progress, &mut |seen| match Scopes::of_file(
            seen.file, &folders,
        ) {
            Ok(Some(scopes)) => profile.add(seen.lines, &scopes, &seen.ran, &seen.targets),
            Ok(None) => {}
            Err(reason) => problems.push(format!("{}: {reason}", seen.file.display())),
        })?;
    progress.clear();
    problems.extend(more);
    for (count, unit) in [(seen.without(), WITHOUT), (seen.of_32_bits, OF_32_BITS)] {
        if count > 0 {
            progress.note(&format!("{} {unit} are not in the samples", grouped(count)));
        }
    }
    let account = account(&seen);
    Ok((profile, problems, account))
}
