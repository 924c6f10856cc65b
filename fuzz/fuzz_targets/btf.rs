// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a kernel's BTF, and as a module's over a good kernel's: an error, or types that answer every question.
#![no_main]

use std::sync::{Arc, LazyLock};

use kprism_btf::Btf;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/format/btf/tests/synthetic/mod.rs"]
mod synthetic;

static BASE: LazyLock<Arc<Btf>> =
    LazyLock::new(|| Arc::new(Btf::parse("base", synthetic::kernel(), None).expect("a good kernel's")));

fuzz_target!(|bytes: &[u8]| {
    for base in [None, Some(BASE.clone())] {
        if let Ok(btf) = Btf::parse("fuzz", bytes.to_vec(), base) {
            synthetic::ask_everything(&btf);
        }
    }
});
