// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `kprism flow-cost` measures in a guest, against what the paper found on a processor: figures 5 to 7 and the
//! extremes of table 1. Needs what `scripts/setup.sh test` installs.

mod guest;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use guest::{json, ok, text};
use kprism_flow::clock::ClockConfig;
use kprism_flow::event::{Event, Sink};
use kprism_flow::{Decoder, Setup};
use kprism_image::maps::{self, Dict};
use kprism_image::resolve::Regions;
use serde_json::Value;

/// The micro-benchmarks, built once.
static PROGRAMS: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/flow-cost/build.sh");
    let built = Command::new("sh").arg(script).arg(dir.path()).status();
    assert!(built.expect("sh runs").success());
    let path = dir.path().to_owned();
    (dir, path)
});

/// Rows of `kprism flow-cost ARGS`.
fn rows(args: &[&str]) -> Vec<Value> {
    let share = PROGRAMS.1.to_str().expect("a temporary path is UTF-8");
    let mut value = json(&[&["flow-cost", "-q", "--json", "--share", share], args].concat());
    assert!(value["run"]["account"].as_array().is_some_and(|all| !all.is_empty()), "{}", value["run"]);
    std::mem::take(value["rows"].as_array_mut().expect("rows"))
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

/// Rows of one sweep, packets from frequent to rare: the trace shrinks and its resolution gets worse, strictly.
fn check_trend(rows: &[Value], sweep: &str, steps: usize) {
    let rows: Vec<_> = rows.iter().filter(|r| r["sweep"] == sweep).collect();
    assert_eq!(rows.len(), steps, "{sweep}");
    for pair in rows.windows(2) {
        let text = format!("{sweep} {} and {}", pair[0]["value"], pair[1]["value"]);
        assert_eq!(pair[0]["instructions"], pair[1]["instructions"], "{text}");
        assert!(number(pair[0], "trace_bytes") > number(pair[1], "trace_bytes"), "{text}: size");
        assert!(number(pair[0], "trf") < number(pair[1], "trf"), "{text}: TRF");
    }
}

#[test]
fn size_and_resolution_are_traded_as_in_the_paper() {
    // As in the paper: PiSum, user code only.
    let user = rows(&[
        "--user",
        "--cyc",
        "1,64,4096",
        "--mtc",
        "3,7,11",
        "--psb",
        "2048,8192,32768",
        "--",
        "/share/pisum",
        "50",
    ]);
    check_trend(&user, "cyc", 3);
    check_trend(&user, "mtc", 3);
    check_trend(&user, "psb", 3);
    let trf: Vec<f64> = user.iter().map(|r| number(r, "trf")).collect();
    assert!(trf.contains(&0.0) && trf.contains(&100.0), "scaled by the extremes: {trf:?}");
    let finest = user.iter().find(|r| number(r, "trf") == 0.0).unwrap();
    assert_eq!(finest["sweep"], "cyc", "CYC packets make the sudden difference");

    let all = rows(&["--cyc", "1,1024", "--mtc", "0,8", "--psb", "2048,32768", "--", "ls", "/bin"]);
    check_trend(&all, "cyc", 2);
    check_trend(&all, "mtc", 2);
    check_trend(&all, "psb", 2);
}

#[test]
fn the_micro_benchmarks_are_the_extremes_they_are_meant_to_be() {
    // perf's default packets.
    let cost = |program: &str| {
        let command = format!("/share/{program}");
        let rows = rows(&["--user", "--sweep", "mtc", "--mtc", "3", "--", &command]);
        assert_eq!(rows.len(), 1);
        rows[0].clone()
    };
    let tips = |row: &Value| number(row, "tip_bytes") / number(row, "instructions");
    let tail = cost("tailfact");
    for other in ["parseint", "fib"] {
        let row = cost(other);
        assert!(tips(&tail) > 5.0 * tips(&row), "{other}: {} of {}", tips(&row), tips(&tail));
        assert!(number(&tail, "bits_per_insn") > number(&row, "bits_per_insn"), "{other}");
    }

    // A million rounds of five instructions, one of them a conditional branch. The program's own are exact; what else
    // runs in user mode (the guest's agent, once more or less) has no more branches than instructions.
    let (omega, epsilon) = (cost("omega-alone"), cost("epsilon-alone"));
    let own = [own("omega-alone"), own("epsilon-alone")];
    assert_eq!(own[0] - own[1], 5e6);
    let others = number(&omega, "instructions") - own[0] + number(&epsilon, "instructions") - own[1];
    assert!(others >= 0.0, "{others}");
    let more = |key: &str| number(&omega, key) - number(&epsilon, key);
    assert!((more("instructions") - 5e6).abs() <= others, "{} with {others} of others", more("instructions"));
    assert!((more("tnt_branches") - 1e6).abs() <= others, "{} with {others} of others", more("tnt_branches"));
    let flow = ["tip_bytes", "tip_pge_pgd_bytes", "fup_bytes", "mode_bytes", "pip_bytes"];
    let rest: f64 = flow.into_iter().map(more).sum();
    // A longer run has more timer interrupts.
    assert!(rest.abs() < 0.01 * more("tnt_bytes"), "{rest} bytes beside {} of TNT", more("tnt_bytes"));
}

/// How many instructions a program of the share executes in user mode.
fn own(program: &str) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let share = format!("{}:/share", text(&PROGRAMS.1));
    ok(&["lab", "run", "-q", "-o", text(&run), "--share", &share, "--", &format!("/share/{program}")]);
    let tasks = json(&["report", "tasks", "-q", "--json", "--limit", "0", "-i", text(&run)]);
    let row = tasks["rows"].as_array().unwrap().iter().find(|row| row["comm"] == program).expect("it ran");
    number(row, "user_instructions")
}

/// What time it was after how many instructions.
#[derive(Default)]
struct Times {
    insns: u64,
    points: Vec<(u64, u64)>,
}

impl Sink for Times {
    fn event(&mut self, event: Event) {
        self.insns += u64::from(event.insns);
    }

    fn time(&mut self, insns: u32, ns: u64) {
        self.insns += u64::from(insns);
        self.points.push((self.insns, ns));
    }
}

/// Records `ls` with these packets and gives the decoder's clock.
fn times(packets: &[&str]) -> Vec<(u64, u64)> {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let record = ["lab", "run", "-q", "--no-decode", "-o", text(&run)];
    ok(&[&record, packets, &["--", "ls", "/bin"]].concat());
    let read = |name: &str| std::fs::read(run.join("streams").join(name)).unwrap();
    let (dict_bytes, map, bytes) = (read("code.dict"), read("cpu0.map"), read("cpu0.pt"));
    let counts: Value = serde_json::from_slice(&read("counts.json")).unwrap();
    let number = |key: &str| counts["clock"][key].as_u64().unwrap();
    let clock = ClockConfig {
        tsc_hz: number("tsc_hz"),
        perf: None,
        art_num: number("art_num") as u32,
        art_den: number("art_den") as u32,
        mtc_freq: number("mtc_freq") as u8,
        nom_ratio: number("nom_ratio") as u8,
        cyc_threshold: number("cyc_threshold"),
    };
    let (image, _) = maps::image(&Dict::parse(&dict_bytes).0, &maps::parse_map(&map).0);
    let setup = Setup {
        image: &image,
        resolver: &Regions::default(),
        clock,
        watch: None,
        errata: Default::default(),
    };
    let mut times = Times::default();
    let stats = Decoder::new(&bytes, setup, false).run(0, bytes.len(), &mut times);
    assert_eq!((stats.errors, stats.instructions), (0, counts["vcpus"][0]["instructions"].as_u64().unwrap()));
    times.points
}

/// The same instructions happen at the same time under all packets, so cycle counts at every packet tell how wrong
/// the clock is under others: never ahead, and behind by no more than the threshold and an MTC's period allow.
#[test]
fn the_clock_is_right_under_thresholds() {
    let exact = times(&["--cyc", "on", "--mtc", "off"]);
    for (cyc, mtc, slack) in [("256", "3", 256), ("16384", "9", 16_384), ("1024", "0", 1024)] {
        let clock = times(&["--cyc", cyc, "--mtc", mtc]);
        assert!(clock.len() > 100, "{} points", clock.len());
        let mut ahead = 0;
        let mut behind = 0;
        for (insns, ns) in clock {
            let next = exact.partition_point(|&(i, _)| i <= insns);
            let Some(&(later, later_ns)) = exact.get(next) else { continue };
            // So many have ended until the next one ends, which takes a nanosecond; where the guest was idle, more time
            // passed before it began.
            let next_ended = later_ns - (later - insns - 1);
            // Time packets stand before the packet that they belong to, and so before the instructions up to it. Where code
            // was interrupted, the exact recording states that instant after the same count.
            let stated = exact[..next].last().filter(|&&(i, _)| i == insns).map_or(0, |&(_, ns)| ns);
            let latest = next_ended.max(stated);
            let earliest =
                exact[..exact.partition_point(|&(i, _)| i < insns)].last().map_or(0, |&(_, ns)| ns);
            ahead = ahead.max(ns.saturating_sub(latest));
            behind = behind.max(earliest.saturating_sub(ns));
        }
        assert_eq!(ahead, 0, "threshold {cyc}, MTC {mtc}: ns ahead of the true time");
        assert!(behind <= slack, "threshold {cyc}, MTC {mtc}: {behind} ns behind");
    }
}
