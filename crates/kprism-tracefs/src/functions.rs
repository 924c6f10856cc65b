// SPDX-License-Identifier: MIT OR Apache-2.0
//! Globs to function numbers.
//!
//! The kernel takes a function's number in `available_filter_functions` as well as its name. A name is compared with
//! every function's (212 million instructions a write on Debian's 6.12), a number is looked up (53 thousand).

use std::collections::HashSet;

use kprism_image::glob::glob;

use crate::error::{Error, Result};
use crate::tracefs::Tracefs;

/// What can be traced, in the kernel's order.
pub struct Functions {
    list: String,
    tracefs: Tracefs,
}

impl Functions {
    /// Asks the kernel, which takes some 0.1 s.
    pub fn read(tracefs: &Tracefs) -> Result<Self> {
        Ok(Self { list: tracefs.read("available_filter_functions")?, tracefs: tracefs.clone() })
    }

    /// Numbers of all functions that any of the globs matches; each must match one at least.
    pub fn numbers(&self, globs: &[String]) -> Result<Vec<usize>> {
        let patterns: Vec<(&str, Option<&str>)> = globs.iter().map(|glob| split(glob)).collect();
        let mut matched = vec![false; globs.len()];
        let mut numbers = Vec::new();
        for (line, number) in self.list.lines().zip(1..) {
            let (name, module) = name_and_module(line);
            let mut any = false;
            for ((pattern, wanted), matched) in patterns.iter().zip(&mut matched) {
                if wanted.is_none_or(|wanted| module == Some(wanted)) && glob(pattern, name) {
                    (any, *matched) = (true, true);
                }
            }
            numbers.extend(any.then_some(number));
        }
        match matched.iter().position(|&matched| !matched) {
            None => Ok(numbers),
            Some(at) => Err(Error::NoSuchFunction {
                glob: globs[at].clone(),
                tracefs: self.tracefs.root().to_owned(),
            }),
        }
    }

    /// Numbers of those of these functions that there are; at least one.
    pub fn numbers_of_known(&self, names: &[String]) -> Result<Vec<usize>> {
        let wanted: HashSet<&str> = names.iter().map(String::as_str).collect();
        let lines = self.list.lines().zip(1..);
        let known = lines.filter(|(line, _)| wanted.contains(name_and_module(line).0));
        let numbers: Vec<usize> = known.map(|(_, number)| number).collect();
        if numbers.is_empty() {
            let glob = names.join(" ");
            return Err(Error::NoSuchFunction { glob, tracefs: self.tracefs.root().to_owned() });
        }
        Ok(numbers)
    }

    /// Sees that each glob matches something, where the kernel matches them itself.
    pub fn check(&self, globs: &[String]) -> Result<()> {
        self.numbers(globs).map(|_| ())
    }
}

/// `GLOB` or `GLOB:mod:MODULE`; no glob is every function.
fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once(":mod:") {
        Some(("", module)) => ("*", Some(module)),
        Some((pattern, module)) => (pattern, Some(module)),
        None => (text, None),
    }
}

/// `vfs_read`, or `ext4_sync_file [ext4]`.
fn name_and_module(line: &str) -> (&str, Option<&str>) {
    match line.split_once(" [") {
        Some((name, module)) => (name, Some(module.trim_end_matches(']'))),
        None => (line, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_to_numbers() {
        let list = "vfs_read\nvfs_write\next4_sync [ext4]\nvfs_mod [ext4]\nschedule\n".to_owned();
        let functions = Functions { list, tracefs: Tracefs::at("/t".as_ref()) };
        let numbers =
            |globs: &[&str]| functions.numbers(&globs.iter().map(|&g| g.to_owned()).collect::<Vec<_>>());
        assert_eq!(numbers(&["vfs_*"]).unwrap(), [1, 2, 4]);
        assert_eq!(numbers(&["vfs_*:mod:ext4", "schedule"]).unwrap(), [4, 5]);
        assert_eq!(numbers(&[":mod:ext4"]).unwrap(), [3, 4]);
        let error = numbers(&["schedule", "no_such*"]).unwrap_err().to_string();
        assert!(error.contains("no_such*"), "{error}");
    }
}
