// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the digest of every segment: `digests RUN [CPU]` for a recorded run, its `streams` folder, or a
//! folder with `*.pt` and `xpages.txt`. The format is that of `tests/oracle`: OFFSET INSTRUCTIONS HASH ERROR.

mod support;

use std::path::Path;

use kprism_flow::digest::segment_digests;

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(dir) = args.first() else {
        eprintln!("usage: digests RUN [CPU]");
        std::process::exit(2);
    };
    let wanted: u16 = args.get(1).and_then(|cpu| cpu.parse().ok()).unwrap_or(0);
    let input = support::load(Path::new(dir))?;
    for (_, bytes, image) in input.streams.iter().filter(|s| s.0 == wanted) {
        let digests = segment_digests(bytes, image);
        for d in &digests {
            println!("{} {} {:016x} {}", d.offset, d.instructions, d.hash, u8::from(d.errors > 0));
        }
        let insns: u64 = digests.iter().map(|d| d.instructions).sum();
        let errors: u64 = digests.iter().map(|d| d.errors).sum();
        println!("total segments {} insns {insns} errors {errors}", digests.len());
    }
    Ok(())
}
