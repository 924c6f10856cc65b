// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a file with debug information: an error, or a line table in order, with no more rows and code than the
//! file has room for. Places beside its lines are pieces of code, or a reason.
#![no_main]

use kprism_debuginfo::beside::{self, Wanted};
use kprism_debuginfo::lines::Lines;
use kprism_cover::why::Known;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(Some(lines)) = Lines::read(bytes, bytes) else { return };
    for pair in lines.rows.windows(2) {
        assert!(pair[0].end <= pair[1].start, "{pair:?}");
    }
    for row in &lines.rows {
        assert!((row.file as usize) < lines.files.len(), "{row:?}");
    }
    let code: usize = lines.functions.iter().map(|function| function.code.len()).sum();
    assert!(code <= bytes.len(), "functions do not overlap");
    assert!(lines.functions.windows(2).all(|pair| pair[0].start < pair[1].start));
    Known::default().add(&lines);
    let place = |address| Wanted { address, helpers: vec!["pick".to_owned()] };
    let wanted: Vec<Wanted> = lines.rows.iter().take(64).map(|row| place(row.start)).collect();
    let Ok(Some(found)) = beside::read(bytes, bytes, &wanted) else { return };
    assert_eq!(found.len(), wanted.len());
    for beside in found.iter().flatten() {
        assert!(!beside.pieces.is_empty() && beside.pieces.iter().all(|(start, end)| start < end), "{beside:?}");
    }
});
