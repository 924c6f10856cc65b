// SPDX-License-Identifier: GPL-2.0-or-later
//! What a translated block tells its callbacks, in the one word that QEMU hands to each.
//!
//! That a block begins is told by the callback of its first access to memory, where that is an instruction that always
//! makes exactly one such access: half of the callbacks less. All other blocks have a callback of their own.
//!
//! | word | bits |
//! |---|---|
//! | of an access | 0–46 the instruction's address; 47–55 bytes from the block's begin; 56 only its load tells; 57–61 instructions of the block that begins, or 0 |
//! | of a block | 0–47 its address; 48–62 instructions; 63 it ends on the next page |

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess};

use crate::abi;

/// Bits of a program's address.
const USER: u32 = 47;
const LOAD: u32 = 56;
const COUNT: u32 = 57;
/// Instructions of a block that an access can tell of; each has at most 15 bytes.
const MOST: u64 = 31;

/// See the module.
pub struct Block {
    pub instructions: usize,
    va: u64,
    /// Ends on the page after its first.
    next: bool,
    /// The instruction whose access tells that the block begins, and whether it both loads and stores.
    teller: Option<(usize, bool)>,
}

impl Block {
    /// # Safety
    /// `tb` is the block being translated.
    pub unsafe fn read(tb: *mut abi::Tb) -> Self {
        // SAFETY: as the caller says; an instruction's host address is where the program's code lies, in this process.
        unsafe {
            let instructions = abi::qemu_plugin_tb_n_insns(tb);
            let va = abi::qemu_plugin_tb_vaddr(tb);
            let mut bytes = 0;
            let mut teller = None;
            let mut looking = true;
            for i in 0..instructions {
                let insn = abi::qemu_plugin_tb_get_insn(tb, i);
                let size = abi::qemu_plugin_insn_size(insn);
                bytes += size as u64;
                let code = abi::qemu_plugin_insn_haddr(insn).cast::<u8>();
                if looking && !code.is_null() && size <= 15 {
                    match accesses(std::slice::from_raw_parts(code, size)) {
                        Accesses::No => {}
                        Accesses::Sure { both } => (looking, teller) = (false, Some((i, both))),
                        Accesses::Unsure => looking = false,
                    }
                }
            }
            let next = (va & 0xfff) + bytes > 4096;
            if next || va >> USER != 0 || instructions as u64 > MOST {
                teller = None;
            }
            Block { instructions, va, next, teller }
        }
    }

    /// For the accesses of instruction `i`, at `ip`.
    pub fn word(&self, i: usize, ip: u64) -> u64 {
        let plain = ip & ((1 << USER) - 1);
        match self.teller {
            Some((at, both)) if at == i => {
                let behind = ip.wrapping_sub(self.va) << USER;
                plain | behind | u64::from(both) << LOAD | (self.instructions as u64) << COUNT
            }
            _ => plain,
        }
    }

    /// For the block's own callback, if it needs one. A block is no longer than a page and has at most 512 instructions,
    /// so that its last byte is on the first's page or the next.
    pub fn own_word(&self) -> Option<u64> {
        let word = self.va & ((1 << 48) - 1) | (self.instructions as u64 & 0x7fff) << 48;
        self.teller.is_none().then_some(word | u64::from(self.next) << 63)
    }
}

/// The address, the number of instructions, whether it ends on the next page.
#[inline(always)]
pub fn of_own_word(word: u64) -> (u64, u64, bool) {
    (word & ((1 << 48) - 1), word >> 48 & 0x7fff, word >> 63 != 0)
}

/// The instruction's address, and, if a block begins, its address and its number of instructions.
#[inline(always)]
pub fn of_access(word: u64, store: bool) -> (u64, Option<(u64, u64)>) {
    let ip = word & ((1 << USER) - 1);
    let count = word >> COUNT;
    let tells = count != 0 && !(store && word >> LOAD & 1 != 0);
    (ip, tells.then(|| (ip - (word >> USER & 0x1ff), count)))
}

enum Accesses {
    No,
    /// One, or a load and a store.
    Sure {
        both: bool,
    },
    /// Any number, or not known.
    Unsure,
}

/// What an instruction does to memory, as QEMU carries it out. Only those are sure that are known to be one load, one
/// store, or one of each.
fn accesses(code: &[u8]) -> Accesses {
    let insn = Decoder::new(64, code, DecoderOptions::NONE).decode();
    let info = |options| InstructionInfoFactory::new().info_options(&insn, options).clone();
    let used = info(InstructionInfoOptions::NO_REGISTER_USAGE);
    if used.used_memory().is_empty() {
        // What enters the kernel, or is no instruction, may be anything.
        let plain = !insn.is_invalid()
            && !matches!(insn.mnemonic(), Mnemonic::Syscall | Mnemonic::Int | Mnemonic::Ud2)
            && !insn.is_privileged();
        return if plain { Accesses::No } else { Accesses::Unsure };
    }
    let sure = matches!(
        insn.mnemonic(),
        Mnemonic::Mov
            | Mnemonic::Movzx
            | Mnemonic::Movsx
            | Mnemonic::Movsxd
            | Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::And
            | Mnemonic::Or
            | Mnemonic::Xor
            | Mnemonic::Adc
            | Mnemonic::Sbb
            | Mnemonic::Cmp
            | Mnemonic::Test
            | Mnemonic::Inc
            | Mnemonic::Dec
            | Mnemonic::Push
            | Mnemonic::Pop
            | Mnemonic::Call
            | Mnemonic::Ret
    );
    let prefixed = insn.has_lock_prefix() || insn.has_rep_prefix() || insn.has_repne_prefix();
    let segment = (0..insn.op_count()).any(|i| insn.op_register(i).is_segment_register());
    match used.used_memory() {
        [one] if sure && !prefixed && !segment => match one.access() {
            OpAccess::Read | OpAccess::Write => Accesses::Sure { both: false },
            OpAccess::ReadWrite => Accesses::Sure { both: true },
            _ => Accesses::Unsure,
        },
        _ => Accesses::Unsure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(code: &[u8]) -> &'static str {
        match accesses(code) {
            Accesses::No => "none",
            Accesses::Sure { both: false } => "one",
            Accesses::Sure { both: true } => "both",
            Accesses::Unsure => "unsure",
        }
    }

    #[test]
    fn instructions_are_sure_only_if_they_are() {
        assert_eq!(told(&[0x48, 0x8b, 0x07]), "one"); // mov (%rdi),%rax
        assert_eq!(told(&[0x48, 0x89, 0x07]), "one"); // mov %rax,(%rdi)
        assert_eq!(told(&[0x48, 0x01, 0x07]), "both"); // add %rax,(%rdi)
        assert_eq!(told(&[0x55]), "one"); // push %rbp
        assert_eq!(told(&[0xc3]), "one"); // ret
        assert_eq!(told(&[0xe8, 0, 0, 0, 0]), "one"); // call
        assert_eq!(told(&[0x48, 0x8d, 0x07]), "none"); // lea (%rdi),%rax
        assert_eq!(told(&[0x0f, 0x1f, 0x40, 0x00]), "none"); // nopl 0(%rax)
        assert_eq!(told(&[0xff, 0x37]), "unsure"); // push (%rdi)
        assert_eq!(told(&[0xf3, 0xaa]), "unsure"); // rep stosb
        assert_eq!(told(&[0xf0, 0x48, 0x01, 0x07]), "unsure"); // lock add
        assert_eq!(told(&[0x0f, 0x10, 0x07]), "unsure"); // movups: two accesses
        assert_eq!(told(&[0x8e, 0x1f]), "unsure"); // mov (%rdi),%ds
        assert_eq!(told(&[0x0f, 0x05]), "unsure"); // syscall
        assert_eq!(told(&[0x06]), "unsure"); // no instruction
    }

    #[test]
    fn words_come_back() {
        let va = 0x7fff_dead_b123;
        let block = Block { instructions: 31, va, next: false, teller: Some((2, true)) };
        assert_eq!(of_access(block.word(2, va + 400), false), (va + 400, Some((va, 31))));
        assert_eq!(of_access(block.word(2, va + 400), true), (va + 400, None));
        assert_eq!(of_access(block.word(3, va + 400), false), (va + 400, None));
        assert_eq!(block.own_word(), None);
        let block = Block { instructions: 512, va, next: true, teller: None };
        assert_eq!(of_access(block.word(2, va + 40), true), (va + 40, None));
        assert_eq!(of_own_word(block.own_word().unwrap()), (va, 512, true));
    }
}
