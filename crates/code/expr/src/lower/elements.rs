// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rust's `str`, slices, `String` and `Vec`, C++'s `std::string`, `std::string_view` and `std::vector`: contiguous elements
//! whose number is stored next to their address.
//!
//! They are recognised by the member names that compilers emit: `data_ptr` and `length` of a reference or box; `buf`
//! and `len` of a vector, with the address inside `buf`; in C++ the names that libstdc++ gives them. A vector of C++ has the
//! address of its end instead of a number. Other structures are left as they are.

use std::rc::Rc;

use crate::ast::Expr;
use crate::ctype::{self, Def, Int, Kin, Member, Record, Ty};
use crate::error::{Error, Result, Span};
use crate::ir::{BinOp, Cond, Target, Term, Val, Width};

use super::{Lower, Operand, Scalar};

/// Limit of the nesting depth at which a vector's address is searched.
const DEPTH: usize = 8;

/// Elements behind an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elements {
    /// Type of an element.
    pub of: Ty,
    /// Size of an element in bytes.
    pub size: u64,
    /// True for text in UTF-8, including types such as `OsStr` that need not be valid.
    pub text: bool,
    /// Offset of the address in the structure, in bits.
    pub(super) address: u64,
    /// Offset of the number of elements, in bits.
    pub(super) count: u64,
    /// True if `count` is the offset of the address behind the last element instead.
    pub(super) ends: bool,
}

impl Lower<'_> {
    /// Returns the elements of a structure that is one of these types.
    pub(super) fn elements(&self, record: &Record) -> Option<Elements> {
        if !record.bare || record.declared || record.choice.is_some() {
            return None;
        }
        let name = record.name.as_deref()?;
        if let [address, count] = &record.members[..]
            && address.name.as_deref() == Some("data_ptr")
            && count.name.as_deref() == Some("length")
        {
            let target = pointee(name)?;
            let is_path = ["std::path::Path", "std::ffi::os_str::OsStr"].contains(&target);
            let text = target == "str" || is_path;
            let of = match self.def(&address.ty)? {
                _ if is_path => Ty::Int(Int::of(1, false)),
                Def::Plain(Ty::Ptr(to)) if text || target.starts_with('[') => (*to).clone(),
                // Another unsized type that ends in a slice.
                _ => return None,
            };
            return self.of_size(of, text, address.offset, count.offset);
        }
        if name.starts_with("Vec<") {
            let (address, count) = self.vector(record)?;
            return self.of_size(record.of.clone()?, false, address, count);
        }
        if ["String", "OsString", "PathBuf"].contains(&name) {
            // The vector of bytes is wrapped in structures with a single member.
            let (mut inner, mut from) = (Rc::new(record.clone()), 0_u64);
            for _ in 0..DEPTH {
                let [only] = &inner.members[..] else { return None };
                from = from.checked_add(only.offset)?;
                let Def::Record(next) = self.def(&only.ty)? else { return None };
                if next.name.as_deref().is_some_and(|n| n.starts_with("Vec<u8")) {
                    let (address, count) = self.vector(&next)?;
                    let of = Ty::Int(Int::of(1, false));
                    return self.of_size(of, true, from.checked_add(address)?, from.checked_add(count)?);
                }
                inner = Rc::new(next);
            }
        }
        self.of_cpp(record, name)
    }

    /// The elements of a container of libstdc++.
    fn of_cpp(&self, record: &Record, name: &str) -> Option<Elements> {
        let text =
            ["basic_string<char,", "basic_string_view<char,"].iter().any(|begin| name.starts_with(begin));
        if text {
            let at = |name: &str| self.inside(record, name, DEPTH);
            let (address, count) =
                at("_M_p").zip(at("_M_string_length")).or_else(|| at("_M_str").zip(at("_M_len")))?;
            self.pointed(&address.0)?;
            return self.of_size(Ty::Int(Int::of(1, false)), true, address.1, count.1);
        }
        if name.starts_with("vector<") {
            let (start, address) = self.inside(record, "_M_start", DEPTH)?;
            let (_, end) = self.inside(record, "_M_finish", DEPTH)?;
            // That of `vector<bool>` is no pointer.
            let found = self.of_size(self.pointed(&start)?, false, address, end)?;
            return Some(Elements { ends: true, ..found });
        }
        None
    }

    fn pointed(&self, ty: &Ty) -> Option<Ty> {
        match self.def(ty)? {
            Def::Plain(Ty::Ptr(to)) => Some((*to).clone()),
            _ => None,
        }
    }

    /// Returns the type and offset (in bits) of the member with this name, searched recursively.
    fn inside(&self, record: &Record, name: &str, depth: usize) -> Option<(Ty, u64)> {
        if let Some(found) = record.members.iter().find(|m| m.name.as_deref() == Some(name)) {
            return Some((found.ty.clone(), found.offset));
        }
        record.members.iter().filter(|m| depth > 0 && m.kin != Kin::Virtual).find_map(|member| {
            let Def::Record(inner) = self.def(&member.ty)? else { return None };
            let (ty, offset) = self.inside(&inner, name, depth - 1)?;
            Some((ty, member.offset.checked_add(offset)?))
        })
    }

    fn def(&self, ty: &Ty) -> Option<Def> {
        ctype::resolve(self.types(), ty).ok()
    }

    fn of_size(&self, of: Ty, text: bool, address: u64, count: u64) -> Option<Elements> {
        let size = ctype::size_of(self.types(), &of).ok().flatten().filter(|size| *size > 0)?;
        Some(Elements { of, size, text, address, count, ends: false })
    }

    /// Returns the offsets of a vector's address and number of elements, in bits.
    fn vector(&self, vector: &Record) -> Option<(u64, u64)> {
        let member = |name: &str| vector.members.iter().find(|m| m.name.as_deref() == Some(name));
        let (buffer, count) = (member("buf")?, member("len")?);
        let address = self.first_pointer(buffer, DEPTH)?;
        Some((address, count.offset))
    }

    /// Returns the offset of the first pointer in a member, searched recursively, in bits.
    fn first_pointer(&self, member: &Member, depth: usize) -> Option<u64> {
        match self.def(&member.ty)? {
            Def::Plain(Ty::Ptr(_)) => Some(member.offset),
            Def::Record(record) if depth > 0 => {
                let inner = record.members.iter().find_map(|m| self.first_pointer(m, depth - 1))?;
                member.offset.checked_add(inner)
            }
            _ => None,
        }
    }

    /// Returns the elements of an operand, if its type has them.
    pub(super) fn elements_of(&self, operand: &Operand, span: Span) -> Result<Option<Elements>> {
        let ty = match operand {
            Operand::Memory { ty, bits: None, .. } | Operand::Parts { ty, bits: None, .. } => ty,
            _ => return Ok(None),
        };
        Ok(match self.resolve(ty, span)? {
            Def::Record(record) => self.elements(&record),
            _ => None,
        })
    }

    /// Loads a 64-bit word of an operand, at this bit offset.
    fn word(&mut self, operand: &Operand, from: u64, span: Span) -> Result<Val> {
        let ty = Ty::Int(Int::ULONG);
        let inner = match operand.clone() {
            Operand::Memory { addr, .. } => {
                let by = self.b.constant(from / 8, Width::W64);
                let addr = if from == 0 { addr } else { self.b.bin(BinOp::Add, addr, by) };
                Operand::Memory { addr, ty, bits: None }
            }
            Operand::Parts { location, from: start, name, .. } => {
                Operand::Parts { location, ty, from: start + from, bits: None, name }
            }
            _ => return Err(Error::new(span, "this has no elements")),
        };
        Ok(self.rvalue(inner, span)?.0)
    }

    /// Loads the address of the first element.
    pub(super) fn address_of(&mut self, operand: &Operand, of: &Elements, span: Span) -> Result<Val> {
        self.word(operand, of.address, span)
    }

    /// Loads the number of elements.
    pub(super) fn count_of(&mut self, operand: &Operand, of: &Elements, span: Span) -> Result<Val> {
        let word = self.word(operand, of.count, span)?;
        if !of.ends {
            return Ok(word);
        }
        let first = self.word(operand, of.address, span)?;
        let bytes = self.b.bin(BinOp::Sub, word, first);
        let size = self.b.constant(of.size, Width::W64);
        Ok(self.b.bin(BinOp::UDiv, bytes, size))
    }

    /// Lowers an index expression. An index past the end gives address 0, so that the read fails.
    pub(super) fn element(
        &mut self,
        operand: &Operand,
        of: &Elements,
        i: &Expr,
        span: Span,
    ) -> Result<Operand> {
        let (v, scalar) = self.value_of(i)?;
        if !matches!(scalar, Scalar::Int(_)) {
            return Err(Error::new(i.span, "an element is named by a number"));
        }
        let number = self.widen(v, &scalar);
        let count = self.count_of(operand, of, span)?;
        let there = self.b.cmp(Cond::Ult, number, count);
        let (yes, no, end) = (self.b.block(), self.b.block(), self.b.block());
        self.b.end(Term::Branch(there, Target::plain(yes), Target::plain(no)));
        let addr = self.b.param(end, Width::W64);
        self.b.place(yes);
        let first = self.address_of(operand, of, span)?;
        let size = self.b.constant(of.size, Width::W64);
        let by = self.b.bin(BinOp::Mul, number, size);
        let at = self.b.bin(BinOp::Add, first, by);
        self.b.end(Term::Jump(Target { block: end, args: vec![at] }));
        self.b.place(no);
        let nowhere = self.b.constant(0, Width::W64);
        self.b.end(Term::Jump(Target { block: end, args: vec![nowhere] }));
        self.b.place(end);
        Ok(Operand::Memory { addr, ty: of.of.clone(), bits: None })
    }

    /// Compares the elements with these bytes: length and contents.
    pub(super) fn same_bytes(
        &mut self,
        operand: &Operand,
        of: &Elements,
        text: &[u8],
        span: Span,
    ) -> Result<Val> {
        let end = self.b.block();
        let found = self.b.param(end, Width::W32);
        let count = self.count_of(operand, of, span)?;
        let wanted = self.b.constant(text.len() as u64, Width::W64);
        let mut same = self.b.cmp(Cond::Eq, count, wanted);
        let (mut done, mut first) = (0, None);
        while done < text.len() {
            let (next, no) = (self.b.block(), self.b.block());
            self.b.end(Term::Branch(same, Target::plain(next), Target::plain(no)));
            self.b.place(no);
            let zero = self.b.constant(0, Width::W32);
            self.b.end(Term::Jump(Target { block: end, args: vec![zero] }));
            self.b.place(next);
            let size = [8, 4, 2, 1].into_iter().find(|size| *size <= text.len() - done).unwrap_or(1);
            let mut bytes = [0; 8];
            bytes[..size].copy_from_slice(&text[done..done + size]);
            // The address is loaded only if the lengths are equal. The block that loads it dominates all later ones.
            let first = match first {
                Some(first) => first,
                None => *first.insert(self.address_of(operand, of, span)?),
            };
            let by = self.b.constant(done as u64, Width::W64);
            let at = self.b.bin(BinOp::Add, first, by);
            let own = self.load(at, size as u8, false, Width::W64);
            let wanted = self.b.constant(u64::from_le_bytes(bytes), Width::W64);
            same = self.b.cmp(Cond::Eq, own, wanted);
            done += size;
        }
        self.b.end(Term::Jump(Target { block: end, args: vec![same] }));
        self.b.place(end);
        Ok(found)
    }
}

/// Returns the pointee's name from the name of a reference, raw pointer or box.
fn pointee(name: &str) -> Option<&str> {
    let plain = ["&mut ", "&", "*const ", "*mut "].iter().find_map(|sign| name.strip_prefix(sign));
    let boxed = || {
        let (scopes, inner) = name.split_once("Box<")?;
        let all = inner.strip_suffix('>')?;
        // A box's second type argument is the allocator.
        let to = all.rsplit_once(", ").map_or(all, |(to, _)| to);
        (scopes.is_empty() || scopes.ends_with("::")).then_some(to)
    };
    plain.or_else(boxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_references_are_to() {
        let all = [
            "&str",
            "&mut [u8]",
            "*const str",
            "alloc::boxed::Box<[u16], alloc::alloc::Global>",
            "Box<str>",
            "str",
        ];
        let found = all.map(pointee);
        assert_eq!(found, [Some("str"), Some("[u8]"), Some("str"), Some("[u16]"), Some("str"), None]);
    }
}
