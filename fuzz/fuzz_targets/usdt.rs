// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as the notes that `sys/sdt.h` leaves in a program, and any text as an argument of such a probe: probes in
//! order, places that can be shown.
#![no_main]

use kprism_expr::usdt;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((base, notes)) = bytes.split_first_chunk::<8>() else { return };
    let symbol = |name: &str| (name.len() > 2).then_some(0x4000);
    let found = usdt::noted(notes, u64::from_le_bytes(*base));
    assert!(found.is_sorted_by_key(|probe| probe.pc));
    let texts = String::from_utf8_lossy(notes);
    for text in found.iter().flat_map(|probe| &probe.arguments).map(String::as_str).chain(texts.lines()) {
        if let Some((_, spot)) = usdt::argument(text, &symbol) {
            assert!(!spot.to_string().is_empty());
        }
    }
});
