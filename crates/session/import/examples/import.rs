// SPDX-License-Identifier: MIT OR Apache-2.0
//! Imports a capture into a folder: `cargo run -p kprism-import --example import -- SOURCE OUT [FILE@VA...]`.

use std::path::Path;

use kprism_import::perfdata::Search;
use kprism_import::{CodeFile, detect, read, write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [source, out, code @ ..] = args.as_slice() else {
        return Err("usage: import SOURCE OUT [FILE@VA...]".into());
    };
    let code = code.iter().map(|c| CodeFile::parse(c)).collect::<Result<Vec<_>, _>>()?;
    let capture = read(&detect(Path::new(source))?, &code, &Search::default())?;
    let out = Path::new(out);
    write(&capture, &out.join("streams"), &out.join("symbols"))?;
    for (cpu, stream) in capture.streams.iter().enumerate() {
        println!(
            "cpu{cpu}: {} ({} bytes, {} code regions)",
            stream.label,
            stream.pt.len(),
            stream.regions.len()
        );
    }
    capture.notes.iter().for_each(|note| println!("note: {note}"));
    Ok(())
}
