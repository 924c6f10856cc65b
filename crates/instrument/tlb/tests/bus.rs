// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bus traces: files written and read back, boards merged, and the exact count of each meaning.

use kprism_tlb::PageSize;
use kprism_tlb::bus::mappings::{self, Form, Record};
use kprism_tlb::bus::qemu::{Line, Monitor};
use kprism_tlb::bus::rpt::{Counts, replay};
use kprism_tlb::bus::trace::{self, Access, Header, Kind, Merge};
use proptest::prelude::*;

const REGION: (u64, u64) = (0x1_0000_0000, 0x1_1000_0000);
const HEADER: Header = Header { board: 0, hz: 1_000_000_000, values: true, start: 0 };

/// A program's life on the bus, as with stock Linux 6.12: tables are cleared, pages are faulted in one by one, all
/// pages are read in order for `rounds` rounds, the process exits.
struct Life {
    time: u64,
    accesses: Vec<Access>,
    records: Vec<Record>,
}

impl Life {
    fn new() -> Self {
        Life { time: 1000, accesses: Vec::new(), records: Vec::new() }
    }

    fn go(&mut self, kind: Kind, address: u64, bytes: u8, value: u64, after: u64) {
        self.time += after;
        self.accesses.push(Access { time: self.time, address, kind, bytes, value: Some(value), cpu: None });
    }

    fn read(&mut self, address: u64, value: u64) {
        self.go(Kind::Read, address, 8, value, 5_000);
    }

    /// `rounds` walks over `pages` pages from `va` on, with tables from `table` on.
    fn run(
        &mut self,
        pid: u32,
        (va, table): (u64, u64),
        pages: u64,
        rounds: u64,
        size: PageSize,
    ) -> Vec<(u64, u64)> {
        let flags = if size == PageSize::K4 { 0x67 } else { 0xe7 };
        let value = |i: u64| (0x8000_0000 + i * size.bytes()) | flags;
        let entry = |i: u64| table + i * 8;
        for i in 0..pages {
            if i % 512 == 0 {
                for byte in 0..4096 {
                    self.go(Kind::Write, entry(i) + byte, 1, 0, 1);
                }
                let va = va + i * size.bytes();
                self.records.push(Record::Table { time: self.time + 1, pid, size, va, table: entry(i) });
                self.time += 2;
            }
            // The walk that faults, two reads by the kernel, its write, and the walk that succeeds.
            self.read(entry(i), 0);
            self.read(entry(i), 0);
            self.go(Kind::Read, entry(i), 8, 0, 100);
            self.go(Kind::Write, entry(i), 8, value(i), 100);
            self.read(entry(i), value(i));
        }
        for _ in 0..rounds {
            (0..pages).for_each(|i| self.read(entry(i), value(i)));
        }
        self.records.push(Record::Exit { time: self.time + 1, pid });
        for i in 0..pages {
            self.read(entry(i), value(i));
            self.go(Kind::Read, entry(i), 8, value(i), 100);
            self.go(Kind::Write, entry(i), 8, 0, 100);
        }
        let of_round = |i: u64| (va + i * size.bytes(), entry(i));
        (0..=rounds).flat_map(|_| (0..pages).map(of_round)).collect()
    }
}

fn through_files(life: &Life, boards: u32) -> (Vec<trace::Access>, Vec<Record>) {
    let mut writers: Vec<_> =
        (0..boards).map(|board| trace::Writer::new(Header { board, ..HEADER })).collect();
    // Each board holds every n-th page.
    life.accesses.iter().for_each(|a| writers[(a.address >> 12) as usize % boards as usize].access(a));
    let readers = writers.iter().map(|w| trace::Reader::new(&w.bytes).unwrap()).collect();
    let mut merge = Merge::new(readers).unwrap();
    let merged: Vec<_> = merge.by_ref().collect();
    assert!(merge.damage.is_empty() && merge.late == 0);
    let mut w = mappings::Writer::new(Form::Wide);
    life.records.iter().for_each(|r| assert!(w.record(r)));
    let records = mappings::Reader::new(&w.bytes).unwrap().map(Result::unwrap).collect();
    (merged, records)
}

#[test]
fn every_access_is_explained() {
    for (size, pages, boards) in [(PageSize::K4, 8192, 1), (PageSize::K4, 8192, 4), (PageSize::M2, 64, 2)] {
        let mut life = Life::new();
        let expected = life.run(130, (0x7f00_0000_0000, REGION.0 + 0x10_0000), pages, 3, size);
        // A later process with the same number and the same tables, at other addresses.
        let again = life.run(130, (0x5500_0000_0000, REGION.0 + 0x10_0000), pages, 2, size);
        let (accesses, records) = through_files(&life, boards);
        assert_eq!(accesses, life.accesses, "merged in order of time");
        let mut misses = Vec::new();
        let counts = replay(REGION, records.into_iter(), accesses.iter().copied(), |m| {
            assert_eq!((m.mapping.pid, m.mapping.size), (130, size));
            misses.push((m.mapping.va, m.entry));
        });
        assert_eq!(misses, [expected, again].concat(), "{} pages, {boards} boards", size.name());
        let tables = pages.div_ceil(512);
        assert_eq!(
            counts,
            Counts {
                misses: pages * (4 + 3),
                upper: 0,
                absent: 2 * 2 * pages,
                kernel: 2 * 2 * pages,
                census: 2 * pages,
                marked: 0,
                mapped: 2 * pages,
                unmapped: 2 * pages,
                clear: 2 * 4096 * tables,
                unsure: 0,
                unknown: 0,
                outside: 0,
            }
        );
        assert_eq!(counts.all(), accesses.len() as u64);
    }
}

#[test]
fn the_papers_records_name_pages() {
    let entry = REGION.0 + 0x5008;
    let map = Record::Map {
        time: 0,
        pid: 7,
        size: PageSize::K4,
        va: 0x7fff_1234_5000,
        physical: 0xabc_d000,
        entry,
    };
    let huge = Record::Map {
        time: 0,
        pid: 7,
        size: PageSize::M2,
        va: 0xffff_8880_0020_0000,
        physical: 0x4000_0000,
        entry: entry + 8,
    };
    let mut w = mappings::Writer::new(Form::Narrow);
    assert!(w.record(&map) && w.record(&huge));
    assert_eq!(w.bytes.len(), 8 + 4 * 13);
    assert_eq!(w.bytes[8..21], [1, 7, 0, 0, 0, 0xcd, 0xab, 0, 0x45, 0x23, 0xf1, 0xff, 0x07]);
    // Records that this form cannot hold are not written: more than 64 GiB, ends, times.
    let too_high = Record::Map { time: 0, pid: 7, size: PageSize::K4, va: 0x1000, physical: 1 << 36, entry };
    assert!(!w.record(&too_high) && !w.record(&Record::Exit { time: 0, pid: 7 }));
    let bare: Vec<_> = mappings::Reader::bare(&w.bytes[8..]).collect();
    assert_eq!(bare, [Ok(map), Ok(huge)]);
    // A burst of 64 bytes that holds the entry is its miss.
    let burst = Access { time: 5, address: entry & !63, kind: Kind::Read, bytes: 64, value: None, cpu: None };
    let mut found = Vec::new();
    let counts = replay(REGION, bare.into_iter().map(Result::unwrap), [burst].into_iter(), |m| found.push(m));
    assert_eq!((counts.misses, found[0].mapping.va, found[0].entry), (1, 0x7fff_1234_5000, entry));
}

#[test]
fn damage_is_located() {
    let mut life = Life::new();
    life.run(1, (0x1000_0000, REGION.0), 4, 1, PageSize::K4);
    let mut w = trace::Writer::new(HEADER);
    life.accesses.iter().for_each(|a| w.access(a));
    let cut = &w.bytes[..w.bytes.len() - 3];
    let last = trace::Reader::new(cut).unwrap().last().unwrap().unwrap_err();
    assert_eq!(last.offset, w.bytes.len() - 24);
    let error = trace::Reader::new(b"KPBUS002").unwrap_err();
    assert_eq!(error.to_string(), "byte 0: expected KPBUS001");
    // The record of an entry is missing. The pair after it is detected.
    let mut m = mappings::Writer::new(Form::Narrow);
    for pid in 1..4 {
        let entry = REGION.0 + u64::from(pid) * 8;
        m.record(&Record::Map { time: 0, pid, size: PageSize::K4, va: 0x1000, physical: 0x2000, entry });
    }
    m.bytes.drain(8 + 13..8 + 26);
    let error = mappings::Reader::new(&m.bytes).unwrap().last().unwrap().unwrap_err();
    assert_eq!(error.offset, 8 + 13);
    assert!(
        error.what.contains("expected the entry (type 2) of process 1, not type 0x01 of process 2"),
        "{error}"
    );
    let two = [trace::Reader::new(&w.bytes).unwrap(), trace::Reader::new(&w.bytes).unwrap()];
    assert!(Merge::new(two.to_vec()).unwrap_err().what.contains("two files are of board 0"));
}

#[test]
fn tables_out_of_the_region_and_unknown_ones_are_told() {
    let outside = Access { time: 1, address: 0x1000, kind: Kind::Read, bytes: 8, value: Some(0), cpu: None };
    let unknown = Access { address: REGION.0 + 0x9000, ..outside };
    let counts = replay(REGION, std::iter::empty(), [outside, unknown].into_iter(), |_| panic!("no miss"));
    assert_eq!((counts.outside, counts.unknown, counts.all()), (1, 1, 2));
}

/// The walker reads an entry and sets its accessed bit: a miss. If the kernel changes more bits, it is not one.
#[test]
fn the_walkers_bits_are_told_from_the_kernels() {
    let entry = REGION.0;
    let table = Record::Table { time: 1, pid: 9, size: PageSize::K4, va: 0x20_0000, table: entry };
    let go =
        |time, kind, value| Access { time, address: entry, kind, bytes: 8, value: Some(value), cpu: None };
    let accesses = [
        go(10, Kind::Write, 0x8000_0005),
        go(20, Kind::Read, 0x8000_0005),
        go(30, Kind::Write, 0x8000_0025),
        go(40, Kind::Read, 0x8000_0025),
        go(50, Kind::Write, 0x8000_0067),
    ];
    let mut found = Vec::new();
    let counts = replay(REGION, [table].into_iter(), accesses.into_iter(), |m| found.push(m.time));
    assert_eq!((found, counts.kernel, counts.mapped), (vec![20], 1, 3));
}

/// QEMU's walker reads an entry, then half of it again, and writes that half with the accessed bit: one miss, and the page stays
/// mapped. So it is with the entry of a directory that leads to a table.
#[test]
fn bits_that_the_walker_sets_by_half_an_entry_unmap_nothing() {
    let (entry, leads) = (REGION.0, REGION.0 + 0x1000);
    let table = |time, size, va, table| Record::Table { time, pid: 9, size, va, table };
    let records = [table(1, PageSize::K4, 0x20_0000, entry), table(1, PageSize::M2, 0, leads)];
    let go = |time, address, kind, bytes, value| {
        let value = Some(value);
        Access { time, address, kind, bytes, value, cpu: None }
    };
    let mut accesses = Vec::new();
    for (begin, at) in [(10, entry), (20, leads)] {
        accesses.extend([
            go(begin, at, Kind::Write, 8, 0x8400_0000_8000_0005),
            go(begin + 1, at, Kind::Read, 8, 0x8400_0000_8000_0005),
            go(begin + 2, at, Kind::Read, 4, 0x8000_0005),
            go(begin + 3, at, Kind::Write, 4, 0x8000_0025),
            go(begin + 4, at, Kind::Read, 8, 0x8400_0000_8000_0025),
        ]);
    }
    // Bytes that clear the table do unmap.
    accesses.extend((0..8).map(|i| go(30 + i, entry + i, Kind::Write, 1, 0)));
    accesses.push(go(40, entry, Kind::Read, 8, 0));
    let mut found = Vec::new();
    let counts = replay(REGION, records.into_iter(), accesses.into_iter(), |m| found.push(m.time));
    assert_eq!((found, counts.upper), (vec![11, 14], 2));
    assert_eq!((counts.marked, counts.clear, counts.absent), (4, 8, 1));
}

#[test]
fn qemus_lines_are_accesses_and_records() {
    let line = |micros: u64, kind: &str, address: u64, value: u64, size: u8| {
        let at = format!("7@1700000000.{micros:06}:memory_region_ops_{kind} cpu 0 mr 0x5{micros:x}");
        format!("{at} addr {address:#x} value {value:#x} size {size} name 'cxl-fixed-memory-region'\n")
    };
    let mut m = Monitor::default();
    let words = |m: &mut Monitor, micros, words: [u64; 3]| {
        let mut told = Line::Nothing;
        for (at, word) in (0..).zip(words) {
            told = m.line(line(micros, "write", REGION.0 + at * 8, word, 8).as_bytes());
        }
        told
    };
    let hello = u64::from_le_bytes(*b"HPTAT001");
    assert_eq!(words(&mut m, 1, [hello, REGION.0, 0]), Line::Nothing);
    assert_eq!(words(&mut m, 2, [16, REGION.0, REGION.1]), Line::Nothing);
    assert_eq!(m.words.region, Some(REGION));
    let base = 1_700_000_000_000_000_000;
    let told = words(&mut m, 3, [5 | 130 << 32, 0x7f00_0000_0000, REGION.0 + 0x1000]);
    let (size, va, table) = (PageSize::K4, 0x7f00_0000_0000, REGION.0 + 0x1000);
    // Of the three words in one microsecond, the last is two nanoseconds later.
    assert_eq!(told, Line::Record(Record::Table { time: base + 3002, pid: 130, size, va, table }));
    let told = m.line(line(3, "read", table + 8, 0x67, 8).as_bytes());
    let access = Access {
        time: base + 3003,
        address: table + 8,
        kind: Kind::Read,
        bytes: 8,
        value: Some(0x67),
        cpu: Some(0),
    };
    assert_eq!(told, Line::Access(access));
    let path = u64::from_le_bytes(*b"/bin/cat");
    words(&mut m, 4, [17 | 130 << 32, 0x1000, 0x3000]);
    words(&mut m, 4, [18 | 130 << 32, 0x5000, 1]);
    words(&mut m, 4, [19 | 130 << 32, path, 0]);
    let vma = &m.words.vmas[0];
    assert_eq!((vma.pid, vma.start, vma.end, vma.offset), (130, 0x1000, 0x3000, 0x5000));
    assert_eq!((vma.executable, vma.path.as_slice()), (true, b"/bin/cat".as_slice()));
    // Damaged lines, and those of other devices, are counted.
    for bad in
        ["", "garbage", "7@1.5:memory_region_ops_read cpu 0 mr 0x1 addr 0x", "7@99999999999999999999.0:x"]
    {
        assert_eq!(m.line(bad.as_bytes()), Line::Nothing);
    }
    assert_eq!((m.others, m.words.unknown), (4, 0));
}

/// One thread is in the kernel and reads tables, while another one of the same process walks on another CPU.
#[test]
fn a_scan_on_a_cpu_is_that_cpus_alone() {
    let entry = REGION.0;
    let map = Record::Map { time: 1, pid: 9, size: PageSize::K4, va: 0x4000, physical: 0, entry };
    let scan = |time, begin, cpu| Record::Scan { time, pid: 9, begin, cpu: Some(cpu) };
    let read = |time, cpu| Access { time, address: entry, kind: Kind::Read, bytes: 8, value: None, cpu };
    let records = [map, scan(10, true, 1), scan(20, true, 3), scan(30, false, 1)];
    let reads = [
        read(15, Some(0)),
        read(16, Some(1)),
        read(17, None),
        read(25, Some(3)),
        read(35, Some(1)),
        read(36, Some(3)),
    ];
    let mut at = Vec::new();
    let counts = replay(REGION, records.into_iter(), reads.into_iter(), |miss| at.push(miss.time));
    assert_eq!((at, counts.census, counts.unsure), (vec![15, 35], 3, 1));
    assert_eq!(counts.all(), 6);
}

#[test]
fn scans_are_no_misses() {
    let entry = REGION.0;
    let map = Record::Map { time: 1, pid: 9, size: PageSize::K4, va: 0x4000, physical: 0, entry };
    let scan = |time, begin| Record::Scan { time, pid: 9, begin, cpu: None };
    let unmap = Record::Unmap { time: 40, pid: 9, entry };
    let read = |time| Access { time, address: entry, kind: Kind::Read, bytes: 8, value: None, cpu: None };
    let records = [map, scan(10, true), scan(20, false), unmap];
    let reads = [read(5), read(15), read(25), read(45)];
    let counts = replay(REGION, records.into_iter(), reads.into_iter(), |_| {});
    assert_eq!((counts.misses, counts.census, counts.unknown + counts.absent), (2, 1, 1));
}

fn record() -> impl Strategy<Value = Record> {
    let size = (0u8..3).prop_map(|n| PageSize::from_number(n).unwrap());
    prop_oneof![
        (any::<(u64, u32, u64, u64, u64)>(), size.clone()).prop_map(
            |((time, pid, va, physical, entry), size)| Record::Map { time, pid, size, va, physical, entry }
        ),
        any::<(u64, u32, u64)>().prop_map(|(time, pid, entry)| Record::Unmap { time, pid, entry }),
        (any::<(u64, u32, u64, u64)>(), size).prop_map(|((time, pid, va, table), size)| Record::Table {
            time,
            pid,
            size,
            va,
            table
        }),
        (any::<u64>(), any::<u32>(), any::<bool>(), prop::option::of(0..=trace::MOST_CPU))
            .prop_map(|(time, pid, begin, cpu)| Record::Scan { time, pid, begin, cpu }),
        any::<(u64, u32, u32)>().prop_map(|(time, pid, number)| Record::Named { time, pid, number }),
        any::<(u64, u32)>().prop_map(|(time, pid)| Record::Exit { time, pid }),
    ]
}

proptest! {
    #[test]
    fn any_line_ends(lines in prop::collection::vec("7@[0-9]{1,25}\\.[0-9]{1,25}:memory_region_ops_(read|write) cpu -?[0-9] mr 0x[0-9a-f]{1,20} addr 0x[0-9a-f]{1,20} value 0x[0-9a-f]{1,20} size [0-9]{1,4} name 'cxl-fixed-memory-region'|.*", 0..40)) {
        let mut m = Monitor::default();
        lines.iter().for_each(|l| {
            m.line(l.as_bytes());
        });
        prop_assert!(m.others <= lines.len() as u64);
    }

    #[test]
    fn reads_what_was_written(
        records in prop::collection::vec(record(), 0..40),
        accesses in prop::collection::vec((any::<u64>(), 0u64..1 << 48, any::<bool>(), 0u8..8, any::<Option<u64>>(), prop::option::of(0..=trace::MOST_CPU)), 0..40),
    ) {
        let mut w = mappings::Writer::new(Form::Wide);
        records.iter().for_each(|r| assert!(w.record(r)));
        let got: Vec<_> = mappings::Reader::new(&w.bytes).unwrap().map(Result::unwrap).collect();
        prop_assert_eq!(got, records);
        let mut w = trace::Writer::new(HEADER);
        let accesses: Vec<_> = accesses.into_iter().map(|(time, address, write, size, value, cpu)| Access {
            time,
            address,
            kind: if write { Kind::Write } else { Kind::Read },
            bytes: 1 << size,
            value,
            cpu,
        }).collect();
        accesses.iter().for_each(|a| w.access(a));
        let got: Vec<_> = trace::Reader::new(&w.bytes).unwrap().map(Result::unwrap).collect();
        prop_assert_eq!(got, accesses);
    }
}

/// CPU time of this thread, seconds: other threads may be busy.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// Speed of reading, lookup and reporting.
#[test]
#[ignore = "a measurement: make bench-tlb"]
fn speed() {
    const READS: u64 = 30_000_000;
    let mut w = trace::Writer::new(Header { values: false, ..HEADER });
    let mut state = 1u64;
    for time in 0..READS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let address = REGION.0 + (state >> 32) % (1 << 19) * 8;
        w.access(&Access { time, address, kind: Kind::Read, bytes: 8, value: None, cpu: None });
    }
    let records = (0..1u64 << 19).map(|i| Record::Map {
        time: 0,
        pid: 1,
        size: PageSize::K4,
        va: i << 12,
        physical: 0,
        entry: REGION.0 + i * 8,
    });
    let begin = cpu_seconds();
    let merge = Merge::new(vec![trace::Reader::new(&w.bytes).unwrap()]).unwrap();
    let mut sum = 0u64;
    let counts = replay(REGION, records, merge, |m| sum = sum.wrapping_add(m.mapping.va));
    let seconds = cpu_seconds() - begin;
    assert_eq!(counts.misses, READS);
    println!("{:.1} M records/s ({sum:#x})", READS as f64 / seconds / 1e6);
}
