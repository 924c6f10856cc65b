// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small generated captures: every kind is detected, read, and written as streams that the image can read.

#[path = "../../../../fuzz/src/folder.rs"]
mod folder;

use std::fs;
use std::path::Path;

use kprism_flow::clock::{ClockConfig, PerfTime};
use kprism_image::maps::{Dict, image, parse_map};
use kprism_import::perfdata::Search;
use kprism_import::{CodeFile, ImportError, Source, detect, read, write};
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

/// The code at `va` that the image reads from a written stream.
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
    assert!(!capture.timed);

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
    let code = [
        CodeFile { path: dir.path().join("prog"), va: 0x10_0000 },
        CodeFile { path: dir.path().join("jit.bin"), va: 0x7000 },
    ];
    let capture = read(&source, &code, &Search::default()).unwrap();
    assert!(capture.timed);
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
    assert!(capture.timed);
    assert_eq!(
        capture.clock,
        ClockConfig { tsc_hz: 2_000_000_000, perf: PerfTime::new(1 << 30, 31, 0), ..ClockConfig::default() }
    );
    assert_eq!(capture.regions[0].bytes[..], [0x90, 0x90, 0xeb, 0xfc]);

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
    assert_eq!(capture.clock.perf, PerfTime::new(1024, 10, 18_433_473_881_008_870_804));
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

/// Cores keep their numbers; their switch records and the kernel's code are used.
#[test]
fn an_lldb_bundle_of_cores_with_a_kernel() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "kernel", elf());
    put(dir.path(), "2.trace", pt(0x50_1000, Some(5)));
    // The task 8 of process 7 gives way to 9; both times are before the trace's, which is of TSC 5 and later.
    let mut records = Vec::new();
    for (misc, other, own, ns) in [(1u64 << 13, 9u64, 7 | 8 << 32, 1u64), (0, 7 | 8 << 32, 9 | 9 << 32, 2)] {
        let other = if other == 9 { 9 | 9 << 32 } else { other };
        for word in [15 | misc << 32 | 32 << 48, other, own, ns] {
            records.extend_from_slice(&word.to_le_bytes());
        }
    }
    put(dir.path(), "2.switches", &records);
    let json = r#"{"type":"intel-pt","cpuInfo":{"vendor":"GenuineIntel","family":6,"model":85,"stepping":4},
        "kernel":{"file":"kernel","loadAddress":"0x500000"},
        "cpus":[{"id":2,"iptTrace":"2.trace","contextSwitchTrace":"2.switches"}],
        "tscPerfZeroConversion":{"timeMult":1,"timeShift":0,"timeZero":"0"}}"#;
    put(dir.path(), "trace.json", json);
    let capture = read(&detect(dir.path()).unwrap(), &[], &Search::default()).unwrap();
    assert_eq!(capture.notes, Vec::<String>::new());
    let labels: Vec<_> = capture.streams.iter().map(|s| (s.label.as_str(), s.pt.is_empty())).collect();
    assert_eq!(labels, [("cpu 0", true), ("cpu 1", true), ("cpu 2", false)]);
    assert_eq!(capture.regions[0].va, 0x50_1000);
    assert_eq!(capture.streams[2].regions.len(), 1);
    let [switch] = &capture.switches[..] else { panic!("one task runs: {:?}", capture.switches) };
    assert_eq!((switch.cpu, switch.next.pid, switch.next.tgid), (2, 9, 9));

    put(dir.path(), "trace.json", json.replace(r#","loadAddress":"0x500000""#, ""));
    let capture = read(&detect(dir.path()).unwrap(), &[], &Search::default()).unwrap();
    assert_eq!(capture.regions[0].va, 0xffff_ffff_8100_1000);
    assert!(capture.notes[0].contains("no loadAddress"), "{:?}", capture.notes);
    put(dir.path(), "trace.json", json.replace("tscPerfZeroConversion", "none"));
    let capture = read(&detect(dir.path()).unwrap(), &[], &Search::default()).unwrap();
    assert!(capture.notes[0].contains("contextSwitchTrace is not used"), "{:?}", capture.notes);
}

/// Two CPUs with address spaces, one without, and CPU 1, which was off.
#[test]
fn a_simple_pt_folder() {
    let dir = tempfile::tempdir().unwrap();
    let mut stream = Vec::new();
    for cr3 in [0x2000, 0x5000] {
        stream.extend(pt(0x40_1000, Some(5)));
        Packet::Pip { cr3, non_root: false }.encode(&mut stream);
    }
    // The oldest bytes of the ring buffer are the rest of a packet.
    put(dir.path(), "ptout.0", [&[0x19, 0xff][..], &stream].concat());
    put(dir.path(), "ptout.2", pt(0x40_1000, None));
    put(dir.path(), "ptout.sideband.txt", "no stream");
    // The files in sptarchive's form.
    put(dir.path(), "bin/prog", elf());
    put(dir.path(), "lib/new.so", [&[0; 0x1000][..], &[0xcc; 8]].concat());
    let sideband = "meta family 6\nmeta model 94\nmeta stepping 3\nmeta tsc_ratio 2 216\nmeta nom_freq 26\n\
        meta mtc_freq 4\n\
        7.250000 9 4000 401000 4096 4\t/bin/prog\n\
        7.500000 7 2000 401002 4096 8\t/lib/new.so\n\
        7.600000 7 2000 601000 0 8\t/lib/gone-\u{e9}.so\n\
        0.0 7 2000 401000 00001000 4 \t/bin/prog\n\
        0.0 8 8000 401000 00001000 4 \t/bin/prog\n\
        what is this\n";
    put(dir.path(), "ptout.sideband", sideband);
    let source = detect(dir.path()).unwrap();
    assert_eq!(source, Source::SimplePt(dir.path().join("ptout.sideband")));
    assert_eq!(detect(&dir.path().join("ptout.sideband")).unwrap(), source);
    let nowhere = Search { symfs: Some(dir.path().join("nowhere")), ..Search::default() };
    let capture = read(&source, &[], &nowhere).unwrap();
    let labels: Vec<_> = capture.streams.iter().map(|s| (s.label.as_str(), s.pt.len())).collect();
    assert_eq!(labels, [("cpu 0", stream.len() + 2), ("cpu 1", 0), ("cpu 2", capture.streams[2].pt.len())]);
    assert!(capture.timed);
    let clock = ClockConfig {
        // 216 / 2 times the 24 MHz of a Skylake, not 26 times 100 MHz.
        tsc_hz: 2_592_000_000,
        art_num: 216,
        art_den: 2,
        mtc_freq: 3,
        nom_ratio: 26,
        ..ClockConfig::default()
    };
    assert_eq!(capture.clock, clock);
    assert_eq!(capture.cpu.map(|c| (c.family, c.model, c.stepping)), Some((6, 94, 3)));
    assert_eq!(capture.tasks.iter().map(|t| t.pid).collect::<Vec<_>>(), [7, 8, 9]);
    let [wrong, kernel, gone] = &capture.notes[..] else { panic!("three notes: {:?}", capture.notes) };
    assert!(wrong.contains("1 line left out, first line 12"), "{wrong}");
    assert!(kernel.contains("--kcore") && gone.contains("gone-"), "{kernel}; {gone}");

    let out = tempfile::tempdir().unwrap();
    write(&capture, out.path(), &out.path().join("symbols")).unwrap();
    let (dict, map) =
        (fs::read(out.path().join("code.dict")).unwrap(), fs::read(out.path().join("cpu0.map")).unwrap());
    let (mut dict, _) = Dict::parse(dict);
    let files = fs::read(out.path().join("code.files")).unwrap();
    assert_eq!(dict.open_files(&files, &out.path().join("symbols/root")), Vec::<String>::new());
    let (image, missing) = image(&dict, &parse_map(&map).0);
    assert_eq!(missing, 0);
    let fetch = |cr3: u64| {
        let mut bytes = [0; 16];
        let n = image.fetch(image.space(cr3, 0x40_1000), 0x40_1000, 0, &mut bytes);
        bytes[..n].to_vec()
    };
    // The later mapping covers the rest of the earlier one.
    assert_eq!(fetch(0x2000), [&[0x90, 0x90][..], &[0xcc; 8]].concat());
    // 5000 is the user half's table for the kernel half's 4000.
    assert_eq!(fetch(0x5000), [0x90, 0x90, 0xeb, 0xfc]);
    assert!(fetch(0x4000).is_empty(), "no packet names it");
    assert!(out.path().join("symbols/root/bin/prog").is_file());

    // With the kernel's code named, from a core file that is an ELF file too.
    let mut kcore = elf();
    kcore[120 + 16..120 + 24].copy_from_slice(&(!0u64 << 31).to_le_bytes());
    put(dir.path(), "kcore", kcore);
    put(dir.path(), "kallsyms", "ffffffff80000000 T _stext\n");
    let named = |name: &str| Some(dir.path().join(name));
    let search = Search { kcore: named("kcore"), kallsyms: named("kallsyms"), ..nowhere };
    let capture = read(&source, &[], &search).unwrap();
    assert!(capture.streams.iter().all(|s| capture.regions[s.regions[0].region].va == !0 << 31));
    assert!(!capture.kallsyms.is_empty() && !capture.notes.iter().any(|n| n.contains("--kcore")));
}

/// Any byte of the text may change, and the file may end anywhere.
#[test]
fn simple_pt_sidebands_of_any_bytes() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "ptout.0", pt(0x40_1000, None));
    put(dir.path(), "bin/prog", elf());
    let text =
        b"meta nom_freq 26\n7.5 7 2000 401000 4096 4\t/bin/prog\n0.0 7 2000 401000 1000 4\t/bin/prog\n";
    let path = dir.path().join("ptout.sideband");
    // This machine's files must not be used.
    let search = Search { symfs: Some(dir.path().join("nowhere")), ..Search::default() };
    let try_read = |bytes: &[u8]| {
        put(dir.path(), "ptout.sideband", bytes);
        match read(&Source::SimplePt(path.clone()), &[], &search) {
            Ok(capture) => assert_eq!(capture.streams.len(), 1),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("line 1: expected `TIME PID CR3"), "{error}");
            }
        }
    };
    for at in 0..text.len() {
        try_read(&text[..at]);
        for byte in [0, b'\n', b'\t', b' ', b'9', b'/', b'-', 0xff] {
            let mut changed = text.to_vec();
            changed[at] = byte;
            try_read(&changed);
        }
    }
    try_read(&[0xff; 1000]);
    try_read(b"9e999 1 2 3 4 5\t/bin/prog\n0.0 1 ffffffffffffffff ffffffffffffffff ffffffffffffffff 18446744073709551615\t/bin/prog\n");
    fs::remove_file(dir.path().join("ptout.0")).unwrap();
    put(dir.path(), "ptout.sideband", text);
    let error = read(&Source::SimplePt(path), &[], &search).unwrap_err().to_string();
    assert!(error.ends_with("expected packets in ptout.0, ptout.1, ..."), "{error}");
}

/// The fuzzer's seeds and findings.
#[test]
fn the_simple_pt_corpus_is_read() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/simplept");
    let dir = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for entry in fs::read_dir(corpus).expect("the corpus") {
        folder::check(dir.path(), &fs::read(entry.unwrap().path()).unwrap());
        seen += 1;
    }
    assert!(seen >= 4, "the corpus is where it was");
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

/// A file that many processes map is kept once, below `symbols/root`, and is read where the flow goes: the dictionary does not
/// have it, and the image holds no copy.
#[test]
fn mapped_files_are_named_and_not_copied() {
    use kprism_image::Bytes;
    use kprism_import::{Capture, Module, Placed, Region, Stream};

    const LEN: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let code: Vec<u8> = (0..LEN + 4096).map(|i| (i % 251) as u8).collect();
    put(dir.path(), "files/big", &code);
    put(dir.path(), "files/other", &code[..8192]);
    let place = |name: &str| dir.path().join("files").join(name);
    let mapped = |name: &str, len: usize| Region {
        va: 0x5000_0000,
        bytes: Bytes::open(&place(name)).unwrap().slice(4096..4096 + len),
        file: Some((place(name), 4096)),
    };
    let module = |name: &str, path: &str, asid: u64| Module {
        path: path.to_owned(),
        file: Some(place(name)),
        pid: 7,
        start: 0x5000_0000,
        end: 0x5000_0000 + LEN as u64,
        pgoff: 4096,
        asid,
        t: 0,
    };
    let spaces: Vec<u64> = (1..=50).map(|n| n << 13).collect();
    let at = |region, asid, va| Placed { region, va, asid, offset: 0, replaces: false, gone: 0 };
    let mut capture = Capture {
        streams: vec![Stream {
            label: "cpu 0".to_owned(),
            pt: Vec::new().into(),
            regions: spaces.iter().map(|&asid| at(0, asid, 0x5000_0000)).collect(),
            first: None,
        }],
        regions: vec![mapped("big", LEN), mapped("other", 4096)],
        modules: spaces.iter().map(|&asid| module("big", "/bin/big", asid)).collect(),
        ..Capture::default()
    };
    // Another file was mapped under the same path later: only one can be kept there.
    capture.modules.push(module("other", "/bin/big", 1 << 20));
    capture.streams[0].regions.push(at(1, 1 << 20, 0x5000_0000));
    let (streams, symbols) = (dir.path().join("streams"), dir.path().join("symbols"));
    write(&capture, &streams, &symbols).unwrap();

    assert_eq!(fs::read(symbols.join("root/bin/big")).unwrap(), code);
    assert_eq!(fs::read(streams.join("code.dict")).unwrap().len(), 8 + 16 + 4096, "the other file's code");
    let (map, None) = parse_map(&fs::read(streams.join("cpu0.map")).unwrap()) else {
        panic!("a damaged map")
    };
    assert_eq!(map.len(), 51);
    let list = fs::read(streams.join("code.files")).unwrap();
    let load = || {
        let (mut dict, fault) = Dict::parse(fs::read(streams.join("code.dict")).unwrap());
        assert_eq!(fault, None);
        let notes = dict.open_files(&list, &symbols.join("root"));
        (dict, notes)
    };
    let (dict, notes) = load();
    assert_eq!(notes, Vec::<String>::new());
    let (whole, missing) = image(&dict, &map);
    assert_eq!((missing, whole.granules()), (0, 0));
    let mut bytes = [0; 700];
    for asid in spaces {
        assert_eq!(whole.fetch(asid, 0x5000_0123, 0, &mut bytes), 700);
        assert_eq!(bytes[..], code[4096 + 0x123..][..700]);
    }
    assert_eq!(whole.fetch(1 << 20, 0x5000_0ff0, 0, &mut bytes), 16, "the end of the other file");

    // Without the file, and with a part of it, the rest of the run is still there.
    fs::write(symbols.join("root/bin/big"), &code[..8192]).unwrap();
    let (dict, notes) = load();
    assert!(
        notes.len() == 1 && notes[0].contains("/bin/big: 1044480 bytes of its code are missing"),
        "{notes:?}"
    );
    assert_eq!(image(&dict, &map).0.fetch(1 << 13, 0x5000_0fff, 0, &mut bytes), 1);
    fs::remove_file(symbols.join("root/bin/big")).unwrap();
    let (dict, notes) = load();
    assert!(notes.len() == 1 && notes[0].contains("its code is not known"), "{notes:?}");
    let (rest, missing) = image(&dict, &map);
    assert_eq!((missing, rest.fetch(1 << 20, 0x5000_0000, 0, &mut bytes)), (50, 700));
}

/// Names of kernel code that came and went stand in the sideband with their times, in the form that readers of runs know.
#[test]
fn names_of_kernel_code_are_records_of_the_sideband() {
    use kprism_image::sideband;
    use kprism_image::symbols::Symbols;
    use kprism_import::{Capture, KernelName};
    let start = 0xffff_ffff_c002_2000;
    let name = |t, gone, name: &str| {
        let name = name.to_owned();
        KernelName { t, start, end: start + 64, gone, name, module: "[bpf]" }
    };
    let kernel_names = vec![name(0, false, "one"), name(20, true, "one"), name(30, false, "two")];
    let capture = Capture { kernel_names, ..Capture::default() };
    let dir = tempfile::tempdir().unwrap();
    let (streams, symbols) = (dir.path().join("streams"), dir.path().join("symbols"));
    write(&capture, &streams, &symbols).unwrap();
    let records = sideband::parse(&fs::read(streams.join("sideband.jsonl")).unwrap()).unwrap();
    let symbols = Symbols::load(b"", &records, None).unwrap();
    let at = |ns| symbols.locate(0, start + 9, ns).map(|at| symbols.function(at.func).name.as_str());
    assert_eq!([0, 19, 20, 30].map(at), [Some("one"), Some("one"), None, Some("two")]);
}
