// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disassembles instructions, with iced-x86.

use iced_x86::{
    Code, Decoder, DecoderOptions, Formatter as _, GasFormatter, Instruction, IntelFormatter, OpKind,
};
use kprism_image::insn::Mode;

/// Syntax of disassembled instructions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Syntax {
    /// The syntax of GNU objdump and perf.
    #[default]
    Att,
    /// The syntax of Intel's manuals.
    Intel,
}

impl Syntax {
    /// All syntaxes, with their words and meanings.
    pub const ALL: &[(Syntax, &[&str], &str)] = &[
        (Syntax::Att, &["att"], "As GNU objdump does"),
        (Syntax::Intel, &["intel"], "As Intel's manuals do"),
    ];
}

enum Formatter {
    Att(GasFormatter),
    Intel(IntelFormatter),
}

/// Formats instructions.
pub struct Disassembler {
    formatter: Formatter,
    insn: Instruction,
    text: String,
}

impl Disassembler {
    /// A disassembler with this syntax.
    pub fn new(syntax: Syntax) -> Self {
        let mut formatter = match syntax {
            Syntax::Att => Formatter::Att(GasFormatter::new()),
            Syntax::Intel => Formatter::Intel(IntelFormatter::new()),
        };
        let options = match &mut formatter {
            Formatter::Att(f) => f.options_mut(),
            Formatter::Intel(f) => f.options_mut(),
        };
        options.set_uppercase_hex(false);
        options.set_hex_prefix("0x");
        options.set_hex_suffix("");
        options.set_branch_leading_zeros(false);
        options.set_space_after_operand_separator(true);
        options.set_first_operand_char_index(8);
        options.set_rip_relative_addresses(true);
        options.set_small_hex_numbers_in_decimal(false);
        Self { formatter, insn: Instruction::default(), text: String::new() }
    }

    /// The instruction at the start of `bytes`, and the address to which it refers: a branch's target, or an address
    /// relative to its own.
    pub fn format(&mut self, bytes: &[u8], ip: u64, mode: Mode) -> (&str, Option<Refers>) {
        let mut decoder = Decoder::with_ip(mode.bits(), bytes, ip, DecoderOptions::NONE);
        decoder.decode_out(&mut self.insn);
        self.text.clear();
        if self.insn.code() == Code::INVALID {
            self.text.push_str("(bad)");
            return (&self.text, None);
        }
        match &mut self.formatter {
            Formatter::Att(f) => f.format(&self.insn, &mut self.text),
            Formatter::Intel(f) => f.format(&self.insn, &mut self.text),
        }
        let near = matches!(
            self.insn.op0_kind(),
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
        );
        let refers = if near && self.insn.op_count() > 0 {
            Some(Refers::Branch(self.insn.near_branch_target()))
        } else if self.insn.is_ip_rel_memory_operand() {
            Some(Refers::Memory(self.insn.ip_rel_memory_address()))
        } else {
            None
        };
        (&self.text, refers)
    }
}

/// An address to which an instruction refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refers {
    /// The target of a direct branch.
    Branch(u64),
    /// An address relative to the instruction's own.
    Memory(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_objdump_and_as_intel_write_it() {
        let cases: [(&[u8], &str, &str); 5] = [
            (&[0x48, 0x8b, 0x03], "mov     (%rbx), %rax", "mov     rax, [rbx]"),
            (&[0xe8, 0xfb, 0x0f, 0, 0], "call    0x402000", "call    0x402000"),
            (&[0x48, 0x8b, 0x05, 0x10, 0, 0, 0], "mov     0x10(%rip), %rax", "mov     rax, [rip+0x10]"),
            (&[0xf3, 0x0f, 0x1e, 0xfa], "endbr64", "endbr64"),
            (&[0x06], "(bad)", "(bad)"),
        ];
        for (bytes, att, intel) in cases {
            assert_eq!(Disassembler::new(Syntax::Att).format(bytes, 0x40_1000, Mode::Bits64).0, att);
            assert_eq!(Disassembler::new(Syntax::Intel).format(bytes, 0x40_1000, Mode::Bits64).0, intel);
        }
        let mut one = Disassembler::new(Syntax::Att);
        let refers = one.format(&[0xe8, 0xfb, 0x0f, 0, 0], 0x40_1000, Mode::Bits64).1;
        assert_eq!(refers, Some(Refers::Branch(0x40_2000)));
        let refers = one.format(&[0x48, 0x8b, 0x05, 0x10, 0, 0, 0], 0x40_1000, Mode::Bits64).1;
        assert_eq!(refers, Some(Refers::Memory(0x40_1017)));
    }
}
