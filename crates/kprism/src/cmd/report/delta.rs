// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report delta`: intervals between markers, those kept with the run or others measured now.

use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Result, bail};
use kprism_flow::delta::Spec;
use kprism_profile::{Delta, Filter, Profile, Scope, parse, units};
use kprism_report::deltas::{self, Choice};
use kprism_report::header::Header;
use kprism_session::deltas::measure;
use kprism_session::open_profile;
use kprism_store::Run;
use serde_json::json;

use super::flow::needs_a_flow;
use crate::cmd::output::{self, FormArgs, Io, Shown, print_json, write_html};
use crate::exit::Outcome;

/// Rows of each list about one kind of interval, unless told otherwise.
const ROWS: usize = 12;

/// Of a run whose tables have the longest intervals only, and which cannot be decoded again.
const ONLY_THE_LONGEST: &str = "all intervals are not known, only the longest";

/// Options of `kprism report delta`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which of the intervals; a summary of all if not given
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    form: FormArgs,
    /// Write the report as one HTML file instead, with these intervals in it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv", "limit", "name", "list"])]
    html: Option<PathBuf>,
    /// Measure from this marker on ...
    #[arg(long, value_name = "MARKER", requires = "to")]
    from: Option<String>,
    /// ... to this one: `cli`, `pushf; pop *; cli`, `func:NAME`, `ret:NAME`, `irqs-off`, `syscall`, ...
    #[arg(long, value_name = "MARKER", requires = "from")]
    to: Option<String>,
    /// Whose instructions and time count; found out from the markers if not given
    #[arg(long, value_enum, value_name = "WHOSE", requires = "from")]
    per: Option<Per>,
    /// A beginning inside an interval begins one of its own
    #[arg(long, requires = "from")]
    nested: bool,
    /// Count how often these instructions run, by function (can be repeated)
    #[arg(long, value_name = "INSTRUCTIONS")]
    count: Vec<String>,
    /// List all intervals of this kind, in order of time, instead of histograms
    #[arg(long, conflicts_with = "count")]
    list: bool,
    /// With --list: sort by this column, from large to small; `-COLUMN` turns it round
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true, requires = "list")]
    sort: Option<String>,
    /// With --list: only on this CPU (can be repeated)
    #[arg(long = "cpu", value_name = "N", requires = "list")]
    cpus: Vec<u16>,
    /// With --list: only in this process or thread id (can be repeated)
    #[arg(long = "task", value_name = "PID", requires = "list")]
    pids: Vec<u32>,
    /// With --list: only in tasks of this name, `*` and `?` allowed (can be repeated)
    #[arg(long = "comm", value_name = "GLOB", requires = "list")]
    comms: Vec<String>,
    /// With --list: only those that end at this time or later: seconds, or a number with ns, us, ms, s
    #[arg(long, value_name = "TIME", value_parser = parse::time_ns, requires = "list")]
    since: Option<u64>,
    /// With --list: only those that begin before this time
    #[arg(long, value_name = "TIME", value_parser = parse::time_ns, requires = "list")]
    until: Option<u64>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Per {
    /// The CPU's, whatever runs on it
    Cpu,
    /// The task's, wherever it runs
    Task,
}

impl Args {
    /// Whether the run has to be decoded for it.
    fn measures(&self) -> bool {
        self.from.is_some() || !self.count.is_empty()
    }

    /// The time of which all intervals are wanted, not only the longest: of the list, and of `--limit 0` where the longest are shown.
    fn all_of(&self) -> Option<Range<u64>> {
        let all = self.list || self.form.limit == Some(0) && !self.form.csv;
        all.then(|| self.since.unwrap_or(0)..self.until.unwrap_or(u64::MAX))
    }

    fn choice(&self, time: Range<u64>) -> Choice {
        let tasks = Filter { pids: self.pids.clone(), comms: self.comms.clone() };
        Choice { tasks, cpus: self.cpus.clone(), time }
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

/// Shows the intervals of a name, or all; or writes the report with these intervals in it.
pub fn run(args: &Args, io: &mut Io<'_>) -> Result<Outcome> {
    needs_a_flow(io)?;
    if args.list && args.name.is_none() && args.from.is_none() {
        bail!("--list is about one kind of interval: name it, or give its markers with --from and --to");
    }
    let (input, progress, html) = (io.input, io.progress, args.html.as_deref());
    let shown = &args.form.shown(ROWS, io.style);
    let (run, profile, manifest) = if args.measures() {
        let run = Run::open(input)?;
        let mut specs: Vec<Spec> = args.spec().into_iter().collect();
        if html.is_some() {
            specs.extend(Spec::standard());
        }
        let (profile, manifest) = measure(&run, &specs, &args.count, args.all_of(), progress)?;
        (run, profile, manifest)
    } else {
        let (run, profile, manifest) = open_profile(input, progress)?;
        match lacking(args, &profile) {
            // The run's tables have the longest intervals only.
            Some(spec) => match measure(&run, &[spec], &[], args.all_of(), progress) {
                Ok((profile, manifest)) => (run, profile, manifest),
                Err(error) if args.list => return Err(error.context(ONLY_THE_LONGEST)),
                Err(error) => {
                    progress.note(&format!("{ONLY_THE_LONGEST}: {error:#}"));
                    (run, profile, manifest)
                }
            },
            None => (run, profile, manifest),
        }
    };
    progress.clear();
    if let Some(file) = html {
        let occurred = !args.measures() || profile.deltas.first().is_some_and(|d| d.ns.count > 0);
        write_html(&run, file, &manifest, &profile, progress)?;
        return Ok(if occurred { Outcome::Done } else { Outcome::NothingMatched });
    }
    let header = Header::new(&manifest, &profile);
    let mut notes: Vec<&'static str> = Vec::new();
    for delta in profile.deltas.iter().filter(|d| args.name.as_ref().is_none_or(|name| *name == d.name)) {
        let remark = kprism_session::deltas::remark(&run, &manifest, &delta.name)?;
        if let Some(remark) = remark
            && !notes.contains(&remark)
        {
            notes.push(remark);
        }
    }
    if let Some(time) = args.all_of().filter(|_| args.list) {
        return list(&profile, args, time, &header, &notes, io);
    }
    if args.measures() || args.name.is_some() {
        return details(&profile, args, shown, &header, &notes, io);
    }
    let mut table = deltas::summary(&profile);
    table.rows.retain(|row| row[0] != kprism_report::table::Cell::Int(0));
    let outcome = Outcome::of_rows(shown.arrange(&mut table)?);
    if shown.json {
        let most = if shown.rows == 0 { usize::MAX } else { shown.rows };
        let all: Vec<_> =
            profile.deltas.iter().take(most).map(|d| deltas::to_json(&profile, d, 0).0).collect();
        let hidden = profile.deltas.len() - all.len();
        let run = header.to_json();
        print_json(&json!({"run": run, "rows": all, "hidden": hidden, "notes": notes}), io.out)?;
    } else if shown.csv {
        bail!("--csv prints the bins of one kind of interval: name it");
    } else {
        write!(io.out, "{}\n{}", header.to_text(&profile, shown.style), table.to_text(shown.style))?;
        write!(io.out, "{}{}", lines(&notes), header.account_text(shown.style))?;
    }
    Ok(outcome)
}

/// The kind to measure now, if all its intervals are wanted and the profile has not all of them.
fn lacking(args: &Args, profile: &Profile) -> Option<Spec> {
    args.all_of()?;
    let name = args.name.as_deref()?;
    profile.deltas.iter().find(|d| d.name == name && d.known().is_none())?;
    Spec::standard().into_iter().find(|spec| spec.name == name)
}

/// The kind that is named, or the one measured.
fn chosen<'a>(profile: &'a Profile, args: &Args) -> Result<Option<&'a Delta>> {
    let Some(name) = &args.name else { return Ok(profile.deltas.first()) };
    let Some(delta) = profile.deltas.iter().find(|d| d.name == *name) else {
        let known: Vec<&str> = profile.deltas.iter().map(|d| d.name.as_str()).collect();
        bail!("no interval {name:?}; there are: {}", known.join(", "));
    };
    Ok(Some(delta))
}

/// Notes as lines of text.
fn lines(notes: &[&str]) -> String {
    notes.iter().map(|note| format!("note: {note}\n")).collect()
}

/// All intervals of one kind.
fn list(
    profile: &Profile,
    args: &Args,
    time: Range<u64>,
    header: &Header,
    notes: &[&str],
    io: &mut Io<'_>,
) -> Result<Outcome> {
    let shown = Shown { sort: args.sort.as_deref(), ..args.form.shown(output::ROWS, io.style) };
    let Some(delta) = chosen(profile, args)? else {
        bail!("no interval was measured");
    };
    let Some((mut table, beyond)) = deltas::list(profile, delta, &args.choice(time)) else {
        bail!("{}: {ONLY_THE_LONGEST}", delta.name);
    };
    let empty = shown.arrange(&mut table)?;
    if shown.json {
        let (run, rows, hidden) = (header.to_json(), table.to_json(), table.hidden);
        let (name, scope) = (&delta.name, delta.scope);
        let value = json!({
            "run": run, "name": name, "from": delta.from, "to": delta.to, "scope": scope,
            "rows": rows, "hidden": hidden, "beyond": beyond, "notes": notes,
        });
        print_json(&value, io.out)?;
    } else if shown.csv {
        io.out.write_all(table.to_csv().as_bytes())?;
    } else {
        writeln!(io.out, "{}", header.to_text(profile, shown.style))?;
        write!(io.out, "{}{}", deltas::title(delta, shown.style), table.to_text(shown.style))?;
        write!(io.out, "{}{}", lines(notes), header.account_text(shown.style))?;
    }
    if beyond > 0 {
        let more = units::grouped(beyond);
        io.progress.note(&format!(
            "the list was full: {more} intervals are not in it: give a time with --since, --until"
        ));
    }
    Ok(Outcome::of_rows(empty))
}

/// One kind of interval, and the executions counted.
fn details(
    profile: &Profile,
    args: &Args,
    shown: &Shown<'_>,
    header: &Header,
    notes: &[&str],
    io: &mut Io<'_>,
) -> Result<Outcome> {
    let delta = chosen(profile, args)?;
    let found = delta.is_some_and(|d| d.ns.count > 0) || !profile.counts.is_empty();
    let mut counts = deltas::counts(profile);
    if shown.rows > 0 {
        counts.limit(shown.rows);
    }
    if shown.json {
        let (delta, hidden) = match delta.map(|d| deltas::to_json(profile, d, shown.rows)) {
            Some((delta, hidden)) => (Some(delta), hidden),
            None => (None, 0),
        };
        let hidden = hidden + counts.hidden;
        let run = header.to_json();
        print_json(
            &json!({"run": run, "delta": delta, "counts": counts.to_json(), "hidden": hidden, "notes": notes}),
            io.out,
        )?;
    } else if shown.csv {
        let mut table = delta.map_or(counts, deltas::bins);
        shown.arrange(&mut table)?;
        io.out.write_all(table.to_csv().as_bytes())?;
    } else {
        writeln!(io.out, "{}", header.to_text(profile, shown.style))?;
        if let Some(delta) = delta {
            write!(io.out, "{}", deltas::to_text(profile, delta, shown.rows, shown.style))?;
        }
        if !args.count.is_empty() {
            write!(io.out, "{}", counts.to_text(shown.style))?;
        }
        write!(io.out, "{}{}", lines(notes), header.account_text(shown.style))?;
    }
    Ok(if found { Outcome::Done } else { Outcome::NothingMatched })
}
