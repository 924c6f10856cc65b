// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a file of probes: an error with its place, or probes whose expressions have places in the file. Any text as
//! a format of `printf`.
#![no_main]

use kprism_probe::stream::printf;
use kprism_probe::written;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let lines = bytes.split(|b| *b == b'\n').count();
    match written::parse(bytes) {
        Err(error) => assert!((1..=lines).contains(&error.at.line) && error.at.column > 0, "{error}"),
        Ok(found) => {
            for text in found.probes.iter().flat_map(|probe| &probe.texts) {
                assert!(!text.text.contains('\n'));
                assert!((1..=lines).contains(&text.position(text.text.len()).line));
            }
        }
    }
    let text = String::from_utf8_lossy(bytes);
    if let Ok((format, _)) = printf::split(&text) {
        let _ = printf::pieces(&format);
    }
});
