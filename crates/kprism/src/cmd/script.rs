// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism script`: the flow line by line.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kprism_durations::ftrace::Collector;
use kprism_signals::Second;

use kprism_ftrace::Event;
use kprism_ftrace::show::Describe;
use kprism_profile::parse;
use kprism_script::calls;
use kprism_script::durations::Lister;
use kprism_script::flow::{self, Options};
use kprism_script::select::Ring;
use kprism_script::{Field, Fields, Output, Select, Syntax};
use kprism_store::{Instrument, Run};

use crate::exit::{self, Outcome};
use crate::given::Given;
use kprism_report::probe;
use kprism_session::Progress;
use kprism_session::durations::{self, Consumer};
use kprism_session::flow::{self as session, follow};
use kprism_session::probe::Loaded;

/// Options of `kprism script`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What the lines are about; otherwise instructions, or calls in a run of durations
    #[arg(value_enum)]
    pub subject: Option<Subject>,
    /// Run folder
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub input: PathBuf,
    /// Only this CPU (can be repeated)
    #[arg(long = "cpu", value_name = "N")]
    pub cpus: Vec<u16>,
    #[command(flatten)]
    pub tasks: super::output::Select,
    /// Only while this function runs, or what it calls; `*` and `?` allowed (can be repeated)
    #[arg(long = "func", value_name = "GLOB")]
    pub funcs: Vec<String>,
    /// With --func: without what it calls
    #[arg(long = "self", requires = "funcs")]
    pub own: bool,
    /// From this time on: seconds, or a number with ns, us, ms, s
    #[arg(long, value_name = "TIME", value_parser = parse::time_ns)]
    pub from: Option<u64>,
    /// Up to this time
    #[arg(long, value_name = "TIME", value_parser = parse::time_ns)]
    pub to: Option<u64>,
    /// Only kernel code
    #[arg(long, conflicts_with = "user")]
    pub kernel: bool,
    /// Only programs and libraries
    #[arg(long)]
    pub user: bool,
    /// Stop after this many lines
    #[arg(long, value_name = "LINES")]
    pub limit: Option<u64>,
    /// Levels of calls shown
    #[arg(long, value_name = "LEVELS")]
    pub depth: Option<usize>,
    /// Fields of each line
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub fields: Vec<FieldName>,
    /// How instructions are written
    #[arg(long, value_enum, default_value_t = SyntaxName::Att)]
    pub syntax: SyntaxName,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// A kind of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Subject {
    /// Every instruction
    Insns,
    /// Every branch that was taken, interrupt, start and end
    Branches,
    /// Calls as they nest, with time and instructions
    Calls,
    /// System calls as they end, with their start, time and instructions
    Syscalls,
    /// Records of probes, with what they collected
    Probe,
}

/// A field of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FieldName {
    /// Name of the task
    Comm,
    /// Thread id
    Pid,
    /// Process id
    Tgid,
    /// CPU
    Cpu,
    /// Time
    Time,
    /// Address
    Ip,
    /// Function and offset
    Sym,
    /// Kernel, kernel module or file
    Module,
    /// Bytes of the instruction
    Bytes,
    /// The instruction
    Insn,
}

/// A way to write instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SyntaxName {
    /// As GNU objdump does
    Att,
    /// As Intel's manuals do
    Intel,
}

impl From<SyntaxName> for Syntax {
    fn from(name: SyntaxName) -> Self {
        match name {
            SyntaxName::Att => Syntax::Att,
            SyntaxName::Intel => Syntax::Intel,
        }
    }
}

impl From<FieldName> for Field {
    fn from(name: FieldName) -> Self {
        match name {
            FieldName::Comm => Field::Comm,
            FieldName::Pid => Field::Pid,
            FieldName::Tgid => Field::Tgid,
            FieldName::Cpu => Field::Cpu,
            FieldName::Time => Field::Time,
            FieldName::Ip => Field::Ip,
            FieldName::Sym => Field::Sym,
            FieldName::Module => Field::Module,
            FieldName::Bytes => Field::Bytes,
            FieldName::Insn => Field::Insn,
        }
    }
}

impl Args {
    fn options(&self) -> Options {
        let select = Select {
            cpus: self.cpus.clone(),
            pids: self.tasks.pids.clone(),
            comms: self.tasks.comms.clone(),
            funcs: self.funcs.clone(),
            own: self.own,
            from: self.from.unwrap_or(0),
            to: self.to,
            ring: match (self.kernel, self.user) {
                (true, _) => Some(Ring::Kernel),
                (_, true) => Some(Ring::User),
                _ => None,
            },
        };
        let fields: Vec<Field> = self.fields.iter().map(|&f| f.into()).collect();
        let fields = if fields.is_empty() { Fields::default() } else { Fields::new(&fields) };
        Options { select, fields, json: self.json, syntax: self.syntax.into() }
    }
}

/// Prints it.
pub fn run(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let run = Run::open(&args.input)?;
    let recorded = run.holds(Instrument::Durations);
    let subject = args.subject.unwrap_or_else(|| match recorded {
        true => Subject::Calls,
        false if run.holds(Instrument::Probe) => Subject::Probe,
        false => Subject::Insns,
    });
    honoured(subject, recorded, given)?;
    if subject == Subject::Probe {
        return records(&run, args, out);
    }
    if recorded {
        ensure!(subject == Subject::Calls, "a run of durations knows calls only: kprism script calls");
        return of_durations(&run, args, progress, out);
    }
    let loaded = session::load(&run, progress)?;
    for note in &loaded.notes {
        progress.say(&format!("kprism: note: {note}"));
    }
    progress.clear();
    kprism_signals::catch(Second::EndsProcess)?;
    let output = Output::new(out, args.limit, &kprism_signals::end_requested);
    let (options, lanes) = (args.options(), loaded.streams().len());
    let symbols = &loaded.symbols;
    let output = match subject {
        Subject::Insns | Subject::Branches => {
            let subject = match subject {
                Subject::Branches => flow::Subject::Branches,
                _ => flow::Subject::Insns,
            };
            let mut lister = flow::Lister::new(subject, options, lanes, symbols, output);
            follow(&loaded, &mut lister);
            lister.finish()
        }
        Subject::Calls | Subject::Syscalls => {
            let subject = match subject {
                Subject::Calls => calls::Subject::Graph,
                _ => calls::Subject::Syscalls,
            };
            let levels = args.depth.unwrap_or(usize::MAX);
            let mut lister = calls::Lister::new(subject, options, levels, lanes, symbols, output);
            follow(&loaded, &mut lister);
            lister.finish()
        }
        // Shown above: they have nothing to decode.
        Subject::Probe => return Ok(Outcome::Done),
    };
    conclude(output, args, progress)
}

/// Refuses options that the lines asked for would ignore.
fn honoured(subject: Subject, durations: bool, given: &Given) -> Result<()> {
    const ALL: &str = "subject input cpus pids comms from to limit json";
    let (view, more) = match subject {
        Subject::Insns => ("instructions", "funcs own kernel user fields syntax"),
        Subject::Branches => ("branches", "funcs own kernel user fields"),
        Subject::Calls if durations => ("calls of durations", "funcs own depth fields"),
        Subject::Calls => ("calls", "funcs own kernel user depth fields"),
        Subject::Syscalls => ("system calls", "funcs fields"),
        // A record of a probe has no name of a task unless $comm was collected.
        Subject::Probe => {
            return given.only(
                "records of probes",
                &["subject", "input", "cpus", "pids", "from", "to", "limit", "json"],
            );
        }
    };
    given.only(view, &[ALL, more])
}

/// The calls of a run of durations.
fn of_durations(run: &Run, args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let (profile, times) = durations::open(run, progress)?;
    ensure!(
        run.ftrace().is_dir() || run.bpf_calls().is_file(),
        "functions were counted while recording, no single calls were kept: record without --aggregate"
    );
    let rebuilt = match times.counts.rebuilt {
        0 => Vec::new(),
        _ => {
            progress.step("putting calls together");
            durations::again(run, &mut Consumer::Rebuilt)?.rebuilt
        }
    };
    progress.clear();
    kprism_signals::catch(Second::EndsProcess)?;
    let output = Output::new(out, args.limit, &kprism_signals::end_requested);
    let tasks = profile.tasks.into_iter().map(|task| (task.pid, task.tgid, task.comm));
    let levels = args.depth.unwrap_or(usize::MAX);
    let mut lister = Lister::new(args.options(), levels, profile.funcs, tasks, rebuilt, output);
    let mut visit = |collector: &mut Collector<'_>, event: &Event<'_>, describe: Describe<'_>| {
        lister.event(collector, event, describe)
    };
    durations::again(run, &mut Consumer::Events(&mut visit))?;
    conclude(lister.finish(), args, progress)
}

fn conclude(output: Output<'_>, args: &Args, progress: &Progress) -> Result<Outcome> {
    let lines = output.finish().context("standard output")?;
    if kprism_signals::end_requested() {
        return Ok(Outcome::Code(exit::INTERRUPTED));
    }
    if lines == 0 && args.limit != Some(0) {
        progress.say("nothing matches");
        return Ok(Outcome::NothingMatched);
    }
    Ok(Outcome::Done)
}

/// A line for each record of a probe.
fn records(run: &Run, args: &Args, out: &mut dyn Write) -> Result<Outcome> {
    let mut loaded = Loaded::open(run)?;
    if args.limit == Some(0) {
        return Ok(Outcome::Done);
    }
    loaded.tasks = args.tasks.pids.clone();
    let mut shown = 0;
    loaded.each(|hit, values| {
        let at = hit.time_ns;
        let cpu = args.cpus.is_empty() || args.cpus.contains(&hit.cpu);
        let within = at >= args.from.unwrap_or(0) && args.to.is_none_or(|to| at < to);
        if !(cpu && within) {
            return Ok(true);
        }
        shown += 1;
        let probe = &loaded.description.probes[usize::from(hit.probe)];
        if args.json {
            serde_json::to_writer(&mut *out, &probe::object(probe, hit, &values))?;
            writeln!(out)?;
        } else {
            write!(out, "{}", probe::line(probe, hit, &values))?;
        }
        Ok(args.limit.is_none_or(|most| shown < most))
    })?;
    if args.limit.is_none_or(|most| shown < most) {
        out.flush()?;
        loaded.whole()?;
    }
    Ok(if shown == 0 { Outcome::NothingMatched } else { Outcome::Done })
}
