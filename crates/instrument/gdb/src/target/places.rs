// SPDX-License-Identifier: MIT OR Apache-2.0
//! The places of static tracepoints in the code, at which GDB knows the locals of the function around.
//!
//! A place is a jump label of the tracepoint's key. Its no-op lies in inlined helpers, in which GDB sees no locals of
//! the function around. So GDB is told an address beside it, at which all locals are where they are at the no-op
//! ([`kprism_debuginfo::beside`]). The probe is at the target of the label's jump: a jump changes no register, and it is
//! taken exactly when the tracepoint is enabled and reached.
//!
//! In: kallsyms, tables of jump labels, code in memory, debug information. Out: [`Found`].

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use kprism_debuginfo::beside::{self, Wanted, Why};
use kprism_probe::place::flow::{self, LONGEST, whole};

use super::labels::Label;

/// Prefix of the tracepoints' names.
const TRACEPOINT: &str = "__tracepoint_";
/// Most bytes of a piece of code of which each may stand for a place.
const MOST: u64 = 64;

/// A place of a tracepoint in the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Address for GDB. It is no other place's.
    pub address: u64,
    /// Address of the probe: the target of the jump that replaces the no-op while the tracepoint is enabled.
    pub target: u64,
    /// The tracepoint's name.
    pub tracepoint: String,
    /// The function around it.
    pub function: String,
    /// Its locals that are not known at GDB's address.
    pub missing: Vec<String>,
}

/// Places, and how many were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Those that GDB can use.
    pub places: Vec<Place>,
    /// Number of those in code without debug information.
    pub undescribed: usize,
    /// Number of those where the kernel allows no kprobe.
    pub refused: usize,
    /// Number of those whose out-of-line code is reached in other ways, too.
    pub shared: usize,
    /// Number of those beside which GDB would see other locals.
    pub nowhere: usize,
}

impl Found {
    /// The counts, in words. `whose` is the kernel or a module.
    pub fn said(&self, whose: &str) -> String {
        let left = [
            (self.refused, "where the kernel allows no kprobe"),
            (self.shared, "whose code is reached past the tracepoint, too"),
            (self.nowhere, "beside which GDB would see other locals"),
            (self.undescribed, "without debug information"),
        ];
        let all = self.places.len() + left.iter().map(|(count, _)| count).sum::<usize>();
        let left: Vec<String> =
            left.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{n} {why}")).collect();
        let rest = if left.is_empty() { String::new() } else { format!("; left out: {}", left.join(", ")) };
        format!("{whose}: {} of {all} places of tracepoints are markers{rest}", self.places.len())
    }
}

/// Symbols of `/proc/kallsyms`.
#[derive(Debug, Default)]
pub struct Symbols<'t> {
    /// Code, sorted by address.
    code: Vec<(u64, &'t str)>,
    /// Tracepoints' names, by the address of their structure.
    tracepoints: HashMap<u64, &'t str>,
    /// Bounds of tables.
    tables: Vec<(u64, &'t str)>,
    /// The parts of functions that compilers split in two, by name.
    parts: HashMap<&'t str, Vec<(u64, &'t str)>>,
}

impl<'t> Symbols<'t> {
    /// Reads the text.
    pub fn of(text: &'t str) -> Self {
        let mut all = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            let (Some(address), Some(kind), Some(name)) = (address, words.next(), words.next()) else {
                continue;
            };
            if matches!(kind, "t" | "T" | "w" | "W") {
                all.code.push((address, name));
            } else if let Some(name) = name.strip_prefix(TRACEPOINT) {
                all.tracepoints.insert(address, name);
            } else if name.starts_with("__start_") || name.starts_with("__stop_") {
                all.tables.push((address, name));
            }
        }
        all.code.sort_unstable();
        for (address, name) in &all.code {
            all.parts.entry(whole(name)).or_default().push((*address, name));
        }
        all
    }

    /// Address and length of a table between two symbols.
    pub fn between(&self, start: &str, stop: &str) -> Option<(u64, u64)> {
        let find = |name: &str| self.tables.iter().find(|(_, own)| *own == name).map(|(at, _)| *at);
        let (start, stop) = (find(start)?, find(stop)?);
        Some((start, stop.checked_sub(start)?))
    }

    /// Address, length and name of the function at an address.
    fn around(&self, address: u64) -> Option<(u64, u64, &'t str)> {
        let after = self.code.partition_point(|(start, _)| *start <= address);
        let (start, name) = *self.code.get(after.checked_sub(1)?)?;
        let end = self.code.get(after).map_or(start + LONGEST, |(end, _)| *end);
        Some((start, end - start, name))
    }

    /// The parts of the function at an address, which compilers split in two, and where it begins.
    fn parts(&self, address: u64) -> (Vec<(u64, u64)>, Vec<u64>) {
        let Some((_, _, name)) = self.around(address) else { return (Vec::new(), Vec::new()) };
        // Another function of this name adds code that leads nowhere.
        let same = self.parts.get(whole(name)).into_iter().flatten();
        let mut parts = Vec::new();
        let mut entries = Vec::new();
        for (at, name) in same {
            let length = self.around(*at).map_or(0, |(_, length, _)| length);
            if length <= LONGEST {
                parts.push((*at, length));
            }
            if !name.contains(".cold") {
                entries.push(*at);
            }
        }
        parts.sort_unstable();
        parts.dedup();
        (parts, entries)
    }
}

/// The code of the kernel or of a module, and its debug information.
pub struct Code<'c> {
    /// Its jump labels.
    pub labels: &'c [Label],
    /// Offset of the key in a tracepoint's structure.
    pub key: u64,
    /// The file with its debug information, if there is one.
    pub file: Option<&'c Path>,
    /// Folders with debug information by build id.
    pub folders: &'c [PathBuf],
    /// By section: its address in memory, that in the file, its size.
    pub sections: &'c [(u64, u64, u64)],
    /// Reads memory.
    pub read: &'c dyn Fn(u64, usize) -> Vec<u8>,
    /// True where the kernel allows no kprobe.
    pub refuses: &'c dyn Fn(u64) -> bool,
}

/// Finds the places. `taken` are addresses that stand for something else; the new ones are added.
///
/// # Errors
/// The debug information cannot be read.
pub fn find(symbols: &Symbols<'_>, code: &Code<'_>, taken: &mut HashSet<u64>) -> Result<Found, String> {
    let mut targets: HashMap<u64, u32> = HashMap::new();
    let labels: HashMap<u64, u64> = code.labels.iter().map(|label| (label.nop, label.target)).collect();
    code.labels.iter().for_each(|label| *targets.entry(label.target).or_default() += 1);
    let mut found = Found::default();
    let mut places = Vec::new();
    for label in code.labels.iter().filter(|label| !label.gone) {
        let Some(name) = symbols.tracepoints.get(&label.key.wrapping_sub(code.key)) else { continue };
        if code.file.is_none() {
            found.undescribed += 1;
            continue;
        }
        if (code.refuses)(label.target) {
            found.refused += 1;
            continue;
        }
        let (parts, entries) = symbols.parts(label.nop);
        let parts: Vec<(u64, Vec<u8>)> =
            parts.iter().map(|(at, length)| (*at, (code.read)(*at, *length as usize))).collect();
        if targets.get(&label.target) != Some(&1)
            || !flow::is_only_from(&parts, &entries, &labels, label.nop, label.target)
        {
            found.shared += 1;
            continue;
        }
        let in_file = code.sections.iter().find(|(from, _, size)| label.nop.wrapping_sub(*from) < *size);
        match in_file {
            Some(section) => places.push((label, *name, *section)),
            None => found.undescribed += 1,
        }
    }
    places.sort_by_key(|(label, ..)| label.nop);
    let wanted: Vec<Wanted> = places
        .iter()
        .map(|(label, name, (from, to, _))| Wanted {
            address: label.nop.wrapping_sub(*from).wrapping_add(*to),
            helpers: helpers(name),
        })
        .collect();
    let beside = match code.file.filter(|_| !wanted.is_empty()) {
        Some(file) => beside::of_file(file, code.folders, &wanted)
            .map_err(|why| format!("{}: {why}", file.display()))?
            .unwrap_or_else(|| vec![Err(Why::Undescribed); wanted.len()]),
        None => vec![Err(Why::Undescribed); wanted.len()],
    };
    for ((label, name, (from, to, _)), beside) in places.into_iter().zip(beside) {
        let beside = match beside {
            Ok(beside) => beside,
            Err(Why::Undescribed) => {
                found.undescribed += 1;
                continue;
            }
            Err(Why::Nowhere) => {
                found.nowhere += 1;
                continue;
            }
        };
        let bytes =
            beside.pieces.iter().flat_map(|(start, end)| *start..(*end).min(start.saturating_add(MOST)));
        let mut free =
            bytes.map(|at| at.wrapping_sub(to).wrapping_add(from)).filter(|at| !taken.contains(at));
        match free.next() {
            Some(address) => {
                taken.insert(address);
                found.places.push(Place {
                    address,
                    target: label.target,
                    tracepoint: name.to_owned(),
                    function: beside.function,
                    missing: beside.missing,
                });
            }
            None => found.nowhere += 1,
        }
    }
    Ok(found)
}

/// Names of the inlined functions between a tracepoint's place and its no-op (include/linux/tracepoint.h, jump_label.h).
fn helpers(tracepoint: &str) -> Vec<String> {
    let own = ["", "_enabled", "_rcuidle"].map(|tail| format!("trace_{tracepoint}{tail}"));
    let keys = ["arch_static_branch", "arch_static_branch_jump", "static_key_false", "static_key_true"];
    own.into_iter().chain(keys.map(str::to_owned)).collect()
}
