// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions of `samples/t.c`, which GCC 14 to 16 compiled with `-fcondition-coverage`.

use std::path::Path;

use kprism_cover::counters::{Collector, Object};
use kprism_gcov::{UnitCounter, data, notes};

fn sample(version: u32, file: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../format/gcov/tests/samples");
    std::fs::read(folder.join(format!("gcc{version}/{file}"))).unwrap()
}

/// The counters, read by hand: `i < 10` was true and false. In `(a && b) || c`, `c` belongs to another decision once
/// `f` is inlined; the first condition was true and false, the second only false.
#[test]
fn conditions_are_told_by_line() {
    for version in 14..=16 {
        let (note_bytes, data) = (sample(version, "t.gcno"), sample(version, "t.gcda"));
        let mut counter = UnitCounter::default();
        let collector = Collector::default();
        let main = notes::read(&note_bytes).unwrap();
        collector.add(&mut counter, Object::default(), &main, &data::read(&data).unwrap()).unwrap();
        let cover = collector.finish();
        let source = &cover.sources[0];
        let told = |line: u32| -> Vec<(u32, u64, u64)> {
            let all = source.conditions_of(line).iter();
            all.map(|found| (found.seen.terms, found.seen.yes, found.seen.no)).collect()
        };
        let main = main.functions.iter().find(|function| function.name == "main").unwrap();
        println!("GCC {version}: {:?}, lines 3, 4: {:?} {:?}", main.conditions, told(3), told(4));
        assert_eq!(told(3), [(2, 0, 0)], "f itself was never called");
        assert_eq!(told(4), [(2, 1, 3), (1, 1, 1)], "GCC {version}");
        let totals = cover.totals().conditions;
        assert_eq!((totals.hit, totals.all), (5, 10), "GCC {version}");
    }
}
