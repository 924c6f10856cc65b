// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run's listing, whichever instrument recorded it.
//!
//! In: a run ([`Source::open`]), the subject, options, and where lines go. Out: the lines, and their number.

use anyhow::{Context as _, Result, ensure};
use kprism_durations::ftrace::Collector;
use kprism_durations::{Ended, TaskKey};
use kprism_ftrace::Event;
use kprism_ftrace::show::Describe;
use kprism_profile::Profile;
use kprism_report::probe;
use kprism_session::durations::{self as measured, Consumer};
use kprism_session::flow::Undecoded;
use kprism_session::{Progress, flow as decoded, probe as probes};
use kprism_store::{Account, Instrument, Run};

use crate::flow::Options;
use crate::packets::{self, Skipped};
use crate::{Output, all, calls, durations, events, flow};

/// A kind of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Every instruction.
    Insns,
    /// Every branch that was taken, interrupt, start and end.
    Branches,
    /// Calls as they nest.
    Calls,
    /// System calls as they end.
    Syscalls,
    /// Events that packets state beside the flow.
    Events,
    /// The packets of Intel PT.
    Packets,
    /// Records of probes.
    Probe,
    /// Everything that the run holds, in order of time.
    All,
}

impl Subject {
    /// All subjects, with their words and meanings.
    pub const ALL: &[(Subject, &[&str], &str)] = &[
        (Subject::Insns, &["insns"], "Every instruction"),
        (Subject::Branches, &["branches"], "Every branch that was taken, interrupt, start and end"),
        (Subject::Calls, &["calls"], "Calls as they nest, with time and instructions"),
        (
            Subject::Syscalls,
            &["syscalls"],
            "System calls as they end, with their start, time and instructions",
        ),
        (
            Subject::Events,
            &["events"],
            "Events that packets state beside the flow: PTWRITE, power states, interrupts, the core's clock",
        ),
        (Subject::Packets, &["packets"], "The packets of Intel PT, CPU by CPU, with offset and time"),
        (Subject::Probe, &["probe"], "Records of probes, with what they collected"),
        (
            Subject::All,
            &["all"],
            "Everything in order of time: system calls, task switches, events, probes, TLB misses, the kernel's log",
        ),
    ];

    /// The subject of a run if its user names none.
    pub fn of(run: &Run) -> Self {
        match run {
            run if run.holds(Instrument::Durations) => Subject::Calls,
            run if run.holds(Instrument::Probe) => Subject::Probe,
            _ => Subject::Insns,
        }
    }
}

/// A listing that was written.
pub struct Listed {
    /// Number of lines.
    pub lines: u64,
    /// Losses on the way, of a flow; the manifest has the accounts of other runs.
    pub account: Option<Account>,
}

/// A run that was read, to be listed.
pub enum Source {
    /// The flow of instructions, to be decoded once more.
    Flow(Box<decoded::Loaded>),
    /// Durations of functions.
    Durations(Box<Durations>),
    /// Records of probes.
    Probe(Box<probes::Loaded>),
    /// All instruments.
    All(Run),
}

/// A trace of functions' durations.
pub struct Durations {
    run: Run,
    profile: Profile,
    /// Calls whose entries are not in the trace.
    rebuilt: Vec<(TaskKey, Ended)>,
}

impl Source {
    /// Reads what the subject's lines need.
    ///
    /// # Errors
    /// The run does not hold it, or a file is not what it should be.
    pub fn open(run: &Run, subject: Subject, progress: &Progress) -> Result<Self> {
        if subject == Subject::All {
            return Ok(Source::All(run.clone()));
        }
        if subject == Subject::Probe {
            return Ok(Source::Probe(Box::new(probes::Loaded::open(run)?)));
        }
        if !run.holds(Instrument::Durations) {
            return Ok(Source::Flow(Box::new(decoded::load(run, progress)?)));
        }
        ensure!(subject == Subject::Calls, "a run of durations knows calls only: kprism script calls");
        let (profile, times) = measured::open(run, progress)?;
        measured::kept_calls(run)?;
        let rebuilt = match times.counts.rebuilt {
            0 => Vec::new(),
            _ => {
                progress.step("putting calls together");
                measured::again(run, &mut Consumer::Rebuilt, progress)?.rebuilt
            }
        };
        Ok(Source::Durations(Box::new(Durations { run: run.clone(), profile, rebuilt })))
    }

    /// Writes the lines, with calls down to this many levels. Bytes that are no packets are noted to `progress`.
    ///
    /// # Errors
    /// The first error of writing, or a record is damaged.
    pub fn list(
        self,
        subject: Subject,
        options: Options,
        levels: usize,
        progress: &Progress,
        to: Output<'_>,
    ) -> Result<Listed> {
        let mut account = None;
        let written = match self {
            Source::Flow(loaded) if subject == Subject::Packets => {
                loaded.remarks().iter().for_each(|note| progress.note(note));
                let (to, skipped) = packets::list(&loaded, &options, to);
                if skipped.places > 0 {
                    let Skipped { places, bytes } = skipped;
                    progress.note(&format!("{bytes} bytes in {places} places are no packets"));
                }
                let undecoded =
                    Undecoded { lost_bytes: skipped.bytes, errors: skipped.places, ..Undecoded::default() };
                account = Some(loaded.account(undecoded));
                to
            }
            Source::Flow(loaded) => {
                let (to, streams) = of_flow(&loaded, subject, options, levels, progress, to);
                account = Some(streams);
                to
            }
            Source::All(run) => {
                let (to, streams) = all::list(&run, &options, progress, to)?;
                account = streams;
                to
            }
            Source::Durations(trace) => of_durations(*trace, options, levels, progress, to)?,
            Source::Probe(loaded) => {
                progress.found(&loaded.account_now()?);
                return Ok(Listed { lines: of_probes(*loaded, &options, to)?, account });
            }
        };
        Ok(Listed { lines: written.finish().context("standard output")?, account })
    }
}

fn of_flow<'w>(
    loaded: &decoded::Loaded,
    subject: Subject,
    options: Options,
    levels: usize,
    progress: &Progress,
    to: Output<'w>,
) -> (Output<'w>, Account) {
    let (lanes, symbols) = (loaded.streams().len(), &loaded.symbols);
    let instructions = |subject, options, to| {
        let mut lister = flow::Lister::new(subject, options, lanes, symbols, to);
        let streams = decoded::follow(loaded, &mut lister, progress);
        (lister.finish(), streams)
    };
    let nested = |subject, options, to| {
        let mut lister = calls::Lister::new(subject, options, levels, lanes, symbols, to);
        let streams = decoded::follow(loaded, &mut lister, progress);
        (lister.finish(), streams)
    };
    match subject {
        Subject::Insns => instructions(flow::Subject::Insns, options, to),
        Subject::Branches => instructions(flow::Subject::Branches, options, to),
        Subject::Calls => nested(calls::Subject::Graph, options, to),
        Subject::Syscalls => nested(calls::Subject::Syscalls, options, to),
        Subject::Events => {
            let mut lister = events::Lister::new(options, lanes, symbols, to);
            let streams = decoded::follow(loaded, &mut lister, progress);
            (lister.finish(), streams)
        }
        // Not of a replay, or `open` made no flow for it.
        Subject::Packets | Subject::Probe | Subject::All => (to, Account::new()),
    }
}

fn of_durations<'w>(
    trace: Durations,
    options: Options,
    levels: usize,
    progress: &Progress,
    to: Output<'w>,
) -> Result<Output<'w>> {
    let Durations { run, profile, rebuilt } = trace;
    let tasks = profile.tasks.into_iter().map(|task| (task.pid, task.tgid, task.comm));
    let mut lister = durations::Lister::new(options, levels, profile.funcs, tasks, rebuilt, to);
    let mut visit = |collector: &mut Collector<'_>, event: &Event<'_>, describe: Describe<'_>| {
        lister.event(collector, event, describe)
    };
    measured::again(&run, &mut Consumer::Events(&mut visit), progress)?;
    Ok(lister.finish())
}

/// A line for each record of a probe.
fn of_probes(mut loaded: probes::Loaded, options: &Options, mut to: Output<'_>) -> Result<u64> {
    let select = &options.select;
    loaded.tasks.clone_from(&select.pids);
    let taken = |cpu: u32, ns: u64| {
        select.takes_time(ns)
            && (select.cpus.is_empty() || select.cpus.iter().any(|&of| u32::from(of) == cpu))
    };
    loaded.each(|hit, values| {
        if to.is_done() {
            return Ok(false);
        }
        if taken(hit.cpu.into(), hit.time_ns) {
            let probe = &loaded.description.probes[usize::from(hit.probe)];
            match options.json {
                true => to.line(&format!("{}\n", probe::object(probe, hit, &values))),
                false => match probe::printed(probe, &values) {
                    // The line alone, as its writer wants it.
                    Some(text) => to.line(&format!("{}\n", text.strip_suffix('\n').unwrap_or(&text))),
                    None => to.line(&probe::line(probe, hit, &values)),
                },
            }
        }
        Ok(true)
    })?;
    let whole = !to.is_done();
    let lines = to.finish().context("standard output")?;
    if whole {
        loaded.whole()?;
    }
    Ok(lines)
}
