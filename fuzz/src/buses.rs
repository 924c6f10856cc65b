// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seeds of the `bustrace` corpus: small files of each kind, put together as the target takes them apart.

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
        Record::Scan { time: 60, pid, begin: true },
        Record::Scan { time: 70, pid, begin: false },
        Record::Unmap { time: 80, pid, entry: REGION + 72 },
        Record::Exit { time: 90, pid },
    ] {
        wide.record(&record);
    }
    let board = |board, values, bytes| {
        let mut w = trace::Writer::new(Header { board, hz: 1_000_000_000, values });
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
            w.access(&Access { time, address, kind, bytes, value: values.then_some(value) });
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

fn files(all: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, file) in all {
        bytes.push(*kind);
        bytes.extend((file.len() as u16).to_le_bytes());
        bytes.extend(*file);
    }
    bytes
}
