// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of compiled probes, unchanged and with one byte changed: they give an error, or programs that can be
//! assembled.

use kprism_probe::plan::file::Compiled;
use kprism_probe::program::{self, Layout};

fn tried(bytes: &[u8]) -> bool {
    let Ok(found) = Compiled::parse(bytes, "test") else { return false };
    let (vars, thread_vars) = (found.vars.len() as u32, found.thread_vars.len() as u32);
    let Ok(layout) = Layout::of(&found.plans, 4, 1 << 16) else { return true };
    let layout = Layout { stop_after: Some(3), vars, thread_vars, ..layout };
    for (number, plan) in found.plans.iter().enumerate() {
        let _ = program::probe(plan, number as u32, &layout);
        let _ = program::entry(plan, number as u32, &layout);
    }
    assert_eq!(Compiled::parse(&found.bytes().expect("it was read"), "again").expect("its own"), found);
    true
}

#[test]
fn any_byte_changed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/probe_compiled");
    let mut good = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus") {
        let path = entry.expect("a file").path();
        // Files that the fuzzer adds are named by a hash. They need not be valid.
        if path.file_name().is_some_and(|name| name.len() == 40) {
            continue;
        }
        let mut bytes = std::fs::read(path).expect("readable");
        assert!(tried(&bytes));
        for at in 0..bytes.len() {
            let was = bytes[at];
            for now in [b'0', b'9', b'f', was ^ 1] {
                bytes[at] = now;
                good += usize::from(tried(&bytes));
            }
            bytes[at] = was;
        }
    }
    assert!(good > 1000, "{good}");
}
