// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers GDB's questions about a trace frame.

use std::fmt::Write as _;

use kprism_rsp::buffer::{Block, Frame};

use crate::registers::{self, SEEN};

/// Its registers. If it has none, only the address at which it was taken.
pub fn registers(frame: &Frame) -> String {
    let found = frame.blocks(SEEN).find_map(|b| if let Block::Registers(r) = b { Some(r) } else { None });
    found.map_or_else(|| registers::place_only(frame.key.address), |r| registers::packet(r, frame.known))
}

/// Its memory from this address on, as far as it was collected.
pub fn memory(frame: &Frame, address: u64, length: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while out.len() < length {
        let at = address.wrapping_add(out.len() as u64);
        let part = frame.blocks(SEEN).find_map(|block| match block {
            Block::Memory(from, bytes) => {
                let skip = usize::try_from(at.wrapping_sub(from)).ok()?;
                bytes.get(skip..).filter(|rest| !rest.is_empty())
            }
            _ => None,
        });
        let Some(part) = part else { break };
        out.extend(&part[..part.len().min(length - out.len())]);
    }
    out
}

/// A list of the frame's contents.
pub fn information(frame: &Frame) -> String {
    let mut out = String::from("<traceframe-info>");
    for block in frame.blocks(SEEN) {
        match block {
            Block::Memory(address, bytes) => {
                let _ = write!(out, "<memory start=\"{address:#x}\" length=\"{:#x}\"/>", bytes.len());
            }
            Block::Variable(number, _) => {
                let _ = write!(out, "<tvar id=\"{number:#x}\"/>");
            }
            Block::Registers(_) => {}
        }
    }
    out + "</traceframe-info>"
}

/// The value of a variable, if it was collected.
pub fn variable(frame: &Frame, number: u16) -> Option<u64> {
    // The last value: the variable's value when the frame was finished.
    let values = frame.blocks(SEEN).filter_map(|block| match block {
        Block::Variable(n, value) if n == u32::from(number) => Some(value),
        _ => None,
    });
    values.last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_rsp::define::Key;

    #[test]
    fn memory_of_several_blocks() {
        let mut frame = Frame::new(Key { number: 1, address: 0x40 });
        frame.memory(0x1000, &[1, 2, 3, 4]);
        frame.memory(0x1004, &[5, 6]);
        frame.variable(3, 7);
        frame.variable(3, 8);
        assert_eq!(memory(&frame, 0x1002, 4), [3, 4, 5, 6]);
        assert_eq!(memory(&frame, 0x1002, 40), [3, 4, 5, 6]);
        assert_eq!(memory(&frame, 0x1006, 1), [0u8; 0]);
        assert_eq!(memory(&frame, 0xfff, 1), [0u8; 0]);
        assert_eq!((variable(&frame, 3), variable(&frame, 4)), (Some(8), None));
        assert!(information(&frame).contains("<memory start=\"0x1004\" length=\"0x2\"/>"));
        assert!(registers(&frame)[256..].starts_with("4000000000000000xx"));
    }
}
