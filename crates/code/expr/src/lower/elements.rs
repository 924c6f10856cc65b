// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements one after the other whose number stands beside their address: Rust's `str` and slices behind references and
//! boxes, its `String` and `Vec`.
//!
//! They are told by their members, as compilers name them: `data_ptr` and `length` of a reference, `buf` and `len` of a
//! vector, whose address lies within `buf`. What is not so is left as the structure that it is.

use std::rc::Rc;

use crate::ast::Expr;
use crate::ctype::{self, Def, Int, Member, Record, Ty};
use crate::error::{Error, Result, Span};
use crate::ir::{BinOp, Cond, Target, Term, Val, Width};

use super::{Lower, Operand, Scalar};

/// How deep in a vector its address may lie.
const DEPTH: usize = 8;

/// Elements behind an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elements {
    /// What each is.
    pub of: Ty,
    /// Bytes of each.
    pub size: u64,
    /// Whether they are text in UTF-8, or what is meant to be.
    pub text: bool,
    /// Where in the structure the address is, in bits.
    pub(super) address: u64,
    /// Where their number is.
    pub(super) count: u64,
}

impl Lower<'_> {
    /// What a structure has elements of, if it is one of these.
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
                // Another type that ends in a slice.
                _ => return None,
            };
            return self.of_size(of, text, address.offset, count.offset);
        }
        if name.starts_with("Vec<") {
            let (address, count) = self.vector(record)?;
            return self.of_size(record.of.clone()?, false, address, count);
        }
        if ["String", "OsString", "PathBuf"].contains(&name) {
            // Around a vector of bytes there are structures with nothing else in them.
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
        None
    }

    fn def(&self, ty: &Ty) -> Option<Def> {
        ctype::resolve(self.types(), ty).ok()
    }

    fn of_size(&self, of: Ty, text: bool, address: u64, count: u64) -> Option<Elements> {
        let size = ctype::size_of(self.types(), &of).ok().flatten().filter(|size| *size > 0)?;
        Some(Elements { of, size, text, address, count })
    }

    /// Where a vector's address and number of elements are.
    fn vector(&self, vector: &Record) -> Option<(u64, u64)> {
        let member = |name: &str| vector.members.iter().find(|m| m.name.as_deref() == Some(name));
        let (buffer, count) = (member("buf")?, member("len")?);
        let address = self.first_pointer(buffer, DEPTH)?;
        Some((address, count.offset))
    }

    /// The first address in a member, or in what it consists of.
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

    /// The elements that an operand has, if it has.
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

    /// A word of an operand, from this bit on.
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

    /// Where the first element is.
    pub(super) fn address_of(&mut self, operand: &Operand, of: &Elements, span: Span) -> Result<Val> {
        self.word(operand, of.address, span)
    }

    /// How many there are.
    pub(super) fn count_of(&mut self, operand: &Operand, of: &Elements, span: Span) -> Result<Val> {
        self.word(operand, of.count, span)
    }

    /// One of them. What is behind the last cannot be read: nothing lies at address 0.
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

    /// Whether they are these bytes: as many, and the same.
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
            // Read only if there are as many: every later block comes behind the first of these.
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

/// What a reference, a raw pointer or a box is to, by its name.
fn pointee(name: &str) -> Option<&str> {
    let plain = ["&mut ", "&", "*const ", "*mut "].iter().find_map(|sign| name.strip_prefix(sign));
    let boxed = || {
        let (scopes, inner) = name.split_once("Box<")?;
        let all = inner.strip_suffix('>')?;
        // Its second type is the allocator.
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
