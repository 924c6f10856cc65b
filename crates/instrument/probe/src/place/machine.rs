// SPDX-License-Identifier: MIT OR Apache-2.0
//! Examines the machine code at a probe's place.

use std::path::Path;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use kprism_expr::dwarf::Image;

/// Longest function that is examined, bytes.
const LONGEST: u64 = 1 << 20;

/// Returns true if the function that begins at `start` may jump to `target` itself. A function whose end is unknown
/// may.
pub(crate) fn jumps_to(image: &Image, start: u64, target: u64) -> bool {
    let Some(symbol) = image.around(start) else { return true };
    let size = (symbol.address + symbol.size).saturating_sub(start);
    if size == 0 || size > LONGEST {
        return true;
    }
    let Some(code) = image.bytes_at(start, size as usize) else { return true };
    jumps(code, start, target)
}

/// Like `around`, for an offset of a file.
pub fn around_offset(path: &Path, offset: u64) -> Option<u64> {
    let image = Image::map(path).ok()?;
    around(&image, image.address_of(offset)?)
}

/// The start of the instruction that contains `pc` in its middle. `None` if an instruction begins at `pc`, or if that
/// is unknown.
pub(crate) fn around(image: &Image, pc: u64) -> Option<u64> {
    let start = image.around(pc)?.address;
    let before = usize::try_from(pc - start).ok().filter(|n| *n as u64 <= LONGEST)?;
    // The last instruction may extend beyond `pc`, by at most the length of an instruction.
    let code = (0..15).rev().find_map(|more| image.bytes_at(start, before + more))?;
    within(code, start, pc)
}

fn within(code: &[u8], start: u64, pc: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    while decoder.can_decode() && decoder.ip() < pc {
        let insn = decoder.decode();
        if insn.is_invalid() {
            // Data among the code: the instructions after it cannot be determined.
            return None;
        }
        if insn.next_ip() > pc {
            return Some(insn.ip());
        }
    }
    None
}

fn jumps(code: &[u8], start: u64, target: u64) -> bool {
    Decoder::with_ip(64, code, start, DecoderOptions::NONE).iter().any(|insn| match insn.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            insn.near_branch_target() == target
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_seen() {
        // endbr64; dec edi; jne to the dec; ret
        let again = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0xcf, 0x75, 0xfc, 0xc3];
        assert!(jumps(&again, 0x1000, 0x1004));
        assert!(!jumps(&again, 0x1000, 0x1006));
        // endbr64; jmp elsewhere
        assert!(!jumps(&[0xf3, 0x0f, 0x1e, 0xfa, 0xeb, 0x10], 0x1000, 0x1004));
    }

    #[test]
    fn instructions_have_a_middle() {
        // push rbp; mov rbp, rsp; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0xc3];
        let at = |pc| within(&code, 0x1000, pc);
        assert_eq!([at(0x1000), at(0x1001), at(0x1004)], [None; 3]);
        assert_eq!([at(0x1002), at(0x1003)], [Some(0x1001); 2]);
        // An invalid instruction (push es): the instructions after it are unknown.
        assert_eq!(within(&[0x06, 0x48, 0x89, 0xe5], 0x1000, 0x1002), None);
    }
}
