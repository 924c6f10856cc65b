// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as an archive, and as the entries of a container image's layers: an error, or an initramfs that the kernel unpacks to
//! what is in it.
#![no_main]

use std::io::Write as _;

use kprism_lab::initramfs_of_archive;
use libfuzzer_sys::fuzz_target;

#[path = "../src/layered.rs"]
mod layered;

fuzz_target!(|bytes: &[u8]| {
    for input in [bytes.to_vec(), layered::image(bytes)] {
        let mut file = tempfile::NamedTempFile::new().expect("a folder for temporary files");
        file.write_all(&input).expect("a disk with room");
        if let Ok(archive) = initramfs_of_archive(file.path()) {
            layered::check(&archive);
        }
    }
});
