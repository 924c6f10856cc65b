// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the settings to the files of tracefs. The input is [`Settings`]; the output is a [`Place`] that is ready to
//! record. The order matters, so that nothing is recorded except what was asked for: recording off, then the buffer,
//! the machine-wide settings, the functions, the events, and the tracer last.

use std::fs::{self, File, OpenOptions};
use std::path::Path;

use crate::calibrate::{self, Cost};
use crate::describe::Symbols;
use crate::error::{Context as _, Error, Result};
use crate::functions::Functions;
use crate::journal::Journal;
use crate::settings::{Scope, Settings};
use crate::stats::CpuStats;
use crate::tracefs::{self, FUNCTION_GRAPH, Tracefs, join};

/// Event systems that show when a task did not run, or when an interrupt ran in its place.
const OFF_TASK: [&str; 2] = ["irq", "irq_vectors"];

/// The instance or top-level folder in which a recording takes place.
pub struct Place {
    /// Folder of the instance, relative to tracefs. Empty for the top level.
    pub folder: String,
    /// CPUs whose buffers may receive events.
    pub cpus: Vec<u32>,
    /// Events that are enabled, as `SYSTEM/NAME`.
    pub events: Vec<String>,
    /// Number of functions traced. `None` if all are.
    pub functions: Option<usize>,
    /// The kernel's symbols, if the choice of functions needed them.
    pub(crate) symbols: Option<Symbols>,
    /// Overhead of tracing on this machine. It is not measured at the top level, which other users share.
    pub cost: Option<Cost>,
    /// When this file is closed, including by any end of this process, the recording stops and the buffer is freed. `None` in a
    /// guest.
    hold: Option<File>,
}

impl Place {
    /// The place that [`prepare`] has made, perhaps in another process, without a hold.
    pub fn made(
        folder: String,
        cpus: Vec<u32>,
        events: Vec<String>,
        functions: Option<usize>,
        cost: Option<Cost>,
    ) -> Self {
        Self { folder, cpus, events, functions, symbols: None, cost, hold: None }
    }

    /// Frees the buffer. Must be called before the old buffer size is restored.
    pub fn release(&mut self) {
        self.hold = None;
    }

    /// Writes to a file of the place. An instance needs no journal, because it is removed as a whole.
    fn set(&self, tracefs: &Tracefs, journal: &mut Journal, name: &str, values: &[&str]) -> Result<()> {
        let path = join(&self.folder, name);
        if self.folder.is_empty() {
            journal.set(&path, values)
        } else {
            tracefs::write(&tracefs.path(&path), values)
        }
    }
}

/// Fails if the kernel does not have the tracer or the threshold is invalid. Called before anything is changed.
pub fn check(settings: &Settings, tracefs: &Tracefs) -> Result<()> {
    if !tracefs.has_tracer("", FUNCTION_GRAPH) {
        let available = tracefs.read("available_tracers")?.trim().to_owned();
        return Err(Error::NoFunctionGraph { available });
    }
    threshold(settings).map(|_| ())
}

/// Prepares everything except the choice of tasks; see [`aim`]. If `holds`, the buffer lives as long as this process; otherwise it
/// stays, and the recorder may be another process.
pub fn prepare(settings: &Settings, tracefs: &Tracefs, journal: &mut Journal, holds: bool) -> Result<Place> {
    let thresh = threshold(settings)?;
    // The settings are resolved first, so that a misspelled name fails before anything is set up.
    let wanted = Wanted::find(settings, tracefs)?;
    let mut place = choose_place(settings, tracefs, journal)?;
    let set = |journal: &mut Journal, name: &str, values: &[&str]| place.set(tracefs, journal, name, values);
    set(journal, "tracing_on", &["0"])?;
    if place.folder.is_empty() {
        journal.use_buffer()?;
    }
    if holds {
        // From here on, any end of this process stops the recording and frees the buffer.
        set(journal, "options/disable_on_free", &["1"])?;
        let path = tracefs.path(&join(&place.folder, "free_buffer"));
        place.hold = Some(OpenOptions::new().write(true).open(&path).at("open", &path)?);
    }
    let set = |journal: &mut Journal, name: &str, values: &[&str]| place.set(tracefs, journal, name, values);
    set(journal, "buffer_size_kb", &[&settings.buffer_kib.to_string()])?;
    set(journal, "trace_clock", &[&settings.clock])?;
    if let Some(mask) = &wanted.cpu_mask {
        set(journal, "tracing_cpumask", &[mask])?;
    }
    // Readers are woken when a quarter of the buffer is full. This is early enough under a high event rate, and rare
    // enough under a low one.
    set(journal, "buffer_percent", &["25"])?;
    set(journal, "options/record-tgid", &["1"])?;
    shared(&thresh, tracefs, journal, settings)?;
    // These two are flags of the tracer, although their files appear in the instance.
    for (option, on) in [("sleep-time", settings.sleep_time), ("funcgraph-irqs", settings.interrupts)] {
        let value = if on { "1" } else { "0" };
        let own = join(&place.folder, &format!("options/{option}"));
        let name = if tracefs.path(&own).exists() { own } else { format!("options/{option}") };
        // The top level has the tracer's options only while the tracer is on.
        if tracefs.path(&name).exists() && tracefs.read(&name)?.trim() != value {
            journal.set(&name, &[value])?;
        }
    }
    let bare = calibrate::bare_path();
    if !place.folder.is_empty() {
        // The recording is useful even without the cost.
        place.cost =
            calibrate::call(tracefs, &place.folder, settings.longer_than.is_none(), wanted.known.as_ref())
                .ok();
    }
    let set = |journal: &mut Journal, name: &str, values: &[&str]| place.set(tracefs, journal, name, values);
    for (name, numbers) in [("set_ftrace_filter", &wanted.functions), ("set_ftrace_notrace", &wanted.not)] {
        if let Some(numbers) = numbers {
            let words: Vec<String> = numbers.iter().map(usize::to_string).collect();
            set(journal, name, &words.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
    }
    for event in &wanted.events {
        set(journal, &format!("events/{event}/enable"), &["1"])?;
    }
    set(journal, "current_tracer", &[FUNCTION_GRAPH])?;
    let slowdown = |_: Cost| calibrate::slowdown(tracefs, &place.folder, bare).ok();
    let slowdown = place.cost.and_then(slowdown);
    if let Some(cost) = &mut place.cost {
        cost.slowdown = slowdown;
    }
    // Removes events that the measurement and the switching on may have left.
    set_quietly(tracefs, &place, "trace")?;
    place.functions = wanted.functions.map(|numbers| numbers.len());
    place.events = wanted.events;
    place.cpus = wanted.cpus;
    place.symbols = wanted.symbols;
    Ok(place)
}

/// Empties a file of the place, without a journal entry.
fn set_quietly(tracefs: &Tracefs, place: &Place, name: &str) -> Result<()> {
    tracefs::write(&tracefs.path(&join(&place.folder, name)), &[])
}

/// The value for `tracing_thresh`, in µs. Fails for a duration that is not a whole number of microseconds, or is 0.
fn threshold(settings: &Settings) -> Result<String> {
    match settings.longer_than {
        None => Ok("0".into()),
        Some(time) if time.subsec_nanos() % 1000 == 0 && !time.is_zero() => Ok(time.as_micros().to_string()),
        Some(_) => {
            Err(Error::Setting("the kernel compares durations with whole microseconds: 1us at least".into()))
        }
    }
}

/// Returns an instance if the kernel has the tracer in instances (since 6.11), otherwise the top level. Fails if the
/// top level is in use.
fn choose_place(settings: &Settings, tracefs: &Tracefs, journal: &mut Journal) -> Result<Place> {
    let place = |folder| Place::made(folder, Vec::new(), Vec::new(), None, None);
    if !settings.top_level {
        let folder = journal.make_instance()?;
        if tracefs.has_tracer(&folder, FUNCTION_GRAPH) {
            return Ok(place(folder));
        }
    }
    needs_idle_top(tracefs, "without an instance of its own a recording")?;
    let mut entries = 0;
    for cpu in tracefs.cpus()? {
        entries += CpuStats::parse(&tracefs.read(&format!("per_cpu/cpu{cpu}/stats"))?).entries;
    }
    if entries > 0 {
        return Err(Error::Busy {
            what: format!("{} holds {entries} events, which would be lost", tracefs.path("trace").display()),
            remedy: "keep what it holds (a boot's: kprism record boot), then empty it: echo > trace".into(),
        });
    }
    for list in ["set_ftrace_filter", "set_ftrace_notrace"] {
        if tracefs.read(list)?.lines().any(|line| line.contains(':')) {
            return Err(Error::Busy {
                what: format!("{} holds commands such as traceoff", tracefs.path(list).display()),
                remedy: "remove them first; they could not be put back".into(),
            });
        }
    }
    Ok(place(String::new()))
}

fn needs_idle_top(tracefs: &Tracefs, what: &str) -> Result<()> {
    match tracefs.current_tracer()?.as_str() {
        "nop" => Ok(()),
        tracer => Err(Error::Busy {
            what: format!("{what} would disturb the tracer {tracer}, which somebody has switched on"),
            remedy: format!("end that, or echo nop > {}", tracefs.path("current_tracer").display()),
        }),
    }
}

/// Writes the settings that exist once for the machine. A file that already has the wanted value is left alone.
fn shared(thresh: &str, tracefs: &Tracefs, journal: &mut Journal, settings: &Settings) -> Result<()> {
    let depth = settings.depth.unwrap_or(0).to_string();
    let mut change = |name: &str, values: &[&str], as_it_is: bool| -> Result<()> {
        if as_it_is || !tracefs.path(name).exists() {
            return Ok(());
        }
        needs_idle_top(tracefs, &format!("{name} is the whole machine's, and to change it"))?;
        journal.set(name, values)
    };
    let is = |name: &str, value: &str| tracefs.read(name).is_ok_and(|text| text.trim() == value);
    change("tracing_thresh", &[thresh], is("tracing_thresh", thresh))?;
    change("max_graph_depth", &[&depth], is("max_graph_depth", &depth))?;
    for (name, globs) in [("set_graph_function", &settings.graph), ("set_graph_notrace", &settings.not_graph)]
    {
        let empty = tracefs.read(name).is_ok_and(|text| text.lines().all(|line| line.starts_with('#')));
        let globs: Vec<&str> = globs.iter().map(String::as_str).collect();
        change(name, &globs, globs.is_empty() && empty)?;
    }
    // Keeps the names of more tasks than the usual 128. Changing the size resets the known names, and nothing else.
    const TASKS: u32 = 4096;
    let size: u32 =
        tracefs.read("saved_cmdlines_size").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(TASKS);
    if size < TASKS {
        journal.set("saved_cmdlines_size", &[&TASKS.to_string()])?;
    }
    Ok(())
}

/// The settings resolved to functions, events and CPUs of this machine.
struct Wanted {
    /// All functions of the kernel, if any are chosen.
    known: Option<Functions>,
    /// The kernel's symbols, likewise.
    symbols: Option<Symbols>,
    functions: Option<Vec<usize>>,
    not: Option<Vec<usize>>,
    events: Vec<String>,
    cpus: Vec<u32>,
    cpu_mask: Option<String>,
}

impl Wanted {
    fn find(settings: &Settings, tracefs: &Tracefs) -> Result<Self> {
        let globs = [&settings.functions, &settings.not_functions, &settings.graph, &settings.not_graph];
        let (mut known, mut symbols, mut functions, mut not) = (None, None, None, None);
        if globs.iter().any(|globs| !globs.is_empty()) {
            let texts = Symbols::read()?;
            let read = Functions::read_with_aliases(tracefs, &texts.kallsyms)?;
            let numbers = |globs: &Vec<String>| (!globs.is_empty()).then(|| read.numbers(globs)).transpose();
            functions = match settings.lenient {
                true => Some(read.numbers_of_known(globs[0])?),
                false => numbers(globs[0])?,
            };
            not = numbers(globs[1])?;
            read.check(globs[2])?;
            read.check(globs[3])?;
            (known, symbols) = (Some(read), Some(texts));
        }
        let all = tracefs.cpus()?;
        let cpus = match &settings.cpus {
            Some(text) => parse_cpus(text, &all)?,
            None => all,
        };
        let cpu_mask = settings.cpus.as_ref().map(|_| mask(&cpus));
        Ok(Self { known, symbols, functions, not, events: events(settings, tracefs)?, cpus, cpu_mask })
    }
}

/// The requested events, as `SYSTEM/NAME`. Fails if an event is unknown.
pub fn events(settings: &Settings, tracefs: &Tracefs) -> Result<Vec<String>> {
    let mut found = Vec::new();
    if settings.events {
        found.push("sched/sched_switch".to_owned());
        for system in OFF_TASK {
            // Only entries and exits; the other events concern raising and routing.
            let ends = |name: &String| name.ends_with("_entry") || name.ends_with("_exit");
            found.extend(names(tracefs, system).unwrap_or_default().into_iter().filter(ends));
        }
    }
    if settings.longer_than.is_some() && settings.scope != Scope::All {
        // With a threshold the kernel does not filter calls by task. Fork events allow the filtering to be done later.
        found.push("sched/sched_process_fork".to_owned());
    }
    for event in &settings.more_events {
        let (system, name) = event.split_once(':').unwrap_or((event, "*"));
        let known = names(tracefs, system).ok_or_else(|| unknown_event(event, tracefs))?;
        let fits = |path: &&String| path.split('/').nth(1).is_some_and(|n| kprism_image::glob::glob(name, n));
        let before = found.len();
        found.extend(known.iter().filter(fits).cloned());
        if found.len() == before {
            return Err(unknown_event(event, tracefs));
        }
    }
    found.retain(|name| tracefs.path(&format!("events/{name}/enable")).exists());
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn unknown_event(event: &str, tracefs: &Tracefs) -> Error {
    let list = tracefs.path("available_events");
    Error::Setting(format!("no event is called {event}: see {}", list.display()))
}

/// The events of a system, as `SYSTEM/NAME`. `None` if there is no such system.
fn names(tracefs: &Tracefs, system: &str) -> Option<Vec<String>> {
    if system.is_empty() || system.contains(['/', '.']) {
        return None;
    }
    let entries = fs::read_dir(tracefs.path(&format!("events/{system}"))).ok()?;
    let names = entries.filter_map(|entry| Some(format!("{system}/{}", entry.ok()?.file_name().to_str()?)));
    let mut names: Vec<String> =
        names.filter(|name| tracefs.path(&format!("events/{name}/format")).exists()).collect();
    names.sort_unstable();
    Some(names)
}

/// Sets the tasks whose calls are recorded. `pid` is the command's process, `own` the recorder's threads. Returns the
/// traced threads, or an empty list if all tasks are traced.
pub fn aim(
    settings: &Settings,
    tracefs: &Tracefs,
    journal: &mut Journal,
    place: &Place,
    pid: Option<u32>,
    own: &[u32],
) -> Result<Vec<u32>> {
    let traced = match (&settings.scope, pid) {
        (Scope::All, _) => Vec::new(),
        (Scope::Command, Some(pid)) => vec![pid],
        (Scope::Command, None) => return Err(Error::Setting("no command is given".into())),
        (Scope::Threads(threads), _) => threads.clone(),
        (Scope::Processes(pids), _) => {
            let mut threads = Vec::new();
            for pid in pids {
                threads.extend(threads_of(*pid)?);
            }
            threads
        }
        (Scope::Cgroup(folder), _) => cgroup(folder)?,
    };
    let words = |pids: &[u32]| pids.iter().map(u32::to_string).collect::<Vec<_>>();
    let mut set = |name: &str, values: &[String]| {
        place.set(tracefs, journal, name, &values.iter().map(String::as_str).collect::<Vec<_>>())
    };
    if settings.scope == Scope::All {
        // Kernels before 5.8 do not have these files.
        for name in ["set_ftrace_notrace_pid", "set_event_notrace_pid"] {
            if tracefs.path(&join(&place.folder, name)).exists() {
                set(name, &words(own))?;
            }
        }
        return Ok(traced);
    }
    for option in ["function-fork", "event-fork"] {
        set(&format!("options/{option}"), &["1".to_owned()])?;
    }
    set("set_ftrace_pid", &words(&traced))?;
    set("set_event_pid", &words(&traced))?;
    Ok(traced)
}

/// All threads of a process. Fails if there is no such process.
pub fn threads_of(pid: u32) -> Result<Vec<u32>> {
    let folder = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&folder).at("find the process of", Path::new(&folder))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

fn cgroup(folder: &Path) -> Result<Vec<u32>> {
    let folder =
        if folder.is_absolute() { folder.to_owned() } else { Path::new("/sys/fs/cgroup").join(folder) };
    let path = folder.join("cgroup.threads");
    let text = fs::read_to_string(&path).at("read the control group's", &path)?;
    let threads: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    if threads.is_empty() {
        return Err(Error::Setting(format!("{}: nothing runs in this control group", folder.display())));
    }
    Ok(threads)
}

/// Parses a list such as `0-3,7`. Fails if a CPU that it names is not in `known`.
fn parse_cpus(text: &str, known: &[u32]) -> Result<Vec<u32>> {
    let wrong = || {
        let (first, last) = (known.first().unwrap_or(&0), known.last().unwrap_or(&0));
        Error::Setting(format!("CPUs {text:?}: expected a list such as 0-3,7, of CPUs {first} to {last}"))
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) =
            (first.trim().parse().map_err(|_| wrong())?, last.trim().parse().map_err(|_| wrong())?);
        if first > last || !known.contains(&first) || !known.contains(&last) {
            return Err(wrong());
        }
        cpus.extend(known.iter().filter(|cpu| (first..=last).contains(cpu)));
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// A mask in the kernel's format: groups of 32 bits in hexadecimal, the highest first.
fn mask(cpus: &[u32]) -> String {
    let groups = cpus.iter().max().map_or(1, |max| max / 32 + 1);
    let group =
        |g: u32| cpus.iter().filter(|&&cpu| cpu / 32 == g).fold(0u32, |mask, cpu| mask | 1 << (cpu % 32));
    (0..groups).rev().map(|g| format!("{:08x}", group(g))).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_and_masks() {
        let known: Vec<u32> = (0..40).collect();
        assert_eq!(parse_cpus("0-3,7", &known).unwrap(), [0, 1, 2, 3, 7]);
        assert_eq!(mask(&[0, 1, 2, 3, 7]), "0000008f");
        assert_eq!(mask(&[0, 33]), "00000002,00000001");
        for text in ["", "4-1", "40", "x", "1-", "0-99999999999"] {
            assert!(parse_cpus(text, &known).is_err(), "{text:?}");
        }
    }

    #[test]
    fn thresholds_are_whole_microseconds() {
        let with =
            |ns| Settings { longer_than: Some(std::time::Duration::from_nanos(ns)), ..Settings::default() };
        assert_eq!(threshold(&with(1_000_000)).unwrap(), "1000");
        assert!(threshold(&with(1500)).is_err());
        assert!(threshold(&with(0)).is_err());
        assert_eq!(threshold(&Settings::default()).unwrap(), "0");
    }
}
