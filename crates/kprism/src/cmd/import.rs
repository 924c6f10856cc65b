// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism import`: what other tools recorded becomes a run.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kprism_record::import::Ftrace;
use kprism_record::import::{Recording, Settings, Source, import, look};
use kprism_record::import_beside;
use kprism_session::Progress;
use kprism_store::Run;

use crate::exit::Outcome;
use crate::given::Given;

const AFTER_HELP: &str = "\
PATH is told apart by what it holds:
  a folder with *.pt and xpages.txt   lines `tgid va_hex size file`: dumps of code pages
  a folder with trace.json            LLDB's trace bundle
  a folder with pt.bin                DynamoRIO's drpt2trace input
  perf.data, file or folder           perf record -e intel_pt//; programs and libraries
                                      from where they were, or --symfs, if build ids fit; or
                                      tracepoints (perf record -e 'sched:*', perf sched record);
                                      or sampled TLB misses (perf record -d -e
                                      mem_inst_retired.stlb_miss_loads:P, or -d -R -e ibs_op//)
  a folder with ptout.N, ptout.sideband
                                      simple-pt's sptcmd; name the kernel's code with --kcore
                                      and --kallsyms, or --vmlinux
  trace.dat                           trace-cmd record, versions 6 and 7; with --beside RUN, events
                                      of the time of that run's flow (-C x86-tsc)
  a text of ftrace's `trace`          function_graph with any options, or events
  NAME_ftrace.txt, NAME_dmesg.txt     pm-graph's (bootgraph, sleepgraph), either file, or the folder
                                      of both, .gz too; a boot's log alone too: its initcalls
  a folder with cpuN.raw              pages of ftrace's ring buffer (trace_pipe_raw), with events/,
                                      header_page, kallsyms, saved_cmdlines as in tracefs; with
                                      dmesg of a boot with initcall_debug, a boot
  capture.json, or its folder         captures of a memory bus, as by HMTT: the files of its boards,
                                      and the kernel's account of its page tables (TLB misses)
  any other file                      Intel PT packets; name the code with --code, or keep the
                                      packets alone with --no-decode

How to record with perf, kernel and all (as root):
  perf record -e intel_pt/cyc,mtc_period=3/ --kcore -a -o perf.data -- CMD
Programs only, without --kcore:
  perf record -e intel_pt/cyc,mtc_period=3/u -o perf.data -- CMD";

/// Options of `kprism import`.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Recording
    pub path: PathBuf,
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub output: PathBuf,
    /// Code: an ELF file or raw bytes, and its address in hex (can be repeated)
    #[arg(long, value_name = "FILE@VA")]
    pub code: Vec<String>,
    /// perf.data, simple-pt, capture.json: folder that stands for the traced machine's root
    #[arg(long, value_name = "DIR")]
    pub symfs: Option<PathBuf>,
    /// perf.data, simple-pt: the kernel's code, a copy of /proc/kcore of the time of recording
    #[arg(long, value_name = "FILE")]
    pub kcore: Option<PathBuf>,
    /// perf.data, simple-pt: the kernel as linked, for code and symbols
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,
    /// perf.data, simple-pt, ftrace: the kernel's symbols, a copy of /proc/kallsyms
    #[arg(long, value_name = "FILE")]
    pub kallsyms: Option<PathBuf>,
    /// Frequency of the clock, in Hz, where the recording does not tell it (the TSC's, of packets, LLDB, simple-pt)
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u64).range(1_000_000..=100_000_000_000))]
    pub tsc_hz: Option<u64>,
    /// trace.dat: put the events beside the flow of this run, on its clock
    #[arg(long, value_name = "RUN")]
    pub beside: Option<PathBuf>,
    /// Do not decode yet
    #[arg(long)]
    pub no_decode: bool,
}

impl Args {
    /// As the library takes them.
    fn settings(&self) -> Settings {
        Settings {
            output: self.output.clone(),
            code: self.code.clone(),
            symfs: self.symfs.clone(),
            kcore: self.kcore.clone(),
            vmlinux: self.vmlinux.clone(),
            kallsyms: self.kallsyms.clone(),
            tsc_hz: self.tsc_hz,
            decode: !self.no_decode,
            ..Settings::new(self.path.clone())
        }
    }
}

/// Options that an import of ftrace's events honours; of samples; of a capture of a memory bus; of packets with their code in the folder; of packets whose code
/// is looked for.
const EVENTS: [&str; 4] = ["path", "output", "kallsyms", "no_decode"];
const SAMPLES: [&str; 4] = ["path", "output", "symfs", "kallsyms"];
const BUS: [&str; 3] = ["path", "output", "symfs"];
const PACKETS: [&str; 5] = ["path", "output", "code", "tsc_hz", "no_decode"];
const SEARCHED: [&str; 9] =
    ["path", "output", "code", "symfs", "kcore", "vmlinux", "kallsyms", "tsc_hz", "no_decode"];

/// Refuses options that the import of this recording would ignore.
fn honoured(recording: &Recording, given: &Given) -> Result<()> {
    match recording {
        Recording::Ftrace(_) => given.only("events of ftrace", &EVENTS),
        Recording::Tracepoints => given.only("tracepoints of perf", &EVENTS),
        Recording::Samples => given.only("sampled TLB misses", &SAMPLES),
        Recording::Bus(_) => given.only("a capture of a memory bus", &BUS),
        Recording::Flow(Source::PerfData(_)) => given.only("a perf.data", &SEARCHED),
        Recording::Flow(Source::SimplePt(_)) => given.only("simple-pt's folder", &SEARCHED),
        Recording::Flow(Source::Raw(_)) => given.only("a file of packets, whose code --code names", &PACKETS),
        Recording::Flow(Source::Pages(_)) => given.only("a folder with xpages.txt", &PACKETS),
        Recording::Flow(Source::Drpt2trace(_)) => given.only("a folder of drpt2trace", &PACKETS),
        Recording::Flow(Source::Lldb(_)) => given.only("a trace bundle of LLDB", &PACKETS),
    }
}

/// Reads, writes the run, decodes it.
pub fn run(args: &Args, given: &Given, progress: &Progress) -> Result<Outcome> {
    let recording = look(&args.path)?;
    if let Some(beside) = &args.beside {
        given.only("--beside", &["path", "beside"])?;
        return place(args, &recording, beside, progress);
    }
    honoured(&recording, given)?;
    let imported = import(&args.settings(), recording, progress)?;
    Ok(if imported.empty { Outcome::NothingMatched } else { Outcome::Done })
}

/// Puts events beside the flow of a run.
fn place(args: &Args, recording: &Recording, beside: &Path, progress: &Progress) -> Result<Outcome> {
    let Recording::Ftrace(Ftrace::Dat(path)) = recording else {
        bail!("--beside: {} is no trace.dat (trace-cmd record -C x86-tsc)", args.path.display());
    };
    let run = Run::open(beside)?;
    let placed = import_beside::import(path, &run)?;
    placed.notes.iter().for_each(|note| progress.say(&format!("note: {note}")));
    progress.say(&format!(
        "{} events of the kernel beside the flow, {} lost; see: kprism script all{}",
        placed.events,
        placed.lost,
        kprism_session::input_option(&run)
    ));
    Ok(if placed.events == 0 { Outcome::NothingMatched } else { Outcome::Done })
}
