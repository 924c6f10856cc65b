// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report delta`: intervals between markers, those kept with the run or others measured now.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use kprism_flow::delta::Spec;
use kprism_profile::{Profile, Scope};
use kprism_report::deltas;
use kprism_report::header::Header;
use kprism_store::Run;
use serde_json::json;

use super::report::{print_json, write_html};
use super::shown::Shown;
use crate::exit::Outcome;
use kprism_session::Progress;
use kprism_session::flow;

/// Options of `kprism report delta`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Intervals (report delta)")]
pub struct DeltaArgs {
    /// Measure from this marker on ...
    #[arg(long, value_name = "MARKER", requires = "to")]
    pub from: Option<String>,
    /// ... to this one: `cli`, `pushf; pop *; cli`, `func:NAME`, `ret:NAME`, `irqs-off`, `syscall`, ...
    #[arg(long, value_name = "MARKER", requires = "from")]
    pub to: Option<String>,
    /// Whose instructions and time count; found out from the markers if not given
    #[arg(long, value_enum, value_name = "WHOSE", requires = "from")]
    pub per: Option<Per>,
    /// A beginning inside an interval begins one of its own
    #[arg(long, requires = "from")]
    pub nested: bool,
    /// Count how often these instructions run, by function (can be repeated)
    #[arg(long, value_name = "INSTRUCTIONS")]
    pub count: Vec<String>,
    /// Print as CSV: the bins of the histograms of `delta`, all columns of `func`
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Per {
    /// The CPU's, whatever runs on it
    Cpu,
    /// The task's, wherever it runs
    Task,
}

impl DeltaArgs {
    /// Whether the run has to be decoded for it.
    fn measures(&self) -> bool {
        self.from.is_some() || !self.count.is_empty()
    }

    fn spec(&self) -> Option<Spec> {
        let (from, to) = (self.from.clone()?, self.to.clone()?);
        let scope = self.per.map(|per| match per {
            Per::Cpu => Scope::Cpu,
            Per::Task => Scope::Task,
        });
        Some(Spec { name: "delta".to_owned(), from, to, scope, nested: self.nested })
    }
}

/// Shows the intervals of this name, or all; or writes the report to `html` instead, with these intervals in it.
pub fn run(
    input: &Path,
    args: &DeltaArgs,
    (name, html): (Option<&str>, Option<&Path>),
    shown: &Shown<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let (run, profile, manifest) = if args.measures() {
        let run = Run::open(input)?;
        let mut specs: Vec<Spec> = args.spec().into_iter().collect();
        if html.is_some() {
            specs.extend(Spec::standard());
        }
        let (profile, manifest) = kprism_session::deltas::measure(&run, &specs, &args.count, progress)?;
        (run, profile, manifest)
    } else {
        flow::open(input, progress)?
    };
    progress.clear();
    if let Some(file) = html {
        let occurred = !args.measures() || profile.deltas.first().is_some_and(|d| d.ns.count > 0);
        write_html(&run, file, &manifest, &profile, progress)?;
        return Ok(if occurred { Outcome::Done } else { Outcome::NothingMatched });
    }
    let header = Header::new(&manifest, &profile);
    if args.measures() || name.is_some() {
        return details(&profile, args, name, shown, &header, out);
    }
    let mut table = deltas::summary(&profile);
    table.rows.retain(|row| row[0] != kprism_report::table::Cell::Int(0));
    let outcome = shown.arrange(&mut table)?;
    if shown.json {
        let all: Vec<_> = profile.deltas.iter().map(|d| deltas::to_json(&profile, d)).collect();
        print_json(&json!({"run": header.to_json(), "deltas": all}), out)?;
    } else if args.csv {
        bail!("--csv prints the bins of one kind of interval: name it");
    } else {
        write!(out, "{}\n{}", header.to_text(&profile, shown.style), table.to_text(shown.style))?;
        write!(out, "\n{}", header.account_text(shown.style))?;
    }
    Ok(outcome)
}

/// One kind of interval, and the executions counted.
fn details(
    profile: &Profile,
    args: &DeltaArgs,
    name: Option<&str>,
    shown: &Shown<'_>,
    header: &Header,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let delta = match name {
        None => profile.deltas.first(),
        Some(name) => match profile.deltas.iter().find(|d| d.name == name) {
            Some(delta) => Some(delta),
            None => {
                let known: Vec<&str> = profile.deltas.iter().map(|d| d.name.as_str()).collect();
                bail!("no interval {name:?}; there are: {}", known.join(", "));
            }
        },
    };
    let found = delta.is_some_and(|d| d.ns.count > 0) || !profile.counts.is_empty();
    let mut counts = deltas::counts(profile);
    if shown.json {
        let delta = delta.map(|d| deltas::to_json(profile, d));
        print_json(&json!({"run": header.to_json(), "delta": delta, "counts": counts.to_json()}), out)?;
    } else if args.csv {
        let table = delta.map_or(counts, deltas::bins);
        out.write_all(table.to_csv().as_bytes())?;
    } else {
        writeln!(out, "{}", header.to_text(profile, shown.style))?;
        if let Some(delta) = delta {
            write!(out, "{}", deltas::to_text(profile, delta, shown.rows, shown.style))?;
        }
        if !args.count.is_empty() {
            if shown.rows > 0 {
                counts.limit(shown.rows);
            }
            write!(out, "{}", counts.to_text(shown.style))?;
        }
        write!(out, "\n{}", header.account_text(shown.style))?;
    }
    Ok(if found { Outcome::Done } else { Outcome::NothingMatched })
}
