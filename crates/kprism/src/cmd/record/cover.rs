// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record cover`: which code of this machine's kernel a command made run, by gcov's counters.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use kprism_record::cover::{Settings, record};
use kprism_session::Progress;
use kprism_signals::Second;

use crate::exit::Outcome;

pub const HELP: &str = "\
Examples (as root, on a kernel with CONFIG_GCOV_KERNEL):
  kprism record cover --show kernel/sched -- make -j8   a load, and a look at the scheduler
  kprism record cover                                   everything until Ctrl-C
  kprism record cover --memory /proc/kcore -- CMD       counters from memory, not debugfs
  kprism record cover --memory vmcore --symbols System.map -o RUN
                                                        what a crashed kernel had executed

On any machine, with a kernel built for it: kprism lab gcov-kernel.
The run can be reported where the kernel was built: kprism report cover -i RUN.

Exit codes: CMD's own; 2 error.";

/// Options of `kprism record cover`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The command whose window it is; without one, until --duration is over or Ctrl-C
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub output: PathBuf,
    /// Then report this folder or file of the source, as kernel/sched
    #[arg(long, value_name = "PATH")]
    show: Option<String>,
    /// Without a command: record for so long
    #[arg(long, value_name = "SECONDS", conflicts_with = "command")]
    duration: Option<u64>,
    /// Clear all counters first. A window needs none of it: this is for other tools
    #[arg(long, conflicts_with = "memory")]
    reset: bool,
    /// Take counters from a kernel's memory: /proc/kcore, or a crash dump (which has no window)
    #[arg(long, value_name = "FILE")]
    memory: Option<PathBuf>,
    /// The System.map of the kernel that --memory is of; of /proc/kcore it is known
    #[arg(long, value_name = "FILE", requires = "memory")]
    symbols: Option<PathBuf>,
    /// Refused: see [`refuse_windows`]
    #[arg(long, hide = true, value_name = "CONDITION")]
    from: Option<String>,
    /// Refused, too
    #[arg(long, hide = true, value_name = "CONDITION")]
    until: Option<String>,
}

/// A machine's counters are read by a program, which is not at an instruction: code that ran between the condition and the reading
/// would count.
fn refuse_windows(args: &Args) -> Result<()> {
    let given = [("--from", &args.from), ("--until", &args.until)];
    match given.into_iter().find(|(_, condition)| condition.is_some()) {
        Some((option, _)) => bail!(
            "{option}: this machine's counters cannot be read at the instruction where a condition holds, so that what ran \
             until they are read would count, too; in a guest they can: `kprism lab gcov-kernel --from CONDITION --until \
             CONDITION -- CMD`"
        ),
        None => Ok(()),
    }
}

/// Records.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    refuse_windows(args)?;
    kprism_signals::catch(Second::EndsProcess)?;
    let settings = Settings {
        output: kprism_placed::output(&args.output),
        command: args.command.clone(),
        duration: args.duration.map(Duration::from_secs),
        reset: args.reset,
        memory: args.memory.clone(),
        symbols: args.symbols.clone(),
    };
    let recorded = record(&settings, progress)?;
    let dir = recorded.run.dir();
    if let Err(error) = crate::cmd::cover::tell(dir, args.show.as_deref(), progress, out) {
        // Notes are where the kernel was built, which need not be here.
        progress.say(&format!("recorded in {}; kprism: note: {error:#}", dir.display()));
    }
    Ok(Outcome::Code(u8::try_from(recorded.exit_code).unwrap_or(1)))
}
