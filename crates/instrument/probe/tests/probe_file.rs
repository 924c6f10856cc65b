// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of probes, unchanged and with one byte changed: an error with its place, or probes.

use kprism_probe::written::parse;

#[test]
fn any_byte_changed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/probe_file");
    let (mut good, mut bad) = (0, 0);
    for entry in std::fs::read_dir(folder).expect("the corpus") {
        let path = entry.expect("a file").path();
        let mut bytes = std::fs::read(&path).expect("readable");
        let is_own = path.file_name().is_none_or(|name| name.len() < 40);
        assert!(!is_own || parse(&bytes).is_ok(), "{}", path.display());
        for at in 0..bytes.len() {
            let was = bytes[at];
            for now in [b'(', b'"', b' ', b'\n', b'#', 0xff, was ^ 1] {
                bytes[at] = now;
                let lines = bytes.split(|b| *b == b'\n').count();
                match parse(&bytes) {
                    Ok(_) => good += 1,
                    Err(error) => {
                        assert!((1..=lines).contains(&error.at.line) && error.at.column > 0, "{error}");
                        bad += 1;
                    }
                }
            }
            bytes[at] = was;
        }
    }
    assert!(good > 100 && bad > 100, "{good} {bad}");
}
