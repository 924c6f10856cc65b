// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packets of one CPU with the code that it ran, and their division into chunks that can be decoded alone.

use kprism_image::Image;
use kprism_pt::find_psb;

/// One CPU's stream and its code.
#[derive(Debug, Clone, Copy)]
pub struct Stream<'a> {
    /// CPU number.
    pub cpu: u16,
    /// The packets.
    pub bytes: &'a [u8],
    /// The code that this CPU ran.
    pub image: &'a Image,
}

/// Chunks per stream, as far as [`MIN_CHUNK`] and [`MAX_CHUNK`] bytes allow.
const CHUNKS: usize = 64;
const MIN_CHUNK: usize = 64 << 10;
const MAX_CHUNK: usize = 1 << 20;

/// Divides a stream into chunks that begin at PSBs, lazily: a reader that stops early does not touch the rest. The first
/// chunk starts at 0 even if there is no PSB. `size` is in bytes, up to the next PSB; 0 for one that fits the stream.
pub(crate) fn chunks(bytes: &[u8], size: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    let size = if size == 0 { (bytes.len() / CHUNKS).clamp(MIN_CHUNK, MAX_CHUNK) } else { size };
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = (from < bytes.len()).then_some(from)?;
        from = find_psb(bytes, start.saturating_add(size)).unwrap_or(bytes.len());
        Some((start, from))
    })
}
