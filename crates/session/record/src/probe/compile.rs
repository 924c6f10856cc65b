// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the probes that a user writes to programs: places are looked up, conditions and values compiled.
//!
//! Input: [`Probes`], of which some may be written in a [`ProbeFile`], and the command or process they are for; or a file
//! with programs. Output: [`Compiled`], which [`super::record`] attaches here, or a file takes to another machine.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context as _, Result, anyhow, bail};
use kprism_probe::place::tracepoint::Name;
use kprism_probe::place::{Target, in_module, is_module, kernel_plans, plans};
use kprism_probe::plan::Actions;
use kprism_probe::plan::file::{Compiled, MOST_THREAD_VARS, VERSION};
use kprism_probe::plan::{Plan, Request, Site, expressions, split};
use kprism_probe::stream::aggregate::Function;
use kprism_probe::stream::{RecordingEffect, printf};
use kprism_probe::written::Wanted;

use kprism_session::{Progress, files};
use kprism_tracefs::path::{self, NotFound};

use super::file::ProbeFile;
use crate::condition::Module;
use crate::condition::module::address;

/// Probes, and what each of their hits does. The fields are the options of `kprism record probe`.
#[derive(Debug, Clone)]
pub struct Probes {
    /// A probe: `LOCATION`, or `LOCATION if CONDITION`.
    pub probes: Vec<String>,
    /// Probes of a file, with their own values and actions. The fields below that say the same are for `probes` alone.
    pub file: Option<ProbeFile>,
    /// Values that each hit keeps: expressions, $args, $locals, $regs, $sdata (a tracepoint's record), $stack, $ustack.
    pub collect: Vec<String>,
    /// The program or library that contains the locations; with --program, its path on this machine.
    pub exec: Option<PathBuf>,
    /// The file that has the program's debug information, if it is not found by itself (GDB's places, debuginfod).
    pub debug_file: Option<PathBuf>,
    /// The kernel's debug information, or that of one of its modules (a .ko); without it, the running kernel's BTF: entry and return.
    pub vmlinux: Option<PathBuf>,
    /// The kernel that is probed, if it is not the running one and `vmlinux` does not describe it.
    pub kernel: Option<ForeignKernel>,
    /// A trace state variable, 0 at first if nothing is said (can be repeated).
    pub vars: Vec<(String, i64)>,
    /// Names of trace state variables that each thread has for itself, 0 at first.
    pub thread_vars: Vec<String>,
    /// Set a trace state variable at each hit whose condition holds: `$n += 1` (can be repeated).
    pub set: Vec<String>,
    /// Count hits by values, in the kernel; no records without --collect.
    pub by: Vec<String>,
    /// Histogram of a value by powers of two, in the kernel; with --by for each.
    pub hist: Vec<String>,
    /// Histogram of a value in steps: EXPR,MIN,MAX,STEP.
    pub linear: Vec<String>,
    /// Functions of values, in the kernel; with --by for each.
    pub aggregates: Vec<(Function, String)>,
    /// The line that a record is shown as: `"FORMAT", EXPR, …`.
    pub printf: Option<String>,
    /// Leave out each probe's first hits whose condition holds.
    pub skip: u64,
    /// After so many hits whose condition holds a probe is taken out; when all are, recording ends.
    pub pass: Option<u64>,
    /// Record nothing before a hit of this probe.
    pub start_when: Vec<String>,
    /// Record nothing from a hit of this probe on, until --start-when.
    pub pause_when: Vec<String>,
    /// End recording at a hit of this probe.
    pub stop_when: Vec<String>,
    /// Keep what GDB needs to show each hit: registers, memory that was read; `kprism export -o FILE.tf`.
    pub for_gdb: bool,
    /// Keep so many bytes of a string.
    pub strings: u32,
}

/// Files that describe a kernel that does not run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignKernel {
    /// Its types as BTF, in a folder that has nothing else but its modules' types.
    pub btf: PathBuf,
    /// Folder with the `SYSTEM/NAME/format` of its events.
    pub events: PathBuf,
    /// Modules of the user's in it, whose functions are found by their own debug information.
    pub modules: Vec<Module>,
    /// The text of its `/proc/kallsyms`.
    pub names: PathBuf,
}

/// Trace state variables, in the order of their numbers.
struct Variables {
    /// Those of all threads, and their first values.
    shared: Vec<(String, i64)>,
    /// Those that each thread has for itself.
    of_threads: Vec<String>,
}

impl Default for Probes {
    fn default() -> Self {
        Probes {
            probes: Vec::new(),
            file: None,
            collect: Vec::new(),
            exec: None,
            debug_file: None,
            vmlinux: None,
            kernel: None,
            vars: Vec::new(),
            thread_vars: Vec::new(),
            set: Vec::new(),
            by: Vec::new(),
            hist: Vec::new(),
            linear: Vec::new(),
            aggregates: Vec::new(),
            printf: None,
            skip: 0,
            pass: None,
            start_when: Vec::new(),
            pause_when: Vec::new(),
            stop_when: Vec::new(),
            for_gdb: false,
            strings: 128,
        }
    }
}

impl Probes {
    /// Compiles them. Without a file, places are looked up in the program of `command`, the process of `pids`, or the
    /// running kernel. What was chosen, and what could not be had, goes to `progress`.
    ///
    /// # Errors
    /// A place does not exist, or an expression has no meaning there.
    pub fn compile(&self, command: &[String], pids: &[u32], progress: &Progress) -> Result<Compiled> {
        let wanted = self.wanted()?;
        if !wanted.iter().any(|wanted| wanted.effect.is_record()) {
            bail!(
                "which probes? write `FUNC if EXPR`, FILE:LINE or another place, or name a file of probes (-f)"
            );
        }
        let Variables { shared: vars, of_threads: thread_vars } = self.variables()?;
        let names = vars.iter().map(|(name, _)| name).chain(&thread_vars);
        let names: Vec<String> = names.cloned().collect();
        let request = |wanted| self.request(wanted, &names);
        let requests: Vec<_> = wanted.iter().map(request).collect();
        let planned = match &self.vmlinux {
            Some(file) if is_module(file) => {
                let planned = |request| self.planned_by_module(file, request, command, pids);
                requests.iter().map(planned).collect::<Vec<_>>()
            }
            Some(path) => kernel_plans(path, &requests)?.into_iter().map(|p| p.map_err(Into::into)).collect(),
            None => requests.iter().map(|request| self.planned(request, command, pids)).collect::<Vec<_>>(),
        };
        let mut all = Vec::new();
        for ((request, wanted), planned) in requests.iter().zip(&wanted).zip(planned) {
            let planned = match (self.in_file(wanted), requests.len()) {
                (Some(file), _) => planned.map_err(|error| file.located(wanted, error)),
                (None, 1) => planned,
                (None, _) => planned.with_context(|| format!("`{}`", request.place)),
            }?;
            planned.iter().for_each(|plan| say_where(plan, progress));
            all.extend(planned);
        }
        check_room(all.len())?;
        Ok(Compiled { version: VERSION, vars, thread_vars, plans: all })
    }

    /// The probes as they are written: those of the file, those of `probes`, those that switch the recording.
    pub fn specs(&self) -> Vec<String> {
        let of_file = self.file.iter().flat_map(|file| &file.written.probes);
        of_file.map(Wanted::spec).chain(self.probes.iter().cloned()).collect()
    }

    /// The static tracepoints among all places, as system and name. Those of programs may be among them.
    pub fn events(&self) -> Result<Vec<(String, String)>> {
        let wanted = self.wanted()?;
        let names = wanted.iter().filter_map(|wanted| Name::of(&wanted.place));
        let mut all: Vec<_> = names.map(|name| (name.system.to_owned(), name.event.to_owned())).collect();
        all.sort();
        all.dedup();
        Ok(all)
    }

    /// The values to collect, as they are written.
    pub fn collected(&self) -> Vec<String> {
        let of_file = self.file.iter().flat_map(|file| &file.written.probes);
        of_file.flat_map(|wanted| &wanted.collect).chain(&self.collect).cloned().collect()
    }

    /// Everything that is to be attached.
    fn wanted(&self) -> Result<Vec<Wanted>> {
        let lists = |all: &[String]| all.iter().flat_map(|list| expressions(list)).collect::<Vec<_>>();
        let mut all: Vec<Wanted> = self.file.iter().flat_map(|file| file.written.probes.clone()).collect();
        for spec in &self.probes {
            all.push(Wanted {
                collect: lists(&self.collect),
                by: lists(&self.by),
                hist: self.hist.clone(),
                linear: self.linear.clone(),
                aggregates: self.aggregates.clone(),
                set: self.set.clone(),
                printf: self.printf.clone(),
                skip: self.skip,
                pass: self.pass,
                ..of_spec(spec, RecordingEffect::Record)
            });
        }
        let switches = [
            (RecordingEffect::Start, &self.start_when),
            (RecordingEffect::Pause, &self.pause_when),
            (RecordingEffect::Stop, &self.stop_when),
        ];
        for (effect, specs) in switches {
            all.extend(specs.iter().map(|spec| of_spec(spec, effect)));
        }
        let has = |effect| all.iter().any(|wanted| wanted.effect == effect);
        if has(RecordingEffect::Pause) && !has(RecordingEffect::Start) {
            bail!(
                "a probe pauses the recording, and none starts it again: write one with `start` (--start-when)"
            );
        }
        // The values of a line are collected like others.
        for wanted in &mut all {
            let Some(text) = &wanted.printf else { continue };
            // An error is shown where the line is compiled.
            let (_, shown) = printf::split(text).unwrap_or_default();
            let missing = |text: &String| !wanted.collect.iter().any(|other| other.trim() == text);
            let mut more: Vec<String> = shown.into_iter().filter(missing).collect();
            more.dedup();
            wanted.collect.extend(more);
        }
        Ok(all)
    }

    /// Trace state variables and their first values, an option's instead of the file's; and the names of those that each thread
    /// has for itself.
    fn variables(&self) -> Result<Variables> {
        let mut all: Vec<(String, i64)> =
            self.file.iter().flat_map(|file| file.written.vars.clone()).collect();
        for (number, (name, value)) in self.vars.iter().enumerate() {
            if self.vars[..number].iter().any(|(other, _)| other == name) {
                bail!("--var {name}: it is there twice");
            }
            match all.iter_mut().find(|(other, _)| other == name) {
                Some((_, first)) => *first = *value,
                None => all.push((name.clone(), *value)),
            }
        }
        if let Some((name, _)) = all.iter().find(|(name, _)| kprism_expr::lower::is_built_in(name)) {
            bail!("--var {name}: `${name}` has a meaning already; choose another name");
        }
        let mut of_threads: Vec<String> =
            self.file.iter().flat_map(|file| file.written.thread_vars.clone()).collect();
        for (number, name) in self.thread_vars.iter().enumerate() {
            if self.thread_vars[..number].contains(name) {
                bail!("--thread-var {name}: it is there twice");
            }
            if !of_threads.contains(name) {
                of_threads.push(name.clone());
            }
        }
        for name in &of_threads {
            if kprism_expr::lower::is_built_in(name) {
                bail!("--thread-var {name}: `${name}` has a meaning already; choose another name");
            }
            if all.iter().any(|(other, _)| other == name) {
                bail!(
                    "--thread-var {name}: all threads share `${name}` (--var, or `var` in the file); choose another name"
                );
            }
        }
        if of_threads.len() > MOST_THREAD_VARS {
            bail!("{} variables of each thread, there can be {MOST_THREAD_VARS}", of_threads.len());
        }
        Ok(Variables { shared: all, of_threads })
    }

    fn request<'w>(&self, wanted: &'w Wanted, vars: &'w [String]) -> Request<'w> {
        let Wanted { place, collect, set, by, hist, linear, aggregates, .. } = wanted;
        let (skip, pass, effect) = (wanted.skip, wanted.pass, wanted.effect);
        Request {
            place,
            condition: wanted.condition.as_deref(),
            collect,
            printf: wanted.printf.as_deref(),
            vars,
            text: self.strings,
            actions: Actions { set, by, hist, linear, aggregates, skip, pass, effect },
            several: false,
            gdb: self.for_gdb && effect.is_record(),
        }
    }

    /// The file that a probe is from.
    fn in_file(&self, wanted: &Wanted) -> Option<&ProbeFile> {
        self.file.as_ref().filter(|_| wanted.at.line > 0)
    }

    /// In the file that was named, or the program that is run, or the running kernel.
    fn planned(&self, request: &Request<'_>, command: &[String], pids: &[u32]) -> Result<Vec<Plan>> {
        let debug = self.debug_file.as_deref();
        if let Some(file) = &self.exec {
            return Ok(plans(Target::Program(file, debug), request)?);
        }
        let in_kernel = || match debug {
            Some(path) => {
                bail!(
                    "--debug-file {}: `{}` is looked up in the kernel, whose debug information is -k",
                    path.display(),
                    request.place
                )
            }
            None => Ok(match &self.kernel {
                Some(ForeignKernel { btf, events, .. }) => Target::Foreign(btf, events),
                None => Target::Btf(Path::new("/sys/kernel/btf/vmlinux")),
            }),
        };
        let program = match (command.first(), pids) {
            (Some(name), _) => match path::find_here(name) {
                Ok(file) | Err(NotFound::NotExecutable(file)) => Some(file),
                // Looking there fails with an error that names the program; it is shown beside the kernel's.
                Err(NotFound::Missing) => name.contains('/').then(|| PathBuf::from(name)),
            },
            (None, [pid]) => Some(PathBuf::from(format!("/proc/{pid}/exe"))),
            _ => None,
        };
        let Some(program) = program else { return Ok(self.planned_in_kernel(in_kernel()?, request)?) };
        match plans(Target::Program(&program, debug), request) {
            Ok(planned) => Ok(planned),
            // The place exists; the request fails there.
            Err(error @ (kprism_probe::Error::Expression(_) | kprism_probe::Error::Cannot(_))) => {
                Err(error.into())
            }
            // It is the program's own debug information that was named.
            Err(there) if debug.is_some() => Err(there.into()),
            Err(there) => self.planned_in_kernel(in_kernel()?, request).map_err(|error| match error {
                kprism_probe::Error::Btf(_) => anyhow!("{there}\nand in the kernel: {error}"),
                error => error.into(),
            }),
        }
    }

    /// In the module that `-k` names. What it has not is looked up as without it.
    fn planned_by_module(
        &self,
        file: &Path,
        request: &Request<'_>,
        command: &[String],
        pids: &[u32],
    ) -> Result<Vec<Plan>> {
        let is_function = !request.place.contains([':', '+']) && !request.place.starts_with("0x");
        if !is_function && Name::of(request.place).is_none() {
            bail!(
                "{}: of a module, functions' entry and return are probed (FUNC, FUNC%return), not `{}`",
                file.display(),
                request.place
            );
        }
        // The plans may go to another machine: no address of this one is in them.
        match in_module(file, &kprism_lab::module_name(file), &|_| None, request)? {
            Some(plan) => Ok(vec![plan]),
            None => self.planned(request, command, pids),
        }
    }

    /// In the kernel, or in a module of the user's, whose functions the kernel's types do not have.
    fn planned_in_kernel(
        &self,
        target: Target<'_>,
        request: &Request<'_>,
    ) -> Result<Vec<Plan>, kprism_probe::Error> {
        match plans(target, request) {
            Err(error @ kprism_probe::Error::Btf(_)) => match self.planned_in_module(request)? {
                Some(plan) => Ok(vec![plan]),
                None => Err(error),
            },
            other => other,
        }
    }

    fn planned_in_module(&self, request: &Request<'_>) -> Result<Option<Plan>, kprism_probe::Error> {
        let Some(kernel) = self.kernel.as_ref().filter(|kernel| !kernel.modules.is_empty()) else {
            return Ok(None);
        };
        let cannot =
            |error: io::Error| kprism_probe::Error::Cannot(format!("{}: {error}", kernel.names.display()));
        let names = fs::read(&kernel.names).map_err(cannot)?;
        let function = request.place.strip_suffix("%return").unwrap_or(request.place);
        let mut found: Option<(&str, Plan)> = None;
        for Module { name, file } in &kernel.modules {
            let address = |symbol: &str| address(&names, name, symbol);
            match in_module(file, name, &address, request) {
                Ok(None) => {}
                // The function may be another module's.
                Err(kprism_probe::Error::Dwarf(_)) if address(function).is_none() => {}
                Err(error) => return Err(error),
                Ok(Some(plan)) => match &found {
                    Some((other, _)) => {
                        return Err(kprism_probe::Error::Cannot(format!(
                            "`{function}` is a function of the modules {other} and {name}: leave one of them out"
                        )));
                    }
                    None => found = Some((name, plan)),
                },
            }
        }
        Ok(found.map(|(_, plan)| plan))
    }
}

/// Reads compiled probes from a file. If their program lies elsewhere here, that is `exec`. Notes go to `progress`.
///
/// # Errors
/// The file cannot be read, or was not written by [`Compiled::bytes`]; `exec` is given, and the probes are not for one
/// program.
pub fn load(path: &Path, exec: Option<&Path>, progress: &Progress) -> Result<Compiled> {
    let mut program = Compiled::parse(&files::read(path)?, &path.display().to_string())?;
    if let Some(file) = exec {
        elsewhere(&mut program, file)?;
    }
    program.plans.iter().for_each(|plan| say_where(plan, progress));
    Ok(program)
}

/// The program that the probes are for lies at another place here.
fn elsewhere(program: &mut Compiled, file: &Path) -> Result<()> {
    let mut named = None;
    for plan in &mut program.plans {
        let Site::User { file: own, .. } = &mut plan.site else { continue };
        if named.get_or_insert_with(|| own.clone()) != own {
            bail!("--exec: the probes are for several programs ({}, {})", own.display(), file.display());
        }
        *own = file.to_owned();
        plan.probe.file = Some(file.display().to_string());
    }
    if named.is_none() {
        bail!("--exec: the probes are for the kernel, not for a program");
    }
    Ok(())
}

/// Most places of one recording: a record has 16 bits for its probe.
const MOST_PLANS: usize = 1 << 16;

fn check_room(places: usize) -> Result<()> {
    if places > MOST_PLANS {
        bail!("{places} places for probes, a recording has room for {MOST_PLANS}");
    }
    Ok(())
}

/// A probe of the command line.
fn of_spec(spec: &str, effect: RecordingEffect) -> Wanted {
    let (place, condition) = split(spec);
    Wanted { place: place.to_owned(), condition: condition.map(str::to_owned), effect, ..Wanted::default() }
}

/// Tells the place that was chosen, and the values that cannot be had there.
fn say_where(plan: &Plan, progress: &Progress) {
    let whose = plan.probe.file.as_deref().unwrap_or("the kernel");
    let part = match plan.probe.effect {
        RecordingEffect::Record => "",
        RecordingEffect::Start => "start at ",
        RecordingEffect::Pause => "pause at ",
        RecordingEffect::Stop => "stop at ",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_beyond_the_numbers_of_probes_are_refused() {
        assert!(check_room(MOST_PLANS).is_ok());
        let refused = check_room(MOST_PLANS + 1).unwrap_err();
        assert_eq!(refused.to_string(), "65537 places for probes, a recording has room for 65536");
    }
}
