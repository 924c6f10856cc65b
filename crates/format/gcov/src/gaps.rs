// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares an object's notes and data: functions that only one of them has, and parts that are not understood.

use std::collections::{HashMap, HashSet};

use crate::data::{Counters, Data, kind};
use crate::notes::{Function, Notes};

/// Parts of an object's notes and data that do not go together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Functions of the notes without counters in the data. They are counted as never called.
    pub without_data: u64,
    /// Functions of the data that the notes do not have. They are in no count.
    pub without_notes: u64,
    /// Records of unknown kinds in notes and data.
    pub unknown: u64,
    /// Bytes after the end of the data.
    pub after_end: u64,
}

/// Compares the functions of notes and data. The compiler makes counters for each function of the notes that has arcs to
/// count, and libgcov and the kernel write them all, executed or not: a difference means that a file is damaged.
pub fn gaps(notes: &Notes<'_>, data: &Data) -> Gaps {
    let has_counters =
        |function: &Function<'_>, found: &Counters| function.counters == 0 || found.of(kind::ARCS).is_some();
    let mut gaps = Gaps {
        unknown: u64::from(notes.unknown) + u64::from(data.rest.unknown),
        after_end: data.rest.after_end,
        ..Gaps::default()
    };
    let mut pairs = notes.functions.iter().zip(&data.functions);
    if notes.functions.len() == data.functions.len()
        && pairs.all(|(function, found)| function.ident == found.ident && has_counters(function, found))
    {
        return gaps;
    }
    let known: HashMap<u32, &Counters> = data.functions.iter().map(|found| (found.ident, found)).collect();
    let idents: HashSet<u32> = notes.functions.iter().map(|function| function.ident).collect();
    let missing = notes.functions.iter().filter(|function| {
        function.counters > 0
            && !known.get(&function.ident).is_some_and(|found| has_counters(function, found))
    });
    gaps.without_data = (missing.count() as u64).saturating_sub(data.rest.elsewhere.into());
    gaps.without_notes = data.functions.iter().filter(|found| !idents.contains(&found.ident)).count() as u64;
    gaps
}
