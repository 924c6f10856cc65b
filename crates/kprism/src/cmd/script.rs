// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism script`: the flow line by line.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_profile::parse;
use kprism_script::events::PacketEventKind;
use kprism_script::flow::Options;
use kprism_script::list::{Source, Subject};
use kprism_script::select::Ring;
use kprism_script::{Field, Fields, Output, Select, Syntax};
use kprism_session::Progress;
use kprism_session::call::Which;
use kprism_session::moments::Kind;
use kprism_signals::Second;
use kprism_store::{Instrument, Run};

use super::output::words;
use super::strict::{self, StrictArgs};
use crate::exit::{self, Outcome};
use crate::given::Given;

/// Options of `kprism script`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What the lines are about; otherwise instructions, or calls in a run of durations
    #[arg(value_parser = words(Subject::ALL))]
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
    /// Of --func: one of its calls: `slowest`, `median`, `fastest`, or its number, from 1, in order of time
    #[arg(long, value_name = "WHICH", requires = "funcs", conflicts_with_all = ["cpus", "from", "to"])]
    pub call: Option<Which>,
    /// From this time on: seconds, or a number with ns, us, ms, s
    #[arg(long, value_name = "TIME", value_parser = parse::time_ns)]
    pub from: Option<u64>,
    /// Up to this time
    #[arg(long, value_name = "TIME", value_parser = parse::time_ns)]
    pub to: Option<u64>,
    /// Of events: only these kinds
    #[arg(long = "event", value_parser = words(PacketEventKind::ALL), value_delimiter = ',', value_name = "LIST")]
    pub events: Vec<PacketEventKind>,
    /// Of all: only these kinds; calls are listed only if they are named
    #[arg(long, value_parser = words(Kind::ALL), value_delimiter = ',', value_name = "LIST")]
    pub only: Vec<Kind>,
    /// Of all: count TLB misses by intervals of this length; 0 lists each miss
    #[arg(long, value_name = "TIME", value_parser = parse::time_ns, default_value = "1ms")]
    pub tlb_interval: u64,
    /// Of packets: only those at these offsets of the stream, such as 0x1000..0x2000 or 0x1000..
    #[arg(long, value_name = "FROM..TO", value_parser = parse::offsets)]
    pub offset: Option<std::ops::Range<u64>>,
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
    #[arg(long, value_parser = words(Field::ALL), value_delimiter = ',', value_name = "LIST")]
    pub fields: Vec<Field>,
    /// How instructions are written
    #[arg(long, value_parser = words(Syntax::ALL), default_value = "att")]
    pub syntax: Syntax,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub strict: StrictArgs,
}

impl Args {
    fn options(&self) -> Options {
        let select = Select {
            cpus: self.cpus.clone(),
            pids: self.tasks.pids.clone(),
            comms: self.tasks.comms.clone(),
            call: None,
            funcs: self.funcs.clone(),
            own: self.own,
            from: self.from.unwrap_or(0),
            to: self.to,
            offsets: self.offset.clone(),
            events: self.events.clone(),
            kinds: self.only.clone(),
            tlb_ns: self.tlb_interval,
            ring: match (self.kernel, self.user) {
                (true, _) => Some(Ring::Kernel),
                (_, true) => Some(Ring::User),
                _ => None,
            },
        };
        let fields = if self.fields.is_empty() { Fields::default() } else { Fields::new(&self.fields) };
        Options { select, fields, json: self.json, syntax: self.syntax }
    }
}

/// Prints it.
pub fn run(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let run = Run::open(&args.input)?;
    let subject = args.subject.unwrap_or_else(|| Subject::of(&run));
    anyhow::ensure!(
        subject == Subject::Insns || !args.fields.contains(&Field::Number),
        "--fields number: only instructions have one: kprism script insns"
    );
    honoured(subject, run.holds(Instrument::Durations), given)?;
    anyhow::ensure!(
        run.holds(Instrument::Tlb) || given.first(&["tlb_interval"]).is_none(),
        "--tlb-interval is about TLB misses, and this run holds none: kprism record tlb"
    );
    let source = Source::open(&run, subject, progress)?;
    let mut options = args.options();
    if let (Some(which), Source::Flow(loaded)) = (args.call, &source) {
        let [func] = &args.funcs[..] else {
            anyhow::bail!("--call is about the calls of one function: give --func once")
        };
        options.select.only_call(which, func, loaded, progress)?;
    }
    progress.clear();
    kprism_signals::catch(Second::EndsProcess)?;
    let output = Output::new(out, args.limit, &kprism_signals::end_requested);
    let listed = source.list(subject, options, args.depth.unwrap_or(usize::MAX), progress, output)?;
    if kprism_signals::end_requested() {
        return Ok(Outcome::Code(exit::INTERRUPTED));
    }
    let outcome = match listed.lines == 0 && args.limit != Some(0) {
        true => Outcome::NothingMatched,
        false => Outcome::Done,
    };
    if outcome == Outcome::NothingMatched {
        progress.say("nothing matches");
    }
    match &listed.account {
        Some(account) => strict::judge_own(args.strict, &[(&args.input, account)], outcome, progress),
        None => strict::judge(args.strict, &[&args.input], outcome, progress),
    }
}

/// Refuses options that the lines asked for would ignore.
fn honoured(subject: Subject, durations: bool, given: &Given) -> Result<()> {
    const ALL: &str = "subject input cpus pids comms from to limit json";
    let (view, more) = match subject {
        Subject::Insns => ("instructions", "funcs call own kernel user fields syntax"),
        Subject::Branches => ("branches", "funcs call own kernel user fields"),
        Subject::Calls if durations => ("calls of durations", "funcs own depth fields"),
        Subject::Calls => ("calls", "funcs call own kernel user depth fields"),
        Subject::Syscalls => ("system calls", "funcs fields"),
        Subject::Events => ("events", "events fields"),
        Subject::All => ("`script all`", "only tlb_interval"),
        Subject::Packets => {
            return given.only("packets", &["subject input cpus from to offset limit json"]);
        }
        // A record of a probe has no name of a task unless $comm was collected.
        Subject::Probe => {
            return given.only("records of probes", &["subject input cpus pids from to limit json"]);
        }
    };
    given.only(view, &[ALL, more])
}
