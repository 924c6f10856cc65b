// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a run as perf.data, for `perf script`, `perf report` and other readers.
//!
//! **In:** a run's streams, code and sideband ([`Source`]). **Out:** a folder in the form of `perf record --kcore`:
//!
//! | file | contents |
//! |---|---|
//! | `data` | perf.data: the packets as AUX data of `intel_pt//`, and tasks and mappings as records |
//! | `kcore_dir/` | `kcore` with the kernel's initial code, `kallsyms`, `modules` |
//! | `symfs/` | the programs and libraries, for `--symfs` |
//!
//! The packets are the run's own, byte for byte. Changes of kernel code are written as TEXT_POKE records. User code
//! that is in no file is written to generated files (`user`). perf finds the running task by the switch records and the
//! flow's entry of `__switch_to`. It does not know address spaces, so the code of an address space is assigned to the
//! processes that ran in it (`owners`).

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::BufWriter;
use std::path::Path;

use kprism_flow::clock::ClockConfig;
use kprism_flow::errata::Errata;
use kprism_image::is_kernel;
use kprism_image::maps::{self, CONFLICT, Dict, MapRecord};
use kprism_image::sideband::{Ksymbol, Mmap, Record as Side, Switch, task_switches};
use kprism_image::symbols::maps::Maps;
use kprism_image::{BuildId, Image};

use super::tasks::BPF;
use super::timeline::{first_tsc, times_at};
use crate::ImportError;
use code::{Change, Code, Seen};
use kprism_perfdata::attr::{DUMMY, flag, kind, pt};
use kprism_perfdata::record::{ksymbol, sample};
use kprism_perfdata::{Attr, Auxtrace, Features, Mapped, Record, TimeConv, Trailer, Writer};
use owners::{Exec, NEVER, Owner};
pub(in crate::perfdata) use user::MADE;
use user::{Files, User};

mod code;
mod kernel;
mod owners;
mod user;

/// The data of a run.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Packets and code map of each CPU, by number.
    pub cpus: &'a [(&'a [u8], &'a [MapRecord])],
    /// The code.
    pub dict: &'a Dict,
    /// Tasks and mappings.
    pub records: &'a [Side],
    /// Parameters for decoding time packets.
    pub clock: ClockConfig,
    /// Errata of the processor.
    pub errata: Errata,
    /// Text of `/proc/kallsyms`; may be empty.
    pub kallsyms: &'a [u8],
    /// Text of `/proc/modules`; may be empty.
    pub modules: &'a [u8],
    /// Folder with the mapped files.
    pub root: &'a Path,
    /// Kernel release, empty if unknown.
    pub release: &'a str,
    /// The kernel's build id in hex, empty if unknown.
    pub build_id: &'a str,
    /// The command that was recorded.
    pub command: &'a [String],
    /// True if returns are compressed in the packets.
    pub ret_compression: bool,
}

/// perf numbers PMUs at boot. On Linux 6.x with an Intel processor this one is usually the tenth.
const PMU: u32 = 10;
/// `PERF_AUXTRACE_INTEL_PT`.
pub(super) const INTEL_PT: u32 = 1;
const LAYOUT: u64 = sample::IP | sample::TID | sample::TIME | sample::CPU | sample::IDENTIFIER;
const NOBODY: u32 = u32::MAX;

/// Encoded records in order of time.
#[derive(Default)]
struct Events(Vec<(u64, Vec<u8>)>);

impl Events {
    fn add(&mut self, ns: u64, cpu: u32, task: (u32, u32), id: u64, record: &Record<'_>) {
        let (pid, tid) = (Some(task.1), Some(task.0));
        let trailer = Trailer { pid, tid, time: Some(ns), cpu: Some(cpu), id: Some(id) };
        let mut bytes = Vec::new();
        record.encode(LAYOUT, &trailer, &mut bytes);
        self.0.push((ns, bytes));
    }
}

/// Writes the folder, which must not exist. Gives the number of pieces of code that are left out: no process is known to have had their
/// address space when they were seen.
///
/// # Errors
/// [`ImportError::Io`] with the file that could not be written.
pub fn export(source: &Source<'_>, dir: &Path) -> Result<u64, ImportError> {
    let cpus = source.cpus.len() as u32;
    let seen = all_seen(source);
    let own: Vec<Vec<&Switch>> = (0..cpus).map(|cpu| switches(source.records, cpu)).collect();
    let mut found: Vec<Owner> = Vec::new();
    let mut starts = Vec::new();
    for (cpu, (pt, map)) in source.cpus.iter().enumerate() {
        let image = image(source, cpu, map);
        let task = first_task(source.records, cpu as u32, &own[cpu]);
        let (owners, first) = owners::find(pt, &image, (source.clock, source.errata), task, &own[cpu]);
        found.extend(owners);
        starts.push((first, task));
    }
    let owners = owners::joined(found);
    let mut files = Files::new(source.root);
    let maps = Maps::new(source.records);
    let mmaps: Vec<&Mmap> = mmaps(source.records).collect();
    let user = user::map_all(&owners, &seen, &mmaps, &maps, &mut files);
    let in_kernel = seen.iter().filter(|(_, s)| is_kernel(s.va)).map(|(_, s)| *s);
    let (kernel, changes) = Code::first(in_kernel);
    let kernel = (!source.kallsyms.is_empty() && !kernel.ranges(0).is_empty()).then_some(kernel);

    make_dir(dir)?;
    if let Some(code) = &kernel {
        let kcore = dir.join("kcore_dir");
        make_dir(&kcore)?;
        put(&kcore.join("kallsyms"), source.kallsyms)?;
        put(&kcore.join("modules"), source.modules)?;
        let path = kcore.join("kcore");
        kernel::write_kcore(&path, code, kernel::text(source.kallsyms)).map_err(at(&path))?;
    }
    let symfs = dir.join("symfs");
    make_dir(&symfs)?;
    for path in &user.used {
        let (from, to) = (crate::write::below(source.root, path), crate::write::below(&symfs, path));
        if let (Some(from), Some(to)) = (from, to) {
            make_dir(to.parent().unwrap_or(&symfs))?;
            fs::copy(&from, &to).map_err(at(&from))?;
        }
    }
    for (path, bytes) in &user.made {
        if let Some(place) = crate::write::below(&symfs, path) {
            make_dir(place.parent().unwrap_or(&symfs))?;
            put(&place, bytes)?;
        }
    }
    let path = dir.join("data");
    let pokes = if kernel.is_some() { &changes[..] } else { &[] };
    let execs = owners::execs(&owners, &mmaps);
    let events = events(source, &starts, (&user, &execs), &own, pokes);
    write_data(source, &path, &events, kernel.is_some(), &build_ids(source, &user, &mut files))
        .map_err(at(&path))?;
    Ok(user.left_out)
}

/// All events of the run, in order of time.
fn events(
    source: &Source<'_>,
    starts: &[(u64, (u32, u32))],
    (user, execs): (&User, &[Exec]),
    own: &[Vec<&Switch>],
    pokes: &[Change],
) -> Vec<u8> {
    let mut events = Events::default();
    let mut named: BTreeMap<u32, String> = BTreeMap::new();
    let id = |cpu: u32| side_id(source, cpu);
    for (cpu, (first, task)) in starts.iter().enumerate() {
        let cpu = cpu as u32;
        let start = Record::ItraceStart { pid: task.1, tid: task.0 };
        events.add(*first, cpu, *task, pt_id(cpu), &start);
        let size = source.cpus[cpu as usize].0.len() as u64;
        events.add(*first, cpu, *task, pt_id(cpu), &Record::Aux { offset: 0, size, flags: 0 });
    }
    let mut name = |events: &mut Events, ns, cpu, pid: u32, tgid: u32, comm: &str| {
        if pid != 0 && !comm.is_empty() && named.get(&pid).is_none_or(|known| known != comm) {
            named.insert(pid, comm.to_owned());
            let record = Record::Comm { pid: tgid, tid: pid, exec: false, comm: comm.to_owned() };
            events.add(ns, cpu, (pid, tgid), id(cpu), &record);
        }
    };
    let listed = listed(source.kallsyms);
    for record in source.records {
        match record {
            // perf names it by kallsyms, with its module.
            Side::Ksymbol(s) if s.entry.is_some_and(|entry| listed.contains(&entry)) => {}
            Side::Switch(s) => {
                let begin = starts.get(s.cpu as usize).map_or(0, |s| s.0);
                name(&mut events, begin.min(s.t), s.cpu, s.prev_pid, s.prev_tgid, &s.prev_comm);
                name(&mut events, s.t, s.cpu, s.pid, s.tgid, &s.comm);
            }
            Side::Comm(c) => name(&mut events, c.t, c.cpu, c.pid, c.tgid, &c.comm),
            Side::Ksymbol(s) => events.add(s.t, s.cpu, (0, 0), id(s.cpu), &kernel_name(s)),
            _ => {}
        }
    }
    for s in own.iter().flatten() {
        let prev = (s.prev_pid, s.prev_tgid);
        let leaves = Record::SwitchCpuWide { out: true, pid: s.tgid, tid: s.pid };
        events.add(s.t, s.cpu, prev, id(s.cpu), &leaves);
    }
    let names = names(source.records);
    for exec in execs {
        let task = (exec.tgid, exec.tgid);
        let known = names.get(&exec.tgid).map_or(&[][..], Vec::as_slice);
        let at = known.partition_point(|name| name.0 <= exec.ns).saturating_sub(1);
        if let Some((_, comm)) = known.get(at) {
            let record = Record::Comm { pid: task.1, tid: task.0, exec: true, comm: (*comm).to_owned() };
            events.add(exec.ns, exec.cpu, task, id(exec.cpu), &record);
        }
    }
    for m in &user.mappings {
        let task = (m.mapped.tid, m.mapped.pid);
        events.add(m.ns, 0, task, id(0), &Record::Mmap(m.mapped.clone()));
    }
    for c in pokes {
        let record = Record::TextPoke { addr: c.va, old: &c.old, new: &c.new };
        events.add(c.ns, 0, (0, 0), id(0), &record);
    }
    // A mapping at some time applies to code that runs from then on.
    events.0.sort_by_key(|(ns, _)| *ns);
    events.0.into_iter().flat_map(|(_, bytes)| bytes).collect()
}

/// Addresses of the modules' symbols in kallsyms.
fn listed(kallsyms: &[u8]) -> HashSet<u64> {
    let of_modules = kallsyms.split(|&byte| byte == b'\n').filter(|line| line.ends_with(b"]"));
    let address = |line: &[u8]| {
        let word = std::str::from_utf8(line.split(u8::is_ascii_whitespace).next()?).ok()?;
        u64::from_str_radix(word, 16).ok()
    };
    of_modules.filter_map(address).collect()
}

/// perf's record of kernel code that comes or goes.
fn kernel_name(symbol: &Ksymbol) -> Record<'static> {
    let Ksymbol { start, end, gone, .. } = *symbol;
    Record::Ksymbol {
        addr: start,
        len: u32::try_from(end.saturating_sub(start)).unwrap_or(u32::MAX),
        gone,
        kind: if symbol.module == BPF { ksymbol::BPF } else { ksymbol::OUT_OF_LINE },
        name: symbol.name.clone(),
    }
}

/// Names of threads by their number, in order of time.
fn names(records: &[Side]) -> BTreeMap<u32, Vec<(u64, &str)>> {
    let mut names: BTreeMap<u32, Vec<(u64, &str)>> = BTreeMap::new();
    for record in records {
        let (pid, t, comm) = match record {
            Side::Switch(s) => (s.pid, s.t, &*s.comm),
            Side::Comm(c) => (c.pid, c.t, &*c.comm),
            _ => continue,
        };
        if !comm.is_empty() {
            names.entry(pid).or_default().push((t, comm));
        }
    }
    names.values_mut().for_each(|own| own.sort_by_key(|name| name.0));
    names
}

fn pt_id(cpu: u32) -> u64 {
    1 + u64::from(cpu)
}

fn side_id(source: &Source<'_>, cpu: u32) -> u64 {
    1 + source.cpus.len() as u64 + u64::from(cpu)
}

fn attrs(source: &Source<'_>, kernel: bool) -> Vec<Attr> {
    let cpus = source.cpus.len() as u32;
    let c = &source.clock;
    let mtc = if c.art_num != 0 { pt::MTC | u64::from(c.mtc_freq) << 14 & pt::MTC_PERIOD } else { 0 };
    let ret = if source.ret_compression { 0 } else { pt::NO_RET_COMPRESSION };
    let cyc = if c.nom_ratio != 0 { pt::CYC | pt::cyc_thresh(c.cyc_threshold) } else { 0 };
    let user_only = if kernel { 0 } else { flag::EXCLUDE_KERNEL };
    vec![
        Attr {
            kind: PMU,
            config: pt::ENABLE | pt::BRANCH | pt::TSC | mtc | cyc | ret,
            sample_type: LAYOUT,
            flags: flag::DISABLED | flag::INHERIT | flag::EXCLUDE_HV | flag::SAMPLE_ID_ALL | user_only,
            ids: (0..cpus).map(pt_id).collect(),
            ..Attr::default()
        },
        Attr {
            kind: kind::SOFTWARE,
            config: DUMMY,
            sample_type: LAYOUT,
            flags: [
                flag::INHERIT,
                flag::EXCLUDE_KERNEL,
                flag::EXCLUDE_HV,
                flag::MMAP,
                flag::COMM,
                flag::TASK,
                flag::SAMPLE_ID_ALL,
                flag::MMAP2,
                flag::COMM_EXEC,
                flag::CONTEXT_SWITCH,
                flag::KSYMBOL,
                flag::TEXT_POKE,
            ]
            .iter()
            .sum(),
            ids: (0..cpus).map(|cpu| side_id(source, cpu)).collect(),
            ..Attr::default()
        },
    ]
}

fn write_data(
    source: &Source<'_>,
    path: &Path,
    events: &[u8],
    kernel: bool,
    build_ids: &[u8],
) -> std::io::Result<()> {
    let attrs = attrs(source, kernel);
    let mut writer = Writer::new(BufWriter::new(fs::File::create(path)?), attrs.clone())?;
    let mut head = Vec::new();
    let mut add = |record: &Record<'_>| record.encode(LAYOUT, &Trailer::default(), &mut head);
    let conv = time_conv(&source.clock);
    add(&Record::AuxtraceInfo { kind: INTEL_PT, words: info(source, &conv) });
    add(&Record::TimeConv(conv));
    let entry = |(idx, id): (usize, &u64)| {
        let cpu = idx as u64 % source.cpus.len() as u64;
        [*id, cpu, cpu, u64::MAX]
    };
    let ids = attrs.iter().flat_map(|a| &a.ids).enumerate().map(entry);
    add(&Record::IdIndex(ids.collect()));
    if let Some((start, end)) = kernel::text(source.kallsyms).filter(|_| kernel) {
        let path = "[kernel.kallsyms]_stext".to_owned();
        let mapped = Mapped {
            pid: NOBODY,
            start,
            len: end - start,
            pgoff: start,
            path,
            kernel: true,
            ..Mapped::default()
        };
        add(&Record::Mmap(mapped));
    }
    writer.records(&head)?;
    for (cpu, (trace, _)) in (0..).zip(source.cpus) {
        let size = trace.len() as u64;
        let reference = first_tsc(trace);
        writer.auxtrace(Auxtrace { size, offset: 0, reference, idx: cpu, tid: NOBODY, cpu }, trace)?;
    }
    writer.records(events)?;
    writer.finish(&Features {
        release: source.release.to_owned(),
        version: concat!("kprism ", env!("CARGO_PKG_VERSION")).to_owned(),
        cpus: source.cpus.len() as u32,
        command: source.command.to_vec(),
        events: vec!["intel_pt//", "dummy:u"],
        build_ids: build_ids.to_vec(),
    })
}

/// perf's private array in AUXTRACE_INFO (tools/perf/util/intel-pt.h).
fn info(source: &Source<'_>, conv: &TimeConv) -> Vec<u64> {
    let c = &source.clock;
    let switches = source.records.iter().any(|r| matches!(r, Side::Switch(_)));
    vec![
        PMU.into(),
        conv.shift,
        conv.mult,
        conv.zero,
        1,
        pt::TSC,
        pt::NO_RET_COMPRESSION,
        // 3: switches are known by records of all switches on a CPU.
        if switches { 3 } else { 0 },
        0,
        1,
        pt::MTC,
        pt::MTC_PERIOD,
        c.art_num.into(),
        c.art_den.into(),
        pt::CYC,
        c.nom_ratio.into(),
        0,
        0,
    ]
}

/// The conversion that the run was recorded with, else its frequency in the kernel's form: ns = TSC · mult >> shift, with mult
/// of 32 bits.
fn time_conv(clock: &ClockConfig) -> TimeConv {
    const NS: u128 = 1_000_000_000;
    if let Some((mult, shift, zero)) = clock.perf.map(|perf| perf.parts()) {
        return TimeConv { shift: shift.into(), mult, zero };
    }
    let tsc_hz = clock.tsc_hz;
    let hz = if tsc_hz == 0 { NS } else { tsc_hz.into() };
    if hz == NS {
        return TimeConv { shift: 0, mult: 1, zero: 0 };
    }
    let mult = |shift: u64| ((NS << shift) + hz / 2) / hz;
    let shift = (0..=31).rev().find(|&s| mult(s) < 1 << 32).unwrap_or(0);
    TimeConv { shift, mult: mult(shift) as u64, zero: 0 }
}

fn build_ids(source: &Source<'_>, user: &User, files: &mut Files<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut add = |pid, id: Option<BuildId>, path: &str| {
        if let Some(id) = id {
            let record = Record::BuildId { pid, id: id.bytes().to_vec(), path: path.to_owned() };
            record.encode(0, &Trailer::default(), &mut out);
        }
    };
    add(NOBODY, BuildId::from_hex(source.build_id), "[kernel.kallsyms]");
    for path in &user.used {
        add(NOBODY, files.get(path).and_then(BuildId::of_elf), path);
    }
    out
}

/// The code of one CPU, with the places where its tasks change if only the sideband tells them.
fn image(source: &Source<'_>, cpu: usize, map: &[MapRecord]) -> Image {
    let (mut image, _) = maps::image(source.dict, map);
    image.set_task_switches(task_switches(source.records, cpu as u32));
    image
}

/// Every fragment with its address space and the time from which it was seen, in order of time. Initial code has time
/// 0. Only where CPUs disagree about the initial code does it have the time of its first execution.
fn all_seen<'a>(source: &Source<'a>) -> Vec<(u64, Seen<'a>)> {
    let mut all = Vec::new();
    let mut base: Vec<(usize, u64, Seen<'a>)> = Vec::new();
    for (cpu, (pt, map)) in source.cpus.iter().enumerate() {
        let (mut changed, first): (Vec<&MapRecord>, Vec<&MapRecord>) =
            map.iter().partition(|r| r.flags & CONFLICT != 0);
        changed.sort_by_key(|r| r.offset);
        let offsets: Vec<u64> = changed.iter().map(|r| r.offset).collect();
        let times = times_at(pt, source.clock, &offsets);
        let seen = |r: &MapRecord, ns| source.dict.bytes_of(r).map(|bytes| Seen { ns, va: r.va, bytes });
        all.extend(changed.iter().zip(times).filter_map(|(r, ns)| Some((r.asid, seen(r, ns)?))));
        base.extend(first.iter().filter_map(|r| Some((cpu, r.asid, seen(r, 0)?))));
    }
    base.sort_by_key(|(_, asid, _)| *asid);
    for space in base.chunk_by_mut(|a, b| a.1 == b.1) {
        let (_, disputed) = Code::first(space.iter().map(|(_, _, seen)| *seen));
        if !disputed.is_empty() {
            first_runs(source, space, &disputed);
        }
    }
    all.extend(base.into_iter().map(|(_, asid, seen)| (asid, seen)));
    all.retain(|(_, seen)| seen.ns != NEVER);
    all.sort_by_key(|(_, seen)| seen.ns);
    all
}

/// Sets the times of fragments in one address space that overlap a disputed place.
fn first_runs(source: &Source<'_>, space: &mut [(usize, u64, Seen<'_>)], disputed: &[Change]) {
    let overlaps = |s: &Seen<'_>| {
        let end = s.va + s.bytes.len() as u64;
        disputed.iter().any(|d| d.va < end && s.va < d.va + d.new.len() as u64)
    };
    for (cpu, (pt, map)) in source.cpus.iter().enumerate() {
        let mut own: Vec<_> = space.iter_mut().filter(|(c, _, s)| *c == cpu && overlaps(s)).collect();
        if own.is_empty() {
            continue;
        }
        let asid = own[0].1;
        let places: Vec<(u64, u64)> =
            own.iter().map(|(_, _, s)| (s.va, s.va + s.bytes.len() as u64)).collect();
        let image = image(source, cpu, map);
        let times = owners::first_runs(pt, &image, (source.clock, source.errata), asid, &places);
        own.iter_mut().zip(times).for_each(|((_, _, seen), ns)| seen.ns = ns);
    }
}

fn switches(records: &[Side], cpu: u32) -> Vec<&Switch> {
    let own = records.iter().filter_map(|r| match r {
        Side::Switch(s) if s.cpu == cpu => Some(s),
        _ => None,
    });
    own.collect()
}

fn mmaps(records: &[Side]) -> impl Iterator<Item = &Mmap> {
    records.iter().filter_map(|r| match r {
        Side::Mmap(m) => Some(m),
        _ => None,
    })
}

/// The task that runs before the first switch: (pid, tgid).
fn first_task(records: &[Side], cpu: u32, switches: &[&Switch]) -> (u32, u32) {
    if let Some(first) = switches.first() {
        return (first.prev_pid, first.prev_tgid);
    }
    let mark = records.iter().find_map(|r| match r {
        Side::Mark(m) if m.cpu == cpu => Some((m.pid, m.pid)),
        _ => None,
    });
    mark.unwrap_or((0, 0))
}

fn make_dir(dir: &Path) -> Result<(), ImportError> {
    fs::create_dir_all(dir).map_err(at(dir))
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), ImportError> {
    fs::write(path, bytes).map_err(at(path))
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> ImportError + use<> {
    let path = path.to_owned();
    move |source| ImportError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_kernel_code_is_perfs_record_again() {
        let symbol = |end, module: &str| {
            let (name, module) = ("x".to_owned(), module.to_owned());
            kernel_name(&Ksymbol { t: 5, cpu: 0, start: 0x1000, end, gone: true, name, module, entry: None })
        };
        let facts = |record| match record {
            Record::Ksymbol { addr, len, gone, kind, name } => (addr, len, gone, kind, name),
            other => panic!("{other:?}"),
        };
        assert_eq!(facts(symbol(0x1040, "[bpf]")), (0x1000, 0x40, true, ksymbol::BPF, "x".to_owned()));
        assert_eq!(facts(symbol(0x1040, "[kernel]")).3, ksymbol::OUT_OF_LINE);
        let kallsyms = b"ffffffff81000000 T _text\nffffffffc0000000 t f\t[m]\nzz t g\t[m]\n";
        assert_eq!(listed(kallsyms), HashSet::from([0xffff_ffff_c000_0000]));
        // Of a damaged record.
        assert_eq!([0, u64::MAX].map(|end| facts(symbol(end, "[bpf]")).1), [0, u32::MAX]);
    }
}
