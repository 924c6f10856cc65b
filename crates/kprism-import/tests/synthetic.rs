// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small captures made up on the spot: every kind is told apart, read, and written as streams that the image
//! reads back.

use std::fs;
use std::path::Path;

use kprism_image::maps::{Dict, image, parse_map};
use kprism_import::perfdata::Search;
use kprism_import::{Clock, CodeFile, ImportError, Source, detect, read, write};
use kprism_pt::{IpPayload, Packet};

/// PSB+, tracing on at `ip`, off.
fn pt(ip: u64, tsc: Option<u64>) -> Vec<u8> {
    let mut out = Vec::new();
    Packet::Psb.encode(&mut out);
    if let Some(tsc) = tsc {
        Packet::Tsc { tsc }.encode(&mut out);
    }
    Packet::PsbEnd.encode(&mut out);
    Packet::TipPge(IpPayload::Sext48(ip)).encode(&mut out);
    Packet::TipPgd(IpPayload::Suppressed).encode(&mut out);
    out
}

/// A minimal ELF with one executable segment: file offset 0x1000, address 0x401000, four bytes.
fn elf() -> Vec<u8> {
    let mut out = vec![0; 0x1004];
    out[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0");
    out[20] = 1; // version
    let words = |out: &mut Vec<u8>, at: usize, words: &[u64]| {
        for (i, word) in words.iter().enumerate() {
            out[at + 8 * i..at + 8 * i + 8].copy_from_slice(&word.to_le_bytes());
        }
    };
    words(&mut out, 24, &[0x40_1000, 64, 0]); // entry, program headers, no sections
    out[52..58].copy_from_slice(&[64, 0, 56, 0, 2, 0]); // header sizes, two program headers
    out[58] = 64;
    words(&mut out, 64, &[1 | 4 << 32, 0, 0x40_0000, 0x40_0000, 0x100, 0x100, 0x1000]);
    words(&mut out, 120, &[1 | 5 << 32, 0x1000, 0x40_1000, 0x40_1000, 4, 4, 0x1000]);
    out[0x1000..].copy_from_slice(&[0x90, 0x90, 0xeb, 0xfc]);
    out
}

fn put(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// What the image makes of a written stream's code at `va`.
fn code_at(streams: &Path, cpu: usize, va: u64) -> Vec<u8> {
    let dict = fs::read(streams.join("code.dict")).unwrap();
    let (dict, fault) = Dict::parse(&dict);
    assert_eq!(fault, None);
    let (map, fault) = parse_map(&fs::read(streams.join(format!("cpu{cpu}.map"))).unwrap());
    assert_eq!(fault, None);
    let (image, missing) = image(&dict, &map);
    assert_eq!(missing, 0);
    // Whatever CR3 is, it is the same code.
    assert_eq!(image.space(0x1234_5000, va), 0);
    let mut bytes = [0; 16];
    let n = image.fetch(0, va, 0, &mut bytes);
    bytes[..n].to_vec()
}

#[test]
fn a_folder_of_pages() {
    let dir = tempfile::tempdir().unwrap();
    let stream = pt(0x1000, None);
    put(dir.path(), "7_7.pt", &stream);
    put(dir.path(), "8_8.pt", pt(0x2000, None));
    let page = vec![0xcc; 100_000];
    put(dir.path(), "a.bin", &page);
    put(dir.path(), "b.bin", [0x90]);
    put(dir.path(), "xpages.txt", "7 1000 100000 a.bin\n8 2000 1 b.bin\n");
    put(dir.path(), "maps.txt", "7 0 0 CMD /bin/prog -x\n7 1000 100000 /bin/prog\n");
    let source = detect(dir.path()).unwrap();
    assert_eq!(source, Source::Pages(dir.path().to_owned()));
    let capture = read(&source, &[], &Search::default()).unwrap();
    assert_eq!(capture.streams.len(), 2);
    let regions = |stream: usize| -> Vec<usize> {
        capture.streams[stream].regions.iter().map(|placed| placed.region).collect()
    };
    assert_eq!((regions(0), regions(1)), (vec![0], vec![1]));
    assert_eq!(capture.tasks[0].comm, "prog");
    assert!(!capture.clock.timed);

    let out = tempfile::tempdir().unwrap();
    let streams = out.path().join("streams");
    write(&capture, &streams, &out.path().join("symbols")).unwrap();
    assert_eq!(fs::read(streams.join("cpu0.pt")).unwrap(), stream);
    // The region spans several fragments.
    assert_eq!(code_at(&streams, 0, 0x1000 + 0x8000 - 8), [0xcc; 16]);
    assert_eq!(code_at(&streams, 1, 0x2000), [0x90]);
    let sideband = fs::read(streams.join("sideband.jsonl")).unwrap();
    assert_eq!(kprism_image::sideband::parse(&sideband).unwrap().len(), 2);
    let counts: serde_json::Value =
        serde_json::from_slice(&fs::read(streams.join("counts.json")).unwrap()).unwrap();
    assert_eq!(counts["clock"]["name"], "none");
}

#[test]
fn a_bare_stream_with_an_elf_and_raw_bytes() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "x.trace", pt(0x40_1000, Some(5)));
    put(dir.path(), "prog", elf());
    put(dir.path(), "jit.bin", [1, 2, 3]);
    let source = detect(&dir.path().join("x.trace")).unwrap();
    assert!(matches!(read(&source, &[], &Search::default()), Err(ImportError::NoCode { .. })));
    let code = [
        CodeFile { path: dir.path().join("prog"), va: 0x10_0000 },
        CodeFile { path: dir.path().join("jit.bin"), va: 0x7000 },
    ];
    let capture = read(&source, &code, &Search::default()).unwrap();
    assert!(capture.clock.timed);
    let out = tempfile::tempdir().unwrap();
    write(&capture, out.path(), &out.path().join("symbols")).unwrap();
    assert_eq!(code_at(out.path(), 0, 0x50_1000), [0x90, 0x90, 0xeb, 0xfc]);
    assert_eq!(code_at(out.path(), 0, 0x7000), [1, 2, 3]);
    let copied = out.path().join("symbols/root").join(dir.path().strip_prefix("/").unwrap()).join("prog");
    assert!(copied.is_file());
}

#[test]
fn a_drpt2trace_folder() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "pt.bin", pt(0x40_1000, Some(5)));
    put(dir.path(), "hello", elf());
    let mut mmap2 = Vec::new();
    for word in
        [10 | 80 << 48, 9 | 9 << 32, 0x40_1000, 4, 0x1000, 0, 0, 0, 5, u64::from_le_bytes(*b"/hello\0\0")]
    {
        mmap2.extend_from_slice(&u64::to_le_bytes(word));
    }
    put(dir.path(), "primary.sideband.pevent", &mmap2);
    let mut conversion = Vec::new();
    for word in [79 | 32 << 48, 31, 1 << 30, 0] {
        conversion.extend_from_slice(&u64::to_le_bytes(word));
    }
    put(dir.path(), "secondary.sideband.pevent", &conversion);
    let capture = read(&detect(dir.path()).unwrap(), &[], &Search::default()).unwrap();
    assert_eq!(capture.clock, Clock { timed: true, tsc_hz: 2_000_000_000, ..Clock::default() });
    assert_eq!(capture.regions[0].bytes, [0x90, 0x90, 0xeb, 0xfc]);

    put(dir.path(), "primary.sideband.pevent", &mmap2[..40]);
    let error = read(&detect(dir.path()).unwrap(), &[], &Search::default()).unwrap_err().to_string();
    assert!(error.contains("offset 0: expected a whole perf record"), "{error}");
}

#[test]
fn an_lldb_bundle() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a.out", elf());
    put(dir.path(), "t.trace", pt(0x50_1000, None));
    let json = r#"{"type":"intel-pt","cpuInfo":{"vendor":"GenuineIntel","family":6,"model":79,"stepping":1},
        "processes":[{"pid":1,"threads":[{"tid":"2","iptTrace":"t.trace"}],
        "modules":[{"file":"a.out","systemPath":"/x/a.out","loadAddress":"0x500000"},
                   {"file":"gone.so","systemPath":"/x/gone.so","loadAddress":0}]}],
        "tscPerfZeroConversion":{"timeMult":1024,"timeShift":10,"timeZero":"18433473881008870804"}}"#;
    put(dir.path(), "trace.json", json);
    let capture = read(&detect(dir.path()).unwrap(), &[], &Search::default()).unwrap();
    assert_eq!(capture.regions[0].va, 0x50_1000);
    assert_eq!(capture.clock.tsc_hz, 1_000_000_000);
    assert_eq!(capture.cpu.unwrap().model, 79);
    assert_eq!(capture.notes, ["/x/gone.so: not in the capture"]);
    assert_eq!(capture.streams[0].label, "thread 2");

    put(dir.path(), "trace.json", json.replace("\"0x500000\"", "\"many\""));
    let error = read(&detect(dir.path()).unwrap(), &[], &Search::default()).unwrap_err().to_string();
    assert!(error.ends_with("loadAddress: expected an unsigned integer"), "{error}");
    put(dir.path(), "trace.json", "{");
    assert!(
        read(&detect(dir.path()).unwrap(), &[], &Search::default())
            .unwrap_err()
            .to_string()
            .contains("line 1")
    );
}

#[test]
fn nothing_to_import() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(detect(dir.path()), Err(ImportError::Unknown { .. })));
    put(dir.path(), "xpages.txt", "7 zz 1 a\n");
    let error = read(&detect(dir.path()).unwrap(), &[], &Search::default()).unwrap_err().to_string();
    assert!(error.ends_with("line 1: expected `tgid va_hex size name`"), "{error}");
    put(dir.path(), "xpages.txt", "");
    assert!(
        read(&detect(dir.path()).unwrap(), &[], &Search::default()).unwrap_err().to_string().contains("*.pt")
    );
}
