// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layout of records at fixed offsets in one piece of memory: `u64 address, u64 length, data`. Variables leave the
//! address unset. A length of 0 marks a record that was not written. The caller reserves the memory, stores its address
//! on the stack and sets the lengths to 0.

use kprism_ebpf::opcode;

use crate::ir::{Fault, Record, Space, Val};

use super::emitter::{A, B, Emitter, FP, Label};
use super::memory::reader;
use super::{Error, HEADER, MAX_RECORD, Map, Reloc, VARS};

/// Limit of a frame in bytes. Every offset in it fits the instruction's offset field.
pub const LONGEST: u32 = 32 << 10;

/// Contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Memory. The record contains its address.
    Memory,
    /// A trace state variable.
    Var(u16),
}

/// A record's place in the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Offset in the frame, in bytes.
    pub at: u32,
    /// Capacity for data, in bytes.
    pub room: u32,
    /// Contents.
    pub what: What,
}

/// Layout of the frame so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame {
    /// Stack offset at which the frame's address is stored.
    pub pointer: i16,
    /// Bytes that are allocated.
    pub used: u32,
    /// Slots of the records.
    pub slots: Vec<Slot>,
}

impl Frame {
    /// Allocates bytes, rounded up to a multiple of 8. Returns their offset.
    pub fn take(&mut self, bytes: u64) -> Result<u32, Error> {
        let after = u64::from(self.used) + bytes.min(1 << 40).next_multiple_of(8);
        let at = self.used;
        match u32::try_from(after) {
            Ok(after) if after <= LONGEST => self.used = after,
            _ => return Err(Error::Frame(after)),
        }
        Ok(at)
    }

    fn slot(&mut self, room: u64, what: What) -> Result<u32, Error> {
        let at = self.take(room.saturating_add(HEADER as u64))?;
        self.slots.push(Slot { at, room: room as u32, what });
        Ok(at)
    }
}

impl Emitter<'_> {
    pub(super) fn framed(&mut self, record: &Record) {
        if let Err(error) = self.placed(record) {
            self.refused.get_or_insert(error);
        }
    }

    fn placed(&mut self, record: &Record) -> Result<(), Error> {
        match record {
            Record::Memory { space, addr, len, text } => self.memory(*space, *addr, *len, *text),
            Record::Var(n) => {
                let at = self.take(8, What::Var(*n))?;
                self.relocated(B, Reloc::MapValue(Map::State, VARS + 8 * i32::from(*n)));
                self.push(opcode::LDX | 0x18, A, B, 0, 0);
                self.place(1, at);
                self.push(opcode::ST | 0x18, 1, 0, 8, 8);
                self.push(opcode::STX | 0x18, 1, A, HEADER as i16, 0);
                Ok(())
            }
            Record::Format(..) => Err(Error::Printf),
        }
    }

    fn memory(&mut self, space: Space, addr: Val, len: Val, text: bool) -> Result<(), Error> {
        // A record of computed length gets room for the longest.
        let fixed = self.func.constant(len);
        let room = fixed.unwrap_or(MAX_RECORD as u64);
        if room == 0 {
            return Ok(());
        }
        let at = self.take(room, What::Memory)?;
        // A record's operands are in registers that survive calls, so r2 and r3 can be loaded in any order.
        self.into(3, addr);
        self.into(2, len);
        if fixed.is_none() {
            self.bound(2);
            self.push(opcode::STX | 0x18, FP, 2, -24, 0);
        }
        self.place(1, at);
        self.push(opcode::STX | 0x18, 1, 3, 0, 0);
        self.push(opcode::ALU64 | opcode::ADD, 1, 0, 0, HEADER);
        let call = reader(space, text);
        self.push(opcode::CALL, 0, 0, 0, call as i32);
        let bad = if text { opcode::JSLT } else { opcode::JNE };
        self.jump(opcode::JMP | bad, 0, 0, 0, Label::Fault(Fault::Read));
        if text {
            self.at_least_one();
        }
        self.place(1, at);
        match fixed {
            _ if text => self.push(opcode::STX | 0x18, 1, A, 8, 0),
            Some(n) => self.push(opcode::ST | 0x18, 1, 0, 8, n as i32),
            None => {
                self.push(opcode::LDX | 0x18, A, FP, -24, 0);
                self.push(opcode::STX | 0x18, 1, A, 8, 0);
            }
        }
        Ok(())
    }

    fn take(&mut self, room: u64, what: What) -> Result<u32, Error> {
        let frame = self.frame.get_or_insert_default();
        frame.slot(room, what)
    }

    /// Emits r`reg` = address of this offset in the frame.
    fn place(&mut self, reg: u8, at: u32) {
        let pointer = self.frame.as_ref().map_or(0, |f| f.pointer);
        self.push(opcode::LDX | 0x18, reg, FP, pointer, 0);
        self.push(opcode::ALU64 | opcode::ADD, reg, 0, 0, at as i32);
    }
}
