// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism lab goto`: a run once more, up to one of its instructions.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_profile::units::{grouped, printable};
use kprism_record::goto::{self, At, Gdb, Goal};
use kprism_session::Progress;
use kprism_session::cover::DebugFiles;
use kprism_signals::Second;
use kprism_store::Run;

use crate::exit::{self, Outcome};

pub const HELP: &str = "\
The guest is stopped before the instruction, and QEMU listens for GDB until Ctrl-C, or until the
guest ends. To go back, go to a smaller number: the run is the same each time.

Examples:
  kprism lab goto --at 1234567                         the number is that of `script --fields number,…`
  kprism lab goto --at 4.973285556 --run-gdb           the time is that of `script`
  kprism lab goto --at 'vfs_read if count > 4096' --nth 3
  kprism lab goto --at 1234567 --run-gdb -- -batch -ex 'info registers'

Exit codes: 0 the guest ended or GDB did, 2 error, 130 after Ctrl-C.";

/// Options of `kprism lab goto`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run folder, of `kprism lab run`
    #[arg(value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    run: PathBuf,
    /// The place: the number of an instruction, a time (seconds, or with ns, us, ms), or FUNC[%return] [if EXPR]
    #[arg(long, value_name = "PLACE", value_parser = At::parse)]
    at: At,
    /// The CPU whose instructions are meant; a run with several needs it for a number
    #[arg(long, value_name = "N")]
    cpu: Option<u16>,
    /// Of a place with FUNC: stop when it is met for this time
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    nth: u64,
    /// Start GDB here, in this terminal
    #[arg(long)]
    run_gdb: bool,
    /// File with the kernel's symbols, for GDB [default: that of the run's --tree, an installed one, or the run's own symbols]
    #[arg(long, value_name = "FILE")]
    vmlinux: Option<PathBuf>,
    /// A kernel module (.ko), for GDB (can be repeated); modules that the lab loaded from a file are found
    #[arg(long, value_name = "FILE")]
    module_file: Vec<PathBuf>,
    /// More arguments for GDB
    #[arg(last = true, value_name = "GDB-ARG", requires = "run_gdb")]
    gdb_arguments: Vec<OsString>,
}

/// Goes there.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    kprism_signals::catch(Second::EndsProcess)?;
    let is_place = matches!(args.at, At::Place(_));
    anyhow::ensure!(is_place || args.nth == 1, "--nth: a number or a time is one instruction; leave it out");
    anyhow::ensure!(!is_place || args.cpu.is_none(), "--cpu: write it into the condition: if $cpu == N");
    let vmlinux = args.vmlinux.as_deref().map(goto::symbol_file).transpose()?;
    for file in &args.module_file {
        goto::symbol_file(file)?;
    }
    let files = DebugFiles { vmlinux, module_file: args.module_file.clone(), ..DebugFiles::default() };
    let run = Run::open(&args.run)?;
    let goal = Goal { at: args.at.clone(), cpu: args.cpu, nth: args.nth };
    let mut there = match goto::go(&run, &goal, &files, progress) {
        Err(error) => return super::ended::interrupted(error),
        Ok(there) => there,
    };
    for note in &there.names.notes {
        progress.note(&printable(note));
    }
    let halt = &there.stopped.halt;
    // Of a number or a time, the time as `script` has it; between two packets with a time it is interpolated.
    let (ns, place) = match (&there.found, &args.at) {
        (Some(found), _) => (found.ns, found.symbol.as_deref().unwrap_or("[unknown]")),
        (None, At::Place(place)) => (halt.ns, place.as_str()),
        (None, _) => (halt.ns, "[unknown]"),
    };
    let number = match halt.number {
        0 => "stopped, outside of what has numbers, on".to_owned(),
        number => format!("stopped before instruction {} of", grouped(number)),
    };
    writeln!(
        out,
        "{number} CPU {}, at {}.{:09}: {:016x} {}\ntask {} {}",
        halt.cpu,
        ns / 1_000_000_000,
        ns % 1_000_000_000,
        halt.ip,
        printable(place),
        halt.pid,
        printable(&halt.comm)
    )?;
    let gdb = Gdb {
        kernel: there.names.kernel.clone(),
        script: there.names.script.clone(),
        cpu: halt.cpu,
        socket: there.stopped.socket(),
        more: args.gdb_arguments.clone(),
    };
    if args.run_gdb {
        out.flush()?;
        goto::run_gdb(&gdb, &mut there.stopped)?;
    } else {
        writeln!(out, "{}", gdb.command())?;
        out.flush()?;
        there.stopped.wait();
    }
    match kprism_signals::end_requested() {
        true => Ok(Outcome::Code(exit::INTERRUPTED)),
        false => Ok(Outcome::Done),
    }
}
