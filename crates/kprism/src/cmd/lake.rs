// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism lake`: many runs as one table.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use kprism_lake::{AddOptions, Engine, Format, Lake, Outcome as End, Query, Shard};
use kprism_session::Progress;

use super::output::print_json;
use super::strict::{StrictArgs, judge};
use crate::exit::Outcome;

/// The help that stands after the options.
pub const HELP: &str = "\
  kprism lake add run1 run2 --to lake --suite nightly --label commit=abc123 --label position=7
  kprism lake sql lake 'SELECT * FROM first_bad_commit'
  kprism lake compact lake
  kprism lake views lake --engine spark";

/// Subcommands of `kprism lake`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Add runs: one file a table and run; a run is seen whole or not at all
    Add(AddArgs),
    /// Merge the files of many runs, sorted by function
    Compact(CompactArgs),
    /// Answer a SELECT over all runs, by the DuckDB in kprism-sql
    Sql(SqlArgs),
    /// Print the views as SQL for an engine, with the lake's paths
    Views(ViewsArgs),
}

/// Options of `kprism lake add`.
#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// Run folder (can be repeated)
    #[arg(value_name = "RUN", required_unless_present = "list")]
    pub runs: Vec<PathBuf>,
    /// Folder of the lake; it is made if missing
    #[arg(long, value_name = "LAKE")]
    pub to: PathBuf,
    /// Suite of the runs: what is comparable
    #[arg(long, value_name = "NAME")]
    pub suite: String,
    /// Label of the runs, such as commit=abc123 (can be repeated)
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// Take the place of runs that the lake has with another suite or other labels
    #[arg(long)]
    pub replace: bool,
    /// A file with a run folder on each line; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "runs")]
    pub list: Option<PathBuf>,
    /// Add only every N-th run of the list, from the K-th on, counted from 0: for N workers
    #[arg(long, value_name = "K/N", requires = "list")]
    pub shard: Option<Shard>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub strict: StrictArgs,
}

/// Options of `kprism lake compact`.
#[derive(Debug, clap::Args)]
pub struct CompactArgs {
    /// Folder of the lake
    #[arg(value_name = "LAKE")]
    pub lake: PathBuf,
    /// Largest file, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..))]
    pub size: u64,
    /// Time between the steps, in seconds, for readers of other programs; `kprism lake sql` needs none
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub grace: u64,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `kprism lake sql`.
#[derive(Debug, clap::Args)]
pub struct SqlArgs {
    /// Folder of the lake
    #[arg(value_name = "LAKE")]
    pub lake: PathBuf,
    /// One SELECT over the tables and views of the lake
    #[arg(value_name = "QUERY", allow_hyphen_values = true)]
    pub query: String,
    /// Print as JSON
    #[arg(long, conflicts_with_all = ["csv", "parquet"])]
    pub json: bool,
    /// Print as CSV
    #[arg(long, conflicts_with = "parquet")]
    pub csv: bool,
    /// Write into a Parquet file
    #[arg(long, value_name = "FILE")]
    pub parquet: Option<PathBuf>,
    /// Most memory; what does not fit goes to files [default: 4GB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Most threads [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
}

/// Options of `kprism lake views`.
#[derive(Debug, clap::Args)]
pub struct ViewsArgs {
    /// Folder of the lake
    #[arg(value_name = "LAKE")]
    pub lake: PathBuf,
    /// duckdb, spark or polars
    #[arg(long, value_name = "ENGINE", default_value = "duckdb")]
    pub engine: Engine,
}

/// Does it.
pub fn run(command: &Command, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    match command {
        Command::Add(args) => add(args, progress, out),
        Command::Compact(args) => compact(args, progress, out),
        Command::Sql(args) => sql(args),
        Command::Views(args) => {
            write!(out, "{}", kprism_lake::script(&Lake::open(&args.lake)?, args.engine)?)?;
            Ok(Outcome::Done)
        }
    }
}

fn add(args: &AddArgs, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let mut labels = BTreeMap::new();
    for label in &args.labels {
        match label.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                if labels.insert(key.to_owned(), value.to_owned()).is_some() {
                    bail!("--label {label}: {key} is given twice");
                }
            }
            _ => bail!("--label {label}: expected KEY=VALUE"),
        }
    }
    kprism_lake::check_labels(&labels)?;
    if args.shard.is_some() && args.list.is_none() {
        bail!("--shard is of a --list; give the runs by one");
    }
    let runs = match &args.list {
        None => args.runs.clone(),
        Some(list) => {
            let all = kprism_lake::read_list(list)?;
            let whole = all.len();
            let picked = args.shard.map_or(all.clone(), |shard| shard.pick(all));
            if picked.is_empty() && whole > 0 {
                progress.say(&format!("none of the list's {whole} runs are of this shard"));
                return Ok(Outcome::Done);
            }
            picked
        }
    };
    kprism_lake::check_suite(&args.suite)?;
    let lake = Lake::create(&args.to)?;
    let options = AddOptions { suite: args.suite.clone(), labels, replace: args.replace };
    let (mut done, mut failed) = (Vec::new(), 0);
    for (number, run) in runs.iter().enumerate() {
        progress.amount("adding runs", number as u64, runs.len() as u64);
        let added = match kprism_lake::add(&lake, run, &options, progress) {
            Ok(added) => added,
            // One bad run of many keeps the others from nothing.
            Err(error) if runs.len() > 1 => {
                progress.clear();
                progress.error(&format!("kprism: {error:#}"));
                failed += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        if !args.json {
            let said = match added.outcome {
                End::Added => "added",
                End::Present => "already there",
                End::Replaced => "replaced",
            };
            progress.clear();
            writeln!(out, "{} {}: {said}", added.run_id, run.display())?;
        }
        done.push(added);
    }
    progress.clear();
    if args.json {
        print_json(&done, out)?;
    }
    if failed > 0 {
        bail!("{failed} of {} runs were not added", runs.len());
    }
    let runs: Vec<&Path> = runs.iter().map(PathBuf::as_path).collect();
    judge(args.strict, &runs, Outcome::of_rows(done.is_empty()), progress)
}

fn compact(args: &CompactArgs, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let lake = Lake::open(&args.lake)?;
    let grace = Duration::from_secs(args.grace);
    let done = kprism_lake::compact(&lake, args.size.saturating_mul(1 << 20), grace, progress)?;
    progress.clear();
    if args.json {
        print_json(&done, out)?;
    } else if done.runs == 0 {
        writeln!(out, "nothing to merge")?;
    } else {
        writeln!(
            out,
            "{} runs: {} files of {} bytes became {} files of {} bytes",
            done.runs, done.files_before, done.bytes_before, done.files_after, done.bytes_after
        )?;
    }
    Ok(Outcome::Done)
}

/// Hands over to kprism-sql, which ends this process with its own code.
fn sql(args: &SqlArgs) -> Result<Outcome> {
    let lake = Lake::open(&args.lake)?;
    let format = match (args.json, args.csv, &args.parquet) {
        (true, ..) => Format::Json,
        (_, true, _) => Format::Csv,
        (.., Some(file)) => Format::Parquet(std::path::absolute(file)?),
        _ => Format::Table,
    };
    let query =
        Query { text: args.query.clone(), format, memory: args.memory.clone(), threads: args.threads };
    kprism_lake::become_query(&lake, query).map(|never| match never {})
}
