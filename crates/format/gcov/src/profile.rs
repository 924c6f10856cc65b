// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters as the compiler takes them with `-fprofile-use`.
//!
//! In: the data of all objects of a program or kernel. Out: the same with what gcc asks for. gcc takes no notice, and
//! says nothing, of
//! - data without a summary, as the kernel writes it: gcc believes that the program was never run;
//! - data at another place than it looks at: with `-fprofile-use=DIR`, a file in that folder named after the object's
//!   whole path, with `#` for `/`; with `-fprofile-prefix-path=ROOT` too, after the path from there on.
//!
//! What is hot is told by comparing with the highest count of the *program*, which each file's summary repeats: an
//! object's own highest count would make the busiest function of each object as hot as the scheduler.

use crate::data::{Data, Summary, Values};

/// The highest count of all.
pub fn highest<'a>(all: impl IntoIterator<Item = &'a Data>) -> i64 {
    all.into_iter().map(Data::highest).max().unwrap_or(0)
}

/// Makes data such that gcc takes it. `highest` is the program's. Torn counters, which are negative, become zero: no
/// profile has such.
pub fn complete(data: &mut Data, highest: i64) {
    let sum_max = u32::try_from(highest.max(0)).unwrap_or(u32::MAX);
    let runs = data.summary.map_or(1, |summary| summary.runs.max(1));
    data.summary = Some(Summary { runs, sum_max });
    for function in &mut data.functions {
        for (kind, values) in &mut function.values {
            if let (crate::data::kind::ARCS, Values::All(values)) = (*kind, values) {
                values.iter_mut().for_each(|value| *value = (*value).max(0));
            }
        }
    }
}

/// The name that gcc looks for: of an object's absolute path without its suffix, seen from `root` if that is given.
pub fn file_name(object: &str, root: Option<&str>) -> String {
    let below = root.and_then(|root| object.strip_prefix(root.trim_end_matches('/'))?.strip_prefix('/'));
    let path = crate::absolute(None, below.unwrap_or(object));
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
