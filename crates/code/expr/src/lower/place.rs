// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lowers places: members, elements, addresses, and loads from any location.

use std::rc::Rc;

use crate::ast::Expr;
use crate::ctype::{Def, Int, Kin, Member, Record, Ty};
use crate::error::{Error, Result, Span, suggestion};
use crate::interp;
use crate::ir::{BinOp, Input, Kept, Op, Val, Width};
use crate::scope::{Location, Piece, Storage, Sym};

use super::{Lower, Operand, Scalar};

/// Limit of anonymous members that are searched. `struct task_struct` has a few.
const ANONYMOUS: usize = 200;

impl Lower<'_> {
    pub(super) fn is_scalar(&self, operand: &Operand, span: Span) -> Result<bool> {
        let ty = match operand {
            Operand::Value(..) => return Ok(true),
            Operand::Memory { ty, .. } | Operand::Parts { ty, .. } => ty,
            _ => return Ok(false),
        };
        Ok(matches!(self.resolve(ty, span)?, Def::Plain(Ty::Int(_) | Ty::Ptr(_)) | Def::Enum(_)))
    }

    /// Converts an operand to a value. Memory is loaded; an array becomes a pointer to its first element.
    pub(super) fn rvalue(&mut self, operand: Operand, span: Span) -> Result<(Val, Scalar)> {
        let ty = match operand {
            Operand::Value(v, scalar, _) => return Ok((v, scalar)),
            Operand::Text(_) => {
                return Err(Error::new(span, "a string has no value here").help("compare it with == or !="));
            }
            Operand::Comm => {
                return Err(Error::new(span, "`$comm` is a string").help("compare it: `$comm == \"name\"`"));
            }
            Operand::Container => {
                return Err(Error::new(span, "`$container` is an id")
                    .help("compare it: `$container == \"3f2a\"`; or collect it, or count by it"));
            }
            Operand::Nothing => return Err(Error::new(span, "`void` has no value")),
            Operand::Memory { ref ty, .. } | Operand::Parts { ref ty, .. } => ty.clone(),
        };
        let int = match self.resolve(&ty, span)? {
            Def::Plain(Ty::Int(int)) => int,
            Def::Enum(e) => e.int,
            Def::Plain(Ty::Ptr(to)) => {
                let v = self.fetch(operand, Int::ULONG, span)?;
                return Ok((v, Scalar::Ptr(to)));
            }
            Def::Plain(Ty::Array(of, _)) => {
                let v = self.place_of(operand, span)?;
                return Ok((v, Scalar::Ptr(of)));
            }
            Def::Function => {
                let v = self.place_of(operand, span)?;
                return Ok((v, Scalar::Ptr(Rc::new(Ty::Void))));
            }
            Def::Float(name, _) => {
                return Err(Error::new(
                    span,
                    format!("`{name}` is floating-point, which a probe cannot compute"),
                ));
            }
            Def::Wide(name, size) => {
                return Err(Error::new(span, format!("`{name}` has {size} bytes, a probe computes in 8"))
                    .help("its address can be cast: `*(unsigned long *)&…`"));
            }
            // Operands are dereferenced when they are built, so this can only be a second level of reference.
            Def::Reference(_) => return Err(Error::new(span, "a reference to a reference has no value")),
            Def::Record(record) => {
                return Err(Error::new(span, format!("`{}` is no number", self.show(&ty)))
                    .help(self.members_of(&record)));
            }
            Def::Plain(Ty::Void) | Def::Plain(Ty::Ref(_)) | Def::Alias(..) => {
                return Err(Error::new(span, format!("`{}` has no value", self.show(&ty)))
                    .help("cast the pointer first: `*(int *)…`"));
            }
        };
        let bits = match &operand {
            Operand::Memory { bits, .. } => bits.map(|b| b.1),
            Operand::Parts { bits, .. } => *bits,
            _ => None,
        };
        let v = self.fetch(operand, int, span)?;
        // A bitfield that fits an int is promoted to int (C11 6.3.1.1).
        let int = match bits {
            Some(n) if !int.is_bool() && (n < 32 || (n == 32 && int.signed)) => Int::INT,
            _ => int,
        };
        Ok((self.fit(v, int), Scalar::Int(int)))
    }

    /// Dereferences a C++ reference; returns any other operand unchanged.
    pub(super) fn referred(&mut self, operand: Operand, span: Span) -> Result<Operand> {
        let ty = match &operand {
            Operand::Memory { ty, .. } | Operand::Parts { ty, .. } => ty.clone(),
            _ => return Ok(operand),
        };
        let Def::Reference(to) = self.resolve(&ty, span)? else { return Ok(operand) };
        let addr = self.fetch(operand, Int::ULONG, span)?;
        Ok(Operand::Memory { addr, ty: to, bits: None })
    }

    fn fit(&mut self, v: Val, int: Int) -> Val {
        match (self.b.func.width(v), Scalar::Int(int).width()) {
            (Width::W64, Width::W32) => self.b.ext(v, 32, false, Width::W32),
            (Width::W32, Width::W64) => self.b.ext(v, 32, int.signed, Width::W64),
            _ => v,
        }
    }

    fn members_of(&self, record: &Record) -> String {
        let all = self.all_members(record, &mut Vec::new());
        let mut names: Vec<&str> = all.iter().map(String::as_str).take(12).collect();
        if all.len() > names.len() {
            names.push("…");
        }
        if names.is_empty() {
            "it has no members that can be named".to_owned()
        } else {
            format!("choose a member: {}", names.join(", "))
        }
    }

    /// Loads a number of this integer type, from memory or from its pieces.
    fn fetch(&mut self, operand: Operand, int: Int, span: Span) -> Result<Val> {
        let width = Scalar::Int(int).width();
        match operand {
            Operand::Memory { addr, bits: None, .. } => Ok(self.load(addr, int.size, int.signed, width)),
            Operand::Memory { addr, bits: Some((from, count)), .. } => {
                Ok(self.bitfield(addr, from, count, int))
            }
            Operand::Parts { location, from, bits, name, .. } => {
                let count = bits.unwrap_or(int.bits());
                let v = self.part(&location, from, u64::from(count), &name, span)?;
                Ok(self.b.ext(v, count, int.signed, width))
            }
            Operand::Value(v, ..) => Ok(v),
            _ => Err(Error::new(span, "this has no value")),
        }
    }

    pub(super) fn load(&mut self, addr: Val, size: u8, signed: bool, width: Width) -> Val {
        let space = self.env.scope.space();
        self.b.push(Op::Load { space, size, signed, addr }, width)
    }

    fn bitfield(&mut self, addr: Val, from: u64, count: u8, int: Int) -> Val {
        let unit = u64::from(int.bits());
        let end = from + u64::from(count);
        // A bitfield within its storage unit is loaded with that unit; a packed one with the smallest number that
        // contains it.
        let (first, size) = if from / unit == (end - 1) / unit {
            (from / unit * unit, int.size)
        } else {
            let first = from / 8 * 8;
            let bytes = (end - first).div_ceil(8).next_power_of_two();
            if bytes > 8 {
                return self.across(addr, from, count, int);
            }
            (first, bytes as u8)
        };
        let at = self.offset(addr, first / 8);
        let width = if size <= 4 { Width::W32 } else { Width::W64 };
        let v = self.load(at, size, false, width);
        let shift = self.b.constant(from - first, width);
        let v = self.b.bin(BinOp::Shr, v, shift);
        self.b.ext(v, count, int.signed, width)
    }

    /// Loads a bitfield that spans nine bytes: eight of them, then the last.
    fn across(&mut self, addr: Val, from: u64, count: u8, int: Int) -> Val {
        let low = self.offset(addr, from / 8);
        let low = self.load(low, 8, false, Width::W64);
        let high = self.offset(addr, from / 8 + 8);
        let high = self.load(high, 1, false, Width::W64);
        let down = self.b.constant(from % 8, Width::W64);
        let up = self.b.constant(64 - from % 8, Width::W64);
        let low = self.b.bin(BinOp::Shr, low, down);
        let high = self.b.bin(BinOp::Shl, high, up);
        let all = self.b.bin(BinOp::Or, low, high);
        self.b.ext(all, count, int.signed, Width::W64)
    }

    fn offset(&mut self, addr: Val, by: u64) -> Val {
        if by == 0 {
            return addr;
        }
        let by = self.b.constant(by, Width::W64);
        self.b.bin(BinOp::Add, addr, by)
    }

    /// Computes a range of bits of a value that is not in memory as a whole.
    pub(super) fn part(
        &mut self,
        location: &Location,
        from: u64,
        count: u64,
        name: &str,
        span: Span,
    ) -> Result<Val> {
        let whole;
        let pieces: &[Piece] = match location {
            Location::Pieces(pieces) => pieces,
            Location::Whole(at) => {
                whole = [Piece { bits: u64::MAX, offset: 0, at: at.clone() }];
                &whole
            }
        };
        let mut start = 0u64;
        let mut sum: Option<Val> = None;
        let mut got = 0;
        for piece in pieces {
            let stop = start.saturating_add(piece.bits);
            let (a, b) = (from.max(start), (from + count).min(stop));
            if a < b {
                let v = self.spot(&piece.at, a - start + piece.offset, b - a, name, span)?;
                let v = if b - a < 64 { self.b.ext(v, (b - a) as u8, false, Width::W64) } else { v };
                let place = self.b.constant(a - from, Width::W64);
                let v = self.b.bin(BinOp::Shl, v, place);
                sum = Some(match sum {
                    None => v,
                    Some(other) => self.b.bin(BinOp::Or, other, v),
                });
                got += b - a;
            }
            start = stop;
        }
        match sum {
            Some(v) if got == count => Ok(v),
            _ => Err(Error::new(span, format!("a part of `{name}` is optimised out here"))),
        }
    }

    /// Computes `count` bits (at most 64) of a spot, from bit `from` on. Higher bits of the result are unspecified.
    fn spot(&mut self, spot: &Storage, from: u64, count: u64, name: &str, span: Span) -> Result<Val> {
        match spot {
            Storage::Missing(why, help) => {
                let error = Error::new(span, format!("`{name}` is {why}"));
                Err(match help {
                    Some(help) => error.help(help.clone()),
                    None => error,
                })
            }
            Storage::Value(sym) => {
                let v = self.sym(sym, span)?;
                if from >= 64 {
                    return Err(Error::new(span, format!("a part of `{name}` is not described here")));
                }
                let shift = self.b.constant(from, Width::W64);
                Ok(self.b.bin(BinOp::Shr, v, shift))
            }
            Storage::Bytes(bytes) => {
                let mut number = [0; 16];
                let first = (from / 8) as usize;
                for (to, byte) in number.iter_mut().zip(bytes.iter().skip(first)) {
                    *to = *byte;
                }
                let n = u128::from_le_bytes(number) >> (from % 8);
                Ok(self.b.constant(n as u64, Width::W64))
            }
            Storage::Memory(sym) => {
                let addr = self.sym(sym, span)?;
                let first = from / 8;
                let bytes = (from + count).div_ceil(8) - first;
                let size = bytes.next_power_of_two();
                if size > 8 {
                    return Err(Error::new(span, format!("a part of `{name}` lies across nine bytes")));
                }
                let addr = self.offset(addr, first);
                let v = self.load(addr, size as u8, false, Width::W64);
                let shift = self.b.constant(from % 8, Width::W64);
                Ok(self.b.bin(BinOp::Shr, v, shift))
            }
        }
    }

    /// Lowers an expression from debug information.
    pub(super) fn sym(&mut self, sym: &Rc<Sym>, span: Span) -> Result<Val> {
        let w = Width::W64;
        Ok(match &**sym {
            Sym::Const(n) => self.b.constant(*n, w),
            Sym::Reg(reg) => self.b.push(Op::Input(Input::Reg(*reg)), w),
            Sym::Arg(n) => self.b.push(Op::Input(Input::Arg(*n)), w),
            Sym::Entry(reg) => {
                let frame = self.env.scope.frame().map_err(|e| Error::new(span, e))?;
                let frame = self.sym(&frame, span)?;
                self.b.push(Op::Entry(Kept::Reg(*reg), frame), w)
            }
            Sym::Address(link) => self.b.push(Op::Address(*link), w),
            Sym::Context => self.b.push(Op::Input(Input::Context), w),
            Sym::Cpu => {
                // The helper returns 32 bits.
                let v = self.b.push(Op::Input(Input::Cpu), w);
                self.b.ext(v, 32, false, w)
            }
            Sym::Deref(at, size) => {
                let at = self.sym(at, span)?;
                self.load(at, *size, false, w)
            }
            Sym::Bin(op, a, b) => {
                let a = self.sym(a, span)?;
                let b = self.sym(b, span)?;
                self.b.bin(*op, a, b)
            }
            Sym::Ext(a, bits, signed) => {
                let a = self.sym(a, span)?;
                self.b.ext(a, *bits, *signed, w)
            }
            Sym::Cmp(cond, a, b) => {
                let a = self.sym(a, span)?;
                let b = self.sym(b, span)?;
                let v = self.b.cmp(*cond, a, b);
                self.b.ext(v, 32, false, w)
            }
        })
    }

    /// Returns the operand's address.
    pub(super) fn place_of(&mut self, operand: Operand, span: Span) -> Result<Val> {
        match operand {
            Operand::Memory { addr, bits: None, .. } => Ok(addr),
            Operand::Memory { .. } | Operand::Parts { bits: Some(_), .. } => {
                Err(Error::new(span, "a bitfield has no address"))
            }
            Operand::Parts { location: Location::Whole(Storage::Memory(sym)), from, .. } => {
                let addr = self.sym(&sym, span)?;
                Ok(self.offset(addr, from / 8))
            }
            Operand::Parts { location: Location::Whole(Storage::Missing(why, help)), name, .. } => {
                let mut error = Error::new(span, format!("`{name}` is {why}"));
                error.help = help;
                Err(error)
            }
            Operand::Parts { location, name, .. } => {
                Err(Error::new(span, format!("`{name}` has no address here: it is in {location}")))
            }
            Operand::Comm => Err(Error::new(span, "`$comm` has no address")),
            _ => Err(Error::new(span, "a value has no address")),
        }
    }

    pub(super) fn address(&mut self, operand: Operand, span: Span) -> Result<Operand> {
        let ty = match &operand {
            Operand::Memory { ty, .. } | Operand::Parts { ty, .. } => Rc::new(ty.clone()),
            _ => Rc::new(Ty::Void),
        };
        let v = self.place_of(operand, span)?;
        Ok(Operand::Value(v, Scalar::Ptr(ty.clone()), Ty::Ptr(ty)))
    }

    pub(super) fn deref(&mut self, operand: Operand, span: Span) -> Result<Operand> {
        let shown = self.type_name(&operand);
        match self.rvalue(operand, span)? {
            (addr, Scalar::Ptr(to)) => Ok(Operand::Memory { addr, ty: (*to).clone(), bits: None }),
            _ => Err(Error::new(span, format!("`{shown}` is no pointer"))),
        }
    }

    pub(super) fn index(&mut self, a: &Expr, i: &Expr, span: Span) -> Result<Operand> {
        let of = self.expr(a)?;
        if let Some(elements) = self.elements_of(&of, a.span)? {
            let element = self.element(&of, &elements, i, span)?;
            return self.referred(element, span);
        }
        // An array that is not in memory as a whole: a constant index selects the element's bits.
        if let Operand::Parts { location, ty, from, bits: None, name } = &of
            && !matches!(location, Location::Whole(Storage::Memory(_)))
            && let Def::Plain(Ty::Array(elem, _)) = self.resolve(ty, a.span)?
        {
            let (v, scalar) = self.value_of(i)?;
            let v = self.widen(v, &scalar);
            let Some(n) = self.b.func.constant(v).or_else(|| folded(&self.b.func, v)) else {
                return Err(Error::new(
                    i.span,
                    format!("`{name}` is not in memory: only a constant can index it"),
                ));
            };
            let size = self.size_of(&elem, span)?;
            let from = from.saturating_add(n.saturating_mul(size).saturating_mul(8));
            let (location, name) = (location.clone(), name.clone());
            return Ok(Operand::Parts { location, ty: (*elem).clone(), from, bits: None, name });
        }
        let shown = self.type_name(&of);
        let (va, ta) = self.rvalue(of, a.span)?;
        let (vi, ti) = self.value_of(i)?;
        let (base, to, by, int) = match (ta, ti) {
            (Scalar::Ptr(to), Scalar::Int(int)) => (va, to, vi, int),
            (Scalar::Int(int), Scalar::Ptr(to)) => (vi, to, va, int),
            _ => return Err(Error::new(a.span, format!("`{shown}` is neither array nor pointer"))),
        };
        let by = self.scaled(by, int, &to, span)?;
        let addr = self.b.bin(BinOp::Add, base, by);
        Ok(Operand::Memory { addr, ty: (*to).clone(), bits: None })
    }

    pub(super) fn member(&mut self, of: &Expr, arrow: bool, name: &str, at: Span) -> Result<Operand> {
        let mut operand = self.expr(of)?;
        let ty = match &operand {
            Operand::Value(_, _, ty) | Operand::Memory { ty, .. } | Operand::Parts { ty, .. } => ty.clone(),
            _ => return Err(Error::new(of.span, format!("`{}` has no members", self.type_name(&operand)))),
        };
        let record = match self.resolve(&ty, of.span)? {
            Def::Record(record) if arrow => {
                return Err(Error::new(of.span, format!("`{}` is no pointer", record_name(&record)))
                    .help(format!("write `.{name}`")));
            }
            Def::Record(record) => record,
            // GDB accepts `.` for `->` too.
            Def::Plain(Ty::Ptr(to) | Ty::Array(to, _)) => {
                let Def::Record(record) = self.resolve(&to, of.span)? else {
                    return Err(Error::new(of.span, format!("`{}` has no members", self.show(&to))));
                };
                operand = self.deref(operand, of.span)?;
                record
            }
            _ => return Err(Error::new(of.span, format!("`{}` has no members", self.show(&ty)))),
        };
        let Some(found) = self.find_member(&record, name, &mut Vec::new(), at)? else {
            let shown = record_name(&record);
            if record.declared {
                return Err(Error::new(at, format!("`{shown}` is only declared: its members are unknown")));
            }
            let names = self.all_members(&record, &mut Vec::new());
            let error = Error::new(at, format!("no `{name}` in `{shown}`"));
            let near = suggestion(name, names.iter().map(String::as_str));
            return Err(error.help(near.unwrap_or_else(|| self.members_of(&record))));
        };
        let member = match operand {
            Operand::Memory { addr, .. } => match found.bits {
                Some(bits) => Operand::Memory { addr, ty: found.ty, bits: Some((found.offset, bits)) },
                None => {
                    let addr = self.offset(addr, found.offset / 8);
                    Operand::Memory { addr, ty: found.ty, bits: None }
                }
            },
            Operand::Parts { location, from, name: base, .. } => Operand::Parts {
                location,
                ty: found.ty,
                from: from + found.offset,
                bits: found.bits,
                name: format!("{base}.{name}"),
            },
            _ => return Err(Error::new(of.span, "this has no members")),
        };
        self.referred(member, at)
    }

    /// Finds a member, also in anonymous members and base classes. Its offset counts from the record's start. `seen`
    /// holds the types already searched, because damaged debug information can contain cycles.
    fn find_member(
        &self,
        record: &Record,
        name: &str,
        seen: &mut Vec<Ty>,
        at: Span,
    ) -> Result<Option<Member>> {
        if record.choice.is_some() {
            let what = format!("`{}` has data of one of several variants", record_name(record));
            return Err(Error::new(at, what).help("collect it as a whole: its variant is told then"));
        }
        if let Some(found) = record.members.iter().find(|m| m.name.as_deref() == Some(name)) {
            return Ok(Some(found.clone()));
        }
        let mut only: Option<(Member, String)> = None;
        for member in record.members.iter().filter(|m| m.name.is_none()) {
            if !self.is_new(&member.ty, seen) {
                continue;
            }
            let Def::Record(inner) = self.resolve(&member.ty, at)? else { continue };
            let Some(mut found) = self.find_member(&inner, name, seen, at)? else { continue };
            if member.kin == Kin::Virtual {
                let what = format!("`{name}` is in the virtual base `{}`", record_name(&inner));
                return Err(Error::new(at, what)
                    .help("where that is, only an object's table of functions tells: cast a pointer to it"));
            }
            found.offset = found.offset.saturating_add(member.offset);
            if member.kin == Kin::Own {
                return Ok(Some(found));
            }
            if let Some((_, other)) = &only {
                let what = format!("`{name}` is in `{other}` and in `{}`", record_name(&inner));
                return Err(Error::new(at, what).help("cast the address to one of them"));
            }
            only = Some((found, record_name(&inner)));
        }
        Ok(only.map(|(found, _)| found))
    }

    fn is_new(&self, ty: &Ty, seen: &mut Vec<Ty>) -> bool {
        if seen.contains(ty) || seen.len() >= ANONYMOUS {
            return false;
        }
        seen.push(ty.clone());
        true
    }

    fn all_members(&self, record: &Record, seen: &mut Vec<Ty>) -> Vec<String> {
        let mut names = Vec::new();
        for member in &record.members {
            match &member.name {
                Some(name) => names.push(name.clone()),
                None if self.is_new(&member.ty, seen) => {
                    if let Ok(Def::Record(inner)) = self.resolve(&member.ty, Span::default()) {
                        names.extend(self.all_members(&inner, seen));
                    }
                }
                None => {}
            }
        }
        names
    }
}

/// Evaluates an extension of a constant.
fn folded(func: &crate::ir::Func, v: Val) -> Option<u64> {
    match func.op(v) {
        Op::Ext { bits, signed, of } => Some(interp::extend(func.constant(*of)?, *bits, *signed)),
        _ => None,
    }
}

fn record_name(record: &Record) -> String {
    if let (true, Some(name)) = (record.bare, &record.name) {
        return name.clone();
    }
    format!("{} {}", record.tag.word(), record.name.as_deref().unwrap_or("{...}"))
}
