// SPDX-License-Identifier: MIT OR Apache-2.0
//! Profiles in the form that compilers take from sampling profilers: counts of source lines relative to each function's
//! start, with inlined calls as a tree.
//!
//! Input: [`Lines`] and [`Scopes`] of a file, the counts of its instructions ([`Ran`]), and the functions that they
//! called. Output: a [`Profile`]. A source position has the count of its most executed instruction.

use std::collections::BTreeMap;

use kprism_image::insn::Kind;

use super::gather::Ran;
use kprism_debuginfo::lines::Lines;
use kprism_debuginfo::scopes::Scopes;

/// Line offset from the function's own line, and the discriminator.
pub type Place = (u32, u32);

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
