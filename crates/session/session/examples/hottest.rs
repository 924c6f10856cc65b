// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ten kernel functions with most instructions of their own: `cargo run -p kprism-session --example hottest -- RUN`.

use kprism_session::{DEFAULT_RUN, Result, open};

fn main() -> Result<()> {
    let run = std::env::args().nth(1).unwrap_or_else(|| DEFAULT_RUN.into());
    let profile = open(run)?.flow()?;
    let mut functions: Vec<_> = profile.self_instructions().into_iter().zip(&profile.funcs).collect();
    functions.retain(|(_, function)| function.kernel);
    functions.sort_by_key(|(instructions, _)| std::cmp::Reverse(*instructions));
    for (instructions, function) in functions.iter().take(10) {
        println!("{instructions:>12} {}", function.name);
    }
    Ok(())
}
