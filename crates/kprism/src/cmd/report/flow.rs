// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables of a flow: `report functions`, `syscalls`, `tasks`, `errors`, and the call `tree`.

use anyhow::Result;
use kprism_profile::units::grouped;
use kprism_profile::{Filter, Profile};
use kprism_report::calltree::{self, Options, Weight};
use kprism_report::header::Header;
use kprism_report::{Table, rows, tables, tree};
use kprism_session::{held, open_profile};
use kprism_store::{Instrument, Run};
use serde_json::json;

use crate::cmd::cover_args::CallArgs;
use crate::cmd::output::{Io, OutputArgs, ROWS, Select, Shown, default_rows, print_json, words};
use crate::exit::Outcome;

/// Options of a table of tasks' functions, or of tasks.
#[derive(Debug, clap::Args)]
pub struct TableArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    one: CallArgs,
}

/// Options of `kprism report syscalls`.
#[derive(Debug, clap::Args)]
pub struct SyscallArgs {
    #[command(flatten)]
    table: TableArgs,
    /// Split the time into entry, body, interrupts, off CPU and exit
    #[arg(long)]
    parts: bool,
}

/// Options of `kprism report errors`. Errors are a stream's, not a task's.
#[derive(Debug, clap::Args)]
pub struct ErrorArgs {
    #[command(flatten)]
    output: OutputArgs,
}

/// Options of `kprism report tree`.
#[derive(Debug, clap::Args)]
pub struct TreeArgs {
    /// Show no more than this many lines; 0 shows all. JSON has all unless told otherwise
    #[arg(long, value_name = "ROWS")]
    limit: Option<usize>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Weigh the tree by instructions or by time on a CPU
    #[arg(long, value_parser = words(Weight::ALL), default_value = "instructions")]
    by: Weight,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    one: CallArgs,
}

/// The part of a call tree that is shown.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct ShapeArgs {
    /// Fold branches of the tree below this share [default: 1; JSON has all]
    #[arg(long, value_name = "PERCENT")]
    pub min_percent: Option<f64>,
    /// Show no more than this many levels of the tree [default: 40; JSON has all]
    #[arg(long, value_name = "LEVELS")]
    pub depth: Option<usize>,
}

impl ShapeArgs {
    /// As the view takes it. As JSON the tree is whole unless told otherwise.
    pub fn options(self, weight: Weight, json: bool) -> Options {
        let usual = match json {
            true => Options { min_percent: 0.0, max_depth: usize::MAX, ..Options::default() },
            false => Options::default(),
        };
        Options {
            weight,
            min_percent: self.min_percent.unwrap_or(usual.min_percent),
            max_depth: self.depth.unwrap_or(usual.max_depth),
        }
    }
}

/// A table of a profile.
type MakeTable = fn(&Profile, &Filter) -> Table;

pub fn functions(args: &TableArgs, io: &mut Io<'_>) -> Result<Outcome> {
    table(args, tables::functions, io)
}

pub fn tasks(args: &TableArgs, io: &mut Io<'_>) -> Result<Outcome> {
    table(args, tables::tasks, io)
}

pub fn syscalls(args: &SyscallArgs, io: &mut Io<'_>) -> Result<Outcome> {
    let make = if args.parts { tables::syscall_parts } else { tables::syscalls };
    let (filter, one) = (args.table.select.filter(), &args.table.one);
    let Some((profile, header)) = open(&filter, one, io)? else { return Ok(Outcome::NothingMatched) };
    let refused = rows::refused(&profile, &filter);
    if refused > 0 {
        io.progress.note(&format!(
            "{} system calls have the name of the kernel's entry: seccomp or a tracer refused them, there is none of their number, or \
             what they did was not traced; a trace does not have their numbers",
            grouped(refused)
        ));
    }
    let shown = args.table.output.shown(ROWS, io.style);
    show(make(&profile, &filter), (&profile, &header), None, &shown, io)
}

fn table(args: &TableArgs, make: MakeTable, io: &mut Io<'_>) -> Result<Outcome> {
    let (filter, one) = (args.select.filter(), &args.one);
    let Some((profile, header)) = open(&filter, one, io)? else { return Ok(Outcome::NothingMatched) };
    let shown = args.output.shown(ROWS, io.style);
    show(make(&profile, &filter), (&profile, &header), None, &shown, io)
}

pub fn errors(args: &ErrorArgs, io: &mut Io<'_>) -> Result<Outcome> {
    let all = Filter::default();
    let Some((profile, header)) = open(&all, &CallArgs::default(), io)? else {
        return Ok(Outcome::NothingMatched);
    };
    let unlisted = tables::unlisted(&header, &profile);
    let shown = args.output.shown(ROWS, io.style);
    show(tables::errors(&profile), (&profile, &header), Some(unlisted), &shown, io)?;
    // That there is none is what one hopes for.
    Ok(Outcome::Done)
}

fn show(
    mut table: Table,
    (profile, header): (&Profile, &Header),
    unlisted: Option<u64>,
    shown: &Shown<'_>,
    io: &mut Io<'_>,
) -> Result<Outcome> {
    let outcome = Outcome::of_rows(shown.arrange(&mut table)?);
    if shown.csv {
        io.out.write_all(table.to_csv().as_bytes())?;
    } else if shown.json {
        print_json(&tables::to_json(header, &table, unlisted), io.out)?;
    } else {
        write!(io.out, "{}", tables::to_text(header, profile, &table, unlisted, shown.style))?;
    }
    Ok(outcome)
}

pub fn tree(args: &TreeArgs, io: &mut Io<'_>) -> Result<Outcome> {
    let (filter, one) = (args.select.filter(), &args.one);
    let Some((profile, header)) = open(&filter, one, io)? else { return Ok(Outcome::NothingMatched) };
    let tree = tree::by_comm(&profile, &filter);
    let options = args.shape.options(args.by, args.json);
    let rows = args.limit.unwrap_or(default_rows(args.json, ROWS));
    if args.json {
        let (tree, hidden) = calltree::to_json(&profile, &tree, &options, rows);
        print_json(&json!({"run": header.to_json(), "tree": tree, "hidden": hidden}), io.out)?;
        return Ok(Outcome::Done);
    }
    let text = calltree::to_text(&profile, &tree, &options, io.style);
    writeln!(io.out, "{}", header.to_text(&profile, io.style))?;
    write!(io.out, "{}", calltree::limited(&text, rows, io.style))?;
    write!(io.out, "{}", header.account_text(io.style))?;
    Ok(Outcome::Done)
}

/// Opens the run, narrowed to one call if one is asked for. `None` if no task matches.
pub fn open(filter: &Filter, one: &CallArgs, io: &mut Io<'_>) -> Result<Option<(Profile, Header)>> {
    needs_a_flow(io)?;
    let (run, profile, manifest) = open_profile(io.input, io.progress)?;
    let profile = one.call().narrow(&run, profile, filter, io.progress)?;
    io.progress.clear();
    if !filter.tasks(&profile).contains(&true) {
        io.progress.say("no task matches");
        return Ok(None);
    }
    let header = Header::new(&manifest, &profile);
    Ok(Some((profile, header)))
}

/// Tables of a flow count instructions. Of a recording of durations they would hold zeros that nobody measured.
pub fn needs_a_flow(io: &Io<'_>) -> Result<()> {
    let run = Run::open(io.input)?;
    if run.holds(Instrument::Durations) {
        return Err(held::missing(&run, Instrument::Flow));
    }
    Ok(())
}
