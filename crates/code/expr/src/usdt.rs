// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static tracepoints of programs (USDT), read from the notes that `sys/sdt.h` writes
//! (<https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation>).
//!
//! Input: an ELF file, stripped or not. Output: its probes, their addresses, and their arguments, which expressions
//! name `arg1`, `arg2`, …; with debug information, also the variables in scope there.

use std::rc::Rc;

use kprism_image::notes::notes;

use crate::ast::Tag;
use crate::ctype::{Def, Int, Ty, TypeRef, Types};
use crate::dwarf::Image;
use crate::ir::{BinOp, Space};
use crate::regs::{self, Reg};
use crate::scope::{Callers, Location, Role, Scope, Storage, Sym, Variable};

/// Type of a note that describes a probe, of owner `stapsdt`.
const NT_STAPSDT: u32 = 3;

/// A static tracepoint in a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usdt {
    /// Provider: the namespace of the probe's name.
    pub provider: String,
    /// Name within the provider.
    pub name: String,
    /// Address of the no-op instruction in the file.
    pub pc: u64,
    /// Address of a counter of attached listeners, which the program checks before it computes arguments; 0: none.
    pub semaphore: u64,
    /// Arguments in assembler syntax.
    pub arguments: Vec<String>,
}

/// Returns all probes of a file, sorted by address. A truncated note ends the list.
pub fn probes(image: &Image) -> Vec<Usdt> {
    noted(image.section(".note.stapsdt"), image.section_address(".stapsdt.base"))
}

/// Parses the probes of a note section. `base` is the address of `.stapsdt.base`, or 0 if there is none; it shows how
/// far prelink moved the file. Accepts any bytes.
pub fn noted(section: &[u8], base: u64) -> Vec<Usdt> {
    let own = notes(section).filter(|note| note.owner == b"stapsdt\0" && note.kind == NT_STAPSDT);
    let mut found: Vec<Usdt> = own.map_while(|note| probe(note.value, base)).collect();
    found.sort_by(|a, b| (a.pc, &a.provider, &a.name).cmp(&(b.pc, &b.provider, &b.name)));
    found
}

fn probe(note: &[u8], base: u64) -> Option<Usdt> {
    let long = |at: usize| Some(u64::from_le_bytes(note.get(at..at + 8)?.try_into().ok()?));
    let (pc, linked, semaphore) = (long(0)?, long(8)?, long(16)?);
    // Distance that prelink moved the file: the section's address now, minus its address when the note was written.
    let moved = if base == 0 { 0 } else { base.wrapping_sub(linked) };
    let mut words = note.get(24..)?.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned());
    let (provider, name, arguments) = (words.next()?, words.next()?, words.next()?);
    let semaphore = if semaphore == 0 { 0 } else { semaphore.wrapping_add(moved) };
    let arguments = arguments.split_whitespace().map(str::to_owned).collect();
    Some(Usdt { provider, name, pc: pc.wrapping_add(moved), semaphore, arguments })
}

/// Resolves a register or a part of one: `eax`, `al`, `r8d`. Returns the register and the shift in bits.
fn register(name: &str) -> Option<(Reg, u32)> {
    let part = || regs::part(name).map(|(reg, _, shift)| (reg, u32::from(shift)));
    Reg::by_name(name).map(|reg| (reg, 0)).or_else(part)
}

fn number(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    // The standard library's parsers would accept a second sign.
    if !digits.starts_with(|c: char| c.is_ascii_digit()) || digits.starts_with("0x+") {
        return None;
    }
    let n = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?.cast_signed(),
        None => digits.parse::<i64>().ok()?,
    };
    n.checked_mul(sign)
}

/// Parses `[-]N@OPERAND` into type and location. `symbol` returns a symbol's address. Accepts any text.
pub fn argument(text: &str, symbol: &dyn Fn(&str) -> Option<u64>) -> Option<(Ty, Storage)> {
    let (size, operand) = text.split_once('@')?;
    let size = number(size)?;
    let bytes = u8::try_from(size.unsigned_abs()).ok().filter(|n| matches!(n, 1 | 2 | 4 | 8))?;
    let ty = Ty::Int(Int::of(bytes, size < 0));
    if let Some(name) = operand.strip_prefix('%') {
        let (reg, shift) = register(name)?;
        let sym = Rc::new(Sym::Reg(reg));
        let sym = match shift {
            0 => sym,
            n => Rc::new(Sym::Bin(BinOp::Shr, sym, Rc::new(Sym::Const(u64::from(n))))),
        };
        return Some((ty, Storage::Value(sym)));
    }
    if let Some(constant) = operand.strip_prefix('$') {
        return Some((ty, Storage::Value(Rc::new(Sym::Const(number(constant)?.cast_unsigned())))));
    }
    // `OFFSET(BASE,INDEX,SCALE)`, without what is not needed; OFFSET may be a sum with a symbol.
    let (distance, inner) = match operand.strip_suffix(')') {
        Some(operand) => operand.split_once('(')?,
        None => (operand, ""),
    };
    let (offset, named) = sum(distance, symbol)?;
    let mut parts = inner.split(',').map(|p| p.trim().trim_start_matches('%'));
    let (base, index, scale) = (parts.next()?, parts.next(), parts.next());
    let fixed = named.then(|| Rc::new(Sym::Address(offset)));
    let base = match base {
        // The assembler's operand names the address itself; it is no distance from `rip`.
        "" | "rip" => fixed.or_else(|| index.map(|_| Rc::new(Sym::Const(offset))))?,
        name => {
            let register = Rc::new(Sym::Reg(register(name)?.0));
            match fixed {
                Some(fixed) => Rc::new(Sym::Bin(BinOp::Add, register, fixed)),
                None => register.plus(offset),
            }
        }
    };
    let Some(index) = index else { return Some((ty, Storage::Memory(base))) };
    let scale = Rc::new(Sym::Const(number(scale.unwrap_or("1"))?.cast_unsigned()));
    let index = Rc::new(Sym::Bin(BinOp::Mul, Rc::new(Sym::Reg(register(index)?.0)), scale));
    Some((ty, Storage::Memory(Rc::new(Sym::Bin(BinOp::Add, base, index)))))
}

/// The value of a sum of numbers and symbols' addresses, such as `8+table`, and whether there is a symbol in it. An
/// empty sum is 0.
fn sum(text: &str, symbol: &dyn Fn(&str) -> Option<u64>) -> Option<(u64, bool)> {
    let (mut total, mut named, mut rest) = (0_u64, false, text);
    while !rest.is_empty() {
        let sign = rest.char_indices().skip(1).find(|(_, c)| matches!(c, '+' | '-'));
        let (term, after) = rest.split_at(sign.map_or(rest.len(), |(at, _)| at));
        rest = after;
        let value = match term.strip_prefix('+').unwrap_or(term) {
            digits if digits.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit()) => {
                number(digits)?.cast_unsigned()
            }
            name => {
                named = true;
                symbol(name)?
            }
        };
        total = total.wrapping_add(value);
    }
    Some((total, named))
}

/// Scope at a static tracepoint.
pub struct Place<'s> {
    /// The tracepoint that the scope belongs to.
    pub probe: &'s Usdt,
    /// The file that contains it.
    pub image: &'s Image,
    /// Scope of the other variables there.
    pub inner: &'s dyn Scope,
}

impl Types for Place<'_> {
    fn get(&self, ty: TypeRef) -> Result<Def, String> {
        self.inner.get(ty)
    }

    fn find(&self, tag: Tag, name: &str) -> Result<Option<Ty>, String> {
        self.inner.find(tag, name)
    }
}

impl Scope for Place<'_> {
    fn variable(&self, name: &str) -> Result<Option<Variable>, String> {
        let number = name.strip_prefix("arg").and_then(|n| n.parse::<usize>().ok());
        let Some(text) = number.and_then(|n| self.probe.arguments.get(n.checked_sub(1)?)) else {
            return self.inner.variable(name);
        };
        let (ty, spot) = argument(text, &|name| self.image.symbol(name)).unwrap_or_else(|| {
            let why = format!("`{text}`, which a probe cannot read");
            (Ty::Int(Int::LONG), Storage::Missing(why, None))
        });
        let location = Location::Whole(spot);
        Ok(Some(Variable { name: name.to_owned(), ty, location, role: Role::Parameter }))
    }

    fn enumerator(&self, name: &str) -> Result<Option<(Ty, i64)>, String> {
        self.inner.enumerator(name)
    }

    fn names(&self) -> Vec<String> {
        let own = (1..=self.probe.arguments.len()).map(|n| format!("arg{n}"));
        own.chain(self.inner.names()).collect()
    }

    fn returned(&self) -> Result<(Ty, Location), String> {
        self.inner.returned()
    }

    fn frame(&self) -> Result<Rc<Sym>, String> {
        self.inner.frame()
    }

    fn space(&self) -> Space {
        Space::User
    }

    fn callers(&self) -> Result<Callers, String> {
        self.inner.callers()
    }

    fn code_of(&self, function: &str) -> Result<Option<Vec<(u64, u32)>>, String> {
        self.inner.code_of(function)
    }

    fn describe(&self) -> String {
        format!("{}:{} ({:#x})", self.probe.provider, self.probe.name, self.probe.pc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_by_all_their_names() {
        for (name, reg, shift) in [
            ("eax", Reg::Rax, 0),
            ("ax", Reg::Rax, 0),
            ("al", Reg::Rax, 0),
            ("bh", Reg::Rbx, 8),
            ("sil", Reg::Rsi, 0),
            ("di", Reg::Rdi, 0),
            ("r8d", Reg::R8, 0),
            ("r15b", Reg::R15, 0),
            ("rbp", Reg::Rbp, 0),
            ("esp", Reg::Rsp, 0),
        ] {
            assert_eq!(register(name), Some((reg, shift)), "{name}");
        }
        for name in ["", "e", "r99", "xmm0", "rzd", "é"] {
            assert_eq!(register(name), None, "{name}");
        }
        assert_eq!(number("-0x10"), Some(-16));
        assert_eq!(number("--1"), None);
    }

    #[test]
    fn operands_as_compilers_write_them() {
        let symbol = |name: &str| (name == "table").then_some(0x4000);
        let parsed = |text: &str| argument(text, &symbol).map(|(_, storage)| storage);
        let memory = |sym: Sym| Some(Storage::Memory(Rc::new(sym)));
        let sum = |a, b| Sym::Bin(BinOp::Add, Rc::new(a), Rc::new(b));
        let times = |reg, n| Sym::Bin(BinOp::Mul, Rc::new(Sym::Reg(reg)), Rc::new(Sym::Const(n)));
        // The same place: GCC writes the offset first, clang behind.
        for text in ["8@8+table(%rip)", "8@table+8(%rip)", "8@16+table-8(%rip)", "8@table+8"] {
            assert_eq!(parsed(text), memory(Sym::Address(0x4008)), "{text}");
        }
        assert_eq!(parsed("-2@-20(%rbp)"), memory(sum(Sym::Reg(Reg::Rbp), Sym::Const(-20_i64 as u64))));
        let indexed = sum(Sym::Reg(Reg::Rax), times(Reg::Rdx, 2));
        assert_eq!(parsed("-2@(%rax,%rdx,2)"), memory(indexed));
        // In a program that is not position-independent.
        assert_eq!(parsed("-4@table(%rax)"), memory(sum(Sym::Reg(Reg::Rax), Sym::Address(0x4000))));
        assert_eq!(parsed("-4@table(,%rax,4)"), memory(sum(Sym::Address(0x4000), times(Reg::Rax, 4))));
        for text in
            ["8@", "8@8(%rip)", "8@8", "8@other(%rip)", "8@table+(%rip)", "8@é(%rip)", "8@+é", "8@%xmm0"]
        {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn notes_that_are_cut_short() {
        let mut notes = vec![8, 0, 0, 0, 32, 0, 0, 0, 3, 0, 0, 0];
        notes.extend(b"stapsdt\0");
        notes.extend(0x1010_u64.to_le_bytes());
        notes.extend(0x3000_u64.to_le_bytes());
        notes.extend(0_u64.to_le_bytes());
        notes.extend(b"p\0n\0-4@\0");
        let found: Vec<_> = noted(&notes, 0x3100).into_iter().map(|p| (p.pc, p.arguments)).collect();
        assert_eq!(found, [(0x1110, vec!["-4@".to_owned()])]);
        assert_eq!(noted(&[notes.clone(), notes.clone()].concat(), 0).len(), 2);
        for len in 0..notes.len() {
            assert_eq!(noted(&notes[..len], 0), []);
        }
        assert_eq!(noted(&[0xff; 64], 0), []);
    }
}
