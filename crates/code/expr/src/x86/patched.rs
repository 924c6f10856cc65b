// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instructions in a kernel's file that the kernel changes while it runs, told by their bytes (arch/x86/kernel/
//! jump_label.c, static_call.c, ftrace.c), and the branches beside them.

use kprism_debuginfo::Image;

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const CALL: u8 = 0xe8;
const JUMP: u8 = 0xe9;

/// Returns the length of a jump label's instruction in bytes: a jump, or the no-op in its place. `None` if it is neither.
pub(crate) fn jump_label_len(image: &Image, at: u64) -> Option<u64> {
    match image.bytes_at(at, 2)? {
        [0x66, 0x90] | [0xeb, _] => Some(2),
        [0x0f, 0x1f] | [JUMP, _] => Some(5),
        _ => None,
    }
}

/// Returns the target of a direct jump, with a displacement of 32 bits.
pub(crate) fn jump_target(image: &Image, at: u64) -> Option<u64> {
    target(image, at, JUMP)
}

/// Returns true if there is a direct call.
pub(crate) fn is_call(image: &Image, at: u64) -> bool {
    image.bytes_at(at, 1) == Some(&[CALL])
}

/// Returns true if ftrace can trace a function: it begins with a call of `__fentry__`, or with the no-op in its place.
pub(crate) fn is_traced(image: &Image, function: u64) -> bool {
    let entry = match image.bytes_at(function, 4) {
        Some(first) if first == ENDBR64 => function + 4,
        _ => function,
    };
    match image.bytes_at(entry, 1) {
        Some([CALL]) => target(image, entry, CALL) == image.symbol("__fentry__"),
        Some([0x0f]) => image.bytes_at(entry, 5) == Some(&[0x0f, 0x1f, 0x44, 0, 0]),
        _ => false,
    }
}

fn target(image: &Image, at: u64, opcode: u8) -> Option<u64> {
    let branch = image.bytes_at(at, 1) == Some(&[opcode]);
    branch.then(|| image.near_at(at + 1).map(|to| to.wrapping_add(4)))?
}
