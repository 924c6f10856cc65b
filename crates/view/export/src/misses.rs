// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLB misses of a run: the tables of [`kprism_report::tlb`] as text, JSON and CSV, and all of it as a page.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_profile::Filter;
use kprism_report::{Shown, Table, tlb};
use kprism_session::tlb::{Loaded, Method};
use kprism_session::{Progress, files, held};
use kprism_store::{Account, Instrument, Run};

/// A view of misses.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Its name; an overview if none.
    pub name: Option<&'a str>,
    /// Tasks.
    pub filter: &'a Filter,
    /// Output of `perf stat -x,`, for `counters`.
    pub counters: Option<&'a Path>,
}

/// Why misses without the hits between them cannot be replayed.
const NO_ADVICE: &str = "advice needs the hits too, and traces of the bus and samples have only misses; record with --method model";

/// Why chosen misses cannot be replayed.
const NO_ADVICE_OF_CHOSEN: &str = "advice needs every miss and the hits too, and this run has only the misses that meet its condition; record without --if";

const VIEWS: &str = "objects, functions, processes, threads, pages, heat, distribution, advice or counters";

/// Writes a view of a run's misses. Returns true if it has no row, and the account of what was read.
///
/// # Errors
/// The run holds no misses, or none that the view could show; there is no such view or column.
pub fn show(
    input: &Path,
    view: &View<'_>,
    shown: &Shown<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<(bool, Account)> {
    let run = Run::open(input)?;
    if !run.holds(Instrument::Tlb) {
        return Err(held::missing(&run, Instrument::Tlb));
    }
    progress.step("reading the misses");
    let mut loaded = Loaded::open(&run)?;
    let geometries = loaded.geometries()?;
    let profile = loaded.profile()?;
    let tgid = match view.filter.pids.as_slice() {
        [] => None,
        [one] => Some(*one),
        _ => bail!("--task once, for `distribution` or `counters`"),
    };
    let of_one = matches!(view.name, Some("distribution" | "counters"));
    if !view.filter.comms.is_empty() || tgid.is_some() && !of_one {
        bail!("--task goes with `report tlb distribution` and `counters` only, --comm with none of `tlb`");
    }
    if view.counters.is_some() != (view.name == Some("counters")) {
        bail!("`report tlb counters` and --counters FILE go together; FILE is of `perf stat -x, -o FILE`");
    }
    let names: Vec<&str> = geometries.iter().map(|g| g.name.as_str()).collect();
    loaded.name_objects()?;
    let on_bus = loaded.method() == Method::Bus;
    // Before the views: their remarks are no damage.
    let account = loaded.account(&profile);
    progress.shown(&account);
    let tables: Vec<(&str, Table)> = match view.name {
        None => {
            let mut all = Vec::new();
            if !geometries.is_empty() {
                all.push(("geometries", tlb::summary(&profile, &geometries, &loaded.counts)));
            }
            all.push(("objects", tlb::objects(&profile, &names, &loaded.objects)));
            if !on_bus {
                all.push(("functions", tlb::functions(&profile, &names, &loaded.symbols()?)));
            }
            all.push(("processes", tlb::tasks(&profile, &names, &loaded.comms(), false)));
            all
        }
        Some("functions" | "threads") if on_bus => {
            bail!(
                "a bus shows which page was walked to, not by which instruction or thread: objects, processes or pages do"
            )
        }
        Some("objects") => vec![("objects", tlb::objects(&profile, &names, &loaded.objects))],
        Some("functions") => vec![("functions", tlb::functions(&profile, &names, &loaded.symbols()?))],
        Some("processes") => vec![("processes", tlb::tasks(&profile, &names, &loaded.comms(), false))],
        Some("threads") => vec![("threads", tlb::tasks(&profile, &names, &loaded.comms(), true))],
        Some("pages") => vec![("pages", tlb::pages(&profile, &mut loaded.objects))],
        Some("heat") => {
            progress.step("placing the misses");
            let heat = loaded.heat(&profile)?;
            let table = match shown.json || shown.csv {
                true => tlb::heat_cells(&heat, &loaded.objects),
                false => tlb::heat_picture(&heat, &loaded.objects),
            };
            vec![("heat", table)]
        }
        Some("distribution") => vec![("distribution", tlb::distribution(&profile, tgid))],
        Some("advice") if geometries.is_empty() => bail!(NO_ADVICE),
        Some("advice") if loaded.is_chosen() => bail!(NO_ADVICE_OF_CHOSEN),
        Some("counters") if loaded.is_chosen() => {
            bail!(
                "a processor counts all misses, and this run has only those that meet its condition; record without --if"
            )
        }
        Some("advice") => {
            let advice = loaded.advice(&profile, progress)?;
            let table = tlb::advice(&advice.predictions, &advice.now, &loaded.objects, &advice.begun);
            vec![("advice", table)]
        }
        Some("counters") => {
            let path = view.counters.context("expected --counters FILE")?;
            let text = String::from_utf8_lossy(&files::read(path)?).into_owned();
            let counters = kprism_tlb::counters::parse(&text).with_context(|| path.display().to_string())?;
            let sums = loaded.counters(&counters, tgid)?;
            vec![("counters", tlb::counters(&counters, &sums, &geometries))]
        }
        Some(other) => bail!("no view {other:?}; there are {VIEWS}"),
    };
    progress.clear();
    for note in &loaded.notes {
        progress.note(note);
    }
    let Loaded { manifest, counts, .. } = &loaded;
    let mut report = tlb::Report { manifest, geometries: &geometries, counts, account: &account, tables };
    let empty = report.is_empty();
    report.arrange(shown.sort, shown.rows)?;
    if shown.json {
        serde_json::to_writer_pretty(&mut *out, &report.to_json())?;
        writeln!(out)?;
    } else if shown.csv {
        let [(_, table)] = report.tables.as_slice() else { bail!("--csv needs one view: {VIEWS}") };
        write!(out, "{}", table.to_csv())?;
    } else {
        write!(out, "{}", report.to_text(shown.style))?;
    }
    Ok((empty, account))
}

/// One HTML file with a run's misses: a map, the objects, the curves, the advice, functions and processes; and the account of what
/// was read for it. Remarks go to `progress` too.
///
/// # Errors
/// The run holds no misses, or its streams do not begin as such.
pub fn page(run: &Run, progress: &Progress) -> Result<(String, Account)> {
    if !run.holds(Instrument::Tlb) {
        return Err(held::missing(run, Instrument::Tlb));
    }
    progress.step("reading the misses");
    let mut loaded = Loaded::open(run)?;
    let geometries = loaded.geometries()?;
    let profile = loaded.profile()?;
    loaded.name_objects()?;
    progress.step("placing the misses");
    let (map, touched) = loaded.map(&profile)?;
    // Before the advice: its remarks are no damage.
    let account = loaded.account(&profile);
    progress.shown(&account);
    let advice = match (geometries.is_empty(), loaded.is_chosen()) {
        (true, _) => Err(NO_ADVICE.to_owned()),
        (false, true) => Err(NO_ADVICE_OF_CHOSEN.to_owned()),
        (false, false) => {
            let advice = loaded.advice(&profile, progress)?;
            Ok(tlb::advice(&advice.predictions, &advice.now, &loaded.objects, &advice.begun))
        }
    };
    let names: Vec<&str> = geometries.iter().map(|g| g.name.as_str()).collect();
    let comms = loaded.comms();
    let mut tables = Vec::new();
    if !geometries.is_empty() {
        let about = "References, and misses of the first and of the last level, by model.";
        tables.push(("geometries", about, tlb::summary(&profile, &geometries, &loaded.counts)));
    }
    if loaded.method() != Method::Bus {
        let about = "Functions whose instructions missed.";
        tables.push(("functions", about, tlb::functions(&profile, &names, &loaded.symbols()?)));
    }
    tables.push(("processes", "Processes that missed.", tlb::tasks(&profile, &names, &comms, false)));
    progress.clear();
    for note in &loaded.notes {
        progress.note(note);
    }
    let page = tlb::page::render(&tlb::page::Input {
        manifest: &loaded.manifest,
        geometries: &geometries,
        counts: &loaded.counts,
        account: &account,
        notes: &loaded.notes,
        profile: &profile,
        objects: &loaded.objects,
        map: &map,
        touched: &touched,
        comms: &comms,
        tables,
        advice,
    });
    Ok((page.context("HTML page")?, account))
}
