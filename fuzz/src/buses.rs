// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seeds of the corpora of `bustrace`, `busqemu` and `buscapture`: small files of each kind, put together as the target takes them apart.

use kprism_tlb::bus::layout::{Encoder, HMTT, Layout, Order};
use kprism_tlb::bus::mappings::{self, Form, Record};
use kprism_tlb::bus::trace::{self, Access, Header, Kind};
use kprism_tlb::stream::{self, Event, Miss};
use kprism_tlb::{Access as How, PageSize, presets};

const REGION: u64 = 0x1_0000_0000;

/// Name and contents of each.
pub fn all() -> Vec<(&'static str, Vec<u8>)> {
    let pid = 130;
    let map = |i: u64| Record::Map {
        time: 0,
        pid,
        size: PageSize::K4,
        va: 0x7f00_0000_0000 + i * 4096,
        physical: 0x1000 + i * 4096,
        entry: REGION + i * 8,
    };
    let mut narrow = mappings::Writer::new(Form::Narrow);
    (0..3).for_each(|i| assert!(narrow.record(&map(i))));
    let mut wide = mappings::Writer::new(Form::Wide);
    for record in [
        Record::Table { time: 1, pid, size: PageSize::K4, va: 0x7f00_0000_0000, table: REGION },
        Record::Table { time: 1, pid, size: PageSize::M2, va: 0x7f40_0000_0000, table: REGION + 4096 },
        map(9),
        Record::Scan { time: 60, pid, begin: true, cpu: None },
        Record::Scan { time: 70, pid, begin: false, cpu: None },
        Record::Unmap { time: 80, pid, entry: REGION + 72 },
        Record::Exit { time: 90, pid },
    ] {
        wide.record(&record);
    }
    let board = |board, values, bytes| {
        let mut w = trace::Writer::new(Header { board, hz: 1_000_000_000, values, start: 0 });
        for (time, kind, entry, value) in [
            (2, Kind::Read, 0, 0),
            (3, Kind::Read, 0, 0),
            (4, Kind::Write, 0, 0x8000_0067),
            (5, Kind::Read, 0, 0x8000_0067),
            (6, Kind::Write, 512, 0x80e7),
            (65, Kind::Read, 512, 0x80e7),
            (95, Kind::Read, 0, 0x8000_0067),
            (96, Kind::Write, 0, 0),
        ] {
            let address = REGION + entry * 8;
            w.access(&Access { time, address, kind, bytes, value: values.then_some(value), cpu: None });
        }
        w.bytes
    };
    let mut misses = stream::Writer::new(&[presets::preset("zen4").expect("a preset")]);
    let miss = Miss {
        ns: 1000,
        va: 0x7f00_0000_1234,
        ip: 0xffff_ffff_8100_0000,
        access: How::Store,
        size: PageSize::M2,
        first: 3,
        last: 2,
    };
    for event in [
        Event::Space(0x1234_5000),
        Event::Task { pid: 7, tgid: 6 },
        Event::Miss(miss),
        Event::Miss(Miss { ns: 999, first: 1, last: 1, ..miss }),
        Event::Invalidate(0x7000),
        Event::Flush,
    ] {
        misses.event(&event);
    }
    let bare = narrow.bytes[8..].to_vec();
    vec![
        ("values", files(&[(1, &wide.bytes), (0, &board(0, true, 8))])),
        ("bursts", files(&[(1, &narrow.bytes), (0, &board(0, false, 64)), (0, &board(1, false, 32))])),
        ("bare", files(&[(2, &bare), (0, &board(3, true, 8))])),
        ("misses", files(&[(3, &misses.bytes)])),
    ]
}

/// Name and contents of the seeds of `buscapture`: HMTT's records with its kernel's, and wide ones.
pub fn captures() -> Vec<(&'static str, Vec<u8>)> {
    let (tags, entry) = (0x10_0000_0000, REGION + 64);
    let record = |kind: u8, low: u64| [&[kind], 7u32.to_le_bytes().as_slice(), &low.to_le_bytes()].concat();
    let page = |va: u64, number: u64| va >> 12 << 24 | number;
    let kernel = [
        vec![b'@'; 16],
        vec![b'#'; 16],
        record(0xec, page(0x1000, 3)),
        record(0xed, entry),
        vec![b'&'; 16],
        record(0xec, page(0x2000, 4)),
        record(0xed, entry + 8),
        record(0xfc, page(0x2000, 4)),
        vec![b'$'; 16],
    ]
    .concat();
    let wide = "seq:16,lost:8,clock:64,write:1,size:3,cpu:8,valued:1,zero:3,address:48,value:64";
    let seed = |text: &str, order: Order, kernel: &[u8]| {
        let mut out = Encoder::new(Layout::parse(text).expect("a layout"), order);
        for (time, address, kind) in [
            (1, tags, Kind::Read),
            (2, entry, Kind::Read),
            (900, tags + 4096, Kind::Read),
            (903, entry, Kind::Write),
        ] {
            out.access(&Access { time, address, kind, bytes: 64, value: None, cpu: None });
        }
        let length = (kernel.len() as u16).to_le_bytes();
        [text.as_bytes(), b"\n", &[u8::from(order == Order::Big)], &length, kernel, &out.bytes].concat()
    };
    vec![
        ("hmtt", seed(HMTT, Order::Little, &kernel)),
        ("wide", seed(wide, Order::Big, &kernel[..kernel.len() - 20])),
        ("bytes", seed("time:15,read:1,address:48", Order::Little, &[])),
    ]
}

fn files(all: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, file) in all {
        bytes.push(*kind);
        bytes.extend((file.len() as u16).to_le_bytes());
        bytes.extend(*file);
    }
    bytes
}

/// Lines as QEMU writes them: a module that tells of itself and of a table, and walks; a line cut short; other devices.
pub fn lines() -> Vec<(&'static str, Vec<u8>)> {
    let line = |micros: u64, what: &str, address: u64, value: u64, size: u32| {
        format!(
            "7@{}.{:06}:memory_region_ops_{what} cpu 0 mr 0x55d0 addr {address:#x} value {value:#x} size {size} name \
             'cxl-fixed-memory-region'\n",
            micros / 1_000_000,
            micros % 1_000_000
        )
    };
    let hello = u64::from_le_bytes(*b"HPTAT001");
    let (mailbox, table) = (REGION, REGION + 0x5000);
    let mut text = String::new();
    let mut time = 1_700_000_000_000_000;
    let mut put = |text: &mut String, what: &str, address: u64, value: u64, size: u32| {
        time += 3;
        text.push_str(&line(time, what, address, value, size));
    };
    let records = [
        [hello, mailbox, 0],
        [16 | 9 << 32, REGION, REGION + 0x1000_0000],
        [5 | 9 << 32, 0x7f00_0000_0000, table],
        [21 | 9 << 32, 0x7f00_0000_0000, table + 4096],
        [6 | 9 << 32, 1, 0],
        [6 | 9 << 32, 0, 0],
        [17 | 9 << 32, 0x40_0000, 0x41_0000],
        [18 | 9 << 32, 0, 1],
        [19 | 9 << 32, u64::from_le_bytes(*b"/bin/sh\0"), 0],
        [20 | 9 << 32, 2, 1],
    ];
    for record in records {
        for (at, word) in (0..).zip(record) {
            put(&mut text, "write", mailbox + at * 8, word, 8);
        }
    }
    for entry in 0..4 {
        put(&mut text, "read", table + entry * 8, 0, 8);
        put(&mut text, "write", table + entry * 8, 0x8000_0067 + (entry << 12), 8);
        put(&mut text, "read", table + entry * 8, 0x8000_0067 + (entry << 12), 8);
    }
    let cut = text[..text.len() / 2 + 7].to_owned();
    let other = text.replace("cxl-fixed-memory-region", "vga");
    vec![("life", text.into_bytes()), ("cut", cut.into_bytes()), ("others", other.into_bytes())]
}
