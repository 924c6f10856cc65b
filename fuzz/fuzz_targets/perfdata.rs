// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as perf.data, alone and with themselves as the kernel's code: a capture or an error comes back, whose
//! streams are no larger than what they came from and whose code lies where it says. And as one of tracepoints: no more
//! events than bytes, whose fields can be shown. And as one of misses of memory: no more samples than bytes.
#![no_main]

use std::path::Path;

use kprism_ftrace::Data;
use kprism_ftrace::show::Shown;
use kprism_import::perfdata::{Files, Parts, from_parts, mem, trace};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts { data: Files::new(vec![bytes.into()]), ..Parts::default() };
    for kcore in [None, Some(("kcore".into(), bytes.into()))] {
        parts.kcore = kcore;
        let Ok(capture) = from_parts(Path::new("fuzz"), &parts) else { continue };
        // An OVF of two bytes may stand for each piece that is missing.
        let total: usize = capture.streams.iter().map(|stream| stream.pt.len()).sum();
        assert!(total <= 2 * bytes.len());
        for stream in &capture.streams {
            assert!(stream.regions.iter().all(|placed| placed.gone > 0 || placed.region < capture.regions.len()));
        }
        assert!(capture.switches.iter().all(|switch| switch.cpu < capture.streams.len()));
    }
    let files = Files::new(vec![bytes.into()]);
    let samples = mem::read(&files);
    assert!(samples.misses.len() <= bytes.len() + files.unpacked_len());
    assert!(samples.misses.is_sorted_by_key(|miss| miss.ns));
    if let Ok(trace) = trace::read(&files) {
        assert!(trace.len() <= bytes.len() + files.unpacked_len());
        let (decoder, shown) = (trace.dat.decoder(), Shown::new(&trace.dat.formats, trace.dat.big));
        for event in trace.events(&decoder) {
            if let Data::Raw { id, bytes } = event.data {
                shown.write(id, bytes, &|_| None, &mut Vec::new());
            }
        }
    }
});
