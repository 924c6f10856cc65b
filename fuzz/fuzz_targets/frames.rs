// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes from the other end of a connection (`--on`): frames, which are unpacked into a folder and never out of it, or an error.
#![no_main]

use kprism_remote::archive::Unpack;
use kprism_remote::frame::Frame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let outer = tempfile::tempdir().expect("a folder for temporary files");
    let run = outer.path().join("run");
    let mut unpack = Unpack::into(&run).expect("a disk with room");
    let mut from = bytes;
    while let Ok(Some(frame)) = Frame::read(&mut from) {
        if unpack.take(&frame).is_err() {
            break;
        }
    }
    let beside = std::fs::read_dir(outer.path()).expect("it is there").count();
    assert_eq!(beside, 1, "something was written beside the run");
});
