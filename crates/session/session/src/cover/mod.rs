// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage of a run: from gcov's counters, or from its flow.
//!
//! In: a run with gcov's counters (for a window, with readings from before it), an archive of counters, a folder with
//! `.gcda` files, a run with a flow, or a tracefile of another program. Out: a [`Cover`](kprism_cover::Cover), with what was wrong with single objects
//! and files.
//!
//! | step | file |
//! |---|---|
//! | what is asked for | `options.rs` |
//! | what the input is | `input.rs` |
//! | counters and notes, found and put together on all CPUs | `counters/` |
//! | or: instructions of a flow and debug information | [`executed`] |
//! | or: a tracefile of lcov's | `tracefile.rs` |
//! | the result, and an account of what is in it | `loaded.rs`, `counters/account.rs` |
//! | windows between conditions | `windows.rs` |
//! | remarks on it, in words | `remarks.rs` |
//! | the source, lines or function that a text names | [`place`] |
//! | texts of sources | [`sources`] |
//! | counters and flow of one run compared | `compare.rs` |
//! | counters as a profile for gcc | [`profile_use`] |

use std::path::Path;

use anyhow::{Result, bail};
use kprism_profile::Filter;
use kprism_store::Run;

use crate::progress::Progress;

mod compare;
mod counters;
pub mod executed;
mod input;
mod loaded;
mod options;
pub mod place;
pub mod profile_use;
mod remarks;
pub mod sources;
mod tracefile;
mod windows;

pub use compare::{Compared, compare};
pub use counters::{NEVER_RAN, RESET_OBJECTS, RESETS};
pub use input::{is_alone, is_cover, is_flow, recorded};
pub use loaded::{Footprint, Loaded, Problem, ProblemKind, SourceText, Unsettled};
pub use options::{DebugFiles, Options, Part};
pub use remarks::{load_and_tell, tell_problems};
pub use windows::{Counted, Windows};

/// Reads coverage.
///
/// # Errors
/// The input cannot be read, or none of its objects can be used; or options are given that go with counters only, or
/// with a flow only.
pub fn load(input: &Path, options: &Options, part: &Part, progress: &Progress) -> Result<Loaded> {
    if is_flow(input, options) {
        if !options.merge.is_empty() {
            bail!("{}: --merge adds up gcov's counters; this is read from the flow", input.display());
        }
        let mut loaded = executed::load(input, options, part, progress)?;
        loaded.account = Run::open(input)?.manifest()?.with_recording(loaded.account);
        loaded.windows = Windows::of(input).map(|windows| (None, windows)).into_iter().collect();
        return Ok(loaded);
    }
    if part.call.is_some() || part.filter != Filter::default() {
        bail!(
            "{}: gcov's counters are of all tasks: --task, --comm and --syscall need a recorded flow",
            input.display()
        );
    }
    tracefile::refuse_profile(input)?;
    if tracefile::begins(input) == tracefile::Begins::Tracefile {
        return tracefile::load(input, options);
    }
    let mut loaded = counters::load(input, options, progress)?;
    // Counters of gcov need not belong to a run.
    if input.join("manifest.json").exists() {
        loaded.account = Run::open(input)?.manifest()?.with_recording(loaded.account);
    }
    Ok(loaded)
}
