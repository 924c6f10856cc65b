// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sampled TLB misses in perf.data.
//!
//! Input: the bytes of a file, or of a pipe. Output: the samples that are misses of the last level, with the accessed
//! address and the number of misses for which each stands; mappings and names of programs; losses.
//!
//! | event | samples that are misses |
//! |---|---|
//! | Intel's `mem_inst_retired.stlb_miss_loads`, `…_stores` (PEBS) | all: the processor counts nothing else |
//! | any other with a data source (`PERF_SAMPLE_DATA_SRC`): `mem-loads`, `mem-stores` | those whose data source states a miss of the second level |
//! | AMD's `ibs_op//` with raw data (`perf record -R`) | those with `DcL1TlbMiss` and `DcL2TlbMiss` in IbsOpData3 |
//! | the kernel's `page-faults` | all: a walk was made, and found no page |
//!
//! Some events count the same misses: `page-faults` all that `minor-faults` and `major-faults` count, and a load that misses is
//! sampled by `mem_inst_retired.stlb_miss_loads` and by `mem-loads`. The one that counts more is taken, the other is named in
//! [`Samples::same`], and a note tells if it counts misses that the first does not.
//!
//! Layout of a sample: perf_event_open(2), `perf_output_sample` in the kernel's kernel/events/core.c. IBS: AMD's PPR
//! (MSRC001_1037), the kernel's arch/x86/events/amd/ibs.c.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use kprism_image::BuildId;
use kprism_profile::units;

use super::comms::Comms;
use super::recording::{self, Files};
use super::sample::{Parts, parse};
use kprism_perfdata::attr::kind;
use kprism_perfdata::record::sample;
use kprism_perfdata::{Attr, Contents, Fields, Mapped, Record, Trailer};

/// Kind of a missed access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Load,
    /// A store.
    Store,
    /// Unknown.
    Unknown,
}

/// A sampled miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miss {
    /// Time on the recording's clock, ns.
    pub ns: u64,
    /// CPU number; 0 if unknown.
    pub cpu: u32,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Address of the instruction, or of one shortly after it if the event is not precise.
    pub ip: u64,
    /// Address accessed.
    pub va: u64,
    /// Physical address, if known.
    pub physical: Option<u64>,
    /// Number of misses for which this one stands.
    pub period: u64,
    /// Cycles that the access took, if known.
    pub cycles: Option<u64>,
    /// Size of the page in bytes, if known.
    pub page: Option<u64>,
    /// Kind of access.
    pub access: Access,
}

/// A mapping of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// Time, ns.
    pub ns: u64,
    /// Process id.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// End address, exclusive.
    pub end: u64,
    /// Offset in the file, bytes.
    pub pgoff: u64,
    /// True for code.
    pub exec: bool,
    /// Path of the file; empty for anonymous memory.
    pub path: String,
}

/// The misses in a recording.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// Misses in order of time.
    pub misses: Vec<Miss>,
    /// Samples by event name: all, and those that are misses.
    pub events: BTreeMap<String, (u64, u64)>,
    /// Events whose misses another event counts too, each with that event: their samples are no misses here, or each would be
    /// there twice.
    pub same: BTreeMap<String, String>,
    /// Programs' mappings, in order of time.
    pub maps: Vec<Map>,
    /// Names of threads: time, thread, process, name.
    pub names: Vec<(u64, u32, u32, String)>,
    /// Build ids of files, as far as known.
    pub build_ids: Vec<(String, BuildId)>,
    /// The command, if known.
    pub command: Vec<String>,
    /// Release of the kernel, if known.
    pub release: String,
    /// Samples that the kernel could not deliver.
    pub lost: u64,
    /// Number of misses without an address.
    pub nowhere: u64,
    /// Number of samples that state no id of one of several events.
    pub nameless: u64,
    /// Number of samples shorter than their event's attributes require.
    pub short: u64,
    /// Notes on skipped data.
    pub notes: Vec<String>,
}

/// Returns true if a file, or perf's folder, holds samples that can be misses, and no Intel PT or tracepoints.
#[must_use]
pub fn detect(path: &Path) -> bool {
    recording::detect(path, is_sampled)
}

fn is_sampled(bytes: &[u8]) -> bool {
    let mut contents = Contents::default();
    kprism_perfdata::read(bytes, &mut contents);
    let traced = contents.events.iter().any(|e| matches!(e.record, Record::AuxtraceInfo { .. }));
    let can = |(place, attr): (usize, &Attr)| {
        attr.sample_type & sample::ADDR != 0 && attr.kind != kind::TRACEPOINT
            || what(attr, &name(attr, place, &contents)) == What::Ibs
    };
    contents.header.tracing.is_none()
        && !traced
        && contents.traces.is_empty()
        && contents.header.attrs.iter().enumerate().any(can)
}

/// The name of the event at index `place`: by its id, or, if no event has one, by its index.
fn name(attr: &Attr, place: usize, contents: &Contents<'_>) -> String {
    let header = &contents.header;
    let by_id = header.names.iter().find(|(id, _)| attr.ids.contains(id)).map(|(_, name)| name);
    let in_order = || {
        let can = attr.ids.is_empty() && header.in_order.len() == header.attrs.len();
        header.in_order.get(place).filter(|name| can && !name.is_empty())
    };
    match by_id.or_else(in_order) {
        Some(name) => name.clone(),
        None if attr.kind == kind::SOFTWARE && attr.config == PAGE_FAULTS => "page-faults".into(),
        None => format!("type {} config {:#x}", attr.kind, attr.config),
    }
}

/// `PERF_COUNT_SW_PAGE_FAULTS`, `…_MIN`, `…_MAJ`.
const PAGE_FAULTS: u64 = 2;
const FAULTS: [u64; 3] = [PAGE_FAULTS, 5, 6];
/// Event and unit mask of `mem_inst_retired.stlb_miss_loads` and `…_stores` (Intel's perfmon files, Skylake on).
const STLB_MISS_LOADS: u64 = 0x11d0;
const STLB_MISS_STORES: u64 = 0x12d0;

/// Kind of an event's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Each is a miss.
    Misses(Access),
    /// Each has IBS's registers.
    Ibs,
    /// Each has a data source that states a hit or a miss.
    Told,
    Nothing,
}

fn what(attr: &Attr, name: &str) -> What {
    let plain = attr.config & 0xffff;
    let core = attr.kind == kind::RAW;
    if name.contains("stlb_miss_loads") || core && plain == STLB_MISS_LOADS {
        What::Misses(Access::Load)
    } else if name.contains("stlb_miss_stores") || core && plain == STLB_MISS_STORES {
        What::Misses(Access::Store)
    } else if name.contains("ibs_op") && attr.sample_type & sample::RAW != 0 {
        What::Ibs
    } else if attr.kind == kind::SOFTWARE {
        if FAULTS.contains(&attr.config) { What::Misses(Access::Unknown) } else { What::Nothing }
    } else if attr.sample_type & sample::DATA_SRC != 0 {
        What::Told
    } else {
        What::Nothing
    }
}

/// Misses that events count, as bits of [`Attr`]'s privileges and kinds: of user and kernel code, in this order.
const LOADS: u16 = 1;
const STORES: u16 = 1 << 2;
const MINOR: u16 = 1 << 4;
const MAJOR: u16 = 1 << 6;

/// `exclude_user` and `exclude_kernel` of `struct perf_event_attr`.
const EXCLUDE_USER: u64 = 1 << 4;
const EXCLUDE_KERNEL: u64 = 1 << 5;

/// What an event counts: the unit that counts it (processors with two kinds of cores have two), and the kinds of misses.
fn counted(attr: &Attr, what: What, name: &str) -> (u64, u16) {
    let unit = match attr.kind {
        // Of several units of one type, the upper half tells which.
        kind::RAW => attr.config >> 32 << 32 | u64::from(attr.kind),
        kind => kind.into(),
    };
    let kinds = match what {
        What::Misses(Access::Load) => LOADS,
        What::Misses(Access::Store) => STORES,
        What::Misses(Access::Unknown) => match attr.config {
            PAGE_FAULTS => MINOR | MAJOR,
            config if config == FAULTS[1] => MINOR,
            _ => MAJOR,
        },
        What::Told if name.contains("load") => LOADS,
        What::Told if name.contains("store") => STORES,
        What::Told | What::Ibs => LOADS | STORES,
        What::Nothing => 0,
    };
    let of_user = if attr.flags & EXCLUDE_USER == 0 { kinds } else { 0 };
    let of_kernel = if attr.flags & EXCLUDE_KERNEL == 0 { kinds << 1 } else { 0 };
    (unit, of_user | of_kernel)
}

/// Of the events with misses, those that count what another one counts: their indices, each with that of the other one. Those that
/// count most kinds are taken first, and of these those that count nothing else.
fn counted_twice(events: &[(usize, What, u64, u16)]) -> Vec<(usize, usize)> {
    let mut order: Vec<_> = events.iter().collect();
    order.sort_by_key(|(at, what, _, kinds)| {
        (std::cmp::Reverse(kinds.count_ones()), !matches!(what, What::Misses(_)), *at)
    });
    let mut taken: Vec<(usize, u64, u16)> = Vec::new();
    let mut twice = Vec::new();
    for &(at, _, unit, kinds) in order {
        match taken.iter().find(|(_, of, known)| *of == unit && known & kinds != 0) {
            Some((by, ..)) => twice.push((at, *by)),
            None => taken.push((at, unit, kinds)),
        }
    }
    twice
}

/// True if an event that is left out counts misses that no event of its unit counts that is taken.
fn counts_more(at: usize, events: &[(usize, What, u64, u16)], twice: &[(usize, usize)]) -> bool {
    let is_taken = |at: usize| twice.iter().all(|(other, _)| *other != at);
    let Some((_, _, unit, kinds)) = events.iter().find(|event| event.0 == at) else { return false };
    let taken = events.iter().filter(|(at, _, of, _)| of == unit && is_taken(*at));
    kinds & !taken.fold(0, |all, (.., kinds)| all | kinds) != 0
}

/// Reads the misses of a recording.
#[must_use]
pub fn read(files: &Files) -> Samples {
    let mut contents = files.contents();
    // The buffers of CPUs stand in the file one after the other: a child's birth may stand before its parent's mappings.
    contents.events.sort_by_key(|event| event.trailer.time);
    let kinds: Vec<(What, String)> = contents
        .header
        .attrs
        .iter()
        .enumerate()
        .map(|(place, attr)| {
            let name = name(attr, place, &contents);
            (what(attr, &name), name)
        })
        .collect();
    let mut out = Samples {
        command: contents.header.command.clone(),
        release: contents.header.release.clone(),
        build_ids: super::build_ids(&contents.header.build_ids).collect(),
        notes: contents.notes,
        ..Samples::default()
    };
    let (mut told, mut summed) = (0u64, 0u64);
    let (mut comms, mut maps) = (Comms::default(), Maps::default());
    // The events of the misses, by index.
    let mut of_events: Vec<usize> = Vec::new();
    for event in contents.events {
        let ns = event.trailer.time.unwrap_or(0);
        match event.record {
            Record::Sample(body) => {
                let of = |at: usize| contents.header.attrs.get(at).zip(kinds.get(at));
                let Some((at, (attr, (what, name)))) = event.attr.and_then(|at| Some((at, of(at)?))) else {
                    out.nameless += 1;
                    continue;
                };
                let count = out.events.entry(name.clone()).or_default();
                count.0 += 1;
                let Some(parts) = parse(attr, body) else {
                    out.short += 1;
                    continue;
                };
                match parts.miss(*what, &event.trailer) {
                    Some(miss) if miss.va != 0 => {
                        count.1 += 1;
                        out.misses.push(miss);
                        of_events.push(at);
                    }
                    Some(_) => out.nowhere += 1,
                    None => {}
                }
            }
            Record::Mmap(map) if !map.kernel => maps.add(mapping(map, ns, true)),
            Record::MmapData(map) if !map.kernel => maps.add(mapping(map, ns, false)),
            Record::Comm { pid, exec, .. } => {
                comms.add(ns, event.record);
                if exec {
                    maps.of_process.remove(&pid);
                }
            }
            Record::Fork { pid, ppid, existed, .. } => {
                comms.add(ns, event.record);
                if pid != ppid && !existed {
                    maps.inherit(pid, ppid, ns);
                }
            }
            Record::Lost { lost } => told = told.saturating_add(lost),
            Record::LostSamples { lost } => summed = summed.saturating_add(lost),
            _ => {}
        }
    }
    out.names = comms.names().into_iter().map(Into::into).collect();
    out.notes.extend(maps.note());
    out.maps = maps.all;
    let with_misses: BTreeSet<usize> = of_events.iter().copied().collect();
    let events =
        contents.header.attrs.iter().zip(&kinds).enumerate().filter(|(at, _)| with_misses.contains(at));
    let events = events.map(|(at, (attr, (what, name)))| {
        let (unit, kinds) = counted(attr, *what, name);
        (at, *what, unit, kinds)
    });
    let events: Vec<_> = events.collect();
    let twice = counted_twice(&events);
    for (at, by) in &twice {
        let (name, by) = (&kinds[*at].1, &kinds[*by].1);
        out.same.insert(name.clone(), by.clone());
        if counts_more(*at, &events, &twice) {
            out.notes.push(format!(
                "{name}: its samples are left out, as {by} counts some of the same misses; those that only {name} counts are lost (record \
                 one of the two)"
            ));
        }
    }
    let mut events = of_events.into_iter();
    out.misses.retain(|_| events.next().is_none_or(|of| twice.iter().all(|(at, _)| *at != of)));
    out.lost = told.max(summed);
    out.misses.sort_by_key(|miss| miss.ns);
    out
}

/// Maximum of mappings that children inherit. A child for whose no room is left has only its own.
const MAX_INHERITED: usize = 1 << 20;

/// Mappings of all processes.
#[derive(Default)]
struct Maps {
    all: Vec<Map>,
    /// Indices of those that each process has now: of the program that it runs.
    of_process: HashMap<u32, Vec<usize>>,
    inherited: usize,
    /// Processes for whose parents' mappings there was no room.
    bare: u64,
}

impl Maps {
    fn add(&mut self, map: Map) {
        self.of_process.entry(map.pid).or_default().push(self.all.len());
        self.all.push(map);
    }

    /// A child begins with its parent's mappings, and has none of a process that had its number before.
    fn inherit(&mut self, child: u32, parent: u32, ns: u64) {
        self.of_process.remove(&child);
        let count = self.of_process.get(&parent).map_or(0, Vec::len);
        if self.inherited + count > MAX_INHERITED {
            self.bare += 1;
            return;
        }
        self.inherited += count;
        for at in self.of_process.get(&parent).cloned().unwrap_or_default() {
            let map = Map { pid: child, ns, ..self.all[at].clone() };
            self.add(map);
        }
    }

    fn note(&self) -> Option<String> {
        (self.bare > 0).then(|| {
            format!(
                "{} began after {MAX_INHERITED} inherited mappings: misses in what they inherited name no file",
                units::counted(self.bare, "processes")
            )
        })
    }
}

fn mapping(map: Mapped, ns: u64, exec: bool) -> Map {
    // The kernel's names for mappings without a file.
    let anonymous =
        map.path == "//anon" || map.path.starts_with("/dev/zero") || map.path.starts_with("/anon_hugepage");
    Map {
        ns,
        pid: map.pid,
        start: map.start,
        end: map.start.saturating_add(map.len),
        pgoff: map.pgoff,
        exec,
        path: if anonymous { String::new() } else { map.path },
    }
}

/// `union perf_mem_data_src`.
mod source {
    pub const LOAD: u64 = 2;
    pub const STORE: u64 = 4;
    /// Of the TLB's field.
    pub const TLB: u32 = 26;
    pub const MISS: u64 = 4;
    pub const L2: u64 = 0x10;
}

impl Parts<'_> {
    fn miss(&self, what: What, trailer: &Trailer) -> Option<Miss> {
        let mut miss = Miss {
            ns: trailer.time.unwrap_or(0),
            cpu: trailer.cpu.unwrap_or(0),
            pid: trailer.pid.unwrap_or(0),
            tid: trailer.tid.unwrap_or(0),
            ip: self.ip,
            va: self.va,
            physical: self.physical,
            period: self.period.max(1),
            cycles: self.cycles,
            page: self.page,
            access: Access::Unknown,
        };
        match what {
            What::Misses(access) => miss.access = access,
            What::Told => {
                let tlb = self.source >> source::TLB & 0x7f;
                if tlb & source::MISS == 0 || tlb & source::L2 == 0 {
                    return None;
                }
                miss.access = match self.source & (source::LOAD | source::STORE) {
                    source::LOAD => Access::Load,
                    source::STORE => Access::Store,
                    _ => Access::Unknown,
                };
            }
            What::Ibs => {
                let ibs = self.raw.and_then(Ibs::parse).filter(|ibs| ibs.missed)?;
                miss.access = ibs.access;
                miss.va = ibs.linear.unwrap_or(0);
                miss.physical = ibs.physical.or(miss.physical);
                miss.ip = ibs.rip.unwrap_or(miss.ip);
            }
            What::Nothing => return None,
        }
        Some(miss)
    }
}

/// IBS's registers, as `ibs_op//` stores them in the raw data: the capabilities (4 bytes), then IbsOpCtl, IbsOpRip,
/// IbsOpData, IbsOpData2, IbsOpData3, IbsDcLinAd, IbsDcPhysAd.
#[derive(Debug, Clone, Copy)]
struct Ibs {
    rip: Option<u64>,
    access: Access,
    missed: bool,
    linear: Option<u64>,
    physical: Option<u64>,
}

impl Ibs {
    fn parse(raw: &[u8]) -> Option<Self> {
        let mut f = Fields(raw);
        let _capabilities = f.u32()?;
        let [_control, rip, data] = [f.u64()?, f.u64()?, f.u64()?];
        let [_data2, data3, linear, physical] = [f.u64()?, f.u64()?, f.u64()?, f.u64()?];
        let bit = |at: u32| data3 >> at & 1 != 0;
        let access = match (bit(0), bit(1)) {
            (true, false) => Access::Load,
            (false, true) => Access::Store,
            _ => Access::Unknown,
        };
        Some(Ibs {
            // IbsRipInvalid
            rip: (data >> 38 & 1 == 0).then_some(rip),
            access,
            missed: (bit(0) || bit(1)) && bit(2) && bit(3),
            linear: bit(17).then_some(linear),
            physical: bit(18).then_some(physical),
        })
    }
}

#[cfg(test)]
mod tests {
    use kprism_perfdata::MAGIC;

    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    /// Every optional part, in the kernel's order, is skipped or read.
    #[test]
    fn a_sample_of_everything() {
        let all = ((1 << 25) - 1) & !sample::WEIGHT_STRUCT & !(1 << 20) & !(1 << 23);
        let attr = Attr {
            kind: 8,
            sample_type: all,
            branches: 1 << 17,
            registers: [0b1011, 0b1],
            read_format: 4,
            ..Attr::default()
        };
        let mut body = words(&[7, 0x40_1000, 5 | 6 << 32, 99, 0x7f00_0000_1234, 7, 7, 1]);
        body.extend(words(&[1009, 3, 7, 2, 0x40_1000, 0x40_2000]));
        body.extend([4, 0, 0, 0, 1, 2, 3, 4]);
        body.extend(words(&[1, 0, 0x10, 0x20, 0x30, 1, 11, 12, 13, 8, 0, 8, 222]));
        let walked = source::MISS | source::L2;
        body.extend(words(&[source::LOAD | walked << source::TLB, 0, 1, 5, 0x8000_1234, 0, 4096]));
        let parts = parse(&attr, &body).expect("whole");
        let trailer = Trailer::of_sample(attr.sample_type, &mut Fields(&body)).expect("whole");
        let miss = parts.miss(What::Told, &trailer).expect("a miss");
        assert_eq!(
            miss,
            Miss {
                ns: 99,
                cpu: 1,
                pid: 5,
                tid: 6,
                ip: 0x40_1000,
                va: 0x7f00_0000_1234,
                physical: Some(0x8000_1234),
                period: 1009,
                cycles: Some(222),
                page: Some(4096),
                access: Access::Load
            }
        );
        // Truncated anywhere, it is not a sample.
        assert!((0..body.len()).all(|cut| parse(&attr, &body[..cut]).is_none()));
        // A hit, or a miss of the first level alone, is not a miss.
        for tlb in [2 | 8, 2 | 0x10, 4 | 8] {
            let parts = Parts { source: source::LOAD | tlb << source::TLB, ..parts };
            assert_eq!(parts.miss(What::Told, &trailer), None);
        }
    }

    fn of_bytes(bytes: Vec<u8>) -> Samples {
        read(&Files::new(vec![bytes.into()]))
    }

    /// A file with two events, page faults and context switches, with these sample types, ids, and records.
    fn of_two(sample_type: u64, ids: [u64; 2], records: &[u8]) -> Vec<u8> {
        of_events([PAGE_FAULTS, 3], sample_type, ids, records)
    }

    /// The same with these events of the kernel.
    fn of_events(configs: [u64; 2], sample_type: u64, ids: [u64; 2], records: &[u8]) -> Vec<u8> {
        const FIRST: u64 = 104;
        let (ids_at, step) = (FIRST + 2 * 144, 144);
        let data_at = ids_at + 16;
        let mut file = MAGIC.to_vec();
        file.extend(words(&[FIRST, step, FIRST, 2 * step, data_at, records.len() as u64, 0, 0, 0, 0, 0, 0]));
        for (place, config) in (0..).zip(configs) {
            let mut attr = (u64::from(kind::SOFTWARE) | 128 << 32).to_le_bytes().to_vec();
            attr.extend(words(&[config, 1, sample_type]));
            attr.resize(128, 0);
            file.extend(attr);
            let has = u64::from(ids[place as usize] != 0);
            file.extend(words(&[ids_at + 8 * place, 8 * has]));
        }
        file.extend(words(&ids));
        file.extend(records);
        file
    }

    fn sample_of(body: &[u64]) -> Vec<u8> {
        let head = 9 | (8 + 8 * body.len() as u64) << 48;
        words(&[&[head], body].concat())
    }

    /// With several events, a sample belongs to the event of its id, wherever that is. Without an id it belongs to
    /// none.
    #[test]
    fn whose_a_sample_is_its_id_tells_or_nothing() {
        let (common, va) = (sample::IP | sample::TID | sample::TIME | sample::ADDR, 0x7f00_0000_1000);
        let (first, behind) = (sample::IDENTIFIER, sample::ID);
        for place in [first, behind] {
            let of = |id: u64, ns: u64| match place == first {
                true => sample_of(&[id, 0x40_1000, 5 | 6 << 32, ns, va]),
                false => sample_of(&[0x40_1000, 5 | 6 << 32, ns, va, id]),
            };
            let samples = of_bytes(of_two(common | place, [7, 8], &[of(7, 1), of(8, 2), of(7, 3)].concat()));
            assert_eq!(samples.misses.iter().map(|m| (m.ns, m.va)).collect::<Vec<_>>(), [(1, va), (3, va)]);
            assert_eq!((samples.nameless, samples.short), (0, 0), "{samples:?}");
            // A sample of neither event.
            let samples = of_bytes(of_two(common | place, [7, 8], &[of(7, 1), of(9, 2)].concat()));
            assert_eq!((samples.misses.len(), samples.nameless), (1, 1), "{samples:?}");
        }
        // No ids at all.
        let plain = sample_of(&[0x40_1000, 5 | 6 << 32, 1, va]);
        let samples = of_bytes(of_two(common, [0, 0], &[plain.clone(), plain].concat()));
        assert_eq!((samples.misses.len(), samples.nameless), (0, 2), "{samples:?}");
        // A sample shorter than its event requires.
        let kind = common | first | sample::PERIOD;
        let samples = of_bytes(of_two(kind, [7, 8], &sample_of(&[7, 0x40_1000, 5 | 6 << 32, 1, va])));
        assert_eq!((samples.misses.len(), samples.short), (0, 1), "{samples:?}");
        // A record that ends before the place of an id is damaged.
        let samples = of_bytes(of_two(common | first, [7, 8], &sample_of(&[7, 0x40_1000])));
        assert_eq!((samples.misses.len(), samples.notes.len()), (0, 1), "{samples:?}");
    }

    /// All faults are sampled, and the minor ones again: each is there once. Minor and major ones are different ones.
    #[test]
    fn a_fault_that_two_events_count_is_one() {
        let kind = sample::IDENTIFIER | sample::IP | sample::TID | sample::TIME | sample::ADDR;
        let of = |id: u64, ns: u64| sample_of(&[id, 0x40_1000, 5 | 6 << 32, ns, 0x7f00_0000_1000]);
        let records = [of(8, 1), of(7, 2), of(7, 3)].concat();
        let [minor, major] = [FAULTS[1], FAULTS[2]];
        let both = of_bytes(of_events([PAGE_FAULTS, minor], kind, [7, 8], &records));
        assert_eq!(both.misses.iter().map(|miss| miss.ns).collect::<Vec<_>>(), [2, 3]);
        let named: Vec<_> = both.same.iter().map(|(event, by)| (event.as_str(), by.as_str())).collect();
        assert_eq!(named, [("type 1 config 0x5", "page-faults")]);
        let other = of_bytes(of_events([minor, major], kind, [7, 8], &records));
        assert_eq!((other.misses.len(), other.same.len()), (3, 0));
        assert_eq!((both.notes, other.notes), (vec![], vec![]));
    }

    /// One event counts the minor faults of all code, the other all faults of programs: whichever is taken, the other one's rest is
    /// missing.
    #[test]
    fn what_only_the_event_counts_that_is_left_out_is_told() {
        let kind = sample::IDENTIFIER | sample::IP | sample::TID | sample::TIME | sample::ADDR;
        let of = |id: u64, ns: u64| sample_of(&[id, 0x40_1000, 5 | 6 << 32, ns, 0x7f00_0000_1000]);
        let mut file = of_events([FAULTS[1], PAGE_FAULTS], kind, [7, 8], &[of(7, 1), of(8, 2)].concat());
        // exclude_kernel, in the second event.
        file[104 + 144 + 40] |= 1 << 5;
        let samples = of_bytes(file);
        assert_eq!((samples.misses.len(), samples.same.len()), (1, 1));
        let [note] = &samples.notes[..] else { panic!("one note: {:?}", samples.notes) };
        assert!(note.starts_with("page-faults: its samples are left out"), "{note}");
    }

    #[test]
    fn events_of_other_units_or_privileges_count_something_else() {
        let loads = Attr { kind: 4, config: STLB_MISS_LOADS, ..Attr::default() };
        let told = Attr { kind: 4, ..Attr::default() };
        let twice = |events: &[(&Attr, What, &str)]| {
            let events = (0..).zip(events).map(|(at, (attr, what, name))| {
                let (unit, kinds) = counted(attr, *what, name);
                (at, *what, unit, kinds)
            });
            counted_twice(&events.collect::<Vec<_>>())
        };
        let exact = (&loads, What::Misses(Access::Load), "stlb_miss_loads");
        assert_eq!(twice(&[(&told, What::Told, "mem-loads"), exact]), [(0, 1)]);
        assert!(twice(&[(&told, What::Told, "mem-stores"), exact]).is_empty());
        let atom = Attr { kind: 10, ..told.clone() };
        assert!(twice(&[(&atom, What::Told, "cpu_atom/mem-loads/"), exact]).is_empty());
        let user = Attr { flags: EXCLUDE_KERNEL, ..loads.clone() };
        let kernel = Attr { flags: EXCLUDE_USER, ..loads.clone() };
        let load = What::Misses(Access::Load);
        assert!(twice(&[(&user, load, "a:u"), (&kernel, load, "a:k")]).is_empty());
        assert_eq!(twice(&[(&user, load, "a:u"), exact]), [(0, 1)]);
    }

    /// More mappings than children may inherit: whose are missing is told.
    #[test]
    fn children_without_their_parents_mappings_are_told() {
        const OWN: u64 = 1 << 16;
        let children = MAX_INHERITED as u64 / OWN;
        let map = |n: u64| {
            words(&[1 | 48 << 48, 5 | 5 << 32, n << 12, 1 << 12, 0, u64::from_le_bytes(*b"//anon\0\0")])
        };
        // A fork has a time; one of 0 is of a process that was there before.
        let fork = |pid: u64| words(&[7 | 32 << 48, pid | 5 << 32, pid | 5 << 32, 1]);
        for (forks, notes) in [(children, 0), (children + 2, 1)] {
            let records: Vec<u8> =
                (0..OWN).flat_map(map).chain((0..forks).flat_map(|n| fork(100 + n))).collect();
            let samples = of_bytes(of_two(sample::IP | sample::TID, [0, 0], &records));
            assert_eq!(samples.maps.len() as u64, OWN * (1 + children));
            assert_eq!(samples.notes.len(), notes, "{:?}", samples.notes);
            assert!(
                samples.notes.iter().all(|note| note.starts_with("2 processes began")),
                "{:?}",
                samples.notes
            );
        }
    }

    /// perf writes the buffers of CPUs one after the other: a birth on one CPU may stand before the parent's mapping on another.
    #[test]
    fn children_inherit_what_was_mapped_before_whatever_the_order_in_the_file() {
        let trailer = |ns: u64| [5 | 5 << 32, ns];
        let fork = [&[7 | 48 << 48, 6 | 5 << 32, 6 | 5 << 32, 20][..], &trailer(20)].concat();
        let map = |start: u64, ns: u64| {
            [
                &[1 | 64 << 48, 5 | 5 << 32, start, 1 << 12, 0, u64::from_le_bytes(*b"//anon\0\0")][..],
                &trailer(ns),
            ]
            .concat()
        };
        let comm =
            [&[3 | 40 << 48, 5 | 5 << 32, u64::from_le_bytes(*b"sh\0\0\0\0\0\0")][..], &trailer(10)].concat();
        let records = words(&[fork, map(0x1000, 10), map(0x2000, 30), comm].concat());
        let mut file = of_two(sample::IP | sample::TID | sample::TIME, [0, 0], &records);
        // sample_id_all, in both events.
        for attr in [104, 104 + 144] {
            file[attr + 42] |= 1 << 2;
        }
        let samples = of_bytes(file);
        let of_child: Vec<_> = samples.maps.iter().filter(|map| map.pid == 6).map(|map| map.start).collect();
        assert_eq!(of_child, [0x1000], "{samples:?}");
        assert_eq!(samples.names.last(), Some(&(20, 6, 6, "sh".to_owned())));
    }

    /// A program that was executed has none of the mappings of the one before, and neither have its children.
    #[test]
    fn children_inherit_the_mappings_of_the_program_that_runs() {
        let map = |pid: u32, start: u64| Map {
            ns: 1,
            pid,
            start,
            end: start + 0x1000,
            pgoff: 0,
            exec: true,
            path: "/x".into(),
        };
        let mut maps = Maps::default();
        maps.add(map(5, 0x1000));
        maps.of_process.remove(&5);
        maps.add(map(5, 0x2000));
        // The number 6 was another process's.
        maps.add(map(6, 0x7000));
        maps.inherit(6, 5, 9);
        maps.inherit(8, 6, 9);
        let of = |pid| maps.all.iter().filter(|map| map.pid == pid).map(|map| map.start).collect::<Vec<_>>();
        assert_eq!((of(5), of(6), of(8)), (vec![0x1000, 0x2000], vec![0x7000, 0x2000], vec![0x2000]));
        assert_eq!(maps.note(), None);
    }

    #[test]
    fn ibs_tells_misses_by_its_bits() {
        let attr = Attr { sample_type: sample::IP | sample::TID | sample::RAW, ..Attr::default() };
        let sampled = |data3: u64| {
            let mut raw = vec![0xff, 0, 0, 0];
            raw.extend(words(&[1, 0x40_1111, 0, 0, data3, 0x7f00_0000_5678, 0x1_2345_6678]));
            let mut body = words(&[0x40_1118, 5 | 6 << 32]);
            body.extend((raw.len() as u32).to_le_bytes());
            body.extend(raw);
            parse(&attr, &body).and_then(|p| p.miss(What::Ibs, &Trailer::default()))
        };
        let miss = sampled(1 | 1 << 2 | 1 << 3 | 1 << 17 | 1 << 18).expect("a load that missed both levels");
        assert_eq!((miss.va, miss.ip, miss.access), (0x7f00_0000_5678, 0x40_1111, Access::Load));
        assert_eq!(miss.physical, Some(0x1_2345_6678));
        assert_eq!(sampled(2 | 1 << 2 | 1 << 3 | 1 << 17).expect("a store").access, Access::Store);
        assert_eq!(sampled(1 | 1 << 2 | 1 << 17), None, "found on the second level");
        assert_eq!(sampled(1 | 1 << 17), None, "found on the first");
    }
}
