// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of an import does not grow with the recording: pages of the ring buffer and texts may be larger than memory.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::Command;

const FORMATS: &str = include_str!("../../format/ftrace/tests/data/formats.txt");

/// Most memory of an import, KiB.
const MOST: i64 = 150 << 10;

/// Imports, and returns the most memory that any import of this process took so far, KiB.
fn import(from: &Path, run: &Path) -> (String, i64) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    let output = command.arg("import").arg(from).arg("-o").arg(run).output().expect("kprism runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a whole `struct rusage`, which the call fills; all zeroes are a valid one.
    let usage = unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()), 0);
        usage.assume_init()
    };
    (said, usage.ru_maxrss)
}

/// A page of calls within calls, which begins at `ns`: as many as there is room for.
fn page(ns: u64, calls: &mut u64) -> Vec<u8> {
    let mut events: Vec<u8> = Vec::new();
    let record = |events: &mut Vec<u8>, id: u16, numbers: &[u32]| {
        let word = (numbers.len() as u32 + 2) | 100 << 5;
        events.extend(word.to_le_bytes());
        events.extend(u32::from(id).to_le_bytes());
        events.extend(7u32.to_le_bytes());
        numbers.iter().for_each(|number| events.extend(number.to_le_bytes()));
    };
    let func = |n: u64| [0x8100_0000 + 64 * (n % 100) as u32, 0xffff_ffff];
    let mut now = ns;
    // Six records of three calls, one in the other.
    while events.len() + 3 * (24 + 44) <= 4080 {
        let starts: Vec<u64> = (0..3u32)
            .map(|depth| {
                let [low, high] = func(*calls + u64::from(depth));
                record(&mut events, 11, &[low, high, depth]);
                now += 100;
                now
            })
            .collect();
        for (depth, start) in (0..3u32).zip(&starts).rev() {
            let [low, high] = func(*calls + u64::from(depth));
            now += 100;
            let parts = [*start as u32, (*start >> 32) as u32, now as u32, (now >> 32) as u32];
            record(&mut events, 10, &[[low, high, depth, 0], parts].concat());
        }
        *calls += 3;
    }
    let mut page = ns.to_le_bytes().to_vec();
    page.extend((events.len() as u64).to_le_bytes());
    page.extend(events);
    page.resize(4096, 0);
    page
}

#[test]
fn memory_is_bounded_whatever_the_size_of_the_recording() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("pages");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("formats.txt"), FORMATS).unwrap();
    let mut pages = BufWriter::new(File::create(from.join("cpu0.raw")).unwrap());
    let mut calls = 0;
    for n in 0..50_000 {
        pages.write_all(&page(n * 100_000, &mut calls)).unwrap();
    }
    pages.flush().unwrap();
    let (said, most) = import(&from, &dir.path().join("run"));
    assert!(fs::metadata(from.join("cpu0.raw")).unwrap().len() > MOST as u64 * 1024);
    assert!(calls > 2_500_000, "{calls}");
    let told = said.split_once(" events, ").and_then(|(_, rest)| rest.split_once(" calls of")).unwrap().0;
    assert_eq!(told.replace(',', ""), calls.to_string(), "{said}");
    assert!(most < MOST, "{most} KiB for {calls} calls");

    let text = dir.path().join("trace");
    let mut file = BufWriter::new(File::create(&text).unwrap());
    writeln!(file, "# tracer: function_graph\n#\n#     TIME        CPU  TASK/PID         DURATION                  FUNCTION CALLS").unwrap();
    writeln!(file, "#      |          |     |    |           |   |                     |   |   |   |")
        .unwrap();
    let lines = 2_600_000;
    for n in 0..lines {
        writeln!(
            file,
            " {:5}.{:06} |   0)    ls-162       |   0.{:03} us    |  f{}();",
            n / 100_000,
            n % 100_000 * 10,
            n % 999 + 1,
            n % 50
        )
        .unwrap();
    }
    file.flush().unwrap();
    let size = fs::metadata(&text).unwrap().len();
    assert!(size > MOST as u64 * 1024, "{size}");
    let (said, most) = import(&text, &dir.path().join("text"));
    assert!(said.contains("2,600,000 calls of 50 functions"), "{said}");
    assert!(most < MOST, "{most} KiB for a text of {size} bytes");
}
