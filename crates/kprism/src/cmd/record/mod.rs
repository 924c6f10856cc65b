// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record`: what this machine itself can record.
//!
//! In: options and a command. Out: a run. `flow` drives `perf record -e intel_pt//` and imports what it wrote:
//!
//! | file | what |
//! |---|---|
//! | `flow` | options, the checks before, the import afterwards |
//! | `line` | perf's command line, made of the options; touches nothing |
//! | `pmu` | what the processor's Intel PT can do, from sysfs |
//! | `rights` | what this user may trace |
//! | `driver` | perf as a child: its end, by itself or asked for |

mod driver;
mod flow;
mod line;
mod pmu;
mod rights;

use anyhow::Result;

pub use line::find_perf;
pub use pmu::Pmu;
pub use rights::Rights;

use crate::exit::Outcome;
use crate::progress::Progress;

/// What can be recorded.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Record this machine's own instruction flow with Intel PT, through perf
    #[command(after_help = flow::HELP)]
    Flow(Box<flow::Args>),
}

/// Records.
pub fn run(command: &Command, progress: &Progress) -> Result<Outcome> {
    let Command::Flow(args) = command;
    flow::run(args, progress)
}
