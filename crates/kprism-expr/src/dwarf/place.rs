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

use super::copies::Copy;
use super::find::Take;
use super::line::Line;
use super::location::Context;
use super::pattern::{Pattern, demangled};
use super::symbol::Bare;
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
    /// The innermost block, or inlined function, around it.
    block: Node,
    /// An inlined function in which nothing more is looked for.
    innermost: Option<Node>,
    /// Inlined functions around it, from the outermost on.
    inlined: Vec<Node>,
    /// Source line.
    pub line: Option<Line>,
}

/// Most places that one name or line stands for.
const MOST_PLACES: usize = 1000;

/// What a name or a line is in the code.
pub struct Places<'c, 'd> {
    /// Those that are described.
    pub places: Vec<Place<'c, 'd>>,
    /// Those of which only the symbol is known.
    pub symbols: Vec<Bare<'c, 'd>>,
    /// What is not among them, and what else should be said.
    pub notes: Vec<String>,
}

impl<'c, 'd> Places<'c, 'd> {
    /// What `spec` stands for: `FUNC`, `FUNC%return`, `FUNC+OFFSET`, `FILE:LINE` or `0xADDRESS`.
    pub fn of(debug: &'c Debug<'d>, spec: &str, space: Space) -> Result<Self, Error> {
        Place::all(debug, spec, space)
    }

    fn one(debug: &'c Debug<'d>, pc: u64, moment: Moment, space: Space) -> Result<Self, Error> {
        let (mut places, mut symbols) = (Vec::new(), Vec::new());
        match Place::at(debug, pc, moment, space) {
            Ok(place) => places.push(place),
            Err(error) => symbols.push(Bare::at(debug, pc, moment, space, error)?),
        }
        Ok(Self { places, symbols, notes: Vec::new() })
    }
}

impl<'c, 'd> Place<'c, 'd> {
    /// Finds a place, wherever it is in the code.
    fn all(debug: &'c Debug<'d>, spec: &str, space: Space) -> Result<Places<'c, 'd>, Error> {
        if let Some((file, line)) = spec.rsplit_once(':')
            && !file.ends_with(':')
            && let Ok(line) = line.parse()
        {
            return Self::of_line(debug, file, line, space);
        }
        if let Some((file, function)) = spec.split_once(':')
            && file.contains('.')
            && !file.contains('(')
            && !function.starts_with(':')
        {
            return Self::of_file(debug, file, function, space);
        }
        if let Some(address) = spec.strip_prefix("0x") {
            let address = u64::from_str_radix(address, 16)
                .map_err(|e| Error::Nothing(format!("`{spec}` is no address: {e}")))?;
            return Places::one(debug, address, Moment::Inside, space);
        }
        let (name, moment) = match spec.strip_suffix("%return") {
            Some(name) => (name, Moment::Return),
            None => (spec, Moment::Entry),
        };
        if let Some((name, offset)) = spec.rsplit_once('+')
            && offset.starts_with(|c: char| c.is_ascii_digit())
        {
            let number = match offset.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => offset.parse(),
            };
            let offset = number.map_err(|e| Error::Nothing(format!("`{offset}` is no offset: {e}")))?;
            let start = one_function(debug, name)?;
            return Places::one(debug, start.wrapping_add(offset), Moment::Inside, space);
        }
        Self::of_function(debug, name, moment, space)
    }

    /// A function: its own code, that of copies that the compiler made, and wherever it is inlined.
    fn of_function(
        debug: &'c Debug<'d>,
        name: &str,
        moment: Moment,
        space: Space,
    ) -> Result<Places<'c, 'd>, Error> {
        let copies = debug.copies(name)?;
        if let Some(chosen) = debug.image.symbols(|n| n == name).iter().find(|s| s.chosen) {
            return Err(chosen_at_start(debug, chosen));
        }
        let (own, inlined): (Vec<Copy>, Vec<Copy>) = copies.all.iter().partition(|c| c.inlined.is_none());
        let mut notes = Vec::new();
        let wanted = match moment {
            Moment::Return if own.is_empty() && !inlined.is_empty() => {
                let what = format!(
                    "`{name}` is inlined wherever it is called, and has no return there; name a line of it (FILE:LINE)"
                );
                return Err(Error::Nothing(what));
            }
            Moment::Return => {
                if !inlined.is_empty() {
                    notes.push(format!(
                        "`{name}` is inlined in {} places too, which have no return: calls there are not seen",
                        inlined.len()
                    ));
                }
                own
            }
            _ => copies.all,
        };
        if wanted.is_empty() {
            return Err(unknown(debug, name, &copies.named));
        }
        if wanted.len() > MOST_PLACES {
            let what = format!(
                "`{name}` begins at {} places in the code, more than the {MOST_PLACES} that are probed; choose one by its address",
                wanted.len()
            );
            return Err(Error::Nothing(what));
        }
        let (mut places, mut symbols) = (Vec::new(), Vec::new());
        for copy in wanted {
            match (copy.inlined, Self::at(debug, copy.pc, moment, space)) {
                (Some(node), _) => {
                    places.push(Self::found(debug, copy.pc, Moment::Inside, space, Some(node))?);
                }
                (None, Ok(place)) => places.push(place),
                (None, Err(error)) => symbols.push(Bare::at(debug, copy.pc, moment, space, error)?),
            }
        }
        Ok(Places { places, symbols, notes })
    }

    /// A function of one file, where several have one of that name.
    fn of_file(
        debug: &'c Debug<'d>,
        file: &str,
        function: &str,
        space: Space,
    ) -> Result<Places<'c, 'd>, Error> {
        let mut found = Self::all(debug, function, space)?;
        let is_in = |place: &Self| {
            let path = place.line.as_ref().map_or("", |line| &line.file);
            path == file || path.strip_suffix(file).is_some_and(|rest| rest.ends_with('/'))
        };
        found.places.retain(is_in);
        found.symbols.clear();
        if found.places.is_empty() {
            let what = format!("{}: `{function}` is in other files than {file}", debug.image.name());
            return Err(Error::Nothing(what));
        }
        Ok(found)
    }

    /// A line's instructions, as GDB takes them: in each function and each block of it the first place where the line
    /// begins, and not before a function has made its frame.
    fn of_line(debug: &'c Debug<'d>, file: &str, line: u64, space: Space) -> Result<Places<'c, 'd>, Error> {
        let (found, addresses) = debug.addresses_of(file, line)?;
        let mut notes = Vec::new();
        if found != line {
            notes.push(format!("{file} has no code at line {line}: line {found} is probed"));
        }
        let mut places: Vec<Self> = Vec::new();
        let mut undescribed = 0;
        let mut all: Vec<(Self, bool)> = Vec::new();
        for (pc, goes_on) in addresses {
            match Self::at(debug, pc, Moment::Inside, space) {
                Ok(place) => all.push((place, goes_on)),
                Err(_) => undescribed += 1,
            }
        }
        // It is counted where it began. Elsewhere GDB's places are ours, also those without an instruction of the line:
        // there a compiler has worked out what it does.
        let began: Vec<Node> = all.iter().filter(|(_, goes_on)| !goes_on).map(|(p, _)| p.function).collect();
        for (mut place, goes_on) in all {
            // A line scattered over its block, as a loop's head is, is met once.
            if places.iter().any(|p| p.block == place.block && p.function == place.function) {
                continue;
            }
            if goes_on && began.contains(&place.function) {
                notes.push(format!(
                    "{file}:{found} only goes on at {:#x}, which is no place of it here, but one to GDB",
                    place.pc
                ));
                continue;
            }
            if let Some(behind) = place.behind_prologue()? {
                place = Self::at(debug, behind, Moment::Inside, space)?;
            }
            if !places.iter().any(|p| p.pc == place.pc) {
                places.push(place);
            }
        }
        if places.is_empty() {
            return Err(Error::Nothing(format!(
                "{}: no function has line {found} of {file}",
                debug.image.name()
            )));
        }
        if undescribed > 0 {
            notes.push(format!("{undescribed} more places of the line are in no function that is described"));
        }
        if places.len() > MOST_PLACES {
            let what = format!(
                "{file}:{line} is at {} places in the code, more than the {MOST_PLACES} that are probed; choose one by its address",
                places.len()
            );
            return Err(Error::Nothing(what));
        }
        Ok(Places { places, symbols: Vec::new(), notes })
    }

    /// Where the function has made its frame, if the place is before that and variables are described as they are then.
    fn behind_prologue(&self) -> Result<Option<u64>, Error> {
        if self.frames.len() > 1 || !(self.entry..self.entry + 256).contains(&self.pc) {
            return Ok(None);
        }
        // Optimised code says of each instruction where its variables are.
        let locals = self.frames.first().map_or(&[][..], |f| &f.locals);
        for local in locals {
            let (_, entry) = self.debug.entry(local.node)?;
            let place = entry.attr_value(gimli::DW_AT_location);
            if place.is_some_and(|place| !matches!(place, AttributeValue::Exprloc(_))) {
                return Ok(None);
            }
        }
        let after = self.after_prologue()?;
        Ok((self.pc < after).then_some(after))
    }

    /// The place at an address.
    pub fn at(debug: &'c Debug<'d>, pc: u64, moment: Moment, space: Space) -> Result<Self, Error> {
        Self::found(debug, pc, moment, space, None)
    }

    /// The place at an address; in a function that is inlined there, but in nothing that is inlined in that.
    fn found(
        debug: &'c Debug<'d>,
        pc: u64,
        moment: Moment,
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

    /// The die of the function whose code has the instruction.
    fn function_around(&self) -> Result<Option<gimli::UnitOffset>, Error> {
        let bad = self.debug.bad(".debug_info");
        let mut tree = self.unit.entries_tree(None).map_err(&bad)?;
        let mut tops = tree.root().map_err(&bad)?.children();
        while let Some(top) = tops.next().map_err(&bad)? {
            if top.entry().tag() == gimli::DW_TAG_subprogram && self.covers(top.entry(), self.pc)? {
                return Ok(Some(top.entry().offset()));
            }
        }
        // In a namespace, a class or another function.
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
                gimli::DW_TAG_lexical_block if self.covers(entry, self.pc)? => {
                    self.block = self.node(entry);
                    self.walk(child, depth + 1)?;
                }
                // Before a function's first instruction, and after its last, nothing inlined runs.
                gimli::DW_TAG_inlined_subroutine
                    if self.moment == Moment::Inside
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

    /// Whether the inlined function that was asked for has been reached.
    fn is_innermost(&self) -> bool {
        self.innermost.is_some_and(|wanted| self.inlined.last() == Some(&wanted))
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
    fn parameters(&self) -> Result<Vec<(Node, Ty, bool)>, Error> {
        let mut found = Vec::new();
        let frame = self.frames.first().map_or(&[][..], |f| &f.locals);
        for local in frame.iter().filter(|l| l.role == Role::Parameter && l.depth == 0) {
            let ty = self.debug.type_at(local.node)?;
            // GCC tells of an object that is passed by its address only so: where it is, is in the frame.
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

    /// Where the calling convention puts a parameter: at entry, and by a paired probe at return.
    fn by_convention(&self, node: Node) -> Result<Option<Location>, Error> {
        let all = self.parameters()?;
        let Some(at) = all.iter().position(|(n, ..)| *n == node) else { return Ok(None) };
        let through = all[at].2;
        // One that is passed by its address is a pointer to those who count registers.
        let types: Vec<Ty> =
            all.into_iter().map(|(_, ty, through)| if through { Ty::Ptr(Rc::new(ty)) } else { ty }).collect();
        let returned = self.debug.type_at(self.function)?;
        if self.is_rust() && !types.iter().chain([&returned]).all(|ty| abi::is_single(self.debug, ty)) {
            let why = "passed in a way that Rust leaves open".to_owned();
            let help = "name the function's first line (FILE:LINE), where it is in memory".to_owned();
            return Ok(Some(Location::Whole(Spot::Missing(why, Some(help)))));
        }
        // Of what is only declared, its size and its copying are unknown, and so are the registers of what follows.
        let is_declared = |ty: &Ty| matches!(crate::ctype::resolve(self.debug, ty), Ok(Def::Record(record)) if record.declared);
        if types[..=at].iter().chain([&returned]).any(is_declared) {
            let why = "passed beside an object of a type that is only declared here".to_owned();
            let help = "name the function's first line (FILE:LINE), where it is in memory".to_owned();
            return Ok(Some(Location::Whole(Spot::Missing(why, Some(help)))));
        }
        let found = abi::parameters(self.debug, &returned, &types);
        let found = found.into_iter().nth(at);
        Ok(if through { found.map(abi::behind) } else { found })
    }

    /// Whether its conventions of calling are its own.
    fn is_rust(&self) -> bool {
        super::types::is_rust(&self.unit)
    }

    fn locate(&self, node: Node, role: Role) -> Result<Location, Error> {
        let (unit, entry) = self.debug.entry(node)?;
        let attr = entry.attr_value(gimli::DW_AT_location);
        if role == Role::Parameter && self.moment != Moment::Inside {
            // Where it is in the frame is true only after the prologue. All else that is said holds at the first
            // instruction, also of copies that are called in their own way.
            let in_frame = matches!(&attr, Some(AttributeValue::Exprloc(e)) if self.is_in_frame(*e));
            let said = match (&attr, in_frame) {
                (None, _) => None,
                (Some(_), true) => self.by_convention(node)?,
                (Some(AttributeValue::Exprloc(expression)), false) => {
                    Some(self.context_at_entry().location(*expression))
                }
                (Some(list), false) => self.listed(&unit, *list, self.entry)?,
            };
            if let Some(location) = said {
                return Ok(if self.moment == Moment::Return {
                    abi::after_return(location)
                } else {
                    location
                });
            }
            if self.moment == Moment::Return && attr.is_some() {
                return Ok(gone(None));
            }
        }
        if role == Role::Local && self.moment != Moment::Inside {
            let local_static =
                matches!(&attr, Some(AttributeValue::Exprloc(e)) if matches!(e.0.first(), Some(0x03 | 0xa1)));
            let listed = attr.as_ref().is_some_and(|a| !matches!(a, AttributeValue::Exprloc(_)));
            if self.moment == Moment::Return && !local_static {
                let why = "gone when the function has returned".to_owned();
                return Ok(Location::Whole(Spot::Missing(why, None)));
            }
            if attr.is_some() && !local_static && !listed {
                let why = "not set yet where the function begins".to_owned();
                let help = "name a line behind the one that sets it (FILE:LINE)".to_owned();
                return Ok(Location::Whole(Spot::Missing(why, Some(help))));
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

    /// Where a list says that it is at an instruction.
    fn listed(
        &self,
        unit: &Unit<'d>,
        list: AttributeValue<R<'d>>,
        pc: u64,
    ) -> Result<Option<Location>, Error> {
        let dwarf = &self.debug.parts[self.file].dwarf;
        let Ok(Some(mut entries)) = dwarf.attr_locations(unit, list) else { return Ok(None) };
        while let Some(found) = entries.next().map_err(self.debug.bad(".debug_loclists"))? {
            if found.range.begin <= pc && pc < found.range.end {
                return Ok(Some(self.context_at_entry().location(found.data)));
            }
        }
        Ok(None)
    }

    /// Whether an expression counts from the function's frame.
    fn is_in_frame(&self, expression: Expression<R<'d>>) -> bool {
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
        Context { pc: self.entry, at_entry: true, ..self.context() }
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

    /// Whether objects of the type, or of its bases, have the member.
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

    fn scoped_enumerator(&self, name: &str) -> Result<Option<(Ty, i64)>, Error> {
        let found = self.debug.matching(&Pattern::new(name), &[gimli::DW_TAG_enumerator])?;
        match found.first() {
            Some(node) => self.debug.enumerator_at(*node),
            None => Ok(None),
        }
    }

    /// A variable of a namespace or a class: that of the scopes that were written, or of the nearest around the function.
    fn scoped(&self, name: &str) -> Result<Option<Variable>, Error> {
        let debug = self.debug;
        let tags = [gimli::DW_TAG_variable, gimli::DW_TAG_member];
        let named = debug.matching(&Pattern::new(name), &tags)?;
        let own = debug.scopes_of(self.function)?;
        let mut best: Vec<(usize, Node)> = Vec::new();
        for node in named {
            let (_, entry) = debug.entry(node)?;
            // Members that each object has are found through an object.
            if entry.tag() == gimli::DW_TAG_member && !entry.has_attr(gimli::DW_AT_external) {
                continue;
            }
            let scopes = debug.scopes_of(node)?;
            let near = if own.starts_with(&scopes) { scopes.len() + 1 } else { 0 };
            best.push((near, node));
        }
        let Some(most) = best.iter().map(|(near, _)| *near).max() else { return Ok(None) };
        if most == 0 && !name.contains("::") && !best.is_empty() {
            // In scopes that do not reach here.
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
                        Some(s) => Location::Whole(Spot::Memory(Rc::new(Sym::Address(s.address)))),
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

    /// A variable or function outside of functions.
    fn global(&self, name: &str) -> Result<Option<Variable>, Error> {
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
            // Defined elsewhere, or a function: the symbol table knows where.
            None => match debug.image.symbols(|n| n == name).first() {
                Some(symbol) => {
                    self.per_cpu(Location::Whole(Spot::Memory(Rc::new(Sym::Address(symbol.address)))))
                }
                None => self.constant(node)?.unwrap_or_else(elsewhere),
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

fn elsewhere() -> Location {
    let why = "declared here, but defined in another file";
    Location::Whole(Spot::Missing(why.to_owned(), None))
}

fn gone(elsewhere: Option<(Line, u64)>) -> Location {
    let help = elsewhere.map(|(l, pc)| {
        let file = l.file.rsplit('/').next().unwrap_or(&l.file);
        format!("available from line {} ({file}:{}, {pc:#x})", l.line, l.line)
    });
    Location::Whole(Spot::Missing("optimised out here".to_owned(), help))
}

/// The start of the one function of that name that is code of its own.
fn one_function(debug: &Debug<'_>, name: &str) -> Result<u64, Error> {
    let copies = debug.copies(name)?;
    let own: Vec<u64> = copies.all.iter().filter(|c| c.inlined.is_none()).map(|c| c.pc).collect();
    match own[..] {
        [one] => Ok(one),
        [] if !copies.all.is_empty() => {
            let what = format!("`{name}` is inlined wherever it is called; name a line of it (FILE:LINE)");
            Err(Error::Nothing(what))
        }
        [] => Err(unknown(debug, name, &copies.named)),
        _ => {
            let all: Vec<String> = own.iter().map(|a| format!("{a:#x}")).collect();
            let what =
                format!("`{name}` is several functions; choose one by its address: {}", all.join(", "));
            Err(Error::Nothing(what))
        }
    }
}

/// What is probed instead of a function that the program chooses when it starts.
fn chosen_at_start(debug: &Debug<'_>, symbol: &super::file::Symbol) -> Error {
    let (name, file) = (&symbol.name, debug.image.name());
    let start = format!("__{}_", name.trim_start_matches('_'));
    let all = debug.image.symbols(|n| n.starts_with(&start));
    let mut known: Vec<&str> = all.iter().filter(|s| s.code && !s.chosen).map(|s| s.name.as_str()).collect();
    known.sort_unstable();
    known.dedup();
    known.truncate(12);
    let names = if known.is_empty() { String::new() } else { format!(": {}", known.join(", ")) };
    Error::Nothing(format!(
        "{file}: `{name}` is one of several functions, which the program chooses from when it starts (IFUNC); name that one{names}"
    ))
}

/// Why no code was found for a name.
fn unknown(debug: &Debug<'_>, name: &str, named: &[Node]) -> Error {
    let file = debug.image.name();
    if !named.is_empty() {
        return Error::Nothing(format!(
            "{file}: `{name}` is declared, but has no code here: it is in another file, or nothing calls it"
        ));
    }
    let pattern = Pattern::new(name);
    let base = pattern.base();
    let start: String = base.chars().take(2).collect();
    let names = debug.image.symbols(|n| n.contains(&start));
    let known: Vec<String> = names
        .iter()
        .filter(|s| s.code)
        .filter(|s| s.name.starts_with(&start) || s.name.starts_with('_'))
        .map(|s| demangled(&s.name).map_or_else(|| s.name.clone(), |d| without_params(&d)))
        .collect();
    let near = suggestion(name, known.iter().map(String::as_str));
    let near = near.map_or_else(String::new, |n| format!("; {n}"));
    Error::Nothing(format!("{file}: no function `{name}`{near}"))
}

fn without_params(name: &str) -> String {
    name.split('(').next().unwrap_or(name).to_owned()
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
        // An inlined function's line may use what the function around it has, unless the unit has a global of the
        // name. Other units' are not asked: `flags` and the like are in most of them.
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
        if self.moment != Moment::Return {
            return Err("`$retval` is known only where the function returns: use FUNC%return".to_owned());
        }
        let ty = self.debug.type_at(self.function).map_err(|e| e.to_string())?;
        if self.is_rust() && !abi::is_single(self.debug, &ty) {
            let why = "returned in a way that Rust leaves open".to_owned();
            return Ok((ty, Location::Whole(Spot::Missing(why, None))));
        }
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
