// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small perf.data made by the export. The fuzzer's seeds are derived from it.

use std::fs;
use std::path::{Path, PathBuf};

use kprism_image::maps::{Dict, MapRecord};
use kprism_image::sideband;
use kprism_import::perfdata::export::{Source, export};
use kprism_pt::{IpPayload, Packet};

/// Two CPUs, one of which switches from task 7 to task 8; some kernel code, which changes, and some code of task 7.
pub fn small(dir: &Path) -> PathBuf {
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
        clock: kprism_flow::clock::ClockConfig {
            tsc_hz: 1_000_000_000,
            nom_ratio: 10,
            cyc_threshold: 256,
            ..Default::default()
        },
        errata: Default::default(),
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

/// The file as data from a pipe. With `pack`, the traces and all records but the first few are compressed.
pub fn piped(data: &[u8], pack: bool) -> Vec<u8> {
    let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap()) as usize;
    let record = |out: &mut Vec<u8>, kind: u32, body: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend([0, 0]);
        out.extend((body.len() as u16 + 8).to_le_bytes());
        out.extend(body);
    };
    let mut out = b"PERFILE2".to_vec();
    out.extend(16u64.to_le_bytes());
    let (size, attrs, attrs_len) = (word(16), word(24), word(32));
    for at in (attrs..attrs + attrs_len).step_by(size) {
        let (ids, ids_len) = (word(at + size - 16), word(at + size - 8));
        record(&mut out, 64, &[&data[at..at + size - 16], &data[ids..ids + ids_len]].concat());
    }
    let (mut at, mut packed) = (word(40), Vec::new());
    let end = at + word(48);
    while at < end {
        let mut len = usize::from(u16::from_le_bytes([data[at + 6], data[at + 7]]));
        if data[at] == 71 {
            len += word(at + 8);
        }
        let into = if pack && data[at] < 64 { &mut packed } else { &mut out };
        into.extend(&data[at..at + len]);
        at += len;
    }
    if pack {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let stream = ruzstd::encoding::compress_to_vec(&packed[..], level);
        stream.chunks(100).for_each(|part| record(&mut out, 81, part));
    }
    out
}
