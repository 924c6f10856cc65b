// SPDX-License-Identifier: MIT OR Apache-2.0
//! Profiles in the form that compilers take from sampling profilers: counts of source lines relative to each function's
//! start, with inlined calls as a tree. Writes LLVM's text and GCC's file (AutoFDO's, of GCC 12 and later).
//!
//! Input: [`Lines`] and [`Scopes`] of a file, the counts of its instructions ([`Ran`]), and the functions that they
//! called. Output: a [`Profile`]. A source position has the count of its most executed instruction.

use std::collections::BTreeMap;
use std::io::{self, Write};

use kprism_image::insn::Kind;

use crate::gather::Ran;
use kprism_debuginfo::lines::Lines;
use kprism_debuginfo::scopes::Scopes;

/// Line offset from the function's own line, and the discriminator.
type Place = (u32, u32);

/// The count of a source position, and the calls from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of executions.
    pub count: u64,
    /// Functions called from there, with their counts.
    pub targets: BTreeMap<String, u64>,
}

/// A function, or an inlined copy of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Function {
    /// Number of entries; 0 for a copy.
    pub head: u64,
    /// Counts of its own positions.
    pub body: BTreeMap<Place, Count>,
    /// Inlined copies in it, by position and name.
    pub inlined: BTreeMap<(Place, String), Function>,
}

impl Function {
    /// The sum of all counts.
    pub fn total(&self) -> u64 {
        let own = self.body.values().map(|count| count.count);
        own.chain(self.inlined.values().map(Self::total)).fold(0, u64::saturating_add)
    }
}

/// Functions by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// The functions that ran.
    pub functions: BTreeMap<String, Function>,
}

impl Profile {
    /// Adds the counts of a file. `targets` lists the functions that an indirect call instruction called.
    pub fn add(
        &mut self,
        lines: &Lines,
        scopes: &Scopes,
        ran: &[Ran],
        targets: &BTreeMap<u64, Vec<(String, u64)>>,
    ) {
        let entered: BTreeMap<u64, u64> = ran.iter().map(|ran| (ran.address, ran.count)).collect();
        for ran in ran {
            let Some(mut scope) = scopes.at(ran.address) else { continue };
            let next = lines.rows.partition_point(|row| row.end <= ran.address);
            let Some(row) = lines.rows.get(next).filter(|row| row.start <= ran.address && row.line != 0)
            else {
                continue;
            };
            // From the innermost copy outwards: the positions of the calls, and the called functions.
            let own =
                scopes.all.get(scope as usize).and_then(|of| seen((row.line, row.discriminator), of.line));
            let Some(own) = own else { continue };
            let mut path = Vec::new();
            let outer = loop {
                let of = &scopes.all[scope as usize];
                let Some(call) = of.within else { break Some(of) };
                let place = seen((call.line, call.discriminator), scopes.all[call.from as usize].line);
                // A call in a macro of another file has no position relative to the function.
                let Some(place) = place else { break None };
                path.push((place, plain(&of.name)));
                scope = call.from;
            };
            let Some(outer) = outer else { continue };
            let mut function = self.functions.entry(plain(&outer.name).to_owned()).or_default();
            function.head = function.head.max(entered.get(&outer.entry).copied().unwrap_or(0));
            for (place, name) in path.into_iter().rev() {
                function = function.inlined.entry((place, name.to_owned())).or_default();
            }
            let found = function.body.entry(own).or_default();
            found.count = found.count.max(ran.count);
            let direct = match ran.kind {
                Kind::Call { target } => {
                    name_at(lines, target).map(|name| (plain(name).to_owned(), ran.count))
                }
                _ => None,
            };
            let indirect = targets.get(&ran.address).into_iter().flatten();
            for (name, count) in direct.into_iter().chain(indirect.map(|(n, c)| (plain(n).to_owned(), *c))) {
                *found.targets.entry(name).or_default() += count;
            }
        }
        self.functions.retain(|name, function| !name.is_empty() && function.total() > 0);
    }
}

/// A position relative to the line of the function; `None` if it is before that line.
fn seen(place: Place, from: u32) -> Option<Place> {
    let offset = place.0.checked_sub(from).filter(|&offset| from != 0 && offset <= 0xffff)?;
    Some((offset, place.1))
}

/// The name without a compiler's suffix: `f.isra.0` is `f`.
fn plain(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

fn name_at(lines: &Lines, address: u64) -> Option<&str> {
    let at = lines.functions.binary_search_by_key(&address, |function| function.start).ok()?;
    Some(&lines.functions[at].name)
}

/// Writes LLVM's text, for `clang -fprofile-sample-use=FILE` and `llvm-profdata`.
///
/// # Errors
/// Writing to `out` fails.
pub fn llvm(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    for (name, function) in &profile.functions {
        writeln!(out, "{name}:{}:{}", function.total(), function.head)?;
        body(function, 1, out)?;
    }
    Ok(())
}

fn body(function: &Function, depth: usize, out: &mut dyn Write) -> io::Result<()> {
    let indent = " ".repeat(depth);
    let shown = |(offset, discriminator): Place| match discriminator {
        0 => offset.to_string(),
        discriminator => format!("{offset}.{discriminator}"),
    };
    for (&place, count) in &function.body {
        write!(out, "{indent}{}: {}", shown(place), count.count)?;
        for (name, count) in &count.targets {
            write!(out, " {name}:{count}")?;
        }
        writeln!(out)?;
    }
    for ((place, name), inlined) in &function.inlined {
        writeln!(out, "{indent}{}: {name}:{}", shown(*place), inlined.total())?;
        body(inlined, depth + 1, out)?;
    }
    Ok(())
}

/// The file's magic number, and the tags of its parts.
const MAGIC: u32 = 0x6763_6461;
const VERSION: u32 = 2;
const NAMES: u32 = 0xaa00_0000;
const FUNCTIONS: u32 = 0xac00_0000;
const MODULES: u32 = 0xae00_0000;
/// Kind of a list of targets: indirect calls.
const INDIRECT: u32 = 7;

/// Writes GCC's file, for `gcc -fauto-profile=FILE` of GCC 12 to 15.
///
/// # Errors
/// Writing to `out` fails.
pub fn gcc(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let mut names: BTreeMap<&str, u32> = BTreeMap::new();
    for (name, function) in &profile.functions {
        names.insert(name, 0);
        collect(function, &mut names);
    }
    (0..).zip(names.values_mut()).for_each(|(index, known)| *known = index);
    let mut bytes = Vec::new();
    [MAGIC, VERSION, 0, NAMES, 0, names.len() as u32].iter().for_each(|&value| word(value, &mut bytes));
    for name in names.keys() {
        word(name.len() as u32 + 1, &mut bytes);
        bytes.extend(name.as_bytes());
        bytes.push(0);
    }
    [FUNCTIONS, 0, profile.functions.len() as u32].iter().for_each(|&value| word(value, &mut bytes));
    for (name, function) in &profile.functions {
        counter(function.head, &mut bytes);
        instance(name, function, &names, &mut bytes);
    }
    [MODULES, 0, 0].iter().for_each(|&value| word(value, &mut bytes));
    out.write_all(&bytes)
}

fn collect<'p>(function: &'p Function, names: &mut BTreeMap<&'p str, u32>) {
    names
        .extend(function.body.values().flat_map(|count| count.targets.keys()).map(|name| (name.as_str(), 0)));
    for ((_, name), inlined) in &function.inlined {
        names.insert(name, 0);
        collect(inlined, names);
    }
}

/// GCC has no discriminators: the largest count is the line's.
fn instance(name: &str, function: &Function, names: &BTreeMap<&str, u32>, bytes: &mut Vec<u8>) {
    let mut lines: BTreeMap<u32, Count> = BTreeMap::new();
    for (place, count) in &function.body {
        let line = lines.entry(place.0).or_default();
        line.count = line.count.max(count.count);
        for (name, count) in &count.targets {
            *line.targets.entry(name.clone()).or_default() += count;
        }
    }
    let index = |name: &str| names.get(name).copied().unwrap_or(0);
    let mut inlined: BTreeMap<(u32, &str), Function> = BTreeMap::new();
    for ((place, name), of) in &function.inlined {
        merge(inlined.entry((place.0, name)).or_default(), of);
    }
    [index(name), lines.len() as u32, inlined.len() as u32].iter().for_each(|&value| word(value, bytes));
    for (line, count) in &lines {
        word(line << 16, bytes);
        word(count.targets.len() as u32, bytes);
        counter(count.count, bytes);
        for (name, count) in &count.targets {
            word(INDIRECT, bytes);
            counter(index(name).into(), bytes);
            counter(*count, bytes);
        }
    }
    for ((line, name), of) in &inlined {
        word(line << 16, bytes);
        instance(name, of, names, bytes);
    }
}

fn merge(into: &mut Function, from: &Function) {
    for (place, count) in &from.body {
        let found = into.body.entry(*place).or_default();
        found.count = found.count.saturating_add(count.count);
        for (name, count) in &count.targets {
            *found.targets.entry(name.clone()).or_default() += count;
        }
    }
    for (key, of) in &from.inlined {
        merge(into.inlined.entry(key.clone()).or_default(), of);
    }
}

fn word(value: u32, bytes: &mut Vec<u8>) {
    bytes.extend(value.to_le_bytes());
}

fn counter(value: u64, bytes: &mut Vec<u8>) {
    bytes.extend(value.to_le_bytes());
}
