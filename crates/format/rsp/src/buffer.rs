// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace frames: the data collected at hits. The buffer limits their size, finds them, and formats them for trace
//! files.
//!
//! A frame is `u16 tracepoint, u32 size, blocks`. A block is `R` and registers, `M` with `u64 address, u16 length` and
//! memory, or `V` with `u32 number, u64 value` (GDB manual, "Trace File Format"). Frames are stored in this format. The
//! record of a static tracepoint, for which trace files have no block, is stored separately.

use std::borrow::Cow;
use std::collections::VecDeque;

use crate::command::Find;
use crate::define::Key;

/// Size of a frame's header in bytes.
pub const HEADER: usize = 6;

/// A block of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block<'a> {
    /// Registers in the layout of the `g` packet, up to the last collected one.
    Registers(&'a [u8]),
    /// Memory: address and contents.
    Memory(u64, &'a [u8]),
    /// A trace state variable: number and value.
    Variable(u32, u64),
}

/// The data collected at one hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Tracepoint that was hit.
    pub key: Key,
    /// Record of a static tracepoint.
    pub statics: Option<Box<[u8]>>,
    /// One bit for each register whose value is known, by GDB's numbers.
    pub known: u32,
    bytes: Vec<u8>,
    /// Offset of the end of the registers.
    registers: Option<usize>,
}

impl Frame {
    /// Returns an empty frame.
    pub fn new(key: Key) -> Self {
        let mut bytes = (key.number as u16).to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        Self { key, statics: None, known: u32::MAX, bytes, registers: None }
    }

    /// Adds registers. To be called at most once.
    pub fn registers(&mut self, block: &[u8]) {
        self.bytes.push(b'R');
        self.bytes.extend(block);
        self.registers = Some(self.bytes.len());
        self.sized();
    }

    /// Adds memory, in several blocks if it is longer than 65535 bytes.
    pub fn memory(&mut self, address: u64, bytes: &[u8]) {
        let mut at = address;
        for part in bytes.chunks(usize::from(u16::MAX)) {
            self.bytes.push(b'M');
            self.bytes.extend(at.to_le_bytes());
            self.bytes.extend((part.len() as u16).to_le_bytes());
            self.bytes.extend(part);
            at = at.wrapping_add(part.len() as u64);
        }
        self.sized();
    }

    /// Adds the value of a trace state variable.
    pub fn variable(&mut self, number: u32, value: u64) {
        self.bytes.push(b'V');
        self.bytes.extend(number.to_le_bytes());
        self.bytes.extend(value.to_le_bytes());
        self.sized();
    }

    fn sized(&mut self) {
        let size = (self.bytes.len() - HEADER) as u32;
        self.bytes[2..HEADER].copy_from_slice(&size.to_le_bytes());
    }

    /// Returns the frame with zeros appended to the registers: a trace file contains all registers that GDB knows,
    /// collected or not.
    fn padded(&self, zeros: usize) -> Cow<'_, [u8]> {
        let Some(end) = self.registers.filter(|_| zeros > 0) else { return Cow::Borrowed(&self.bytes) };
        let mut bytes = [&self.bytes[..end], &vec![0; zeros], &self.bytes[end..]].concat();
        let size = (bytes.len() - HEADER) as u32;
        bytes[2..HEADER].copy_from_slice(&size.to_le_bytes());
        Cow::Owned(bytes)
    }

    /// Returns the blocks. `registers` is the size of a block of registers in bytes.
    pub fn blocks(&self, registers: usize) -> impl Iterator<Item = Block<'_>> {
        let mut rest = &self.bytes[HEADER..];
        std::iter::from_fn(move || {
            let (kind, after) = rest.split_first()?;
            let (block, size) = match kind {
                b'R' => (Block::Registers(after.get(..registers)?), registers),
                b'M' => {
                    let address = u64::from_le_bytes(after.get(..8)?.try_into().ok()?);
                    let length = usize::from(u16::from_le_bytes(after.get(8..10)?.try_into().ok()?));
                    (Block::Memory(address, after.get(10..10 + length)?), 10 + length)
                }
                _ => {
                    let number = u32::from_le_bytes(after.get(..4)?.try_into().ok()?);
                    (Block::Variable(number, u64::from_le_bytes(after.get(4..12)?.try_into().ok()?)), 12)
                }
            };
            rest = after.get(size..)?;
            Some(block)
        })
    }

    fn size(&self) -> usize {
        self.bytes.len() + self.statics.as_ref().map_or(0, |s| s.len())
    }
}

/// A buffer of frames with a size limit.
#[derive(Debug, Clone, Default)]
pub struct Buffer {
    frames: VecDeque<Frame>,
    used: usize,
    size: usize,
    circular: bool,
    created: u64,
}

impl Buffer {
    /// Returns an empty buffer of this size in bytes. A circular buffer drops the oldest frames to make room.
    pub fn new(size: usize, circular: bool) -> Self {
        Self { size, circular, ..Self::default() }
    }

    /// Adds a frame. Returns false if there is no room for it.
    pub fn push(&mut self, frame: Frame) -> bool {
        let size = frame.size();
        while self.used + size > self.size {
            if !self.circular || size > self.size {
                return false;
            }
            self.used -= self.frames.pop_front().map_or(0, |f| f.size());
        }
        self.used += size;
        self.created += 1;
        self.frames.push_back(frame);
        true
    }

    /// Switches between circular and linear.
    pub fn set_circular(&mut self, circular: bool) {
        self.circular = circular;
    }

    /// Number of frames in the buffer.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns true if there are no frames.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Number of frames added so far, including dropped ones.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// Size of the buffer in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Free space in bytes.
    pub fn free(&self) -> usize {
        self.size - self.used
    }

    /// Returns a frame by its number.
    pub fn get(&self, number: u32) -> Option<&Frame> {
        self.frames.get(number as usize)
    }

    /// Returns the number of the first matching frame after `current`.
    pub fn find(&self, find: Find, current: Option<u32>) -> Option<u32> {
        let from = current.map_or(0, |n| n as usize + 1);
        let holds = |frame: &Frame| {
            let address = frame.key.address;
            match find {
                Find::Number(_) => false,
                Find::Pc(pc) => address == pc,
                Find::Point(number) => frame.key.number == number,
                Find::Inside(low, high) => (low..=high).contains(&address),
                Find::Outside(low, high) => !(low..=high).contains(&address),
            }
        };
        match find {
            Find::Number(number) => number.filter(|n| (*n as usize) < self.frames.len()),
            _ => self.frames.iter().skip(from).position(holds).map(|n| (n + from) as u32),
        }
    }

    /// Returns the number of a tracepoint's frames, and their size in bytes.
    pub fn of(&self, key: Key) -> (u64, u64) {
        let own = self.frames.iter().filter(|f| f.key == key);
        own.fold((0, 0), |(n, bytes), f| (n + 1, bytes + f.bytes.len() as u64))
    }

    /// Returns the bytes of all frames from `offset` on, at most `length`. `zeros` bytes are appended to each block of
    /// registers.
    pub fn raw(&self, offset: u64, length: usize, zeros: usize) -> Vec<u8> {
        let mut skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut out = Vec::new();
        for frame in &self.frames {
            let size = frame.bytes.len() + frame.registers.map_or(0, |_| zeros);
            if skip >= size {
                skip -= size;
                continue;
            }
            let bytes = frame.padded(zeros);
            let part = &bytes[skip..];
            skip = 0;
            out.extend(&part[..part.len().min(length - out.len())]);
            if out.len() == length {
                break;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(number: u32, address: u64, bytes: &[u8]) -> Frame {
        let mut frame = Frame::new(Key { number, address });
        frame.memory(0x1000, bytes);
        frame
    }

    #[test]
    fn blocks_come_back() {
        let mut frame = frame(2, 0x40, &[1, 2, 3]);
        frame.registers(&[7; 16]);
        frame.variable(5, u64::MAX);
        let blocks: Vec<_> = frame.blocks(16).collect();
        let wanted =
            [Block::Memory(0x1000, &[1, 2, 3]), Block::Registers(&[7; 16]), Block::Variable(5, u64::MAX)];
        assert_eq!(blocks, wanted);
        assert_eq!(frame.bytes[..6], [2, 0, 14 + 17 + 13, 0, 0, 0]);
        let padded = frame.padded(3);
        assert_eq!((padded.len(), padded[2]), (frame.bytes.len() + 3, 14 + 17 + 13 + 3));
        assert_eq!(padded[HEADER + 14 + 16..][..5], [7, 0, 0, 0, b'V']);
        let long = vec![9; 70_000];
        let blocks: Vec<_> = self::frame(1, 0, &long).blocks(0).map(|b| format!("{b:?}").len()).collect();
        assert_eq!(blocks.len(), 2);
    }

    #[test]
    fn limits() {
        let one = frame(1, 0x40, &[0; 10]);
        let size = one.bytes.len();
        let mut plain = Buffer::new(2 * size + 1, false);
        assert!(plain.push(one.clone()) && plain.push(one.clone()) && !plain.push(one.clone()));
        assert_eq!((plain.len(), plain.created(), plain.free()), (2, 2, 1));
        let mut ring = Buffer::new(2 * size + 1, true);
        for n in 0..5 {
            assert!(ring.push(frame(n, 0x40, &[0; 10])));
        }
        assert_eq!((ring.len(), ring.created()), (2, 5));
        assert_eq!(ring.get(0).map(|f| f.key.number), Some(3));
        assert!(!ring.push(frame(1, 0, &[0; 100])));
    }

    #[test]
    fn found() {
        let mut all = Buffer::new(1 << 20, false);
        for (number, address) in [(1, 0x10), (2, 0x20), (1, 0x10), (3, 0x30)] {
            all.push(frame(number, address, &[0]));
        }
        let find = |what, from| all.find(what, from);
        assert_eq!(find(Find::Number(Some(3)), None), Some(3));
        assert_eq!(find(Find::Number(Some(4)), None), None);
        assert_eq!(find(Find::Point(1), None), Some(0));
        assert_eq!(find(Find::Point(1), Some(0)), Some(2));
        assert_eq!(find(Find::Point(1), Some(2)), None);
        assert_eq!(find(Find::Pc(0x20), None), Some(1));
        assert_eq!(find(Find::Inside(0x20, 0x30), Some(1)), Some(3));
        assert_eq!(find(Find::Outside(0x10, 0x20), None), Some(3));
        assert_eq!(all.of(Key { number: 1, address: 0x10 }).0, 2);
    }

    proptest! {
        #[test]
        fn raw_bytes_in_pieces(sizes in prop::collection::vec(0usize..40, 0..20), step in 1usize..50) {
            let mut all = Buffer::new(1 << 20, false);
            for size in sizes {
                let mut frame = frame(1, 2, &vec![3; size]);
                if size % 2 == 0 {
                    frame.registers(&[5; 9]);
                }
                all.push(frame);
            }
            let whole = all.raw(0, usize::MAX, 4);
            let mut pieces = Vec::new();
            loop {
                let piece = all.raw(pieces.len() as u64, step, 4);
                if piece.is_empty() {
                    break;
                }
                pieces.extend(piece);
            }
            prop_assert_eq!(whole, pieces);
        }
    }
}
