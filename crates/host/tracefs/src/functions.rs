// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion of globs to function numbers.
//!
//! The input is the list of traceable functions and the user's globs. The output is the functions' numbers, which the
//! kernel's filters accept in place of names. The kernel compares a written name with every function's name (212
//! million instructions per write on Debian's 6.12), but looks a number up directly (53 thousand). A function's number
//! is its line in `available_filter_functions`.

use std::collections::{HashMap, HashSet};

use kprism_image::glob::glob;
use kprism_image::symbols::kallsyms::code_symbols;

use crate::error::{Error, Result};
use crate::tracefs::Tracefs;

/// The traceable functions, in the kernel's order.
pub struct Functions {
    list: String,
    /// Other names of each function that has several.
    aliases: HashMap<String, Vec<String>>,
    tracefs: Tracefs,
}

impl Functions {
    /// Reads the kernel's list. That takes about 0.1 s, so a recording reads it once.
    pub fn read(tracefs: &Tracefs) -> Result<Self> {
        let list = tracefs.read("available_filter_functions")?;
        Ok(Self { list, aliases: HashMap::new(), tracefs: tracefs.clone() })
    }

    /// Reads the kernel's list and adds the names that it leaves out, by the text of `/proc/kallsyms`. The list has one name for
    /// each address, such as `__do_sys_getppid`, while reports show another, `__x64_sys_getppid`.
    pub fn read_with_aliases(tracefs: &Tracefs, kallsyms: &str) -> Result<Self> {
        Ok(Self { aliases: aliases(kallsyms), ..Self::read(tracefs)? })
    }

    /// True if the pattern matches any of the function's names.
    fn is(&self, pattern: &str, name: &str) -> bool {
        let others = || self.aliases.get(name).into_iter().flatten();
        glob(pattern, name) || others().any(|other| glob(pattern, other))
    }

    /// Numbers of all functions that match any of the globs. Fails if one of the globs matches nothing.
    pub fn numbers(&self, globs: &[String]) -> Result<Vec<usize>> {
        let patterns: Vec<(&str, Option<&str>)> = globs.iter().map(|glob| split(glob)).collect();
        let mut matched = vec![false; globs.len()];
        let mut numbers = Vec::new();
        for (line, number) in self.list.lines().zip(1..) {
            let (name, module) = name_and_module(line);
            let mut any = false;
            for ((pattern, wanted), matched) in patterns.iter().zip(&mut matched) {
                if wanted.is_none_or(|wanted| module == Some(wanted)) && self.is(pattern, name) {
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

    /// Numbers of those of `names` that exist on this kernel. Fails if none of them does.
    pub fn numbers_of_known(&self, names: &[String]) -> Result<Vec<usize>> {
        let wanted: HashSet<&str> = names.iter().map(String::as_str).collect();
        let lines = self.list.lines().zip(1..);
        let others = |name: &str| self.aliases.get(name).into_iter().flatten();
        let is_wanted =
            |name: &str| wanted.contains(name) || others(name).any(|other| wanted.contains(other.as_str()));
        let known = lines.filter(|(line, _)| is_wanted(name_and_module(line).0));
        let numbers: Vec<usize> = known.map(|(_, number)| number).collect();
        if numbers.is_empty() {
            let glob = names.join(" ");
            return Err(Error::NoSuchFunction { glob, tracefs: self.tracefs.root().to_owned() });
        }
        Ok(numbers)
    }

    /// Fails if one of the globs matches nothing. Used for the files in which the kernel matches the globs itself.
    pub fn check(&self, globs: &[String]) -> Result<()> {
        self.numbers(globs).map(|_| ())
    }
}

/// The other names of each function that has several. A name that several functions share is left out, because it
/// identifies none of them.
fn aliases(kallsyms: &str) -> HashMap<String, Vec<String>> {
    // Without the permission to read kernel addresses, every address is 0 and tells nothing.
    let functions = code_symbols(kallsyms).filter(|&(address, ..)| address != 0);
    let mut functions: Vec<(u64, &str)> = functions.map(|(address, name, _)| (address, name)).collect();
    // The kernel's own come in the order of their addresses, so that this is little work.
    functions.sort_by_key(|&(address, _)| address);
    let several = |group: &&[(u64, &str)]| group.len() > 1;
    let groups = || functions.chunk_by(|one, next| one.0 == next.0).filter(several);
    // Few functions have several names: only theirs are counted.
    let mut places: HashMap<&str, u32> = groups().flatten().map(|&(_, name)| (name, 0)).collect();
    for (_, name) in &functions {
        if let Some(count) = places.get_mut(name) {
            *count += 1;
        }
    }
    let mut aliases: HashMap<String, Vec<String>> = HashMap::new();
    for group in groups() {
        let names: Vec<&str> = group.iter().map(|&(_, name)| name).filter(|name| places[name] == 1).collect();
        for &name in &names {
            let others = names.iter().filter(|&&other| other != name).map(|&other| other.to_owned());
            aliases.entry(name.to_owned()).or_default().extend(others);
        }
    }
    aliases
}

/// Splits `GLOB` or `GLOB:mod:MODULE`. An empty glob matches every function.
fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once(":mod:") {
        Some(("", module)) => ("*", Some(module)),
        Some((pattern, module)) => (pattern, Some(module)),
        None => (text, None),
    }
}

/// Splits a line of the list, such as `vfs_read` or `ext4_sync_file [ext4]`.
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
        let functions = Functions { list, aliases: HashMap::new(), tracefs: Tracefs::at("/t".as_ref()) };
        let numbers =
            |globs: &[&str]| functions.numbers(&globs.iter().map(|&g| g.to_owned()).collect::<Vec<_>>());
        assert_eq!(numbers(&["vfs_*"]).unwrap(), [1, 2, 4]);
        assert_eq!(numbers(&["vfs_*:mod:ext4", "schedule"]).unwrap(), [4, 5]);
        assert_eq!(numbers(&[":mod:ext4"]).unwrap(), [3, 4]);
        let symbols = "ffffffff81000000 t __do_sys_getppid\nffffffff81000000 T __x64_sys_getppid\n\
                       ffffffff81000100 t twice\nffffffff81000200 t twice\nffffffff81000200 t once\n";
        let list = "twice\n__do_sys_getppid\nonce\n".to_owned();
        let named = Functions { list, aliases: aliases(symbols), tracefs: Tracefs::at("/t".as_ref()) };
        assert_eq!(named.numbers(&["__x64_sys_*".to_owned()]).unwrap(), [2]);
        assert_eq!(named.numbers(&["once".to_owned()]).unwrap(), [3]);
        assert_eq!(named.numbers_of_known(&["__x64_sys_getppid".to_owned()]).unwrap(), [2]);
        let error = numbers(&["schedule", "no_such*"]).unwrap_err().to_string();
        assert!(error.contains("no_such*"), "{error}");
    }
}
