// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locations of parameters, locals and globals at a place.

use std::rc::Rc;

use gimli::{AttributeValue, Expression};

use super::{Local, Place};
use crate::ctype::{Def, Ty, Types as _};
use crate::dwarf::find::Take;
use crate::dwarf::line::Line;
use crate::dwarf::location::Context;
use crate::dwarf::pattern::Pattern;
use crate::dwarf::{Error, Node, R, Unit};
use crate::ir::{BinOp, Space};
use crate::scope::{Location, ProbePoint, Role, Storage, Sym, Variable};
use crate::x86::abi;

/// The part of a function in which a location holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Valid {
    /// At each instruction.
    Everywhere,
    /// At each instruction: in the caller's frame, if the function has the usual calling convention.
    Called,
    /// Behind the prologue.
    Body,
}

impl<'d> Place<'_, 'd> {
    /// Returns the function's parameters in order: DIE, type, and whether the object is passed by address.
    fn parameters(&self) -> Result<Vec<(Node, Ty, bool)>, Error> {
        let mut found = Vec::new();
        let frame = self.frames.first().map_or(&[][..], |f| &f.locals);
        for local in frame.iter().filter(|l| l.role == Role::Parameter && l.depth == 0) {
            let ty = self.debug.type_at(local.node)?;
            // GCC describes an object passed by address only by its location: a dereferenced slot of the frame.
            let (unit, entry) = self.debug.entry(local.node)?;
            let place = entry.attr_value(gimli::DW_AT_location).and_then(|v| v.exprloc_value());
            let through = place.is_some_and(|place| {
                let mut last = None;
                let mut operations = place.operations(unit.encoding());
                while let Ok(Some(operation)) = operations.next() {
                    last = Some(operation);
                }
                self.is_in_frame(place) && matches!(last, Some(gimli::Operation::Deref { .. }))
            });
            found.push((local.node, ty, through));
        }
        Ok(found)
    }

    /// Returns a parameter's location by the calling convention at the function's entry.
    fn by_convention(&self, node: Node) -> Result<Option<Location>, Error> {
        let all = self.parameters()?;
        let Some(at) = all.iter().position(|(n, ..)| *n == node) else { return Ok(None) };
        let through = all[at].2;
        let nodes: Vec<Node> = all.iter().map(|(node, ..)| *node).collect();
        // An object passed by address takes a register like a pointer.
        let types: Vec<Ty> =
            all.into_iter().map(|(_, ty, through)| if through { Ty::Ptr(Rc::new(ty)) } else { ty }).collect();
        let returned = self.debug.type_at(self.function)?;
        let found = match self.is_rust() {
            // Rust leaves it open how other types are passed.
            true if !types[..=at].iter().chain([&returned]).all(|ty| abi::is_single(self.debug, ty)) => {
                Err("Rust leaves it open".to_owned())
            }
            _ => self.usual_parameters().and_then(|()| {
                let found = abi::parameters(self.debug, &returned, &types);
                self.agrees(&nodes, &found)?;
                found.into_iter().nth(at).unwrap_or_else(|| Err("too few parameters".to_owned()))
            }),
        };
        let help = match found.is_err() {
            true => self.behind_help()?,
            false => None,
        };
        let found = abi::or_missing(found, help);
        Ok(Some(if through { abi::behind(found) } else { found }))
    }

    /// Returns the reason why a function may not have the usual calling convention of its language.
    pub(super) fn usual_convention(&self) -> Result<(), String> {
        let (_, entry) = self.debug.entry(self.function).map_err(|e| e.to_string())?;
        if let Some(AttributeValue::CallingConvention(said)) =
            entry.attr_value(gimli::DW_AT_calling_convention)
            && !matches!(said, gimli::DW_CC_normal | gimli::DW_CC_program)
        {
            return Err(format!("the function has a calling convention of its own ({said})"));
        }
        if crate::dwarf::types::language(&self.unit) == Some(gimli::DW_LANG_Go) {
            return Err("Go has a calling convention of its own".to_owned());
        }
        Ok(())
    }

    /// Returns the reason why the function's parameters may not be those of the source.
    fn usual_parameters(&self) -> Result<(), String> {
        self.usual_convention()?;
        let name = self.debug.image.around(self.entry).map_or("", |symbol| &symbol.name);
        match name.contains(".isra.") || name.contains(".constprop.") {
            true => Err(format!("`{name}` is a copy with other parameters than in the source")),
            false => Ok(()),
        }
    }

    /// Compares the calling convention with the registers that the debug information names for other parameters at the
    /// function's entry. The error says that they differ.
    fn agrees(&self, nodes: &[Node], found: &[Result<Location, String>]) -> Result<(), String> {
        for (node, by_convention) in nodes.iter().zip(found) {
            let text = |e: Error| e.to_string();
            let (unit, entry) = self.debug.entry(*node).map_err(text)?;
            let said = match entry.attr_value(gimli::DW_AT_location) {
                Some(AttributeValue::Exprloc(place)) if self.is_in_frame(place) => None,
                Some(AttributeValue::Exprloc(place)) => Some(self.context_at_entry().location(place)),
                Some(list) => self.listed(&unit, list, self.entry).map_err(text)?,
                None => None,
            };
            let register = |location: &Location| match location {
                Location::Whole(Storage::Value(sym)) => match **sym {
                    Sym::Reg(reg) => Some(reg),
                    _ => None,
                },
                _ => None,
            };
            let (Some(said), Ok(by_convention)) = (said.as_ref().and_then(register), by_convention) else {
                continue;
            };
            if register(by_convention) != Some(said) {
                return Err(
                    "the function has a calling convention of its own, as other parameters show".to_owned()
                );
            }
        }
        Ok(())
    }

    /// Returns true for Rust, which has its own calling convention.
    pub(super) fn is_rust(&self) -> bool {
        crate::dwarf::types::is_rust(&self.unit)
    }

    fn locate(&self, node: Node, role: Role) -> Result<Location, Error> {
        let (unit, entry) = self.debug.entry(node)?;
        let attr = entry.attr_value(gimli::DW_AT_location);
        if let Some(AttributeValue::Exprloc(expression)) = attr
            && self.is_own_parameter(node)
            && self.contradicts(node, expression)?
        {
            let why =
                "passed by address, and its debug information takes the address for the object".to_owned();
            return Ok(Location::Whole(Storage::Missing(why, None)));
        }
        if role == Role::Parameter && self.moment != ProbePoint::Inside {
            let said = match &attr {
                None => None,
                Some(AttributeValue::Exprloc(expression)) => self.at_first(node, *expression)?,
                Some(list) => self.listed(&unit, *list, self.entry)?,
            };
            if let Some(location) = said {
                return Ok(if self.moment == ProbePoint::Return {
                    abi::after_return(location)
                } else {
                    location
                });
            }
            if self.moment == ProbePoint::Return && attr.is_some() {
                return Ok(gone(None));
            }
        }
        if let Some(AttributeValue::Exprloc(expression)) = attr
            && self.is_own_parameter(node)
            && self.validity(expression) == Valid::Body
            && self.is_in_prologue()?
        {
            if self.pc == self.entry
                && let Some(location) = self.by_convention(node)?
            {
                return Ok(location);
            }
            let why = "not stored yet: the place is in the function's prologue".to_owned();
            return Ok(Location::Whole(Storage::Missing(why, self.behind_help()?)));
        }
        if role == Role::Local && (self.moment != ProbePoint::Inside || self.begins) {
            let local_static =
                matches!(&attr, Some(AttributeValue::Exprloc(e)) if matches!(e.0.first(), Some(0x03 | 0xa1)));
            let listed = attr.as_ref().is_some_and(|a| !matches!(a, AttributeValue::Exprloc(_)));
            if self.moment == ProbePoint::Return && !local_static {
                let why = "gone when the function has returned".to_owned();
                return Ok(Location::Whole(Storage::Missing(why, None)));
            }
            if attr.is_some() && !local_static && !listed {
                let why = "not set yet where the function begins".to_owned();
                let help = "name a line behind the one that sets it (FILE:LINE)".to_owned();
                return Ok(Location::Whole(Storage::Missing(why, Some(help))));
            }
        }
        let dwarf = &self.debug.parts[self.file].dwarf;
        match attr {
            Some(AttributeValue::Exprloc(expression)) => Ok(self.context().location(expression)),
            Some(list) => {
                let Ok(Some(mut entries)) = dwarf.attr_locations(&unit, list) else {
                    return Ok(gone(None));
                };
                let mut later: Option<u64> = None;
                while let Some(found) = entries.next().map_err(self.debug.bad(".debug_loclists"))? {
                    if found.range.begin <= self.pc && self.pc < found.range.end {
                        let location = self.context().location(found.data);
                        return Ok(location);
                    }
                    let begin = found.range.begin;
                    let nearer = |l: u64| begin.abs_diff(self.pc) < l.abs_diff(self.pc);
                    if !found.data.0.is_empty() && later.is_none_or(nearer) {
                        later = Some(begin);
                    }
                }
                let skeleton = self.debug.unit_of(self.pc)?.unwrap_or(0);
                let line = match later {
                    Some(pc) => self.debug.line_of(&*self.debug.unit(0, skeleton)?, pc)?.map(|l| (l, pc)),
                    None => None,
                };
                Ok(gone(line))
            }
            None => Ok(self.constant(node)?.unwrap_or_else(|| gone(None))),
        }
    }

    /// Returns the location that a location list gives at an instruction.
    fn listed(
        &self,
        unit: &Unit<'d>,
        list: AttributeValue<R<'d>>,
        pc: u64,
    ) -> Result<Option<Location>, Error> {
        Ok(self.expression_at(unit, list, pc)?.map(|found| self.context_at_entry().location(found)))
    }

    /// Returns a parameter's location at the function's first instruction, by a location that holds in the whole function.
    fn at_first(&self, node: Node, expression: Expression<R<'d>>) -> Result<Option<Location>, Error> {
        let valid = self.validity(expression);
        if valid != Valid::Everywhere {
            self.wants_body.set(true);
        }
        match valid {
            // Also in copies of the function with a convention of their own.
            Valid::Everywhere | Valid::Called => Ok(Some(self.context_at_entry().location(expression))),
            Valid::Body => self.by_convention(node),
        }
    }

    /// Returns true if an object that is passed by address is said to be among the arguments on the stack itself. clang 14
    /// leaves out the dereference there.
    fn contradicts(&self, node: Node, expression: Expression<R<'d>>) -> Result<bool, Error> {
        if self.validity(expression) != Valid::Called {
            return Ok(false);
        }
        let mut operations = expression.operations(self.unit.encoding());
        let is_one = matches!((operations.next(), operations.next()), (Ok(Some(_)), Ok(None)));
        let def = crate::ctype::resolve(self.debug, &self.debug.type_at(node)?);
        Ok(is_one && matches!(def, Ok(Def::Record(record)) if record.by_reference))
    }

    /// Returns the part of the function in which a location without a list holds.
    fn validity(&self, expression: Expression<R<'d>>) -> Valid {
        match (self.is_in_frame(expression), self.context().frame_address_distance(expression)) {
            (false, _) => Valid::Everywhere,
            (true, Some(0..)) => Valid::Called,
            (true, _) => Valid::Body,
        }
    }

    /// Returns true for a parameter of the function itself, not of one inlined into it.
    fn is_own_parameter(&self, node: Node) -> bool {
        let own = self.frames.first().map_or(&[][..], |f| &f.locals);
        own.iter().any(|l| l.node == node && l.role == Role::Parameter)
    }

    /// Returns true before the instruction at which the function's body begins.
    fn is_in_prologue(&self) -> Result<bool, Error> {
        Ok(self.entry <= self.pc && self.pc < self.after_prologue()?)
    }

    /// Returns true if the function, whose frame base is a register, has a parameter in the frame that its prologue stores.
    pub(super) fn has_unsaved(&self) -> Result<bool, Error> {
        if self.context().base_register().is_none() {
            return Ok(false);
        }
        self.any_location(|role, at| match at {
            AttributeValue::Exprloc(place) => role == Role::Parameter && self.validity(*place) == Valid::Body,
            _ => false,
        })
    }

    /// Names the place behind the prologue, for messages.
    fn behind_help(&self) -> Result<Option<String>, Error> {
        let pc = self.after_prologue()?;
        let skeleton = self.debug.unit_of(self.entry)?.unwrap_or(0);
        let line = self.debug.line_of(&*self.debug.unit(0, skeleton)?, pc)?.filter(|_| pc > self.entry);
        Ok(line.map(|line| {
            let file = line.file.rsplit('/').next().unwrap_or(&line.file);
            let name = self.frames.first().map_or("", |f| &f.name);
            format!("name a place behind the prologue: {file}:{} or {name}+{:#x}", line.line, pc - self.entry)
        }))
    }

    /// Returns true if an expression is relative to the function's frame.
    pub(super) fn is_in_frame(&self, expression: Expression<R<'d>>) -> bool {
        let mut operations = expression.operations(self.unit.encoding());
        matches!(
            operations.next(),
            Ok(Some(
                gimli::Operation::FrameOffset { .. }
                    | gimli::Operation::CallFrameCFA
                    | gimli::Operation::RegisterOffset { register: gimli::Register(6 | 7), .. }
            ))
        )
    }

    fn context_at_entry(&self) -> Context<'_, 'd> {
        Context { pc: self.entry, at_entry: true, base: self.base_at(self.entry), ..self.context() }
    }

    /// Returns a variable's constant value, if it has one.
    fn constant(&self, node: Node) -> Result<Option<Location>, Error> {
        let value = self.debug.inherited(node, |_, _, e| e.attr_value(gimli::DW_AT_const_value))?;
        let spot = match value {
            Some(AttributeValue::Block(data)) => Storage::Bytes(data.slice().to_vec()),
            Some(AttributeValue::Sdata(n)) => Storage::Value(Rc::new(Sym::Const(n as u64))),
            Some(other) => Storage::Value(Rc::new(Sym::Const(other.udata_value().unwrap_or(0)))),
            None => return Ok(None),
        };
        Ok(Some(Location::Whole(spot)))
    }

    /// Finds a variable of the function itself, ignoring inlined functions.
    pub(crate) fn outermost(&self, name: &str) -> Result<Option<Variable>, Error> {
        let local = self.frames.first().and_then(|f| f.locals.iter().find(|l| l.name == name));
        local.map(|local| self.local_variable(local)).transpose()
    }

    pub(super) fn local_variable(&self, local: &Local) -> Result<Variable, Error> {
        // A declaration with `extern` in a function: the variable is defined elsewhere.
        let (_, entry) = self.debug.entry(local.node)?;
        if entry.has_attr(gimli::DW_AT_declaration)
            && let Some(global) = self.global(&local.name)?
        {
            return Ok(global);
        }
        let ty = self.debug.type_at(local.node)?;
        let location = self.per_cpu(self.locate(local.node, local.role)?);
        Ok(Variable { name: local.name.clone(), ty, location, role: local.role })
    }

    pub(super) fn scoped_enumerator(&self, name: &str) -> Result<Option<(Ty, i64)>, Error> {
        let found = self.debug.matching(&Pattern::new(name), &[gimli::DW_TAG_enumerator])?;
        match found.first() {
            Some(node) => self.debug.enumerator_at(*node),
            None => Ok(None),
        }
    }

    /// Finds a variable of a namespace or class: in the written scopes, or in the scopes nearest to the function.
    fn scoped(&self, name: &str) -> Result<Option<Variable>, Error> {
        let debug = self.debug;
        let tags = [gimli::DW_TAG_variable, gimli::DW_TAG_member];
        let named = debug.matching(&Pattern::new(name), &tags)?;
        let own = debug.scopes_of(self.function)?;
        let mut best: Vec<(usize, Node)> = Vec::new();
        for node in named {
            let (_, entry) = debug.entry(node)?;
            // Non-static members are found through an object.
            if entry.tag() == gimli::DW_TAG_member && !entry.has_attr(gimli::DW_AT_external) {
                continue;
            }
            let scopes = debug.scopes_of(node)?;
            let near = if own.starts_with(&scopes) { scopes.len() + 1 } else { 0 };
            best.push((near, node));
        }
        let Some(most) = best.iter().map(|(near, _)| *near).max() else { return Ok(None) };
        if most == 0 && !name.contains("::") && !best.is_empty() {
            // All matches are in scopes that do not enclose the function.
            return Ok(None);
        }
        best.retain(|(near, _)| *near == most);
        let named: Vec<Node> = best.into_iter().map(|(_, node)| node).collect();
        let mut places: Vec<(Node, Location)> = Vec::new();
        debug.instances(&named, |node, unit, entry| {
            let expression = entry.attr_value(gimli::DW_AT_location).and_then(|v| v.exprloc_value());
            if let Some(expression) = expression {
                let context = Context { unit, file: node.file, ..self.context() };
                let location = self.per_cpu(context.location(expression));
                if !places.iter().any(|(_, known)| *known == location) {
                    places.push((node, location));
                }
            }
        })?;
        let (node, location) = match places.len() {
            0 => match named.first() {
                Some(node) => {
                    let linked = debug.linkage_name(*node)?.unwrap_or_else(|| name.to_owned());
                    let symbol = debug.image.symbols(|n| n == linked).into_iter().next();
                    let location = match symbol {
                        Some(s) => Location::Whole(Storage::Memory(Rc::new(Sym::Address(s.address)))),
                        None => self.constant(*node)?.unwrap_or_else(elsewhere),
                    };
                    (*node, location)
                }
                None => return Ok(None),
            },
            1 => places.swap_remove(0),
            n => {
                let what = format!("`{name}` is {n} variables; name the scopes around the one that is meant");
                return Err(Error::Nothing(what));
            }
        };
        Ok(Some(Variable { name: name.to_owned(), ty: debug.type_at(node)?, location, role: Role::Global }))
    }

    /// Finds a global variable or a function.
    pub(super) fn global(&self, name: &str) -> Result<Option<Variable>, Error> {
        let debug = self.debug;
        if (self.is_bare() || name.contains("::"))
            && let Some(found) = self.scoped(name)?
        {
            return Ok(Some(found));
        }
        if name.contains("::") {
            return Ok(None);
        }
        let key = (self.file, self.index, name.to_owned());
        let known = debug.globals.borrow().get(&key).copied();
        let found = match known {
            Some(found) => found,
            None => {
                let found = debug.named(name, Some((self.file, self.index)), |e| match e.tag() {
                    gimli::DW_TAG_variable
                        if e.has_attr(gimli::DW_AT_location) || e.has_attr(gimli::DW_AT_const_value) =>
                    {
                        Take::This
                    }
                    gimli::DW_TAG_variable | gimli::DW_TAG_subprogram => Take::Perhaps,
                    _ => Take::No,
                })?;
                let found = found.map(|(node, _)| node);
                debug.globals.borrow_mut().insert(key, found);
                found
            }
        };
        let Some(node) = found else { return Ok(None) };
        let (unit, entry) = debug.entry(node)?;
        let function = entry.tag() == gimli::DW_TAG_subprogram;
        let own = entry.attr_value(gimli::DW_AT_location).and_then(|v| v.exprloc_value());
        let location = match own {
            Some(expression) => {
                let context = Context { unit: &unit, file: node.file, ..self.context() };
                self.per_cpu(context.location(expression))
            }
            // Defined in another unit, or a function: use the symbol's address.
            None => match debug.image.symbols(|n| n == name).first() {
                Some(symbol) => {
                    self.per_cpu(Location::Whole(Storage::Memory(Rc::new(Sym::Address(symbol.address)))))
                }
                None => self.constant(node)?.unwrap_or_else(elsewhere),
            },
        };
        let ty = if function { Ty::Ref(node.type_ref()) } else { debug.type_at(node)? };
        let role = if function { Role::Function } else { Role::Global };
        Ok(Some(Variable { name: name.to_owned(), ty, location, role }))
    }

    /// Redirects the address of a kernel's per-CPU variable to the copy of the current CPU
    /// (include/linux/percpu-defs.h).
    fn per_cpu(&self, location: Location) -> Location {
        let Location::Whole(Storage::Memory(sym)) = &location else { return location };
        let Sym::Address(link) = **sym else { return location };
        if self.space != Space::Kernel || !self.debug.image.is_per_cpu(link) {
            return location;
        }
        let Some(table) = self.debug.image.symbol("__per_cpu_offset") else {
            let why = "a per-CPU variable, and there is no __per_cpu_offset to find its copies by";
            return Location::Whole(Storage::Missing(why.to_owned(), None));
        };
        // Before Linux 6.15 per-CPU addresses start at 0 and are not relocated.
        let zero_based = self.debug.image.symbol("__per_cpu_start") == Some(0);
        let base = if zero_based { Sym::Const(link) } else { Sym::Address(link) };
        let index = Sym::Bin(BinOp::Mul, Rc::new(Sym::Cpu), Rc::new(Sym::Const(8)));
        let entry = Sym::Bin(BinOp::Add, Rc::new(Sym::Address(table)), Rc::new(index));
        let offset = Rc::new(Sym::Deref(Rc::new(entry), 8));
        Location::Whole(Storage::Memory(Rc::new(Sym::Bin(BinOp::Add, Rc::new(base), offset))))
    }
}

fn elsewhere() -> Location {
    let why = "declared here, but defined in another file";
    Location::Whole(Storage::Missing(why.to_owned(), None))
}

fn gone(elsewhere: Option<(Line, u64)>) -> Location {
    let help = elsewhere.map(|(l, pc)| {
        let file = l.file.rsplit('/').next().unwrap_or(&l.file);
        format!("available from line {} ({file}:{}, {pc:#x})", l.line, l.line)
    });
    Location::Whole(Storage::Missing("optimised out here".to_owned(), help))
}
