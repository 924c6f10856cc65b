// SPDX-License-Identifier: MIT OR Apache-2.0
//! `called_by`: the kernel writes the stack's return addresses into the program's memory, and each is compared with the
//! function's code. No loop: the addresses are compared one after another.
//!
//! A return address may be the first one behind the function, so `start < address <= start + length` is asked, as
//! `address - (start + 1) < length`.

use kprism_ebpf::insn::Helper;
use kprism_ebpf::opcode;

use crate::ir::{CalledBy, Fault, Space, Val};

use super::Reloc;
use super::bound::{MOST_PAIRS, Name};
use super::emitter::{A, Emitter, FP, Label};

/// The address that is compared, the second address of the code, and its length.
const CODE: u8 = 1;
const LENGTH: u8 = 2;
const DIRECT: u8 = 3;

/// Returns the stack memory that the search needs, in bytes: one more address tells whether there are more callers.
pub(super) fn buffer(asked: &CalledBy) -> i16 {
    8 * (i16::from(asked.most) + 1)
}

impl Emitter<'_> {
    pub(super) fn called_by(&mut self, v: Val, asked: &CalledBy) {
        let yes = self.local();
        let most = i16::from(asked.most);
        let at = -self.buffer;
        // The direct caller alone needs no stack, if its address is known.
        let listed = asked.direct.is_none() || asked.most > 1;
        if listed {
            const USER_STACK: u64 = 1 << 8;
            let user = if asked.space == Space::User { USER_STACK } else { 0 };
            let context = self.context();
            self.mov(1, context);
            self.stack(2, at);
            self.mov_imm(3, buffer(asked) as u64);
            self.mov_imm(4, user | u64::from(asked.skip));
            self.push(opcode::CALL, 0, 0, 0, Helper::GetStack as i32);
            self.jump(opcode::JMP | opcode::JSLT, 0, 0, 0, Label::Fault(Fault::NoStack));
        }
        match &asked.code {
            Some(parts) => {
                for (start, length) in parts {
                    self.into(CODE, *start);
                    self.push(opcode::ALU64 | opcode::ADD, CODE, 0, 0, 1);
                    self.mov_imm(LENGTH, u64::from(*length));
                    self.search(asked, at, listed, yes);
                }
            }
            None => {
                let name = Name::Function(asked.function.to_string());
                let number = self.name(name);
                for pair in 0..MOST_PAIRS as u8 {
                    self.relocated(LENGTH, Reloc::Bound(number, pair, true));
                    let next = self.local();
                    self.jump(opcode::JMP | opcode::JEQ, LENGTH, 0, 0, next);
                    self.relocated(CODE, Reloc::Bound(number, pair, false));
                    self.search(asked, at, listed, yes);
                    self.here(next);
                }
            }
        }
        // The kernel clears the room that it does not need, so another address means another caller.
        if asked.all {
            self.push(opcode::LDX | 0x18, A, FP, at + 8 * most, 0);
            self.jump(opcode::JMP | opcode::JNE, A, 0, 0, Label::Fault(Fault::Deep));
        }
        self.truth(v, yes);
    }

    /// Compares all callers with the code at [`CODE`], of [`LENGTH`] bytes.
    fn search(&mut self, asked: &CalledBy, at: i16, listed: bool, yes: Label) {
        if let Some(direct) = asked.direct {
            self.into(A, direct);
            self.compare_address(yes);
        }
        if !listed {
            return;
        }
        let most = i16::from(asked.most);
        let done = self.local();
        for n in 0..most {
            if let (true, Some(direct), false) = (n == most - 1, asked.direct, asked.all) {
                // Beside the direct caller the list has one too many, unless it begins with that one.
                self.into(DIRECT, direct);
                self.push(opcode::LDX | 0x18, A, FP, at, 0);
                self.jump(opcode::JMP | opcode::JNE | opcode::X, A, DIRECT, 0, done);
            }
            self.push(opcode::LDX | 0x18, A, FP, at + 8 * n, 0);
            self.compare_address(yes);
        }
        self.here(done);
    }

    fn compare_address(&mut self, yes: Label) {
        self.push(opcode::ALU64 | opcode::SUB | opcode::X, A, CODE, 0, 0);
        self.jump(opcode::JMP | opcode::JLT | opcode::X, A, LENGTH, 0, yes);
    }

    /// The cgroup above the current task at the depth of the container's is the container's, or it is not.
    pub(super) fn in_container(&mut self, v: Val, id: &str) {
        let number = self.name(Name::Container(id.to_owned()));
        self.relocated(1, Reloc::Bound(number, 0, false));
        self.push(opcode::CALL, 0, 0, 0, Helper::CurrentAncestorCgroupId as i32);
        self.relocated(1, Reloc::Bound(number, 0, true));
        let yes = self.local();
        self.jump(opcode::JMP | opcode::JEQ | opcode::X, A, 1, 0, yes);
        self.truth(v, yes);
    }

    /// Returns the number of a name.
    fn name(&mut self, name: Name) -> u16 {
        let names = &mut self.out.names;
        let at = names.iter().position(|known| *known == name);
        at.unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        }) as u16
    }
}
