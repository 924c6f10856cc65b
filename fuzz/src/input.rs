// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a file of the `flow` corpus means: code fragments with the places where they lie, then a PT stream.
//!
//! | bytes | meaning |
//! |---|---|
//! | 1 | number of fragments, modulo 8 |
//! | per fragment: 1 | place: which of [`BASES`], and a page of it |
//! | 2 | stream offset from which it holds, little-endian |
//! | 1 | bit 0: it replaces what was known there |
//! | 1 | length |
//! | length | the code |
//! | rest | PT |

use kprism_image::Image;

/// Address spaces and addresses, user and kernel and the seams of the address range.
pub const BASES: [(u64, u64); 4] =
    [(0x1000, 0x40_0000), (0, 0xffff_ffff_8100_0000), (0x2000, 0x40_0000), (0, 0xffff_ffff_ffff_f000)];

/// One piece of code.
pub struct Fragment {
    pub place: u8,
    pub offset: u16,
    pub replaces: bool,
    pub code: Vec<u8>,
}

/// Writes an input. Code beyond 255 bytes and fragments beyond 7 are cut off.
pub fn write(fragments: &[Fragment], pt: &[u8]) -> Vec<u8> {
    let fragments = &fragments[..fragments.len().min(7)];
    let mut out = vec![fragments.len() as u8];
    for f in fragments {
        let code = &f.code[..f.code.len().min(255)];
        out.push(f.place);
        out.extend_from_slice(&f.offset.to_le_bytes());
        out.extend_from_slice(&[u8::from(f.replaces), code.len() as u8]);
        out.extend_from_slice(code);
    }
    out.extend_from_slice(pt);
    out
}

/// Reads an input: the code as an image, and the stream.
pub fn read(bytes: &[u8]) -> Option<(Image, &[u8])> {
    let (&count, mut rest) = bytes.split_first()?;
    let mut image = Image::new();
    // Offsets of replacements must not decrease.
    let mut last = 0;
    for _ in 0..count % 8 {
        let (&[place, low, high, flags, len], tail) = rest.split_first_chunk()?;
        let (code, tail) = tail.split_at_checked(usize::from(len))?;
        let (asid, base) = BASES[usize::from(place) % 4];
        let va = base + u64::from(place >> 2 & 0xf) * 0x40;
        if flags & 1 != 0 {
            last = last.max(u64::from(u16::from_le_bytes([low, high])));
            image.replace(asid, va, code, last);
        } else {
            image.add(asid, va, code);
        }
        rest = tail;
    }
    Some((image, rest))
}
