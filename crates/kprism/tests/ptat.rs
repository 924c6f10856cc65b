// SPDX-License-Identifier: MIT OR Apache-2.0
//! `record tlb --method ptat` in a guest with the unmodified kernel: a stride's walks, read off the bus, are those
//! predicted, to the count (PTAT paper, 5.2). Needs what `scripts/setup.sh test` installs, the kernel's headers (fetched
//! once), and the agent built beside the tests.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use kprism_test::{APT, GCC, QEMU, ROOT, needs, of_today, test, turn};
use kprism_tlb::PageSize;
use kprism_tlb::bus::layout::{Encoder, HMTT, Layout, Order};
use kprism_tlb::bus::mappings::{self, Record};
use kprism_tlb::bus::trace::{self, Kind};
use kprism_tlb::stream::{Event, Reader};
use serde_json::{Value, json};

const PAGES: u64 = 8192;
const ROUNDS: u64 = 3;

fn ok(command: &mut Command) -> String {
    let output = command.output().expect("a program");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn kprism() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kprism"))
}

/// The program and the module, for the kernel that the guest has, and a folder of the test's own.
struct Built {
    dir: tempfile::TempDir,
    program: PathBuf,
    module: PathBuf,
}

impl Built {
    fn new() -> Self {
        static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
        needs(&[QEMU, APT, GCC]);
        let dir = tempfile::tempdir().expect("a folder");
        // Once for all tests of this program.
        let (program, module) = BUILT.get_or_init(|| build(dir.path())).clone();
        Built { dir, program, module }
    }

    /// Records the stride; gives the run and the array's bounds.
    fn record(&self, name: &str, how: &[&str], words: &[&str]) -> (PathBuf, u64, u64) {
        let (run, begin, end, said) = self.record_saying(name, how, words);
        assert!(!said.contains("region was full"), "{said}");
        (run, begin, end)
    }

    /// The same, and what was said beside it.
    fn record_saying(&self, name: &str, how: &[&str], words: &[&str]) -> (PathBuf, u64, u64, String) {
        let run = self.dir.path().join(name);
        let mut record = kprism();
        record.args(["record", "tlb", "--share"]).arg(format!("{}:/bench/stride", self.program.display()));
        if how.contains(&"ptat") {
            record.arg("--ptat").arg(&self.module);
        }
        record.args(how).arg("-o").arg(&run).args(["--", "/bench/stride"]).args(words);
        let output = record.output().expect("kprism");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !said.contains("could not be unloaded"), "{said}");
        let printed = String::from_utf8(output.stdout).expect("UTF-8");
        let mut bounds = printed.split(' ').map(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16));
        let (Some(Ok(begin)), Some(Ok(end))) = (bounds.next(), bounds.next()) else { panic!("{printed}") };
        (run, begin, end, said)
    }
}

/// Builds the program and the module. `scratch` is a folder for the guest that tells its kernel.
fn build(scratch: &Path) -> (PathBuf, PathBuf) {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ptat");
    std::fs::create_dir_all(&place).expect("a folder");
    let program = place.join("stride");
    ok(Command::new("cc")
        .args(["-O2", "-static", "-o"])
        .arg(&program)
        .arg(root().join("bench/tlb/stride.c")));
    let probe = scratch.join("probe");
    let release =
        ok(kprism().args(["-q", "lab", "run", "--unobserved", "-o"]).arg(&probe).args(["--", "uname", "-r"]));
    let module = place.join("module");
    ok(Command::new("sh").arg(root().join("kmod/ptat/build.sh")).arg(release.trim()).arg(&module));
    (program, module.join("ptat.ko"))
}

/// Addresses that missed altogether, of all tasks of a run or of one.
fn missed(run: &Path, only: Option<u32>) -> Vec<u64> {
    let stream = std::fs::read(run.join("streams/tlb/cpu0.miss")).expect("misses");
    let mut now = 0;
    Reader::new(&stream)
        .expect("a header")
        .filter_map(|event| match event.expect("an event") {
            Event::Task { tgid, .. } => {
                now = tgid;
                None
            }
            Event::Miss(m) if m.last & 1 != 0 && only.is_none_or(|tgid| tgid == now) => Some(m.va),
            _ => None,
        })
        .collect()
}

/// Every access on the bus is explained, and none more than once. Gives them, and how many tables escaped.
fn accesses_and_escaped(run: &Path) -> (Vec<trace::Access>, u64) {
    let bytes = std::fs::read(run.join("streams/tlb/bus0.trace")).expect("the trace");
    let accesses: Vec<_> =
        trace::Reader::new(&bytes).expect("a header").map(|a| a.expect("an access")).collect();
    let counts = std::fs::read(run.join("streams/tlb/counts.json")).expect("counts");
    let counts: Value = serde_json::from_slice(&counts).expect("JSON");
    let count = |name: &str| counts["accesses"][name].as_u64();
    assert_eq!(count("all"), Some(accesses.len() as u64), "{counts}");
    assert_eq!((count("unknown"), count("outside")), (Some(0), Some(0)), "{counts}");
    assert_eq!(counts["unknown_records"].as_u64(), Some(0));
    (accesses, counts["escaped_tables"].as_u64().expect("a number"))
}

/// The same where none may escape.
fn accesses(run: &Path) -> Vec<trace::Access> {
    let (accesses, escaped) = accesses_and_escaped(run);
    assert_eq!(escaped, 0);
    accesses
}

/// The life of each entry for the array: `r` or `w`, and `0` or `v` for what the entry held.
fn lives(run: &Path, accesses: &[trace::Access], array: (u64, u64), size: PageSize) -> HashMap<u64, String> {
    let bytes = std::fs::read(run.join("streams/tlb/mappings")).expect("mappings");
    let mut tables = HashMap::new();
    for record in mappings::Reader::new(&bytes).expect("a header") {
        if let Record::Table { va, table, size: of, .. } = record.expect("a record")
            && of == size
        {
            tables.insert(table, va);
        }
    }
    let mut seen: HashMap<u64, String> = HashMap::new();
    for a in accesses.iter().filter(|a| a.bytes == 8) {
        let Some(va) = tables.get(&(a.address & !0xfff)) else { continue };
        let page = va + (a.address & 0xfff) / 8 * size.bytes();
        if (array.0..array.1).contains(&page) {
            let entry = seen.entry(page).or_default();
            entry.push(if a.kind == Kind::Read { 'r' } else { 'w' });
            entry.push(if a.value == Some(0) { '0' } else { 'v' });
        }
    }
    seen
}

#[test]
fn a_strides_walks_are_those_predicted() {
    let built = Built::new();
    let (pages, rounds) = (PAGES.to_string(), ROUNDS.to_string());
    let (run, begin, end) = built.record("run", &["--method", "ptat", "--fast"], &[&pages, &rounds]);

    // Misses: each page as it is faulted in, then round after round, in order.
    let misses: Vec<u64> = missed(&run, None).into_iter().filter(|va| (begin..end).contains(va)).collect();
    let expected: Vec<u64> = (0..=ROUNDS).flat_map(|_| (begin..end).step_by(4096)).collect();
    assert_eq!(misses.len(), expected.len());
    assert!(misses == expected, "another order");

    // What the array's entries saw, in closed form. Of each page: the walk that faults, the kernel's two looks (none
    // where the table itself is new), its write, the walk that succeeds, one a round; and on exit a read and a zero.
    let seen = lives(&run, &accesses(&run), (begin, end), PageSize::K4);
    let mut again = 0;
    for (i, va) in (begin..end).step_by(4096).enumerate() {
        let entry = &seen[&va];
        let life =
            if i % 512 == 0 { "r0wvrv" } else { "r0r0r0wvrv" }.to_owned() + &"rv".repeat(ROUNDS as usize);
        let exit = entry.strip_prefix(&life).and_then(|rest| rest.strip_suffix("w0"));
        let exit = exit.unwrap_or_else(|| panic!("{va:#x}: {entry}, expected {life}, rv, w0"));
        assert_eq!(exit.replace("rv", ""), "", "{va:#x}: {entry}");
        // The kernel reads the entry, looks whether it is to be rescheduled, and if so comes back and reads it again
        // (mm/memory.c, zap_pte_range): the only count that depends on time.
        again += exit.len() / 2 - 1;
    }
    assert!(again <= 16, "{again} entries were read again on exit");

    // Reports name the array.
    let json = ok(kprism().args(["report", "tlb", "objects", "--json", "-i"]).arg(&run));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let top = &json["rows"][0];
    assert_eq!(
        (json["source"].as_str(), top["misses"].as_u64()),
        (Some("bus"), Some(PAGES * (ROUNDS + 1))),
        "{top}"
    );
    assert_eq!(top["bytes"].as_u64(), Some(PAGES * 4096), "{top}");
}

#[test]
fn a_stride_over_huge_pages_walks_as_predicted() {
    const PAGES: u64 = 64;
    const ROUNDS: u64 = 4;
    turn(2, 1);
    let built = Built::new();
    let (pages, rounds) = (PAGES.to_string(), ROUNDS.to_string());
    let (run, begin, end) =
        built.record("run", &["--method", "ptat", "--pmd", "--fast"], &[&pages, &rounds, "2M"]);
    let two = PageSize::M2.bytes();
    let misses: Vec<u64> = missed(&run, None).into_iter().filter(|va| (begin..end).contains(va)).collect();
    let expected: Vec<u64> = (0..=ROUNDS).flat_map(|_| (begin..end).step_by(two as usize)).collect();
    assert_eq!(misses.len(), expected.len());
    assert!(misses == expected, "another order");
    let lives = lives(&run, &accesses(&run), (begin, end), PageSize::M2);
    assert_eq!(lives.len() as u64, PAGES);
    // The walk that faults and the kernel's looks until it has filled the entry; walks; what takes the page away.
    for (va, life) in lives {
        let (before, after) = life.split_once("wv").expect("an entry filled once");
        assert_eq!(before.replace("r0", ""), "", "{va:#x}: {life}");
        let walks = after.strip_suffix("w0r0").unwrap_or_else(|| panic!("{va:#x}: {life}"));
        assert_eq!(walks.replace("rv", ""), "", "{va:#x}: {life}");
        // The rounds, the access that faulted, and the kernel's looks, which brackets tell apart.
        assert!(walks.len() as u64 / 2 > ROUNDS, "{va:#x}: {life}");
    }
}

/// While a thread is in the kernel, which reads tables for it, other threads of the process walk: none of their walks is
/// taken for the kernel's. Each thread is the first to touch its pages, so that each page is walked to.
#[test]
fn threads_walk_while_others_are_in_the_kernel() {
    const PAGES: u64 = 16384;
    turn(2, 0);
    let built = Built::new();
    let threads = built.dir.path().join("threads");
    let source = root().join("bench/tlb/threads.c");
    ok(Command::new("cc").args(["-O2", "-static", "-pthread", "-o"]).arg(&threads).arg(source));
    let run = built.dir.path().join("run");
    let mut record = kprism();
    record.args(["record", "tlb", "--method", "ptat", "--fast", "--smp", "2", "--share"]);
    record.arg(format!("{}:/bench/threads", threads.display())).arg("--ptat").arg(&built.module);
    let words = ["--", "/bench/threads", "4", "stride", "64M", "4096"];
    let printed = ok(record.arg("-o").arg(&run).args(words));
    let begin =
        printed.split(' ').nth(1).and_then(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16).ok());
    let begin = begin.unwrap_or_else(|| panic!("{printed}"));
    accesses(&run);
    let array = begin..begin + (PAGES << 12);
    let walked: HashSet<u64> = missed(&run, None).into_iter().filter(|va| array.contains(va)).collect();
    assert_eq!(walked.len() as u64, PAGES, "pages that are ever walked to");
    // The account has it, and nothing is left to guess.
    let json = ok(kprism().args(["report", "tlb", "objects", "--json", "-i"]).arg(&run));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let account = json["run"]["account"].as_array().expect("an account");
    let of = |fate: &str| account.iter().filter(|e| e["fate"] == fate).collect::<Vec<_>>();
    assert!(!of("not_understood").is_empty() && !of("guessed").is_empty(), "{account:?}");
    for entry in [of("not_understood"), of("guessed"), of("lost")].concat() {
        assert_eq!(entry["count"], 0, "{entry}");
    }
}

/// A process and those that it forks: each has the misses that its accesses to its array make, in their order, under its own
/// number; one becomes another program, one has threads. On one CPU, and the next day on two.
#[test]
fn each_process_of_a_family_has_its_own_misses() {
    const ROUNDS: u64 = 2;
    let built = Built::new();
    let family = built.dir.path().join("family");
    let source = root().join("bench/tlb/family.c");
    ok(Command::new("cc").args(["-O2", "-static", "-pthread", "-o"]).arg(&family).arg(source));
    for cpus in of_today(["1", "2"], 1) {
        let run = built.dir.path().join(format!("run{cpus}"));
        let mut record = kprism();
        record.args(["record", "tlb", "--method", "ptat", "--fast", "--smp", cpus, "--share"]);
        record.arg(format!("{}:/bench/family", family.display())).arg("--ptat").arg(&built.module);
        let (pages, rounds) = (PAGES.to_string(), ROUNDS.to_string());
        record.arg("-o").arg(&run).args(["--", "/bench/family", &pages, &rounds]);
        let output = record.output().expect("kprism");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("note"), "{said}");
        let printed = String::from_utf8(output.stdout).expect("UTF-8");
        accesses(&run);
        let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).expect("an address");
        let mut names = Vec::new();
        for line in printed.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, pid, begin, end] = words.as_slice() else { panic!("{printed}") };
            let (pid, array) = (pid.parse().expect("a number"), hex(begin)..hex(end));
            let mut misses: Vec<u64> =
                missed(&run, Some(pid)).into_iter().filter(|va| array.contains(va)).collect();
            let in_order = array.clone().step_by(4096);
            let times = |times: u64| (0..times).flat_map(|_| in_order.clone()).collect::<Vec<u64>>();
            let expected = match *name {
                // Its pages are there from the process that it is a copy of.
                "fork" => times(ROUNDS),
                "exec" | "first" => times(1 + ROUNDS),
                // Two threads at once.
                "threads" => {
                    misses.sort_unstable();
                    misses.dedup();
                    times(1)
                }
                _ => panic!("{printed}"),
            };
            assert_eq!(misses.len(), expected.len(), "{name} on {cpus} CPUs");
            assert!(misses == expected, "{name} on {cpus} CPUs: another order");
            names.push((*name, pid));
        }
        assert_eq!(names.len(), 4, "{printed}");
        // The report has all of them, by name; nothing is lost or guessed.
        let json = ok(kprism().args(["report", "tlb", "processes", "--json", "-i"]).arg(&run));
        let json: Value = serde_json::from_str(&json).expect("JSON");
        for (name, pid) in names {
            let rows = json["rows"].as_array().expect("rows");
            let row =
                rows.iter().find(|row| row["tgid"] == pid).unwrap_or_else(|| panic!("{name}: {rows:?}"));
            assert_eq!(row["comm"], "family", "{row}");
        }
        for entry in json["run"]["account"].as_array().expect("an account") {
            let fine = entry["fate"] == "seen" || entry["fate"] == "kept" || entry["count"] == 0;
            assert!(fine, "{entry}");
        }
    }
}

/// A region without room: what is in it is seen as ever, what is not is counted, and the program runs on.
#[test]
fn a_full_region_is_told_and_what_escaped_is_counted() {
    const PAGES: u64 = 24576;
    turn(2, 0);
    let built = Built::new();
    let (pages, rounds) = (PAGES.to_string(), ROUNDS.to_string());
    let how = ["--method", "ptat", "--room", "20", "--fast"];
    let (run, begin, end, said) = built.record_saying("run", &how, &[&pages, &rounds]);
    let (accesses, escaped) = accesses_and_escaped(&run);
    // 48 tables for the array, others for the program; in the region 20.
    let note = format!("the region was full: {escaped} of {} page tables", escaped + 20);
    assert!(said.contains(&note), "{said}");
    assert!(escaped >= 28, "{escaped} tables escaped");
    let seen = lives(&run, &accesses, (begin, end), PageSize::K4);
    println!("{escaped} tables escaped, {} pages of the array are in the region", seen.len());
    assert!(
        !seen.is_empty() && seen.len().is_multiple_of(512),
        "{} pages are mapped by tables in the region",
        seen.len()
    );
    assert!(seen.len() as u64 + escaped * 512 >= PAGES, "{} pages, {escaped} tables", seen.len());
    // Misses are those of the pages whose tables are in the region, all of them, in order.
    let misses: Vec<u64> = missed(&run, None).into_iter().filter(|va| (begin..end).contains(va)).collect();
    let placed: Vec<u64> = (begin..end).step_by(4096).filter(|va| seen.contains_key(va)).collect();
    let expected: Vec<u64> = (0..=ROUNDS).flat_map(|_| placed.iter().copied()).collect();
    assert!(misses == expected, "{} misses, expected {}", misses.len(), expected.len());
}

/// A file system of its own, for as long as it lives.
struct Small(PathBuf);

impl Small {
    fn new(place: PathBuf, size: &str) -> Self {
        std::fs::create_dir(&place).expect("a folder");
        ok(Command::new("mount").args(["-t", "tmpfs", "-o", size, "tmpfs"]).arg(&place));
        Small(place)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// On a full disk the command runs on; what was recorded is kept, the rest counted, and the run has failed. Without room for the
/// guest's own files, it is said at once.
#[test]
fn a_full_disk_is_told_and_what_was_written_is_kept() {
    needs(&[ROOT]);
    turn(2, 1);
    let built = Built::new();
    let record = |run: &Path| {
        let share = format!("{}:/bench/stride", built.program.display());
        let mut record = kprism();
        record.args(["record", "tlb", "--method", "ptat", "--fast", "--share", &share, "--ptat"]);
        record.arg(&built.module).arg("-o").arg(run).args(["--", "/bench/stride", "8192", "12"]);
        let output = record.output().expect("kprism");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let none = Small::new(built.dir.path().join("none"), "size=1m");
    let (code, said) = record(&none.0.join("run"));
    assert!(code == Some(125) || code == Some(2), "{said}");
    assert!(said.contains("disk is full") && said.contains("none/run"), "{said}");

    // The kernel's symbols take nearly 12 MB of it, the whole trace would take 2.
    let small = Small::new(built.dir.path().join("small"), "size=13m");
    let run = small.0.join("run");
    let (code, said) = record(&run);
    assert_eq!(code, Some(125), "{said}");
    assert_eq!(
        said.matches("No space left").count(),
        1 + said.matches("tlb_misses is not kept").count(),
        "{said}"
    );
    let json = ok(kprism().args(["report", "tlb", "objects", "--json", "-i"]).arg(&run));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let lost = json["run"]["account"]
        .as_array()
        .expect("an account")
        .iter()
        .find(|e| e["unit"] == "accesses not written");
    assert!(lost.is_some_and(|e| e["count"].as_u64() > Some(0)), "{json}");
    assert!(json["rows"][0]["misses"].as_u64() > Some(8192), "{json}");
}

/// Longest common subsequence, each place paired as early as can be: for each place in `a`, its partner in `b`.
fn paired(a: &[u64], b: &[u64]) -> Vec<Option<usize>> {
    let mut left = vec![vec![0u16; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            left[i][j] = match a[i] == b[j] {
                true => left[i + 1][j + 1] + 1,
                false => left[i + 1][j].max(left[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut partners) = (0, 0, vec![None; a.len()]);
    while i < a.len() && j < b.len() {
        if a[i] == b[j] {
            partners[i] = Some(j);
            (i, j) = (i + 1, j + 1);
        } else if left[i + 1][j] >= left[i][j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    partners
}

/// Numbers of walks that are not in the order of the accesses. A page's first walk belongs to its first access; that much is
/// certain, and anchors the rest: between two such walks lie walks to accesses that are between theirs. (A longest common
/// subsequence of all would not do: rounds are alike, and it may lay a walk on a later round for one out of order.)
fn out_of_order(walks: &[u64], touched: &[u64]) -> Vec<usize> {
    let mut first_touch = HashMap::new();
    for (j, page) in touched.iter().enumerate() {
        first_touch.entry(*page).or_insert(j);
    }
    let mut met = HashSet::new();
    let firsts: Vec<(usize, usize)> = walks
        .iter()
        .enumerate()
        .filter(|(_, page)| met.insert(**page))
        .filter_map(|(i, page)| Some((i, *first_touch.get(page)?)))
        .collect();
    let anchors = longest_rising(&firsts);
    let held: HashSet<usize> = anchors.iter().map(|&(i, _)| i).collect();
    let late: HashSet<usize> = firsts.iter().map(|&(i, _)| i).filter(|i| !held.contains(i)).collect();
    let mut alone: Vec<usize> = late.iter().copied().collect();
    let ends = (walks.len(), touched.len());
    let begins = anchors.iter().map(|&(i, j)| (i + 1, j + 1));
    let bounds = [(0, 0)].into_iter().chain(begins).zip(anchors.iter().copied().chain([ends]));
    for ((i0, j0), (i1, j1)) in bounds {
        let pairs = paired(&walks[i0..i1], &touched[j0..j1]);
        alone.extend((i0..i1).filter(|i| pairs[i - i0].is_none() && !late.contains(i)));
    }
    alone.sort_unstable();
    alone
}

/// The longest part of a list in which the second numbers rise.
fn longest_rising(all: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // The place that ends the best part of each length, and each place's place before it.
    let (mut ends, mut before): (Vec<usize>, Vec<Option<usize>>) = (Vec::new(), Vec::new());
    for (at, (_, j)) in all.iter().enumerate() {
        let length = ends.partition_point(|&end| all[end].1 < *j);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let mut part: Vec<_> =
        std::iter::successors(ends.last().copied(), |&at| before[at]).map(|at| all[at]).collect();
    part.reverse();
    part
}

/// Two rounds over pages, of which the second hits but for one page; the first has a walk ahead of its time, to a page that
/// comes between the rounds.
#[test]
fn a_walk_ahead_of_its_time_is_the_one_out_of_order() {
    let touched: Vec<u64> = [(0..20).collect(), vec![99], (0..20).collect::<Vec<u64>>()].concat();
    let mut walks: Vec<u64> = (0..20).collect();
    walks.insert(5, 99);
    walks.push(7);
    assert_eq!(out_of_order(&walks, &touched), [5]);
    // A page whose first walk is missing shows: its walk in the second round is not in the order of first accesses.
    walks.remove(10);
    walks.push(9);
    assert_eq!(out_of_order(&walks, &touched).len(), 2);
}

/// QEMU's TLB under the bus monitor, and the observer, which here tells each access to another page than the last one:
/// one program, twice, where one instruction takes one nanosecond and addresses are not random.
#[test]
fn the_bus_and_the_observer_agree() {
    let built = Built::new();
    let geometry = built.dir.path().join("pages.json");
    let array = |serves| format!(r#"{{"entries":1,"pages":["4K","2M","1G"],"serves":[{serves}]}}"#);
    let text =
        format!(r#"{{"name":"pages","levels":[[{},{}]]}}"#, array(r#""load","store""#), array(r#""fetch""#));
    std::fs::write(&geometry, text).expect("a file");
    let still = ["--before", "echo 0 > /proc/sys/kernel/randomize_va_space"];
    let words = ["1024", "3"];
    let (bus, begin, end) = built.record("bus", &[&["--method", "ptat"], still.as_slice()].concat(), &words);
    let how = [&["-g", geometry.to_str().expect("UTF-8")], still.as_slice()].concat();
    let (observed, b, e) = built.record("observed", &how, &words);
    assert_eq!((begin, end), (b, e), "the same addresses");
    let json = ok(kprism().args(["report", "tlb", "processes", "--json", "-i"]).arg(&observed));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let tgid = json["rows"]
        .as_array()
        .and_then(|all| all.iter().find(|p| p["comm"] == "stride"))
        .and_then(|p| p["tgid"].as_u64())
        .expect("the process");
    accesses(&bus);
    let page = |va: u64| va >> 12;
    let walks: Vec<u64> = missed(&bus, None).into_iter().map(page).collect();
    let all = missed(&observed, Some(tgid as u32)).into_iter().filter(|va| va >> 47 == 0);
    let touched: Vec<u64> = all.map(page).collect();

    // A page that was walked to was accessed, and the other way round; before execve the process is another program.
    let sets = [&walks, &touched].map(|all| all.iter().copied().collect::<HashSet<u64>>());
    let only: Vec<_> = sets[0].difference(&sets[1]).collect();
    assert!(only.is_empty(), "walked to and never accessed: {only:x?}");
    let of_array = |all: &HashSet<u64>| all.iter().filter(|p| (begin..end).contains(&(*p << 12))).count();
    assert_eq!((of_array(&sets[0]), of_array(&sets[1])), (1024, 1024));

    // Walks are in the order of the accesses. What is not: the processor walks again to note that a page it has read is
    // written to; QEMU walks for code when it translates it, which can be before it runs; execve fills the new stack.
    let alone = out_of_order(&walks, &touched);
    println!(
        "{} walks, {} accesses to another page, {} out of order",
        walks.len(),
        touched.len(),
        alone.len()
    );
    assert!(alone.len() * 200 <= walks.len(), "{alone:?}");
    for &at in &alone {
        let va = walks[at] << 12;
        let (of_file, of_stack) = (va < 0x100_0000, va > 0x7fff_0000_0000);
        assert!(
            of_file || of_stack || walks[..at].contains(&walks[at]),
            "{:#x}, number {at}",
            walks[at] << 12
        );
    }
    // An access without a walk found its page in the TLB: but for those above, each page's first walk is at its first access.
}

/// A capture that is made of a recording, in a folder of its own.
struct Capture {
    dir: PathBuf,
}

impl Capture {
    fn new(built: &Built, name: &str) -> Self {
        let dir = built.dir.path().join(name);
        std::fs::create_dir(&dir).expect("a folder");
        Capture { dir }
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.dir.join(name), bytes).expect("a file");
    }

    /// Imports it; gives the run, the exit code and what was said.
    fn import(&self, json: &Value) -> (PathBuf, Option<i32>, String) {
        self.put("capture.json", json.to_string().as_bytes());
        let run = self.dir.join("run");
        let mut import = kprism();
        import.arg("import").arg(&self.dir).arg("-o").arg(&run);
        if self.dir.join("root").is_dir() {
            import.arg("--symfs").arg(self.dir.join("root"));
        }
        let output = import.output().expect("kprism");
        (run, output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Every view of a run as JSON, but for what the account tells of boards; the first miss is at time 0.
fn views(run: &Path) -> Vec<Value> {
    let views = ["objects", "processes", "pages", "heat", "distribution"];
    views
        .iter()
        .map(|view| {
            let mut json: Value =
                serde_json::from_str(&ok(kprism().args(["report", "tlb", view, "--json", "-i"]).arg(run)))
                    .expect("JSON");
            let boards = ["boards", "tags on the bus", "their entry's", "never mapped", "out of order"];
            if let Some(account) = json["run"]["account"].as_array_mut() {
                account.retain(|e| {
                    !boards.iter().any(|b| e["unit"].as_str().is_some_and(|unit| unit.contains(b)))
                });
            }
            // Of the run, its account: when and by what it was recorded is another thing. `complete` says whether the account is
            // whole, that of the boards too.
            json["run"] = json["run"]["account"].take();
            json.as_object_mut().expect("an object").remove("complete");
            json
        })
        .collect()
}

/// The words of the module, as `docs/tlb-format.md` has them, at the time of a record's last one.
fn say(out: &mut Vec<trace::Access>, mailbox: u64, time: u64, cpu: Option<u8>, words: [u64; 3]) {
    for (i, word) in (0..).zip(words) {
        out.push(trace::Access {
            time: time - 2 + i,
            address: mailbox + i * 8,
            kind: Kind::Write,
            bytes: 8,
            value: Some(word),
            cpu,
        });
    }
}

/// What is on a bus can be captured by boards in many shapes: a real recording, taken apart by bits of the address over
/// boards with clocks of their own, gives the same in every view when it is imported.
#[test]
fn a_capture_by_boards_gives_what_the_recording_gives() {
    const PAGES: u64 = 1024;
    let built = Built::new();
    let (pages, rounds) = (PAGES.to_string(), ROUNDS.to_string());
    let (direct, begin, end) = built.record("direct", &["--method", "ptat", "--fast"], &[&pages, &rounds]);
    let accesses = accesses(&direct);
    let bytes = std::fs::read(direct.join("streams/tlb/mappings")).expect("mappings");
    let records: Vec<Record> =
        mappings::Reader::new(&bytes).expect("a header").map(|r| r.expect("a record")).collect();
    let counts: Value =
        serde_json::from_slice(&std::fs::read(direct.join("streams/tlb/counts.json")).expect("counts"))
            .expect("JSON");
    let region =
        (counts["region"][0].as_u64().expect("an address"), counts["region"][1].as_u64().expect("one"));
    let side: Vec<Value> = std::fs::read_to_string(direct.join("streams/sideband.jsonl"))
        .expect("the sideband")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let vmas: Vec<&Value> = side.iter().filter(|line| line["k"] == "mmap").collect();
    let pid = side[0]["pid"].as_u64().expect("a process");
    let command = json!(["/bench/stride", pages, rounds]);
    let expected = views(&direct);

    // 1. Boards with headers of their own, one for each of four lines, with clocks that differ; wide mappings; /proc/PID/maps.
    let capture = Capture::new(&built, "boards");
    let clocks = [(1, 0), (2, -1000), (4, 77), (1, 5_000_000)];
    for (n, (times, start)) in (0..).zip(clocks) {
        let header = trace::Header { board: n, hz: times * 1_000_000_000, values: true, start };
        let mut out = trace::Writer::new(header);
        for a in accesses.iter().filter(|a| a.address >> 6 & 3 == u64::from(n)) {
            out.access(&trace::Access { time: (a.time * times).saturating_add_signed(-start), ..*a });
        }
        capture.put(&format!("board{n}"), &out.bytes);
    }
    capture.put("mappings", &bytes);
    let maps: String = vmas
        .iter()
        .map(|vma| {
            let n = |key: &str| vma[key].as_u64().expect("a number");
            let x = if vma["exec"] == true { 'x' } else { '-' };
            let path = vma["path"].as_str().expect("a path");
            format!("{:x}-{:x} r-{x}p {:x} 00:00 0 {path}\n", n("start"), n("end"), n("pgoff"))
        })
        .collect();
    capture.put("maps", maps.as_bytes());
    let boards: Vec<Value> = (0..4).map(|n| json!({"file": format!("board{n}")})).collect();
    let described = json!({"boards": boards, "mappings": {"file": "mappings", "form": "wide"}, "region": region,
        "processes": [{"pid": pid, "comm": "stride", "maps": "maps"}], "command": command});
    let (run, code, said) = capture.import(&described);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("damaged or missing files: "), "{said}");
    assert_eq!(views(&run), expected, "four boards");
    let of = |run: &Path| std::fs::read(run.join("streams/tlb/cpu0.miss")).expect("misses");
    assert!(of(&run) == of(&direct), "the same misses, byte for byte");
    // With the traced machine's files, variables have names.
    std::fs::create_dir_all(capture.dir.join("root/bench")).expect("a folder");
    std::fs::copy(&built.program, capture.dir.join("root/bench/stride")).expect("a file");
    let (run, _, said) = capture.import(&described);
    assert!(run.join("symbols/root/bench/stride").is_file() && !said.contains("note:"), "{said}");
    std::fs::remove_dir_all(capture.dir.join("root")).expect("a folder");
    // A file that is cut short is used up to there, and named.
    let cut = std::fs::read(capture.dir.join("board2")).expect("a board");
    capture.put("board2", &cut[..cut.len() / 48 * 24 + 32 + 7]);
    let (run, code, said) = capture.import(&described);
    assert_eq!(code, Some(0), "{said}");
    let place =
        format!("board2: byte {}: the file ends within a record of 24 bytes", cut.len() / 48 * 24 + 32);
    assert!(said.contains(&place), "{said}");
    let strict =
        kprism().args(["report", "tlb", "objects", "--strict", "-i"]).arg(&run).output().expect("kprism");
    assert_eq!(strict.status.code(), Some(4));

    // 2. A device's own records, of either byte order, with the module's words among the accesses: they tell everything.
    let record = "seq:16,lost:8,clock:64,write:1,size:3,cpu:8,valued:1,zero:3,address:48,value:64";
    let layout = Layout::parse(record).expect("a layout");
    let mailbox = region.0 + 0xf_ff00_0000 % (region.1 - region.0) / 4096 * 4096;
    let mailbox =
        (0..).map(|n| mailbox + n * 4096).find(|page| accesses.iter().all(|a| a.address & !0xfff != *page));
    let mailbox = mailbox.expect("a page that nobody uses");
    let mut all = Vec::new();
    say(&mut all, mailbox, accesses[0].time - 20, Some(0), [u64::from_le_bytes(*b"HPTAT001"), mailbox, 0]);
    say(&mut all, mailbox, accesses[0].time - 10, Some(0), [16, region.0, region.1]);
    let who = |kind: u64, pid: u32| kind | u64::from(pid) << 32;
    for r in &records {
        let (cpu, words) = match *r {
            Record::Table { pid, size, va, table, .. } => {
                (Some(0), [who(if size == PageSize::K4 { 5 } else { 21 }, pid), va, table])
            }
            Record::Scan { pid, begin, cpu, .. } => (cpu, [who(6, pid), begin.into(), 0]),
            _ => panic!("{r:?}"),
        };
        say(&mut all, mailbox, r.time(), cpu, words);
    }
    let last =
        accesses.iter().map(|a| a.time).chain(records.iter().map(Record::time)).max().expect("some") + 100;
    let mut ends = Vec::new();
    for vma in &vmas {
        let n = |key: &str| vma[key].as_u64().expect("a number");
        let pid = n("pid") as u32;
        ends.push([who(17, pid), n("start"), n("end")]);
        ends.push([who(18, pid), n("pgoff"), (vma["exec"] == true).into()]);
        for piece in vma["path"].as_str().expect("a path").as_bytes().chunks(16) {
            let mut two = [0; 16];
            two[..piece.len()].copy_from_slice(piece);
            let word = |at| u64::from_le_bytes(std::array::from_fn(|i| two[at + i]));
            ends.push([who(19, pid), word(0), word(8)]);
        }
    }
    ends.push([who(20, pid as u32), counts["tables"].as_u64().expect("tables"), 0]);
    for (n, words) in (1..).zip(ends) {
        say(&mut all, mailbox, last + n * 3, Some(0), words);
    }
    all.extend(&accesses);
    all.sort_by_key(|a| a.time);
    for order in [Order::Little, Order::Big] {
        let name = format!("{order:?}").to_lowercase();
        let capture = Capture::new(&built, &name);
        let mut boards = [Encoder::new(layout.clone(), order), Encoder::new(layout.clone(), order)];
        for a in &all {
            boards[(a.address >> 12 & 1) as usize].access(a);
        }
        (0..).zip(&boards).for_each(|(n, board)| capture.put(&format!("board{n}"), &board.bytes));
        let board =
            |n| json!({"file": format!("board{n}"), "record": record, "order": name, "hz": 1_000_000_000});
        let described = json!({"boards": [board(0), board(1)], "processes": [{"pid": pid, "comm": "stride"}], "command": command});
        let (run, code, said) = capture.import(&described);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(views(&run), expected, "{name}");
        assert!(of(&run) == of(&direct), "{name}: the same misses, byte for byte");
        // Records that are missing are counted by their numbers, and those that a device tells of.
        let length = layout.bytes();
        let mut lossy = boards[1].bytes.clone();
        lossy.drain(length * 300..length * 317);
        capture.put("board1", &lossy);
        let (run, code, said) = capture.import(&described);
        assert!(
            code == Some(0) && said.contains("board1: at least 17 records are missing, in 1 places"),
            "{said}"
        );
        let json = ok(kprism().args(["report", "tlb", "objects", "--json", "-i"]).arg(&run));
        let json: Value = serde_json::from_str(&json).expect("JSON");
        let lost = json["run"]["account"]
            .as_array()
            .expect("an account")
            .iter()
            .find(|e| e["unit"] == "records of the boards, at least");
        assert_eq!(lost.map(|e| e["count"].clone()), Some(17.into()));
        // Read in the other order, bits that are 0 are not, and it is said where.
        let other = if order == Order::Little { "big" } else { "little" };
        let text = described.to_string().replace(&format!("\"{name}\""), &format!("\"{other}\""));
        let (_, code, said) = capture.import(&serde_json::from_str(&text).expect("JSON"));
        assert_eq!(code, Some(2), "{said}");
    }

    // 3. HMTT's published 6 bytes: lines of 64 bytes, no values; its kernel's trace of 13-byte records, in step by tags.
    let capture = Capture::new(&built, "hmtt");
    let layout = Layout::parse(HMTT).expect("a layout");
    let mut boards = [Encoder::new(layout.clone(), Order::Little), Encoder::new(layout, Order::Little)];
    let mut kernel = [[b'@'; 16], [b'#'; 16], [b'&'; 16]].concat();
    let tables: Vec<(u64, u32, u64)> = records
        .iter()
        .filter_map(|r| match *r {
            Record::Table { pid, va, table, .. } => Some((table, pid, va)),
            _ => None,
        })
        .collect();
    let tags = 0x10_0000_0000u64;
    let (mut time, mut mapped, mut marks) = (0, HashMap::new(), 0u64);
    let mut put = |address, kind, time: &mut u64| {
        *time += 4;
        let a = trace::Access { time: *time, address, kind, bytes: 64, value: None, cpu: None };
        boards[(address >> 6 & 1) as usize].access(&a);
    };
    for a in accesses.iter().filter(|a| a.bytes == 8) {
        put(a.address, a.kind, &mut time);
        let (Kind::Write, Some(value)) = (a.kind, a.value) else { continue };
        let Some((_, pid, va)) = tables.iter().rev().find(|(table, ..)| *table == a.address & !0xfff) else {
            continue;
        };
        let va = va + (a.address & 0xfff) / 8 * 4096;
        let page = |ppn: u64| (va >> 12 << 24 | ppn & 0xff_ffff).to_le_bytes();
        let tag = if value & 1 == 1 {
            mapped.insert(a.address, va);
            kernel.extend([&[0xec], pid.to_le_bytes().as_slice(), &page(value >> 12)].concat());
            kernel.extend([&[0xed], pid.to_le_bytes().as_slice(), &a.address.to_le_bytes()].concat());
            0
        } else if mapped.remove(&a.address).is_some() {
            kernel.extend([&[0xfc], pid.to_le_bytes().as_slice(), &page(0)].concat());
            1
        } else {
            continue;
        };
        put(tags + ((marks % 64) << 20) + tag * 4096, Kind::Read, &mut time);
        marks += 1;
    }
    kernel.extend([b'$'; 16]);
    (0..).zip(&boards).for_each(|(n, board)| capture.put(&format!("board{n}"), &board.bytes));
    capture.put("kernel.kt", &kernel);
    let board = |n| json!({"file": format!("board{n}"), "record": "hmtt", "hz": 400_000_000});
    let described = json!({"boards": [board(0), board(1)], "region": region, "command": command,
        "mappings": {"file": "kernel.kt", "form": "hmtt", "tags": format!("{tags:#x}")}});
    let (run, code, said) = capture.import(&described);
    assert_eq!(code, Some(0), "{said}");
    // A line holds 8 entries, of which the first that maps a page stands for all. The rounds over the array are there, in
    // order; before them its pages were faulted in, where a line cannot tell an empty entry from its neighbours.
    let lines: Vec<u64> =
        missed(&run, None).into_iter().filter(|va| (begin..end).contains(va)).map(|va| va >> 15).collect();
    let rounds: Vec<u64> = (0..ROUNDS).flat_map(|_| (begin..end).step_by(4096)).map(|va| va >> 15).collect();
    let at = lines.windows(rounds.len()).position(|window| window == rounds);
    let at = at.unwrap_or_else(|| panic!("{} misses of the array, none of them the rounds", lines.len()));
    // At its end the kernel reads an entry, looks whether it is to be rescheduled, and may read it again.
    let after = lines.len() - at - rounds.len();
    assert!(after <= 16, "{after} misses of the array after the rounds");
    let told: Value =
        serde_json::from_slice(&std::fs::read(run.join("streams/tlb/counts.json")).expect("counts"))
            .expect("JSON");
    let count = |key: &str| told[key].as_u64();
    assert_eq!(
        (count("tags"), count("out_of_step"), count("without_entry")),
        (Some(marks), Some(0), Some(0)),
        "{told}"
    );
    assert_eq!((count("lost_records"), count("never_mapped")), (Some(0), Some(0)), "{told}");
    // A record of the kernel that is lost shows.
    let mut lossy = kernel.clone();
    lossy.drain(16 * 3..16 * 3 + 26);
    capture.put("kernel.kt", &lossy);
    let (_, code, said) = capture.import(&described);
    assert!(code == Some(0) && said.contains("1 tag on the bus without their record"), "{said}");
}

/// What a description says and the importer cannot do is refused, with the place.
#[test]
fn a_wrong_description_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("capture.json");
    std::fs::write(dir.path().join("six"), [0u8; 600]).expect("a file");
    let refused = |json: &str, why: &str| {
        std::fs::write(&path, json).expect("a file");
        let mut import = kprism();
        import.arg("import").arg(dir.path()).arg("-o").arg(dir.path().join("run"));
        let output = import.output().expect("kprism");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{json}: {said}");
    };
    refused("{", "capture.json: line 1, column 1");
    refused(r#"{"boards": []}"#, "boards: expected at least one");
    refused(r#"{"boards": [{"file": "six"}]}"#, "six: byte 0: expected KPBUS001");
    refused(r#"{"boards": [{"file": "none", "record": "hmtt", "hz": 1}]}"#, "none: No such file");
    refused(r#"{"boards": [{"file": "six", "record": "hmtt"}]}"#, "boards[0].hz: expected ticks");
    refused(r#"{"boards": [{"file": "six", "hz": 5}]}"#, "boards[0].hz: expected nothing");
    refused(
        r#"{"boards": [{"file": "six", "record": "hmtt", "hz": 1, "width": 6}]}"#,
        "unknown field `width`",
    );
    refused(r#"{"boards": [{"file": "six", "record": "seq:7,hz:1", "hz": 1}]}"#, "no field \"hz\"");
    refused(
        r#"{"boards": [{"file": "six", "record": "hmtt", "hz": 1}]}"#,
        "the words of the module ptat on the bus",
    );
    refused(
        r#"{"boards": [{"file": "six", "record": "hmtt", "hz": 1}], "mappings": {"file": "six", "form": "wide"}}"#,
        "six: byte 0: expected KPPTE002",
    );
    refused(
        r#"{"boards": [{"file": "six", "record": "hmtt", "hz": 1}], "mappings": {"file": "six", "form": "hmtt"}}"#,
        "first address of its tags",
    );
    refused(
        r#"{"boards": [{"file": "six", "record": "hmtt", "hz": 1}], "region": [8, 4]}"#,
        "region: expected [first",
    );
    std::fs::write(&path, r#"{"boards": [{"file": "six", "record": "hmtt", "hz": 1}]}"#).expect("a file");
    let output = kprism().arg("import").arg(dir.path()).arg("--no-decode").output().expect("kprism");
    assert_eq!(output.status.code(), Some(2));
    // One board's file alone.
    std::fs::write(dir.path().join("board"), b"KPBUS001........................").expect("a file");
    let output = kprism().arg("import").arg(dir.path().join("board")).output().expect("kprism");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && said.contains("describe the capture in a file capture.json"),
        "{said}"
    );
}

kprism_test::main!();
