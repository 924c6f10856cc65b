// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keys that are the same in every run, so that many runs can be joined.
//!
//! Numbers of functions and contexts are those of one run. In: a profile, the kernel's build, its symbols. Out, for each function
//! and context, a key:
//!
//! | key | the same for |
//! |---|---|
//! | `func_key` | one function of one build: its kernel's build ID (or release) or its file's path, its name, and its place among functions of this name there |
//! | `name_key` | a function of this name in any version of its file or kernel |
//! | `stack_key` | a context: the command's name, then kind and `name_key` of each call |
//!
//! A key is the first 8 bytes of the SHA-256 of its parts, each with its length (`u64`, little-endian) before it; little-endian.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::HashMapExt as _;
use kprism_profile::{Func, NO_PARENT, Profile};

use crate::tables::kind_name;
use crate::{Kernel, Run};
use kprism_manifest::hash::of_parts;

/// The key of these parts.
fn key<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let hash = of_parts(parts);
    u64::from_le_bytes(std::array::from_fn(|i| hash[i]))
}

/// `func_key` of each function of a run's profile, on this kernel.
pub(crate) fn func_keys(run: &Run, kernel: Option<&Kernel>, profile: &Profile) -> Vec<u64> {
    let build = kernel.map_or("", |kernel| match kernel.build_id.as_str() {
        "" => &kernel.release,
        id => id,
    });
    let symbols = std::fs::read(run.symbols().join("kallsyms")).unwrap_or_default();
    let places = Places::of(&symbols, &profile.funcs);
    let func = |(row, func): (usize, &Func)| {
        let place = places.0[row].to_le_bytes();
        let module = func.module.as_bytes();
        match func.kernel {
            true => key([build.as_bytes(), module, func.name.as_bytes(), &place]),
            false => key([module, func.name.as_bytes(), &place]),
        }
    };
    profile.funcs.iter().enumerate().map(func).collect()
}

/// `name_key` of each function.
pub(crate) fn name_keys(profile: &Profile) -> Vec<u64> {
    let name = |func: &Func| key([base(&func.module).as_bytes(), func.name.as_bytes()]);
    profile.funcs.iter().map(name).collect()
}

/// `stack_key` of each context. Only tables of many runs have it: one run is joined by numbers, and hashes would be two thirds
/// of its table.
pub fn stack_keys(profile: &Profile) -> Vec<u64> {
    let names = name_keys(profile);
    let comms: HashMap<u32, &str> =
        profile.tasks.iter().map(|task| (task.root, task.comm.as_str())).collect();
    let mut stacks: Vec<u64> = Vec::with_capacity(profile.nodes.len());
    for (row, node) in (0u32..).zip(&profile.nodes) {
        let kind = kind_name(node.kind).as_bytes();
        stacks.push(match node.parent {
            NO_PARENT => key([kind, comms.get(&row).copied().unwrap_or_default().as_bytes()]),
            parent => {
                let parent = stacks.get(parent as usize).copied().unwrap_or(0).to_le_bytes();
                let name = names.get(node.func as usize).copied().unwrap_or(0).to_le_bytes();
                key([parent.as_slice(), kind, &name])
            }
        });
    }
    stacks
}

/// A module's name in all of its versions: `[kernel]`, `[ext4]`, `libc` of `/usr/lib/libc.so.6` and `libc-2.31.so`.
fn base(module: &str) -> &str {
    if module.starts_with('[') {
        return module;
    }
    let file = module.rsplit('/').next().unwrap_or(module);
    let stem = file.split_once(".so").map_or(file, |(stem, _)| stem);
    match stem.rsplit_once('-') {
        Some((name, version)) if version.starts_with(|first: char| first.is_ascii_digit()) => name,
        _ => stem,
    }
}

/// Address and name in a line of kallsyms.
fn address_and_name(line: &[u8]) -> Option<(&[u8], &[u8])> {
    // The kernel writes 16 digits and one space on each side of the type. There are some hundred thousand lines.
    if let Some((address, [b' ', _, b' ', rest @ ..])) = line.split_first_chunk::<16>()
        && rest.first().is_some_and(|byte| !byte.is_ascii_whitespace())
        && address.iter().all(u8::is_ascii_hexdigit)
    {
        return Some((address, &rest[..rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len())]));
    }
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (address, _, name) = (words.next()?, words.next()?, words.next()?);
    Some((address, name))
}

/// For each function its place among the functions of its name in its module, in order of address: static functions share names.
struct Places(Vec<u32>);

impl Places {
    /// For the kernel's functions, of all its symbols; for others, of those in the profile.
    fn of(kallsyms: &[u8], funcs: &[Func]) -> Self {
        let mut addresses: foldhash::HashMap<(&str, &str), Vec<u64>> = foldhash::HashMap::new();
        let mut by_name: foldhash::HashMap<&[u8], Vec<(&str, &str)>> = foldhash::HashMap::new();
        for func in funcs {
            let key = (func.module.as_str(), func.name.as_str());
            if let Entry::Vacant(new) = addresses.entry(key) {
                new.insert(Vec::new());
                by_name.entry(func.name.as_bytes()).or_default().push(key);
            }
        }
        for line in kallsyms.split(|&byte| byte == b'\n') {
            let Some((address, name)) = address_and_name(line) else { continue };
            // Most lines are of other functions.
            let Some(modules) = by_name.get(name) else { continue };
            let Ok(line) = std::str::from_utf8(line) else { continue };
            let module = line.split_ascii_whitespace().nth(3).unwrap_or("[kernel]");
            let Some(key) = modules.iter().find(|(known, _)| *known == module) else { continue };
            let address = std::str::from_utf8(address).ok().and_then(|a| u64::from_str_radix(a, 16).ok());
            if let (Some(known), Some(address)) = (addresses.get_mut(key), address) {
                known.push(address);
            }
        }
        for func in funcs {
            let known = addresses.entry((&func.module, &func.name)).or_default();
            if !known.contains(&func.start) {
                known.push(func.start);
            }
        }
        for known in addresses.values_mut() {
            known.sort_unstable();
            known.dedup();
        }
        let place = |func: &Func| {
            let known = addresses.get(&(func.module.as_str(), func.name.as_str()));
            known.and_then(|known| known.binary_search(&func.start).ok()).unwrap_or(0) as u32
        };
        Places(funcs.iter().map(place).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_same_everywhere() {
        // As sha256sum gives it.
        assert_eq!(key([b"[kernel]".as_slice(), b"vfs_read"]), 0xdccc41258ec88dad);
        assert_ne!(key([b"ab".as_slice(), b"c"]), key([b"a".as_slice(), b"bc"]));
    }

    #[test]
    fn versions_are_no_part_of_a_modules_base() {
        let cases = [
            ("/usr/lib/x86_64-linux-gnu/libc.so.6", "libc"),
            ("/lib/libc-2.31.so", "libc"),
            ("/usr/bin/x86_64-linux-gnu-gcc-12", "x86_64-linux-gnu-gcc"),
            ("[ext4]", "[ext4]"),
            ("/usr/bin/ls", "ls"),
        ];
        for (module, expected) in cases {
            assert_eq!(base(module), expected);
        }
    }

    #[test]
    fn functions_of_one_name_are_told_apart_by_their_order() {
        let func = |start| Func { name: "show".into(), module: "[kernel]".into(), start, kernel: true };
        let symbols = b"ffffffff81000010 t show\nffffffff81000020 t show\nffffffff81000030 t show\n";
        let places = Places::of(symbols, &[func(0xffff_ffff_8100_0030), func(0xffff_ffff_8100_0010)]);
        assert_eq!(places.0, [2, 0]);
    }

    #[test]
    fn lines_of_every_width_have_address_and_name() {
        let of = |line: &'static str| address_and_name(line.as_bytes());
        assert_eq!(
            of("ffffffff81000010 t show\t[ext4]"),
            Some((b"ffffffff81000010".as_slice(), b"show".as_slice()))
        );
        assert_eq!(of("ffffffff81000010 t  show"), of("ffffffff81000010 t show"));
        assert_eq!(of("c0008000 T a"), Some((b"c0008000".as_slice(), b"a".as_slice())));
        assert_eq!((of(""), of("c0008000 T")), (None, None));
    }
}
