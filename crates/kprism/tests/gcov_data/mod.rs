// SPDX-License-Identifier: MIT OR Apache-2.0
//! Archives of gcov's counters, as runs keep them in `streams/gcov`.

use std::collections::BTreeMap;

use kprism_gcov::{Data, data};

/// The data of an archive, by object.
pub fn archive(bytes: &[u8]) -> BTreeMap<String, Data> {
    let mut input = std::io::Cursor::new(bytes);
    let mut found = BTreeMap::new();
    loop {
        let mut reader = cpio::newc::Reader::new(input).unwrap();
        if reader.entry().is_trailer() {
            return found;
        }
        let mut contents = Vec::new();
        std::io::Read::read_to_end(&mut reader, &mut contents).unwrap();
        found.insert(reader.entry().name().to_owned(), data::read(&contents).unwrap());
        input = reader.finish().unwrap();
    }
}
