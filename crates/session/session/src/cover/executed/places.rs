// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses at which the sections of a file ran.

use std::collections::{BTreeMap, HashMap};

use kprism_debuginfo::lines::{Lines, Section};
use kprism_image::symbols::{FunctionId, Symbols};

/// A section of the file, and what is to be added to its addresses to have those at which it ran.
pub struct Place {
    pub section: Section,
    pub bias: u64,
}

/// Addresses at which the file's sections ran. User code is recorded at the file's own addresses. The bias of a kernel section
/// follows from functions that have one name in both.
pub fn places(module: &str, lines: &Lines, symbols: &Symbols) -> Result<Vec<Place>, String> {
    if !module.starts_with('[') {
        return Ok(lines.sections.iter().map(|&section| Place { section, bias: 0 }).collect());
    }
    let mut there: HashMap<&str, Option<u64>> = HashMap::new();
    for id in 0..symbols.len() as u32 {
        let function = symbols.function(FunctionId(id));
        if function.module == module {
            // Static functions may share a name: those do not help.
            there.entry(&function.name).and_modify(|known| *known = None).or_insert(Some(function.start));
        }
    }
    let mut places = Vec::new();
    let (mut good, mut bad) = (0, 0);
    for &section in &lines.sections {
        let own = lines.functions.iter().filter(|f| section.start <= f.start && f.start < section.end);
        let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
        for function in own {
            if let Some(Some(start)) = there.get(function.name.as_str()) {
                *votes.entry(start.wrapping_sub(function.start)).or_default() += 1;
            }
        }
        if let Some((&bias, &most)) = votes.iter().max_by_key(|(_, n)| **n) {
            good += most;
            bad += votes.values().sum::<usize>() - most;
            places.push(Place { section, bias });
        }
    }
    match good > bad {
        true => Ok(places),
        false => Err(format!("another build: {good} functions are where they ran, {bad} are not")),
    }
}
