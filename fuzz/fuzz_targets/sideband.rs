// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as the sideband of a run: see `src/side.rs`.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use kprism_store::Run;
use libfuzzer_sys::fuzz_target;

#[path = "../src/cells.rs"]
#[allow(dead_code)]
mod cells;
#[path = "../src/input.rs"]
#[allow(dead_code)]
mod input;
#[path = "../src/programs.rs"]
mod programs;
#[path = "../src/side.rs"]
mod side;

/// One for each process, below what `cargo clean` removes.
static RUN: LazyLock<Run> = LazyLock::new(|| {
    let name = format!("target/scratch/sideband-{}", std::process::id());
    Run::create(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("a folder to write to")
});

fuzz_target!(|bytes: &[u8]| side::check(&RUN, bytes));
