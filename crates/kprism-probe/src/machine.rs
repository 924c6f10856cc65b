// SPDX-License-Identifier: MIT OR Apache-2.0
//! What machine code at a probe's place does.

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use kprism_expr::dwarf::Image;

/// Longest function that is looked through.
const LONGEST: u64 = 1 << 20;

/// Whether the function that begins at `start` may jump to `target` itself. One of which the end is unknown may.
pub(crate) fn jumps_to(image: &Image, start: u64, target: u64) -> bool {
    let Some(symbol) = image.around(start) else { return true };
    let size = (symbol.address + symbol.size).saturating_sub(start);
    if size == 0 || size > LONGEST {
        return true;
    }
    let Some(code) = image.bytes_at(start, size as usize) else { return true };
    jumps(code, start, target)
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
}
