// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism gdbserver`: tracepoints for GDB, of a process or of the kernel.

use std::path::PathBuf;

use anyhow::Result;
use kprism_gdb::listen::{self, Address, Listener};
use kprism_gdb::server::Server;
use kprism_gdb::target::{Kernel, Process, Target};
use kprism_signals::Second;

use crate::exit::Outcome;
use kprism_session::Progress;

pub const HELP: &str = "\
Examples:
  kprism gdbserver --pid 1234 /tmp/sock      then: gdb -ex 'target remote /tmp/sock'
  kprism gdbserver --exec ./program :2000 -- ARG
  kprism gdbserver --kernel :2000            then: gdb vmlinux -ex 'target remote :2000'

In GDB: trace, condition, actions, tvariable, passcount, tstart, tstop, tstatus, tfind, tdump, tsave.
Nothing is stopped: GDB sees memory as it is, and registers as they were when it connected or
was last interrupted. A program that --exec starts waits for `continue` or `monitor go`.

Exit codes: 0 done, 2 error.";

/// Options of `kprism gdbserver`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Which,
    /// Path of a Unix socket, or :PORT or 127.0.0.1:PORT for TCP on the loopback
    #[arg(value_name = "SOCKET")]
    socket: String,
    /// The program's arguments
    #[arg(last = true, value_name = "ARG")]
    arguments: Vec<String>,
    /// Ring buffer between the kernel and kprism, such as 512K or 16M
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = kprism_profile::parse::ring_kib)]
    buffer_size: u64,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// The running kernel
    #[arg(long)]
    kernel: bool,
    /// A running process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Start this program
    #[arg(long, value_name = "FILE")]
    exec: Option<PathBuf>,
}

/// Serves.
pub fn run(args: &Args, progress: &Progress) -> Result<Outcome> {
    kprism_signals::catch(Second::Ignored)?;
    let address = Address::parse(&args.socket)?;
    let listener = Listener::bind(&address)?;
    let (target, what) = match (&args.target.exec, args.target.pid) {
        (Some(file), _) => {
            let process = Process::start(file, &args.arguments)?;
            let what = format!("{}, process {}", file.display(), process.pid());
            (Target::process(process), what)
        }
        (None, Some(pid)) => (Target::process(Process::running(pid)?), format!("process {pid}")),
        (None, None) => {
            let kernel = Kernel::running()?;
            let what = format!("the kernel, its memory by {}", kernel.reads_by());
            (Target::kernel(kernel), what)
        }
    };
    let ring = args.buffer_size.saturating_mul(1024).clamp(1 << 16, 1 << 30).next_power_of_two() as u32;
    let mut server = Server::new(target, listen::BUFFER, ring);
    progress.say(&format!("{what}; in GDB: target remote {}", listener.name()));
    listen::serve(&mut server, &listener, &kprism_signals::end_requested, &mut |text| progress.say(text))?;
    Ok(Outcome::Done)
}
