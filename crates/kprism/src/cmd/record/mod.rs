// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record`: what this machine itself can record.
//!
//! In: options and a command. Out: a run. `tlb` has the observer model TLBs in the guest. `flow` drives `perf record -e intel_pt//` and imports what it wrote:
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
mod tlb;

use std::io::Write;

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
    /// Record every TLB miss of a command in the guest, by models of processors' TLBs
    #[command(after_help = tlb::HELP)]
    Tlb(Box<tlb::Args>),
}

/// Records.
pub fn run(command: &Command, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    match command {
        Command::Flow(args) => flow::run(args, progress),
        Command::Tlb(args) => tlb::run(args, progress, out),
    }
}
