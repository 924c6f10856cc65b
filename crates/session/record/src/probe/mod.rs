// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records probes: from the options of `kprism record probe` to a run with `streams/probe/`.
//!
//! | step | module |
//! |---|---|
//! | [`Probes`], as the user writes them → programs; or programs from a file | `compile` |
//! | a file of probes → [`ProbeFile`] | `file` |
//! | programs and [`Settings`] → attached; the command runs; records → `hits.bin`, counts → `probes.json`, the account | `attach` |
//! | `hits.bin`: all records as they come, or the last of them | `kept` |
//! | the same in a guest, by the program `kprism-recorder` there | [`guest`] |

mod attach;
mod compile;
mod file;
pub mod guest;
mod kept;

pub use attach::{JumpMode, KEYS, Live, Recorded, Settings, record};
pub use compile::{ForeignKernel, Probes, load};
pub use file::ProbeFile;
pub use kprism_jump::guard::was_guard as was_jump_guard;
pub use kprism_probe::written::{thread_variable, variable};

use kprism_probe::stream::Description;

/// The counts, a line for each probe, and faults. `last`: only so many records are kept.
pub fn summary_lines(description: &Description, last: Option<u32>) -> Vec<String> {
    let mut lines = Vec::new();
    for (probe, counts) in description.probes.iter().zip(&description.counts) {
        let mut said = kprism_probe::view::summary::counted(probe, counts).into_iter();
        lines.extend(said.next().map(|first| format!("{}: {first}", probe.place)));
        lines.extend(said);
    }
    lines.extend(kprism_probe::view::summary::sums(&description.probes, &description.counts));
    lines.extend(last.map(|last| format!("of all records the last {last} are kept")));
    let variables = description.variables.iter().map(|(name, value)| format!("${name} = {value}"));
    lines.extend(variables);
    lines
}
