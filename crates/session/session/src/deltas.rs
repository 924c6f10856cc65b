// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes a flow to measure intervals between markers.
//!
//! In: a run with a flow, the markers. Out: a [`Profile`] with these intervals, and the counts of instructions.

use std::ops::Range;

use anyhow::{Result, bail};
use kprism_flow::delta::{Plan, Spec};
use kprism_image::symbols::{FunctionId, Symbols};
use kprism_profile::Profile;
use kprism_store::{Instrument, Manifest, Run};

use crate::flow;
use crate::progress::Progress;

/// Decodes the run and measures `specs`; `count` are instructions whose executions are counted. All intervals that reach into the
/// time `kept` (ns) are in the result, otherwise the longest only.
///
/// # Errors
/// The run holds no flow or cannot be read, a marker is none, or it cannot be seen in this run.
pub fn measure(
    run: &Run,
    specs: &[Spec],
    count: &[String],
    kept: Option<Range<u64>>,
    progress: &Progress,
) -> Result<(Profile, Manifest)> {
    let loaded = flow::load(run, progress)?;
    let plan = Plan::new(specs, count, &|name| address_of(&loaded.symbols, name))?;
    let mut plan = plan.with_preemption(loaded.preemption);
    if let Some(time) = kept {
        plan = plan.keeping(time);
    }
    if let [name, ..] = plan.unmeasured()[..] {
        bail!("interval {name}: {}", flow::NO_PREEMPTION);
    }
    let profile = flow::profile(&loaded, plan, None, progress);
    // The run's account is of an earlier decode: a stream may have been damaged since.
    let account = flow::account_of(&loaded, &profile, run, progress);
    let mut manifest = loaded.manifest;
    manifest.accounts.insert(Instrument::Flow, account);
    Ok((profile, manifest))
}

/// The address of a kernel function: one of a program has as many as the program is mapped.
fn address_of(symbols: &Symbols, name: &str) -> Option<u64> {
    let of = |id| Some(symbols.function(id)).filter(|f| f.kernel);
    let shown = (0..symbols.len() as u32).filter_map(|id| of(FunctionId(id))).find(|f| f.name == name);
    let alias = || symbols.aliases().filter(|(alias, _)| *alias == name).find_map(|(_, id)| of(id));
    shown.or_else(alias).map(|f| f.start)
}
