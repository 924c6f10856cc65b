// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf.data in each shape that `perf record -e intel_pt//` gives it: kprism and perf must read the same instructions in the
//! same order out of it, and where something is missing, kprism says so.
//!
//! The packets are a guest's (`kprism lab run`), because no processor is at hand; the records around them are written as
//! perf writes them (`made`). perf judges both.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use guest::{kprism, ok, text};
use kprism_flow::clock::ClockConfig;
use kprism_perfdata::attr::{flag, kind};
use kprism_perfdata::record::{aux, sample};
use kprism_perfdata::{Contents, Mapped, Record};
use kprism_pt::{PacketReader, find_psb};
use kprism_test::{PERF, QEMU, needs, test};
use made::{LAYOUT, NONE, Part, Piece, Recording};

mod guest;
#[path = "perf_shapes/made.rs"]
mod made;
#[path = "perf_shapes/thread.rs"]
mod thread;

/// A run and its export.
struct Place {
    dir: tempfile::TempDir,
    data: Vec<u8>,
}

impl Place {
    fn new(smp: &str, command: &str) -> Self {
        needs(&[QEMU, PERF]);
        let dir = tempfile::tempdir().unwrap();
        let (run, exported) = (dir.path().join("run"), dir.path().join("run.perf.data"));
        let lab = ["lab", "run", "-q", "--retc", "off", "--smp", smp, "-o", text(&run), "--"];
        ok(&[&lab[..], &["sh", "-c", command]].concat());
        ok(&["export", "-q", "-i", text(&run), "-o", text(&exported)]);
        let data = fs::read(exported.join("data")).unwrap();
        Self { dir, data }
    }

    fn contents(&self) -> Contents<'_> {
        let mut contents = Contents::default();
        kprism_perfdata::read(&self.data, &mut contents);
        assert_eq!(contents.notes, Vec::<String>::new());
        contents
    }

    fn exported(&self) -> PathBuf {
        self.dir.path().join("run.perf.data")
    }

    /// A folder as perf's, with this data and the kernel's code.
    fn folder(&self, name: &str, data: &[u8]) -> PathBuf {
        let folder = self.dir.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("data"), data).unwrap();
        std::os::unix::fs::symlink(self.exported().join("kcore_dir"), folder.join("kcore_dir")).unwrap();
        folder
    }

    fn symfs(&self) -> PathBuf {
        self.exported().join("symfs")
    }

    /// Imports, and tells kprism's notes.
    fn import(&self, path: &Path, name: &str) -> (PathBuf, Vec<String>) {
        let run = self.dir.path().join(name);
        let output = kprism(&["import", "--no-decode", text(path), "--symfs", text(&self.symfs()), "-o", text(&run)]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{name}: {said}");
        let notes = said.lines().filter(|line| line.starts_with("kprism: ") || line.contains("note"));
        (run, notes.map(str::to_owned).collect())
    }

    /// What perf decodes, by CPU or thread.
    fn theirs(&self, path: &Path, key: &str) -> BTreeMap<u32, Vec<u64>> {
        let mut perf = Command::new("perf");
        perf.args(["script", "-i", text(path), "--symfs", text(&self.symfs()), "--itrace=i0ns", "-F"]);
        let mut child = perf.arg(format!("{key},ip")).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut flows: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
            let (key, ip) = line.trim().split_once(' ').expect("a number and an address");
            let key = key.trim_matches(['[', ']']).parse().expect("a number");
            flows.entry(key).or_default().push(u64::from_str_radix(ip.trim(), 16).expect("an address"));
        }
        assert!(child.wait().unwrap().success());
        flows
    }
}

/// What kprism decodes of a stream.
fn ours(run: &Path, cpu: usize) -> Vec<u64> {
    let cpu = cpu.to_string();
    let args = ["script", "insns", "-q", "-i", text(run), "--cpu", &cpu, "--fields", "ip"];
    let output = kprism(&args);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| u64::from_str_radix(line.trim(), 16).expect("an address")).collect()
}

#[track_caller]
fn same(name: &str, ours: &[u64], theirs: &[u64]) {
    let differs = ours.iter().zip(theirs).position(|(a, b)| a != b);
    assert_eq!((ours.len(), differs), (theirs.len(), None), "{name}: instructions, and the first that differs");
}


/// Each CPU's buffer in as many pieces as there are rounds, cut at places that `cut` chooses.
fn pieces(recording: &Recording<'_>, rounds: usize, cut: impl Fn(&[u8], usize) -> usize) -> Vec<Vec<Piece>> {
    let piece = |round: usize, cpu: usize| {
        let pt = recording.cpus[cpu];
        let at = |round: usize| match round {
            0 => 0,
            _ if round == rounds => pt.len(),
            _ => cut(pt, pt.len() * round / rounds),
        };
        let (from, to) = (at(round), at(round + 1));
        let told = vec![[from as u64, (to - from) as u64, 0]];
        // perf fills pieces up to whole words.
        let mut bytes = pt[from..to].to_vec();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        Piece { cpu: cpu as u32, tid: NONE, offset: from as u64, bytes, told }
    };
    (0..rounds).map(|round| (0..recording.cpus.len()).map(|cpu| piece(round, cpu)).collect()).collect()
}

/// Behind a packet, as the kernel reads the buffer while tracing is off.
fn at_packet(pt: &[u8], at: usize) -> usize {
    let from = find_psb(pt, at.saturating_sub(10_000)).expect("a PSB");
    let ends = PacketReader::new(&pt[from..]).map_while(Result::ok).map(|(offset, _)| from + offset);
    ends.into_iter().find(|end| *end >= at && end % 8 != 0).unwrap_or(pt.len())
}

/// Inside packets.
fn anywhere(pt: &[u8], at: usize) -> usize {
    let end = at_packet(pt, at);
    (end..pt.len()).find(|&at| at_packet(pt, at) != at).unwrap_or(end)
}

/// The note that kprism must print of a shape, if any; and whether perf (6.1) reads the shape.
type Shape = (&'static str, Vec<u8>, Option<&'static str>, bool);

/// Shapes in which nothing is missing.
fn whole<'a>(recording: &Recording<'a>, format: &'a [u8]) -> Vec<Shape> {
    let mut shapes: Vec<Shape> = Vec::new();
    let rounds = pieces(recording, 5, at_packet);
    let parts = recording.rounds(&rounds);
    let file = recording.file(&parts);
    shapes.push(("pieces", file.clone(), None, true));
    let once = recording.file(&recording.rounds(&pieces(recording, 1, at_packet)));
    shapes.push(("pipe", made::piped(&once), None, true));
    shapes.push(("pipe in pieces", made::piped(&file), None, true));
    for (kind, name) in made::PACKED.into_iter().zip(["-z", "-z of later versions"]) {
        let packed = recording.file(&made::compressed(&parts, kind));
        let known = kind != made::COMPRESSED2;
        shapes.push((name, made::with_section(&packed, 27, &made::compression()), None, known));
    }

    let inside = recording.file(&recording.rounds(&pieces(recording, 5, anywhere)));
    shapes.push(("pieces that end inside packets", inside, None, false));

    let mut by_id = recording.clone();
    by_id.layout = sample::IP | sample::TID | sample::TIME | sample::ID | sample::STREAM_ID | sample::CPU;
    by_id.attrs.iter_mut().for_each(|attr| attr.sample_type = by_id.layout);
    shapes.push(("ids without a fixed place", by_id.file(&by_id.rounds(&rounds)), None, true));

    let mut tracepoint = recording.clone();
    tracepoint.switches_by_tracepoint(372);
    let parts = tracepoint.rounds(&rounds);
    let traced = made::with_section(&tracepoint.file(&parts), 1, format);
    shapes.push(("sched:sched_switch through a pipe", made::piped(&traced), None, true));
    shapes.push(("sched:sched_switch", traced, None, true));

    let mut cycles = recording.clone();
    let ids = cycles.add_event("cycles", kind::RAW, 0x3c, sample::PERIOD | sample::ADDR);
    let samples: Vec<_> = recording.events.iter().map(|(trailer, _)| {
        let cpu = trailer.cpu.unwrap();
        let words = [ids[cpu as usize], 0x40_1000, u64::from(trailer.tid.unwrap()) << 32, trailer.time.unwrap(), 0xdead, cpu.into(), 1000];
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        (*trailer, Record::Sample(body.leak()))
    }).collect();
    cycles.events.extend(samples);
    cycles.events.sort_by_key(|(trailer, _)| trailer.time);
    shapes.push(("cycles beside it", cycles.file(&cycles.rounds(&rounds)), None, true));

    // Who comes is told, too: a record behind each switch.
    let mut both = recording.clone();
    both.events = Vec::new();
    for (trailer, record) in &recording.events {
        both.events.push((*trailer, record.clone()));
        if let Record::SwitchCpuWide { out: true, pid, tid } = *record {
            let (own, other) = ((trailer.pid, trailer.tid), (Some(pid), Some(tid)));
            let comes = Record::SwitchCpuWide { out: false, pid: own.0.unwrap(), tid: own.1.unwrap() };
            both.events.push((kprism_perfdata::Trailer { pid: other.0, tid: other.1, ..*trailer }, comes));
        }
    }
    shapes.push(("switches from both sides", both.file(&both.rounds(&rounds)), None, true));

    // A machine's kernel and a program in it, at addresses that the host uses.
    let mut guest = recording.clone();
    let machine = 4711;
    let host: Vec<Mapped> = recording.events.iter().filter_map(|(_, record)| match record {
        Record::Mmap(mapped) => Some(mapped.clone()),
        _ => None,
    }).collect();
    let (first, _) = recording.events[0];
    for mapped in host {
        let (pid, path) = (mapped.pid, "/bin/of-the-guest".to_owned());
        let record = Record::GuestMmap(Mapped { pid, kernel: false, path, build_id: Vec::new(), ..mapped });
        guest.events.insert(0, (first, record));
    }
    let text = recording.head.iter().find_map(|record| match record {
        Record::Mmap(mapped) => Some(mapped.clone()),
        _ => None,
    });
    let path = format!("[guest.kernel.kallsyms.{machine}]");
    guest.head.push(Record::GuestMmap(Mapped { pid: machine, path, ..text.expect("the kernel's mapping") }));
    shapes.push(("mappings of a guest", guest.file(&guest.rounds(&rounds)), Some("mappings of virtual machines are not used"), true));

    let flags = |flags: u64| {
        let mut rounds = rounds.clone();
        rounds[1][1].told[0][2] = flags;
        recording.file(&recording.rounds(&rounds))
    };
    shapes.push(("PARTIAL", flags(aux::PARTIAL), Some("1 times: the trace has gaps"), true));
    shapes.push(("COLLISION", flags(aux::COLLISION), Some("1 times: a sample of trace data collided"), true));
    shapes
}

#[test]
fn shapes_in_which_nothing_is_missing() {
    let place = Place::new("2", "true | cat; true");
    let contents = place.contents();
    let recording = Recording::new(&contents);
    let captured = Path::new(env!("CARGO_MANIFEST_DIR")).join("../session/import/tests/data/sched.perf.data");
    let captured = fs::read(captured).unwrap();
    let mut formats = Contents::default();
    kprism_perfdata::read(&captured, &mut formats);
    let (whole_run, none) = place.import(&place.exported(), "base");
    assert_eq!(none, Vec::<String>::new());
    let flows: Vec<Vec<u64>> = (0..2).map(|cpu| ours(&whole_run, cpu)).collect();
    assert!(flows.iter().all(|flow| flow.len() > 100_000), "{:?}", flows.iter().map(Vec::len).collect::<Vec<_>>());
    for (number, (name, data, note, known)) in whole(&recording, formats.header.tracing.unwrap()).into_iter().enumerate() {
        let folder = place.folder(&format!("shape{number}"), &data);
        let (run, notes) = place.import(&folder, &format!("run{number}"));
        println!("{name}: {} bytes, {notes:?}", data.len());
        assert_eq!(notes.len(), usize::from(note.is_some()), "{name}: {notes:?}");
        assert!(note.is_none_or(|note| notes[0].contains(note)), "{name}: {notes:?}");
        for file in ["cpu0.pt", "cpu1.pt", "cpu0.map", "cpu1.map", "code.dict"] {
            let read = |run: &Path| fs::read(run.join("streams").join(file)).unwrap();
            let (own, whole) = (read(&run), read(&whole_run));
            let padding = own.strip_prefix(&whole[..]).unwrap_or_else(|| panic!("{name}: {file} is another one"));
            assert!(padding.len() < 8 && padding.iter().all(|&byte| byte == 0), "{name}: {file} has more");
        }
        if known {
            let theirs = place.theirs(&folder, "cpu");
            for (cpu, flow) in (0..).zip(&flows) {
                same(&format!("{name}, CPU {cpu}"), flow, &theirs[&cpu]);
            }
        }
    }
}

/// Snapshots of a ring of this size, taken at these places of each CPU's stream. perf names each by its place in the ring.
fn snapshots(recording: &Recording<'_>, ring: usize, places: &[usize]) -> Vec<Vec<Piece>> {
    let piece = |at: usize, cpu: usize| {
        let pt = recording.cpus[cpu];
        let at = at_packet(pt, pt.len() * at / 100);
        let from = at.saturating_sub(ring);
        let offset = (if from == 0 { 0 } else { at % ring }) as u64;
        let told = vec![[offset, ring as u64, aux::OVERWRITE]];
        Piece { cpu: cpu as u32, tid: NONE, offset, bytes: pt[from..at].to_vec(), told }
    };
    places.iter().map(|&at| (0..recording.cpus.len()).map(|cpu| piece(at, cpu)).collect()).collect()
}

/// The parts of `whole` that `found` consists of: its length, and where each begins in both. Parts begin with PSBs and so
/// are long.
fn parts(whole: &[u64], found: &[u64]) -> Vec<(usize, usize)> {
    const TELLING: usize = 20_000;
    let (mut parts, mut at, mut from) = (Vec::new(), 0, 0);
    while at < found.len() {
        let key = &found[at..found.len().min(at + TELLING)];
        let place = whole[from..].windows(key.len()).position(|part| part == key);
        let place = from + place.unwrap_or_else(|| panic!("instructions from {at} on are not in the whole run"));
        let len = whole[place..].iter().zip(&found[at..]).take_while(|(a, b)| a == b).count();
        parts.push((place, len));
        (at, from) = (at + len, place + len);
    }
    parts
}

#[test]
fn shapes_in_which_something_is_missing() {
    let place = Place::new("2", "true | cat; true");
    let contents = place.contents();
    let mut recording = Recording::new(&contents);
    let (whole_run, _) = place.import(&place.exported(), "base");
    let flows: Vec<Vec<u64>> = (0..2).map(|cpu| ours(&whole_run, cpu)).collect();

    // A full buffer: what came until tracing began again, with a PSB, is not in the stream, of which offsets do not tell.
    // perf reads over the place.
    let mut full = pieces(&recording, 1, at_packet);
    for piece in &mut full[0] {
        let pt = recording.cpus[piece.cpu as usize];
        let (stop, begin) = (pt.len() / 3, find_psb(pt, pt.len() / 2).unwrap());
        piece.bytes = [&pt[..stop], &pt[begin..]].concat();
        let rest = piece.bytes.len() - stop;
        piece.told = vec![[0, stop as u64, aux::TRUNCATED], [stop as u64, rest as u64, 0]];
    }
    let data = recording.file(&recording.rounds(&full));
    let (run, notes) = place.import(&place.folder("full", &data), "full-run");
    assert!(notes[0].contains("2 times: the trace buffer was full"), "{notes:?}");
    assert!(notes[1].contains("cpu 0: 1 places where trace data are missing"), "{notes:?}");
    for (cpu, whole) in flows.iter().enumerate() {
        let parts = parts(whole, &ours(&run, cpu));
        println!("a full buffer, CPU {cpu}: {parts:?} of {}", whole.len());
        let [(0, first), (second, rest)] = parts[..] else { panic!("two parts: {parts:?}") };
        assert!(second > first && second + rest == whole.len(), "{parts:?} of {}", whole.len());
    }

    // Snapshots, the second of which begins inside the first, and the third after the second.
    recording.words[8] = 1;
    for (name, places, count) in [("overlap", vec![30, 40, 50], 1), ("are apart", vec![20, 90], 2)] {
        let ring = 64 << 10;
        let taken = snapshots(&recording, ring, &places);
        let data = recording.file(&recording.rounds(&taken));
        let folder = place.folder(&format!("snapshots-{count}"), &data);
        let (run, notes) = place.import(&folder, &format!("snapshots-{count}-run"));
        println!("snapshots that {name}: {notes:?}");
        let theirs = place.theirs(&folder, "cpu");
        for (cpu, whole) in (0..).zip(&flows) {
            if recording.cpus[cpu as usize].len() < 2 * ring {
                continue;
            }
            let own = ours(&run, cpu as usize);
            let parts = parts(whole, &own);
            assert_eq!(parts.len(), count, "snapshots that {name}, CPU {cpu}: {parts:?}");
            same(&format!("snapshots that {name}, CPU {cpu}"), &own, &theirs[&cpu]);
        }
    }
}

kprism_test::main!();
