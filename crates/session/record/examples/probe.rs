// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads of a command that returned something, as root: `cargo run -p kprism-record --example probe -- ls -l`.

use kprism_record::probe::{Probes, Settings, record};
use kprism_session::probe::Loaded;
use kprism_session::{Progress, Result};

fn main() -> Result<()> {
    let command: Vec<String> = std::env::args().skip(1).collect();
    let progress = Progress::silent();
    let probes = Probes {
        probes: vec!["vfs_read%return if $retval > 0".into()],
        collect: vec!["$comm,$retval,$duration".into()],
        ..Probes::default()
    };
    let program = probes.compile(&[], &[], &progress)?;
    let recorded = record(program, &Settings { command, ..Settings::default() }, &progress, &mut |_, _| {})?;
    Loaded::open(&recorded.run)?.each(|hit, values| {
        println!("{} {values:?}", hit.pid);
        Ok(true)
    })?;
    println!("{} hits", recorded.hits());
    Ok(())
}
