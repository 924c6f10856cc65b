// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a file of the `simplept` corpus means: the text of a `ptout.sideband` up to the first NUL, then `ptout.0`, which
//! the text may name as a file with code as well. A capture or an error must come of it: no stream longer than what
//! it came from, no code but what the named file holds, everything at a place that exists.

use std::fs;
use std::path::Path;

use kprism_image::Image;
use kprism_import::perfdata::Search;
use kprism_import::{Source, read};

/// Reads an input as a folder, which is made of it in `dir`.
pub fn check(dir: &Path, bytes: &[u8]) {
    let nul = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let (text, pt) = (&bytes[..nul], bytes.get(nul + 1..).unwrap_or_default());
    let sideband = dir.join("ptout.sideband");
    fs::write(&sideband, text).expect("a folder to write to");
    fs::write(dir.join("ptout.0"), pt).expect("a folder to write to");
    // This machine's own files are not looked at.
    let search = Search { symfs: Some(dir.join("nowhere")), ..Search::default() };
    let Ok(capture) = read(&Source::SimplePt(sideband), &[], &search) else { return };
    let [stream] = &capture.streams[..] else { panic!("{} streams", capture.streams.len()) };
    assert_eq!(&stream.pt[..], pt);
    let mut image = Image::new();
    for placed in &stream.regions {
        let region = &capture.regions[placed.region];
        assert!(region.bytes.len() <= pt.len().max(text.len()));
        if placed.replaces {
            image.replace(placed.asid, placed.va, &region.bytes, placed.offset);
        } else {
            image.add(placed.asid, placed.va, &region.bytes);
        }
    }
    assert!(capture.modules.iter().all(|module| module.start <= module.end));
}
