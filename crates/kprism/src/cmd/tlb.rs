// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report tlb`: what missed the TLBs, whose memory that was, and what larger pages would save.
//!
//! In: a run's `streams/tlb/`, sideband and symbols. Out: tables.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_image::sideband::Record;
use kprism_image::symbols::Symbols;
use kprism_profile::units;
use kprism_report::{Style, Table, header, tlb};
use kprism_store::{Account, Instrument, Manifest, MissRow, Run, save_tlb_misses};
use kprism_tlb::geometry::PageSize;
use kprism_tlb::heat::Heat;
use kprism_tlb::objects::Objects;
use kprism_tlb::profile::{Context as Place, Profile, for_each};
use kprism_tlb::stream::{Event, Reader, StreamError};
use kprism_tlb::whatif::{self, ByObject, Change};
use kprism_tlb::{Geometry, presets};
use serde_json::{Value, json};

use super::report::{Select, print_json};
use super::tlb_sites::Sites;
use crate::exit::Outcome;
use kprism_session::Progress;
use kprism_session::flow;
use kprism_session::held;
use kprism_session::tlb_account;

/// What to show and how.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Which view; an overview if none.
    pub name: Option<&'a str>,
    /// Rows at most, if asked for; 0 is all.
    pub rows: Option<usize>,
    /// Column to sort by.
    pub sort: Option<&'a str>,
    /// Tasks.
    pub select: &'a Select,
    /// What `perf stat -x,` wrote, for `counters`.
    pub counters: Option<&'a Path>,
    /// As JSON.
    pub json: bool,
    /// As CSV.
    pub csv: bool,
    /// Colours.
    pub style: Style,
}

/// Of the heat map: objects, bands of each, bins of time.
const HOTTEST: usize = 5;
const BANDS: usize = 8;
const BINS: usize = 64;
/// Rows of a view, and of each list of the overview, unless told otherwise.
const ROWS: usize = 40;
const OVERVIEW: usize = 12;
/// Objects whose pages are changed one by one for `advice`.
const CANDIDATES: usize = 8;
const VIEWS: &str = "objects, functions, processes, threads, pages, heat, distribution, advice or counters";

/// A run's misses and what names them.
pub(super) struct Loaded {
    manifest: Manifest,
    streams: Vec<Vec<u8>>,
    pub(super) records: Vec<Record>,
    objects: Objects,
    pub(super) counts: Value,
    pub(super) notes: Vec<String>,
    /// Allocations whose caller is not known.
    nameless: u64,
}

impl Loaded {
    pub(super) fn new(run: &Run) -> Result<Self> {
        let mut manifest = run.manifest()?;
        flow::complete(run, &mut manifest)?;
        let mut notes = Vec::new();
        let records = flow::sideband_records(run, &mut notes)?;
        let mut streams = Vec::new();
        for cpu in 0..manifest.vcpus {
            let path = run.tlb_misses(cpu);
            let bytes =
                flow::read(&path).context("no TLB misses here; record them with `kprism record tlb`")?;
            streams.push(bytes);
        }
        let root = run.root();
        let mut objects =
            Objects::new(&records, |path| std::fs::read(root.join(path.trim_start_matches('/'))).ok());
        let allocated = allocations(&streams);
        let nameless = |(_, event): &&(Place, Event)| matches!(event, Event::Alloc(a) if a.frames[0] == 0);
        let nameless = allocated.iter().filter(nameless).count() as u64;
        objects.allocated(allocated);
        let counts = flow::read_if_there(&run.tlb_counts())?;
        let counts: Value = serde_json::from_slice(&counts).unwrap_or_default();
        // Of a recording that was imported.
        notes.extend(
            counts["notes"].as_array().into_iter().flatten().filter_map(|n| n.as_str()).map(Into::into),
        );
        Ok(Loaded { manifest, streams, records, objects, counts, notes, nameless })
    }

    pub(super) fn readers(&self) -> Result<Vec<Reader<'_>>> {
        let mut readers = Vec::new();
        for (cpu, bytes) in self.streams.iter().enumerate() {
            readers.push(Reader::new(bytes).with_context(|| format!("streams/tlb/cpu{cpu}.miss"))?);
        }
        Ok(readers)
    }

    pub(super) fn geometries(&self) -> Result<Vec<Geometry>> {
        Ok(self.readers()?.first().map(|r| r.header().geometries.clone()).unwrap_or_default())
    }

    /// A stream that was cut short is used up to there.
    fn note(&mut self, cpu: usize, result: Result<(), StreamError>) {
        if let Err(e) = result {
            let note = format!("streams/tlb/cpu{cpu}.miss: {e}; what came before is used");
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// What was seen, kept and lost.
    fn account(&self, profile: &Profile) -> Account {
        let read = tlb_account::Read {
            misses: profile.all()[0],
            nameless: self.nameless,
            damage: self.notes.clone(),
        };
        tlb_account::account(&self.counts, &read)
    }

    pub(super) fn profile(&mut self) -> Result<Profile> {
        let mut profile = Profile::default();
        let mut objects = std::mem::take(&mut self.objects);
        let results: Vec<_> = self.readers()?.into_iter().map(|r| profile.add(r, &mut objects)).collect();
        self.objects = objects;
        results.into_iter().enumerate().for_each(|(cpu, result)| self.note(cpu, result));
        Ok(profile)
    }

    /// The objects that miss most, over address and time.
    fn heat(&mut self, profile: &Profile) -> Result<Heat> {
        let mut objects = std::mem::take(&mut self.objects);
        let mut heat = Heat::new(profile, HOTTEST, BANDS, BINS);
        let results: Vec<_> = self.readers()?.into_iter().map(|r| heat.add(r, &mut objects)).collect();
        self.objects = objects;
        results.into_iter().enumerate().for_each(|(cpu, result)| self.note(cpu, result));
        Ok(heat)
    }

    /// Misses by object after each of some changes.
    fn replay(&mut self, geometry: &Geometry, changes: &[Change]) -> Result<Vec<ByObject>> {
        let mut misses = vec![ByObject::new(); changes.len()];
        let mut objects = std::mem::take(&mut self.objects);
        let results: Vec<_> = self
            .readers()?
            .into_iter()
            .map(|r| whatif::replay(r, geometry, &mut objects, changes, &mut misses))
            .collect();
        self.objects = objects;
        results.into_iter().enumerate().for_each(|(cpu, result)| self.note(cpu, result));
        Ok(misses)
    }

    /// Names of tasks, the last one each had.
    fn comms(&self) -> HashMap<u32, String> {
        let mut comms = HashMap::new();
        for record in &self.records {
            match record {
                Record::Switch(s) => {
                    comms.insert(s.prev_pid, s.prev_comm.clone());
                    comms.insert(s.pid, s.comm.clone());
                }
                Record::Comm(c) => {
                    comms.insert(c.pid, c.comm.clone());
                }
                _ => {}
            }
        }
        comms
    }
}

/// What programs allocated and gave back, in order of time. A stream's damage is named elsewhere.
fn allocations(streams: &[Vec<u8>]) -> Vec<(Place, Event)> {
    let mut all = Vec::new();
    for reader in streams.iter().filter_map(|bytes| Reader::new(bytes).ok()) {
        let mut place = Place::default();
        for event in reader.map_while(Result::ok) {
            place.follow(&event);
            if matches!(event, Event::Alloc(_) | Event::Free { .. }) {
                all.push((place, event));
            }
        }
    }
    all.sort_by_key(|(place, _)| place.ns);
    all
}

/// Writes the table `tlb_misses` and says what there is.
pub fn save(run: &Run) -> Result<String> {
    let mut loaded = Loaded::new(run)?;
    let mut rows_of = Vec::new();
    for (cpu, reader) in loaded.readers()?.into_iter().enumerate() {
        rows_of.push(rows(cpu as u32, reader));
    }
    let saved = save_tlb_misses(run, rows_of.into_iter().flatten());
    let profile = loaded.profile()?;
    let all = profile.all();
    let mut text = String::new();
    // Reports need no table, and a full disk must not keep anybody from seeing them.
    if let Err(why) = saved {
        fs::remove_dir_all(run.tables()).ok();
        text += &format!("note: the table tlb_misses is not kept: {why}\n");
    }
    for (geometry, misses) in loaded.geometries()?.iter().zip(all) {
        text += &format!("{}: {} misses\n", geometry.name, units::grouped(misses));
    }
    if loaded.counts["method"] == "sampled" {
        text += &format!(
            "sampled: about {} misses, by {} samples\n",
            units::grouped(all[0]),
            units::grouped(loaded.counts["samples"].as_u64().unwrap_or(0))
        );
    } else if loaded.geometries()?.is_empty() {
        text += &format!("off the bus: {} misses\n", units::grouped(all[0]));
    }
    for note in &loaded.notes {
        text += &format!("note: {note}\n");
    }
    let account = loaded.account(&profile);
    if !account.is_whole() {
        text += &header::account_text(Some(&account), Style::default());
    }
    let mut manifest = run.manifest()?;
    manifest.accounts.insert(Instrument::Tlb, account);
    run.write_manifest(&manifest)?;
    let place = run.dir().display();
    let input = if run.dir() == Path::new(kprism_session::DEFAULT_RUN) {
        String::new()
    } else {
        format!(" -i {place}")
    };
    text += &format!("recorded in {place}; see: kprism report tlb{input}");
    Ok(text)
}

/// Misses of the last level. Ends at damage, which [`Loaded::profile`] names.
fn rows(cpu: u32, reader: Reader<'_>) -> impl Iterator<Item = MissRow> {
    let (mut place, mut entry) = (Place::default(), None);
    reader.map_while(Result::ok).filter_map(move |event| {
        place.follow(&event);
        if let Event::Entry(at) = event {
            entry = Some(at);
        }
        let Event::Miss(m) = event else { return None };
        let pte = entry.take();
        (m.last != 0).then(|| MissRow {
            time_ns: m.ns,
            cpu,
            pid: place.pid,
            tgid: place.tgid,
            space: place.space,
            va: m.va,
            page_bytes: m.size.bytes(),
            pte,
            ip: m.ip,
            access: m.access as u32,
            geometries: m.last.into(),
        })
    })
}

/// Shows it.
pub fn run(input: &Path, view: &View<'_>, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let run = Run::open(input)?;
    if !run.holds(Instrument::Tlb) {
        return Err(held::lacks(&run, Instrument::Tlb));
    }
    progress.step("reading the misses");
    let mut loaded = Loaded::new(&run)?;
    let geometries = loaded.geometries()?;
    let profile = loaded.profile()?;
    let tgid = match view.select.pids.as_slice() {
        [] => None,
        [one] => Some(*one),
        _ => bail!("--task once, for `distribution` or `counters`"),
    };
    let of_one = matches!(view.name, Some("distribution" | "counters"));
    if !view.select.comms.is_empty() || tgid.is_some() && !of_one {
        bail!("--task goes with `report tlb distribution` and `counters` only, --comm with none of `tlb`");
    }
    if view.counters.is_some() != (view.name == Some("counters")) {
        bail!("`report tlb counters` and --counters FILE go together; FILE is of `perf stat -x, -o FILE`");
    }
    let n = geometries.len();
    let names: Vec<&str> = geometries.iter().map(|g| g.name.as_str()).collect();
    let records = loaded.records.clone();
    let symbols = || -> Result<Symbols> {
        let names = flow::read_if_there(&run.kallsyms())?;
        Ok(Symbols::load(&names, &records, Some(&run.root()))?)
    };
    if loaded.objects.all().iter().any(|o| o.site.is_some()) {
        let (symbols, root) = (symbols()?, run.root());
        let mut sites = Sites::new(&symbols, root);
        loaded.objects.name_sites(|site, space| sites.name(site, space));
    }
    let on_bus = loaded.counts["method"] == "ptat";
    let mut tables: Vec<(&str, Table)> = match view.name {
        None => {
            let mut all = Vec::new();
            if n > 0 {
                all.push(("geometries", tlb::summary(&profile, &geometries, &loaded.counts)));
            }
            all.push(("objects", tlb::objects(&profile, &names, &loaded.objects)));
            if !on_bus {
                all.push(("functions", tlb::functions(&profile, &names, &symbols()?)));
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
        Some("functions") => vec![("functions", tlb::functions(&profile, &names, &symbols()?))],
        Some("processes") => vec![("processes", tlb::tasks(&profile, &names, &loaded.comms(), false))],
        Some("threads") => vec![("threads", tlb::tasks(&profile, &names, &loaded.comms(), true))],
        Some("pages") => vec![("pages", tlb::pages(&profile, &mut loaded.objects))],
        Some("heat") => {
            progress.step("placing the misses");
            let heat = loaded.heat(&profile)?;
            let table = match view.json || view.csv {
                true => tlb::heat_cells(&heat, &loaded.objects),
                false => tlb::heat_picture(&heat, &loaded.objects),
            };
            vec![("heat", table)]
        }
        Some("distribution") => vec![("distribution", tlb::distribution(&profile, tgid))],
        Some("advice") if n == 0 => {
            bail!(
                "misses off the bus, or sampled, tell no hits, which a replay needs; record with --method model"
            )
        }
        Some("advice") => vec![("advice", advice(&mut loaded, &profile, &geometries, progress)?)],
        Some("counters") => vec![("counters", counters(&mut loaded, view, tgid, &geometries)?)],
        Some(other) => bail!("no view {other:?}; there are {VIEWS}"),
    };
    progress.clear();
    for note in &loaded.notes {
        progress.say(&format!("kprism: note: {note}"));
    }
    let sampled = loaded.counts["method"] == "sampled";
    if sampled {
        let period = loaded.counts["period"].as_f64().filter(|p| *p >= 1.0).unwrap_or(1.0);
        tables.iter_mut().for_each(|(_, table)| tlb::add_intervals(table, period));
    }
    let empty = tables.iter().all(|(_, t)| t.rows.is_empty());
    let account = loaded.account(&profile);
    for (name, table) in &mut tables {
        if let Some(key) = view.sort {
            table.sort_by(key)?;
        }
        let rows = view.rows.unwrap_or(if view.name.is_none() { OVERVIEW } else { ROWS });
        // Geometries are few, and each is asked for by name.
        if rows > 0 && *name != "geometries" {
            table.limit(rows);
        }
    }
    let heads: Vec<Value> = geometries.iter().map(|g| json!({"name": g.name, "source": g.source})).collect();
    if view.json {
        let source = match geometries.is_empty() {
            true if sampled => "samples",
            true => "bus",
            false => "model",
        };
        let mut value = json!({"command": loaded.manifest.command, "geometries": heads, "source": source,
            "complete": !sampled});
        if sampled {
            value["sampling"] = loaded.counts.clone();
        }
        for (name, table) in &tables {
            value[*name] = table.to_json();
        }
        value["stopped"] = json!(loaded.manifest.stopped);
        value["account"] = json!(account);
        print_json(&value, out)?;
    } else if view.csv {
        let [(_, table)] = tables.as_slice() else { bail!("--csv needs one view: {VIEWS}") };
        write!(out, "{}", table.to_csv())?;
    } else {
        let mut begin = loaded.manifest.command.join(" ");
        if let Some(why) = &loaded.manifest.stopped {
            begin += &view.style.alert(&format!("\nrecording ended early: {}", units::printable(why)));
        }
        if sampled {
            let n = loaded.counts["samples"].as_u64().unwrap_or(0);
            let events: Vec<&str> = loaded.counts["events"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|e| e["event"].as_str())
                .collect();
            writeln!(
                out,
                "{begin}\nsampled, not complete: estimates from {} samples of {}, with 95 % intervals\n",
                units::grouped(n),
                events.join(", ")
            )?;
        } else if names.is_empty() {
            writeln!(out, "{begin}\nevery walk after a miss of the machine's own TLB, off the memory bus\n")?;
        } else {
            writeln!(out, "{begin}\nevery miss of the last level, by models: {}\n", names.join(", "))?;
        }
        for (name, table) in &tables {
            if tables.len() > 1 {
                writeln!(out, "{}", view.style.bold(name))?;
            }
            writeln!(out, "{}", table.to_text(view.style).trim_end())?;
            if tables.len() > 1 {
                writeln!(out)?;
            }
        }
        let gap = if tables.len() > 1 { "" } else { "\n" };
        write!(out, "{gap}{}", header::account_text(Some(&account), view.style))?;
    }
    Ok(if empty { Outcome::NothingMatched } else { Outcome::Done })
}

/// A processor's own counts beside the run's.
fn counters(
    loaded: &mut Loaded,
    view: &View<'_>,
    tgid: Option<u32>,
    geometries: &[Geometry],
) -> Result<Table> {
    let path = view.counters.context("expected --counters FILE")?;
    let text = String::from_utf8_lossy(&flow::read(path)?).into_owned();
    let counters = kprism_tlb::counters::parse(&text).with_context(|| path.display().to_string())?;
    let mut sums = tlb::BySide::default();
    let mut results = Vec::new();
    for reader in loaded.readers()? {
        results.push(for_each(reader, |context, miss| {
            if tgid.is_none_or(|tgid| tgid == context.tgid) {
                sums.add(miss, context.weight());
            }
        }));
    }
    results.into_iter().enumerate().for_each(|(cpu, result)| loaded.note(cpu, result));
    let unknown: Vec<&str> =
        counters.iter().filter(|c| c.accesses().is_none()).map(|c| c.event.as_str()).collect();
    if !unknown.is_empty() {
        loaded.notes.push(format!("not known to count misses of the last level: {}", unknown.join(", ")));
    }
    Ok(tlb::counters(&counters, &sums, geometries))
}

/// Replays the run with larger pages for the objects that miss most.
fn advice(
    loaded: &mut Loaded,
    profile: &Profile,
    geometries: &[Geometry],
    progress: &Progress,
) -> Result<Table> {
    let geometry = geometries.first().cloned().or_else(|| presets::preset(presets::DEFAULT));
    let geometry = geometry.context("the run names no geometry")?;
    let now = loaded.replay(&geometry, &[Change::Nothing])?.pop().unwrap_or_default();
    let recorded = profile.all()[0];
    let replayed: u64 = now.values().sum();
    if recorded != replayed {
        let note = format!("a replay of the run gives {replayed} misses where {recorded} were recorded");
        loaded.notes.push(note);
    }
    let mut candidates: Vec<(u64, u32)> = (0..)
        .zip(loaded.objects.all())
        .filter(|(_, o)| whatif::may_be_huge(o.kind) && o.bytes >= 64 << 10)
        .filter_map(|(number, _)| Some((*now.get(&number)?, number)))
        .collect();
    candidates.sort_by_key(|&(misses, number)| (std::cmp::Reverse(misses), number));
    let mut changes: Vec<Change> =
        candidates.iter().take(CANDIDATES).map(|&(_, number)| Change::One(number, PageSize::M2)).collect();
    changes.extend([Change::All(PageSize::M2), Change::All(PageSize::G1)]);
    progress.step("replaying with larger pages");
    let replays = loaded.replay(&geometry, &changes)?;
    let predictions: Vec<_> = changes
        .into_iter()
        .zip(replays)
        .filter_map(|(change, misses)| match change {
            Change::One(object, size) => Some(tlb::Prediction { object: Some(object), size, misses }),
            Change::All(size) => Some(tlb::Prediction { object: None, size, misses }),
            Change::Nothing => None,
        })
        .collect();
    let mut begun = whatif::Begun::new();
    let mut objects = loaded.objects.clone();
    for reader in loaded.readers()? {
        let _ = whatif::begun(reader, &mut objects, &mut begun);
    }
    let read = |p: &tlb::Prediction| p.object.and_then(|o| begun.get(&o)).is_some_and(|b| b.read > 0);
    if predictions.iter().any(read) {
        loaded.notes.push(
            "`read first`: such ranges were read before they were written. With transparent huge pages the kernel gives them \
             its huge zero page, and at the first write pages of 4K: the saving comes only if the program writes to each \
             range first, or has the memory from hugetlbfs"
                .into(),
        );
    }
    Ok(tlb::advice(&predictions, &now, &loaded.objects, &begun))
}
