// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf.data as the export writes it, whole, cut off anywhere, and changed anywhere; and what this machine's perf
//! records.

use std::fs;
use std::path::{Path, PathBuf};

use kprism_image::maps::{Dict, MapRecord};
use kprism_image::sideband;
use kprism_import::perfdata::export::{Source, export};
use kprism_import::perfdata::{Parts, Search, from_parts};
use kprism_import::{Capture, SwitchAt, detect, read};
use kprism_pt::{IpPayload, Packet};

/// Two CPUs, of which one switches from task 7 to task 8; some code of the kernel, which changes, and of task 7.
fn small(dir: &Path) -> PathBuf {
    let mut pt = Vec::new();
    for (tsc, cr3) in [(1000, 0x1000), (2000, 0x2000)] {
        Packet::Psb.encode(&mut pt);
        Packet::Tsc { tsc }.encode(&mut pt);
        Packet::Pip { cr3, non_root: false }.encode(&mut pt);
        Packet::PsbEnd.encode(&mut pt);
        for ip in [0x40_1000, 0xffff_8000_0000] {
            Packet::TipPge(IpPayload::Sext48(ip)).encode(&mut pt);
            Packet::TipPgd(IpPayload::Suppressed).encode(&mut pt);
        }
    }
    let mut dict = b"KPDICT01".to_vec();
    for (id, va, bytes) in
        [(0u32, 0x40_1000u64, [0x90, 0xc3]), (1, !0 << 31, [0x90, 0xc3]), (2, !0 << 31, [0xcc, 0xc3])]
    {
        dict.extend(id.to_le_bytes());
        dict.extend([2, 0, 0, 0]);
        dict.extend(va.to_le_bytes());
        dict.extend(bytes);
    }
    let (dict, None) = Dict::parse(&dict) else { panic!("a dictionary") };
    let place = |offset, asid, va, id, flags| MapRecord { offset, asid, va, id, flags };
    let map = [
        place(0, 0x1000, 0x40_1000, 0, 0),
        place(0, 0, !0 << 31, 1, 0),
        place(pt.len() as u64 / 2, 0, !0 << 31, 2, 1),
    ];
    let records = br#"{"k":"mmap","t":900,"cpu":0,"pid":7,"tgid":7,"asid":4096,"start":4198400,"end":4202496,"exec":true,"path":"/bin/seven"}
{"k":"switch","t":1500,"cpu":0,"ip":18446744071562067968,"prev_pid":7,"prev_tgid":7,"prev_comm":"seven","pid":8,"tgid":8,"comm":"eight"}
"#;
    let records = sideband::parse(records).unwrap();
    let root = dir.join("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::write(root.join("bin/seven"), [&[0x90, 0xc3][..], &[0; 100]].concat()).unwrap();
    let out = dir.join("small.perf.data");
    let source = Source {
        cpus: &[(&pt, &map), (&pt, &[])],
        dict: &dict,
        records: &records,
        clock: kprism_flow::clock::ClockConfig { tsc_hz: 1_000_000_000, ..Default::default() },
        kallsyms: b"ffffffff80000000 T _stext\nffffffff80000000 T __switch_to\nffffffff80001000 T _etext\n",
        modules: b"",
        root: &root,
        release: "6.1",
        build_id: "00112233445566778899aabbccddeeff00112233",
        command: &["seven".to_owned()],
        ret_compression: true,
    };
    export(&source, &out).unwrap();
    out
}

fn import(path: &Path, symfs: &Path) -> Capture {
    let search = Search { symfs: Some(symfs.to_owned()), ..Search::default() };
    read(&detect(path).unwrap(), &[], &search).unwrap()
}

#[test]
fn what_was_exported_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let out = small(dir.path());
    let capture = import(&out, &out.join("symfs"));
    assert_eq!(capture.notes, Vec::<String>::new());
    assert_eq!((capture.streams.len(), capture.streams[0].label.as_str()), (2, "cpu 0"));
    assert_eq!((capture.clock.tsc_hz, capture.kernel.0.as_str()), (1_000_000_000, "6.1"));
    assert_eq!(capture.command, ["seven"]);
    let [switch] = &capture.switches[..] else { panic!("one switch: {:?}", capture.switches) };
    assert_eq!((switch.t, switch.at), (1500, SwitchAt::Entry(!0 << 31)));
    assert_eq!((switch.prev.pid, switch.next.pid, switch.next.comm.as_str()), (7, 8, "eight"));
    let code = |asid, replaces| {
        let placed = capture.streams[0].regions.iter().find(|p| p.asid == asid && p.replaces == replaces);
        placed.map(|p| (p.va, capture.regions[p.region].bytes[..2].to_vec(), p.offset))
    };
    assert_eq!(code(0, false), Some((!0 << 31, vec![0x90, 0xc3], 0)));
    let (va, bytes, offset) = code(0, true).expect("the changed code");
    assert_eq!((va, bytes), (!0 << 31, vec![0xcc, 0xc3]));
    assert!(offset > 0);
    assert_eq!(code(0x1000, false).map(|c| c.0), Some(0x40_1000));
}

/// A file cut off at any byte gives what is there and says what is missing, or says that there is nothing.
#[test]
fn cut_off_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let data = fs::read(small(dir.path()).join("data")).unwrap();
    let parts = |bytes: &[u8]| Parts { data: vec![bytes.to_vec()], ..Parts::default() };
    let whole = from_parts(Path::new("whole"), &parts(&data)).unwrap();
    let mut partial = 0;
    for len in 0..data.len() {
        match from_parts(Path::new("cut"), &parts(&data[..len])) {
            Ok(capture) => {
                partial += 1;
                assert!(capture.notes.len() > whole.notes.len(), "{len} bytes: says what is missing");
                assert!(capture.streams.len() <= whole.streams.len());
                for (cut, whole) in capture.streams.iter().zip(&whole.streams) {
                    assert!(whole.pt.starts_with(&cut.pt), "{len} bytes: a part of the stream");
                }
            }
            Err(error) => assert!(error.to_string().contains("cut: "), "{len} bytes: {error}"),
        }
    }
    assert!(partial > data.len() / 2, "{partial} of {} give something", data.len());
}

/// Any byte may be another.
#[test]
fn changed_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let data = fs::read(small(dir.path()).join("data")).unwrap();
    for at in 0..data.len() {
        for flip in [0xff, 0x80, 1] {
            let mut bytes = data.clone();
            bytes[at] ^= flip;
            let _ = from_parts(Path::new("changed"), &Parts { data: vec![bytes], ..Parts::default() });
        }
    }
}

/// A file that is not the recorded one is named, not used.
#[test]
fn build_ids_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let out = small(dir.path());
    let symfs = out.join("symfs/bin/seven");
    // This test's own program has a build id or none; the recorded one is neither.
    let mut data = fs::read(out.join("data")).unwrap();
    let name = b"/bin/seven\0";
    let at = data.windows(name.len()).position(|w| w == name).expect("the mapping's path");
    // MMAP2 with a build id: misc bit 14; 36 bytes before the path.
    let head = at - 72;
    data[head + 5] |= 0x40;
    data[at - 32] = 20;
    data[at - 28..at - 8].fill(0xab);
    let file = dir.path().join("other.data");
    fs::write(&file, &data).unwrap();
    let capture = import(&file, &out.join("symfs"));
    let note = capture.notes.iter().find(|n| n.contains("build id")).expect("a note");
    assert!(note.starts_with(symfs.to_str().unwrap()) && note.contains(&"ab".repeat(20)), "{note}");
    assert!(capture.streams[0].regions.iter().all(|p| p.va != 0x40_1000));
}
