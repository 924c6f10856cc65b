// SPDX-License-Identifier: GPL-2.0-or-later
//! The [`Entry`] that a callback records, and the data about a translated block that it needs, in the one word that
//! QEMU passes to each callback.
//!
//! The start of a block is recorded by the callback of its first access to memory, if that instruction always makes
//! exactly one access. This saves half of the callbacks. Other blocks have their own callback. For instructions that
//! always make one access, or a load and then a store, everything but the address is known at translation.
//!
//! | word | bits |
//! |---|---|
//! | of an access | 0–46 the instruction's address; 47 store; 48–50 log2 of its bytes; 51–58 bytes from the block's start; 59–63 instructions of the block that begins, or 0 |
//! | of a block, to its callback | 0–46 its address; 48–62 instructions; 63 it ends on the next page |
//! | of blocks, recorded | 0–43 instructions; 44–63 number of blocks |

use iced_x86::{
    Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic,
    OpAccess, OpKind,
};

use crate::abi;

/// Bits of a program's address.
const USER: u32 = 47;
const ADDRESS: u64 = (1 << USER) - 1;
const STORE: u32 = 47;
const SIZE: u32 = 48;
const BEHIND: u32 = 51;
const COUNT: u32 = 59;
/// Maximum of a block's instructions that an access can record, and of bytes from the block's start.
const MOST: u64 = 31;
const FARTHEST: u64 = 255;

/// Flags in an entry's address: it is for blocks, not an access; the one block ends on the next page.
const BLOCKS: u64 = 1 << 63;
const ACROSS: u64 = 1 << 62;
/// Bits for the instructions of recorded blocks.
const INSTRUCTIONS: u32 = 44;

/// A record of a callback.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Entry {
    /// Address of data, or of code.
    va: u64,
    /// The word of an access or of blocks. The module's page lists its bits.
    word: u64,
}

/// The decoded [`Entry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// Blocks on one page, or one that ends on the next.
    Blocks { va: u64, across: bool, blocks: u64, instructions: u64 },
    /// An access to data.
    Data(Data),
}

/// An access to data. If it has instructions, a block began before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    pub va: u64,
    pub ip: u64,
    pub store: bool,
    pub bytes: u64,
    pub instructions: u64,
    behind: u64,
}

impl Data {
    /// Start of the block.
    pub fn block(&self) -> u64 {
        self.ip - self.behind
    }
}

impl Entry {
    /// An access, with its callback's word.
    #[inline(always)]
    pub fn data(va: u64, word: u64) -> Self {
        Entry { va, word }
    }

    /// The load or the store of an instruction that makes both. Only the load records that a block begins.
    #[inline(always)]
    pub fn update(va: u64, word: u64, store: bool) -> Self {
        let rest = if store { (1 << BEHIND) - 1 } else { u64::MAX };
        Entry { va, word: word & rest | u64::from(store) << STORE }
    }

    /// An access of an instruction that may make any accesses.
    #[inline(always)]
    pub fn any(va: u64, word: u64, store: bool, shift: u32) -> Self {
        Entry { va, word: word | u64::from(store) << STORE | u64::from(shift & 7) << SIZE }
    }

    /// A block, with its callback's word.
    #[inline(always)]
    pub fn block(word: u64) -> Self {
        let across = if word >> 63 != 0 { ACROSS } else { 0 };
        Entry { va: word & ADDRESS | BLOCKS | across, word: word >> 48 & 0x7fff | 1 << INSTRUCTIONS }
    }

    /// Adds a block on the same page to this one. Returns false if it cannot be added.
    #[inline(always)]
    pub fn join(&mut self, block: Entry) -> bool {
        let can = (self.va ^ block.va) >> 12 == 0 && self.word >> 63 == 0 && block.va & ACROSS == 0;
        if can {
            self.word += block.word;
        }
        can
    }

    /// For an access: whether it is a store, and log2 of its bytes.
    pub fn access(self) -> (bool, u32) {
        (self.word >> STORE & 1 != 0, (self.word >> SIZE & 7) as u32)
    }

    #[inline(always)]
    pub fn read(self) -> Noted {
        let Entry { va, word } = self;
        if va & BLOCKS != 0 {
            let (blocks, instructions) = (word >> INSTRUCTIONS, word & ((1 << INSTRUCTIONS) - 1));
            return Noted::Blocks { va: va & ADDRESS, across: va & ACROSS != 0, blocks, instructions };
        }
        Noted::Data(Data {
            va,
            ip: word & ADDRESS,
            store: word >> STORE & 1 != 0,
            bytes: 1 << (word >> SIZE & 7),
            instructions: word >> COUNT,
            behind: word >> BEHIND & FARTHEST,
        })
    }
}

/// The callback that an instruction's accesses need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callback {
    /// [`Entry::data`].
    Data,
    /// [`Entry::update`].
    Update,
    /// [`Entry::any`].
    Any,
    /// None: it makes no access.
    None,
    /// [`Entry::data`], for the block's last instruction: see [`Block::words`].
    Last,
    /// [`Entry::update`], for the block's last instruction.
    LastUpdate,
    /// [`Entry::any`], for the block's last instruction, whose accesses have 8 bytes.
    LastJump,
}

/// A translated block.
pub struct Block {
    va: u64,
    /// It ends on the page after its first.
    next: bool,
    /// Each instruction's address and accesses.
    instructions: Vec<(u64, Accesses)>,
    /// The instruction whose access records that the block begins.
    teller: Option<usize>,
}

impl Block {
    /// # Safety
    /// `tb` is the block being translated.
    pub unsafe fn read(tb: *mut abi::Tb) -> Self {
        // SAFETY: as the caller says; an instruction's host address is where the program's code lies, in this process.
        let (va, instructions, bytes) = unsafe {
            let (mut instructions, mut bytes) = (Vec::new(), 0);
            let mut factory = InstructionInfoFactory::new();
            for i in 0..abi::qemu_plugin_tb_n_insns(tb) {
                let insn = abi::qemu_plugin_tb_get_insn(tb, i);
                let size = abi::qemu_plugin_insn_size(insn);
                bytes += size as u64;
                let code = abi::qemu_plugin_insn_haddr(insn).cast::<u8>();
                let what = match code.is_null() || size > 15 {
                    true => Accesses::Unsure,
                    false => accesses(std::slice::from_raw_parts(code, size), &mut factory),
                };
                instructions.push((abi::qemu_plugin_insn_vaddr(insn), what));
            }
            (abi::qemu_plugin_tb_vaddr(tb), instructions, bytes)
        };
        let next = (va & 0xfff) + bytes > 4096;
        Block::new(va, next, instructions)
    }

    fn new(va: u64, next: bool, instructions: Vec<(u64, Accesses)>) -> Self {
        let first = instructions.iter().position(|(_, what)| *what != Accesses::No);
        let teller = first.filter(|&i| {
            let (ip, what) = instructions[i];
            let near = ip.wrapping_sub(va) <= FARTHEST && instructions.len() as u64 <= MOST;
            !matches!(what, Accesses::Unsure | Accesses::Jump) && !next && va >> USER == 0 && near
        });
        Block { va, next, instructions, teller }
    }

    /// For the accesses of each instruction in order: their callback, and its word.
    ///
    /// QEMU 7.2 keeps the callback of a block's last instruction active if the block ends in a jump that QEMU looks up
    /// (`ret`, indirect jumps and calls, jumps to other pages; plugin_gen_disable_mem_helpers). It then calls it for
    /// accesses that are not the program's: when QEMU puts a signal's frame on the stack, as a kernel would. So the
    /// last instruction gets a callback that checks for this.
    pub fn words(&self) -> impl Iterator<Item = (Callback, u64)> + '_ {
        let last = self.instructions.len().wrapping_sub(1);
        self.instructions.iter().enumerate().map(move |(i, &(ip, what))| {
            let mut word = ip & ADDRESS;
            if self.teller == Some(i) {
                word |= ip.wrapping_sub(self.va) << BEHIND | (self.instructions.len() as u64) << COUNT;
            }
            match what {
                Accesses::One { store, shift } => {
                    let callback = if i == last { Callback::Last } else { Callback::Data };
                    (callback, word | u64::from(store) << STORE | u64::from(shift) << SIZE)
                }
                Accesses::Both { shift } => {
                    let callback = if i == last { Callback::LastUpdate } else { Callback::Update };
                    (callback, word | u64::from(shift) << SIZE)
                }
                Accesses::Jump => (Callback::LastJump, word),
                Accesses::Unsure => (Callback::Any, word),
                Accesses::No => (Callback::None, word),
            }
        })
    }

    /// The word of the block's own callback, if it needs one. A block is at most a page long and has at most 512
    /// instructions. So its last byte is on the first one's page or the next.
    pub fn own_word(&self) -> Option<u64> {
        let word = self.va & ADDRESS | (self.instructions.len() as u64 & 0x7fff) << 48;
        self.teller.is_none().then_some(word | u64::from(self.next) << 63)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accesses {
    No,
    /// One access; log2 of its bytes.
    One {
        store: bool,
        shift: u32,
    },
    /// A load and then a store.
    Both {
        shift: u32,
    },
    /// Accesses of 8 bytes: the target is loaded, and a call stores the return address.
    Jump,
    /// Any number of accesses, or unknown.
    Unsure,
}

/// The accesses of an instruction as QEMU executes it. Only instructions known to be one load, one store, or one of
/// each are exact.
fn accesses(code: &[u8], factory: &mut InstructionInfoFactory) -> Accesses {
    let insn = Decoder::new(64, code, DecoderOptions::NONE).decode();
    if matches!(insn.code(), Code::Jmp_rm64 | Code::Call_rm64) && insn.op0_kind() == OpKind::Memory {
        return Accesses::Jump;
    }
    let used = factory.info_options(&insn, InstructionInfoOptions::NO_REGISTER_USAGE).used_memory();
    let [one] = used else {
        // Instructions that enter the kernel, or are invalid, may do anything.
        let plain = used.is_empty()
            && !insn.is_invalid()
            && !matches!(insn.mnemonic(), Mnemonic::Syscall | Mnemonic::Int | Mnemonic::Ud2)
            && !insn.is_privileged();
        return if plain { Accesses::No } else { Accesses::Unsure };
    };
    let (size, access) = (one.memory_size().size(), one.access());
    if !is_plain(&insn) || !size.is_power_of_two() || size > 8 {
        return Accesses::Unsure;
    }
    let shift = size.trailing_zeros();
    match access {
        OpAccess::Read => Accesses::One { store: false, shift },
        OpAccess::Write => Accesses::One { store: true, shift },
        OpAccess::ReadWrite => Accesses::Both { shift },
        _ => Accesses::Unsure,
    }
}

/// Returns true if it makes no access but those of its operands.
fn is_plain(insn: &Instruction) -> bool {
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
    sure && !prefixed && !segment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(code: &[u8]) -> String {
        match accesses(code, &mut InstructionInfoFactory::new()) {
            Accesses::No => "none".into(),
            Accesses::One { store: false, shift } => format!("load {}", 1 << shift),
            Accesses::One { store: true, shift } => format!("store {}", 1 << shift),
            Accesses::Both { shift } => format!("both {}", 1 << shift),
            Accesses::Jump => "jump".into(),
            Accesses::Unsure => "unsure".into(),
        }
    }

    #[test]
    fn instructions_are_sure_only_if_they_are() {
        assert_eq!(told(&[0x48, 0x8b, 0x07]), "load 8"); // mov (%rdi),%rax
        assert_eq!(told(&[0x66, 0x89, 0x07]), "store 2"); // mov %ax,(%rdi)
        assert_eq!(told(&[0x0f, 0xb6, 0x07]), "load 1"); // movzbl (%rdi),%eax
        assert_eq!(told(&[0x01, 0x07]), "both 4"); // add %eax,(%rdi)
        assert_eq!(told(&[0x48, 0x39, 0x07]), "load 8"); // cmp %rax,(%rdi)
        assert_eq!(told(&[0x55]), "store 8"); // push %rbp
        assert_eq!(told(&[0xc3]), "load 8"); // ret
        assert_eq!(told(&[0xe8, 0, 0, 0, 0]), "store 8"); // call
        assert_eq!(told(&[0x48, 0x8d, 0x07]), "none"); // lea (%rdi),%rax
        assert_eq!(told(&[0x0f, 0x1f, 0x40, 0x00]), "none"); // nopl 0(%rax)
        assert_eq!(told(&[0xff, 0x37]), "unsure"); // push (%rdi)
        assert_eq!(told(&[0xf3, 0xaa]), "unsure"); // rep stosb
        assert_eq!(told(&[0xff, 0x25, 0, 0, 0, 0]), "jump"); // jmp *0(%rip)
        assert_eq!(told(&[0xff, 0x17]), "jump"); // call *(%rdi)
        assert_eq!(told(&[0xff, 0xe0]), "none"); // jmp *%rax
        assert_eq!(told(&[0xff, 0xd0]), "store 8"); // call *%rax
        assert_eq!(told(&[0xf0, 0x48, 0x01, 0x07]), "unsure"); // lock add
        assert_eq!(told(&[0x0f, 0x10, 0x07]), "unsure"); // movups: two accesses
        assert_eq!(told(&[0x8e, 0x1f]), "unsure"); // mov (%rdi),%ds
        assert_eq!(told(&[0x0f, 0x05]), "unsure"); // syscall
        assert_eq!(told(&[0x06]), "unsure"); // no instruction
    }

    const VA: u64 = 0x7fff_dead_b123;

    #[test]
    fn words_come_back() {
        let both = Accesses::Both { shift: 3 };
        let mut instructions = vec![(VA, Accesses::No), (VA + 255, both), (VA + 260, Accesses::Unsure)];
        instructions.resize(31, (VA + 300, Accesses::One { store: true, shift: 2 }));
        let block = Block::new(VA, false, instructions.clone());
        assert_eq!(block.own_word(), None);
        let words: Vec<_> = block.words().collect();
        let data = |entry: Entry| match entry.read() {
            Noted::Data(data) => data,
            blocks => panic!("{blocks:?}"),
        };
        let (callback, word) = words[1];
        assert_eq!(callback, Callback::Update);
        let load = data(Entry::update(0x1234, word, false));
        assert_eq!((load.va, load.ip, load.store, load.bytes), (0x1234, VA + 255, false, 8));
        assert_eq!((load.block(), load.instructions), (VA, 31));
        let store = data(Entry::update(0x1234, word, true));
        assert_eq!((store.ip, store.store, store.bytes, store.instructions), (VA + 255, true, 8, 0));
        let (callback, word) = words[2];
        assert_eq!(callback, Callback::Any);
        let any = data(Entry::any(7, word, true, 6));
        assert_eq!((any.va, any.ip, any.store, any.bytes, any.instructions), (7, VA + 260, true, 64, 0));
        let (callback, word) = words[3];
        assert_eq!(callback, Callback::Data);
        let one = data(Entry::data(7, word));
        assert_eq!((one.ip, one.store, one.bytes, one.instructions), (VA + 300, true, 4, 0));
        // Too far from the block's start, too many instructions, or on two pages: such a block gets its own callback.
        for (va, next, more) in [(VA - 1, false, 0), (VA, true, 0), (VA, false, 1)] {
            let mut instructions = instructions.clone();
            instructions.resize(31 + more, (VA + 300, Accesses::No));
            let block = Block::new(va, next, instructions);
            let word = block.own_word().expect("a callback");
            let read = Noted::Blocks { va, across: next, blocks: 1, instructions: 31 + more as u64 };
            assert_eq!(Entry::block(word).read(), read);
            assert!(block.words().all(|(_, word)| data(Entry::data(0, word)).instructions == 0));
        }
    }

    #[test]
    fn blocks_of_a_page_join() {
        let block = |va, next| {
            let block = Block::new(va, next, vec![(va, Accesses::No); 512]);
            Entry::block(block.own_word().expect("a callback"))
        };
        let mut all = block(VA, false);
        assert!(!all.join(block(VA + 4096, false)) && !all.join(block(VA, true)));
        assert!(!block(VA, true).join(block(VA, true)) && !block(VA, true).join(block(VA, false)));
        assert!(!Entry::data(VA, 0).join(block(VA, false)));
        let mut joined = 1u64;
        while all.join(block(VA & !0xfff, false)) {
            joined += 1;
        }
        assert_eq!(joined, 1 << 19);
        assert_eq!(
            all.read(),
            Noted::Blocks { va: VA, across: false, blocks: joined, instructions: joined * 512 }
        );
    }
}
