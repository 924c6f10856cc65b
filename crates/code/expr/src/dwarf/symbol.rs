// SPDX-License-Identifier: MIT OR Apache-2.0
//! A place in a function without debug information, known only by its symbol. Expressions can read registers and the
//! memory that they point to.

use std::rc::Rc;

use crate::ast::Tag;
use crate::ctype::{Def, Int, Ty, TypeRef, Types};
use crate::ir::Space;
use crate::regs::Reg;
use crate::scope::{Callers, Location, ProbePoint, Scope, Storage, Sym};

use super::{Debug, Error};

/// A place in a function that only a symbol describes.
pub struct Bare<'c, 'd> {
    debug: &'c Debug<'d>,
    /// Address of the instruction.
    pub pc: u64,
    /// Address of the function.
    pub entry: u64,
    /// Position in the function.
    pub moment: ProbePoint,
    space: Space,
    name: String,
}

impl<'c, 'd> Bare<'c, 'd> {
    /// Finds the function by its symbol. `why` is the error to return if no symbol covers the address.
    pub(crate) fn at(
        debug: &'c Debug<'d>,
        pc: u64,
        moment: ProbePoint,
        space: Space,
        why: Error,
    ) -> Result<Self, Error> {
        let label = || debug.image.labels(|_, address| address == pc).into_iter().next();
        let symbol = debug.image.around(pc).cloned().or_else(label).ok_or(why)?;
        let (entry, name) = (symbol.address, symbol.name);
        Ok(Self { debug, pc, entry, moment, space, name })
    }
}

impl Types for Bare<'_, '_> {
    fn get(&self, ty: TypeRef) -> Result<Def, String> {
        self.debug.get(ty)
    }

    fn find(&self, tag: Tag, name: &str) -> Result<Option<Ty>, String> {
        self.debug.find(tag, name)
    }
}

impl Scope for Bare<'_, '_> {
    fn returned(&self) -> Result<(Ty, Location), String> {
        if self.moment != ProbePoint::Return {
            return Err("`$retval` is known only where the function returns: use FUNC%return".to_owned());
        }
        Ok((Ty::Int(Int::LONG), Location::Whole(Storage::Value(Rc::new(Sym::Reg(Reg::Rax))))))
    }

    fn frame(&self) -> Result<Rc<Sym>, String> {
        self.debug.frame_at(self.moment, self.pc)
    }

    fn at_entry(&self) -> bool {
        self.moment == ProbePoint::Entry
    }

    fn space(&self) -> Space {
        self.space
    }

    fn callers(&self) -> Result<Callers, String> {
        Ok(self.debug.callers_at(self.space, self.moment, self.pc))
    }

    fn code_of(&self, function: &str) -> Result<Option<Vec<(u64, u32)>>, String> {
        self.debug.code_in(self.space, function)
    }

    fn describe(&self) -> String {
        let known = "(known by its symbol only)";
        match self.moment {
            ProbePoint::Entry => format!("{}, at entry {known}", self.name),
            ProbePoint::Return => format!("{}, at return {known}", self.name),
            ProbePoint::Inside => format!("{}+{:#x} {known}", self.name, self.pc - self.entry),
        }
    }
}
