// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions whose instructions differ between two runs: `cargo run -p kprism-session --example diff -- OLD NEW`.

use std::collections::BTreeMap;

use kprism_session::{Error, Result, open};

fn main() -> Result<()> {
    let runs: Vec<String> = std::env::args().skip(1).collect();
    let [old, new] = &runs[..] else { return Err(Error::msg("two runs are needed: OLD NEW")) };
    let mut functions: BTreeMap<(String, String), [u64; 2]> = BTreeMap::new();
    for (side, run) in [old, new].into_iter().enumerate() {
        let profile = open(run)?.flow()?;
        for (instructions, function) in profile.self_instructions().into_iter().zip(&profile.funcs) {
            functions.entry((function.module.clone(), function.name.clone())).or_default()[side] +=
                instructions;
        }
    }
    for ((module, name), [old, new]) in functions.iter().filter(|(_, [old, new])| old != new) {
        println!("{old:>12} {new:>12} {name} {module}");
    }
    Ok(())
}
