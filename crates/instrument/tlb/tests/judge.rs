// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the model with other simulators, on the accesses of the four workloads as recorded by valgrind's lackey.
//!
//! `KPRISM_TLB_JUDGE` names a program that simulates Ivy Bridge-EP's TLBs for 4K pages (first level 64 entries in 4 ways
//! for data and as many for code, second 512 in 4 ways, LRU). It reads records of 16 bytes: address (8, little-endian),
//! kind (1: 0 load, 1 store, 2 fetch), bytes accessed (1), zeros; and prints three numbers: misses of data's first level,
//! of code's, and of the second level.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use kprism_test::{TLB_JUDGE, VALGRIND, needs, test};
use kprism_tlb::presets::preset;
use kprism_tlb::{Access, Bank, Page};

const WORKLOADS: [&[&str]; 4] =
    [&["stride", "2048", "100"], &["gups", "8M", "500K"], &["bfs", "16", "2"], &["chase", "8M", "500K"]];

/// Parses one of lackey's lines (kinds, address, size): `I  04001a2c,3`, ` L 1ffe,8`, ` S`, ` M` (load and store).
fn parse(line: &str) -> Option<(&'static [Access], u64, u64)> {
    let kinds: &[Access] = match line.get(..3)? {
        "I  " => &[Access::Fetch],
        " L " => &[Access::Load],
        " S " => &[Access::Store],
        " M " => &[Access::Load, Access::Store],
        _ => return None,
    };
    let (va, bytes) = line[3..].split_once(',')?;
    Some((kinds, u64::from_str_radix(va, 16).ok()?, bytes.parse().ok()?))
}

#[test]
fn agrees_with_another_simulator() {
    needs(&[TLB_JUDGE, VALGRIND]);
    let judge = std::env::var_os("KPRISM_TLB_JUDGE").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bench/tlb/build.sh");
    assert!(Command::new("sh").arg(source).arg(dir.path()).status().unwrap().success());
    for words in WORKLOADS {
        let mut traced = Command::new("valgrind")
            .args(["--tool=lackey", "--trace-mem=yes", "--log-fd=2"])
            .arg(dir.path().join(words[0]))
            .args(&words[1..])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("valgrind");
        let mut other =
            Command::new(&judge).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the judge");
        let mut to = BufWriter::with_capacity(1 << 20, other.stdin.take().unwrap());
        let mut bank = Bank::new(&[preset("ivybridge-ep").unwrap()]);
        let mut references = 0u64;
        for line in BufReader::new(traced.stderr.take().unwrap()).lines() {
            let Some((kinds, va, bytes)) = parse(&line.unwrap()).map(|(k, v, b)| (k, v, b.max(1))) else {
                continue;
            };
            for &kind in kinds {
                references += 1;
                let mut record = [0; 16];
                record[..8].copy_from_slice(&va.to_le_bytes());
                record[8] = kind as u8;
                record[9] = bytes as u8;
                to.write_all(&record).unwrap();
                bank.access(va, kind, || Page::K4);
                if (va & 0xfff) + bytes > 4096 {
                    bank.access((va | 0xfff) + 1, kind, || Page::K4);
                }
            }
        }
        drop(to);
        assert!(traced.wait().unwrap().success());
        let output = other.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let theirs: Vec<u64> = text.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let c = *bank.counts().next().unwrap();
        let ours = [c.first[0] + c.first[1], c.first[2], c.last.iter().sum()];
        println!(
            "{words:?}: {references} references; first level, data and code, second: {ours:?}, theirs {theirs:?}"
        );
        assert!(references > 1_000_000, "{words:?}");
        for (ours, theirs) in ours.into_iter().zip(theirs) {
            assert!(ours.abs_diff(theirs) as f64 <= 0.001 * theirs as f64, "{words:?}: {ours} and {theirs}");
        }
    }
}

kprism_test::main!();
