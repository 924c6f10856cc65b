// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's own tests, one by one: results, instructions, time, system calls, coverage.
//!
//! In: a run of tests: their results, and the flow. Out: [`Tests`], and the account of the flow and of the results.
//!
//! | part | file |
//! |---|---|
//! | KUnit: results, and the calls that they belong to | `kunit.rs` |
//! | kselftest: results, and the processes that they belong to | `kselftest.rs` |
//! | functions and lines of a part of the flow | `measure.rs` |

mod kselftest;
mod kunit;
mod measure;

use std::path::Path;

use anyhow::{Result, bail};
use kprism_image::symbols::{FunctionId, Symbols};
pub use kprism_profile::kernel_tests::{Measured, TestRun, Tests};
use kprism_store::{Account, KernelTests, Run};

use crate::cover::DebugFiles;
use crate::progress::Progress;

/// Unit of the account.
const UNMEASURED: &str = "tests that could not be measured";
/// Unit of the account.
const FAULTS: &str = "contradictions in the results";

/// The number of a kernel function.
fn named(symbols: &Symbols, name: &str) -> Option<u32> {
    let mut all = (0..symbols.len() as u32).map(|id| (id, symbols.function(FunctionId(id))));
    all.find(|(_, function)| function.kernel && function.name == name).map(|(id, _)| id)
}

/// Reads the results and measures each test.
///
/// # Errors
/// The run is none of tests, or cannot be read.
pub fn load(input: &Path, debug: &DebugFiles, progress: &Progress) -> Result<(Tests, Account)> {
    let run = Run::open(input)?;
    let manifest = run.manifest()?;
    let whole = |(tests, account)| (tests, manifest.with_recording(account));
    match manifest.tests {
        Some(KernelTests::Kunit) => kunit::load(&run, debug, progress).map(whole),
        Some(KernelTests::Kselftest) => kselftest::load(&run, debug, progress).map(whole),
        None => {
            bail!("{}: no tests in this run: record some with `kprism lab kunit`", input.display())
        }
    }
}
