// SPDX-License-Identifier: MIT OR Apache-2.0
//! The x86-64 registers that a probe can read, and their numbers in DWARF, GDB and the kernel.

use serde::{Deserialize, Serialize};

/// A register. The order is that of `struct pt_regs` (arch/x86/include/asm/ptrace.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Reg {
    R15,
    R14,
    R13,
    R12,
    Rbp,
    Rbx,
    R11,
    R10,
    R9,
    R8,
    Rax,
    Rcx,
    Rdx,
    Rsi,
    Rdi,
    OrigRax,
    Rip,
    Cs,
    Eflags,
    Rsp,
    Ss,
}

use Reg::*;

/// All registers, in the order of `struct pt_regs`.
pub const ALL: [Reg; 21] = [
    R15, R14, R13, R12, Rbp, Rbx, R11, R10, R9, R8, Rax, Rcx, Rdx, Rsi, Rdi, OrigRax, Rip, Cs, Eflags, Rsp,
    Ss,
];

/// The registers that hold the first six integer arguments (System V ABI for AMD64, 3.2.3).
pub const ARGUMENTS: [Reg; 6] = [Rdi, Rsi, Rdx, Rcx, R8, R9];

const NAMES: [&str; 21] = [
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi",
    "orig_rax", "rip", "cs", "eflags", "rsp", "ss",
];

impl Reg {
    /// The register's name, without `$`.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Finds a register by its name. `pc`, `sp` and `fp` have GDB's meaning.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "pc" => Some(Rip),
            "sp" => Some(Rsp),
            "fp" => Some(Rbp),
            _ => NAMES.iter().position(|n| *n == name).map(|i| ALL[i]),
        }
    }

    /// Offset in `struct pt_regs`, in bytes.
    pub fn pt_regs_offset(self) -> i16 {
        self as i16 * 8
    }

    /// Finds a register by DWARF's number (System V ABI for AMD64, figure 3.36).
    pub fn from_dwarf(number: u16) -> Option<Self> {
        const DWARF: [Reg; 17] =
            [Rax, Rdx, Rcx, Rbx, Rsi, Rdi, Rbp, Rsp, R8, R9, R10, R11, R12, R13, R14, R15, Rip];
        match number {
            49 => Some(Eflags),
            51 => Some(Cs),
            52 => Some(Ss),
            n => DWARF.get(usize::from(n)).copied(),
        }
    }

    /// Finds a register by GDB's number, which agent expressions use (gdb/features/i386/64bit-core.xml).
    pub fn from_gdb(number: u16) -> Option<Self> {
        const GDB: [Reg; 20] = [
            Rax, Rbx, Rcx, Rdx, Rsi, Rdi, Rbp, Rsp, R8, R9, R10, R11, R12, R13, R14, R15, Rip, Eflags, Cs, Ss,
        ];
        GDB.get(usize::from(number)).copied()
    }

    /// DWARF's name for a register number, for messages. Includes vector and x87 registers.
    pub fn dwarf_name(number: u16) -> String {
        match number {
            17..=32 => format!("xmm{}", number - 17),
            33..=40 => format!("st{}", number - 33),
            67..=82 => format!("xmm{}", number - 51),
            n => Self::from_dwarf(n).map_or_else(|| format!("register {n}"), |r| r.name().to_owned()),
        }
    }
}

/// Resolves the name of a register's part (`eax`, `ax`, `al`, `ah`, `r8d`, `r8w`, `r8l`) to the register, the number of
/// bits and the lowest bit.
pub fn part(name: &str) -> Option<(Reg, u8, u8)> {
    let whole = |text: &str| Reg::by_name(text);
    if let Some(number) = name.strip_prefix('r').filter(|n| n.starts_with(|c: char| c.is_ascii_digit())) {
        let (digits, bits) = match number.as_bytes().last()? {
            b'd' => (&number[..number.len() - 1], 32),
            b'w' => (&number[..number.len() - 1], 16),
            b'l' | b'b' => (&number[..number.len() - 1], 8),
            _ => return None,
        };
        return Some((whole(&format!("r{digits}"))?, bits, 0));
    }
    let rest = name.strip_prefix('e').unwrap_or(name);
    if rest.len() == 2 && rest != "ip" {
        if let Some(reg) = whole(&format!("r{rest}")) {
            return Some((reg, if rest == name { 16 } else { 32 }, 0));
        }
        let first = name.get(..1)?;
        return match (name.as_bytes(), rest == name) {
            ([b'a'..=b'd', b'l'], true) => Some((whole(&format!("r{first}x"))?, 8, 0)),
            ([b'a'..=b'd', b'h'], true) => Some((whole(&format!("r{first}x"))?, 8, 8)),
            _ => None,
        };
    }
    match name {
        "sil" | "dil" | "bpl" | "spl" => Some((whole(&format!("r{}", &name[..2]))?, 8, 0)),
        _ => None,
    }
}
