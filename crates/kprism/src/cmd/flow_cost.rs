// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism flow-cost`: trace size against temporal resolution, over packet settings.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use kprism_flow::cost::Setting;
use kprism_profile::units::quoted;
use kprism_record::flow_cost::{Recorded, Settings, all_values, record};
use kprism_record::guest;
use kprism_report::cost::page::{self, About};
use kprism_report::{Style, Table, cost, header, shape};
use kprism_session::Progress;
use kprism_session::cost::measure;
use kprism_signals::Second;
use kprism_store::Run;
use serde_json::json;

use super::ended;
use super::guest_args::{GuestArgs, PlaceArgs, psb};
use super::output::{print_json, style, write_file};
use crate::exit::{self, Outcome};

pub const HELP: &str = "\
Each setting is one recording of the same instructions; TRF is over all of them.
While one setting is varied, CYC and MTC are off and PSBs come every 16 KiB.

  kprism flow-cost -o cost.html -- ls /bin      figures 5 to 7 of the paper
  kprism flow-cost --sweep mtc --mtc 3 -- ls    one setting: perf's default
  kprism flow-cost -i RUN                       a run recorded before";

/// Options of `kprism flow-cost`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Command to run in the guest
    #[arg(required_unless_present = "input", trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
    /// Measure these runs instead (can be repeated)
    #[arg(short, long, value_name = "RUN", conflicts_with_all = ["command", "output", "keep", "user", "sweep", "cyc", "mtc", "psb"])]
    input: Vec<PathBuf>,
    /// Write plots and tables as one HTML file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write everything measured as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print everything measured as JSON
    #[arg(long)]
    json: bool,
    /// Trace the flow of user code only
    #[arg(long)]
    user: bool,
    /// What to vary
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',', default_values = ["cyc", "mtc", "psb"])]
    sweep: Vec<Varied>,
    /// CYC thresholds in cycles (0 or powers of two up to 16384), and `off`; all if not given
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = guest::cyc)]
    cyc: Vec<String>,
    /// MTC periods as powers of two of crystal ticks (0 to 15), and `off`; all if not given
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = guest::mtc)]
    mtc: Vec<String>,
    /// PSB periods in bytes; 2 KiB to 64 MiB if not given
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = psb())]
    psb: Vec<u64>,
    /// Keep the recordings, as runs in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    guest: GuestArgs,
}

/// A packet that can be varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Varied {
    /// CYC packets: the threshold
    Cyc,
    /// MTC packets: the period
    Mtc,
    /// PSB packets: the period
    Psb,
}

impl Args {
    /// As the library takes them.
    fn settings(&self) -> Settings {
        let values = |setting: Setting, words: &[String]| -> Vec<Option<u64>> {
            let number = |word: &String| if word == "on" { Some(0) } else { word.parse().ok() };
            match words.is_empty() {
                true => all_values(setting),
                false => words.iter().map(number).collect(),
            }
        };
        let sweep = |varied: &Varied| match varied {
            Varied::Cyc => (Setting::Cyc, values(Setting::Cyc, &self.cyc)),
            Varied::Mtc => (Setting::Mtc, values(Setting::Mtc, &self.mtc)),
            Varied::Psb if self.psb.is_empty() => (Setting::Psb, all_values(Setting::Psb)),
            Varied::Psb => (Setting::Psb, self.psb.iter().copied().map(Some).collect()),
        };
        Settings {
            job: self.place.job(&self.command),
            guest: self.guest.options(),
            user_only: self.user,
            keep: self.keep.clone(),
            plan: self.sweep.iter().map(sweep).collect(),
        }
    }
}

/// Records and shows.
pub fn run(
    args: &Args,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let style = style(color, progress);
    if !args.input.is_empty() {
        return show_runs(args, style, progress, out);
    }
    kprism_signals::catch(Second::EndsProcess)?;
    match record(&args.settings(), progress) {
        Ok(Some(recorded)) => show_sweeps(args, &recorded, style, progress, out),
        Ok(None) => Ok(Outcome::Code(exit::INTERRUPTED)),
        Err(error) => ended::interrupted(error),
    }
}

fn show_sweeps(
    args: &Args,
    recorded: &Recorded,
    style: Style,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    recorded.notes.iter().for_each(|note| progress.say(&format!("note: {note}")));
    let sweeps = &recorded.sweeps;
    let accounts = recorded.accounts.iter().map(|(name, account)| (name.as_str(), Some(account)));
    let about = About {
        command: quoted(&args.command),
        kernel: recorded.kernel.clone(),
        user_only: args.user,
        account: shape::account_of_all(accounts),
    };
    let Some((_, any)) = sweeps.iter().flat_map(|s| &s.steps).next() else {
        return Ok(Outcome::NothingMatched);
    };
    let all = cost::sweeps_for_programs(sweeps);
    if let Some(file) = &args.output {
        write(file, &page::render(&about, sweeps)?, progress)?;
    }
    write_csv(args, &all, progress)?;
    if args.json {
        let value = json!({
            "run": {
                "command": args.command, "kernel": about.kernel, "user_only": about.user_only,
                "instructions": any.instructions, "duration_ns": any.duration_ns, "account": about.account,
            },
            "rows": all.to_json(),
            "hidden": all.hidden,
        });
        print_json(&value, out)?;
        return Ok(Outcome::Done);
    }
    write!(out, "{}", page::to_text(&about, sweeps, recorded.recordings, style))?;
    Ok(Outcome::Done)
}

fn show_runs(args: &Args, style: Style, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let (mut costs, mut accounts) = (Vec::new(), Vec::new());
    for path in &args.input {
        progress.step(&format!("measuring {}", path.display()));
        let run = Run::open(path)?;
        let (cost, account) = measure(&run, path.display().to_string())?;
        accounts.push((cost.name.clone(), account));
        costs.push(cost);
    }
    progress.clear();
    let account =
        shape::account_of_all(accounts.iter().map(|(name, account)| (name.as_str(), Some(account))));
    // CSV has no place for it.
    if args.csv.is_some() && !account.is_whole() {
        progress.note(&account.line());
    }
    let all = cost::runs_for_programs(&costs);
    write_csv(args, &all, progress)?;
    if args.json {
        let manifest = match &args.input[..] {
            [one] => Some(Run::open(one)?.manifest()?),
            _ => None,
        };
        print_json(&shape::report(shape::run(manifest.as_ref(), Some(&account)), &all), out)?;
        return Ok(Outcome::Done);
    }
    write!(out, "{}", header::head(Some(&account), style))?;
    write!(out, "{}", cost::runs_table(&costs).to_text(style))?;
    if let [cost] = &costs[..] {
        write!(out, "\n{}", cost::mix_table(cost).to_text(style))?;
    }
    Ok(Outcome::Done)
}

fn write_csv(args: &Args, table: &Table, progress: &Progress) -> Result<()> {
    args.csv.as_ref().map_or(Ok(()), |file| write(file, &table.to_csv(), progress))
}

fn write(file: &Path, text: &str, progress: &Progress) -> Result<()> {
    write_file(file, text, progress)
}
