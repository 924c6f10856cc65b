// SPDX-License-Identifier: MIT OR Apache-2.0
//! A place in the code, and what can be named there.

use std::rc::Rc;

use gimli::{AttributeValue, Expression};

use crate::abi;
use crate::ast::Tag;
use crate::ctype::{Def, Ty, TypeRef, Types};
use crate::error::suggestion;
use crate::ir::{BinOp, Space};
use crate::regs::Reg;
use crate::scope::{Location, Moment, Role, Scope, Spot, Sym, Variable};

use super::find::Take;
use super::line::Line;
use super::location::Context;
use super::{Debug, Entry, Error, Node, R, Unit};

/// Variables of a frame.
struct Local {
    name: String,
    node: Node,
    role: Role,
    /// How deep in blocks.
    depth: usize,
}

/// A function, or one that is inlined in it.
struct Frame {
    name: String,
    locals: Vec<Local>,
}

/// A place.
pub struct Place<'c, 'd> {
    debug: &'c Debug<'d>,
    file: usize,
    index: usize,
    unit: Rc<Unit<'d>>,
    /// The instruction.
    pub pc: u64,
    /// Where the enclosing function begins.
    pub entry: u64,
    /// When.
    pub moment: Moment,
    space: Space,
    /// From the function to the innermost inlined one.
    frames: Vec<Frame>,
    function: Node,
    base: Option<Expression<R<'d>>>,
    /// Source line.
    pub line: Option<Line>,
    /// Other addresses of the same line.
    pub others: Vec<u64>,
}

impl<'c, 'd> Place<'c, 'd> {
    /// Finds a place: `FUNC`, `FUNC%return`, `FUNC+OFFSET`, `FILE:LINE` or `0xADDRESS`.
    pub fn find(debug: &'c Debug<'d>, spec: &str, space: Space) -> Result<Self, Error> {
        if let Some((file, line)) = spec.rsplit_once(':')
            && let Ok(line) = line.parse()
        {
            let (_, addresses) = debug.addresses_of(file, line)?;
            let first = addresses.first().copied().unwrap_or(0);
            let mut place = Self::at(debug, first, Moment::Inside, space)?;
            place.others = addresses.into_iter().skip(1).collect();
            return Ok(place);
        }
        if let Some(address) = spec.strip_prefix("0x") {
            let address = u64::from_str_radix(address, 16)
                .map_err(|e| Error::Nothing(format!("`{spec}` is no address: {e}")))?;
            return Self::at(debug, address, Moment::Inside, space);
        }
        if let Some(name) = spec.strip_suffix("%return") {
            return Self::at(debug, function(debug, name)?, Moment::Return, space);
        }
        if let Some((name, offset)) = spec.split_once('+') {
            let number = match offset.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => offset.parse(),
            };
            let offset = number.map_err(|e| Error::Nothing(format!("`{offset}` is no offset: {e}")))?;
            let start = function(debug, name)?;
            return Self::at(debug, start.wrapping_add(offset), Moment::Inside, space);
        }
        Self::at(debug, function(debug, spec)?, Moment::Entry, space)
    }

    /// The place at an address.
    pub fn at(debug: &'c Debug<'d>, pc: u64, moment: Moment, space: Space) -> Result<Self, Error> {
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
            space,
            frames: Vec::new(),
            function: Node { file, offset: 0 },
            base: None,
            line: debug.line_of(&*debug.unit(0, skeleton)?, pc)?,
            others: Vec::new(),
        };
        let bad = debug.bad(".debug_info");
        let mut tree = unit.entries_tree(None).map_err(&bad)?;
        let mut tops = tree.root().map_err(&bad)?.children();
        while let Some(top) = tops.next().map_err(&bad)? {
            if top.entry().tag() == gimli::DW_TAG_subprogram && place.covers(top.entry(), pc)? {
                place.enter_function(top.entry())?;
                place.walk(top, 0)?;
                return Ok(place);
            }
        }
        Err(none())
    }

    /// The functions that it is in: the one that is called, then those that are inlined.
    pub fn functions(&self) -> Vec<String> {
        self.frames.iter().map(|f| f.name.clone()).collect()
    }

    /// The instruction after the function's prologue, where GDB's `break` stops.
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
        self.base = entry.attr_value(gimli::DW_AT_frame_base).and_then(|v| v.exprloc_value());
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
                gimli::DW_TAG_lexical_block if self.covers(entry, self.pc)? => self.walk(child, depth + 1)?,
                // Before a function's first instruction, and after its last, nothing inlined runs.
                gimli::DW_TAG_inlined_subroutine
                    if self.moment == Moment::Inside && self.covers(entry, self.pc)? =>
                {
                    let name = self.name_of(self.node(entry))?;
                    self.frames.push(Frame { name, locals: Vec::new() });
                    self.walk(child, depth + 1)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn context(&self) -> Context<'_, 'd> {
        Context {
            debug: self.debug,
            file: self.file,
            unit: &self.unit,
            pc: self.pc,
            at_entry: self.pc == self.entry,
            base: self.base,
        }
    }

    /// Types of the function's parameters, in order.
    fn parameters(&self) -> Result<Vec<(Node, Ty)>, Error> {
        let mut found = Vec::new();
        let frame = self.frames.first().map_or(&[][..], |f| &f.locals);
        for local in frame.iter().filter(|l| l.role == Role::Parameter && l.depth == 0) {
            found.push((local.node, self.debug.type_at(local.node)?));
        }
        Ok(found)
    }

    /// Where the calling convention puts a parameter: at entry, and by a paired probe at return.
    fn by_convention(&self, node: Node) -> Result<Option<Location>, Error> {
        let all = self.parameters()?;
        let Some(at) = all.iter().position(|(n, _)| *n == node) else { return Ok(None) };
        let types: Vec<Ty> = all.into_iter().map(|(_, ty)| ty).collect();
        let returned = self.debug.type_at(self.function)?;
        let found = abi::parameters(self.debug, &returned, &types);
        Ok(found.into_iter().nth(at))
    }

    fn locate(&self, node: Node, role: Role) -> Result<Location, Error> {
        let (unit, entry) = self.debug.entry(node)?;
        let attr = entry.attr_value(gimli::DW_AT_location);
        if role == Role::Parameter && self.moment != Moment::Inside {
            let listed = attr.as_ref().is_some_and(|a| !matches!(a, AttributeValue::Exprloc(_)));
            // Optimised code's lists are true at the first instruction; others only after the prologue.
            if !(listed && self.moment == Moment::Entry)
                && let Some(location) = self.by_convention(node)?
            {
                return Ok(if self.moment == Moment::Return {
                    abi::after_return(location)
                } else {
                    location
                });
            }
        }
        if role == Role::Local && self.moment == Moment::Return {
            let why = "gone when the function has returned".to_owned();
            let local_static =
                matches!(&attr, Some(AttributeValue::Exprloc(e)) if e.0.first() == Some(&0x03));
            if !local_static {
                return Ok(Location::Whole(Spot::Missing(why, None)));
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

    /// The value that a variable always has.
    fn constant(&self, node: Node) -> Result<Option<Location>, Error> {
        let value = self.debug.inherited(node, |_, _, e| e.attr_value(gimli::DW_AT_const_value))?;
        let spot = match value {
            Some(AttributeValue::Block(data)) => Spot::Bytes(data.slice().to_vec()),
            Some(AttributeValue::Sdata(n)) => Spot::Value(Rc::new(Sym::Const(n as u64))),
            Some(other) => Spot::Value(Rc::new(Sym::Const(other.udata_value().unwrap_or(0)))),
            None => return Ok(None),
        };
        Ok(Some(Location::Whole(spot)))
    }

    fn local(&self, name: &str) -> Option<&Local> {
        let own = self.frames.last()?;
        own.locals.iter().filter(|l| l.name == name).max_by_key(|l| l.depth)
    }

    fn callers_local(&self, name: &str) -> Option<&Local> {
        let outer = self.frames.iter().rev().skip(1);
        outer.flat_map(|f| f.locals.iter().rev()).find(|l| l.name == name)
    }

    /// A variable of the function itself, whatever is inlined here.
    pub(crate) fn outermost(&self, name: &str) -> Result<Option<Variable>, Error> {
        let local = self.frames.first().and_then(|f| f.locals.iter().find(|l| l.name == name));
        local.map(|local| self.local_variable(local)).transpose()
    }

    fn local_variable(&self, local: &Local) -> Result<Variable, Error> {
        // `extern` within a function: the variable is elsewhere.
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

    /// A variable or function outside of functions.
    fn global(&self, name: &str) -> Result<Option<Variable>, Error> {
        let debug = self.debug;
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
            // Defined elsewhere, or a function: the symbol table knows where.
            None => match debug.image.symbols(|n| n == name).first() {
                Some(symbol) => {
                    self.per_cpu(Location::Whole(Spot::Memory(Rc::new(Sym::Address(symbol.address)))))
                }
                None => self.constant(node)?.unwrap_or_else(|| gone(None)),
            },
        };
        let ty = if function { Ty::Ref(node.type_ref()) } else { debug.type_at(node)? };
        let role = if function { Role::Function } else { Role::Global };
        Ok(Some(Variable { name: name.to_owned(), ty, location, role }))
    }

    /// What the kernel has a copy of for each CPU is where the current CPU's copy is, not where it is linked
    /// (include/linux/percpu-defs.h).
    fn per_cpu(&self, location: Location) -> Location {
        let Location::Whole(Spot::Memory(sym)) = &location else { return location };
        let Sym::Address(link) = **sym else { return location };
        if self.space != Space::Kernel || !self.debug.image.is_per_cpu(link) {
            return location;
        }
        let Some(table) = self.debug.image.symbol("__per_cpu_offset") else {
            let why = "a per-CPU variable, and there is no __per_cpu_offset to find its copies by";
            return Location::Whole(Spot::Missing(why.to_owned(), None));
        };
        // Before Linux 6.15 the copies are counted from 0, and no loading moves that.
        let zero_based = self.debug.image.symbol("__per_cpu_start") == Some(0);
        let base = if zero_based { Sym::Const(link) } else { Sym::Address(link) };
        let index = Sym::Bin(BinOp::Mul, Rc::new(Sym::Cpu), Rc::new(Sym::Const(8)));
        let entry = Sym::Bin(BinOp::Add, Rc::new(Sym::Address(table)), Rc::new(index));
        let offset = Rc::new(Sym::Deref(Rc::new(entry), 8));
        Location::Whole(Spot::Memory(Rc::new(Sym::Bin(BinOp::Add, Rc::new(base), offset))))
    }
}

fn gone(elsewhere: Option<(Line, u64)>) -> Location {
    let help = elsewhere.map(|(l, pc)| {
        let file = l.file.rsplit('/').next().unwrap_or(&l.file);
        format!("available from line {} ({file}:{}, {pc:#x})", l.line, l.line)
    });
    Location::Whole(Spot::Missing("optimised out here".to_owned(), help))
}

/// The start of the function of that name.
fn function(debug: &Debug<'_>, name: &str) -> Result<u64, Error> {
    let found: Vec<_> = debug.image.symbols(|n| n == name).into_iter().filter(|s| s.code).collect();
    let mut addresses: Vec<u64> = found.iter().map(|s| s.address).collect();
    addresses.dedup();
    match addresses[..] {
        [one] => return Ok(one),
        [_, _, ..] => {
            let all: Vec<String> = addresses.iter().map(|a| format!("{a:#x}")).collect();
            let what =
                format!("`{name}` is several functions; choose one by its address: {}", all.join(", "));
            return Err(Error::Nothing(what));
        }
        [] => {}
    }
    // Without a symbol: a stripped table, or a function that exists only where it is inlined.
    let node = debug.named(name, None, |e| match e.tag() {
        gimli::DW_TAG_subprogram if e.has_attr(gimli::DW_AT_low_pc) => Take::This,
        gimli::DW_TAG_subprogram => Take::Perhaps,
        _ => Take::No,
    })?;
    if let Some((node, _)) = node {
        let (unit, entry) = debug.entry(node)?;
        let low = entry.attr_value(gimli::DW_AT_low_pc);
        if let Some(low) = low
            && let Ok(Some(low)) = debug.parts[node.file].dwarf.attr_address(&unit, low)
        {
            return Ok(low);
        }
        let clones = debug.image.symbols(|n| n.strip_prefix(name).is_some_and(|r| r.starts_with('.')));
        let clone = clones.iter().find(|s| s.code && !s.name.contains(".cold"));
        if let Some(clone) = clone {
            return Ok(clone.address);
        }
        let what = format!("`{name}` is inlined wherever it is called; name a line of it (FILE:LINE)");
        return Err(Error::Nothing(what));
    }
    let names = debug.image.symbols(|n| n.starts_with(&name[..name.len().min(2)]));
    let near = suggestion(name, names.iter().filter(|s| s.code).map(|s| s.name.as_str()));
    let near = near.map_or_else(String::new, |n| format!("; {n}"));
    Err(Error::Nothing(format!("{}: no function `{name}`{near}", debug.image.name())))
}

impl Types for Place<'_, '_> {
    fn get(&self, ty: TypeRef) -> Result<Def, String> {
        self.debug.get(ty)
    }

    fn find(&self, tag: Tag, name: &str) -> Result<Option<Ty>, String> {
        self.debug.find_from(Some((self.file, self.index)), tag, name)
    }
}

impl Scope for Place<'_, '_> {
    fn variable(&self, name: &str) -> Result<Option<Variable>, String> {
        let text = |e: Error| e.to_string();
        if let Some(local) = self.local(name) {
            return self.local_variable(local).map(Some).map_err(text);
        }
        // An inlined function's line may use what the function around it has, unless the unit has a global of the
        // name. Other units' are not asked: `flags` and the like are in most of them.
        match self.callers_local(name) {
            Some(local) if !self.debug.unit_has(self.file, self.index, name).map_err(text)? => {
                self.local_variable(local).map(Some).map_err(text)
            }
            _ => self.global(name).map_err(text),
        }
    }

    fn enumerator(&self, name: &str) -> Result<Option<(Ty, i64)>, String> {
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
        if self.moment != Moment::Return {
            return Err("`$retval` is known only where the function returns: use FUNC%return".to_owned());
        }
        let ty = self.debug.type_at(self.function).map_err(|e| e.to_string())?;
        Ok((ty.clone(), abi::returned(self.debug, &ty)))
    }

    fn frame(&self) -> Result<Rc<Sym>, String> {
        match self.moment {
            Moment::Entry => Ok(Rc::new(Sym::Reg(Reg::Rsp)).plus(8)),
            // The return has taken its address off the stack.
            Moment::Return => Ok(Rc::new(Sym::Reg(Reg::Rsp))),
            Moment::Inside => self.debug.cfa(self.pc),
        }
    }

    fn space(&self) -> Space {
        self.space
    }

    fn describe(&self) -> String {
        let names: Vec<&str> = self.frames.iter().rev().map(|f| f.name.as_str()).collect();
        let mut text = names.join(", inlined in ");
        match (self.moment, &self.line) {
            (Moment::Return, _) => text.push_str(", at return"),
            (Moment::Entry, _) => text.push_str(", at entry"),
            (_, Some(line)) => {
                let file = line.file.rsplit('/').next().unwrap_or(&line.file);
                text.push_str(&format!(" ({file}:{})", line.line));
            }
            _ => text.push_str(&format!(" ({:#x})", self.pc)),
        }
        text
    }
}
