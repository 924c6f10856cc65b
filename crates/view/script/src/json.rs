// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes parts of JSON, for texts that are formatted once and then copied.

use std::io::Write as _;

/// Appends a string with its quotes.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    // Writing to memory cannot fail.
    let _ = serde_json::to_writer(out, text);
}

/// Appends `"0x…"`: numbers in JSON cannot hold all addresses.
pub(crate) fn address(out: &mut Vec<u8>, ip: u64) {
    let _ = write!(out, "\"{ip:#x}\"");
}
