// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of code versions. The input is fragments at addresses and stream offsets; the output is checks of the bytes
//! visible at each offset, on which all decoding depends.

use kprism_image::code::{Conflict, GRANULE, Image};
use kprism_image::maps::{self, Dict, MapRecord, image, parse_map};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::{option, proptest};

fn at(image: &Image, asid: u64, va: u64, offset: u64, n: usize) -> Vec<u8> {
    let mut buf = vec![0; n];
    let got = image.fetch(asid, va, offset, &mut buf);
    buf.truncate(got);
    buf
}

#[test]
fn known_bytes_accumulate_and_gaps_stay_gaps() {
    let mut i = Image::new();
    i.add(0, 0x1010, &[1, 2, 3]);
    i.add(0, 0x1014, &[5]);
    assert_eq!(at(&i, 0, 0x1010, 0, 15), [1, 2, 3]);
    assert_eq!(at(&i, 0, 0x1013, 0, 15), [0u8; 0]);
    i.add(0, 0x1012, &[9, 4]); // 3 is known and stays
    assert_eq!(at(&i, 0, 0x1010, 0, 15), [1, 2, 3, 4, 5]);
    assert_eq!(at(&i, 0x5000, 0x1010, 0, 15), [0u8; 0]);
}

#[test]
fn runs_cross_granules() {
    let mut i = Image::new();
    let text: Vec<u8> = (0..=255).cycle().take(1000).collect();
    i.add(7, 3 * GRANULE - 10, &text);
    assert_eq!(at(&i, 7, 3 * GRANULE - 10, 0, 2000), text);
    assert_eq!(i.bytes(7, 3 * GRANULE, 0), &text[10..10 + GRANULE as usize]);
    let mut top = Image::new();
    top.add(0, u64::MAX - 1, &[1, 2]);
    assert_eq!(at(&top, 0, u64::MAX - 1, 0, 15), [1, 2]);
}

#[test]
fn a_conflict_starts_a_version_at_its_offset() {
    let mut i = Image::new();
    i.add(0, 0x2000, &[0x90; 8]);
    i.replace(0, 0x2002, &[0xcc], 100);
    i.add(0, 0x2008, &[0x11]);
    i.replace(0, 0x2002, &[0xe9], 200);
    assert_eq!(at(&i, 0, 0x2000, 99, 15), [0x90; 8]);
    assert_eq!(at(&i, 0, 0x2002, 100, 3), [0xcc, 0x90, 0x90]);
    assert_eq!(at(&i, 0, 0x2002, 199, 15), [0xcc, 0x90, 0x90, 0x90, 0x90, 0x90, 0x11]);
    assert_eq!(at(&i, 0, 0x2002, u64::MAX, 2), [0xe9, 0x90]);
    let want = [100, 200].map(|offset| Conflict { offset, asid: 0, va: 0x2000 });
    assert_eq!(i.conflicts(), want);
}

#[test]
fn equal_granules_are_stored_once_and_change_apart() {
    let mut i = Image::new();
    for asid in [0x1000, 0x2000, 0x3000] {
        i.add(asid, 0x40_0000, &[0x90; 300]);
    }
    i.replace(0x2000, 0x40_0010, &[0xcc], 70);
    assert_eq!((i.len(), i.granules()), (7, 7));
    i.share();
    assert_eq!((i.len(), i.granules()), (7, 3));
    i.add(0x1000, 0x40_012c, &[0xc3]);
    i.replace(0x3000, 0x40_0020, &[0xe9], 80);
    for (asid, offset, place, bytes) in [
        (0x1000, 100, 0x40_012a, &[0x90, 0x90, 0xc3][..]),
        (0x2000, 100, 0x40_012a, &[0x90, 0x90]),
        (0x2000, 69, 0x40_0010, &[0x90, 0x90]),
        (0x2000, 70, 0x40_0010, &[0xcc, 0x90]),
        (0x1000, 100, 0x40_0020, &[0x90]),
        (0x3000, 79, 0x40_0020, &[0x90]),
        (0x3000, 80, 0x40_0020, &[0xe9]),
        (0x3000, 80, 0x40_0010, &[0x90]),
    ] {
        assert_eq!(at(&i, asid, place, offset, bytes.len() + 1)[..bytes.len()], *bytes, "{asid:#x} {offset}");
    }
    assert_eq!(at(&i, 0x2000, 0x40_012b, 100, 9), [0x90]);
}

proptest! {
    /// Whenever granules are shared, the bytes at each place and offset stay those of an image that never shares.
    #[test]
    fn sharing_changes_no_byte(steps in vec((0..4_u64, 0..600_u64, vec(0..3_u8, 1..40), option::of(0..5_u64), any::<bool>()), 1..60)) {
        let (mut plain, mut shared, mut offset) = (Image::new(), Image::new(), 0);
        for (asid, va, bytes, later, share) in steps {
            match later {
                Some(more) => {
                    offset += more;
                    plain.replace(asid << 12, va, &bytes, offset);
                    shared.replace(asid << 12, va, &bytes, offset);
                }
                None => {
                    plain.add(asid << 12, va, &bytes);
                    shared.add(asid << 12, va, &bytes);
                }
            }
            if share {
                shared.share();
            }
        }
        prop_assert_eq!(plain.conflicts(), shared.conflicts());
        for (asid, va, offset) in (0..4).flat_map(|a| (0..640).flat_map(move |va| (0..=offset).map(move |o| (a << 12, va, o)))) {
            prop_assert_eq!(plain.bytes(asid, va, offset), shared.bytes(asid, va, offset));
        }
    }
}

#[test]
fn flat_images_ignore_spaces() {
    let mut i = Image::flat();
    i.add(0x1000, 0x40_0000, &[0xc3]);
    assert_eq!(i.space(0xdead_b000, 0x40_0000), 0);
    assert_eq!(at(&i, 0, 0x40_0000, 0, 4), [0xc3]);
    assert_eq!(Image::new().space(0x1234_5fff, 0x40_0000), 0x1234_5000);
    assert_eq!(Image::new().space(0x1234_5fff, 1 << 63), 0);
}

#[test]
fn files_of_a_run() {
    let mut dict = b"KPDICT01".to_vec();
    for (id, bytes) in [(0u32, &[0x90u8, 0xc3][..]), (1, &[0xcc])] {
        dict.extend(id.to_le_bytes());
        dict.extend((bytes.len() as u16).to_le_bytes());
        dict.extend([0; 2]);
        dict.extend(0x1000u64.to_le_bytes());
        dict.extend(bytes);
    }
    let mut map = b"KPMAP001".to_vec();
    for (offset, id, flags) in [(0u64, 0u32, 0u32), (50, 1, 1), (60, 9, 0)] {
        map.extend(offset.to_le_bytes());
        map.extend(0u64.to_le_bytes());
        map.extend(0x1000u64.to_le_bytes());
        map.extend(id.to_le_bytes());
        map.extend(flags.to_le_bytes());
    }
    let (fragments, fault) = Dict::parse(&dict);
    assert_eq!((fragments.len(), fault), (2, None));
    let (records, fault) = parse_map(&map);
    assert_eq!(fault, None);
    assert_eq!(records[1], MapRecord { offset: 50, asid: 0, va: 0x1000, id: 1, flags: 1 });
    let (i, missing) = image(&fragments, &records);
    assert_eq!(missing, 1);
    assert_eq!(at(&i, 0, 0x1000, 0, 15), [0x90, 0xc3]);
    assert_eq!(at(&i, 0, 0x1000, 50, 15), [0xcc, 0xc3]);

    // Cut at any point, both return the complete records and tell the position of the error.
    for n in 0..dict.len() {
        assert!(Dict::parse(&dict[..n]).0.len() < 2);
    }
    for n in 0..map.len() {
        let (records, fault) = parse_map(&map[..n]);
        assert_eq!(records.len(), n.saturating_sub(8) / 32);
        assert_eq!(fault.is_none(), n >= 8 && (n - 8) % 32 == 0);
    }
}

/// Large pieces are not divided into granules, and show the same bytes as if they were: for any order of additions and
/// replacements, large and small, that overlap.
#[test]
fn large_pieces_are_as_if_copied() {
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let file: Vec<u8> = (0..8192).map(|_| random(4) as u8).collect();
    let bytes = kprism_image::Bytes::from(file);
    let mut kept_whole = 0;
    for round in 0..300 {
        let (mut copied, mut shared) = (Image::new(), Image::new());
        let mut offset = 0;
        for _ in 0..1 + random(8) {
            let (start, len) = (random(4096) as usize, random(4096) as usize);
            let part = bytes.slice(start..start + len);
            // Some begin where a granule does, and then need no copy of their ends.
            let va = 0x10_000 + if random(2) == 0 { random(16) * 256 } else { random(4096) };
            let asid = 0x1000 * (1 + random(2));
            offset += random(2) * 10;
            match random(4) {
                0 => {
                    copied.add(asid, va, &part);
                    shared.add(asid, va, &part);
                }
                1 | 2 => {
                    copied.add(asid, va, &part);
                    shared.add_bytes(asid, va, &part);
                }
                _ => {
                    copied.replace(asid, va, &part, offset);
                    shared.replace_bytes(asid, va, &part, offset);
                }
            }
        }
        kept_whole += usize::from(shared.granules() < copied.granules());
        if round % 3 == 0 {
            copied.share();
            shared.share();
        }
        let sorted = |image: &Image| {
            let mut conflicts = image.conflicts().to_vec();
            conflicts.sort_unstable();
            conflicts
        };
        assert_eq!(sorted(&shared), sorted(&copied), "round {round}");
        for asid in [0x1000, 0x2000, 0x3000] {
            for at in (0..=offset + 10).step_by(5) {
                for va in (0xff00..0x13_000).step_by(97) {
                    let (mut a, mut b) = ([0; 300], [0; 300]);
                    let (one, two) = (copied.fetch(asid, va, at, &mut a), shared.fetch(asid, va, at, &mut b));
                    assert_eq!((one, a), (two, b), "round {round}: {asid:#x} {va:#x} at {at}");
                }
            }
        }
    }
    assert!(kept_whole > 200, "{kept_whole} of 300 need fewer granules");
}

#[test]
fn what_is_forgotten_is_not_known_from_there_on() {
    let mut i = Image::new();
    let file: Vec<u8> = (0..=255).cycle().take(5 * GRANULE as usize).collect();
    i.add_bytes(7, 0x1000, &file.clone().into());
    i.add(7, 0x800, &[0x90; 8]);
    i.forget(7, 0x1000 + 100, 0x1000 + 2 * GRANULE, 50);
    i.forget(7, 0x0, 0x900, 60);
    assert_eq!(at(&i, 7, 0x1000, 49, 2000), file);
    assert_eq!(at(&i, 7, 0x1000, 50, 2000), &file[..100]);
    assert_eq!(at(&i, 7, 0x1000 + 150, 50, 2000), [0u8; 0]);
    assert_eq!(at(&i, 7, 0x1000 + 2 * GRANULE, 50, 2000), &file[2 * GRANULE as usize..]);
    assert_eq!((at(&i, 7, 0x800, 59, 9).len(), at(&i, 7, 0x800, 60, 9).len()), (8, 0));
    // What comes later was not there before, and other spaces keep theirs.
    i.replace(7, 0x1000 + 150, &[1, 2, 3], 70);
    assert_eq!(at(&i, 7, 0x1000 + 150, 69, 9), [0u8; 0]);
    assert_eq!(at(&i, 7, 0x1000 + 150, 70, 9), [1, 2, 3]);
    assert_eq!(at(&i, 7, 0x1000 + 150, 49, 3), &file[150..153]);
    let offsets: Vec<u64> = i.conflicts().iter().map(|c| c.offset).collect();
    assert_eq!(offsets, [50, 50, 60, 70]);
    i.share();
    assert_eq!(at(&i, 7, 0x1000 + 150, 70, 9), [1, 2, 3]);
}

#[test]
fn what_was_not_known_in_the_beginning_counts_from_its_offset_on() {
    let mut i = Image::new();
    i.begin_unknown(0, 0x2000, 0x2000 + 2 * GRANULE);
    i.replace_bytes(0, 0x2000, &vec![0x90; 3 * GRANULE as usize].into(), 40);
    assert_eq!(at(&i, 0, 0x2000, 39, 2000), [0u8; 0]);
    assert_eq!(at(&i, 0, 0x2000, 40, 2000).len(), 3 * GRANULE as usize);
    // Nothing was said of the third granule: it was there before.
    assert_eq!(at(&i, 0, 0x2000 + 2 * GRANULE, 39, 2000).len(), GRANULE as usize);
    // What is known already stays.
    i.begin_unknown(0, 0x2000, 0x2000 + GRANULE);
    assert_eq!(at(&i, 0, 0x2000, 40, 8), [0x90; 8]);
}

/// A mapping may be as large as an address space: only its places with code cost anything.
#[test]
fn a_mapping_of_terabytes_is_unknown_at_once() {
    let mut i = Image::new();
    let (start, end) = (0x1000, 0x7fff_ffff_f000);
    i.begin_unknown(7, start, end);
    i.begin_unknown(7, start + GRANULE + 1, start + 2 * GRANULE);
    i.begin_unknown(7, 0x800, start);
    assert_eq!((i.len(), i.granules()), (0, 0));
    let code = vec![0x90; 4 * GRANULE as usize];
    i.replace_bytes(7, 0x4000_0000_0000, &code.clone().into(), 40);
    i.replace(7, 0x800, &[1, 2, 3], 40);
    for (va, len) in [(0x4000_0000_0000, code.len()), (0x800, 3)] {
        assert_eq!(at(&i, 7, va, 39, 2000), [0u8; 0], "{va:#x}");
        assert_eq!(at(&i, 7, va, 40, 2000).len(), len, "{va:#x}");
    }
    assert_eq!(i.len(), 2 * 5);
    // A file that is mapped already stays one piece.
    let mut mapped = Image::new();
    mapped.add_bytes(7, 0x4000_0000_0000, &code.clone().into());
    mapped.begin_unknown(7, start, end);
    mapped.replace_bytes(7, 0x4000_0000_0000, &code.clone().into(), 40);
    assert_eq!((mapped.len(), at(&mapped, 7, 0x4000_0000_0000, 39, 2000).len()), (0, code.len()));
    // Other spaces know nothing of it, and nothing was there to forget.
    i.replace(8, 0x800, &[1, 2, 3], 40);
    assert_eq!(at(&i, 8, 0x800, 39, 9), [1, 2, 3]);
    i.forget(7, 0x2000, end, 50);
    assert_eq!((at(&i, 7, 0x4000_0000_0000, 49, 9).len(), at(&i, 7, 0x4000_0000_0000, 50, 9).len()), (9, 0));
}

#[test]
fn records_of_what_is_not_known_have_its_whole_length() {
    let odd = (1 << 47) - 1;
    for len in [1, 4096, u64::from(u32::MAX), 1 << 32, (1 << 32) + 1, 5 << 32, odd, u64::MAX] {
        let records = maps::gone_records(len);
        let records = records.map(|(at, id, flags)| MapRecord { offset: 0, asid: 0, va: at, id, flags });
        let mut next = 0u64;
        for (number, record) in records.enumerate() {
            assert!(number < 2 && record.flags & maps::GONE != 0, "{len:#x}");
            assert_eq!(record.va, next, "{len:#x}");
            next += record.gone();
        }
        assert_eq!(next, len);
    }
    assert_eq!(maps::gone_records(0).count(), 0);
    let none = MapRecord { offset: 0, asid: 0, va: 0, id: 5, flags: maps::FILE };
    let all = MapRecord { id: u32::MAX, flags: u32::MAX, ..none };
    assert_eq!((none.gone(), all.gone()), (0, u64::MAX));
}

#[test]
fn a_record_of_more_than_four_gib_covers_all_of_them() {
    let head = [&b"KPDICT01"[..], &[0; 4], &[1, 0, 0, 0], &[0; 8], &[0xcc]].concat();
    let (dict, None) = Dict::parse(&head) else { panic!("a dictionary") };
    let code = |va, offset, flags| MapRecord { offset, asid: 7, va, id: 0, flags };
    let last = 0x1000 + (5 << 32);
    let gone = maps::gone_records(5 << 32);
    let gone = gone.map(|(at, id, flags)| MapRecord { offset: 0, asid: 7, va: 0x1000 + at, id, flags });
    let map: Vec<MapRecord> = gone.chain([code(last - 1, 40, 1), code(last, 40, 1)]).collect();
    let (i, missing) = image(&dict, &map);
    assert_eq!(missing, 0);
    assert_eq!((at(&i, 7, last - 1, 39, 1).len(), at(&i, 7, last - 1, 40, 1)), (0, vec![0xcc]));
    // Nothing is said of what lies behind it.
    assert_eq!(at(&i, 7, last, 39, 1), [0xcc]);
}

#[test]
fn a_record_with_flags_of_another_version_is_no_fragment() {
    let head = [&b"KPDICT01"[..], &[0; 4], &[1, 0, 0, 0], &[0; 8], &[0xcc]].concat();
    let (dict, None) = Dict::parse(&head) else { panic!("a dictionary") };
    let record = |flags| MapRecord { offset: 50, asid: 7, va: 0x1000, id: 0, flags };
    for flags in [8, 1 << 8, 1 << 31, maps::FILE | maps::GONE, maps::GONE | 1 << 14] {
        let (i, missing) = image(&dict, &[record(flags)]);
        assert_eq!((missing, i.is_empty(), dict.bytes_of(&record(flags))), (1, true, None), "{flags:#x}");
    }
    assert!([0, 1, 4, 5, 4 | 63 << 8].iter().all(|&flags| record(flags).is_understood()));
}
