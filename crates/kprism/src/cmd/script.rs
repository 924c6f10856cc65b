// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism script`: the flow line by line.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_profile::parse;
use kprism_script::flow::Options;
use kprism_script::list::{self, Source};
use kprism_script::select::Ring;
use kprism_script::{Field, Fields, Output, Select, Syntax};
use kprism_session::Progress;
use kprism_signals::Second;
use kprism_store::{Instrument, Run};

use crate::exit::{self, Outcome};
use crate::given::Given;

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
    /// The packets of Intel PT, CPU by CPU, with offset and time
    Packets,
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

impl From<Subject> for list::Subject {
    fn from(name: Subject) -> Self {
        match name {
            Subject::Insns => list::Subject::Insns,
            Subject::Branches => list::Subject::Branches,
            Subject::Calls => list::Subject::Calls,
            Subject::Syscalls => list::Subject::Syscalls,
            Subject::Packets => list::Subject::Packets,
            Subject::Probe => list::Subject::Probe,
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
    let subject = args.subject.map_or_else(|| list::Subject::of(&run), Into::into);
    honoured(subject, run.holds(Instrument::Durations), given)?;
    let source = Source::open(&run, subject, progress)?;
    progress.clear();
    kprism_signals::catch(Second::EndsProcess)?;
    let output = Output::new(out, args.limit, &kprism_signals::end_requested);
    let lines = source.list(subject, args.options(), args.depth.unwrap_or(usize::MAX), progress, output)?;
    if kprism_signals::end_requested() {
        return Ok(Outcome::Code(exit::INTERRUPTED));
    }
    if lines == 0 && args.limit != Some(0) {
        progress.say("nothing matches");
        return Ok(Outcome::NothingMatched);
    }
    Ok(Outcome::Done)
}

/// Refuses options that the lines asked for would ignore.
fn honoured(subject: list::Subject, durations: bool, given: &Given) -> Result<()> {
    const ALL: &str = "subject input cpus pids comms from to limit json";
    let (view, more) = match subject {
        list::Subject::Insns => ("instructions", "funcs own kernel user fields syntax"),
        list::Subject::Branches => ("branches", "funcs own kernel user fields"),
        list::Subject::Calls if durations => ("calls of durations", "funcs own depth fields"),
        list::Subject::Calls => ("calls", "funcs own kernel user depth fields"),
        list::Subject::Syscalls => ("system calls", "funcs fields"),
        list::Subject::Packets => {
            return given.only("packets", &["subject input cpus from to limit json"]);
        }
        // A record of a probe has no name of a task unless $comm was collected.
        list::Subject::Probe => {
            return given.only(
                "records of probes",
                &["subject", "input", "cpus", "pids", "from", "to", "limit", "json"],
            );
        }
    };
    given.only(view, &[ALL, more])
}
