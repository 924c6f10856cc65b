// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compressed files: .gz, .xz, .zst, known by their first bytes.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;

/// Maximum memory that unpacking an .xz may take, KiB: `xz -9` needs 65 MiB.
const MOST_MEMORY_KIB: u32 = 512 << 10;

/// Number of bytes by which a format is known.
pub(crate) const MAGIC: usize = 6;

/// True if a file that starts so is compressed.
pub(crate) fn is_packed(start: &[u8]) -> bool {
    [&b"\x1f\x8b"[..], b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"].iter().any(|magic| start.starts_with(magic))
}

/// The unpacked input, of which `start` are the first bytes; the input itself if it is not compressed.
///
/// # Errors
/// The reason, in words.
pub(crate) fn unpacked<'a>(start: &[u8], input: impl Read + 'a) -> Result<Box<dyn Read + 'a>, String> {
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(input)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            Box::new(XzReader::new_mem_limit(input, true, MOST_MEMORY_KIB))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(
            ruzstd::decoding::StreamingDecoder::new(input)
                .map_err(|error| format!("not a good .zst file: {error}"))?,
        ),
        _ => Box::new(input),
    })
}
