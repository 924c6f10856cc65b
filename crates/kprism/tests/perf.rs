// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest's run as perf.data: perf must find the same instructions in it, one by one, and kprism, importing it,
//! the same run. Needs what `scripts/setup.sh test` installs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use guest::{alone, json, ok, text};
use kprism_flow::event::{Event, Sink};
use kprism_flow::{Decoder, Setup};
use kprism_image::maps::{self, Dict};
use kprism_image::resolve::Regions;
use serde_json::Value;

mod guest;
#[path = "perf/packets.rs"]
mod packets;
#[path = "perf/simple_pt.rs"]
mod simple_pt;
#[path = "perf/user_only.rs"]
mod user_only;

/// Processes that follow each other on two CPUs, the vdso, signals, longjmp, and kernel code that is patched meanwhile.
const COMMAND: &str = "/share/truth; ls / | sed s/a/z/ | wc -l; date > /dev/null; sh -c 'kill -TERM $$'
    echo 1 > /sys/kernel/tracing/events/sched/sched_switch/enable; ls > /dev/null; true";

/// Number of instructions and a hash (FNV-1a) of their addresses in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Digest {
    count: u64,
    hash: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self { count: 0, hash: 0xcbf2_9ce4_8422_2325 }
    }
}

impl Digest {
    fn add(&mut self, ip: u64) {
        self.count += 1;
        for byte in ip.to_le_bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl Sink for Digest {
    const IPS: bool = true;

    fn event(&mut self, _event: Event) {}

    fn time(&mut self, _insns: u32, _ns: u64) {}

    fn ips(&mut self, ips: &[u64]) {
        ips.iter().for_each(|&ip| self.add(ip));
    }
}

/// What kprism decodes, by CPU.
fn ours(run: &Path, cpus: u32) -> BTreeMap<u32, Digest> {
    let streams = run.join("streams");
    let dict = fs::read(streams.join("code.dict")).unwrap();
    let (mut dict, None) = Dict::parse(dict) else { panic!("a damaged dictionary") };
    let files = fs::read(streams.join("code.files")).unwrap_or_default();
    assert_eq!(dict.open_files(&files, &run.join("symbols/root")), Vec::<String>::new());
    let decode = |cpu: u32| {
        let bytes = fs::read(streams.join(format!("cpu{cpu}.pt"))).unwrap();
        let (map, _) = maps::parse_map(&fs::read(streams.join(format!("cpu{cpu}.map"))).unwrap());
        let (image, _) = maps::image(&dict, &map);
        let setup = Setup {
            image: &image,
            resolver: &Regions::default(),
            clock: Default::default(),
            watch: None,
            errata: Default::default(),
        };
        let mut digest = Digest::default();
        Decoder::new(&bytes, setup, true).run(0, bytes.len(), &mut digest);
        (cpu, digest)
    };
    (0..cpus).map(decode).collect()
}

fn perf(data: &Path, args: &[&str]) -> Command {
    let mut perf = Command::new("perf");
    perf.args(["script", "-i", text(data), "--symfs"]).arg(data.join("symfs")).args(args);
    perf
}

/// What perf decodes, by CPU.
fn theirs(data: &Path) -> BTreeMap<u32, Digest> {
    let mut child =
        perf(data, &["--itrace=i0ns", "-F", "cpu,ip"]).stdout(Stdio::piped()).spawn().expect("perf runs");
    let mut digests: BTreeMap<u32, Digest> = BTreeMap::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        let (cpu, ip) = line.trim().strip_prefix('[').and_then(|l| l.split_once(']')).expect("[cpu] ip");
        let ip = u64::from_str_radix(ip.trim(), 16).expect("an address");
        digests.entry(cpu.parse().expect("a CPU")).or_default().add(ip);
    }
    assert!(child.wait().unwrap().success());
    digests
}

/// Rows of a report, without those of code that no file has, which the export names in its own way.
fn rows(run: &Path, subject: &str) -> Vec<String> {
    let report = json(&["report", subject, "--json", "--limit", "0", "-i", text(run)]);
    let rows = report["rows"].as_array().expect("rows").iter();
    let module = |row: &Value| row["module"].as_str().unwrap_or("[kernel]").to_owned();
    let named = rows.filter(|row| {
        let module = module(row);
        !module.is_empty() && module != "[anon]" && module != "[vdso]" && !module.starts_with("/kprism-code/")
    });
    let mut rows: Vec<String> = named.map(Value::to_string).collect();
    rows.sort();
    rows
}

/// Compiles a program of this folder for the guest.
fn compile(source: &str, options: &[&str], to: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let built = Command::new("cc").args(options).arg("-o").arg(to).arg(source).status();
    assert!(built.expect("a C compiler is installed").success());
}

#[test]
fn code_that_changes_in_one_process_is_exported_as_each_had_it() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let (run, data, back, share) = (place("run"), place("run.perf.data"), place("back"), place("share"));
    fs::create_dir_all(&share).unwrap();
    compile("perf/changes.c", &["-O1", "-static"], &share.join("changes"));
    ok(&["lab", "run", "-q", "--share", text(&share), "-o", text(&run), "--", "/share/changes"]);
    ok(&["export", "-i", text(&run), "-o", text(&data)]);
    let errors = perf(&data, &["--itrace=e"]).output().expect("perf runs");
    assert_eq!(String::from_utf8_lossy(&errors.stdout), "", "perf's decode errors");
    assert_eq!(ours(&run, 1), theirs(&data), "instructions by CPU, counted and hashed");
    ok(&["import", "-q", text(&data), "--symfs", text(&data.join("symfs")), "-o", text(&back)]);
    assert_eq!(ours(&run, 1), ours(&back, 1), "instructions of the import");
}

#[test]
fn perf_decodes_an_exported_run_to_the_same_instructions_and_kprism_to_the_same_run() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let (run, data, back) = (place("run"), place("run.perf.data"), place("back"));
    let share = place("share");
    fs::create_dir_all(&share).unwrap();
    compile("truth/truth.c", &["-O1"], &share.join("truth"));
    let lab = ["lab", "run", "-q", "--smp", "2", "--share", text(&share)];
    ok(&[&lab[..], &["-o", text(&run), "--", "sh", "-c", COMMAND]].concat());
    ok(&["export", "-i", text(&run), "-o", text(&data)]);

    let errors = perf(&data, &["--itrace=e"]).output().expect("perf runs");
    assert_eq!(String::from_utf8_lossy(&errors.stdout), "", "perf's decode errors");
    assert!(errors.status.success());
    let (ours, theirs) = (ours(&run, 2), theirs(&data));
    assert_eq!(ours, theirs, "instructions by CPU, counted and hashed");
    let total: u64 = ours.values().map(|digest| digest.count).sum();
    assert!(total > 1_000_000);

    ok(&["import", "-q", text(&data), "--symfs", text(&data.join("symfs")), "-o", text(&back)]);
    let (before, after) =
        (json(&["info", "--json", "-i", text(&run)]), json(&["info", "--json", "-i", text(&back)]));
    for field in ["instructions", "decode_errors", "lost_bytes", "command", "kernel", "vcpus"] {
        assert_eq!(before[field], after[field], "{field}");
    }
    assert_eq!(before["instructions"].as_u64(), Some(total));
    for cpu in 0..2 {
        let stream = format!("streams/cpu{cpu}.pt");
        assert!(fs::read(run.join(&stream)).unwrap() == fs::read(back.join(&stream)).unwrap(), "{stream}");
    }
    for subject in ["functions", "syscalls", "tasks"] {
        let (before, after) = (rows(&run, subject), rows(&back, subject));
        assert!(before.len() > 4, "{subject}");
        let differs = before.iter().zip(&after).find(|(a, b)| a != b);
        assert!(before == after, "{subject}: {} and {} rows, first: {differs:?}", before.len(), after.len());
    }
    packets::check(&run, &data);
    simple_pt::check(&run, &data, dir.path());
    user_only::check(&run, &data, dir.path());
}
