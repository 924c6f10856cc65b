// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism gdbserver`: tracepoints for GDB, of a process or of the kernel.

use std::path::PathBuf;

use anyhow::{Result, bail};
use kprism_debuginfo::separate::GLOBAL;
use kprism_gdb::listen::{self, Address, Listener};
use kprism_gdb::server::Server;
use kprism_gdb::target::{DebugFiles, Kernel, Process, Target};
use kprism_signals::Second;

use crate::exit::Outcome;
use kprism_session::Progress;

pub const HELP: &str = "\
Examples:
  kprism gdbserver --pid 1234 /tmp/sock      then: gdb -ex 'target remote /tmp/sock'
  kprism gdbserver --exec ./program :2000 -- ARG
  kprism gdbserver --exec ./program --at-entry :2000    libraries are loaded: their markers are known
  kprism gdbserver --kernel :2000            then: gdb vmlinux -ex 'target remote :2000'
  kprism gdbserver --kernel --vmlinux vmlinux --module-file my.ko :2000

In GDB: trace, condition, actions, tvariable, passcount, tstart, tstop, tstatus, tfind, tdump, tsave;
of a process: strace -m PROVIDER:NAME, USDT of the program and its libraries;
of the kernel: strace -m NAME, a static tracepoint's arguments and record, and, with debug
information, strace -m SYSTEM:NAME@FUNCTION, the locals around it.
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
    /// Hold the program when its libraries are loaded: at its own first instruction instead of the dynamic linker's
    #[arg(long, requires = "exec")]
    at_entry: bool,
    /// The kernel with debug information, for locals around its static tracepoints (found by its build id, if installed)
    #[arg(long, value_name = "FILE", requires = "kernel")]
    vmlinux: Option<PathBuf>,
    /// A kernel module (.ko) with debug information, for locals around its static tracepoints (can be repeated)
    #[arg(long, value_name = "FILE", requires = "kernel")]
    module_file: Vec<PathBuf>,
    /// Folder with debug information by build id (can be repeated; /usr/lib/debug is always looked at)
    #[arg(long, value_name = "DIR", requires = "kernel")]
    debug_dir: Vec<PathBuf>,
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

/// Files with debug information of the kernel.
fn debug_files(args: &Args) -> Result<DebugFiles> {
    if let Some(file) = args.module_file.iter().find(|file| !file.is_file()) {
        bail!("--module-file {}: no such file", file.display());
    }
    if let Some(folder) = args.debug_dir.iter().find(|folder| !folder.is_dir()) {
        bail!("--debug-dir {}: no such folder", folder.display());
    }
    let mut folders = args.debug_dir.clone();
    folders.push(PathBuf::from(GLOBAL));
    Ok(DebugFiles { vmlinux: args.vmlinux.clone(), modules: args.module_file.clone(), folders })
}

/// Serves.
pub fn run(args: &Args, progress: &Progress) -> Result<Outcome> {
    kprism_signals::catch(Second::Ignored)?;
    let address = Address::parse(&args.socket)?;
    let listener = Listener::bind(&address)?;
    let (target, what) = match (&args.target.exec, args.target.pid) {
        (Some(file), _) => {
            let mut process = Process::start(file, &args.arguments)?;
            if args.at_entry {
                process.to_entry()?;
            }
            let what = format!("{}, process {}", file.display(), process.pid());
            (Target::process(process), what)
        }
        (None, Some(pid)) => (Target::process(Process::running(pid)?), format!("process {pid}")),
        (None, None) => {
            let kernel = Kernel::running(debug_files(args)?)?;
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
