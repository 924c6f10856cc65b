// SPDX-License-Identifier: MIT OR Apache-2.0
//! What probes are wanted, and where their places are: for `kprism record probe` and `kprism compile`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use kprism_probe::actions::Actions;
use kprism_probe::compiled::{Compiled, VERSION};
use kprism_probe::locate::{Target, kernel_plans, plans};
use kprism_probe::plan::{Plan, Request, expressions, split};
use kprism_probe::stream::Part;

use kprism_session::Progress;

/// Probes on a command line.
#[derive(Debug, clap::Args)]
pub struct ProbeArgs {
    /// Where, and when it counts: `LOCATION if EXPR`
    #[arg(value_name = "PROBE")]
    pub probes: Vec<String>,
    /// What each hit keeps: expressions, $args, $locals, $regs, $sdata (a tracepoint's record), $stack, $ustack
    #[arg(long, value_name = "EXPR,…", allow_hyphen_values = true)]
    pub collect: Vec<String>,
    /// The program or library of the places; with --program, where it lies here
    #[arg(long, value_name = "FILE", conflicts_with = "vmlinux")]
    pub exec: Option<PathBuf>,
    /// The file that has the program's debug information, if it is not found by itself (GDB's places, debuginfod)
    #[arg(long, value_name = "FILE", conflicts_with = "vmlinux")]
    pub debug_file: Option<PathBuf>,
    /// The kernel's debug information; without it, the running kernel's BTF: entry and return
    #[arg(short = 'k', long, value_name = "VMLINUX")]
    pub vmlinux: Option<PathBuf>,
    /// A trace state variable, 0 at first if nothing is said (can be repeated)
    #[arg(long = "var", value_name = "NAME[=N]", value_parser = variable)]
    pub vars: Vec<(String, i64)>,
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
    #[arg(long, value_name = "PROBE", help_heading = "Triggers", requires = "start_when")]
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

impl ProbeArgs {
    /// Compiles them. Without a file, places are looked up in the command, the process, or the running kernel.
    pub fn compiled(&self, command: &[String], pids: &[u32], progress: &Progress) -> Result<Compiled> {
        let lists = |all: &[String]| all.iter().flat_map(|list| expressions(list)).collect::<Vec<_>>();
        let (collect, by) = (lists(&self.collect), lists(&self.by));
        if self.probes.is_empty() {
            bail!("which probes? write `FUNC if EXPR`, FILE:LINE or another place");
        }
        for (number, (name, _)) in self.vars.iter().enumerate() {
            if kprism_expr::lower::is_built_in(name) {
                bail!("--var {name}: `${name}` has a meaning already; choose another name");
            }
            if self.vars[..number].iter().any(|(other, _)| other == name) {
                bail!("--var {name}: it is there twice");
            }
        }
        let vars: Vec<String> = self.vars.iter().map(|(name, _)| name.clone()).collect();
        let Self { set, hist, linear, skip, pass, .. } = self;
        let (skip, pass) = (*skip, *pass);
        let own = Actions { set, by: &by, hist, linear, skip, pass, part: Part::Record };
        let request = |spec, collect, actions| {
            let (place, condition) = split(spec);
            Request {
                place,
                condition,
                collect,
                vars: &vars,
                text: self.strings,
                actions,
                several: false,
                gdb: self.for_gdb && actions.part.is_record(),
            }
        };
        let mut requests: Vec<_> = self.probes.iter().map(|spec| request(spec, &collect[..], own)).collect();
        let switches =
            [(Part::Start, &self.start_when), (Part::Pause, &self.pause_when), (Part::Stop, &self.stop_when)];
        for (part, specs) in switches {
            let actions = Actions { part, ..Actions::default() };
            requests.extend(specs.iter().map(|spec| request(spec, &[], actions)));
        }
        let planned = match &self.vmlinux {
            Some(path) => kernel_plans(path, &requests)?.into_iter().map(|p| p.map_err(Into::into)).collect(),
            None => requests.iter().map(|request| self.planned(request, command, pids)).collect::<Vec<_>>(),
        };
        let mut all = Vec::new();
        for (request, planned) in requests.iter().zip(planned) {
            let planned = match requests.len() {
                1 => planned,
                _ => planned.with_context(|| format!("`{}`", request.place)),
            }?;
            planned.iter().for_each(|plan| tell(plan, progress));
            all.extend(planned);
        }
        Ok(Compiled { version: VERSION, vars: self.vars.clone(), plans: all })
    }

    /// In the file that was named, or the program that is run, or the running kernel.
    fn planned(&self, request: &Request<'_>, command: &[String], pids: &[u32]) -> Result<Vec<Plan>> {
        let debug = self.debug_file.as_deref();
        if let Some(path) = &self.exec {
            return Ok(plans(Target::Program(path, debug), request)?);
        }
        let in_kernel = || match debug {
            Some(path) => {
                bail!(
                    "--debug-file {}: `{}` is looked up in the kernel, whose debug information is -k",
                    path.display(),
                    request.place
                )
            }
            None => Ok(Target::Btf(Path::new("/sys/kernel/btf/vmlinux"))),
        };
        let program = match (command.first(), pids) {
            (Some(name), _) => found(name),
            (None, [pid]) => Some(PathBuf::from(format!("/proc/{pid}/exe"))),
            _ => None,
        };
        let Some(program) = program else { return Ok(plans(in_kernel()?, request)?) };
        match plans(Target::Program(&program, debug), request) {
            Ok(planned) => Ok(planned),
            // The place is there, what is asked of it is not.
            Err(error @ (kprism_probe::Error::Expression(_) | kprism_probe::Error::Cannot(_))) => {
                Err(error.into())
            }
            // It is the program's own debug information that was named.
            Err(there) if debug.is_some() => Err(there.into()),
            Err(there) => plans(in_kernel()?, request).map_err(|error| match error {
                kprism_probe::Error::Btf(_) => anyhow!("{there}\nand in the kernel: {error}"),
                error => error.into(),
            }),
        }
    }
}

/// The largest count.
const COUNT: u64 = 1 << 62;

/// A variable, and what it is at first.
fn variable(text: &str) -> Result<(String, i64), String> {
    let (name, value) = text.split_once('=').unwrap_or((text, "0"));
    let name = name.trim().trim_start_matches('$');
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    if !name.starts_with(first) || !name.chars().all(|c| first(c) || c.is_ascii_digit()) {
        return Err(format!("`{name}` is no name: letters, digits and _"));
    }
    let value = value.trim().parse().map_err(|e| format!("`{value}`: {e}"))?;
    Ok((name.to_owned(), value))
}

/// A command's file.
pub fn found(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// What was chosen, and what could not be had.
pub fn tell(plan: &Plan, progress: &Progress) {
    let whose = plan.probe.file.as_deref().unwrap_or("the kernel");
    let part = match plan.probe.part {
        Part::Record => "",
        Part::Start => "start at ",
        Part::Pause => "pause at ",
        Part::Stop => "stop at ",
    };
    progress.say(&format!("{part}{} in {whose}, by {}", plan.probe.found, plan.probe.hook));
    for note in &plan.notes {
        progress.say(&format!("note: {note}"));
    }
    for item in &plan.probe.items {
        if let Some(why) = &item.missing {
            progress.say(&format!("note: {} is left out: {why}", item.name));
        }
    }
}
