// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prepares counters for gcc's `-fprofile-use`.
//!
//! Input: the data of all objects of a program or kernel. Output: the same data with the parts that gcc requires. gcc
//! silently ignores
//! - data without a summary, as the kernel writes it: gcc assumes that the program never ran;
//! - data in other files than it looks for. With `-fprofile-use=DIR`, it is a file in that directory, named after the
//!   object's full path with `#` for `/`. With `-fprofile-prefix-path=ROOT`, the path is relative to ROOT.
//!
//! gcc decides what is hot by comparison with the highest count of the *program*, which each file's summary repeats.
//! With an object's own highest count, the busiest function of each object would be as hot as the scheduler.

use crate::data::{Data, Summary, Values};

/// Returns the highest count of all objects.
pub fn highest<'a>(all: impl IntoIterator<Item = &'a Data>) -> i64 {
    all.into_iter().map(Data::highest).max().unwrap_or(0)
}

/// Completes data for gcc. `highest` is the program's highest count. Torn counters, which are negative, become zero: a
/// profile has no negative counts. Returns how many there were.
pub fn complete(data: &mut Data, highest: i64) -> usize {
    let mut torn = 0;
    let sum_max = u32::try_from(highest.max(0)).unwrap_or(u32::MAX);
    let runs = data.summary.map_or(1, |summary| summary.runs.max(1));
    data.summary = Some(Summary { runs, sum_max });
    for function in &mut data.functions {
        for (kind, values) in &mut function.values {
            if let (crate::data::kind::ARCS, Values::All(values)) = (*kind, values) {
                for value in values.iter_mut().filter(|value| **value < 0) {
                    *value = 0;
                    torn += 1;
                }
            }
        }
    }
    torn
}

/// Returns the file name that gcc looks for. `object` is the object's absolute path without suffix; the name is
/// relative to `root`, if given.
pub fn file_name(object: &str, root: Option<&str>) -> String {
    let below = root.and_then(|root| object.strip_prefix(root.trim_end_matches('/'))?.strip_prefix('/'));
    let path = crate::path::absolute(None, below.unwrap_or(object));
    format!("{}.gcda", path.replace('/', "#"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_gcc_looks_for() {
        for (object, root, name) in [
            ("/build/kernel/fork", None, "#build#kernel#fork.gcda"),
            ("/build/kernel/fork", Some("/build"), "kernel#fork.gcda"),
            ("/build/kernel/fork", Some("/build/"), "kernel#fork.gcda"),
            ("/build/a/../fork", Some("/build"), "fork.gcda"),
            ("/builder/fork", Some("/build"), "#builder#fork.gcda"),
        ] {
            assert_eq!(file_name(object, root), name);
        }
    }
}
