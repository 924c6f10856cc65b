// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism annotate`: a function as it ran.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use kprism_flow::replay::Task;
use kprism_image::symbols::Symbols;
use kprism_script::annotate::{self, Annotation};
use kprism_script::{Select, Syntax};
use kprism_signals::Second;
use kprism_store::Run;

use super::output::{print_json, style, words};
use crate::exit::{self, Outcome};
use crate::given::Given;
use kprism_session::Progress;
use kprism_session::annotate::{by_function, count, find_source};
use kprism_session::call::Which;
use kprism_session::flow;
use kprism_session::functions::choose;

/// Options of `kprism annotate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Function: NAME, NAME@MODULE, or its address (0x…); `*` and `?` allowed in names. Or, for coverage, a
    /// source file: FILE.c, FILE.c:LINE, FILE.c:FROM-TO; of a run with gcov's counters a function, too
    #[arg(value_name = "FUNC")]
    pub func: String,
    /// Run folder
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub input: PathBuf,
    /// Count only on this CPU (can be repeated)
    #[arg(long = "cpu", value_name = "N")]
    pub cpus: Vec<u16>,
    #[command(flatten)]
    pub tasks: super::output::Select,
    /// Count in one of its calls only: `slowest`, `median`, `fastest`, or its number, from 1, in order of time
    #[arg(long, value_name = "WHICH", conflicts_with = "cpus")]
    pub call: Option<Which>,
    /// How instructions are written
    #[arg(long, value_parser = words(Syntax::ALL), default_value = "att")]
    pub syntax: Syntax,
    /// Of `record tlb`: misses of the TLBs instead of how often instructions ran
    #[arg(long)]
    pub misses: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub strict: super::strict::StrictArgs,
    #[command(flatten)]
    pub cover: super::cover_args::CoverageArgs,
    /// A line for each branch and call
    #[arg(long, help_heading = "Coverage")]
    pub branches: bool,
}

/// Whether the command line names a source file, maybe with lines of it, and no function.
fn names_source(what: &str) -> bool {
    let name = what.rsplit_once(':').map_or(what, |(name, _)| name);
    let suffix = Path::new(name).extension().and_then(|suffix| suffix.to_str());
    suffix.is_some_and(|suffix| SOURCES.contains(&suffix))
}

/// Suffixes of source files. Functions have dots in their names, too.
const SOURCES: [&str; 10] = ["c", "h", "S", "s", "cc", "cpp", "cxx", "hpp", "C", "rs"];

/// Options of annotated source files.
const SOURCE: &str = "func input pids comms json branches source_dir source_prefix build_dir since_boot \
    by_flow merge vmlinux module_file debug_dir";

/// Prints it.
pub fn run(
    args: &Args,
    given: &Given,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if kprism_session::cover::is_cover(&args.input)
        || kprism_session::cover::is_alone(&args.input)
        || names_source(&args.func)
    {
        given.only("annotated source", &[SOURCE])?;
        args.cover.check(given, &[&args.input], false)?;
        let view = super::cover_annotate::Annotate {
            what: &args.func,
            branches: args.branches,
            json: args.json,
            style: style(color, progress),
            strict: args.strict,
        };
        let who = kprism_session::cover::Part { filter: args.tasks.filter(), call: None };
        return super::cover_annotate::annotate(
            &args.input,
            (&args.cover.options(), &who),
            &view,
            progress,
            out,
        );
    }
    let run = Run::open(&args.input)?;
    if args.misses || kprism_session::tlb::is_alone(&run) {
        given.only("a function's misses", &["func", "input", "syntax", "misses", "json", "debug_dir"])?;
        let style = style(color, progress);
        return super::tlb_annotate::annotate(args, &run, style, progress, out);
    }
    given.only(
        "a function's instructions",
        &["func input cpus pids comms call syntax json vmlinux module_file debug_dir"],
    )?;
    let loaded = flow::load(&run, progress)?;
    let symbols = &loaded.symbols;
    let mut chosen = choose(&args.func, symbols)?;
    let mut select = Select {
        cpus: args.cpus.clone(),
        pids: args.tasks.pids.clone(),
        comms: args.tasks.comms.clone(),
        ..Select::default()
    };
    if let Some(which) = args.call {
        select.only_call(which, &args.func, &loaded, progress)?;
    }
    if let Some(call) = &select.call {
        chosen = (0..symbols.len()).map(|func| func == call.func as usize).collect();
    }
    progress.step("counting");
    kprism_signals::catch(Second::EndsProcess)?;
    let takes = |cpu: u16, task: &Task| select.takes(cpu, task);
    let window = select.call.map(|call| call.window);
    let (counts, streams) = count(&loaded, &chosen, &takes, window, &kprism_signals::end_requested, progress);
    progress.clear();
    if kprism_signals::end_requested() {
        return Ok(Outcome::Code(exit::INTERRUPTED));
    }
    // The streams as they are now: the run's account is of the time when its tables were made.
    let whole =
        |outcome| super::strict::judge_own(args.strict, &[(&args.input, &streams)], outcome, progress);
    let ran = by_function(&counts);
    let func = match ran.len() {
        0 => {
            progress.say(&format!("{} did not run in the tasks chosen", args.func));
            return whole(Outcome::NothingMatched);
        }
        1 => *ran.keys().next().ok_or_else(|| anyhow!("no function"))?,
        _ => return whole(several(args, symbols, &ran, "instructions", out)?),
    };
    let debug = args.cover.debug.files();
    let mut source = match find_source(&run, &loaded, func, &debug) {
        Ok(source) => source,
        Err(reason) if debug.vmlinux.is_some() || !debug.module_file.is_empty() => bail!("{reason}"),
        Err(reason) => {
            progress.note(&format!("no source lines: {reason}"));
            None
        }
    };
    let annotation = Annotation::new(func, &counts, symbols, source.as_ref(), args.syntax);
    if args.json {
        print_json(&annotation.to_json(symbols), out)?;
    } else {
        let style = style(color, progress);
        write!(out, "{}", annotation.to_text(symbols, source.as_mut(), style))?;
    }
    whole(Outcome::Done)
}

/// Lists the functions that the name could mean, with how many `what` each has.
pub(super) fn several(
    args: &Args,
    symbols: &Symbols,
    ran: &BTreeMap<u32, u64>,
    what: &str,
    out: &mut dyn Write,
) -> Result<Outcome> {
    match args.json {
        true => print_json(&annotate::several_json(symbols, ran, what), out)?,
        false => write!(out, "{}", annotate::several(&args.func, symbols, ran, what))?,
    }
    Ok(Outcome::NothingMatched)
}
