// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fuzzer's seeds for the reader of line tables, unchanged and damaged at every place, on a stable toolchain.

use std::path::Path;

use kprism_debuginfo::beside::{self, Wanted};
use kprism_debuginfo::lines::Lines;

fn check(bytes: &[u8]) -> Option<Lines> {
    let lines = Lines::read(bytes, bytes).ok()??;
    assert!(lines.rows.windows(2).all(|pair| pair[0].end <= pair[1].start));
    assert!(lines.rows.iter().all(|row| (row.file as usize) < lines.files.len()));
    let code: usize = lines.functions.iter().map(|function| function.code.len()).sum();
    assert!(code <= bytes.len(), "functions do not overlap");
    let place = |address| Wanted { address, helpers: vec!["pick".to_owned()] };
    let wanted: Vec<Wanted> = lines.rows.iter().take(16).map(|row| place(row.start)).collect();
    if let Ok(Some(found)) = beside::read(bytes, bytes, &wanted) {
        let pieces = found.iter().flatten().flat_map(|beside| &beside.pieces);
        assert!(pieces.clone().all(|(start, end)| start < end) && found.len() == wanted.len());
    }
    Some(lines)
}

#[test]
fn damaged_files_are_errors_or_line_tables() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/lines");
    for name in ["object-dwarf4", "object-dwarf5", "linked"] {
        let good = std::fs::read(folder.join(name)).expect("a seed");
        let lines = check(&good).unwrap_or_else(|| panic!("{name}: no line table"));
        assert!(lines.functions.iter().any(|function| function.name == "pick"), "{name}");
        assert!(lines.files.iter().any(|file| file == "/src/s.c"), "{name}: {:?}", lines.files);
        for at in 0..good.len() {
            for change in [0xff, 0x01] {
                let mut bytes = good.clone();
                bytes[at] ^= change;
                check(&bytes);
            }
            if at % 7 == 0 {
                check(&good[..at]);
            }
        }
    }
}
