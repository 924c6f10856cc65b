// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells whether code that ran is that of the file at the path of its mapping.
//!
//! A path does not name one file for ever: a library is replaced while an older process has it mapped, and a container has
//! another file at the same path. The names and lines of the other file would be wrong.
//!
//! The input is code as the recorder saw it run, and the bytes that the file has there. The output is the mappings that
//! are of another file. Pages of code are not written, but for single places: breakpoints, probes, calls that a tracer
//! enables, text relocations. Other code differs nearly everywhere. So a mapping is of another file if most of what ran
//! in it, or in one of its pages, differs.
//!
//! Code need not have a time: a first version holds from the start of the stream. So where several files were mapped at an address,
//! one after the other, it is not known which of them a piece of code is to be compared with. Such a mapping, and one that is longer
//! than its file, is compared by its other code, or it is listed.

use std::collections::BTreeMap;
use std::fmt;

use super::maps::MappingId;

/// Bytes that must differ at least. A breakpoint is one, a call that was enabled up to five.
const LEAST: u64 = 16;

const PAGE: u64 = 4096;

/// Bytes compared, and those that differ.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    compared: u64,
    differ: u64,
}

impl Sum {
    fn is_of_another_file(self) -> bool {
        self.differ >= LEAST && self.differ * 2 > self.compared
    }
}

/// The result of a comparison. Mappings are named for people: path, address, address space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Mappings of which most code differs from the file at their path: they are of other files.
    pub others: Vec<String>,
    /// Mappings that have functions' names by their path, and code that ran, of which nothing was compared; each with the reason.
    pub not_compared: Vec<String>,
}

/// The reason why code was not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    /// Several files were mapped at its address, one after the other.
    Several,
    /// The file has no bytes there.
    BehindEnd,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Several => "several files were mapped there, one after the other",
            Why::BehindEnd => "the file ends before its code",
        })
    }
}

/// The comparison of all code that ran.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pages: BTreeMap<(MappingId, u64), Sum>,
    /// Mappings with code that was not compared.
    passed: BTreeMap<MappingId, Why>,
}

impl Comparison {
    /// Adds code that ran in a mapping, and the file's bytes at `offset`, at which it is mapped.
    pub fn add(&mut self, mapping: MappingId, offset: u64, ran: &[u8], of_file: &[u8]) {
        let compared = ran.len().min(of_file.len());
        if compared == 0 {
            return self.pass_over(mapping, Why::BehindEnd);
        }
        let sum = self.pages.entry((mapping, offset / PAGE)).or_default();
        sum.compared += compared as u64;
        sum.differ += ran.iter().zip(of_file).filter(|(ran, of_file)| ran != of_file).count() as u64;
    }

    /// Notes code of a mapping that cannot be compared.
    pub fn pass_over(&mut self, mapping: MappingId, why: Why) {
        let known = self.passed.entry(mapping).or_insert(why);
        *known = why.min(*known);
    }

    /// The mappings of which no code was compared, in order.
    pub fn not_compared(&self) -> impl Iterator<Item = (MappingId, Why)> {
        let compared = |id| self.pages.range((id, 0)..=(id, u64::MAX)).next().is_some();
        self.passed.iter().map(|(&id, &why)| (id, why)).filter(move |&(id, _)| !compared(id))
    }

    /// The mappings that are of another file, in order.
    pub fn others(&self) -> Vec<MappingId> {
        let mut sums: BTreeMap<MappingId, (Sum, bool)> = BTreeMap::new();
        for (&(mapping, _), page) in &self.pages {
            let (sum, by_page) = sums.entry(mapping).or_default();
            (sum.compared, sum.differ) = (sum.compared + page.compared, sum.differ + page.differ);
            *by_page |= page.is_of_another_file();
        }
        let others = sums.into_iter().filter(|(_, (sum, by_page))| *by_page || sum.is_of_another_file());
        others.map(|(mapping, _)| mapping).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: MappingId = MappingId { asid: 0x1000, life: 0, number: 0 };

    #[test]
    fn places_that_were_patched_are_no_other_file() {
        let file: Vec<u8> = (0..200).collect();
        let mut all = Comparison::default();
        // A breakpoint alone, and twenty functions of which the first five bytes call a tracer.
        all.add(FIRST, 0x1010, &[0xcc], &file[..1]);
        for at in (0..200).step_by(20) {
            let mut ran = file[at..at + 20].to_vec();
            ran[..5].fill(0xe8);
            all.add(FIRST, 0x2000 + at as u64, &ran, &file[at..]);
        }
        assert_eq!(all.others(), []);
    }

    #[test]
    fn code_that_differs_is_of_another_file() {
        let (file, ran): (Vec<u8>, Vec<u8>) = ((0..32).collect(), (64..96).collect());
        let mut all = Comparison::default();
        let second = MappingId { number: 1, ..FIRST };
        // One page of many.
        (0..9).for_each(|page| all.add(FIRST, page * 4096, &file, &file));
        (0..9).for_each(|page| all.add(second, page * 4096, &file, &file));
        all.add(second, 0x9000, &ran, &file);
        assert_eq!(all.others(), [second]);
        // A little of several pages.
        (0..9).for_each(|page| all.add(FIRST, page * 4096, &ran[..8], &file));
        assert_eq!(all.others(), [second], "most of it is the file's");
        let third = MappingId { number: 2, ..FIRST };
        (0..9).for_each(|page| all.add(third, page * 4096, &ran[..8], &file));
        assert_eq!(all.others(), [second, third]);
    }

    #[test]
    fn beyond_the_files_end_nothing_is_compared() {
        let mut all = Comparison::default();
        all.add(FIRST, 0, &[1; 64], &[]);
        assert_eq!(all.others(), []);
        assert_eq!(all.not_compared().collect::<Vec<_>>(), [(FIRST, Why::BehindEnd)]);
    }

    #[test]
    fn a_mapping_is_listed_until_some_of_its_code_was_compared() {
        let mut all = Comparison::default();
        let second = MappingId { number: 1, ..FIRST };
        all.pass_over(second, Why::BehindEnd);
        all.pass_over(second, Why::Several);
        all.pass_over(FIRST, Why::Several);
        let both = [(FIRST, Why::Several), (second, Why::Several)];
        assert_eq!(all.not_compared().collect::<Vec<_>>(), both);
        all.add(FIRST, 0x5000, &[1; 64], &[1; 64]);
        assert_eq!(all.not_compared().collect::<Vec<_>>(), both[1..]);
    }
}
