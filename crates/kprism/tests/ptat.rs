// SPDX-License-Identifier: MIT OR Apache-2.0
//! `record tlb --method ptat` in a guest with the unmodified kernel: a stride's walks, read off the bus, are those
//! predicted, to the count (PTAT paper, 5.2). Needs what `scripts/setup.sh test` installs, the kernel's headers (fetched
//! once), and the agent built beside the tests.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_tlb::bus::mappings::{self, Record};
use kprism_tlb::bus::trace::{self, Kind};
use kprism_tlb::stream::{Event, Reader};
use serde_json::Value;

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

#[test]
fn a_strides_walks_are_those_predicted() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("stride");
    ok(Command::new("cc")
        .args(["-O2", "-static", "-o"])
        .arg(&program)
        .arg(root().join("bench/tlb/stride.c")));
    let kprism = || Command::new(env!("CARGO_BIN_EXE_kprism"));
    // The release that the guest has.
    let probe = dir.path().join("probe");
    let release =
        ok(kprism().args(["-q", "lab", "run", "--unobserved", "-o"]).arg(&probe).args(["--", "uname", "-r"]));
    let module = dir.path().join("module");
    ok(Command::new("sh").arg(root().join("kmod/ptat/build.sh")).arg(release.trim()).arg(&module));
    let run = dir.path().join("run");
    let share = format!("{}:/bench/stride", program.display());
    let (pages, rounds) = (PAGES.to_string(), ROUNDS.to_string());
    let mut record = kprism();
    record.args(["record", "tlb", "--method", "ptat", "--fast", "--share", &share, "--ptat"]);
    record.arg(module.join("ptat.ko")).arg("-o").arg(&run);
    let output = record.args(["--", "/bench/stride", &pages, &rounds]).output().expect("kprism");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("could not be unloaded"), "{said}");
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    let mut bounds = printed.split(' ').map(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16));
    let (Some(Ok(begin)), Some(Ok(end))) = (bounds.next(), bounds.next()) else { panic!("{printed}") };

    // Misses: each page as it is faulted in, then round after round, in order.
    let stream = std::fs::read(run.join("streams/tlb/cpu0.miss")).expect("misses");
    let misses: Vec<u64> = Reader::new(&stream)
        .expect("a header")
        .filter_map(|event| match event.expect("an event") {
            Event::Miss(m) if (begin..end).contains(&m.va) => Some(m.va),
            _ => None,
        })
        .collect();
    let expected: Vec<u64> = (0..=ROUNDS).flat_map(|_| (begin..end).step_by(4096)).collect();
    assert_eq!(misses.len(), expected.len());
    assert!(misses == expected, "another order");

    // Every access is explained.
    let bytes = std::fs::read(run.join("streams/tlb/bus0.trace")).expect("the trace");
    let accesses: Vec<_> =
        trace::Reader::new(&bytes).expect("a header").map(|a| a.expect("an access")).collect();
    let counts = std::fs::read(run.join("streams/tlb/counts.json")).expect("counts");
    let counts: Value = serde_json::from_slice(&counts).expect("JSON");
    let count = |name: &str| counts["accesses"][name].as_u64();
    assert_eq!(count("all"), Some(accesses.len() as u64), "{counts}");
    assert_eq!((count("unknown"), count("outside")), (Some(0), Some(0)), "{counts}");
    assert_eq!((counts["escaped_tables"].as_u64(), counts["unknown_records"].as_u64()), (Some(0), Some(0)));

    // What the array's entries saw, in closed form. Of each page: the walk that faults, the kernel's two looks (none
    // where the table itself is new), its write, the walk that succeeds, one a round; and on exit a read and a zero.
    let bytes = std::fs::read(run.join("streams/tlb/mappings")).expect("mappings");
    let mut tables = HashMap::new();
    for record in mappings::Reader::new(&bytes).expect("a header") {
        if let Record::Table { va, table, .. } = record.expect("a record")
            && (begin..end).contains(&va)
        {
            tables.insert(table, va);
        }
    }
    assert_eq!(tables.len() as u64, PAGES / 512);
    let mut seen: HashMap<u64, String> = HashMap::new();
    for a in accesses.iter().filter(|a| a.bytes == 8) {
        let Some(va) = tables.get(&(a.address & !0xfff)) else { continue };
        let entry = seen.entry(va + (a.address & 0xfff) / 8 * 4096).or_default();
        entry.push(if a.kind == Kind::Read { 'r' } else { 'w' });
        entry.push(if a.value == Some(0) { '0' } else { 'v' });
    }
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
    let top = &json["objects"][0];
    assert_eq!(
        (json["source"].as_str(), top["misses"].as_u64()),
        (Some("bus"), Some(PAGES * (ROUNDS + 1))),
        "{top}"
    );
    assert_eq!(top["bytes"].as_u64(), Some(PAGES * 4096), "{top}");
}
