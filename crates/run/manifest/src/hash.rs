// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hash behind ids, keys and marks. In: bytes. Out: SHA-256 over them, and its digits.

use sha2::{Digest as _, Sha256};

/// Hash of several parts. Each has its length (`u64`, little-endian) before it, so that parts cannot run into each other.
pub fn of_parts<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.as_ref().len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// The mark of a file by which it is known again: the first half of the SHA-256 of its bytes, in hexadecimal.
#[derive(Debug, Clone, Default)]
pub struct Mark(Sha256);

impl Mark {
    /// Takes the next bytes of the file.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The mark of all bytes so far.
    pub fn finish(self) -> String {
        hex(&self.0.finalize()[..16])
    }

    /// The mark of a file that is in memory.
    pub fn of(bytes: &[u8]) -> String {
        let mut mark = Mark::default();
        mark.add(bytes);
        mark.finish()
    }
}

/// Bytes in hexadecimal, in small letters.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
