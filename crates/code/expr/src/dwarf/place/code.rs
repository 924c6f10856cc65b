// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resolves a place specification to places in the code: a function with its copies and inlined instances, or the
//! instructions of a line.

use super::Place;
use crate::dwarf::copies::Copy;
use crate::dwarf::pattern::{Pattern, demangled};
use crate::dwarf::symbol::Bare;
use crate::dwarf::{Debug, Error, Node};
use crate::error::suggestion;
use crate::ir::Space;
use crate::scope::ProbePoint;
use kprism_debuginfo::Symbol;

/// Limit of the places of one name or line.
const MOST_PLACES: usize = 1000;

/// All places that a specification stands for.
pub struct Places<'c, 'd> {
    /// Places with debug information.
    pub places: Vec<Place<'c, 'd>>,
    /// Places of which only the symbol is known.
    pub symbols: Vec<Bare<'c, 'd>>,
    /// Messages about omitted places and other facts that the user should know.
    pub notes: Vec<String>,
}

impl<'c, 'd> Places<'c, 'd> {
    /// Resolves `spec`: `FUNC`, `FUNC%return`, `FUNC+OFFSET`, `FILE:LINE`, `FILE:FUNC` or `0xADDRESS`.
    pub fn of(debug: &'c Debug<'d>, spec: &str, space: Space) -> Result<Self, Error> {
        Place::all(debug, spec, space)
    }

    fn one(debug: &'c Debug<'d>, pc: u64, moment: ProbePoint, space: Space) -> Result<Self, Error> {
        let (mut places, mut symbols) = (Vec::new(), Vec::new());
        match Place::at(debug, pc, moment, space) {
            Ok(place) => places.push(place),
            Err(error) => symbols.push(Bare::at(debug, pc, moment, space, error)?),
        }
        Ok(Self { places, symbols, notes: Vec::new() })
    }
}

impl<'c, 'd> Place<'c, 'd> {
    /// Resolves a specification of any form.
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
            return Places::one(debug, address, ProbePoint::Inside, space);
        }
        let (name, moment) = match spec.strip_suffix("%return") {
            Some(name) => (name, ProbePoint::Return),
            None => (spec, ProbePoint::Entry),
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
            return Places::one(debug, start.wrapping_add(offset), ProbePoint::Inside, space);
        }
        Self::of_function(debug, name, moment, space)
    }

    /// Resolves a function: its own code, copies that the compiler made, and inlined instances.
    fn of_function(
        debug: &'c Debug<'d>,
        name: &str,
        moment: ProbePoint,
        space: Space,
    ) -> Result<Places<'c, 'd>, Error> {
        let copies = debug.copies(name)?;
        if let Some(chosen) = debug.image.symbols(|n| n == name).iter().find(|s| s.chosen) {
            return Err(chosen_at_start(debug, chosen));
        }
        let (own, inlined): (Vec<Copy>, Vec<Copy>) = copies.all.iter().partition(|c| c.inlined.is_none());
        let mut notes = Vec::new();
        let wanted = match moment {
            ProbePoint::Return if own.is_empty() && !inlined.is_empty() => {
                let what = format!(
                    "`{name}` is inlined wherever it is called, and has no return there; name a line of it (FILE:LINE)"
                );
                return Err(Error::Nothing(what));
            }
            ProbePoint::Return => {
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
                    places.push(Self::found(debug, copy.pc, ProbePoint::Inside, space, Some(node))?);
                }
                (None, Ok(place)) => places.push(place),
                (None, Err(error)) => symbols.push(Bare::at(debug, copy.pc, moment, space, error)?),
            }
        }
        Ok(Places { places, symbols, notes })
    }

    /// Resolves a function of one source file, if several files have a function of that name.
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

    /// Resolves a line to instructions, as GDB does: in each function and each of its blocks, the first address at
    /// which the line begins, but not before the end of the prologue.
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
            match Self::at(debug, pc, ProbePoint::Inside, space) {
                Ok(place) => all.push((place, goes_on)),
                Err(_) => undescribed += 1,
            }
        }
        // A line is probed where it begins, not where it continues, so that it is counted once. Otherwise the places
        // are GDB's, including addresses at which the compiler has removed the line's instructions.
        let began: Vec<Node> = all.iter().filter(|(_, goes_on)| !goes_on).map(|(p, _)| p.function).collect();
        for (mut place, goes_on) in all {
            // A line whose code is scattered over a block, such as a loop's head, gets one place there.
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
                place = Self::at(debug, behind, ProbePoint::Inside, space)?;
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

    /// Returns the end of the prologue, if the place is inside the prologue and the variables' locations hold only
    /// after it.
    fn behind_prologue(&self) -> Result<Option<u64>, Error> {
        if self.frames.len() > 1 || !(self.entry..self.entry + 256).contains(&self.pc) {
            return Ok(None);
        }
        // Optimised code has location lists, which are valid at each instruction.
        if self.has_lists()? && !self.has_unsaved()? {
            return Ok(None);
        }
        let after = self.after_prologue()?;
        Ok((self.pc < after).then_some(after))
    }
}

/// Returns the address of the function of that name. An error if there is none or more than one, not counting inlined
/// instances.
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

/// Returns the error for an IFUNC. It names the implementations.
fn chosen_at_start(debug: &Debug<'_>, symbol: &Symbol) -> Error {
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

/// Returns the error for a name without code.
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
