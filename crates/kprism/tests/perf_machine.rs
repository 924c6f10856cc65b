// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf.data as of real machines: the packets are a guest's (`kprism lab run`), the clock, the speed and the settings are changed
//! to those that machines have and the lab has not. perf judges: instructions by task, and times to the nanosecond.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use guest::{json, kprism, ok, script, text};
use kprism_flow::clock::PerfTime;
use kprism_perfdata::attr::{flag, kind, pt};
use kprism_perfdata::{Attr, Contents, Features, Record, TimeConv, Trailer};
use kprism_pt::{IpPayload, Packet};
use kprism_test::{PERF, QEMU, captures, needs, of_today, test};
use made::{NONE, Piece, Recording};
use serde_json::Value;

mod guest;
#[path = "perf_shapes/made.rs"]
#[allow(dead_code)]
mod made;

/// A run of the lab, its export, and a folder for more.
struct Place {
    dir: tempfile::TempDir,
    data: Vec<u8>,
}

impl Place {
    fn new(options: &[&str], command: &str) -> Self {
        needs(&[QEMU, PERF]);
        let dir = tempfile::tempdir().unwrap();
        let (run, exported) = (dir.path().join("run"), dir.path().join("run.perf.data"));
        let lab = [&["lab", "run", "-q"], options, &["-o", text(&run), "--", "sh", "-c", command]];
        ok(&lab.concat());
        ok(&["export", "-q", "-i", text(&run), "-o", text(&exported)]);
        let data = fs::read(exported.join("data")).unwrap();
        Self { dir, data }
    }

    fn contents(&self) -> Contents<'_> {
        let mut contents = Contents::default();
        kprism_perfdata::read(&self.data, &mut contents);
        contents
    }

    /// A folder as perf's, with this recording and the kernel's code.
    fn folder(&self, name: &str, recording: &Recording<'_>) -> PathBuf {
        let folder = self.dir.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("data"), whole(recording)).unwrap();
        let kcore = self.dir.path().join("run.perf.data/kcore_dir");
        std::os::unix::fs::symlink(kcore, folder.join("kcore_dir")).unwrap();
        folder
    }

    fn symfs(&self) -> PathBuf {
        self.dir.path().join("run.perf.data/symfs")
    }

    fn import(&self, folder: &Path) -> PathBuf {
        self.import_with(folder, &self.symfs())
    }

    /// The same, with the programs' files in this folder.
    fn import_with(&self, folder: &Path, symfs: &Path) -> PathBuf {
        let run = folder.with_extension("kprism");
        ok(&["import", "-q", text(folder), "--symfs", text(symfs), "-o", text(&run)]);
        run
    }

    fn perf(&self, folder: &Path, args: &[&str]) -> Vec<String> {
        let mut perf = Command::new("perf");
        perf.args(["script", "-i", text(folder), "--symfs", text(&self.symfs())]).args(args);
        lines(perf)
    }
}

fn lines(mut command: Command) -> Vec<String> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let read = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok).collect();
    assert!(child.wait().unwrap().success());
    read
}

/// A file with each CPU's buffer in one piece.
fn whole(recording: &Recording<'_>) -> Vec<u8> {
    let piece = |(cpu, pt): (u32, &&[u8])| {
        let told = vec![[0, pt.len() as u64, 0]];
        let mut bytes = pt.to_vec();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        Piece { cpu, tid: NONE, offset: 0, bytes, told }
    };
    recording.file(&recording.rounds(&[(0..).zip(&recording.cpus).map(piece).collect()]))
}

/// The recording as of a machine with this conversion of TSC. The export's ticks are nanoseconds.
fn with_clock<'a>(recording: &Recording<'a>, clock: PerfTime) -> Recording<'a> {
    let mut new = recording.clone();
    let (mult, shift, zero) = clock.parts();
    new.words[1..4].copy_from_slice(&[shift.into(), mult, zero]);
    for record in &mut new.head {
        if let Record::TimeConv(conv) = record {
            *conv = TimeConv { shift: shift.into(), mult, zero };
        }
    }
    for (trailer, record) in &mut new.events {
        trailer.time = trailer.time.map(|ns| clock.ns(ns));
        if let Record::Fork { time, .. } = record {
            *time = clock.ns(*time);
        }
    }
    new
}

/// Instructions by thread: count, and FNV-1a over their addresses. perf changes a thread's name where its record stands in time,
/// and the flow some instructions before or after it.
type Flows = BTreeMap<u32, (u64, u64)>;

/// Of lines with a name, a thread, an address.
fn flows(lines: &[String]) -> Flows {
    let mut flows = Flows::new();
    for line in lines {
        let (rest, ip) = line.trim().rsplit_once(char::is_whitespace).expect("an address");
        let (_, tid) = rest.trim().rsplit_once(char::is_whitespace).expect("a thread");
        let ip = u64::from_str_radix(ip.trim_start_matches("0x"), 16).expect("an address");
        let tid = tid.trim_matches(['[', ']']).parse().expect("a number");
        let flow = flows.entry(tid).or_insert((0, 0xcbf2_9ce4_8422_2325));
        flow.0 += 1;
        for byte in ip.to_le_bytes() {
            flow.1 = (flow.1 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    flows
}

/// What kprism decodes, CPU by CPU, as perf lists it.
fn ours(run: &Path, cpus: usize) -> Flows {
    let mut all = Flows::new();
    for cpu in 0..cpus {
        let cpu = cpu.to_string();
        let fields = "comm,pid,ip";
        let output = kprism(&["script", "insns", "-q", "-i", text(run), "--cpu", &cpu, "--fields", fields]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let own = flows(&text.lines().map(str::to_owned).collect::<Vec<_>>());
        own.into_iter().for_each(|(key, (count, hash))| {
            let sum = all.entry(key).or_insert((0, 0));
            *sum = (sum.0 + count, sum.1.wrapping_add(hash));
        });
    }
    all
}

/// What perf decodes, in the same form.
fn theirs(place: &Place, folder: &Path, cpus: usize) -> Flows {
    let mut all = Flows::new();
    for cpu in 0..cpus {
        let cpu = cpu.to_string();
        let own = flows(&place.perf(folder, &["--itrace=i0ns", "-C", &cpu, "-F", "comm,tid,ip"]));
        own.into_iter().for_each(|(key, (count, hash))| {
            let sum = all.entry(key).or_insert((0, 0));
            *sum = (sum.0 + count, sum.1.wrapping_add(hash));
        });
    }
    all
}

/// Times of PSBs in perf's listing of `time,event`.
fn perfs_psbs(lines: &[String]) -> Vec<u64> {
    let psbs = lines.iter().filter_map(|line| line.trim().strip_suffix("psb:"));
    let ns = |time: &str| {
        let (s, ns) = time.trim().trim_end_matches(':').split_once('.').expect("seconds");
        s.parse::<u64>().unwrap() * 1_000_000_000 + ns.parse::<u64>().unwrap()
    };
    psbs.map(ns).collect()
}

/// Times of PSBs: those of the TSC packets behind them.
fn psb_times(run: &Path, cpu: &str) -> Vec<u64> {
    let mut times = Vec::new();
    let mut in_psb = false;
    for packet in script(run, &["packets", "--cpu", cpu]) {
        match packet["packet"].as_str() {
            Some("PSB") => in_psb = true,
            Some("PSBEND") => in_psb = false,
            Some("TSC") if in_psb => times.push(packet["time_ns"].as_u64().expect("a time")),
            _ => {}
        }
    }
    times
}

/// Clocks of machines: 2.89 GHz, whose kernel's clock began 3 s after the TSC, as most do; 1.2 GHz and a clock that was
/// running before, as in a virtual machine.
fn clocks() -> [PerfTime; 2] {
    [(742_350_000, 31, -3_000_000_123i64), (13_981_013, 24, 1_234_567_890)]
        .map(|(mult, shift, zero)| PerfTime::new(mult, shift, zero as u64).unwrap())
}

/// Tasks are those of perf, whatever the clock began with, and times are perf's, to the nanosecond. One clock a day.
#[test]
fn tasks_and_times_are_perfs_on_any_clock() {
    // A few million instructions: perf prints a line for each, for each clock.
    let command = "for i in 1 2; do ls / | wc -l; done";
    let place = Place::new(&["--smp", "2"], command);
    let contents = place.contents();
    let recording = Recording::new(&contents);
    for (number, clock) in of_today(clocks(), 1).into_iter().enumerate() {
        let folder = place.folder(&format!("clock{number}"), &with_clock(&recording, clock));
        let run = place.import(&folder);
        let (ours, theirs) = (ours(&run, 2), theirs(&place, &folder, 2));
        assert!(theirs.len() > 8, "tasks: {theirs:?}");
        assert_eq!(ours, theirs, "instructions by thread, counted and hashed");

        // perf tells the time of each PSB. It is that of the TSC packet behind it, unless perf's estimate at a return to a
        // program was later than the trace's next time (its `est_timestamp`): its times never go back.
        for cpu in ["0", "1"] {
            let theirs =
                perfs_psbs(&place.perf(&folder, &["--itrace=p", "--ns", "-C", cpu, "-F", "time,event"]));
            let ours = psb_times(&run, cpu);
            assert!(theirs.len() > 3 && ours.len() == theirs.len(), "CPU {cpu}: {ours:?}, perf {theirs:?}");
            let later = |(ours, theirs): (&u64, &u64)| theirs.wrapping_sub(*ours);
            let later: Vec<u64> = ours.iter().zip(&theirs).map(later).filter(|ns| *ns != 0).collect();
            assert!(
                later.len() * 20 < ours.len() && later.iter().all(|ns| *ns < 64),
                "CPU {cpu}: later by {later:?}"
            );
        }

        // The conversion stays: the run's own export has it, and decodes to the same.
        let again = folder.with_extension("again.perf.data");
        ok(&["export", "-q", "-i", text(&run), "-o", text(&again)]);
        let data = fs::read(again.join("data")).unwrap();
        let mut exported = Contents::default();
        kprism_perfdata::read(&data, &mut exported);
        let (mult, shift, zero) = clock.parts();
        let conv = TimeConv { mult, shift: shift.into(), zero };
        assert!(exported.events.iter().any(|event| event.record == Record::TimeConv(conv)));
        // Code that is in no file is named in it by its time, which is the clock's.
        let back = place.import_with(&again, &again.join("symfs"));
        let tasks = |run: &Path| {
            json(&["report", "tasks", "--json", "--limit", "0", "-i", text(run)])["rows"].clone()
        };
        assert_eq!(tasks(&back), tasks(&run));
        let info = String::from_utf8(ok(&["info", "-i", text(&run)])).unwrap();
        assert!(info.contains("of perf script and the kernel's log"), "{info}");
    }
}

/// With TSC packets only, at any speed, the times of a CPU's tasks sum to no more than the time that passed, and to nearly all
/// of it.
#[test]
fn times_sum_to_the_elapsed_time_at_any_speed() {
    let command = "ls /bin | sed s/a/z/g >/dev/null; ls /usr/lib >/dev/null";
    let place = Place::new(&["--mtc", "off", "--cyc", "off"], command);
    let contents = place.contents();
    let recording = Recording::new(&contents);
    // Nanoseconds of an instruction, in fractions of 16: from 16 instructions a ns to 5 ns an instruction.
    for sixteenths in [1, 2, 5, 16, 40, 80] {
        let clock = PerfTime::new(sixteenths << 24, 28, 77_000_000_000).unwrap();
        let folder = place.folder(&format!("speed{sixteenths}"), &with_clock(&recording, clock));
        let run = place.import(&folder);
        let report = json(&["report", "tasks", "--json", "--limit", "0", "-i", text(&run)]);
        let rows = report["rows"].as_array().expect("rows").iter();
        let sum: u64 = rows.map(|row| row["on_cpu_ns"].as_u64().expect("a time on a CPU")).sum();
        let tsc = psb_times(&run, "0");
        let (first, last) = (*tsc.first().unwrap(), *tsc.last().unwrap());
        let elapsed = last - first;
        let of = format!("{sixteenths}/16 ns an instruction: {sum} ns of {elapsed} ns");
        // What follows the last TSC packet is estimated, as the page says: without a bound, 16 instructions a ns gave half more.
        assert!(sum * 50 <= elapsed * 51 && sum * 10 > elapsed * 9, "{of}");
    }
}

/// Two tasks take turns and write values (PTWRITE), and no branches are traced.
#[test]
fn events_without_branches_have_their_tasks() {
    needs(&[PERF]);
    let dir = tempfile::tempdir().unwrap();
    let clock = PerfTime::new(742_350_000, 31, (-3_000_000_123i64) as u64).unwrap();
    let mut packets = Vec::new();
    // A period of PTWRITEs each: the tasks 7, 8, 7.
    for (turn, tsc) in (0..3u64).map(|turn| (turn, (10 << 32) + turn * 3_000_000)) {
        Packet::Psb.encode(&mut packets);
        Packet::Tsc { tsc }.encode(&mut packets);
        Packet::PsbEnd.encode(&mut packets);
        for value in 0..4 {
            Packet::Tsc { tsc: tsc + 1000 * (value + 1) }.encode(&mut packets);
            Packet::Ptw { payload: 0x100 * turn + value, size: 8, ip: true }.encode(&mut packets);
            Packet::Fup(IpPayload::Sext48(0x40_1000)).encode(&mut packets);
        }
    }
    const PTW: u64 = 1 << 12;
    const FUP_ON_PTW: u64 = 1 << 5;
    let attr = Attr {
        kind: 10,
        config: pt::ENABLE | PTW | FUP_ON_PTW | pt::TSC,
        sample_type: made::LAYOUT,
        flags: flag::DISABLED | flag::EXCLUDE_KERNEL | flag::SAMPLE_ID_ALL,
        ids: vec![1],
        ..Attr::default()
    };
    let dummy = Attr {
        kind: kind::SOFTWARE,
        config: kprism_perfdata::attr::DUMMY,
        sample_type: made::LAYOUT,
        flags: flag::EXCLUDE_KERNEL | flag::COMM | flag::TASK | flag::SAMPLE_ID_ALL | flag::CONTEXT_SWITCH,
        ids: vec![2],
        ..Attr::default()
    };
    let (mult, shift, zero) = clock.parts();
    let trailer =
        |tid, ns| Trailer { pid: Some(tid), tid: Some(tid), time: Some(ns), cpu: Some(0), id: Some(2) };
    let start = clock.ns((10 << 32) - 2000);
    let mut events = Vec::new();
    for (tid, comm) in [(7, "seven"), (8, "eight")] {
        let record = Record::Comm { pid: tid, tid, exec: true, comm: comm.to_owned() };
        events.push((trailer(tid, start), record));
    }
    events.push((trailer(7, start), Record::ItraceStart { pid: 7, tid: 7 }));
    for (turn, (prev, next)) in (1..).zip([(7, 8), (8, 7)]) {
        let ns = clock.ns((10 << 32) + turn * 3_000_000 - 1000);
        events.push((trailer(prev, ns), Record::SwitchCpuWide { out: true, pid: next, tid: next }));
    }
    let index = Record::IdIndex(vec![[1, 0, 0, u64::MAX], [2, 0, 0, u64::MAX]]);
    let conv = TimeConv { shift: shift.into(), mult, zero };
    let words = vec![
        10,
        shift.into(),
        mult,
        zero,
        1,
        pt::TSC,
        pt::NO_RET_COMPRESSION,
        3,
        0,
        1,
        pt::MTC,
        pt::MTC_PERIOD,
        1,
        1,
        pt::CYC,
        29,
        0,
        0,
    ];
    let recording = Recording {
        attrs: vec![attr, dummy],
        names: vec!["intel_pt//", "dummy:u"],
        layout: made::LAYOUT,
        words,
        head: vec![Record::TimeConv(conv), index],
        events,
        cpus: vec![&packets],
        features: Features { version: "6.1".to_owned(), cpus: 1, ..Features::default() },
    };
    let (file, run) = (dir.path().join("perf.data"), dir.path().join("run"));
    fs::write(&file, whole(&recording)).unwrap();

    let output = kprism(&["import", text(&file), "-o", text(&run)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("recorded without branches"), "{said}");
    let mut perf = Command::new("perf");
    perf.args(["script", "-i", text(&file), "--itrace=w", "--ns", "-F", "tid,time,event,synth"]);
    let theirs: Vec<(u64, u64)> = lines(perf)
        .iter()
        .filter(|line| line.contains("ptwrite"))
        .map(|line| {
            let (tid, rest) = line.trim().split_once(char::is_whitespace).expect("a thread");
            let value = rest.rsplit_once("payload: ").unwrap_or_else(|| panic!("a value: {line}")).1;
            let value = value.split_whitespace().next().expect("a number").trim_start_matches("0x");
            (tid.parse().unwrap(), u64::from_str_radix(value, 16).unwrap())
        })
        .collect();
    let ours: Vec<(u64, u64)> = script(&run, &["events"])
        .iter()
        .filter(|event| event["event"] == "ptwrite")
        .map(|event| (event["pid"].as_u64().unwrap(), hex(&event["value"])))
        .collect();
    assert_eq!(theirs.len(), 12);
    assert_eq!(ours, theirs);
}

/// Without outcomes of branches there is no flow to follow, and that is said, not counted as errors.
#[test]
fn a_trace_without_outcomes_is_refused_by_name() {
    let place = Place::new(&[], "true");
    let contents = place.contents();
    let mut recording = Recording::new(&contents);
    recording.attrs[0].config |= pt::NO_TNT;
    let folder = place.folder("notnt", &recording);
    let run = place.dir.path().join("notnt.kprism");
    let output = kprism(&["import", text(&folder), "-o", text(&run)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("DisTNT") && said.contains("--no-decode"), "{said}");
    assert!(!run.exists());
    ok(&["import", "-q", "--no-decode", text(&folder), "-o", text(&run)]);
    assert!(script(&run, &["packets"]).len() > 1000);
}

/// Samples are named for what they are.
#[test]
fn ordinary_recordings_are_named() {
    needs(&[PERF]);
    let dir = tempfile::tempdir().unwrap();
    for (options, expected) in [
        (&["-e", "cpu-clock"][..], "samples of cpu-clock"),
        (&["-e", "task-clock", "-g"], "with call stacks"),
        (&["-e", "cpu-clock,context-switches", "-c", "1000000"], "context-switches"),
    ] {
        for piped in [false, true] {
            let file = dir.path().join("perf.data");
            let mut perf = Command::new("perf");
            perf.args(["record", "-q"]).args(options).args(["-o", if piped { "-" } else { text(&file) }]);
            let made =
                perf.args(["--", "sh", "-c", "i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done"]).output();
            let made = made.expect("perf runs");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            if piped {
                fs::File::create(&file).unwrap().write_all(&made.stdout).unwrap();
            }
            let output = kprism(&["import", text(&file), "-o", text(&dir.path().join("run"))]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{said}");
            assert!(said.contains("no Intel PT in this perf.data") && said.contains(expected), "{said}");
            assert!(said.contains("perf report") && !said.contains("perf record"), "{said}");
        }
    }
}

/// Recordings of a Skylake machine (google/perf_data_converter), kernel and programs, whose code is not there: tasks, times and
/// PSBs are perf's, and what is missing counts by place.
#[test]
fn recordings_of_a_processor() {
    needs(&[PERF]);
    let data = captures("pt").join("quipper");
    let dir = tempfile::tempdir().unwrap();
    let file = data.join("perf.data.intel_pt-4.14");
    let run = dir.path().join("run");
    let said = kprism(&["import", text(&file), "-o", text(&run)]).stderr;
    assert!(String::from_utf8_lossy(&said).contains("code is not here"));
    let perf = |args: &[&str]| {
        let mut perf = Command::new("perf");
        perf.args(["script", "-i", text(&file)]).args(args);
        lines(perf)
    };
    // perf's listing of a file with a counter beside the trace has no field of its own for the time of a PSB.
    let theirs: BTreeSet<u64> = perf(&["--itrace=p", "--ns"])
        .iter()
        .filter(|line| line.contains("psb:"))
        .map(|line| line.split_whitespace().nth(3).expect("a time").replace(['.', ':'], "").parse().unwrap())
        .collect();
    let times = ["0", "1", "2", "3"].iter().flat_map(|cpu| psb_times(&run, cpu)).collect::<BTreeSet<u64>>();
    assert!(theirs.len() == 10 && times == theirs, "{times:?}, perf {theirs:?}");
    let branches = perf(&["--itrace=b", "-F", "tid"]);
    let theirs: BTreeSet<u64> = branches.iter().map(|line| line.trim().parse().expect("a thread")).collect();
    let report = json(&["report", "tasks", "--json", "--limit", "0", "-i", text(&run)]);
    let ran = |row: &&Value| row["on_cpu_ns"].as_u64() != Some(0);
    let rows: Vec<&Value> = report["rows"].as_array().unwrap().iter().filter(ran).collect();
    let ours: BTreeSet<u64> = rows.iter().map(|row| row["pid"].as_u64().unwrap()).collect();
    assert_eq!(ours, theirs, "tasks that ran: {rows:?}");
    let [first, last] = [psb_times(&run, "3")[0], *psb_times(&run, "0").last().unwrap()];
    let sum: u64 = rows.iter().map(|row| row["on_cpu_ns"].as_u64().unwrap()).sum();
    // One task at a time on one CPU: what passed, and not much less.
    assert!(sum <= last + 300_000 - first && sum > (last - first) / 2, "{sum} ns of {} ns", last - first);

    // Each page of missing code is one error, and perf's are among them.
    let page = |text: &str| u64::from_str_radix(text, 16).unwrap() >> 12;
    let rows = json(&["report", "errors", "--json", "--limit", "0", "-i", text(&run)])["rows"].clone();
    let kinds = rows.as_array().unwrap().iter().map(|row| row["kind"].as_str().unwrap());
    let pages: Vec<u64> = kinds
        .filter_map(|kind| kind.strip_prefix("no code known at 0x")?.split(' ').next())
        .map(page)
        .collect();
    let once: BTreeSet<u64> = pages.iter().copied().collect();
    assert_eq!(once.len(), pages.len());
    let errors = perf(&["--itrace=e"]);
    let theirs = errors.iter().filter_map(|line| line.split_once(" ip 0x")?.1.split(' ').next()).map(page);
    let theirs: BTreeSet<u64> = theirs.collect();
    assert!(theirs.len() > 5 && theirs.is_subset(&once), "{theirs:x?}");

    // The other went through a pipe.
    let piped = dir.path().join("piped");
    kprism(&["import", text(&data.join("perf.data.piped.intel_pt-4.14")), "-o", text(&piped)]);
    let report = json(&["report", "tasks", "--json", "--limit", "0", "-i", text(&piped)]);
    let rows = report["rows"].as_array().unwrap();
    let echo = rows.iter().find(|row| row["comm"] == "echo").expect("the command");
    assert!(echo["on_cpu_ns"].as_u64().unwrap() > 500_000, "{rows:?}");
}

/// A number in hex.
fn hex(value: &Value) -> u64 {
    let text = value.as_str().unwrap_or_else(|| panic!("a number in hex: {value}"));
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

kprism_test::main!();
