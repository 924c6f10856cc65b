// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any text as kprism.toml: an error that names a line, or options with the lines that they are on.
#![no_main]

use std::path::Path;

use kprism_options::OptionsFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match OptionsFile::parse(text, Path::new("kprism.toml")) {
        Ok(file) => {
            let lines = text.lines().count();
            assert!(file.entries.iter().all(|entry| entry.line >= 1 && entry.line <= lines));
        }
        Err(error) => assert!(error.to_string().starts_with("kprism.toml:"), "{error}"),
    }
});
