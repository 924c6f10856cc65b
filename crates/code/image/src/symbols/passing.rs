// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of kernel code that comes and goes while a run is recorded: BPF programs, trampolines of tracers, modules.
//!
//! The input is the sideband's `ksymbol` records; the output, for an address at a time, is the function that was there. A name holds
//! from its record to the one by which it goes, or to that of other code at its addresses. kallsyms is one moment's list: where such
//! a record is in force, that counts; before the first one, kallsyms does. A module's function that kallsyms has too, because the module
//! stayed, is the function of kallsyms.

use std::collections::{HashMap, HashSet};

use super::kallsyms::Kernel;
use super::{Function, FunctionId, Located};
use crate::ranges::InTime;
use crate::resolve::Change;
use crate::sideband::{Ksymbol, Record};

/// Addresses that belong to a function, or to none, from a time on.
#[derive(Debug, Clone, Copy)]
struct Place {
    start: u64,
    end: u64,
    /// Entry of the function, which may be in another place.
    entry: u64,
    from: u64,
    /// `None` if the code is gone.
    func: Option<FunctionId>,
    /// True of a module's function.
    is_of_module: bool,
}

/// All names of such code.
#[derive(Debug, Default)]
pub(super) struct Passing {
    /// In order of time.
    places: Vec<Place>,
    index: InTime,
    /// Modules of which records tell when their functions come and go.
    modules: HashSet<String>,
}

/// The state of an address at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// No record is in force.
    Unrecorded,
    /// The code at the address is gone.
    Gone,
    /// A module's code was at the address, and is gone. A recorder that tells this of modules does not tell of BPF programs and
    /// trampolines: one may have come since.
    ModuleGone,
    /// A function was there.
    There(Located),
}

impl Passing {
    /// Collects the names of sideband records, and adds their functions to `functions`, which begin with those of `kernel`. Code that
    /// comes back to its addresses is the same function, and so is that of a module which comes back to others.
    pub fn new(records: &[Record], kernel: &Kernel, functions: &mut Vec<Function>) -> Self {
        let mut places: Vec<Place> = Vec::new();
        let mut known: HashMap<Key<'_>, FunctionId> = HashMap::new();
        let mut seen: HashSet<u64> = HashSet::new();
        let of_modules = OfModules::new(records, kernel, functions);
        for record in records {
            let Record::Ksymbol(symbol) = record else { continue };
            let &Ksymbol { t, start, end, gone, .. } = symbol;
            if start >= end {
                continue;
            }
            let entry = symbol.entry.unwrap_or(start);
            let is_of_module = symbol.entry.is_some();
            let func = *known.entry(of_modules.key(symbol)).or_insert_with(|| {
                if let Some(listed) = of_modules.listed(symbol) {
                    return listed;
                }
                let (name, module) = (symbol.name.clone(), symbol.module.clone());
                functions.push(Function { name, module, start: entry, kernel: true });
                FunctionId(functions.len() as u32 - 1)
            });
            // Code that goes, and of which no record says that it came, was there before.
            if seen.insert(start) && gone {
                places.push(Place { start, end, entry, from: 0, func: Some(func), is_of_module });
            }
            places.push(Place { start, end, entry, from: t, func: (!gone).then_some(func), is_of_module });
        }
        places.sort_by_key(|place| place.from);
        let index = InTime::new(places.iter().map(|place| (place.start, place.end, place.from)));
        Self { places, index, modules: of_modules.modules.iter().map(|&module| module.to_owned()).collect() }
    }

    /// The state of `va` at time `ns`.
    pub fn at(&self, va: u64, ns: u64) -> State {
        let Some(number) = self.index.newest(va, ns) else { return State::Unrecorded };
        let place = self.places[number];
        let Some(func) = place.func else {
            return if place.is_of_module { State::ModuleGone } else { State::Gone };
        };
        let (start, end) = self.index.around(va, ns, (place.start, place.end), Some(number));
        State::There(Located { func, start, end, entry: place.entry, known: true })
    }

    /// True if records tell when the functions of this module come and go.
    pub fn follows(&self, module: &str) -> bool {
        self.modules.contains(module)
    }

    /// The part around `va` of a range from elsewhere, in which no record is in force at time `ns`.
    pub fn outside(&self, va: u64, ns: u64, range: (u64, u64)) -> (u64, u64) {
        self.index.around(va, ns, range, None)
    }

    /// The function that comes next to `va`, for times that are slightly before its record. It holds for this address only.
    pub fn next(&self, va: u64, ns: u64) -> Option<Located> {
        let place = self.places[self.index.next(va, ns)?];
        Some(Located {
            func: place.func?,
            start: va,
            end: va.saturating_add(1),
            entry: place.entry,
            known: true,
        })
    }

    /// The functions that were ever at `va`, in order of time.
    pub fn ever(&self, va: u64) -> Vec<Located> {
        let mut numbers: Vec<usize> = self.index.at(va).collect();
        numbers.sort_unstable();
        let located = |number: usize| {
            let Place { start, end, entry, func, .. } = self.places[number];
            Some(Located { func: func?, start, end, entry, known: true })
        };
        numbers.into_iter().filter_map(located).collect()
    }

    /// The times at which functions change. What holds from the beginning is no change.
    pub fn changes(&self) -> impl Iterator<Item = Change> {
        let later = self.places.iter().filter(|place| place.from > 0);
        later.map(|place| Change { at_ns: place.from, asid: 0, start: place.start, end: place.end })
    }
}

/// The identity of a function: name, module, and where these do not tell it, entry and end.
type Key<'r> = (&'r str, &'r str, Option<(u64, Option<u64>)>);

/// Facts that all records of modules give together.
#[derive(Debug, Default)]
struct OfModules<'r> {
    modules: HashSet<&'r str>,
    /// Names and modules of static functions: one load has several under one name.
    several: HashSet<(&'r str, &'r str)>,
    /// Functions of kallsyms by the record's name, module and entry.
    listed: HashMap<(&'r str, &'r str, u64), FunctionId>,
    /// The same by name and module.
    listed_once: HashMap<(&'r str, &'r str), FunctionId>,
}

impl<'r> OfModules<'r> {
    fn new(records: &'r [Record], kernel: &Kernel, functions: &[Function]) -> Self {
        let mut all = Self::default();
        let mut aliases: Option<HashSet<(&str, u32)>> = None;
        // Entries by name, module and time: all functions of a module come at one time.
        let mut loads: HashMap<(&str, &str, u64), u64> = HashMap::new();
        for record in records {
            let Record::Ksymbol(symbol) = record else { continue };
            let Some(entry) = symbol.entry else { continue };
            let (name, module) = (symbol.name.as_str(), symbol.module.as_str());
            all.modules.insert(module);
            if *loads.entry((name, module, symbol.t)).or_insert(entry) != entry {
                all.several.insert((name, module));
            }
            let aliases = aliases.get_or_insert_with(|| kernel.table.aliases().collect());
            if let Some(listed) = listed((name, module, entry), kernel, aliases, functions) {
                all.listed.insert((name, module, entry), listed);
                all.listed_once.insert((name, module), listed);
            }
        }
        all
    }

    fn key(&self, symbol: &'r Ksymbol) -> Key<'r> {
        let (name, module) = (symbol.name.as_str(), symbol.module.as_str());
        match symbol.entry {
            Some(_) if !self.several.contains(&(name, module)) => (name, module, None),
            Some(entry) => (name, module, Some((entry, None))),
            // Of other code, the length tells what is not the same.
            None => (name, module, Some((symbol.start, Some(symbol.end)))),
        }
    }

    /// The function of kallsyms that a record means.
    fn listed(&self, symbol: &'r Ksymbol) -> Option<FunctionId> {
        let (name, module) = (symbol.name.as_str(), symbol.module.as_str());
        match self.several.contains(&(name, module)) {
            true => self.listed.get(&(name, module, symbol.entry?)),
            false => self.listed_once.get(&(name, module)).filter(|_| symbol.entry.is_some()),
        }
        .copied()
    }
}

/// The function of kallsyms with this entry, if it has this name, or another one beside it.
fn listed(
    (name, module, entry): (&str, &str, u64),
    kernel: &Kernel,
    aliases: &HashSet<(&str, u32)>,
    functions: &[Function],
) -> Option<FunctionId> {
    let number = kernel.table.find(entry)?.func;
    let function = functions.get(number as usize)?;
    let is_named = function.name == name || aliases.contains(&(name, number));
    (function.start == entry && function.module == module && is_named).then_some(FunctionId(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = 0xffff_ffff_c002_2000;

    fn record(t: u64, start: u64, len: u64, gone: bool, name: &str) -> Record {
        let (name, module) = (name.to_owned(), "[bpf]".to_owned());
        Record::Ksymbol(Ksymbol { t, cpu: 0, start, end: start + len, gone, name, module, entry: None })
    }

    fn name(passing: &Passing, functions: &[Function], va: u64, ns: u64) -> String {
        match passing.at(va, ns) {
            State::Unrecorded => "-".into(),
            State::Gone | State::ModuleGone => "gone".into(),
            State::There(there) => functions[there.func.0 as usize].name.clone(),
        }
    }

    #[test]
    fn two_programs_at_one_address_have_each_its_own_name() {
        let records = [
            record(10, FIRST, 100, false, "a"),
            record(20, FIRST, 100, true, "a"),
            record(30, FIRST, 80, false, "b"),
            record(40, FIRST, 80, true, "b"),
            record(50, FIRST, 100, false, "a"),
        ];
        let mut functions = Vec::new();
        let passing = Passing::new(&records, &Kernel::default(), &mut functions);
        assert_eq!(functions.len(), 2, "what comes back is the same function");
        let names: Vec<String> =
            [5, 15, 25, 35, 45, 55].map(|ns| name(&passing, &functions, FIRST + 9, ns)).into();
        assert_eq!(names, ["-", "a", "gone", "b", "gone", "a"]);
        assert_eq!(passing.next(FIRST + 9, 5).unwrap().func, FunctionId(0));
        let times: Vec<u64> = passing.changes().map(|change| change.at_ns).collect();
        assert_eq!(times, [10, 20, 30, 40, 50]);
        let ever: Vec<u32> = passing.ever(FIRST + 90).iter().map(|at| at.func.0).collect();
        assert_eq!(ever, [0, 0], "the second program is shorter");
    }

    #[test]
    fn a_program_that_only_goes_was_there_before() {
        let mut functions = Vec::new();
        let passing = Passing::new(&[record(20, FIRST, 100, true, "a")], &Kernel::default(), &mut functions);
        let names = [0, 19, 20].map(|ns| name(&passing, &functions, FIRST, ns));
        assert_eq!(names, ["a", "a", "gone"]);
        assert_eq!(passing.changes().count(), 1, "the beginning is no change");
    }

    #[test]
    fn a_function_ends_where_later_code_begins() {
        let records = [record(10, FIRST, 100, false, "long"), record(20, FIRST + 40, 10, false, "short")];
        let mut functions = Vec::new();
        let passing = Passing::new(&records, &Kernel::default(), &mut functions);
        let range = |va, ns| match passing.at(va, ns) {
            State::There(there) => (there.start - FIRST, there.end - FIRST, there.entry - FIRST),
            other => panic!("{other:?}"),
        };
        assert_eq!(range(FIRST + 5, 15), (0, 100, 0));
        assert_eq!(range(FIRST + 5, 20), (0, 40, 0));
        assert_eq!(range(FIRST + 45, 20), (40, 50, 40));
        assert_eq!(range(FIRST + 60, 20), (50, 100, 0));
        let outside = |ns| passing.outside(FIRST - 1, ns, (FIRST - 8, FIRST + 4096));
        assert_eq!((outside(9), outside(10)), ((FIRST - 8, FIRST + 4096), (FIRST - 8, FIRST)));
    }
}
