// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as notes: an error, or an object whose every line and branch has its place, also with counters that
//! are the bytes' own, and together with itself.
#![no_main]

use kprism_cover::counters::{Collector, Object};
use kprism_gcov::data::{Counters, Data, Rest, Values, kind};
use kprism_gcov::{UnitCounter, notes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(notes) = notes::read(bytes) else { return };
    let functions = notes.functions.iter().map(|function| {
        let values =
            (0..function.counters as usize).map(|i| i64::from(bytes[i % bytes.len()] as i8) << (i % 60));
        Counters {
            ident: function.ident,
            lineno_checksum: function.lineno_checksum,
            cfg_checksum: function.cfg_checksum,
            values: vec![(kind::ARCS, Values::All(values.collect()))],
        }
    });
    let data = Data { header: notes.header, summary: None, functions: functions.collect(), rest: Rest::default() };
    let mut solver = UnitCounter::default();
    solver.unit(&notes, None).expect("nothing can mismatch without data");
    if let Ok(unit) = solver.unit(&notes, Some(&data)) {
        assert!(unit.lines.is_sorted_by_key(|line| (line.source, line.line, line.function)));
        for branch in &unit.branches {
            let place = (branch.source, branch.line);
            assert!(unit.lines.binary_search_by_key(&place, |line| (line.source, line.line)).is_ok());
        }
    }
    let collector = Collector::default();
    let added = [(); 2].map(|()| collector.add(&mut solver, Object::default(), &notes, &data));
    let cover = collector.finish();
    assert_eq!(cover.objects, added.iter().filter(|added| added.is_ok()).count() as u32);
    for source in &cover.sources {
        assert!(source.lines.is_sorted_by(|a, b| a.line < b.line));
        source.totals();
    }
});
