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
use kprism_perfdata::attr::{flag, kind, pt};
use kprism_perfdata::record::{aux, sample};
use kprism_perfdata::{Contents, Mapped, Record};
use kprism_pt::{PacketReader, find_psb};
use kprism_test::{PERF, QEMU, needs, test};
use made::{NONE, Piece, Recording, word};

mod guest;
#[path = "perf_shapes/made.rs"]
mod made;
#[path = "perf_shapes/thread.rs"]
mod thread;

/// The address in samples of other events, which no program runs.
const SAMPLED: u64 = 0x1230;

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
        let output =
            kprism(&["import", "--no-decode", text(path), "--symfs", text(&self.symfs()), "-o", text(&run)]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{name}: {said}");
        let notes = said.lines().filter(|line| line.starts_with("kprism: ") || line.contains("note"));
        (run, notes.map(str::to_owned).collect())
    }

    /// What perf decodes, by CPU or thread.
    fn theirs(&self, path: &Path, key: &str) -> BTreeMap<u32, Vec<u64>> {
        let mut perf = Command::new("perf");
        let data = path.join("data");
        let through_pipe = word(&fs::read(&data).unwrap(), 8) == 16;
        let input = if through_pipe { "-" } else { text(path) };
        perf.args(["script", "-i", input, "--symfs", text(&self.symfs()), "--itrace=i0ns", "-F"]);
        perf.arg(format!("{key},ip"));
        let mut cat = None;
        if through_pipe {
            // perf reads a pipe's data only from a pipe, and finds the kernel's code beside its symbols.
            let mut process = Command::new("cat").arg(&data).stdout(Stdio::piped()).spawn().unwrap();
            perf.stdin(process.stdout.take().unwrap());
            perf.arg("--kallsyms").arg(self.exported().join("kcore_dir/kallsyms"));
            cat = Some(process);
        }
        let mut child = perf.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut flows: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
            let (key, ip) = line.trim().split_once(' ').expect("a number and an address");
            let key = key.trim_matches(['[', ']']).parse().expect("a number");
            let ip = u64::from_str_radix(ip.trim(), 16).expect("an address");
            // perf lists the samples of other events, too.
            if ip != SAMPLED {
                flows.entry(key).or_default().push(ip);
            }
        }
        assert!(child.wait().unwrap().success());
        assert!(cat.is_none_or(|mut cat| cat.wait().unwrap().success()));
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
    assert_eq!(
        (ours.len(), differs),
        (theirs.len(), None),
        "{name}: instructions, and the first that differs"
    );
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

/// Before a PSB.
fn at_psb(pt: &[u8], at: usize) -> usize {
    find_psb(pt, at).unwrap_or(pt.len())
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
        let known = kind == made::PACKED[0];
        shapes.push((name, made::with_section(&packed, 27, &made::compression()), None, known));
    }

    let inside = recording.file(&recording.rounds(&pieces(recording, 5, anywhere)));
    shapes.push(("pieces that end inside packets", inside, None, false));

    let mut by_id = recording.clone();
    by_id.layout = sample::IP | sample::TID | sample::TIME | sample::ID | sample::STREAM_ID | sample::CPU;
    by_id.attrs.iter_mut().for_each(|attr| attr.sample_type = by_id.layout);
    shapes.push(("ids without a fixed place", by_id.file(&by_id.rounds(&rounds)), None, true));

    // perf looks for its own handler of the tracepoint in the flow, which did not run in the guest.
    let mut tracepoint = recording.clone();
    tracepoint.switches_by_tracepoint(372);
    let parts = tracepoint.rounds(&rounds);
    let traced = made::with_section(&tracepoint.file(&parts), 1, format);
    shapes.push(("sched:sched_switch through a pipe", made::piped(&traced), None, false));
    shapes.push(("sched:sched_switch", traced, None, false));

    let mut cycles = recording.clone();
    let ids = cycles.add_event("cycles", kind::RAW, 0x3c, sample::PERIOD | sample::ADDR);
    let samples: Vec<_> = recording
        .events
        .iter()
        .map(|(trailer, _)| {
            let cpu = trailer.cpu.unwrap();
            let words = [
                ids[cpu as usize],
                SAMPLED,
                u64::from(trailer.tid.unwrap()) << 32,
                trailer.time.unwrap(),
                0xdead,
                cpu.into(),
                1000,
            ];
            let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            (*trailer, Record::Sample(body.leak()))
        })
        .collect();
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
            // The kernel tells so at the end of the switch.
            let time = trailer.time.map(|ns| ns + 100);
            let comes = Record::SwitchCpuWide { out: false, pid: own.0.unwrap(), tid: own.1.unwrap() };
            both.events
                .push((kprism_perfdata::Trailer { pid: other.0, tid: other.1, time, ..*trailer }, comes));
        }
    }
    both.events.sort_by_key(|(trailer, _)| trailer.time);
    shapes.push(("switches from both sides", both.file(&both.rounds(&rounds)), None, true));

    // A machine's kernel and a program in it, at addresses that the host uses. perf takes them for the host's, unless it
    // runs as `perf kvm`.
    let mut guest = recording.clone();
    let machine = 4711;
    let host: Vec<Mapped> = recording
        .events
        .iter()
        .filter_map(|(_, record)| match record {
            Record::Mmap(mapped) => Some(mapped.clone()),
            _ => None,
        })
        .collect();
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
    shapes.push((
        "mappings of a guest",
        guest.file(&guest.rounds(&rounds)),
        Some("mappings of virtual machines, as only the host's flow is read"),
        false,
    ));

    let flags = |flags: u64| {
        let mut rounds = rounds.clone();
        rounds[1][1].told[0][2] = flags;
        recording.file(&recording.rounds(&rounds))
    };
    shapes.push(("PARTIAL", flags(aux::PARTIAL), Some("1 time: the trace has gaps"), true));
    shapes.push(("COLLISION", flags(aux::COLLISION), Some("1 time: a sample of trace data collided"), true));
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
    assert!(
        flows.iter().all(|flow| flow.len() > 100_000),
        "{:?}",
        flows.iter().map(Vec::len).collect::<Vec<_>>()
    );
    for (number, (name, data, note, known)) in
        whole(&recording, formats.header.tracing.unwrap()).into_iter().enumerate()
    {
        let folder = place.folder(&format!("shape{number}"), &data);
        let (run, notes) = place.import(&folder, &format!("run{number}"));
        println!("{name}: {} bytes, {notes:?}", data.len());
        assert_eq!(notes.len(), usize::from(note.is_some()), "{name}: {notes:?}");
        assert!(note.is_none_or(|note| notes[0].contains(note)), "{name}: {notes:?}");
        for file in ["cpu0.pt", "cpu1.pt", "cpu0.map", "cpu1.map", "code.dict"] {
            let read = |run: &Path| fs::read(run.join("streams").join(file)).unwrap();
            let (own, whole) = (read(&run), read(&whole_run));
            let padding =
                own.strip_prefix(&whole[..]).unwrap_or_else(|| panic!("{name}: {file} is another one"));
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
        let place =
            from + place.unwrap_or_else(|| panic!("instructions from {at} on are not in the whole run"));
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
    assert!(notes[1].contains("cpu 0: 1 place where trace data are missing"), "{notes:?}");
    for (cpu, whole) in flows.iter().enumerate() {
        let parts = parts(whole, &ours(&run, cpu));
        println!("a full buffer, CPU {cpu}: {parts:?} of {}", whole.len());
        let [(0, first), (second, rest)] = parts[..] else { panic!("two parts: {parts:?}") };
        assert!(second > first && second + rest == whole.len(), "{parts:?} of {}", whole.len());
    }

    // Snapshots, the second of which begins inside the first, and the third after the second.
    recording.words[8] = 1;
    for (name, places, count) in [("overlap", vec![30, 40, 50], 1), ("are apart", vec![20, 90], 2)] {
        // Two and a half of the steps between the places of the first.
        let ring = recording.cpus.iter().map(|pt| pt.len()).max().unwrap_or(0) / 4;
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
            // Behind a gap perf takes the code of the task that ran before it.
            if count == 1 {
                same(&format!("snapshots that {name}, CPU {cpu}"), &own, &theirs[&cpu]);
            }
        }
    }
}

/// The note about the place that is cut, and a part of the flow or an error that names the file.
#[test]
fn damaged_shapes_say_what_is_missing() {
    let place = Place::new("2", "true | cat; true");
    let contents = place.contents();
    let recording = Recording::new(&contents);
    let rounds = recording.rounds(&pieces(&recording, 5, at_packet));
    let file = recording.file(&rounds);
    let packed = made::with_section(
        &recording.file(&made::compressed(&rounds, made::PACKED[0])),
        27,
        &made::compression(),
    );
    let pipe = made::piped(&file);
    // Inside the trace data of the second round, and inside a compressed record.
    let (mut aux, mut zstd) = (Vec::new(), Vec::new());
    made::walk(&file, |at, kind, _| {
        if kind == made::AUXTRACE {
            aux.push(at)
        }
    });
    made::walk(&packed, |at, kind, _| {
        if kind == made::PACKED[0] {
            zstd.push(at)
        }
    });
    let mut hole = packed.clone();
    let (gone, next) = (zstd[1], zstd[2]);
    // A compressed record that is not there: an empty record of a type that means nothing takes its place.
    hole[gone..gone + 4].copy_from_slice(&68u32.to_le_bytes());
    let mut unfinished = file.clone();
    unfinished[48..56].fill(0);
    let mut other = file.clone();
    made::walk(&file, |at, kind, _| {
        if kind == made::AUXTRACE_INFO {
            other[at + 8] = 3
        }
    });
    let mut late = file.clone();
    made::walk(&file, |at, kind, _| {
        if kind == 68 {
            late[at..at + 4].copy_from_slice(&4000u32.to_le_bytes())
        }
    });
    assert!(next > gone);
    for (name, data, said) in [
        ("cut inside trace data", file[..aux[3] + 1000].to_vec(), "bytes of trace of"),
        ("cut inside a record", file[..aux[3] + 20].to_vec(), "a record is cut off"),
        ("a pipe, cut", pipe[..pipe.len() / 2].to_vec(), "are missing"),
        ("perf was killed", unfinished, "did not finish the file"),
        ("cut inside a compressed record", packed[..zstd[1] + 99].to_vec(), "a record is cut off"),
        ("a compressed record missing", hole, "nothing after it is used"),
        ("CoreSight's trace", other, "no Intel PT in this perf.data, but a trace of Arm CoreSight"),
        ("records of later versions", late, "5 records of type 4000"),
        ("big-endian", [b"2ELIFREP", &file[8..]].concat(), "expected PERFILE2, little-endian"),
        ("the head alone", file[..60].to_vec(), "the file ends inside its header"),
    ] {
        let folder = place.folder(&name.replace(' ', "-"), &data);
        let run = place.dir.path().join(format!("{}-run", name.replace(' ', "-")));
        let output = kprism(&[
            "import",
            "--no-decode",
            text(&folder),
            "--symfs",
            text(&place.symfs()),
            "-o",
            text(&run),
        ]);
        let text = String::from_utf8(output.stderr).unwrap();
        println!("{name}: {:?} {text}", output.status.code());
        assert!(text.contains(said), "{name}: {text}");
        match output.status.code() {
            Some(0) => {
                let own = fs::read(run.join("streams/cpu1.pt")).unwrap();
                assert!(recording.cpus[1].starts_with(&own[..own.len() - 8]), "{name}: a part of the stream");
            }
            _ => assert!(!run.exists(), "{name}: a run without a flow"),
        }
    }
}

/// Files of `perf record --switch-output`: each is whole, with the mappings so far; from the second on, packets begin in the
/// middle.
#[test]
fn slices_of_time_are_the_whole_together() {
    let place = Place::new("2", "true | cat; true");
    let contents = place.contents();
    let recording = Recording::new(&contents);
    let (whole_run, _) = place.import(&place.exported(), "base");
    let rounds = pieces(&recording, 2, at_psb);
    let slices: Vec<Vec<Vec<u64>>> = (0..2)
        .map(|number| {
            // perf writes mappings and names anew at the begin of each file.
            let data = recording.file(&recording.rounds(&rounds[number..=number]));
            let folder = place.folder(&format!("slice{number}"), &data);
            let (run, notes) = place.import(&folder, &format!("slice{number}-run"));
            assert_eq!(notes, Vec::<String>::new());
            let (own, theirs) =
                ((0..2).map(|cpu| ours(&run, cpu)).collect::<Vec<_>>(), place.theirs(&folder, "cpu"));
            for (cpu, own) in (0..).zip(&own) {
                same(&format!("slice {number}, CPU {cpu}"), own, &theirs[&cpu]);
            }
            own
        })
        .collect();
    for (cpu, (first, second)) in slices[0].iter().zip(&slices[1]).enumerate() {
        // A file that ends at a PSB does not state what ran after its last packet, and perf does not know it either: instructions
        // that need no packet, direct jumps and calls among them. The PSB of the next file states where they led.
        let whole = ours(&whole_run, cpu);
        let between = first.len()..whole.len().saturating_sub(second.len());
        println!("slices, CPU {cpu}: {between:?} of {} are in neither", whole.len());
        let together = [&first[..], whole.get(between).unwrap_or_default(), second].concat();
        same(&format!("slices, CPU {cpu}"), &together, &whole);
    }
}

/// `perf record --per-thread -e intel_pt//u`: a buffer for each thread, records without a CPU.
#[test]
fn buffers_of_threads() {
    let place = Place::new("1", "true | cat; true");
    let contents = place.contents();
    let mut recording = Recording::new(&contents);
    let clock = ClockConfig {
        tsc_hz: 1_000_000_000,
        art_num: 40,
        art_den: 1,
        mtc_freq: 3,
        nom_ratio: 10,
        ..ClockConfig::default()
    };
    let mut switches = Vec::new();
    let mut first = None;
    for (trailer, record) in &recording.events {
        if let Record::SwitchCpuWide { out: true, tid, .. } = record {
            first = first.or(trailer.tid);
            switches.push((trailer.time.unwrap(), *tid));
        }
    }
    let mut threads = BTreeMap::new();
    thread::split(recording.cpus[0], clock, first.expect("a switch"), &switches, &mut threads);
    // Threads of the kernel sent nothing. Of the program that started the command, no record tells the begin.
    threads.retain(|tid, pt: &mut Vec<u8>| *tid > 1 && pt.len() > 1000);
    assert!(threads.len() >= 3, "{:?}", threads.keys());

    recording.layout = sample::IP | sample::TID | sample::TIME | sample::IDENTIFIER;
    recording.events.retain(|(_, record)| !matches!(record, Record::SwitchCpuWide { .. }));
    recording.events.iter_mut().for_each(|(trailer, _)| trailer.cpu = None);
    recording.head.retain(|record| !matches!(record, Record::IdIndex(_)));
    // Neither switches, nor buffers of CPUs; no MTC, no CYC.
    (recording.words[7], recording.words[9]) = (0, 0);
    for attr in &mut recording.attrs {
        attr.sample_type = recording.layout;
        attr.flags = attr.flags & !flag::CONTEXT_SWITCH | flag::EXCLUDE_KERNEL;
        attr.config &= !(pt::MTC | pt::CYC);
    }
    let ids = recording.attrs.iter().flat_map(|attr| attr.ids.iter().map(|id| [*id, 0, u64::MAX, u64::MAX]));
    recording.head.push(Record::IdIndex(ids.collect()));
    let piece = |(tid, pt): (&u32, &Vec<u8>)| {
        let told = vec![[0, pt.len() as u64, 0]];
        Piece { cpu: NONE, tid: *tid, offset: 0, bytes: pt.clone(), told }
    };
    let pieces: Vec<Piece> = threads.iter().map(piece).collect();
    let folder = place.folder("threads", &recording.file(&recording.rounds(&[pieces])));
    let (run, notes) = place.import(&folder, "threads-run");
    assert_eq!(notes, Vec::<String>::new());
    let theirs = place.theirs(&folder, "tid");
    for (index, tid) in threads.keys().enumerate() {
        let own = ours(&run, index);
        println!("thread {tid}: {} instructions", own.len());
        same(&format!("thread {tid}"), &own, &theirs[tid]);
    }
}

/// `perf record --aux-sample -e '{intel_pt//,cycles}'`: what the buffer held last is in each sample.
#[test]
fn trace_data_in_samples() {
    let place = Place::new("2", "true | cat; true");
    let contents = place.contents();
    let mut recording = Recording::new(&contents);
    let (whole_run, _) = place.import(&place.exported(), "base");
    let ids = recording.add_event("cycles", kind::RAW, 0x3c, sample::PERIOD | sample::AUX);
    let (first, last) = (recording.events[0].0, recording.events.last().unwrap().0);
    let (begin, end) = (first.time.unwrap(), last.time.unwrap());
    for step in 1..=40 {
        for (cpu, pt) in (0..).zip(&recording.cpus) {
            // Each sample has some of the one before, but for one that comes late.
            let at = at_packet(pt, pt.len() * step / 41);
            let held = if step == 20 { 4096 } else { 24 << 10 };
            let ns = begin + (end - begin) * step as u64 / 41;
            let words = [ids[cpu as usize], SAMPLED, 0, ns, cpu, 1000];
            let mut body: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
            let bytes = &pt[at.saturating_sub(held)..at];
            let filled = bytes.len().next_multiple_of(8);
            body.extend((filled as u64).to_le_bytes());
            body.extend(bytes);
            body.resize(body.len() + filled - bytes.len(), 0);
            let trailer = kprism_perfdata::Trailer { time: Some(ns), ..Default::default() };
            recording.events.push((trailer, Record::Sample(body.leak())));
        }
    }
    recording.events.sort_by_key(|(trailer, _)| trailer.time);
    let folder = place.folder("samples", &recording.file(&recording.rounds(&[Vec::new()])));
    let (run, notes) = place.import(&folder, "samples-run");
    println!("samples: {notes:?}");
    let mut lost = 0;
    for cpu in 0..2 {
        let (own, whole) = (ours(&run, cpu), ours(&whole_run, cpu));
        let parts = parts(&whole, &own);
        println!("samples, CPU {cpu}: {} of {} instructions, {} parts", own.len(), whole.len(), parts.len());
        // The last sample is taken before the end.
        let ends = whole.len() - parts.last().map_or(0, |(at, len)| at + len);
        let missing = whole.len() - ends - own.len();
        assert!(parts.len() <= 2 && ends < whole.len() / 20, "{parts:?} of {}", whole.len());
        assert_eq!(missing > 0, parts.len() > 1, "{parts:?} of {}", whole.len());
        lost += parts.len() - 1;
    }
    // The late sample does not reach back to the one before it.
    assert!(lost > 0 && notes.len() == lost, "{lost}: {notes:?}");
}

kprism_test::main!();
