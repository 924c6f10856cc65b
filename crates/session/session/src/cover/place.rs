// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the part of a coverage that a text names: a source file, some of its lines, or a function.
//!
//! In: `FILE`, `FILE:LINE`, `FILE:FROM-TO` or a function's name, and a [`Cover`]. Out: the source and its lines.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use kprism_cover::cover::{FunctionTotal, Source};
use kprism_cover::path::absolute;
use kprism_cover::{Cover, demangled};
use kprism_image::glob::glob;

/// Lines around one that is asked for.
const AROUND: u32 = 10;

/// Lines of a source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lines {
    /// First and last line to show.
    pub shown: (u32, u32),
    /// The first line that was named.
    pub first: u32,
}

const ALL: Lines = Lines { shown: (1, u32::MAX), first: 1 };

/// The source or the functions that a name stands for.
pub enum Which<'a> {
    /// Lines of a source.
    One(&'a Source, Lines),
    /// Functions of that name, each with its source.
    Several(Vec<(&'a Source, &'a FunctionTotal)>),
    /// Neither a source nor a function has that name.
    None,
}

/// Finds a source file, or a function if no source has the name and no lines are asked for. Names of functions may have
/// `*` and `?`.
///
/// # Errors
/// The name is that of several files.
pub fn find<'a>(cover: &'a Cover, name: &str, lines: Option<Lines>) -> Result<Which<'a>> {
    let plain = absolute(None, name);
    let mut found: Vec<&Source> = Vec::new();
    for source in &cover.sources {
        let path = cover.shown(&source.path);
        if path == plain || source.path == plain {
            return Ok(Which::One(source, lines.unwrap_or(ALL)));
        }
        if path.strip_suffix(plain.as_str()).is_some_and(|rest| rest.ends_with('/')) {
            found.push(source);
        }
    }
    match found[..] {
        [one] => return Ok(Which::One(one, lines.unwrap_or(ALL))),
        // Lines are of a file.
        [] if lines.is_some() => return Ok(Which::None),
        [] => {}
        _ => {
            let names: Vec<&str> = found.iter().map(|source| cover.shown(&source.path)).collect();
            bail!("{name} is several files: {}", names.join(", "))
        }
    }
    let mut functions = named(cover, &|function| is_called(function, &|full| full == name));
    if functions.is_empty() {
        functions = named(cover, &|function| is_called(function, &|full| glob(name, full)));
    }
    Ok(match functions[..] {
        [] => Which::None,
        [(source, function)] => Which::One(source, Lines { shown: function.lines, first: function.lines.0 }),
        _ => Which::Several(functions),
    })
}

/// The functions that are meant. Instances of a template, and what a compiler makes of one function, are one.
fn named<'a>(cover: &'a Cover, is_meant: &dyn Fn(&str) -> bool) -> Vec<(&'a Source, &'a FunctionTotal)> {
    let all = cover.sources.iter().flat_map(|source| source.functions.iter().map(move |f| (source, f)));
    let mut found = BTreeMap::new();
    for (source, function) in all.filter(|(_, function)| is_meant(&function.name)) {
        found.entry((source.path.as_str(), function.lines)).or_insert((source, function));
    }
    found.into_values().collect()
}

/// Whether a function has this name: as the linker knows it, or as its source does, with parameters or without.
fn is_called(function: &str, is: &dyn Fn(&str) -> bool) -> bool {
    let shown = demangled(function);
    is(function) || is(&shown) || shown.split_once('(').is_some_and(|(plain, _)| is(plain))
}

/// Splits the lines off a name: `FILE:12`, with some lines around it, or `FILE:12-40`.
///
/// # Errors
/// The lines are none: 0, or the last one before the first.
pub fn split(what: &str) -> Result<(&str, Option<Lines>)> {
    let Some((name, text)) = what.rsplit_once(':') else { return Ok((what, None)) };
    let is_lines = |text: &str| text.bytes().all(|letter| letter.is_ascii_digit() || letter == b'-');
    if name.is_empty() || !text.starts_with(|letter: char| letter.is_ascii_digit()) || !is_lines(text) {
        return Ok((what, None));
    }
    let number = |text: &str| match text.parse::<u32>() {
        Ok(0) => bail!("{what}: lines count from 1"),
        Ok(line) => Ok(line),
        Err(_) => bail!("{what}: {text:?} is no line: FILE:LINE or FILE:FROM-TO"),
    };
    let lines = match text.split_once('-') {
        Some((from, to)) => {
            let (from, to) = (number(from)?, number(to)?);
            if from > to {
                bail!("{what}: ends before it begins: {name}:{to}-{from}");
            }
            Lines { shown: (from, to), first: from }
        }
        None => {
            let line = number(text)?;
            Lines { shown: (line.saturating_sub(AROUND).max(1), line.saturating_add(AROUND)), first: line }
        }
    };
    Ok((name, Some(lines)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_behind_a_name() {
        let lines = |what| split(what).map(|(name, lines)| (name, lines.map(|l| (l.shown, l.first))));
        assert_eq!(lines("a.c:12").unwrap(), ("a.c", Some(((2, 22), 12))));
        assert_eq!(lines("a.c:3-9").unwrap(), ("a.c", Some(((3, 9), 3))));
        for name in ["a.c", "ns::f", "std::vector<int>::at", ":7"] {
            assert_eq!(lines(name).unwrap(), (name, None));
        }
        for (what, words) in [
            ("a.c:0", "lines count from 1"),
            ("a.c:9-3", "a.c:3-9"),
            ("a.c:3-", "is no line"),
            ("a.c:99999999999", "is no line"),
        ] {
            let told = lines(what).unwrap_err().to_string();
            assert!(told.contains(words), "{told}");
        }
    }
}
