// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLB misses of a run.
//!
//! Input: `streams/tlb/`, the sideband and symbols of a run. Output: [`Loaded`], which gives a
//! [`Profile`] of the misses, their [`Objects`], a [`Heat`] map, the effect of larger pages ([`Loaded::advice`]), sums to
//! compare with a processor's own counts ([`Loaded::counters`]), misses by instruction ([`by_function`]), rows of
//! the table of misses ([`Loaded::rows`]), and the account.

mod advice;
mod function;
mod sites;

use std::collections::HashMap;

use anyhow::{Context, Result};
use kprism_image::sideband::Record;
use kprism_image::symbols::Symbols;
use kprism_store::recorded::{FIRST_TLB, TLB_EVENTS, TLB_METHOD, tlb_model};
use kprism_store::{Account, Manifest, MissRow, Recorded, Run};
use kprism_tlb::Geometry;
use kprism_tlb::counters::{BySide, Counter};
use kprism_tlb::counts::{self, Counts};
use kprism_tlb::heat::Heat;
use kprism_tlb::map::{CELLS, Map, Touched};
use kprism_tlb::objects::Objects;
use kprism_tlb::profile::Profile;
use kprism_tlb::stream::{Context as Place, Event, Reader, StreamError, for_each};

use crate::debug_folders::debug_folders;
use crate::{files, flow, tlb_account};

pub use advice::Advice;
pub use function::{Sites, by_function, bytes_at};

/// Objects of the heat map, bands of addresses of each, bins of time.
const HOTTEST: usize = 5;
const BANDS: usize = 8;
const BINS: usize = 64;

/// The misses of a run, and what names them.
pub struct Loaded {
    /// Facts on the recording.
    pub manifest: Manifest,
    /// Task switches, names and mappings.
    pub records: Vec<Record>,
    /// The objects that misses fall into. [`Loaded::profile`] adds to them.
    pub objects: Objects,
    /// The recorder's counts: `streams/tlb/counts.json`.
    pub counts: Counts,
    /// Remarks on the result: damage, and what the recorder noted.
    pub notes: Vec<String>,
    run: Run,
    streams: Vec<Vec<u8>>,
    /// Allocations whose caller is not known.
    nameless: u64,
}

/// Method by which misses were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// By models of processors' TLBs, which saw every access.
    Model,
    /// From walks of page tables on the memory bus.
    Bus,
    /// By samples of a processor's events.
    Sampled,
    /// The recorder's counts do not tell, or are not there.
    Unknown,
}

impl Method {
    /// In words, after "misses".
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Method::Model => "by models",
            Method::Bus => "off the memory bus",
            Method::Sampled => "by samples",
            Method::Unknown => "found in a way that is not known",
        }
    }
}

impl Loaded {
    /// Reads them.
    ///
    /// # Errors
    /// The run holds no TLB misses, or a file cannot be read.
    pub fn open(run: &Run) -> Result<Self> {
        let mut manifest = run.manifest()?;
        flow::complete(run, &mut manifest);
        let mut notes = Vec::new();
        let records = flow::sideband_records(run, &mut notes)?;
        let mut streams = Vec::new();
        for cpu in 0..manifest.vcpus {
            let path = run.tlb_misses(cpu);
            let bytes =
                files::read(&path).context("no TLB misses here; record them with `kprism record tlb`")?;
            streams.push(bytes);
        }
        let root = run.root();
        let mut objects =
            Objects::new(&records, |path| std::fs::read(root.join(path.trim_start_matches('/'))).ok());
        let allocated = allocations(&streams);
        let nameless = |(_, event): &&(Place, Event)| matches!(event, Event::Alloc(a) if a.frames[0] == 0);
        let nameless = allocated.iter().filter(nameless).count() as u64;
        objects.allocated(allocated);
        let counts = files::read_if_there(&run.tlb_counts())?;
        let counts = match counts.is_empty() {
            true => Counts::default(),
            false => Counts::parse(&counts).unwrap_or_else(|error| {
                notes.push(format!(
                    "{}: the recorder's counts are damaged: {error}",
                    run.tlb_counts().display()
                ));
                Counts::default()
            }),
        };
        // Of a recording that was imported.
        notes.extend(counts.notes.iter().cloned());
        Ok(Loaded { manifest, streams, records, objects, counts, notes, run: run.clone(), nameless })
    }

    /// The models, in the order of their numbers in the streams; none if the misses were not found by models.
    ///
    /// # Errors
    /// A stream does not begin as one.
    pub fn geometries(&self) -> Result<Vec<Geometry>> {
        Ok(readers(&self.streams)?.first().map(|r| r.header().geometries.clone()).unwrap_or_default())
    }

    /// Method by which the misses were found, as far as the recorder's counts tell.
    pub fn method(&self) -> Method {
        match self.counts.method() {
            Some(counts::Method::Ptat) => Method::Bus,
            Some(counts::Method::Sampled) => Method::Sampled,
            Some(counts::Method::Model | counts::Method::User) => Method::Model,
            None => Method::Unknown,
        }
    }

    /// What was recorded, with the method and the models. Two models of one name may differ: a user may describe them.
    ///
    /// # Errors
    /// As [`Loaded::geometries`].
    pub fn recorded(&self) -> Result<Recorded> {
        let mut recorded = self.manifest.recorded();
        recorded.add(TLB_METHOD, self.method().words());
        let taken = self.counts.events.iter().flatten();
        let taken = taken.filter(|event| event.counted_by.is_none() && event.misses != Some(0));
        let events: Vec<&str> = taken.filter_map(|event| event.event.as_deref()).collect();
        if !events.is_empty() {
            recorded.add(TLB_EVENTS, events.join(", "));
        }
        for (number, model) in self.geometries()?.iter().enumerate() {
            let parts = serde_json::to_string(&(&model.levels, &model.walk_caches, model.pcid))?;
            if number == 0 {
                recorded.add_hashed(FIRST_TLB, &model.name, &parts);
            }
            recorded.add_hashed(tlb_model(&model.name), &model.name, &parts);
        }
        Ok(recorded)
    }

    /// The condition that the misses meet, if only such were kept.
    pub fn condition(&self) -> Option<String> {
        self.manifest.option_facts().condition
    }

    /// Returns true if only misses that meet a condition were kept, whether it can be read or not.
    pub fn is_chosen(&self) -> bool {
        self.manifest.option_facts().is_chosen()
    }

    /// The source of the misses in a few words: the first geometry's name, `sampled` or `off the bus`.
    ///
    /// # Errors
    /// As [`Loaded::geometries`].
    pub fn source(&self) -> Result<String> {
        Ok(match self.geometries()?.first() {
            Some(geometry) => geometry.name.clone(),
            None => match self.method() {
                Method::Sampled => "sampled".into(),
                Method::Bus => "off the bus".into(),
                Method::Model | Method::Unknown => "not known".into(),
            },
        })
    }

    /// Misses of the last level, CPU by CPU, as rows of the table `tlb_misses`. They end at damage, which
    /// [`Loaded::profile`] names.
    ///
    /// # Errors
    /// As [`Loaded::geometries`].
    pub fn rows(&self) -> Result<impl Iterator<Item = MissRow>> {
        let readers = readers(&self.streams)?;
        Ok(readers.into_iter().enumerate().flat_map(|(cpu, reader)| rows(cpu as u32, reader)))
    }

    /// A stream that was cut short is used up to there.
    fn note(&mut self, results: Vec<Result<(), StreamError>>) {
        for (cpu, result) in results.into_iter().enumerate() {
            if let Err(e) = result {
                let note = format!("streams/tlb/cpu{cpu}.miss: {e}; what came before is used");
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
            }
        }
    }

    /// Misses that were seen, kept and lost.
    pub fn account(&self, profile: &Profile) -> Account {
        let read = tlb_account::Read {
            misses: profile.all()[0],
            chosen: self.is_chosen(),
            nameless: self.nameless,
            damage: self.notes.clone(),
        };
        self.manifest.with_recording(tlb_account::account(&self.counts, &read))
    }

    /// The misses, by task, instruction, object and page.
    ///
    /// # Errors
    /// A stream does not begin as one. Damage further on is a note.
    pub fn profile(&mut self) -> Result<Profile> {
        let mut profile = Profile::default();
        let results =
            readers(&self.streams)?.into_iter().map(|r| profile.add(r, &mut self.objects)).collect();
        self.note(results);
        Ok(profile)
    }

    /// The objects that miss most, over address and time.
    ///
    /// # Errors
    /// As [`Loaded::profile`].
    pub fn heat(&mut self, profile: &Profile) -> Result<Heat> {
        let mut heat = Heat::new(profile, HOTTEST, BANDS, BINS);
        let results = readers(&self.streams)?.into_iter().map(|r| heat.add(r, &mut self.objects)).collect();
        self.note(results);
        Ok(heat)
    }

    /// All misses over address and time, in at most [`CELLS`] cells, and the pages of each object that missed.
    ///
    /// # Errors
    /// As [`Loaded::profile`].
    pub fn map(&mut self, profile: &Profile) -> Result<(Map, Touched)> {
        let mut touched = Touched::default();
        let results =
            readers(&self.streams)?.into_iter().map(|r| touched.add(r, &mut self.objects)).collect();
        self.note(results);
        let mut map = Map::new(&touched, &self.objects, profile.span.unwrap_or_default());
        let results = readers(&self.streams)?.into_iter().map(|r| map.add(r, &mut self.objects)).collect();
        self.note(results);
        map.fit(CELLS);
        Ok((map, touched))
    }

    /// Misses of one process, or of all, to compare with a processor's own counts. Counters that are not known to count
    /// misses of the last level get a note.
    ///
    /// # Errors
    /// As [`Loaded::profile`].
    pub fn counters(&mut self, counters: &[Counter], tgid: Option<u32>) -> Result<BySide> {
        let mut sums = BySide::default();
        let mut results = Vec::new();
        for reader in readers(&self.streams)? {
            results.push(for_each(reader, |context, miss| {
                if tgid.is_none_or(|tgid| tgid == context.tgid) {
                    sums.add(miss, context.weight());
                }
            }));
        }
        self.note(results);
        let unknown: Vec<&str> =
            counters.iter().filter(|c| c.accesses().is_none()).map(|c| c.event.as_str()).collect();
        if !unknown.is_empty() {
            self.notes.push(format!("not known to count misses of the last level: {}", unknown.join(", ")));
        }
        Ok(sums)
    }

    /// Names of tasks by thread id, the last one each had.
    pub fn comms(&self) -> HashMap<u32, String> {
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

    /// Functions of the kernel and of programs.
    ///
    /// # Errors
    /// The run's kallsyms cannot be read.
    pub fn symbols(&self) -> Result<Symbols> {
        let names = files::read_if_there(&self.run.kallsyms())?;
        Ok(Symbols::load_with(&names, &self.records, Some(&self.run.root()), &debug_folders(&self.run))?)
    }

    /// Names the allocated objects by the functions and lines that allocated them.
    ///
    /// # Errors
    /// As [`Loaded::symbols`].
    pub fn name_objects(&mut self) -> Result<()> {
        if self.objects.all().iter().any(|o| o.site.is_some()) {
            let symbols = self.symbols()?;
            let mut sites = sites::Names::new(&symbols, &self.run);
            self.objects.name_sites(|site, space| sites.name(site, space));
        }
        Ok(())
    }
}

/// Rows of one CPU.
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

fn readers(streams: &[Vec<u8>]) -> Result<Vec<Reader<'_>>> {
    let mut readers = Vec::new();
    for (cpu, bytes) in streams.iter().enumerate() {
        readers.push(Reader::new(bytes).with_context(|| format!("streams/tlb/cpu{cpu}.miss"))?);
    }
    Ok(readers)
}

/// Allocations and releases of programs, in order of time. A stream's damage is named elsewhere.
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

/// Returns true if the run has misses and no flow of instructions.
pub fn is_alone(run: &Run) -> bool {
    run.tlb_misses(0).is_file() && !run.pt(0).is_file()
}
