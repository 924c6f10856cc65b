// SPDX-License-Identifier: MIT OR Apache-2.0
//! A function's entry or return in a kernel module, by the module's own debug information.
//!
//! Input: the module's file (`.ko`), which is not linked, and the addresses that its symbols have where it is loaded. Output: a
//! scope whose variables are where the running module has them. Parameters are in registers, or in slots for a recorder that
//! has no registers ([`crate::watch`]). Globals are where the symbols say.

use std::rc::Rc;

use super::{Debug, Error, Place, Places};
use crate::ast::Tag;
use crate::ctype::{Def, Ty, TypeRef, Types};
use crate::ir::Space;
use crate::scope::{Callers, Location, ProbePoint, Role, Scope, Storage, Sym, Variable};
use crate::x86::regs::ARGUMENTS;

/// A function's entry or return in a module.
pub struct InModule<'s, 'c, 'd> {
    place: Place<'c, 'd>,
    /// The module's file, for messages.
    file: String,
    symbol: String,
    /// The address of a symbol of the loaded module.
    address: &'s dyn Fn(&str) -> Option<u64>,
    by_slots: bool,
}

impl<'s, 'c, 'd> InModule<'s, 'c, 'd> {
    /// Finds `FUNC` or `FUNC%return`. `None`: the module has no function of this name, or the place is of another kind. `address` is
    /// that of a symbol where the module is loaded.
    ///
    /// # Errors
    /// The function has no code of its own, or several have the name.
    pub fn find(
        debug: &'c Debug<'d>,
        spec: &str,
        address: &'s dyn Fn(&str) -> Option<u64>,
    ) -> Result<Option<Self>, Error> {
        let name = spec.strip_suffix("%return").unwrap_or(spec);
        let cannot = |what: &str| Error::Nothing(format!("{}: `{spec}` {what}", debug.image.name()));
        let is_elsewhere = name.contains([':', '+']) || name.starts_with("0x");
        if is_elsewhere {
            return Ok(None);
        }
        let copies = debug.copies(name)?.all;
        if copies.is_empty() {
            return Ok(None);
        }
        // One that is inlined at the begin of its caller is at that one's entry.
        let is_own = |entry: u64| copies.iter().any(|copy| copy.inlined.is_none() && copy.pc == entry);
        let mut found = Places::of(debug, spec, Space::Kernel)?.places;
        found.retain(|place| place.moment != ProbePoint::Inside && is_own(place.entry));
        let place = match (found.pop(), found.pop()) {
            (Some(place), None) => place,
            (Some(_), Some(_)) => return Err(cannot("has several copies of its code in the module")),
            (None, _) => return Err(cannot("is inlined wherever it is called, and has no code of its own")),
        };
        let symbol = debug.image.around(place.entry).map_or(name, |symbol| symbol.name.as_str()).to_owned();
        let file = debug.image.name().to_owned();
        Ok(Some(Self { place, file, symbol, address, by_slots: false }))
    }

    /// Returns the same place for a recorder that has the registers of the first six arguments as slots 0 to 5, and the result as
    /// slot [`InModule::SLOTS`].
    #[must_use]
    pub fn by_slots(self) -> Self {
        Self { by_slots: true, ..self }
    }

    /// Number of the slots of arguments.
    pub const SLOTS: u8 = ARGUMENTS.len() as u8;

    /// The function's symbol, which may have an ending of the compiler's (`.isra.0`).
    pub fn symbol(&self) -> &str {
        &self.symbol
    }

    /// Returns `Entry` or `Return`.
    pub fn probe_point(&self) -> ProbePoint {
        self.place.moment
    }

    /// The location as the running module has it.
    fn loaded(&self, name: &str, role: Role, location: Location) -> Location {
        // What is in several places, or is a value made of addresses, has no address in the file: see below.
        if matches!(role, Role::Global | Role::Function)
            && let Location::Whole(Storage::Memory(sym)) = &location
        {
            return match (&**sym, (self.address)(name)) {
                (Sym::Address(_), Some(address)) => {
                    Location::Whole(Storage::Memory(Rc::new(Sym::Const(address))))
                }
                (Sym::Address(_), None) => missing("not among the symbols of the loaded module"),
                _ => missing("a variable of each CPU, whose copies in a module are not looked up"),
            };
        }
        match location {
            Location::Whole(at) => Location::Whole(self.storage(at)),
            Location::Pieces(mut pieces) => {
                for piece in &mut pieces {
                    piece.at = self.storage(piece.at.clone());
                }
                Location::Pieces(pieces)
            }
        }
    }

    fn storage(&self, storage: Storage) -> Storage {
        let unknown = |why: &str| Storage::Missing(why.to_owned(), None);
        match storage {
            Storage::Memory(sym) => match self.value(&sym) {
                Some(sym) => Storage::Memory(sym),
                None => {
                    unknown("in the function's frame or at an address of the file, which are not known here")
                }
            },
            Storage::Value(sym) => match self.value(&sym) {
                Some(sym) => Storage::Value(sym),
                None => unknown("in a register that has no argument, which is not known here"),
            },
            other => other,
        }
    }

    /// The expression over what is known: `None` if it needs more than that.
    fn value(&self, sym: &Rc<Sym>) -> Option<Rc<Sym>> {
        Some(match &**sym {
            // The file is not linked.
            Sym::Address(_) => return None,
            Sym::Reg(reg) | Sym::Entry(reg) if self.by_slots => {
                let slot = ARGUMENTS.iter().position(|argument| argument == reg)?;
                Rc::new(Sym::Arg(u8::try_from(slot).ok()?))
            }
            Sym::Deref(at, size) => Rc::new(Sym::Deref(self.value(at)?, *size)),
            Sym::Bin(op, a, b) => Rc::new(Sym::Bin(*op, self.value(a)?, self.value(b)?)),
            Sym::Ext(of, bits, signed) => Rc::new(Sym::Ext(self.value(of)?, *bits, *signed)),
            Sym::Cmp(cond, a, b) => Rc::new(Sym::Cmp(*cond, self.value(a)?, self.value(b)?)),
            Sym::Const(_) | Sym::Reg(_) | Sym::Entry(_) | Sym::Arg(_) | Sym::Context | Sym::Cpu => {
                sym.clone()
            }
        })
    }
}

fn missing(why: &str) -> Location {
    Location::Whole(Storage::Missing(why.to_owned(), None))
}

impl Types for InModule<'_, '_, '_> {
    fn get(&self, ty: TypeRef) -> Result<Def, String> {
        Types::get(&self.place, ty)
    }

    fn find(&self, tag: Tag, name: &str) -> Result<Option<Ty>, String> {
        Types::find(&self.place, tag, name)
    }

    fn is_bare(&self) -> bool {
        Types::is_bare(&self.place)
    }
}

impl Scope for InModule<'_, '_, '_> {
    fn variable(&self, name: &str) -> Result<Option<Variable>, String> {
        let found = self.place.variable(name)?;
        Ok(found.map(|found| {
            let location = self.loaded(name, found.role, found.location);
            Variable { location, ..found }
        }))
    }

    fn enumerator(&self, name: &str) -> Result<Option<(Ty, i64)>, String> {
        self.place.enumerator(name)
    }

    fn names(&self) -> Vec<String> {
        self.place.names()
    }

    fn returned(&self) -> Result<(Ty, Location), String> {
        let (ty, location) = self.place.returned()?;
        if !self.by_slots {
            return Ok((ty, location));
        }
        let is_one = matches!(&location, Location::Whole(Storage::Value(_)));
        let slot = || Location::Whole(Storage::Value(Rc::new(Sym::Arg(Self::SLOTS))));
        Ok((ty, if is_one { slot() } else { missing("returned in more than one register, or in memory") }))
    }

    fn frame(&self) -> Result<Rc<Sym>, String> {
        match self.by_slots {
            // The recorder has paired both ends, so `$duration` needs no frame to find the other.
            true => Ok(Rc::new(Sym::Const(0))),
            false => self.place.frame(),
        }
    }

    fn at_entry(&self) -> bool {
        self.place.at_entry()
    }

    fn space(&self) -> Space {
        Space::Kernel
    }

    fn has_registers(&self) -> bool {
        !self.by_slots
    }

    fn callers(&self) -> Result<Callers, String> {
        self.place.callers()
    }

    fn describe(&self) -> String {
        format!("{}, in {}", self.place.describe(), self.file)
    }
}
