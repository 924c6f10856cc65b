// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism flow-cost`: the same command recorded over and over, each time with other packets. The lab's default
//! pace makes every run the same instructions, which is checked; so what differs is the cost of the packets.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use kprism_flow::cost::Cost;
use kprism_lab::{Ended, Prepared};
use kprism_profile::units::{duration, grouped};
use kprism_report::cost::page::{self, About};
use kprism_report::cost::{self, Setting, Sweep};
use kprism_report::{Style, Table};
use kprism_store::Run;
use serde_json::json;

use super::lab::{self, GuestArgs, PacketArgs, PlaceArgs, RunArgs};
use super::report::{print_json, wants_color};
use crate::exit::{self, Outcome};
use crate::text::quoted;
use kprism_session::Progress;
use kprism_session::cost::measure;

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
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = lab::cyc)]
    cyc: Vec<String>,
    /// MTC periods as powers of two of crystal ticks (0 to 15), and `off`; all if not given
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = lab::mtc)]
    mtc: Vec<String>,
    /// PSB periods in bytes; 2 KiB to 64 MiB if not given
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = lab::psb())]
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

/// PSB period where it is not varied: what perf asks for.
const PSB: u64 = 16 << 10;

/// One sweep to come: the values, and the packets they mean.
type Planned = (Setting, Vec<(Option<u64>, Packets)>);

/// One recording's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Packets {
    cyc: Option<u64>,
    mtc: Option<u64>,
    psb: u64,
}

impl Packets {
    fn args(self, user_only: bool) -> PacketArgs {
        let word = |n: Option<u64>| Some(n.map_or_else(|| "off".to_owned(), |n| n.to_string()));
        PacketArgs { psb: Some(self.psb), mtc: word(self.mtc), cyc: word(self.cyc), user_only, retc: None }
    }

    /// Names the recording, and its folder if it is kept.
    fn name(self) -> String {
        let word = |n: Option<u64>| n.map_or_else(|| "off".to_owned(), |n| n.to_string());
        format!("cyc-{}-mtc-{}-psb-{}", word(self.cyc), word(self.mtc), self.psb)
    }
}

impl Args {
    /// What is to be recorded.
    fn plan(&self) -> Vec<Planned> {
        let none = Packets { cyc: None, mtc: None, psb: PSB };
        let listed = |words: &[String], all: &mut dyn Iterator<Item = u64>| -> Vec<Option<u64>> {
            if words.is_empty() {
                return all.map(Some).chain([None]).collect();
            }
            let number = |word: &String| if word == "on" { Some(0) } else { word.parse().ok() };
            words.iter().map(number).collect()
        };
        let sweep = |varied: &Varied| match varied {
            Varied::Cyc => {
                let values = listed(&self.cyc, &mut [0].into_iter().chain((0..=14).map(|n| 1 << n)));
                (Setting::Cyc, values.into_iter().map(|v| (v, Packets { cyc: v, ..none })).collect())
            }
            Varied::Mtc => {
                let values = listed(&self.mtc, &mut (0..=15));
                (Setting::Mtc, values.into_iter().map(|v| (v, Packets { mtc: v, ..none })).collect())
            }
            Varied::Psb => {
                let all = (0..=15).map(|n| 2048 << n).collect();
                let values = if self.psb.is_empty() { all } else { self.psb.clone() };
                (Setting::Psb, values.into_iter().map(|v| (Some(v), Packets { psb: v, ..none })).collect())
            }
        };
        self.sweep.iter().map(sweep).collect()
    }
}

/// Every recording once: sweeps have some in common.
fn distinct(plan: &[Planned]) -> Vec<Packets> {
    let mut settings = Vec::new();
    for &(_, packets) in plan.iter().flat_map(|(_, steps)| steps) {
        if !settings.contains(&packets) {
            settings.push(packets);
        }
    }
    settings
}

/// Records and shows.
pub fn run(
    args: &Args,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let style = Style { color: wants_color(color) };
    if !args.input.is_empty() {
        return show_runs(args, style, progress, out);
    }
    kprism_lab::interrupt::catch_signals();
    let recorder = match Recorder::new(args, progress) {
        Err(error) => return lab::interrupted(error),
        Ok(recorder) => recorder,
    };
    match recorder.sweeps(args) {
        Ok(Some(sweeps)) => {
            progress.clear();
            show_sweeps(args, &recorder, &sweeps, style, out)
        }
        Ok(None) => Ok(Outcome::Code(exit::INTERRUPTED)),
        Err(error) => lab::interrupted(error),
    }
}

/// A guest ready to run the command again and again.
struct Recorder<'a> {
    args: &'a Args,
    prepared: Prepared,
    progress: &'a Progress,
}

impl<'a> Recorder<'a> {
    fn new(args: &'a Args, progress: &'a Progress) -> Result<Self> {
        ensure!(!args.guest.is_fast(), "--fast: no run is like another, so packets cannot be compared");
        kprism_lab::find_observer()?;
        Ok(Self { args, prepared: lab::prepared(&args.guest, progress)?, progress })
    }

    /// All recordings, each once. `None` after Ctrl-C.
    fn sweeps(&self, args: &Args) -> Result<Option<Vec<Sweep>>> {
        let plan = args.plan();
        let settings = distinct(&plan);
        let scratch = Scratch::new(args.keep.as_deref())?;
        let mut costs: HashMap<Packets, Cost> = HashMap::new();
        for (i, &packets) in settings.iter().enumerate() {
            self.progress.step(&format!("recording {} of {}: {}", i + 1, settings.len(), packets.name()));
            let Some(cost) = self.record(packets, &scratch.folder.join(packets.name()))? else {
                return Ok(None);
            };
            if let Some(first) = costs.get(&settings[0])
                && (first.instructions, first.duration_ns) != (cost.instructions, cost.duration_ns)
            {
                bail!(
                    "{} recorded {} instructions in {}, {} recorded {} in {}: they cannot be compared",
                    settings[0].name(),
                    grouped(first.instructions),
                    duration(first.duration_ns),
                    packets.name(),
                    grouped(cost.instructions),
                    duration(cost.duration_ns)
                );
            }
            costs.insert(packets, cost);
        }
        let sweep = |(setting, steps): Planned| Sweep {
            setting,
            steps: steps
                .into_iter()
                .map(|(value, packets)| {
                    let name = value.map_or_else(|| "off".to_owned(), |v| v.to_string());
                    (value, Cost { name, ..costs[&packets].clone() })
                })
                .collect(),
        };
        Ok(Some(plan.into_iter().map(sweep).collect()))
    }

    fn record(&self, packets: Packets, folder: &Path) -> Result<Option<Cost>> {
        let Args { command, place, guest, user, keep, .. } = self.args;
        let args = RunArgs::recording(command, folder.to_owned(), (place, guest), packets.args(*user));
        let (run, ran) = lab::record(
            &args,
            &args.job(),
            args.observer(&self.prepared)?.as_ref(),
            &self.prepared,
            &mut |_| {},
        )?;
        match &ran.ended {
            Ended::Interrupted => return Ok(None),
            Ended::Normal if ran.exit_code == Some(0) => {}
            Ended::Normal => {
                let said = fs::read_to_string(run.stderr()).unwrap_or_default();
                bail!("the command failed with exit code {}\n{said}", ran.exit_code.unwrap_or_default());
            }
            _ => {
                lab::complain(&ran, self.progress);
                bail!("{}: the command did not come to its end", packets.name());
            }
        }
        let cost = measure(&run, packets.name())?;
        if keep.is_none() {
            fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        Ok(Some(cost))
    }
}

/// The folder of the recordings; removed on drop unless they are to be kept.
struct Scratch {
    folder: PathBuf,
    temporary: bool,
}

impl Scratch {
    fn new(keep: Option<&Path>) -> Result<Self> {
        let folder = match keep {
            Some(folder) => folder.to_owned(),
            // A name that nobody can have taken before.
            None => tempfile::Builder::new().prefix("kprism-flow-cost.").tempdir()?.keep(),
        };
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self { folder, temporary: keep.is_none() })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.temporary {
            // What is left of it is in the way of nobody.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

fn show_sweeps(
    args: &Args,
    recorder: &Recorder<'_>,
    sweeps: &[Sweep],
    style: Style,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let about = About {
        command: quoted(&args.command),
        kernel: recorder.prepared.kernel().release.clone(),
        user_only: args.user,
    };
    let Some((_, any)) = sweeps.iter().flat_map(|s| &s.steps).next() else {
        return Ok(Outcome::NothingMatched);
    };
    let all = cost::sweeps_for_programs(sweeps);
    if let Some(file) = &args.output {
        write(file, &page::render(&about, sweeps)?, recorder.progress)?;
    }
    write_csv(args, &all, recorder.progress)?;
    if args.json {
        let value = json!({
            "run": {
                "command": args.command, "kernel": about.kernel, "user_only": about.user_only,
                "instructions": any.instructions, "duration_ns": any.duration_ns,
            },
            "rows": all.to_json(),
        });
        print_json(&value, out)?;
        return Ok(Outcome::Done);
    }
    let recordings = match distinct(&args.plan()).len() {
        1 => String::new(),
        n => format!(", the same in all {n} recordings"),
    };
    writeln!(
        out,
        "{} on {}\n{} instructions{} in {} (guest-virtual clock){recordings}",
        about.command,
        about.kernel,
        grouped(any.instructions),
        if args.user { " of user code" } else { "" },
        duration(any.duration_ns),
    )?;
    for (sweep, trf) in sweeps.iter().zip(cost::resolutions(sweeps)) {
        writeln!(out, "\n{}", style.bold(sweep.setting.name()))?;
        write!(out, "{}", cost::sweep_table(sweep, &trf).to_text(style))?;
    }
    Ok(Outcome::Done)
}

fn show_runs(args: &Args, style: Style, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let mut costs = Vec::new();
    for path in &args.input {
        progress.step(&format!("measuring {}", path.display()));
        let run = Run::open(path)?;
        costs.push(measure(&run, path.display().to_string())?);
    }
    progress.clear();
    for cost in costs.iter().filter(|c| c.decode_errors > 0) {
        progress.say(&format!("kprism: note: {}: {} decode errors", cost.name, grouped(cost.decode_errors)));
    }
    let all = cost::runs_for_programs(&costs);
    write_csv(args, &all, progress)?;
    if args.json {
        print_json(&json!({ "rows": all.to_json() }), out)?;
        return Ok(Outcome::Done);
    }
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
    fs::write(file, text).with_context(|| file.display().to_string())?;
    progress.say(&format!("wrote {}", file.display()));
    Ok(())
}
