// SPDX-License-Identifier: MIT OR Apache-2.0
//! The static tracepoints (USDT) of a program and of its libraries as GDB markers, `PROVIDER:NAME`.
//!
//! A marker's address is that of its no-op, where GDB knows the locals of the function around. Its data tells each
//! argument as an expression that GDB compiles, by registers and memory. GDB's own names for arguments, `$_probe_arg0`
//! and so on, cannot be compiled by GDB 13 where one of them is in a part of a register. `$_sdata` is all arguments as
//! text.
//!
//! In: files of a process. Out: markers; actions that collect the arguments; the text of a hit.

use std::fmt::Write as _;
use std::path::Path;

use kprism_debuginfo::Image;
use kprism_expr::ctype::Ty;
use kprism_expr::ir::BinOp;
use kprism_expr::regs::Reg;
use kprism_expr::scope::{Storage, Sym};
use kprism_expr::usdt::{self, Usdt};
use kprism_rsp::define::{Action, Tracepoint};
use kprism_rsp::hex;

use crate::registers::{self, Registers};

/// A static tracepoint of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// `PROVIDER:NAME`.
    pub name: String,
    /// Address of the no-op in the file.
    pub pc: u64,
    /// The no-op's offset in the file.
    pub offset: u64,
    /// Offset in the file of the counter that shows the program that there are listeners; 0: none.
    pub listeners: u64,
    /// Its arguments; `None` for those that a probe cannot read.
    arguments: Vec<Option<Argument>>,
}

/// An argument: an integer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Argument {
    /// Bytes: 1, 2, 4 or 8.
    size: u8,
    signed: bool,
    place: Storage,
}

/// All static tracepoints of a file. A file that is no ELF file has none.
///
/// # Errors
/// The file cannot be read.
pub fn of_file(file: &Path) -> Result<Vec<Noted>, kprism_debuginfo::Error> {
    let image = match Image::map(file) {
        Ok(image) => image,
        Err(kprism_debuginfo::Error::Object(..)) => return Ok(Vec::new()),
        Err(why) => return Err(why),
    };
    let noted = |probe: &Usdt| {
        let offset = image.file_offset(probe.pc)?;
        let listeners = if probe.semaphore == 0 { 0 } else { image.file_offset(probe.semaphore)? };
        let argument = |text: &String| {
            let read = usdt::argument(text, &|name| image.symbol(name));
            read.and_then(|(ty, place)| match ty {
                Ty::Int(int) => Some(Argument { size: int.size, signed: int.signed, place }),
                _ => None,
            })
        };
        let arguments = probe.arguments.iter().map(argument).collect();
        let name = format!("{}:{}", probe.provider, probe.name);
        Some(Noted { name, pc: probe.pc, offset, listeners, arguments })
    };
    Ok(usdt::probes(&image).iter().filter_map(noted).collect())
}

/// A static tracepoint of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// Address of the no-op in the process.
    pub address: u64,
    /// As its file has it.
    pub noted: Noted,
    /// Name of the file, without its folder.
    pub file: String,
}

impl Marker {
    /// The marker in GDB's format `ADDRESS:ID:EXTRA`, the last two in hexadecimal.
    pub fn packet(&self) -> String {
        let mut extra = self.file.clone();
        for (n, argument) in self.noted.arguments.iter().enumerate() {
            let gap = if n == 0 { ": " } else { ", " };
            let named = argument.as_ref().and_then(|argument| self.expression(argument));
            let _ = write!(extra, "{gap}{}", named.as_deref().unwrap_or("?"));
        }
        format!(
            "{:x}:{}:{}",
            self.address,
            hex::bytes(self.noted.name.as_bytes()),
            hex::bytes(extra.as_bytes())
        )
    }

    /// An argument as an expression of GDB.
    fn expression(&self, Argument { size, signed, place }: &Argument) -> Option<String> {
        let kind = match (size, signed) {
            (1, true) => "signed char",
            (1, false) => "unsigned char",
            (2, true) => "short",
            (2, false) => "unsigned short",
            (4, true) => "int",
            (4, false) => "unsigned int",
            (_, true) => "long",
            (_, false) => "unsigned long",
        };
        match place {
            Storage::Value(value) => Some(format!("({kind}) {}", self.shown(value)?)),
            Storage::Memory(address) => Some(format!("*({kind} *) {}", self.shown(address)?)),
            _ => None,
        }
    }

    /// A value as an expression of GDB, in parentheses where it needs them.
    fn shown(&self, value: &Sym) -> Option<String> {
        let operator = |op| match op {
            BinOp::Add => Some("+"),
            BinOp::Mul => Some("*"),
            BinOp::Shr => Some(">>"),
            _ => None,
        };
        Some(match value {
            Sym::Const(n) => n.cast_signed().to_string(),
            Sym::Address(address) => format!("{:#x}", self.moved(*address)),
            Sym::Reg(reg) => format!("${}", reg.name()),
            Sym::Bin(BinOp::Add, a, b) if matches!(**b, Sym::Const(n) if n.cast_signed() < 0) => {
                format!("({} - {})", self.shown(a)?, self.shown(b)?.trim_start_matches('-'))
            }
            Sym::Bin(op, a, b) => format!("({} {} {})", self.shown(a)?, operator(*op)?, self.shown(b)?),
            _ => return None,
        })
    }

    /// The tracepoint with what `$_sdata` needs in place of it: the registers, and the arguments that are in memory.
    pub fn collecting(&self, point: &Tracepoint) -> Tracepoint {
        let own = |action: &Action| match action {
            Action::Static => {
                let registers = Action::Registers(vec![0xff; 2]);
                let memory = self.noted.arguments.iter().flatten().filter_map(|a| self.collected(a));
                std::iter::once(registers).chain(memory).collect()
            }
            other => vec![other.clone()],
        };
        Tracepoint { actions: point.actions.iter().flat_map(own).collect(), ..point.clone() }
    }

    /// Collects an argument that is in memory, as GDB would.
    fn collected(&self, argument: &Argument) -> Option<Action> {
        const TRACE_QUICK: u8 = 0x0d;
        const END: u8 = 0x27;
        let Storage::Memory(address) = &argument.place else { return None };
        let mut code = Vec::new();
        self.bytecode(address, &mut code)?;
        code.extend([TRACE_QUICK, argument.size, END]);
        Some(Action::Expression(code))
    }

    /// GDB's bytecode for a value. Notes only have sums and products of registers and numbers.
    fn bytecode(&self, value: &Sym, code: &mut Vec<u8>) -> Option<()> {
        const CONST64: u8 = 0x25;
        const REG: u8 = 0x26;
        match value {
            Sym::Const(n) => {
                code.push(CONST64);
                code.extend(n.to_be_bytes());
            }
            Sym::Address(address) => {
                code.push(CONST64);
                code.extend(self.moved(*address).to_be_bytes());
            }
            Sym::Reg(reg) => {
                code.push(REG);
                code.extend(u16::try_from(registers::number(*reg)?).ok()?.to_be_bytes());
            }
            Sym::Bin(op, a, b) => {
                self.bytecode(a, code)?;
                self.bytecode(b, code)?;
                code.push(match op {
                    BinOp::Add => 0x02,
                    BinOp::Mul => 0x04,
                    BinOp::Shr => 0x0b,
                    _ => return None,
                });
            }
            _ => return None,
        }
        Some(())
    }

    /// An address of the file in the process.
    fn moved(&self, address: u64) -> u64 {
        address.wrapping_add(self.address).wrapping_sub(self.noted.pc)
    }

    fn value(&self, sym: &Sym, registers: &Registers) -> Option<u64> {
        let of = |sym: &Sym| self.value(sym, registers);
        Some(match sym {
            Sym::Const(n) => *n,
            Sym::Address(address) => self.moved(*address),
            Sym::Reg(Reg::Rip) => self.address,
            Sym::Reg(reg) => registers.0[*reg as usize],
            Sym::Bin(BinOp::Add, a, b) => of(a)?.wrapping_add(of(b)?),
            Sym::Bin(BinOp::Mul, a, b) => of(a)?.wrapping_mul(of(b)?),
            Sym::Bin(BinOp::Shr, a, b) => of(a)?.checked_shr(u32::try_from(of(b)?).ok()?)?,
            _ => return None,
        })
    }

    /// The arguments of a hit as text, by its registers and the memory that was collected. An unsigned number of 8
    /// bytes, which most often is an address, is in hexadecimal; `?` could not be read.
    pub fn text(&self, registers: &Registers, memory: &dyn Fn(u64, usize) -> Vec<u8>) -> String {
        let mut out = String::new();
        for (n, argument) in self.noted.arguments.iter().enumerate() {
            let gap = if n == 0 { "" } else { " " };
            let text = argument.as_ref().and_then(|Argument { size, signed, place }| {
                let size = usize::from(*size).min(8);
                let bytes = match place {
                    Storage::Value(sym) => self.value(sym, registers)?.to_le_bytes().to_vec(),
                    Storage::Memory(sym) => memory(self.value(sym, registers)?, size),
                    _ => return None,
                };
                let mut word = [0; 8];
                word[..size].copy_from_slice(bytes.get(..size)?);
                let word = u64::from_le_bytes(word);
                let shift = 64 - 8 * size as u32;
                Some(match (size, signed) {
                    (_, true) => ((word << shift).cast_signed() >> shift).to_string(),
                    (8, false) => format!("{word:#x}"),
                    (_, false) => word.to_string(),
                })
            });
            let _ = write!(out, "{gap}arg{}={}", n + 1, text.as_deref().unwrap_or("?"));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes as a compiler writes them: a register's part, memory with an index, a global, one that cannot be read.
    fn marker() -> Marker {
        let argument = |text: &str| {
            let (ty, place) = usdt::argument(text, &|_| Some(0x4050))?;
            let Ty::Int(int) = ty else { return None };
            Some(Argument { size: int.size, signed: int.signed, place })
        };
        let texts = ["-1@%bh", "-2@-4(%rax,%rdx,2)", "8@8+it(%rip)", "4@%xmm0", "4@%ecx", "-4@$-7"];
        let arguments = texts.map(argument).into();
        let noted = Noted { name: "app:step".into(), pc: 0x1296, offset: 0x1296, listeners: 0, arguments };
        Marker { address: 0x5555_5555_5296, noted, file: "app".into() }
    }

    #[test]
    fn arguments_as_text() {
        let mut registers = Registers([0; 21]);
        let mut set = |reg: Reg, value| registers.0[reg as usize] = value;
        set(Reg::Rbx, 0x80ff);
        set(Reg::Rax, 0x1000);
        set(Reg::Rdx, 5);
        set(Reg::Rcx, u64::MAX);
        let memory = |address, size| match (address, size) {
            (0x1006, 2) => vec![0xfe, 0xff],
            (0x5555_5555_8058, 8) => 0x7000_u64.to_le_bytes().to_vec(),
            _ => panic!("{size} bytes at {address:#x}"),
        };
        let wanted = "arg1=-128 arg2=-2 arg3=0x7000 arg4=? arg5=4294967295 arg6=-7";
        assert_eq!(marker().text(&registers, &memory), wanted);
        let unread = marker().text(&registers, &|_, _| Vec::new());
        assert!(unread.contains("arg2=? arg3=? "), "{unread}");
    }

    #[test]
    fn as_gdb_is_told() {
        let packet = marker().packet();
        let mut parts = packet.split(':');
        assert_eq!(parts.next(), Some("555555555296"));
        let mut text = || String::from_utf8(hex::unhex(parts.next().unwrap().as_bytes()).unwrap()).unwrap();
        assert_eq!(text(), "app:step");
        let wanted = "app: (signed char) ($rbx >> 8), *(short *) (($rax - 4) + ($rdx * 2)), \
                      *(unsigned long *) 0x555555558058, ?, (unsigned int) $rcx, (int) -7";
        assert_eq!(text(), wanted);
    }

    #[test]
    fn what_is_collected_can_be_translated() {
        let mut all = kprism_rsp::define::Definitions::default();
        let key = all.define(b"QTDP:1:555555555296:E:0:0:S-", 5).unwrap();
        all.define(b"QTDP:-1:555555555296:L", 5).unwrap();
        let point = marker().collecting(&all.points[&key]);
        let codes: Vec<&Vec<u8>> = point
            .actions
            .iter()
            .filter_map(|action| if let Action::Expression(code) = action { Some(code) } else { None })
            .collect();
        assert_eq!((codes.len(), point.actions.len()), (2, 3));
        for code in codes {
            kprism_expr::agent::translate(code, kprism_expr::ir::Space::User, 0).unwrap();
        }
    }
}
