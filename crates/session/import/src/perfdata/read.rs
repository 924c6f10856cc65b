// SPDX-License-Identifier: MIT OR Apache-2.0
//! Imports a recording: files → [`Capture`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kprism_flow::clock::{ClockConfig, PerfTime};
use kprism_flow::errata::{Erratum, of_processor};
use kprism_image::sideband::UNKNOWN_TASK;
use kprism_image::symbols::kallsyms::value_of;
use kprism_image::{BuildId, Bytes, is_kernel};
use kprism_profile::units::counted;

use super::comms::Thread;
use super::export::INTEL_PT;
use super::files::{Finder, is_made};
use super::recording::Files;
use super::spaces::{self, Spaces};
use super::streams::{self, Trace};
use super::tasks::{self, History};
use super::{build_ids, filter, kcore, ordinary, passing, place};
use crate::capture::{Placed, SwitchAt, Switched, Task};
use crate::error::read_file;
use crate::{Capture, CpuModel, Flow, ImportError, Stream};
use kprism_perfdata::attr::pt;
use kprism_perfdata::record::aux;
use kprism_perfdata::{Attr, Contents, MAGIC, Mapped, Record, TimeConv};

/// Places of files that perf does not copy into the recording.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// Folder that replaces the traced machine's root; without it, this machine's files.
    pub symfs: Option<PathBuf>,
    /// perf's cache of files by build id.
    pub cache: Option<PathBuf>,
    /// The kernel's code: a copy of `/proc/kcore`.
    pub kcore: Option<PathBuf>,
    /// The kernel's code and symbols before relocation.
    pub vmlinux: Option<PathBuf>,
    /// The kernel's symbols.
    pub kallsyms: Option<PathBuf>,
    /// Frequency of the clock, in Hz, where the recording does not tell it.
    pub tsc_hz: Option<u64>,
    /// Beginning of the paths of temporary files, in which large streams are joined; without it, they are joined in memory.
    pub spool: Option<PathBuf>,
}

/// The parts of a recording.
#[derive(Debug, Default)]
pub struct Parts {
    /// The files `data`, `data.0`, ...
    pub data: Files,
    /// Code of the kernel, with the file's name for errors.
    pub kcore: Option<(PathBuf, Bytes)>,
    /// The kernel as linked, with the file's name for errors.
    pub vmlinux: Option<(PathBuf, Bytes)>,
    /// The kernel's symbols.
    pub kallsyms: Vec<u8>,
    /// `/proc/modules`.
    pub modules: Vec<u8>,
}

/// perf's name of the kernel, with which its mappings and its build id are recorded.
const KERNEL: &str = "[kernel.kallsyms]";

/// The first bytes of a file of a big-endian machine: only for the error.
const BIG_ENDIAN: &[u8; 8] = b"2ELIFREP";

/// Returns true if a file begins like perf.data.
pub(crate) fn is_perf_data(path: &Path) -> bool {
    let mut head = [0; 8];
    std::fs::File::open(path).and_then(|mut f| std::io::Read::read_exact(&mut f, &mut head)).is_ok()
        && [MAGIC, BIG_ENDIAN].contains(&&head)
}

/// Reads a recording: a file, or a folder.
///
/// # Errors
/// A file cannot be read, or holds no Intel PT. Incomplete data only gives notes.
pub fn read(path: &Path, search: &Search) -> Result<Capture, ImportError> {
    let mut parts = Parts { data: Files::open(path)?, ..Parts::default() };
    let mut kcore = search.kcore.clone();
    let mut kallsyms = search.kallsyms.clone();
    if path.is_dir() {
        let inside = |name: &str| Some(path.join("kcore_dir").join(name)).filter(|p| p.is_file());
        kcore = kcore.or_else(|| inside("kcore"));
        kallsyms = kallsyms.or_else(|| inside("kallsyms"));
        if let Some(modules) = inside("modules") {
            parts.modules = read_file(&modules)?.to_vec();
        }
    }
    let load = |path: Option<PathBuf>| path.map(|p| Ok((p.clone(), read_file(&p)?))).transpose();
    parts.kcore = load(kcore)?;
    parts.vmlinux = load(search.vmlinux.clone())?;
    parts.kallsyms = load(kallsyms)?.map(|(_, text)| text.to_vec()).unwrap_or_default();
    let finder = Finder {
        symfs: search.symfs.clone(),
        cache: search.cache.clone(),
        recording: path.is_dir().then(|| path.to_owned()),
        ..Finder::default()
    };
    let mut capture = from_parts_with(path, &parts, finder, search.spool.as_deref())?;
    if !capture.programs_only {
        // What lies in the recording is the recorder's copy.
        let named = [("code", &search.kcore), ("symbols", &search.kallsyms)];
        let named = named.into_iter().filter_map(|(what, file)| Some(unproven_kernel(what, file.as_ref()?)));
        capture.notes.extend(named);
    }
    Ok(capture)
}

/// Reads a recording from memory, without the processes' files. `path` is used only in errors.
///
/// # Errors
/// As [`read`].
pub fn from_parts(path: &Path, parts: &Parts) -> Result<Capture, ImportError> {
    // No file lies below a file.
    let nowhere = PathBuf::from("/dev/null");
    from_parts_with(path, parts, Finder { symfs: Some(nowhere), ..Finder::default() }, None)
}

fn from_parts_with(
    path: &Path,
    parts: &Parts,
    mut finder: Finder,
    spool: Option<&Path>,
) -> Result<Capture, ImportError> {
    let Contents { header, events, traces: pieces, mut notes, .. } = parts.data.contents();
    let info = events.iter().find_map(|e| match &e.record {
        Record::AuxtraceInfo { kind, words } => Some((*kind, words.clone())),
        _ => None,
    });
    let info = match info {
        Some((INTEL_PT, words)) => Some(words),
        Some((kind, _)) => {
            let what = ordinary::describe(path, &header, &events, Some(kind), &notes);
            return Err(ImportError::Ordinary { path: path.to_owned(), what });
        }
        None if pieces.is_empty() => {
            let what = ordinary::describe(path, &header, &events, None, &notes);
            return Err(ImportError::Ordinary { path: path.to_owned(), what });
        }
        None => None,
    };
    if info.is_none() {
        notes.push("no AUXTRACE_INFO: times and settings of the trace are unknown".to_owned());
    }
    let told = events.iter().find_map(|e| match e.record {
        Record::TimeConv(conv) => Some(conv),
        _ => None,
    });
    let words = info.unwrap_or_default();
    let info = Info::new(&words, told);
    let clock = info.clock(&header.attrs);
    let mut history = tasks::history(events, &header);
    let sampled = std::mem::take(&mut history.aux_samples);
    let ring = word(&words, SNAPSHOTS) != 0 || !sampled.is_empty();
    let pieces = pieces.into_iter().chain(sampled).collect();
    let traces = streams::assemble(pieces, &history, ring, spool)
        .map_err(|(path, source)| ImportError::Io { path, source })?;
    parts.data.release();
    finder.build_ids = build_ids(&header.build_ids).collect();

    let config = info.config(&header.attrs);
    let mut capture = Capture { notes, clock, command: header.command.clone(), ..Capture::default() };
    capture.flow = match config {
        _ if config & pt::NO_TNT != 0 => Flow::WithoutOutcomes,
        _ if !pt::branches(config) => Flow::Events,
        _ => Flow::Whole,
    };
    capture.kernel.0.clone_from(&header.release);
    let kernel_id = finder.build_ids.get(KERNEL).cloned().or_else(|| {
        let mut own = history.kernel_maps.iter().filter(|m| m.path.starts_with(KERNEL));
        own.find_map(|m| BuildId::new(&m.build_id))
    });
    capture.kernel.1 = kernel_id.as_ref().map(ToString::to_string).unwrap_or_default();
    capture.cpu = cpu_model(&header.cpuid);
    capture.ring = ring;
    losses(&history, &traces, &mut capture.notes);
    if info.conv.is_none() && !words.is_empty() {
        capture.notes.push(
            "the recording does not say how TSC becomes perf's time: tasks and mappings cannot be placed in the trace"
                .to_owned(),
        );
    }
    if let Some((path, bytes)) = &parts.vmlinux {
        capture.notes.extend(is_recorded_kernel(path, bytes, kernel_id.as_ref())?);
    }
    let kernel = kernel_code(parts, &history, &mut capture)?;
    let timed = info.conv.is_some();
    let bpf = passing::code(header.bpf, &history, timed, &mut capture);
    passing::names(&history, timed, &mut capture);
    fill(&mut capture, traces, &history, &info, (&kernel, &bpf), &mut finder);
    capture.notes.append(&mut finder.notes);
    capture.notes.extend(finder.unproven_note());
    let (ranges, unknown) = filter::ranges(&filter::text(&words), &capture.modules);
    capture.filter = ranges;
    let list = capture.cpu.and_then(|cpu| of_processor(cpu.family, cpu.model));
    if list.is_some_and(|list| list.contains(&Erratum::Skl014)) {
        let note = |range: &String| {
            format!(
                "filter {range}: its addresses are not known, and with erratum SKL014 not where tracing went off"
            )
        };
        capture.notes.extend(unknown.iter().map(note));
    }
    Ok(capture)
}

/// The data of AUXTRACE_INFO about the trace (tools/perf/util/intel-pt.h).
#[derive(Debug, Clone, Copy)]
struct Info {
    /// Type of the PMU's events.
    pmu: u32,
    conv: Option<PerfTime>,
    mtc_bits: u64,
    art: (u64, u64),
    max_ratio: u64,
}

/// Index of the setting for snapshots in AUXTRACE_INFO.
const SNAPSHOTS: usize = 8;

fn word(words: &[u64], at: usize) -> u64 {
    words.get(at).copied().unwrap_or(0)
}

impl Info {
    fn new(words: &[u64], told: Option<TimeConv>) -> Self {
        let word = |at: usize| word(words, at);
        let own = TimeConv { shift: word(1), mult: word(2), zero: word(3) };
        let conv = if word(4) != 0 { Some(own) } else { told };
        let conv = conv.and_then(|c| PerfTime::new(c.mult, c.shift, c.zero));
        let pmu = u32::try_from(word(0)).unwrap_or(0);
        Self { pmu, conv, mtc_bits: word(11), art: (word(12), word(13)), max_ratio: word(15) }
    }

    /// The setting of the trace's event: that of the PMU's type. Without AUXTRACE_INFO, the event that looks like one.
    fn config(&self, attrs: &[Attr]) -> u64 {
        let known = self.pmu != 0;
        let of_pmu =
            |a: &&Attr| if known { a.kind == self.pmu } else { a.config & pt::BRANCH != 0 && a.kind > 5 };
        attrs.iter().find(of_pmu).map_or(0, |a| a.config)
    }

    fn clock(&self, attrs: &[Attr]) -> ClockConfig {
        let hz = self.conv.map_or(0, |conv| conv.hz());
        let bits = if self.mtc_bits == 0 { pt::MTC_PERIOD } else { self.mtc_bits };
        let config = self.config(attrs);
        // Without the file that states it, the bus clock is 100 MHz, as in perf.
        let ratio =
            if self.max_ratio == 0 { hz.saturating_add(50_000_000) / 100_000_000 } else { self.max_ratio };
        ClockConfig {
            tsc_hz: hz,
            perf: self.conv,
            art_num: u32::try_from(self.art.0).unwrap_or(0),
            art_den: u32::try_from(self.art.1).unwrap_or(0),
            mtc_freq: ((config & bits) >> bits.trailing_zeros()).min(15) as u8,
            nom_ratio: u8::try_from(ratio).unwrap_or(0),
            cyc_threshold: if config & pt::CYC == 0 { 0 } else { pt::cycles(config) },
        }
    }

    /// The run's time at perf's: the same, if the packets' times can be converted to it. Without a conversion, all records
    /// are of before the trace.
    fn ns(&self, perf: u64) -> u64 {
        self.conv.map_or(0, |_| perf)
    }
}

fn cpu_model(cpuid: &str) -> Option<CpuModel> {
    let mut words = cpuid.split([',', '-']);
    let vendor = words.next()?;
    let mut number = || words.next()?.parse::<u16>().ok();
    let (family, model, stepping) = (number()?, number()?, number()?);
    let small = |n: u16| u8::try_from(n).ok();
    (vendor == "GenuineIntel").then_some(CpuModel {
        family,
        model: small(model)?,
        stepping: small(stepping)?,
    })
}

fn losses(history: &History<'_>, traces: &[Trace], notes: &mut Vec<String>) {
    if history.lost > 0 {
        notes.push(format!(
            "perf lost {}: tasks and mappings may be wrong (record with a larger -m)",
            counted(history.lost, "records")
        ));
    }
    for (flag, what) in [
        (aux::TRUNCATED, "the trace buffer was full: trace data are missing (record with a larger -m,SIZE)"),
        (aux::PARTIAL, "the trace has gaps that its recorder does not locate"),
        (aux::COLLISION, "a sample of trace data collided with another one"),
    ] {
        let times = history.gaps.iter().filter(|gap| gap.flags & flag != 0).count();
        if times > 0 {
            notes.push(format!("{}: {what}", counted(times as u64, "times")));
        }
    }
    if history.guest_maps > 0 {
        notes.push(format!(
            "not used: {}, as only the host's flow is read",
            counted(history.guest_maps, "mappings of virtual machines")
        ));
    }
    if history.bare > 0 {
        notes.push(format!(
            "{} began after {} inherited mappings: the code that they inherited is not known",
            counted(history.bare, "processes"),
            tasks::MAX_INHERITED
        ));
    }
    if history.nameless > 0 {
        notes.push(format!(
            "{} of a task that had exited, and nothing tells which: it is shown as unknown (-1)",
            counted(history.nameless, "switch records")
        ));
    }
    for (kind, count) in &history.unknown {
        notes.push(format!(
            "not used: {} of type {kind}, which is not known here",
            counted(*count, "records")
        ));
    }
    for trace in traces.iter().filter(|t| t.losses > 0) {
        let places = counted(trace.losses as u64, "places");
        notes.push(format!("{}: {places} where trace data are missing", label(trace)));
    }
}

pub(super) fn label(trace: &Trace) -> String {
    match (trace.cpu, trace.tid) {
        (Some(cpu), _) => format!("cpu {cpu}"),
        (None, Some(tid)) => format!("thread {tid}"),
        (None, None) => "trace".to_owned(),
    }
}

/// A note on a file of the kernel's code or symbols that was named. A copy of `/proc/kcore` has no build id where perf makes it, and
/// neither has `/proc/kallsyms`.
fn unproven_kernel(what: &str, path: &Path) -> String {
    format!("{}: no build id tells whether the kernel's {what} there are the recorded one's", path.display())
}

/// Holds a vmlinux against the build id of the recorded kernel. Returns a note if there is none to hold it against.
fn is_recorded_kernel(
    path: &Path,
    bytes: &[u8],
    was: Option<&BuildId>,
) -> Result<Option<String>, ImportError> {
    match (BuildId::of_elf(bytes), was) {
        (Some(is), Some(was)) if is == *was => Ok(None),
        (Some(is), Some(was)) => Err(ImportError::format(
            path,
            "build id",
            format!("the recorded kernel's, {was} (this is {is}, another build)"),
        )),
        _ => Ok(Some(format!("{}: used without a build id to hold it against", path.display()))),
    }
}

/// A note if the symbols are of another boot, or of another kernel: perf records the address of one of them.
fn moved_kernel(kallsyms: &[u8], maps: &[Mapped]) -> Option<String> {
    maps.iter().find_map(|m| {
        let name = m.path.strip_prefix(KERNEL).filter(|name| !name.is_empty() && is_kernel(m.pgoff))?;
        // The kernel shows 0 for the addresses that it hides.
        let is = value_of(kallsyms, name).filter(|&is| is != 0 && is != m.pgoff)?;
        Some(format!(
            "the kernel's symbols have {name} at {is:#x}, and the recorded kernel had it at {:#x}: they are of another boot or kernel, and \
             not used",
            m.pgoff
        ))
    })
}

/// The kernel's initial code, and its symbols.
fn kernel_code(
    parts: &Parts,
    history: &History<'_>,
    capture: &mut Capture,
) -> Result<Vec<Placed>, ImportError> {
    match moved_kernel(&parts.kallsyms, &history.kernel_maps) {
        Some(note) => capture.notes.push(note),
        None => capture.kallsyms.clone_from(&parts.kallsyms),
    }
    capture.modules_list.clone_from(&parts.modules);
    let mut regions = Vec::new();
    if let Some((path, bytes)) = &parts.kcore {
        regions = kcore::code(path, bytes, 0)?;
    }
    if let Some((path, bytes)) = &parts.vmlinux {
        let place = history.kernel_maps.iter().find_map(|m| {
            let name = m.path.strip_prefix(KERNEL)?;
            kcore::slide(bytes, name, m.pgoff)
        });
        if place.is_none() {
            capture.notes.push(format!("{}: taken to have run where it was linked", path.display()));
        }
        let slide = place.unwrap_or(0);
        if regions.is_empty() {
            regions = kcore::code(path, bytes, slide)?;
        }
        if capture.kallsyms.is_empty() {
            capture.kallsyms = kcore::symbols(bytes, slide).into_bytes();
        }
    }
    Ok(regions.into_iter().map(|r| capture.add_region(r.va, r.bytes)).collect())
}

/// Adds streams with their code, tasks, switches.
fn fill(
    capture: &mut Capture,
    traces: Vec<Trace>,
    history: &History<'_>,
    info: &Info,
    (kernel, bpf): (&[Placed], &passing::Code),
    finder: &mut Finder,
) {
    let clock = capture.clock;
    let ns = |t: u64| info.ns(t);
    let branches = capture.flow != Flow::Events;
    let entry = value_of(&capture.kallsyms, "__switch_to").filter(|_| history.cpu_wide && branches);
    let mut wanted = place::times(&history.lives, ns);
    wanted.extend(history.pokes.iter().map(|p| ns(p.0)).chain(bpf.timed.iter().map(|(t, _)| ns(*t))));
    wanted.sort_unstable();
    wanted.dedup();
    let poked: Vec<usize> =
        history.pokes.iter().map(|(_, va, _, new)| capture.add_region(*va, new.to_vec()).region).collect();
    let names = Names::new(history, ns);
    let vsyscall = history.vsyscall.then(|| capture.add_region(spaces::VSYSCALL_PAGE, vsyscall_page()));
    let mut regions = place::Regions::default();
    let mut in_kernel = false;
    for trace in with_gaps(traces) {
        let cpu = capture.streams.len();
        let spaces = spaces::find(&trace, history, clock, ns, &wanted, (entry.is_some(), branches));
        in_kernel |= spaces.kernel;
        if spaces.back > 0 {
            capture.notes.push(format!(
                "{}: the clock goes back {}: what ran until it has caught up has no time of its own",
                label(&trace),
                counted(spaces.back, "times")
            ));
        }
        if spaces.doubtful > 0 {
            capture.notes.push(format!(
                "{}: {} between two times of the trace that are too far apart to tell them: which task ran what there \
                 is guessed (record with mtc or cyc)",
                label(&trace),
                counted(spaces.doubtful, "task switches")
            ));
        }
        if spaces.guessed > 0 {
            capture.notes.push(format!(
                "{}: {} several programs ran between two times of the trace: whose code it was is guessed (record with mtc or cyc)",
                label(&trace),
                counted(spaces.guessed, "times")
            ));
        }
        if spaces.nobody > 0 {
            capture.notes.push(format!(
                "{}: {} programs ran while the CPU is idle by the records: which task ran up to the next record is not known (-1)",
                label(&trace),
                counted(spaces.nobody, "times")
            ));
        }
        if spaces.unknown > 0 {
            capture.notes.push(format!(
                "{}: the programs of {} are not known, as the trace has no times: their code is not decoded",
                label(&trace),
                counted(spaces.unknown, "address spaces")
            ));
        }
        let place_at = |t: u64| {
            let index = wanted.partition_point(|&w| w < t);
            let of = |values: &[u64]| values.get(index).copied();
            place::Place {
                offset: of(&spaces.offsets).unwrap_or(u64::MAX),
                apart: of(&spaces.apart).unwrap_or(0),
            }
        };
        let mut placed = Vec::new();
        if spaces.kernel {
            // Before the rest: kcore may have been copied when there was different code.
            placed.extend_from_slice(&bpf.always);
            placed.extend_from_slice(kernel);
            let at = |t: u64| place_at(ns(t)).offset;
            placed.extend(bpf.timed.iter().map(|(t, placed)| Placed { offset: at(*t), ..*placed }));
            placed.extend(history.pokes.iter().zip(&poked).map(|((t, va, _, _), &region)| Placed {
                region,
                va: *va,
                asid: 0,
                offset: place_at(ns(*t)).offset,
                replaces: true,
                gone: 0,
            }));
        }
        placed.extend(vsyscall);
        let (programs, doubtful) = place::user(&spaces, history, ns, place_at, &mut regions, finder, capture);
        placed.extend(programs);
        if doubtful > 0 {
            capture.notes.push(format!(
                "{}: {} a mapping takes another one's place between two times of the trace that are too far apart to tell \
                 when: which code ran there is guessed (record with mtc or cyc)",
                label(&trace),
                counted(doubtful, "times")
            ));
        }
        let first = switches(&trace, cpu, &spaces, history, entry, ns, &names, capture);
        capture.streams.push(Stream { label: label(&trace), pt: trace.pt, regions: placed, first });
    }
    capture.programs_only = !in_kernel && branches;
    if in_kernel && kernel.is_empty() {
        capture.notes.push(
            "the kernel was traced, but its code is not here: record with `perf record --kcore`, or name it with \
             --kcore or --vmlinux"
                .to_owned(),
        );
    }
    // Files that the export made of code without a file have no symbols.
    capture.modules.iter_mut().filter(|m| is_made(&m.path)).for_each(|module| module.file = None);
    capture.tasks = names.all();
}

/// The page of the old system calls, which is the same in every kernel (arch/x86/entry/vsyscall/vsyscall_emu_64.S): gettimeofday,
/// time, getcpu. Kernels since 5.3 let no program execute it; calls to it fault at their first instruction.
fn vsyscall_page() -> Vec<u8> {
    const CALLS: [u32; 3] = [96, 201, 309];
    let mut page = vec![0xcc; crate::PAGE as usize];
    for (place, number) in page.chunks_mut(1024).zip(CALLS) {
        // mov $number, %rax; syscall; ret
        place[..3].copy_from_slice(&[0x48, 0xc7, 0xc0]);
        place[3..7].copy_from_slice(&number.to_le_bytes());
        place[7..10].copy_from_slice(&[0x0f, 0x05, 0xc3]);
    }
    page
}

/// A stream for each CPU up to the last, so that CPU numbers are preserved.
fn with_gaps(traces: Vec<Trace>) -> Vec<Trace> {
    const MOST: u32 = 1024;
    let cpus: Vec<u32> = traces.iter().filter_map(|t| t.cpu).collect();
    let Some(&last) = cpus.last().filter(|&&last| last < MOST && cpus.len() == traces.len()) else {
        return traces;
    };
    let mut traces = traces.into_iter().peekable();
    let empty = |cpu| Trace { cpu: Some(cpu), tid: None, pt: Bytes::default(), losses: 0 };
    (0..=last).map(|cpu| traces.next_if(|t| t.cpu == Some(cpu)).unwrap_or_else(|| empty(cpu))).collect()
}

/// Adds the switches of one stream. Returns the task that runs first, if only that is known.
#[allow(clippy::too_many_arguments)]
fn switches(
    trace: &Trace,
    cpu: usize,
    spaces: &Spaces,
    history: &History<'_>,
    entry: Option<u64>,
    ns: impl Fn(u64) -> u64,
    names: &Names,
    capture: &mut Capture,
) -> Option<(u32, u64)> {
    let task = |thread: Thread, t: u64| match thread {
        tasks::UNKNOWN => Task { pid: thread.0, tgid: thread.1, comm: UNKNOWN_TASK.2.to_owned(), t },
        known => names.task(known, t, cpu),
    };
    if !spaces.turns.is_empty() {
        let mut prev = spaces.turns[0].thread;
        for turn in &spaces.turns {
            capture.switches.push(Switched {
                t: turn.ns,
                cpu,
                at: SwitchAt::Offset { offset: turn.offset, asid: turn.asid },
                prev: task(prev, turn.ns),
                next: task(turn.thread, turn.ns),
            });
            prev = turn.thread;
        }
        return None;
    }
    let turns = trace.cpu.and_then(|cpu| history.turns.get(&cpu))?;
    let first = turns.first().map(|t| (t.prev.unwrap_or(t.next).0, spaces.first_ns));
    let told = turns.iter().filter_map(|t| Some((t, t.prev?)));
    for (turn, prev) in told {
        let t = ns(turn.ns);
        let at = SwitchAt::Entry(entry?);
        capture.switches.push(Switched { t, cpu, at, prev: task(prev, t), next: task(turn.next, t) });
    }
    first
}

/// Names of threads over time.
struct Names(BTreeMap<Thread, Vec<(u64, String)>>);

impl Names {
    fn new(history: &History<'_>, ns: impl Fn(u64) -> u64) -> Self {
        let mut names: BTreeMap<Thread, Vec<(u64, String)>> = BTreeMap::new();
        for name in &history.names {
            names.entry(name.thread).or_default().push((ns(name.ns), name.comm.clone()));
        }
        Self(names)
    }

    fn task(&self, thread: Thread, t: u64, cpu: usize) -> Task {
        let (pid, tgid) = thread;
        let own = self.0.get(&thread).map_or(&[][..], |names| names);
        let index = own.partition_point(|n| n.0 <= t).saturating_sub(1);
        let comm = match own.get(index) {
            Some((_, comm)) => comm.clone(),
            None if pid == 0 => format!("swapper/{cpu}"),
            None => String::new(),
        };
        Task { pid, tgid, comm, t }
    }

    fn all(self) -> Vec<Task> {
        let named = |((pid, tgid), names): (Thread, Vec<(u64, String)>)| {
            names.into_iter().map(move |(t, comm)| Task { pid, tgid, comm, t })
        };
        let mut tasks: Vec<Task> = self.0.into_iter().flat_map(named).collect();
        tasks.sort_by_key(|task| task.t);
        tasks
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::with_build_id;
    use super::*;

    #[test]
    fn symbols_of_another_boot_are_told() {
        let map =
            |path: &str, pgoff| Mapped { path: path.to_owned(), pgoff, kernel: true, ..Mapped::default() };
        let here =
            [map("[ext4]", 0xffff_ffff_c000_0000), map("[kernel.kallsyms]_text", 0xffff_ffff_8100_0000)];
        let told = |text: &str| moved_kernel(text.as_bytes(), &here);
        assert_eq!(told("ffffffff81000000 T _text\n"), None);
        // Hidden, and not there.
        assert_eq!(told("0000000000000000 T _text\n"), None);
        assert_eq!(told("ffffffff92000000 T _stext\n"), None);
        let note = told("ffffffff92000000 T _text\n").expect("a note");
        assert!(note.contains("0xffffffff92000000") && note.contains("0xffffffff81000000"), "{note}");
        // Addresses that perf may not see are 0.
        assert_eq!(moved_kernel(b"ffffffff92000000 T _text\n", &[map("[kernel.kallsyms]_text", 0)]), None);
    }

    #[test]
    fn a_kernel_of_another_build_is_refused_with_both_ids() {
        let file = with_build_id(&[7; 20]);
        let held = |was: Option<[u8; 20]>| {
            is_recorded_kernel(Path::new("vmlinux"), &file, was.and_then(|id| BuildId::new(&id)).as_ref())
        };
        assert!(held(Some([7; 20])).is_ok_and(|note| note.is_none()));
        let error = held(Some([8; 20])).unwrap_err().to_string();
        assert!(error.contains(&"07".repeat(20)) && error.contains(&"08".repeat(20)), "{error}");
        let note = held(None).unwrap().expect("a note");
        assert!(note.starts_with("vmlinux: used without a build id"), "{note}");
    }
}
