// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the report of the tests' sample run: `cargo run --example sample -- report.html [large]`.

#[path = "../tests/sample/mod.rs"]
mod sample;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "report.html".into());
    let profile = if arguments.next().is_some() { sample::large(30, 60_000) } else { sample::profile() };
    let html = kprism_report::html::render(&sample::manifest(), &profile, &Default::default())?;
    println!("{path}: {} bytes", html.len());
    std::fs::write(path, html)?;
    Ok(())
}
