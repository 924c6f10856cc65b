// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options that say which probes are wanted: for `kprism record probe` and `kprism compile`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use kprism_probe::plan::expressions;
use kprism_probe::stream::aggregate::Function;
use kprism_record::probe::{ProbeFile, Probes};

use crate::given::Given;

/// Probes on a command line.
#[derive(Debug, clap::Args)]
pub struct ProbeArgs {
    /// A probe: `LOCATION`, or `LOCATION if CONDITION`
    #[arg(value_name = "PROBE")]
    pub probes: Vec<String>,
    /// A file of probes, each with its own values and actions; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// What each hit keeps: expressions, $args, $locals, $regs, $sdata (a tracepoint's record), $stack, $ustack, $callers
    #[arg(long, value_name = "EXPR,…", allow_hyphen_values = true)]
    pub collect: Vec<String>,
    /// The program or library that contains the locations; with --program, its path on this machine
    #[arg(long, value_name = "FILE", conflicts_with = "vmlinux")]
    pub exec: Option<PathBuf>,
    /// The file that has the program's debug information, if it is not found by itself (GDB's places, debuginfod)
    #[arg(long, value_name = "FILE", conflicts_with = "vmlinux")]
    pub debug_file: Option<PathBuf>,
    /// The kernel's debug information; without it, the running kernel's BTF: entry and return
    #[arg(short = 'k', long, value_name = "VMLINUX")]
    pub vmlinux: Option<PathBuf>,
    /// A trace state variable, 0 at first if nothing is said (can be repeated)
    #[arg(long = "var", value_name = "NAME[=N]", value_parser = kprism_record::probe::variable)]
    pub vars: Vec<(String, i64)>,
    /// A trace state variable that each thread has for itself, 0 at first (can be repeated)
    #[arg(long = "thread-var", value_name = "NAME", value_parser = kprism_record::probe::thread_variable)]
    pub thread_vars: Vec<String>,
    /// Set a trace state variable at each hit whose condition holds: `$n += 1` (can be repeated)
    #[arg(long, value_name = "$NAME=EXPR")]
    pub set: Vec<String>,
    /// Count hits by values, in the kernel; no records without --collect
    #[arg(long, value_name = "EXPR,…", help_heading = "Counts", allow_hyphen_values = true)]
    pub by: Vec<String>,
    /// Histogram of a value by powers of two, in the kernel; with --by for each
    #[arg(long, value_name = "EXPR", help_heading = "Counts", allow_hyphen_values = true)]
    pub hist: Vec<String>,
    /// Histogram of a value in steps: EXPR,MIN,MAX,STEP
    #[arg(long, value_name = "EXPR,…", help_heading = "Counts", allow_hyphen_values = true)]
    pub linear: Vec<String>,
    /// Sums of values, in the kernel; with --by for each
    #[arg(long, value_name = "EXPR,…", help_heading = "Counts", allow_hyphen_values = true)]
    pub sum: Vec<String>,
    /// The least values, in the kernel; with --by for each
    #[arg(long, value_name = "EXPR,…", help_heading = "Counts", allow_hyphen_values = true)]
    pub min: Vec<String>,
    /// The greatest values, in the kernel; with --by for each
    #[arg(long, value_name = "EXPR,…", help_heading = "Counts", allow_hyphen_values = true)]
    pub max: Vec<String>,
    /// Means of values, in the kernel; with --by for each
    #[arg(long, value_name = "EXPR,…", help_heading = "Counts", allow_hyphen_values = true)]
    pub avg: Vec<String>,
    /// The latest values, in the kernel; with --by for each
    #[arg(long, value_name = "EXPR,…", help_heading = "Counts", allow_hyphen_values = true)]
    pub latest: Vec<String>,
    /// Show each record as this line, as C's printf does; the values are collected
    #[arg(long, value_name = "\"FORMAT\",EXPR,…")]
    pub printf: Option<String>,
    /// Leave out each probe's first hits whose condition holds
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=COUNT))]
    pub skip: u64,
    /// After so many hits whose condition holds a probe is taken out; when all are, recording ends
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=COUNT))]
    pub pass: Option<u64>,
    /// Record nothing before a hit of this probe
    #[arg(long, value_name = "PROBE", help_heading = "Triggers")]
    pub start_when: Vec<String>,
    /// Record nothing from a hit of this probe on, until --start-when
    #[arg(long, value_name = "PROBE", help_heading = "Triggers")]
    pub pause_when: Vec<String>,
    /// End recording at a hit of this probe
    #[arg(long, value_name = "PROBE", help_heading = "Triggers")]
    pub stop_when: Vec<String>,
    /// Keep what GDB needs to show each hit: registers, memory that was read; `kprism export -o FILE.tf`
    #[arg(long)]
    pub for_gdb: bool,
    /// Keep so many bytes of a string
    #[arg(long, value_name = "BYTES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(8..=4096))]
    pub strings: u32,
}

/// Options that describe the probes of the command line. A file says the same of each of its own.
const OWN: [&str; 13] = [
    "collect", "set", "by", "hist", "linear", "sum", "min", "max", "avg", "latest", "printf", "skip", "pass",
];

impl ProbeArgs {
    /// As the library takes them. Reads the file of probes.
    ///
    /// # Errors
    /// The file is none, or an option describes probes of the command line, and there are none.
    pub fn probes(&self, given: &Given) -> Result<Probes> {
        if let (Some(file), true, Some(option)) = (&self.file, self.probes.is_empty(), given.first(&OWN)) {
            let word = option.trim_start_matches('-');
            bail!(
                "{option} is for probes of the command line: in {} write `{word} …` after the place",
                file.display()
            );
        }
        let file = self.file.as_ref().map(|path| ProbeFile::read(&kprism_placed::given(path), path));
        let file = file.transpose()?;
        let functions = [&self.sum, &self.min, &self.max, &self.avg, &self.latest];
        let functions = Function::ALL.into_iter().zip(functions);
        let aggregates = functions.flat_map(|(function, lists)| {
            lists.iter().flat_map(|list| expressions(list)).map(move |text| (function, text))
        });
        Ok(Probes {
            probes: self.probes.clone(),
            file,
            collect: self.collect.clone(),
            exec: self.exec.clone(),
            debug_file: self.debug_file.clone(),
            vmlinux: self.vmlinux.clone(),
            kernel: None,
            vars: self.vars.clone(),
            thread_vars: self.thread_vars.clone(),
            set: self.set.clone(),
            by: self.by.clone(),
            hist: self.hist.clone(),
            linear: self.linear.clone(),
            aggregates: aggregates.collect(),
            printf: self.printf.clone(),
            skip: self.skip,
            pass: self.pass,
            start_when: self.start_when.clone(),
            pause_when: self.pause_when.clone(),
            stop_when: self.stop_when.clone(),
            for_gdb: self.for_gdb,
            strings: self.strings,
        })
    }
}

/// The largest count.
const COUNT: u64 = 1 << 62;
