// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a folder that simple-pt left: see `src/folder.rs`.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

#[path = "../src/folder.rs"]
mod folder;

/// One for each process, below what `cargo clean` removes.
static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let name = format!("target/scratch/simplept-{}", std::process::id());
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::create_dir_all(&dir).expect("a folder to write to");
    dir
});

fuzz_target!(|bytes: &[u8]| folder::check(&DIR, bytes));
