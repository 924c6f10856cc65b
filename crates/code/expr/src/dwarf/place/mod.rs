// SPDX-License-Identifier: MIT OR Apache-2.0
//! A place in the code, and the scope of names there.

use std::cell::Cell;
use std::rc::Rc;

use gimli::{AttributeValue, Expression};

use super::line::Line;
use super::location::Context;
use super::{Debug, Entry, Error, Node, R, Unit};
use crate::ast::Tag;
use crate::ctype::{Def, Ty, TypeRef, Types};
use crate::ir::Space;
use crate::regs::Reg;
use crate::scope::{Callers, Location, ProbePoint, Role, Scope, Storage, Sym, Variable};
use crate::x86::abi;

mod code;
mod variable;

pub use code::Places;

/// A variable of a frame.
struct Local {
    name: String,
    node: Node,
    role: Role,
    /// Nesting depth of its block.
    depth: usize,
}

/// A function, or a function inlined into it.
struct Frame {
    name: String,
    locals: Vec<Local>,
}

/// A place in the code that debug information describes.
pub struct Place<'c, 'd> {
    debug: &'c Debug<'d>,
    file: usize,
    index: usize,
    unit: Rc<Unit<'d>>,
    /// Address of the instruction.
    pub pc: u64,
    /// Address of the enclosing function's entry.
    pub entry: u64,
    /// Position in the function.
    pub moment: ProbePoint,
    /// True behind the prologue, in the place of the function's entry.
    begins: bool,
    /// True if a name was asked for that the debug information places behind the prologue only.
    wants_body: Cell<bool>,
    space: Space,
    /// The function, then the functions inlined into it, innermost last.
    frames: Vec<Frame>,
    function: Node,
    base: Option<AttributeValue<R<'d>>>,
    /// The innermost block or inlined function that contains the place.
    block: Node,
    /// If set, functions inlined into this inlined function are ignored.
    innermost: Option<Node>,
    /// Inlined functions that contain the place, outermost first.
    inlined: Vec<Node>,
    /// Source line.
    pub line: Option<Line>,
}

impl<'c, 'd> Place<'c, 'd> {
    /// Returns the place at an address.
    pub fn at(debug: &'c Debug<'d>, pc: u64, moment: ProbePoint, space: Space) -> Result<Self, Error> {
        Self::found(debug, pc, moment, space, None)
    }

    /// Returns the place at an address, in this inlined function and not in functions inlined into it.
    fn found(
        debug: &'c Debug<'d>,
        pc: u64,
        moment: ProbePoint,
        space: Space,
        innermost: Option<Node>,
    ) -> Result<Self, Error> {
        let none = || Error::Nothing(format!("{}: no debug information of {pc:#x}", debug.image.name()));
        let skeleton = debug.unit_of(pc)?.ok_or_else(none)?;
        let (file, index) = debug.full(skeleton);
        let unit = debug.unit(file, index)?;
        let mut place = Self {
            debug,
            file,
            index,
            unit: unit.clone(),
            pc,
            entry: pc,
            moment,
            begins: false,
            wants_body: Cell::new(false),
            space,
            frames: Vec::new(),
            function: Node { file, offset: 0 },
            block: Node { file, offset: 0 },
            innermost,
            inlined: Vec::new(),
            base: None,
            line: debug.line_of(&*debug.unit(0, skeleton)?, pc)?,
        };
        let bad = debug.bad(".debug_info");
        let function = place.function_around()?.ok_or_else(none)?;
        let mut tree = unit.entries_tree(Some(function)).map_err(&bad)?;
        let top = tree.root().map_err(&bad)?;
        place.enter_function(top.entry())?;
        place.walk(top, 0)?;
        Ok(place)
    }

    /// Returns the DIE of the function whose code contains the instruction.
    fn function_around(&self) -> Result<Option<gimli::UnitOffset>, Error> {
        let bad = self.debug.bad(".debug_info");
        let mut tree = self.unit.entries_tree(None).map_err(&bad)?;
        let mut tops = tree.root().map_err(&bad)?.children();
        while let Some(top) = tops.next().map_err(&bad)? {
            if top.entry().tag() == gimli::DW_TAG_subprogram && self.covers(top.entry(), self.pc)? {
                return Ok(Some(top.entry().offset()));
            }
        }
        // Nested in a namespace, a class or another function.
        let mut entries = self.unit.entries_raw(None).map_err(&bad)?;
        let mut entry = Entry::null();
        while !entries.is_empty() {
            if entries.read_entry(&mut entry).map_err(&bad)?
                && entry.tag() == gimli::DW_TAG_subprogram
                && self.covers(&entry, self.pc)?
            {
                return Ok(Some(entry.offset()));
            }
        }
        Ok(None)
    }

    /// Names of the functions that contain the place: the called one, then the inlined ones, innermost last.
    pub fn functions(&self) -> Vec<String> {
        self.frames.iter().map(|f| f.name.clone()).collect()
    }

    /// Returns the instruction after the function's prologue, where GDB's `break` stops.
    pub fn after_prologue(&self) -> Result<u64, Error> {
        let (unit, entry) = self.debug.entry(self.function)?;
        let mut high = self.entry;
        let mut ranges = self.debug.parts[self.file]
            .dwarf
            .die_ranges(&unit, &entry)
            .map_err(self.debug.bad(".debug_info"))?;
        while let Some(range) = ranges.next().map_err(self.debug.bad(".debug_rnglists"))? {
            if range.begin <= self.entry && self.entry < range.end {
                high = range.end;
            }
        }
        let skeleton = self.debug.unit_of(self.entry)?.unwrap_or(0);
        self.debug.after_prologue(&*self.debug.unit(0, skeleton)?, self.entry, high)
    }

    /// Returns the function's place behind its prologue, if the compiler did not optimise it, and a name was asked for whose
    /// location holds there only.
    fn body(&self) -> Result<Option<Self>, Error> {
        if self.moment != ProbePoint::Entry || !self.wants_body.get() {
            return Ok(None);
        }
        let pc = self.after_prologue()?;
        // Go's second line may be before the arguments are stored.
        let is_go = super::types::language(&self.unit) == Some(gimli::DW_LANG_Go);
        if pc <= self.entry || is_go || self.is_optimised(pc)? {
            return Ok(None);
        }
        let mut place = Self::found(self.debug, pc, ProbePoint::Inside, self.space, None)?;
        place.begins = true;
        // No inlined function has begun for those who name the function.
        place.frames.truncate(1);
        Ok(Some(place))
    }

    /// Returns true for optimised code: the second line of a function may be anywhere in it, and the parameters in the frame
    /// need not be stored there. `body` is the second line's address.
    fn is_optimised(&self, body: u64) -> Result<bool, Error> {
        let (_, entry) = self.debug.entry(self.function)?;
        let frame = match self.context().base_register() {
            Some(register) => {
                let distance = self.debug.cfa_distance(register, self.entry);
                distance.is_some() && self.debug.cfa_by(body) == distance.map(|distance| (register, distance))
            }
            // GCC has a frame pointer then.
            None => matches!(self.debug.cfa_by(body), Some((Reg::Rbp, _))),
        };
        // Other compilers than GCC describe the calls of a function only if they optimise.
        let has_calls = || {
            [gimli::DW_AT_call_all_calls, gimli::DW_AT_GNU_all_call_sites]
                .iter()
                .any(|at| entry.has_attr(*at))
        };
        let said = self.gcc_optimises().unwrap_or_else(has_calls);
        Ok(!frame || said || self.has_lists()? || self.has_register_parameter()?)
    }

    /// Returns true if the options that GCC records ask for optimised code, or are not recorded. `None`: another compiler.
    fn gcc_optimises(&self) -> Option<bool> {
        let root = self.unit.entry(self.unit.header.root_offset()).ok()?;
        let producer = root.attr_value(gimli::DW_AT_producer)?;
        let text = self.debug.parts[self.file].dwarf.attr_string(&self.unit, producer).ok()?;
        let text = text.to_string_lossy();
        let level = text.split(' ').rfind(|word| word.starts_with("-O"));
        let optimises = level.is_some_and(|word| word != "-O0") || !text.contains(" -");
        text.starts_with("GNU ").then_some(optimises)
    }

    /// Returns true if a parameter or variable of the function has a location list: optimised code.
    fn has_lists(&self) -> Result<bool, Error> {
        let is_list = |_: Role, at: &AttributeValue<R<'d>>| !matches!(at, AttributeValue::Exprloc(_));
        self.any_location(is_list)
    }

    /// Returns true if a parameter of the function is in a register throughout.
    fn has_register_parameter(&self) -> Result<bool, Error> {
        self.any_location(|role, at| match at {
            AttributeValue::Exprloc(place) => role == Role::Parameter && !self.is_in_frame(*place),
            _ => false,
        })
    }

    /// Returns true if the location of a parameter or variable of the function is such a one.
    fn any_location(&self, is_it: impl Fn(Role, &AttributeValue<R<'d>>) -> bool) -> Result<bool, Error> {
        for local in self.frames.first().map_or(&[][..], |f| &f.locals) {
            let (_, entry) = self.debug.entry(local.node)?;
            if entry.attr_value(gimli::DW_AT_location).is_some_and(|at| is_it(local.role, &at)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn node(&self, entry: &Entry<'d>) -> Node {
        let start = self.debug.parts[self.file].units[self.index].start;
        Node { file: self.file, offset: start + entry.offset().0 }
    }

    fn covers(&self, entry: &Entry<'d>, pc: u64) -> Result<bool, Error> {
        let dwarf = &self.debug.parts[self.file].dwarf;
        let mut ranges = dwarf.die_ranges(&self.unit, entry).map_err(self.debug.bad(".debug_info"))?;
        while let Some(range) = ranges.next().map_err(self.debug.bad(".debug_rnglists"))? {
            if range.begin <= pc && pc < range.end {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn enter_function(&mut self, entry: &Entry<'d>) -> Result<(), Error> {
        self.function = self.node(entry);
        self.block = self.function;
        let dwarf = &self.debug.parts[self.file].dwarf;
        if let Some(low) = entry.attr_value(gimli::DW_AT_low_pc)
            && let Ok(Some(low)) = dwarf.attr_address(&self.unit, low)
        {
            self.entry = low;
        }
        let ranges = dwarf.die_ranges(&self.unit, entry).ok().and_then(|mut r| r.next().ok().flatten());
        if !entry.has_attr(gimli::DW_AT_low_pc)
            && let Some(first) = ranges
        {
            self.entry = first.begin;
        }
        self.base = entry.attr_value(gimli::DW_AT_frame_base);
        self.frames.push(Frame { name: self.name_of(self.function)?, locals: Vec::new() });
        Ok(())
    }

    fn name_of(&self, node: Node) -> Result<String, Error> {
        Ok(self.debug.name(node)?.unwrap_or_else(|| "?".to_owned()))
    }

    fn walk(&mut self, node: gimli::EntriesTreeNode<'_, '_, R<'d>>, depth: usize) -> Result<(), Error> {
        if depth > 200 {
            return Err(Error::Nothing("blocks are nested too deep".to_owned()));
        }
        let bad = |e| Error::Dwarf(String::new(), ".debug_info", e);
        let mut children = node.children();
        while let Some(child) = children.next().map_err(bad)? {
            let entry = child.entry();
            match entry.tag() {
                tag @ (gimli::DW_TAG_formal_parameter | gimli::DW_TAG_variable) => {
                    let role = if tag == gimli::DW_TAG_variable { Role::Local } else { Role::Parameter };
                    let node = self.node(entry);
                    if let (Some(name), Some(frame)) = (self.debug.name(node)?, self.frames.last_mut()) {
                        frame.locals.push(Local { name, node, role, depth });
                    }
                }
                gimli::DW_TAG_lexical_block if self.covers(entry, self.pc)? => {
                    self.block = self.node(entry);
                    self.walk(child, depth + 1)?;
                }
                // At a function's entry and after its return no inlined function is active.
                gimli::DW_TAG_inlined_subroutine
                    if self.moment == ProbePoint::Inside
                        && !self.is_innermost()
                        && self.covers(entry, self.pc)? =>
                {
                    self.block = self.node(entry);
                    self.inlined.push(self.block);
                    let name = self.name_of(self.node(entry))?;
                    self.frames.push(Frame { name, locals: Vec::new() });
                    self.walk(child, depth + 1)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns true if the requested inlined function has been reached.
    fn is_innermost(&self) -> bool {
        self.innermost.is_some_and(|wanted| self.inlined.last() == Some(&wanted))
    }

    fn context(&self) -> Context<'_, 'd> {
        Context {
            debug: self.debug,
            file: self.file,
            unit: &self.unit,
            pc: self.pc,
            entry: self.entry,
            at_entry: self.pc == self.entry,
            base: self.base_at(self.pc),
        }
    }

    /// Returns the function's frame base at an instruction. DWARF 2 lists it for each.
    fn base_at(&self, pc: u64) -> Option<Expression<R<'d>>> {
        match self.base? {
            AttributeValue::Exprloc(base) => Some(base),
            list => self.expression_at(&self.unit, list, pc).ok().flatten(),
        }
    }

    /// Returns the expression that a location list gives at an instruction.
    fn expression_at(
        &self,
        unit: &Unit<'d>,
        list: AttributeValue<R<'d>>,
        pc: u64,
    ) -> Result<Option<Expression<R<'d>>>, Error> {
        let Ok(Some(mut entries)) = self.debug.parts[self.file].dwarf.attr_locations(unit, list) else {
            return Ok(None);
        };
        while let Some(found) = entries.next().map_err(self.debug.bad(".debug_loclists"))? {
            if (found.range.begin..found.range.end).contains(&pc) {
                return Ok(Some(found.data));
            }
        }
        Ok(None)
    }

    fn local(&self, name: &str) -> Option<&Local> {
        let own = self.frames.last()?;
        own.locals.iter().filter(|l| l.name == name).max_by_key(|l| l.depth)
    }

    fn callers_local(&self, name: &str) -> Option<&Local> {
        let outer = self.frames.iter().rev().skip(1);
        outer.flat_map(|f| f.locals.iter().rev()).find(|l| l.name == name)
    }

    /// Returns true if the type or one of its bases has the member.
    fn has_member(&self, ty: &Ty, name: &str, depth: usize) -> Result<bool, String> {
        if depth > 16 {
            return Ok(false);
        }
        let Def::Record(record) = crate::ctype::resolve(self.debug, ty)? else { return Ok(false) };
        for member in &record.members {
            match &member.name {
                Some(own) if own == name => return Ok(true),
                None if self.has_member(&member.ty, name, depth + 1)? => return Ok(true),
                _ => {}
            }
        }
        Ok(false)
    }
}

impl Types for Place<'_, '_> {
    fn get(&self, ty: TypeRef) -> Result<Def, String> {
        self.debug.get(ty)
    }

    fn find(&self, tag: Tag, name: &str) -> Result<Option<Ty>, String> {
        self.debug.find_from(Some((self.file, self.index)), tag, name)
    }

    fn is_bare(&self) -> bool {
        super::types::is_bare(&self.unit)
    }
}

impl Scope for Place<'_, '_> {
    fn variable(&self, name: &str) -> Result<Option<Variable>, String> {
        let text = |e: Error| e.to_string();
        if let Some(local) = self.local(name) {
            return self.local_variable(local).map(Some).map_err(text);
        }
        // A line of an inlined function may use variables of the enclosing function, unless the unit has a global of
        // that name. Globals of other units do not count: names such as `flags` exist in most of them.
        match self.callers_local(name) {
            Some(local) if !self.debug.unit_has(self.file, self.index, name).map_err(text)? => {
                self.local_variable(local).map(Some).map_err(text)
            }
            _ => self.global(name).map_err(text),
        }
    }

    fn object_of(&self, name: &str) -> Result<Option<String>, String> {
        let this = self.frames.last().and_then(|f| f.locals.iter().find(|l| l.name == "this"));
        let Some(this) = this.filter(|_| self.local(name).is_none() && !name.contains("::")) else {
            return Ok(None);
        };
        let Ok(Def::Plain(Ty::Ptr(object))) = self
            .debug
            .type_at(this.node)
            .map_err(|e| e.to_string())
            .and_then(|ty| crate::ctype::resolve(self.debug, &ty))
        else {
            return Ok(None);
        };
        Ok(self.has_member(&object, name, 0)?.then(|| "this".to_owned()))
    }

    fn enumerator(&self, name: &str) -> Result<Option<(Ty, i64)>, String> {
        if name.contains("::") {
            return self.scoped_enumerator(name).map_err(|e| e.to_string());
        }
        self.debug.variant(Some((self.file, self.index)), name).map_err(|e| e.to_string())
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for local in self.frames.iter().rev().flat_map(|f| &f.locals) {
            if !names.contains(&local.name) {
                names.push(local.name.clone());
            }
        }
        names
    }

    fn returned(&self) -> Result<(Ty, Location), String> {
        if self.moment != ProbePoint::Return {
            return Err("`$retval` is known only where the function returns: use FUNC%return".to_owned());
        }
        let ty = self.debug.type_at(self.function).map_err(|e| e.to_string())?;
        let location = match self.is_rust() && !abi::is_single(self.debug, &ty) {
            true => Err("Rust leaves it open".to_owned()),
            false => self.usual_convention().and_then(|()| abi::returned(self.debug, &ty)),
        };
        let location = location.unwrap_or_else(|why| {
            Location::Whole(Storage::Missing(format!("returned in a way that is not known: {why}"), None))
        });
        Ok((ty, location))
    }

    fn frame(&self) -> Result<Rc<Sym>, String> {
        self.debug.frame_at(self.moment, self.pc)
    }

    fn at_entry(&self) -> bool {
        self.moment == ProbePoint::Entry || self.begins
    }

    fn in_body(&self) -> Result<Option<(u64, Box<dyn Scope + '_>)>, String> {
        let place = self.body().map_err(|e| e.to_string())?;
        Ok(place.map(|place| (place.pc, Box::new(place) as Box<dyn Scope + '_>)))
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
        let names: Vec<&str> = self.frames.iter().rev().map(|f| f.name.as_str()).collect();
        let mut text = names.join(", inlined in ");
        match (self.moment, &self.line) {
            _ if self.begins => text.push_str(", at entry"),
            (ProbePoint::Return, _) => text.push_str(", at return"),
            (ProbePoint::Entry, _) => text.push_str(", at entry"),
            (_, Some(line)) => {
                let file = line.file.rsplit('/').next().unwrap_or(&line.file);
                text.push_str(&format!(" ({file}:{})", line.line));
            }
            _ => text.push_str(&format!(" ({:#x})", self.pc)),
        }
        text
    }
}
