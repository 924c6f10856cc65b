// SPDX-License-Identifier: MIT OR Apache-2.0
//! A function's entry or return, described by BTF alone: its parameters and result.
//!
//! The program is attached by fentry or fexit: its context is an array of the arguments, followed by the result. At
//! return the arguments have their values at entry. On kernels without fentry the program is attached by a kprobe, and
//! the calling convention gives the registers of the arguments and the result.

use std::rc::Rc;

use kprism_btf::{Btf, Kind};

use crate::ast::Tag;
use crate::ctype::{Def, Ty, TypeRef, Types, resolve, size_of};
use crate::error::suggestion;
use crate::ir::Space;
use crate::regs::Reg;
use crate::scope::{Callers, Location, Piece, ProbePoint, Role, Scope, Storage, Sym, Variable};
use crate::x86::abi;

use super::{ty, variant};

/// Reason why a place was not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// BTF could not be read.
    #[error(transparent)]
    Types(#[from] kprism_btf::Error),
    /// The place is not in this BTF.
    #[error("{origin}: {what}")]
    Place {
        /// Origin of the BTF, such as a file name.
        origin: String,
        /// The message.
        what: String,
    },
}

/// A function's entry or return.
#[derive(Debug)]
pub struct Place<'c> {
    btf: &'c Btf,
    name: String,
    moment: ProbePoint,
    returned: Ty,
    /// Name, type, first slot and number of slots of each parameter.
    parameters: Vec<(String, Ty, usize, usize)>,
    slots: usize,
    /// True if further arguments may follow, which BTF does not describe.
    pub variadic: bool,
    /// True if the program is attached by a kprobe.
    registers: bool,
    /// True if the program that evaluates the expression measures the call.
    measures: bool,
}

impl<'c> Place<'c> {
    /// Finds `FUNC` or `FUNC%return`.
    pub fn find(btf: &'c Btf, spec: &str) -> Result<Self, Error> {
        let (name, moment) = match spec.strip_suffix("%return") {
            Some(name) => (name, ProbePoint::Return),
            None => (spec, ProbePoint::Entry),
        };
        let fail = |what: String| Error::Place { origin: btf.origin().to_owned(), what };
        if spec.contains([':', '+']) || spec.starts_with("0x") {
            let what = format!(
                "BTF tells only of functions' entry and return; `{spec}` needs debug information (-k VMLINUX)"
            );
            return Err(fail(what));
        }
        let Ok(function) = btf.function(name) else {
            let functions = btf.all().filter(|ty| ty.kind == Kind::Func).map(|ty| ty.name);
            let near = suggestion(name, functions);
            let near = near.map_or_else(String::new, |n| format!("; {n}"));
            return Err(fail(format!("no function `{name}`{near}")));
        };
        let returned = ty(function.result);
        let mut slots = 0;
        let mut parameters = Vec::new();
        for parameter in function.parameters {
            let ty = ty(parameter.ty);
            let size = size_of(btf, &ty).ok().flatten().unwrap_or(8);
            let takes = (size.div_ceil(8) as usize).clamp(1, 2);
            parameters.push((parameter.name.to_owned(), ty, slots, takes));
            slots += takes;
        }
        Ok(Self {
            btf,
            name: name.to_owned(),
            moment,
            returned,
            parameters,
            slots,
            variadic: function.variadic,
            registers: false,
            measures: false,
        })
    }

    /// Returns the same place for a program attached by a kprobe.
    pub fn by_registers(self) -> Self {
        Self { registers: true, ..self }
    }

    /// Returns the same place for a program that measures the call's duration itself.
    pub fn measured(self) -> Self {
        Self { measures: true, ..self }
    }

    fn in_registers(&self, number: usize) -> Location {
        let types: Vec<Ty> = self.parameters.iter().map(|p| p.1.clone()).collect();
        let found = abi::parameters(self.btf, &self.returned, &types).into_iter().nth(number);
        let location = abi::or_missing(found.unwrap_or_else(|| Err("no such parameter".to_owned())), None);
        if self.moment == ProbePoint::Return { abi::after_return(location) } else { location }
    }

    /// Returns `Entry` or `Return`.
    pub fn probe_point(&self) -> ProbePoint {
        self.moment
    }

    /// Number of slots that the arguments take. The next slot is the return value.
    pub fn slots(&self) -> usize {
        self.slots
    }
}

fn slot(n: usize) -> Storage {
    Storage::Value(Rc::new(Sym::Arg(n as u8)))
}

fn slots(first: usize, count: usize) -> Location {
    match count {
        1 => Location::Whole(slot(first)),
        _ => {
            Location::Pieces((0..count).map(|i| Piece { bits: 64, offset: 0, at: slot(first + i) }).collect())
        }
    }
}

impl Types for Place<'_> {
    fn get(&self, ty: TypeRef) -> Result<Def, String> {
        Types::get(self.btf, ty)
    }

    fn find(&self, tag: Tag, name: &str) -> Result<Option<Ty>, String> {
        Types::find(self.btf, tag, name)
    }
}

impl Scope for Place<'_> {
    fn variable(&self, name: &str) -> Result<Option<Variable>, String> {
        let Some(number) = self.parameters.iter().position(|p| p.0 == name) else { return Ok(None) };
        let (name, ty, first, takes) = &self.parameters[number];
        let location = if self.registers {
            self.in_registers(number)
        } else if first + takes > 12 {
            let why = "beyond the twelfth argument, which a probe by BTF cannot see".to_owned();
            Location::Whole(Storage::Missing(why, None))
        } else if matches!(resolve(self.btf, ty), Ok(Def::Float(..))) {
            let why = "passed in a vector register, which a probe cannot read".to_owned();
            Location::Whole(Storage::Missing(why, None))
        } else {
            slots(*first, *takes)
        };
        Ok(Some(Variable { name: name.clone(), ty: ty.clone(), location, role: Role::Parameter }))
    }

    fn enumerator(&self, name: &str) -> Result<Option<(Ty, i64)>, String> {
        Ok(variant(self.btf, name))
    }

    fn names(&self) -> Vec<String> {
        self.parameters.iter().map(|p| p.0.clone()).collect()
    }

    fn returned(&self) -> Result<(Ty, Location), String> {
        if self.moment != ProbePoint::Return {
            return Err("`$retval` is known only where the function returns: use FUNC%return".to_owned());
        }
        if self.returned == Ty::Void {
            return Err(format!("`{}` returns nothing", self.name));
        }
        let location = match self.registers {
            true => abi::or_missing(abi::returned(self.btf, &self.returned), None),
            false => slots(self.slots, 1),
        };
        Ok((self.returned.clone(), location))
    }

    /// The context of fentry has no frame, so the frame is 0. Then only the task tells calls apart, and a recursive
    /// call is not told apart.
    fn frame(&self) -> Result<Rc<Sym>, String> {
        let stack = Rc::new(Sym::Reg(Reg::Rsp));
        Ok(match (self.registers, self.moment) {
            (false, _) => Rc::new(Sym::Const(0)),
            (true, ProbePoint::Return) => stack,
            (true, _) => stack.plus(8),
        })
    }

    fn at_entry(&self) -> bool {
        self.moment == ProbePoint::Entry
    }

    fn space(&self) -> Space {
        Space::Kernel
    }

    fn has_registers(&self) -> bool {
        self.registers
    }

    fn callers(&self) -> Result<Callers, String> {
        // The program itself, the trampoline that calls it, and the function that this is about.
        const BY_FENTRY: u8 = 3;
        Ok(match self.registers {
            true => Callers::of_registers(self.moment),
            false => Callers { skip: BY_FENTRY, direct: None, counted: true },
        })
    }

    fn measures(&self) -> bool {
        self.measures && self.moment == ProbePoint::Return
    }

    fn describe(&self) -> String {
        let moment = if self.moment == ProbePoint::Return { "return" } else { "entry" };
        format!("{}, at {moment}, by BTF", self.name)
    }
}
