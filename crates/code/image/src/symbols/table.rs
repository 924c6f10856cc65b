// SPDX-License-Identifier: MIT OR Apache-2.0
//! A sorted table of function ranges without overlaps, searched by bisection.
//!
//! The input is symbols as a symbol table lists them: aliases at one address, labels inside functions, functions
//! without a size, and functions within functions. The output is [`Range`]s, each of which belongs to exactly one
//! function. Several ranges may belong to one function: its `.cold` part, or its rest after a function that lies within
//! it.

use std::borrow::Cow;
use std::collections::HashMap;

use super::names::{self, Binding};

/// One symbol of a symbol table.
#[derive(Debug, Clone)]
pub struct Symbol<'a> {
    /// First address.
    pub start: u64,
    /// Size in bytes. 0 means unknown; the function then extends to the next symbol.
    pub size: u64,
    /// Name as the symbol table has it.
    pub name: Cow<'a, str>,
    /// Binding of the symbol.
    pub binding: Binding,
    /// True for code. Others (data, end marks) only bound their neighbours.
    pub code: bool,
}

/// A range of addresses, `start..end`, that belongs to a function of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Index into [`Table::functions`].
    pub func: u32,
}

/// A function: the name to show and the entry address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Demangled name.
    pub name: String,
    /// Address of the first instruction, in the table's addresses.
    pub start: u64,
}

/// The function ranges of one file or of the kernel.
#[derive(Debug, Clone, Default)]
pub struct Table {
    functions: Vec<Function>,
    ranges: Vec<Range>,
    /// Other names of functions: the name as in the symbol table, and the function's number.
    aliases: Vec<(String, u32)>,
}

impl Table {
    /// Builds the table. `limit` is the end of a last symbol without a size.
    #[must_use]
    pub fn build(mut symbols: Vec<Symbol<'_>>, limit: u64) -> Self {
        // The best name comes first within an address, so that `dedup` keeps it. It gets the largest size.
        symbols.sort_by(|a, b| {
            a.start.cmp(&b.start).then(b.code.cmp(&a.code)).then_with(|| {
                names::preference(&b.name, b.binding).cmp(&names::preference(&a.name, a.binding))
            })
        });
        let mut others = Vec::new();
        symbols.dedup_by(|later, kept| {
            let same = later.start == kept.start;
            if same && later.code == kept.code {
                kept.size = kept.size.max(later.size);
                if kept.code && later.name != kept.name {
                    others.push((later.start, std::mem::take(&mut later.name)));
                }
            }
            same
        });
        let mut table = Table::default();
        table.sweep(&symbols, limit);
        table.tell_overloads_apart(&symbols);
        for (start, name) in others {
            if let Ok(func) = table.functions.binary_search_by_key(&start, |f| f.start) {
                table.aliases.push((name.into_owned(), func as u32));
            }
        }
        table.fold_parts();
        table
    }

    /// Turns sorted symbols into ranges. An inner function interrupts an outer one, which continues after it. A label
    /// without a size inside a sized function is part of that function.
    fn sweep(&mut self, symbols: &[Symbol<'_>], limit: u64) {
        // Functions that have not ended yet, outermost first: end, and number (`None` for data).
        let mut open: Vec<(u64, Option<u32>)> = Vec::new();
        let mut at = 0u64;
        for (i, symbol) in symbols.iter().enumerate() {
            at = self.close(&mut open, at, symbol.start);
            if symbol.size == 0 && !open.is_empty() {
                continue;
            }
            let next = symbols.get(i + 1).map_or(limit.max(symbol.start), |s| s.start);
            let end = if symbol.size == 0 { next } else { symbol.start.saturating_add(symbol.size) };
            let func = symbol.code.then(|| {
                self.functions.push(Function { name: names::demangle(&symbol.name), start: symbol.start });
                (self.functions.len() - 1) as u32
            });
            // In valid tables, an inner function does not extend much beyond its outer one. In other tables the inner
            // one is used, and an outer one that ends within it does not continue.
            // Each ends behind the next inner one: those that end first are on top.
            while open.pop_if(|&mut (outer_end, _)| outer_end <= end).is_some() {}
            open.push((end, func));
        }
        self.close(&mut open, at, u64::MAX);
    }

    /// Adds the ranges from `at` to `until` for the open functions. Returns `until`.
    fn close(&mut self, open: &mut Vec<(u64, Option<u32>)>, mut at: u64, until: u64) -> u64 {
        while let Some(&(end, func)) = open.last() {
            let stop = end.min(until);
            if let Some(func) = func
                && stop > at
            {
                self.ranges.push(Range { start: at, end: stop, func });
            }
            at = at.max(stop);
            if end > until {
                break;
            }
            open.pop();
        }
        until
    }

    /// Gives C++ functions whose names differ only in their parameters these parameters: under one name, their counts would
    /// be one function's.
    fn tell_overloads_apart(&mut self, symbols: &[Symbol<'_>]) {
        // Functions are in order of address, as the symbols are, and not all symbols are functions.
        let mut mangled =
            symbols.iter().filter(|symbol| symbol.code && names::is_cpp(&symbol.name)).peekable();
        let mut of_name: HashMap<&str, Vec<(usize, &str)>> = HashMap::new();
        for (i, function) in self.functions.iter().enumerate() {
            while mangled.next_if(|symbol| symbol.start < function.start).is_some() {}
            if let Some(symbol) = mangled.next_if(|symbol| symbol.start == function.start) {
                of_name.entry(whole(&function.name)).or_default().push((i, &symbol.name));
            }
        }
        let several =
            of_name.into_values().filter(|all| all.iter().any(|(_, raw)| whole(raw) != whole(all[0].1)));
        let renamed: Vec<(usize, String)> =
            several.flatten().filter_map(|(i, raw)| Some((i, names::with_parameters(raw)?))).collect();
        for (i, name) in renamed {
            self.functions[i].name = name;
        }
    }

    /// Assigns a part such as `foo.cold` to `foo` if there is exactly one `foo`.
    fn fold_parts(&mut self) {
        // The parts and the functions to which they may belong. Few functions have parts.
        let parts: Vec<(usize, &str)> = (self.functions.iter().enumerate())
            .filter_map(|(i, function)| Some((i, names::part_of(&function.name)?)))
            .collect();
        let mut wholes: HashMap<&str, (u32, u32)> = parts.iter().map(|&(_, base)| (base, (0, 0))).collect();
        for (i, function) in (0u32..).zip(&self.functions) {
            if let Some((whole, count)) = wholes.get_mut(function.name.as_str()) {
                (*whole, *count) = (i, *count + 1);
            }
        }
        let mut parent: Vec<u32> = (0..self.functions.len() as u32).collect();
        for (part, base) in parts {
            if let (whole, 1) = wholes[base] {
                parent[part] = whole;
            }
        }
        for range in &mut self.ranges {
            range.func = parent[range.func as usize];
        }
    }

    /// Removes and returns all functions, in address order.
    pub(super) fn take_functions(&mut self) -> Vec<Function> {
        std::mem::take(&mut self.functions)
    }

    /// Names that are not shown because the function has another name at the same address.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, u32)> {
        self.aliases.iter().map(|(name, func)| (name.as_str(), *func))
    }

    /// The range that contains `address`.
    #[inline]
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Range> {
        let i = self.ranges.partition_point(|r| r.start <= address);
        self.ranges[..i].last().copied().filter(|r| address < r.end)
    }

    /// All functions, in address order.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// All ranges, in address order.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }
}

/// The name of the function to which a part belongs; of a whole one, its own.
fn whole(name: &str) -> &str {
    names::part_of(name).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sym(start: u64, size: u64, name: &str) -> Symbol<'_> {
        Symbol { start, size, name: name.into(), binding: Binding::Local, code: true }
    }

    #[test]
    fn overloads_have_their_parameters_and_parts_their_overload() {
        let symbols = vec![
            sym(0x10, 8, "_Z1fi"),
            sym(0x20, 8, "_Z1fd"),
            sym(0x30, 8, "_Z1gi"),
            sym(0x40, 8, "_Z1fd.cold"),
            sym(0x50, 8, "f"),
        ];
        let table = Table::build(symbols, 0x100);
        let names: Vec<_> = [0x10, 0x20, 0x30, 0x40, 0x50].map(|at| name_at(&table, at)).into();
        assert_eq!(names, ["f(int)", "f(double)", "g", "f(double)", "f"]);
    }

    fn name_at(table: &Table, address: u64) -> &str {
        table.find(address).map_or("-", |r| &table.functions()[r.func as usize].name)
    }

    #[test]
    fn unsized_symbols_reach_up_to_the_next() {
        let table = Table::build(vec![sym(0x20, 0, "b"), sym(0x10, 0, "a")], 0x30);
        assert_eq!(name_at(&table, 0xf), "-");
        assert_eq!(name_at(&table, 0x1f), "a");
        assert_eq!(name_at(&table, 0x2f), "b");
        assert_eq!(name_at(&table, 0x30), "-");
    }

    /// Each symbol lies in the one before it: a file may have as many as it has room for.
    #[test]
    fn a_million_nested_symbols_take_no_time() {
        const DEPTH: u64 = 1 << 20;
        let symbols = (0..DEPTH).map(|n| sym(n, 2 * (DEPTH - n), "f")).collect();
        let table = Table::build(symbols, 2 * DEPTH);
        assert_eq!(table.functions().len() as u64, DEPTH);
        let at = |address: u64| table.find(address).map(|range| u64::from(range.func));
        assert_eq!([at(0), at(DEPTH - 1), at(2 * DEPTH - 1)], [Some(0), Some(DEPTH - 1), Some(0)]);
    }

    #[test]
    fn other_names_of_an_address_are_aliases() {
        let global = Symbol { binding: Binding::Global, ..sym(0x10, 8, "write") };
        let table = Table::build(vec![sym(0x10, 8, "__write"), global, sym(0x20, 8, "read")], 0x30);
        let shown = name_at(&table, 0x10).to_owned();
        let aliases: Vec<(&str, u32)> = table.aliases().collect();
        let other = if shown == "write" { "__write" } else { "write" };
        assert_eq!(aliases, [(other, table.find(0x10).unwrap().func)]);
    }

    #[test]
    fn data_bounds_but_is_not_shown() {
        let mut data = sym(0x20, 0, "table");
        data.code = false;
        let table = Table::build(vec![sym(0x10, 0, "a"), data], 0x30);
        assert_eq!(name_at(&table, 0x1f), "a");
        assert_eq!(name_at(&table, 0x20), "-");
    }

    #[test]
    fn outer_functions_resume_and_labels_are_ignored() {
        let table = Table::build(
            vec![
                sym(0x10, 0x30, "outer"),
                sym(0x20, 8, "inner"),
                sym(0x18, 0, "label"),
                sym(0x40, 8, "next"),
            ],
            0x50,
        );
        for (address, name) in [
            (0x10, "outer"),
            (0x18, "outer"),
            (0x20, "inner"),
            (0x28, "outer"),
            (0x3f, "outer"),
            (0x40, "next"),
        ] {
            assert_eq!(name_at(&table, address), name, "{address:#x}");
        }
        assert_eq!(name_at(&table, 0x48), "-");
    }

    #[test]
    fn cold_parts_belong_to_their_function() {
        let table =
            Table::build(vec![sym(0x10, 8, "f"), sym(0x90, 8, "f.cold"), sym(0x98, 8, "g.cold")], 0x100);
        assert_eq!(table.find(0x90).unwrap().func, table.find(0x10).unwrap().func);
        assert_eq!(name_at(&table, 0x98), "g.cold");
        let two = Table::build(vec![sym(0x10, 8, "f"), sym(0x20, 8, "f"), sym(0x90, 8, "f.cold")], 0x100);
        assert_eq!(name_at(&two, 0x90), "f.cold");
    }

    proptest! {
        #[test]
        fn ranges_never_overlap(list in prop::collection::vec((0u64..200, 0u64..60, 0u8..3), 0..40)) {
            let symbols = list.iter().map(|&(start, size, kind)| Symbol { code: kind > 0, ..sym(start, size, "x") });
            let table = Table::build(symbols.collect(), 300);
            prop_assert!(table.ranges().iter().all(|r| r.start < r.end));
            prop_assert!(table.ranges().windows(2).all(|w| w[0].end <= w[1].start));
            // The start of every code symbol with a size belongs to its own function or to an enclosing one.
            for &(start, size, kind) in &list {
                if kind > 0 && size > 0 {
                    prop_assert!(table.find(start).is_some());
                }
            }
        }

        #[test]
        fn any_addresses_are_safe(list in prop::collection::vec((any::<u64>(), any::<u64>()), 0..20), limit: u64) {
            let table = Table::build(list.iter().map(|&(s, z)| sym(s, z, "x")).collect(), limit);
            prop_assert!(table.ranges().windows(2).all(|w| w[0].end <= w[1].start));
        }
    }
}
