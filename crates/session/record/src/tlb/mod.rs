// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLB misses of a command: every one by models, every one off a memory bus, or sampled by this processor.
//!
//! | method | module |
//! |---|---|
//! | models of processors' TLBs, fed by the observer in the guest | [`model`] |
//! | the same of one program under QEMU's user mode | [`user`] |
//! | the walks of QEMU's own TLB, on the bus of the guest | [`ptat`] |
//! | this processor's own misses, sampled by perf | [`perf`] |
//! | the same from a perf.data of another machine | `sampled`, for [`crate::import`] |
//! | the walks that a capture of a memory bus holds | `bus`, for [`crate::import`] |
//!
//! Each ends in `close`: the table of misses, the account, a summary.

pub(crate) mod bus;
mod close;
pub mod model;
pub mod perf;
pub mod ptat;
pub(crate) mod sampled;
pub mod user;

pub(crate) use close::close;

use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_expr::access::{Condition, Known};
use kprism_store::{OptionKey, Run};
use kprism_tlb::{Geometry, bank, presets};

/// A recording on this machine that has ended.
#[derive(Debug)]
pub struct Recorded {
    /// The run.
    pub run: Run,
    /// End of the command.
    pub ended: Ended,
}

/// End of a command of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With this exit code; 128 and the number of a signal that ended it.
    Code(i32),
    /// It ran for as long as it may.
    Timeout,
    /// An interrupt ended it.
    Interrupted,
    /// It came to its end, but what it did could not all be written: most often, the disk was full.
    Unwritten,
}

/// The geometry of a preset, or that a file describes.
///
/// # Errors
/// It is neither, or the description is wrong.
pub fn geometry(name: &str) -> Result<Geometry> {
    if let Some(geometry) = presets::preset(name) {
        return Ok(geometry);
    }
    let text = std::fs::read_to_string(name).with_context(|| {
        format!("{name}: neither a file nor one of the geometries {}", presets::NAMES.join(", "))
    })?;
    Geometry::parse(&text).with_context(|| name.to_owned())
}

/// The condition of `--if` as recorders take it.
pub(crate) fn compile(condition: Option<&str>, known: Known) -> Result<Option<String>> {
    let compile = |text| Condition::compile(text, known).map(|condition| condition.json());
    match condition.map(compile).transpose() {
        Ok(json) => Ok(json),
        Err(why) => bail!("--if:\n{why}"),
    }
}

/// Adds the condition to the manifest, so that reports tell which misses they show.
pub(crate) fn keep_condition(run: &Run, condition: Option<&str>) -> Result<()> {
    let Some(text) = condition else { return Ok(()) };
    let mut manifest = run.own_manifest()?;
    manifest.set(OptionKey::Condition, text);
    Ok(run.write_manifest(&manifest)?)
}

/// Names of geometries as a recorder in another process finds them: files by their absolute paths.
///
/// # Errors
/// One is unknown, there are too many, or a path has a character that separates the recorder's options.
pub fn geometries(names: &[String]) -> Result<Vec<String>> {
    if names.len() > bank::MAX_GEOMETRIES {
        bail!("at most {} geometries", bank::MAX_GEOMETRIES);
    }
    let word = |name: &String| {
        geometry(name)?;
        if presets::preset(name).is_some() {
            return Ok(name.clone());
        }
        let path = std::path::absolute(Path::new(name))?.display().to_string();
        if path.contains(['+', ',']) {
            bail!("{path}: no `+` or `,` may be in a description's path");
        }
        Ok(path)
    };
    names.iter().map(word).collect()
}
