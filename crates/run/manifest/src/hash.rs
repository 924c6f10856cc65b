// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hash behind ids and keys. In: bytes. Out: SHA-256 over them, and its digits.

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

/// Bytes in hexadecimal, in small letters.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
