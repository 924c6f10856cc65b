// SPDX-License-Identifier: MIT OR Apache-2.0
//! gcov's counters and the flow of the same run, line by line.

use std::path::Path;

use anyhow::{Result, bail};
use kprism_cover::Cover;
use kprism_cover::why::{self, Comparison, Counts};
use kprism_store::Account;

use super::input::is_cover;
use super::options::{Options, Part};
use super::{executed, load, sources};
use crate::progress::Progress;

/// Both coverages compared.
pub struct Compared {
    /// Agreement and differences, by source file.
    pub files: Vec<Comparison>,
    /// The account of the counters.
    pub counters: Account,
    /// The account of the flow.
    pub flow: Account,
}

/// Compares them, for the sources whose path `takes` accepts.
///
/// # Errors
/// The run holds no counters or no flow, or one of them cannot be read.
pub fn compare(
    input: &Path,
    options: &Options,
    takes: &dyn Fn(&Cover, &str) -> bool,
    progress: &Progress,
) -> Result<Compared> {
    if !is_cover(input) {
        bail!("{}: no counters of gcov in it: kprism lab gcov-kernel --flow records both", input.display());
    }
    let counters = Options { by_flow: false, ..options.clone() };
    let gcov = load(input, &counters, &Part::default(), progress)?;
    let every = load(input, &Options { every_block: true, ..counters }, &Part::default(), progress)?;
    let (flow, known) = executed::load_known(input, options, &Part::default(), progress)?;
    let text = |path: &str| sources::read(path, 0, options.source_dir.as_deref());
    let gcov_counts = Counts { gcov: &gcov.cover, every_block: &every.cover };
    let files = why::compare(&gcov_counts, &flow.cover, &known, &|path| takes(&gcov.cover, path), &text);
    Ok(Compared { files, counters: gcov.account, flow: flow.account })
}
