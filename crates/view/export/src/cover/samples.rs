// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sample profiles for compilers: LLVM's text, and GCC's file (AutoFDO's, of GCC 12 and later).

use std::collections::BTreeMap;
use std::io::{self, Write};

use kprism_cover::executed::sampled::{Count, Function, Place, Profile};

/// Writes LLVM's text, for `clang -fprofile-sample-use=FILE` and `llvm-profdata`.
///
/// # Errors
/// Writing to `out` fails.
pub fn llvm(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    for (name, function) in &profile.functions {
        writeln!(out, "{name}:{}:{}", function.total(), function.head)?;
        body(function, 1, out)?;
    }
    Ok(())
}

fn body(function: &Function, depth: usize, out: &mut dyn Write) -> io::Result<()> {
    let indent = " ".repeat(depth);
    let shown = |(offset, discriminator): Place| match discriminator {
        0 => offset.to_string(),
        discriminator => format!("{offset}.{discriminator}"),
    };
    for (&place, count) in &function.body {
        write!(out, "{indent}{}: {}", shown(place), count.count)?;
        for (name, count) in &count.targets {
            write!(out, " {name}:{count}")?;
        }
        writeln!(out)?;
    }
    for ((place, name), inlined) in &function.inlined {
        writeln!(out, "{indent}{}: {name}:{}", shown(*place), inlined.total())?;
        body(inlined, depth + 1, out)?;
    }
    Ok(())
}

/// The file's magic number, and the tags of its parts.
const MAGIC: u32 = 0x6763_6461;
const VERSION: u32 = 2;
const NAMES: u32 = 0xaa00_0000;
const FUNCTIONS: u32 = 0xac00_0000;
const MODULES: u32 = 0xae00_0000;
/// Kind of a list of targets: indirect calls.
const INDIRECT: u32 = 7;

/// Writes GCC's file, for `gcc -fauto-profile=FILE` of GCC 12 to 15.
///
/// # Errors
/// Writing to `out` fails.
pub fn gcc(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let mut names: BTreeMap<&str, u32> = BTreeMap::new();
    for (name, function) in &profile.functions {
        names.insert(name, 0);
        collect(function, &mut names);
    }
    (0..).zip(names.values_mut()).for_each(|(index, known)| *known = index);
    let mut bytes = Vec::new();
    [MAGIC, VERSION, 0, NAMES, 0, names.len() as u32].iter().for_each(|&value| word(value, &mut bytes));
    for name in names.keys() {
        word(name.len() as u32 + 1, &mut bytes);
        bytes.extend(name.as_bytes());
        bytes.push(0);
    }
    [FUNCTIONS, 0, profile.functions.len() as u32].iter().for_each(|&value| word(value, &mut bytes));
    for (name, function) in &profile.functions {
        counter(function.head, &mut bytes);
        instance(name, function, &names, &mut bytes);
    }
    [MODULES, 0, 0].iter().for_each(|&value| word(value, &mut bytes));
    out.write_all(&bytes)
}

fn collect<'p>(function: &'p Function, names: &mut BTreeMap<&'p str, u32>) {
    names
        .extend(function.body.values().flat_map(|count| count.targets.keys()).map(|name| (name.as_str(), 0)));
    for ((_, name), inlined) in &function.inlined {
        names.insert(name, 0);
        collect(inlined, names);
    }
}

/// GCC has no discriminators: the largest count is the line's.
fn instance(name: &str, function: &Function, names: &BTreeMap<&str, u32>, bytes: &mut Vec<u8>) {
    let mut lines: BTreeMap<u32, Count> = BTreeMap::new();
    for (place, count) in &function.body {
        let line = lines.entry(place.0).or_default();
        line.count = line.count.max(count.count);
        for (name, count) in &count.targets {
            *line.targets.entry(name.clone()).or_default() += count;
        }
    }
    let index = |name: &str| names.get(name).copied().unwrap_or(0);
    let mut inlined: BTreeMap<(u32, &str), Function> = BTreeMap::new();
    for ((place, name), of) in &function.inlined {
        merge(inlined.entry((place.0, name)).or_default(), of);
    }
    [index(name), lines.len() as u32, inlined.len() as u32].iter().for_each(|&value| word(value, bytes));
    for (line, count) in &lines {
        word(line << 16, bytes);
        word(count.targets.len() as u32, bytes);
        counter(count.count, bytes);
        for (name, count) in &count.targets {
            word(INDIRECT, bytes);
            counter(index(name).into(), bytes);
            counter(*count, bytes);
        }
    }
    for ((line, name), of) in &inlined {
        word(line << 16, bytes);
        instance(name, of, names, bytes);
    }
}

fn merge(into: &mut Function, from: &Function) {
    for (place, count) in &from.body {
        let found = into.body.entry(*place).or_default();
        found.count = found.count.saturating_add(count.count);
        for (name, count) in &count.targets {
            *found.targets.entry(name.clone()).or_default() += count;
        }
    }
    for (key, of) in &from.inlined {
        merge(into.inlined.entry(key.clone()).or_default(), of);
    }
}

fn word(value: u32, bytes: &mut Vec<u8>) {
    bytes.extend(value.to_le_bytes());
}

fn counter(value: u64, bytes: &mut Vec<u8>) {
    bytes.extend(value.to_le_bytes());
}
