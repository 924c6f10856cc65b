// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds PSBs, the places at which decoding can start (SDM vol. 3, "Packet Stream Boundary (PSB) Packet").

use memchr::memmem;

use crate::opcode::{EXT, EXT_PSB};

/// The PSB packet: eight times `02 82`.
pub const PSB: [u8; 16] = {
    let mut psb = [EXT; 16];
    let mut i = 1;
    while i < 16 {
        psb[i] = EXT_PSB;
        i += 2;
    }
    psb
};

/// Returns the offset of the first PSB at or after `from`, if any.
///
/// The packet before a PSB may itself end in `02 82`. The pattern then starts too early, and the PSB is its last 16
/// bytes. This function recognises that case, so the result is the PSB packet's own offset.
pub fn find_psb(bytes: &[u8], from: usize) -> Option<usize> {
    let start = from + memmem::find(bytes.get(from..)?, &PSB)?;
    let pairs = bytes[start..].chunks_exact(2).take(16).take_while(|pair| **pair == PSB[..2]).count();
    // Sixteen pairs or more are consecutive PSBs, because no payload is that long.
    Some(if pairs < 16 { start + 2 * (pairs - 8) } else { start })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_a_payload_that_ends_like_a_psb() {
        let mut bytes = vec![0x2d, 0x02, 0x82]; // TIP, Update16(0x8202)
        bytes.extend(PSB);
        bytes.extend([0x02, 0x23]);
        assert_eq!(find_psb(&bytes, 0), Some(3));
        assert_eq!(find_psb(&bytes, 3), Some(3));
        assert_eq!(find_psb(&bytes, 4), None);
        assert_eq!(find_psb(&bytes, 99), None);
    }

    #[test]
    fn takes_the_first_of_two() {
        let bytes = [PSB, PSB].concat();
        assert_eq!(find_psb(&bytes, 0), Some(0));
        assert_eq!(find_psb(&bytes, 1), Some(16));
    }
}
